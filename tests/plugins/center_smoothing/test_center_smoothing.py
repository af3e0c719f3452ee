"""The certificate of an encoder: golden numbers, its level on encoders whose masses are known, and at attacked inputs."""

import json
import math
import pickle
import warnings
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, ncx2, norm

import recipe
import rt_core as rt
from reference import GOLDEN, golden_encoder, golden_images, numbers
from rt_center_smoothing import CenterSmoothing, certify_rank
from rt_center_smoothing.geometry import geometry_of
from rt_center_smoothing.smoothing import CenteredSettings, Measured
from rt_core import Encoder, RobustnessWarning, ShapeError
from rt_core.randomness import SampleRandom
from rt_core.smoothing import Draws
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_unsupervised_attacks import UPGD

FEW = {"sigma": 0.25, "input_radius": 0.25, "center_draws": 1_500, "certify_draws": 2_000, "delta": 0.1}
L2 = geometry_of("l2")


class Given:
    """Representations that are there already, by purpose."""

    def __init__(self, **rows):
        self.rows = rows

    def chunks(self, purpose, count):
        assert len(self.rows[purpose]) == count
        yield from self.rows[purpose].split(1024)


def row_of(smoothing, rows, geometry=L2):
    """The certificate of representations in the golden order: those of the center, of the check, the clean one, and the rest."""
    few = smoothing.center_draws
    measured = Measured(Given(center=rows[:few], check=rows[few : 2 * few], certify=rows[2 * few + 1 :]), geometry, smoothing)
    return smoothing.certificate_of(measured, geometry, rows[2 * few])


@pytest.mark.parametrize("case", GOLDEN["center_smoothing_bank"]["cases"], ids=lambda case: str(case["n_pred"]))
def test_golden_representations(case):
    few, many = case["n_pred"], case["n_cert"]
    rows = torch.from_numpy(recipe.gauss(2 * few + 1 + many, 8) * (1 + 0.1 * np.arange(8)))
    options = {"sigma": case["sigma"], "input_radius": case["eps_in"], "center_draws": few, "certify_draws": many, "delta": case["delta"]}
    options |= {"alpha_center": case["alpha_1"], "alpha_certify": case["alpha_2"], "rank": "hoeffding"}
    if not case["is_good"]:  # so few draws that all inputs would be abstained from, which the script finds out with them
        with pytest.raises(ValueError, match=r"center_draws is 500; .* every input would be abstained from: at least 1,199 are needed"):
            CenterSmoothing(**options)
        return

    published, found = (row_of(CenterSmoothing(**options, parity=parity), rows) for parity in (True, False))

    for name, golden in (("center_radius", "center_radius"), ("radius", "eps_out"), ("smoothing_error", "smoothing_error")):
        assert published[name] == pytest.approx(case[golden], rel=1e-12)
    assert (published["inside"], published["reason"]) == (case["points_in_ball"], "")
    assert torch.equal(published["center"], rows[case["center_index"]])
    assert found["radius"] == pytest.approx(case["independent_eps_out_order_statistic"], rel=1e-12)
    assert found["center_radius"] < published["center_radius"]  # the upper half's first, not the mean of two
    assert row_of(CenterSmoothing(**options | {"rank": "binomial"}), rows)["radius"] < found["radius"]


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_golden_encoder(dtype, within):
    golden = GOLDEN["center_smoothing_encoder"]
    encoder, images = golden_encoder(dtype), golden_images(4)
    smoothing = CenterSmoothing(sigma=0.25, input_radius=0.25, center_draws=2_000, certify_draws=2_000, rank="hoeffding", parity=True)
    found = []
    for image, clean in zip(images, encoder(images.to(dtype)), strict=True):
        noise = torch.from_numpy(recipe.gauss(6_000, 108, first=6_000 * len(found))).reshape(6_000, 3, 6, 6)
        rows = encoder((image + 0.25 * noise).to(dtype))
        found.append(row_of(smoothing, torch.cat([rows[:4_000], clean[None], rows[4_000:]])))
        if dtype == torch.float64:
            assert torch.equal(found[-1]["center"], rows[golden["center_index_radius_points"][len(found) - 1][0]])

    for name, values in (("radius", golden["eps_out"]), ("smoothing_error", golden["smoothing_error"])):
        torch.testing.assert_close(numbers([row[name] for row in found]), numbers(values), rtol=within, atol=within)
    for row, (_, radius, inside) in zip(found, golden["center_index_radius_points"], strict=True):
        assert row["center_radius"] == pytest.approx(radius, rel=within)
        assert abs(row["inside"] - inside) <= (dtype == torch.float32)


# Encoders in closed form: representations are N(mean, scale² I), so a ball's mass is known


def shortfalls(runs, *, dim, radii):
    """In how many runs each radius is of a ball that holds less than it must; 5,000 draws, input_radius = sigma, delta 0.05."""
    must = norm.cdf(norm.ppf(0.55) + 1)
    short = np.zeros(len(radii), dtype=int)
    for run in range(runs):
        generator = torch.Generator().manual_seed(run)
        rows = torch.randn(5_101, dim, generator=generator, dtype=torch.float64)
        measured = Measured(Given(center=rows[:101], certify=rows[101:]), L2, CLOSED)
        away, found = measured.center.square().sum().item(), np.array([radius(measured) for radius in radii])
        mass = ncx2.cdf(found**2, dim, away) if dim > 1 else norm.cdf(found - away**0.5) - norm.cdf(-found - away**0.5)
        short += mass < must
    return short.tolist()


CLOSED = CenteredSettings(sigma=0.25, certify_draws=5_000, center_draws=101)


@pytest.mark.parametrize("dim", [1, 8])
def test_the_ball_holds_what_it_must_as_often_as_it_says(dim):
    runs, ways = 400, [(0.05, "binomial"), (0.005, "binomial"), (0.05, "hoeffding"), (0.005, "hoeffding")]
    settings = [replace(CLOSED, alpha_certify=alpha, rank=rank) for alpha, rank in ways]
    short = shortfalls(runs, dim=dim, radii=[lambda one, of=of: one.radius(of, input_radius=0.25, delta=0.05) for of in settings])
    for times, (alpha, _) in zip(short, ways, strict=True):
        assert times <= binom.ppf(0.9999, runs, alpha)
    assert short[0] >= binom.ppf(0.0001, runs, 0.04)  # exact: no more careful than it has to be


@pytest.mark.parametrize("dim", [1, 8])
def test_the_ball_would_hold_too_little_without_delta_or_without_the_confidence(dim):
    # The statement d > 3R is never seen to be wrong, whatever is left out: only the ball's mass tells.
    bare = math.ceil(5_000 * norm.cdf(norm.ppf(0.55) + 1))
    without_delta, without_confidence = shortfalls(
        100, dim=dim, radii=[lambda one: one.radius(CLOSED, input_radius=0.25, delta=0.0), lambda one: one.distances[bare - 1]]
    )
    assert without_delta > 30
    assert without_confidence > 30


def test_a_step_is_certified_to_stay_only_where_its_mass_allows_it():
    # f is 0 left of a threshold and 1 right of it: Neyman and Pearson's worst case, where the bound on the mass at x' is met.
    draws, settings = 5_000, CenteredSettings(sigma=1.0, certify_draws=5_000, center_draws=101, alpha_certify=0.02)
    must = norm.cdf(norm.ppf(0.5) + 0.5)
    wrong, kept = 0, 0
    for run in range(200):
        uniform = torch.rand(101 + 2 * draws, 1, generator=torch.Generator().manual_seed(run), dtype=torch.float64)
        for share, rows in ((must - 1e-9, uniform[: 101 + draws]), (must + 0.02, torch.cat([uniform[:101], uniform[101 + draws :]]))):
            steps = (rows > share).double()
            measured = Measured(Given(center=steps[:101], certify=steps[101:]), L2, settings)
            stays = measured.radius(settings, input_radius=0.5, delta=0.0) == 0
            wrong, kept = (wrong + stays, kept) if share < must else (wrong, kept + stays)
    assert wrong <= binom.ppf(0.9999, 200, 0.02)
    assert kept > 150  # and a little more mass than it must be is enough


def flat_encoder(bounds=(0.0, 1.0)):
    return Encoder(lambda inputs: inputs.flatten(1), name="flat", bounds=bounds)


def test_fresh_draws_at_attacked_inputs_do_not_break_the_statement():
    encoder, inputs = rt.encoder("digits_contrastive"), rt.dataset("digits").inputs(range(0, 64, 8))
    attack = UPGD(epsilon=0.25, norm="l2", step=0.05, steps=10)
    smoothing = CenterSmoothing(**FEW)
    attacked = rt.perturb(attack, encoder, inputs).inputs
    assert (torch.linalg.vector_norm((attacked - inputs).flatten(1), dim=1) > 0.2).all()

    at, there = smoothing.certify(encoder, inputs), smoothing.certify(encoder, attacked)

    both = ~(at.abstained | there.abstained)
    assert both.sum() > 4
    apart = torch.linalg.vector_norm(at.center.double() - there.center.double(), dim=1)
    assert (apart > at.radius)[both].sum() <= binom.ppf(0.999, int(both.sum()), smoothing.risk)
    assert (apart > 0).all()

    # The half-mass ball is a statement about every x': fresh draws there are inside it at least half of the time.
    for row, one in enumerate(attacked):
        drawn = torch.cat([*Draws(encoder, one, SampleRandom.of(9, ["fresh"]), sigma=0.25).chunks("fresh", 1_000)])
        inside = torch.linalg.vector_norm(drawn.double() - at.center[row].double(), dim=1) <= at.certified_half_mass_radius[row]
        assert inside.sum() >= binom.ppf(1e-4, 1_000, 0.5)


def test_the_statement_is_about_draws_that_are_fresh():
    inputs = tiny_inputs(2)
    near = (inputs + 1e-3).clamp(0, 1)
    smoothing = CenterSmoothing(**FEW)
    at, there = (smoothing.certify(flat_encoder(), x) for x in (inputs, near))
    # With the same noise the centers would be as far apart as the inputs, less than 0.02.
    assert (torch.linalg.vector_norm(at.center - there.center, dim=1) > 1).all()


# What it is, and what it costs


def test_a_certificate_is_full_and_the_same_whatever_the_batch_and_company():
    encoder, inputs = tiny_encoder(), tiny_inputs(3)
    smoothing = CenterSmoothing(**FEW)
    found = smoothing.certify(encoder, inputs, ids=["a", "b", "c"])
    assert len(found) == 3
    assert found.reason == ("", "", "")
    assert not found.abstained.any()
    assert found.center.shape == (3, 16)
    ordered = [found.center_radius, found.certified_half_mass_radius, found.radius]
    assert all((first < second).all() for first, second in pairwise(ordered))
    assert (found.half_mass_radius < found.certified_half_mass_radius).all()
    assert (found.half_mass_radius > found.center_radius * 0.9).all()
    torch.testing.assert_close(
        found.smoothing_error, torch.linalg.vector_norm((encoder(inputs) - found.center).double(), dim=1), rtol=1e-6, atol=0
    )

    alone = smoothing.certify(encoder, inputs[[2, 1]], ids=["c", "b"], batch=7)
    for name in ("radius", "half_mass_radius", "certified_half_mass_radius", "center_radius", "smoothing_error", "inside", "center"):
        assert torch.equal(getattr(alone, name), getattr(found, name)[[2, 1]]), name
    others = [smoothing.certify(encoder, inputs, ids=["a", "b", "c"], seed=1), smoothing.certify(encoder, inputs, ids=["d", "e", "f"])]
    assert all((other.radius != found.radius).all() for other in others)


def test_passes_are_what_it_says_and_backward_there_are_none():
    encoder, smoothing = tiny_encoder(), CenterSmoothing(**FEW)
    assert smoothing.passes == (2 * 1_500 + 2_000 + 1, 0)
    smoothing.certify(encoder, tiny_inputs(2))
    assert (encoder.passes.forwards, encoder.passes.backwards) == (2 * smoothing.passes[0], 0)


def test_nothing_is_drawn_where_no_certificate_is_possible():
    encoder = tiny_encoder()
    with pytest.warns(
        RobustnessWarning,
        match=r"sigma 0.1 it can be at most 0\.2\d+; .* sigma must be at least 0\.1\d+ or certify_draws at least \d[\d,]+$",
    ):
        smoothing = CenterSmoothing(**FEW | {"sigma": 0.1, "input_radius": 0.4})
    found = smoothing.certify(encoder, tiny_inputs(2))
    assert encoder.passes.forwards == 0
    assert smoothing.passes == (0, 0)
    assert found.reason == ("no certificate",) * 2
    assert not found.abstained.any()
    for name in ("radius", "half_mass_radius", "certified_half_mass_radius", "center_radius", "smoothing_error"):
        assert getattr(found, name).isnan().all()
    with pytest.warns(RobustnessWarning, match=r"sigma must be at least [\d.]+$") as told:
        CenterSmoothing(**FEW | {"input_radius": 100})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CenterSmoothing(**FEW | {"input_radius": 100, "sigma": 1.001 * float(str(told[0].message).rsplit(" ", 1)[1])})


def test_it_abstains_where_the_check_does_not_confirm_the_ball():
    smoothing = CenterSmoothing(**FEW)
    together, apart = torch.zeros(1_500, 2), torch.ones(1_500, 2) * torch.arange(1_500)[:, None]
    certify = torch.linspace(0, 1, 2_000)[:, None].expand(-1, 2)
    found = smoothing.certificate_of(Measured(Given(center=together, check=apart, certify=certify), L2, smoothing), L2, torch.zeros(2))
    assert (found["reason"], found["inside"]) == ("abstained", 1)
    assert math.isnan(found["radius"])
    assert found["certified_half_mass_radius"] == pytest.approx(0.8651 * math.sqrt(2), abs=0.02)  # which need no check


def test_without_directions_there_is_no_certificate_of_cosine():
    smoothing, cosine = CenterSmoothing(**FEW), geometry_of("cosine")
    zeros, ones = torch.zeros(2_000, 2), torch.ones(2_000, 2)
    for center, certify in ((zeros, ones), (ones, zeros)):
        given_ = Given(center=center[:1_500], check=ones[:1_500], certify=certify)
        found = smoothing.certificate_of(Measured(given_, cosine, smoothing), cosine, torch.ones(2))
        assert (found["reason"], math.isnan(found["radius"])) == ("no certificate", True)


@pytest.mark.parametrize("divergence", ["l1", "l2", "linf", "cosine"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("parity", [False, True])
def test_a_draw_that_is_not_finite_is_infinitely_far(divergence, value, parity):
    geometry, generator = geometry_of(divergence), torch.Generator().manual_seed(0)
    rank = "hoeffding" if parity else "binomial"
    smoothing = CenterSmoothing(**FEW | {"input_radius": 0.05}, rank=rank, parity=parity)
    rows = {purpose: torch.randn(count, 3, generator=generator) + 5 for purpose, count in (("center", 1_500), ("check", 1_500))}
    rows["certify"] = torch.randn(2_000, 3, generator=generator) + 5

    def certified(far, **counts):
        given_ = {purpose: one.clone() for purpose, one in rows.items()}
        for purpose, count in counts.items():
            given_[purpose][:count, 1] = far
        return smoothing.certificate_of(Measured(Given(**given_), geometry, smoothing), geometry, torch.ones(3) * 5)

    whole, found = (certified(value, **counts) for counts in ({}, {"center": 100, "check": 50, "certify": 200}))
    assert (whole["reason"], found["reason"]) == ("", "")
    assert found["center"].isfinite().all()
    assert found["center_radius"] > whole["center_radius"]
    assert found["radius"] > whole["radius"]
    assert found["half_mass_radius"] > whole["half_mass_radius"]
    # Of draws that are finite and further than all others it would be the same, but for where the center is.
    if divergence != "cosine":
        far = certified(1e6, center=100, check=50, certify=200)
        assert torch.equal(found["center"], far["center"])
        for name in ("center_radius", "inside", "radius", "half_mass_radius", "certified_half_mass_radius"):
            assert found[name] == far[name], name
    for counts, reason in (({"center": 800}, "no certificate"), ({"check": 800}, "abstained"), ({"certify": 1_500}, "no certificate")):
        none = certified(value, **counts)
        assert (none["reason"], math.isnan(none["radius"])) == (reason, True)


def test_cosine_is_certified_through_the_chord():
    encoder, inputs = tiny_encoder(), tiny_inputs(2)
    smoothing = CenterSmoothing(**FEW)
    directions = Encoder(lambda inputs: torch.nn.functional.normalize(encoder(inputs).double(), dim=1), name="directions")
    found, chord = smoothing.certify(encoder, inputs, "cosine"), smoothing.certify(directions, inputs, "l2")
    assert found.divergence == "cosine"
    torch.testing.assert_close(found.radius, chord.radius.clamp(max=2) ** 2 / 2, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.half_mass_radius, chord.half_mass_radius**2 / 2, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        found.smoothing_error, 1 - torch.nn.functional.cosine_similarity(found.center, encoder(inputs)).double(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("divergence", ["l1", "linf"])
def test_other_metrics_are_measured_in_their_own_norm(divergence):
    inputs = tiny_inputs(1)
    smoothing = CenterSmoothing(**FEW)
    draws = {
        purpose: torch.cat([*Draws(tiny_encoder(), inputs[0], SampleRandom.of(0, ["0"]), sigma=0.25).chunks(purpose, count)]).double()
        for purpose, count in (("center", 1_500), ("check", 1_500), ("certify", 2_000))
    }
    order = 1 if divergence == "l1" else math.inf
    radii = torch.cdist(draws["center"], draws["center"], p=order).sort(dim=1).values[:, 749]
    center = draws["center"][radii.argmin()]
    away = {purpose: torch.linalg.vector_norm(rows - center, order, dim=1) for purpose, rows in draws.items()}
    rank = certify_rank(input_radius=0.25, sigma=0.25, delta=0.1, alpha=0.005, draws=2_000)

    found = smoothing.certify(tiny_encoder(), inputs, divergence)

    assert found.center_radius.item() == pytest.approx(radii.min().item(), rel=1e-12)
    assert found.inside.item() == (away["check"] <= radii.min()).sum()
    assert found.radius.item() == pytest.approx(3 * away["certify"].sort().values[rank - 1].item(), rel=1e-12)


def test_sigma_and_radii_are_in_the_units_of_the_bounds():
    inputs = tiny_inputs(2)
    wide = Encoder(lambda x: flat_encoder()((x + 1) / 2), name="wide", bounds=(-1, 1))
    found = CenterSmoothing(**FEW).certify(flat_encoder(), inputs)
    twice = CenterSmoothing(**FEW | {"sigma": 0.5, "input_radius": 0.5}).certify(wide, 2 * inputs - 1, seed=1)
    torch.testing.assert_close(found.radius, twice.radius, rtol=0.02, atol=0)
    with pytest.raises(
        ValueError, match=r"sigma is 63.75; inputs of encoder 'flat' span a range of 1, so it must be in \(0, 1\]: write 63.75/255"
    ):
        CenterSmoothing(**FEW | {"sigma": 63.75}).certify(flat_encoder(), inputs[:1])


def test_clipping_is_a_choice():
    inputs = tiny_inputs(1)
    found, clipped = (CenterSmoothing(**FEW, clip=clip).certify(flat_encoder(), inputs) for clip in (False, True))
    assert clipped.radius < found.radius
    assert (clipped.center.min(), clipped.center.max()) == (0, 1)
    assert found.center.min() < 0


def test_a_few_candidates_give_a_radius_that_is_no_smaller():
    inputs = tiny_inputs(1)
    whole, few = (CenterSmoothing(**FEW, candidates=candidates) for candidates in (None, 30))
    assert (whole.risk, few.risk) == (0.01, 0.01 + 2**-30)
    found = [smoothing.certify(tiny_encoder(), inputs) for smoothing in (whole, few)]
    assert found[0].center_radius < found[1].center_radius < 2 * found[0].center_radius
    first = torch.cat([*Draws(tiny_encoder(), inputs[0], SampleRandom.of(0, ["0"]), sigma=0.25).chunks("center", 30)])
    assert (first == found[1].center).all(1).any()


@given(
    seed=st.integers(0, 1000),
    radii=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    draws=st.sampled_from([500, 1_000, 2_000]),
    rank=st.sampled_from(["binomial", "hoeffding"]),
)
def test_of_the_same_draws_radii_grow_with_the_input_radius(seed, radii, draws, rank):
    generator = torch.Generator().manual_seed(seed)
    settings = CenteredSettings(sigma=0.5, certify_draws=draws, center_draws=50, rank=rank)
    rows = torch.randn(draws + 50, 3, generator=generator)
    measured = Measured(Given(center=rows[:50], certify=rows[50:]), L2, settings)
    found = [measured.radius(settings, input_radius=radius, delta=delta) for radius in sorted(radii) for delta in (0.0, 0.05)]
    assert found[0] <= found[1] <= found[3]
    assert found[0] <= found[2] <= found[3]
    less_noise = replace(settings, sigma=0.4)
    assert measured.radius(less_noise, input_radius=0.2, delta=0.05) >= measured.radius(settings, input_radius=0.2, delta=0.05)


def test_more_draws_give_a_smaller_radius():
    found = [
        CenterSmoothing(**FEW | {"certify_draws": draws}).certify(flat_encoder(), tiny_inputs(1)).radius for draws in (300, 3_000, 30_000)
    ]
    assert found[0] > found[1] > found[2]


def test_the_published_rank_is_never_tighter():
    found, published = (CenterSmoothing(**FEW, rank=rank).certify(flat_encoder(), tiny_inputs(2)) for rank in ("binomial", "hoeffding"))
    assert (found.radius < published.radius).all()
    assert torch.equal(found.center, published.center)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0}, "sigma is 0; it must be positive"),
        ({"sigma": "0.25"}, "sigma is '0.25'; expected a plain number"),
        ({"input_radius": -0.1}, "input_radius is -0.1; a radius cannot be negative"),
        ({"delta": 0}, r"delta is 0; it must be in \(0, 0.5\)"),
        ({"alpha_center": 1}, r"alpha_center is 1; it must be in \(0, 1\)"),
        ({"alpha_certify": 0}, r"alpha_certify is 0; it must be in \(0, 1\)"),
        ({"center_draws": 1_198, "delta": 0.05}, "center_draws is 1,198; .* at least 1,199 are needed, and about four times as many"),
        ({"certify_draws": 7}, "certify_draws is 7; .* at least 8 are needed"),
        ({"certify_draws": 1e5}, "certify_draws is 100000.0; expected a whole number"),
        ({"rank": "exact"}, "rank is 'exact'; expected 'binomial' or 'hoeffding'"),
        ({"parity": True}, "say rank='hoeffding' too"),
        ({"parity": "no"}, "parity is 'no'; expected True or False"),
        ({"clip": "no"}, "clip is 'no'; expected True or False"),
        ({"candidates": 1_501}, "candidates is 1501; they are taken from the 1500 center draws"),
    ],
)
def test_what_cannot_say_anything_is_refused_when_it_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        CenterSmoothing(**FEW | options)


def test_what_cannot_be_certified_is_refused_before_any_pass():
    encoder, inputs = tiny_encoder(), tiny_inputs(2)
    smoothing = CenterSmoothing(**FEW)
    for wrong, what in (
        ({"divergence": "kl"}, "triangle inequality"),
        ({"ids": ["a"]}, "2 inputs and 1 ids"),
        ({"batch": 0}, "batch is 0"),
    ):
        with pytest.raises((ValueError, ShapeError), match=what):
            smoothing.certify(encoder, inputs, **wrong)
    with pytest.raises(ValueError, match="outside the bounds"):
        smoothing.certify(encoder, inputs * 2)
    assert encoder.passes.forwards == 0


def test_it_is_a_recordable_value():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smoothing = CenterSmoothing(**FEW)
    assert pickle.loads(pickle.dumps(smoothing)) == smoothing
    json.dumps(asdict(smoothing))
    assert CenterSmoothing(sigma=0.25, input_radius=0.25).passes == (120_001, 0)

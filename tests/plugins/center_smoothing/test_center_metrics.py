"""The certificates as metrics of a run: what they read, what they share, and how what was not given is read."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from scipy.stats import beta, norm

import rt_core as rt
from rt_center_smoothing import (
    CenterSmoothing,
    CertifiedBreakaway,
    CertifiedHalfMassRadius,
    CertifiedNeighborRadius,
    CertifiedOutputRadius,
    CertifiedQuantile,
    HalfMassRadius,
    vote_radius,
)
from rt_center_smoothing.geometry import geometry_of
from rt_core import Bank, Encoder, RobustnessWarning
from rt_core.neighbors import pairwise
from rt_core.randomness import SampleRandom
from rt_core.smoothing import Draws
from rt_core.testing import read_example, tiny_encoder, tiny_inputs
from rt_core.traces import check_metric

NOISE = {"sigma": 0.25, "certify_draws": 2_000}
BALL = NOISE | {"center_draws": 1_500}
OUTPUT = BALL | {"input_radius": 0.25, "delta": 0.1}
METRICS = {
    "certified_output_radius": CertifiedOutputRadius(**OUTPUT),
    "certified_quantile": CertifiedQuantile(**OUTPUT),
    "certified_breakaway": CertifiedBreakaway(**OUTPUT),
    "half_mass_radius": HalfMassRadius(**BALL),
    "certified_half_mass_radius": CertifiedHalfMassRadius(**BALL, input_radius=0.25),
    "certified_neighbor_radius": CertifiedNeighborRadius(**NOISE),
}


def reading(row=0, encoder=None, divergence=rt.divergences.l2, bank=None):
    """One sample, as a run hands it over."""
    trace, known, context = read_example("clean", order=[row])
    if encoder is not None:
        clean = encoder(tiny_inputs(40))
        trace, known = replace(trace, clean=clean[[row]], adversarial=clean[[row]]), Bank(clean)
    context = replace(context, divergence=divergence, encoder=encoder or tiny_encoder())  # whose passes are not yet counted
    return trace, bank or known, context


def number(metric, *read):
    found = metric(*read)
    assert found.values.shape == (1,)
    return found.values.item(), found.notes[0]


@pytest.mark.parametrize("divergence", ["l2", "cosine", "linf"])
def test_metrics_read_the_certificate_that_certify_gives(divergence):
    encoder, inputs = tiny_encoder(), tiny_inputs(40)
    found = CenterSmoothing(**OUTPUT).certify(encoder, inputs[[3]], divergence, ids=["3"])
    read = reading(3, divergence=getattr(rt.divergences, divergence))
    for name, expected in (
        ("certified_output_radius", found.radius),
        ("half_mass_radius", found.half_mass_radius),
        ("certified_half_mass_radius", found.certified_half_mass_radius),
        ("certified_quantile", read[1].pair_quantiles(found.radius, divergence)),
    ):
        assert number(METRICS[name], *read) == (expected.item(), "")
        own = replace(METRICS[name], divergence=divergence)
        assert number(own, *reading(3)) == (expected.item(), "")


def test_metrics_share_the_draws_and_the_center():
    read = reading()
    passes = read[2].encoder.passes
    for names, forwards in ((["half_mass_radius"], 3_500), (["certified_output_radius"], 1_500), (list(METRICS), 0)):
        before = passes.forwards
        for name in names:
            METRICS[name](*read)
        assert passes.forwards - before == forwards, names
    # Another input radius, delta or rank is read off the same distances.
    for other in ({"input_radius": 0.1}, {"delta": 0.15}, {"rank": "hoeffding"}, {"alpha_certify": 0.01}):
        before = passes.forwards
        assert (
            number(replace(METRICS["certified_output_radius"], **other), *read)[0] != number(METRICS["certified_output_radius"], *read)[0]
        )
        assert passes.forwards == before
    assert passes.backwards == 0


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_takes_and_rehearses_with_at_most_64_passes(name):
    metric, read = METRICS[name], reading()
    check_metric(metric, name)
    metric(*read)
    assert (read[2].encoder.passes.forwards, 0) == metric.passes
    variants = [metric]
    if name != "certified_neighbor_radius":
        variants.append(replace(metric, rank="hoeffding"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variants.append(replace(metric, sigma=0.01))  # too little for some
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in variants:
            less, again = given.rehearsal(), reading()
            less(*again)
            assert type(less) is type(metric)
            assert again[2].encoder.passes.forwards == sum(less.passes)
            assert 0 < sum(less.passes) <= 64


def test_breakaway_is_the_share_of_others_that_the_ball_reaches():
    encoder = Encoder(lambda inputs: 20 * inputs.flatten(1)[:, :2].double().float() + inputs.flatten(1)[:, 2:4], name="corners")
    spread = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 40.0], [0.0, 0.0], [300.0, 1.0]])
    trace, _, context = reading(0, encoder)
    trace, bank = replace(trace, clean=spread[:1]), Bank(spread)
    certified = CenterSmoothing(**OUTPUT).certify(encoder, context.inputs, ids=["0"])
    center, radius = certified.center[0].double(), certified.radius.item()
    # The bisectors, one by one.
    expected = 0
    for other in spread[1:].double():
        apart = torch.linalg.vector_norm(other - spread[0])
        reach = (torch.linalg.vector_norm(center - other) ** 2 - torch.linalg.vector_norm(center - spread[0]) ** 2) / (2 * apart)
        expected += bool(apart > 0 and reach < radius)
    assert 0 < expected < 4

    assert number(METRICS["certified_breakaway"], trace, bank, context) == (expected / 4, "")
    stranger = replace(trace, ids=("not there",))
    assert number(METRICS["certified_breakaway"], stranger, bank, context) == (expected / 5, "")


@pytest.mark.parametrize("dim", [2, 3])
def test_what_directions_a_ball_reaches_is_what_random_directions_in_it_reach(dim):
    """Cosine: another sample is in reach where some unit vector in the ball is strictly nearer to it, and only there."""
    cosine, generator = geometry_of("cosine"), torch.Generator().manual_seed(dim)
    # A sphere's points, close to one another: in the plane every thousandth of a degree.
    angles = torch.arange(360_000, dtype=torch.float64) * (math.pi / 180_000)
    sphere = torch.stack([angles.cos(), angles.sin()], 1) if dim == 2 else torch.randn(400_000, 3, generator=generator, dtype=torch.float64)
    sphere = cosine.place(sphere)
    exact, between = {True: 0, False: 0}, 0
    for _ in range(60):
        center, own, other = cosine.place(torch.randn(3, dim, generator=generator))
        nearer = torch.linalg.vector_norm(sphere - other, dim=1) < torch.linalg.vector_norm(sphere - own, dim=1)
        least = torch.linalg.vector_norm(sphere - center, dim=1)[nearer].min().item()  # how near a nearer one is
        height = (center @ (own - other) / (own - other).norm()).item()
        for distance in (0.9 * least, 0.98 * least, 1.02 * least, 1.1 * least):
            kept = cosine.keeps(center, distance, own, other[None]).item()
            if least > 0.1:  # below, the sphere's points are too few to tell
                assert kept == (distance < least)
                exact[kept] += 1
                between += height < distance < least  # where the half-space alone would call it reached
    assert min(exact.values()) > 20
    assert between > 5


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_copy_that_is_not_finite_is_a_vote_against_the_sample(value, monkeypatch):
    trace, _, context = reading()
    far = Bank(torch.cat([trace.clean, trace.clean + 100]), ids=["0", "1"])
    unbroken = METRICS["certified_neighbor_radius"]
    for count, note in ((0, ""), (500, ""), (1_024, "abstained"), (2_000, "abstained")):
        rows = trace.clean.repeat(2_000, 1)
        rows[:count, 0] = value
        monkeypatch.setattr(Draws, "chunks", lambda draws, purpose, asked, rows=rows: iter(rows.split(1024)))
        radius, why = number(unbroken, trace, far, context)
        expected = vote_radius(2_000 - count, 2_000, sigma=0.25, alpha=0.005)
        assert (radius, why) == (pytest.approx(expected, nan_ok=True), note)


def test_a_sample_on_which_the_encoder_breaks_at_times_has_its_rows():
    class Breaking(torch.nn.Module):
        def forward(self, inputs):
            values = inputs.flatten(1)[:, :8]
            return values.where((values > -0.5).all(1)[:, None], torch.nan)

    encoder = Encoder(Breaking(), name="breaking")
    metrics = {name: replace(metric, sigma=0.25) for name, metric in METRICS.items()}
    words = r"encoder 'breaking' gave NaN or infinity for \d\.\d\d% of [12],\d00 noisy copies of sample '\d+' \(sigma 0.25\): such draws count against"
    with pytest.warns(RobustnessWarning, match=words) as said:
        results = rt.run(plan(metrics, encoder), progress=False)
    assert len(said) == 1  # of six metrics and six samples
    rows = results.frame.pivot(index="sample", columns="metric", values="value")
    assert rows.shape == (6, len(METRICS))
    assert not results.manifest["errors"]
    assert rows["half_mass_radius"].notna().all()
    assert (results.summary()["n"] == 6).all()
    # All numbers are those of an encoder that sends such inputs very far away.
    away = Encoder(lambda inputs: (one := inputs.flatten(1)[:, :8]).where((one > -0.5).all(1)[:, None], 1e9), name="away")
    other = rt.run(plan(metrics, away), progress=False).frame.pivot(index="sample", columns="metric", values="value")
    for name in ("half_mass_radius", "certified_half_mass_radius", "certified_neighbor_radius"):
        assert rows[name].tolist() == pytest.approx(other[name].tolist(), nan_ok=True)


def test_draws_too_few_for_half_of_the_mass_are_warned_of_and_not_made():
    with pytest.warns(
        RobustnessWarning,
        match="certify_draws is 8, and with rank 'hoeffding' no certificate is possible at any input_radius, .* it takes certify_draws at least 11$",
    ):
        metric = HalfMassRadius(sigma=0.25, center_draws=50, certify_draws=8, rank="hoeffding")
    read = reading()
    assert number(metric, *read) == (pytest.approx(math.nan, nan_ok=True), "no certificate")
    assert (read[2].encoder.passes.forwards, metric.passes) == (0, (0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert HalfMassRadius(sigma=0.25, center_draws=50, certify_draws=11, rank="hoeffding").passes == (61, 0)
        assert HalfMassRadius(sigma=0.25, center_draws=50, certify_draws=8).passes == (58, 0)


def test_flags_are_true_or_false():
    for name in METRICS:
        with pytest.raises(ValueError, match="clip is 'false'; expected True or False"):
            replace(METRICS[name], clip="false")


@pytest.mark.parametrize("divergence", ["l2", "cosine", "kl"])
def test_votes_are_counted_against_every_anchor(divergence):
    trace, bank, context = reading(5, divergence=getattr(rt.divergences, divergence))
    draws = Draws(context.encoder, context.inputs[0], SampleRandom.of(0, ["5"]), sigma=0.05)
    rows = torch.cat([*draws.chunks("certify", 500)])
    away = pairwise(divergence, bank.take(range(len(bank))).double(), rows.double())
    others = torch.cat([away[:5], away[6:]]).min(0).values
    votes = int((away[5] < others).sum())
    assert 0 < votes <= 500
    bound = beta.ppf(0.01, votes, 500 - votes + 1)

    found = number(CertifiedNeighborRadius(sigma=0.05, certify_draws=500, alpha_certify=0.01), trace, bank, context)

    assert found == (pytest.approx(0.05 * norm.ppf(bound), rel=1e-9), "") if bound > 0.5 else found[1] == "abstained"


def test_the_neighbor_radius_of_a_line_is_the_distance_to_the_middle():
    # f(x) = x in one dimension, anchors at 0.2 and 0.8: the vote changes in the middle, 0.3 away, whatever sigma is.
    encoder = Encoder(lambda inputs: inputs, name="line")
    trace, _, context = reading()
    bank = Bank(torch.tensor([[0.2], [0.8]]))
    line = replace(context, encoder=encoder, read=lambda: torch.tensor([[0.2]]))
    metric = CertifiedNeighborRadius(sigma=0.25, certify_draws=100_000, alpha_certify=0.01)
    radius, note = number(metric, replace(trace, clean=torch.tensor([[0.2]])), bank, line)
    assert note == ""
    assert 0.29 < radius < 0.3
    assert metric.span == (0.0, pytest.approx(0.25 * norm.ppf(0.01 ** (1 / 100_000))))


def test_a_tie_counts_against_the_sample_and_is_read_as_no_certificate():
    trace, _, context = reading()
    twins = Bank(torch.cat([trace.clean, trace.clean, trace.clean + 100]))
    assert number(METRICS["certified_neighbor_radius"], trace, twins, context) == (pytest.approx(math.nan, nan_ok=True), "abstained")
    alone = Bank(torch.cat([trace.clean, trace.clean + 100]))
    radius, note = number(METRICS["certified_neighbor_radius"], trace, alone, context)
    assert (radius, note) == (pytest.approx(METRICS["certified_neighbor_radius"].span[1]), "")


def test_a_divergence_that_is_no_metric_is_refused():
    for name, metric in METRICS.items():
        if name == "certified_neighbor_radius":
            assert number(metric, *reading(divergence=rt.divergences.kl))
            with pytest.raises(ValueError, match="no divergence is named 'l3'"):
                replace(metric, divergence="l3")
            continue
        with pytest.raises(ValueError, match="triangle inequality"):
            replace(metric, divergence="kl")
        read = reading(divergence=rt.divergences.kl)
        with pytest.raises(ValueError, match="say divergence='l2'"):
            metric(*read)
        assert read[2].encoder.passes.forwards == 0


def test_noise_wider_than_the_bounds_is_refused_before_any_pass():
    words = r"sigma is 25; inputs of encoder 'tiny' span a range of 1, so it must be in \(0, 1\]: write 25/255, not 25"
    for metric in METRICS.values():
        read = reading()
        with pytest.raises(ValueError, match=words):
            replace(metric, sigma=25.0)(*read)
        assert read[2].encoder.passes.forwards == 0
    with pytest.raises(ValueError, match=words):
        rt.run(plan([CertifiedNeighborRadius(sigma=25.0)]), progress=False)
    with pytest.raises(ValueError, match=words):
        CenterSmoothing(**OUTPUT | {"sigma": 25.0}).certify(tiny_encoder(), tiny_inputs(1))


def plan(metrics, encoder=None, attacked=6):
    encoders = {"tiny": encoder or tiny_encoder()}
    return rt.Evaluation(encoders=encoders, dataset=tiny_inputs(20), attacks={}, metrics=metrics, attacked=attacked)


def test_a_run_gives_what_certify_gives(tmp_path):
    encoder = tiny_encoder()
    results = rt.run(plan(METRICS, encoder), store=tmp_path, progress=False)
    summary = results.summary().set_index("metric")
    assert ((summary["n"] == 6) & (summary["undefined"] == 0)).all()

    order = results.manifest["samples"]["sample"]
    found = CenterSmoothing(**OUTPUT).certify(encoder, tiny_inputs(20)[[int(name) for name in order]], ids=order)
    values = results.frame[results.frame["metric"] == "certified_output_radius"]["value"]
    assert values.tolist() == found.radius.tolist()
    assert summary.loc["certified_output_radius", "estimate"] == found.radius.quantile(0.5).item()

    radii = results.frame[results.frame["metric"] == "certified_neighbor_radius"]
    assert summary.loc["certified_neighbor_radius", "estimate"] == pytest.approx(radii["value"].fillna(0).mean())
    curve = results.certified_curve("certified_neighbor_radius", [0.0, 0.05, 0.2])
    assert curve["estimate"].tolist() == [(radii["value"] > threshold).mean() for threshold in (0.0, 0.05, 0.2)]


def test_a_run_reads_what_was_not_given_as_the_worst():
    wide = {"input_radius": 1.5}
    with pytest.warns(RobustnessWarning, match="no certificate is possible"):
        impossible = {
            "radius": CertifiedOutputRadius(**OUTPUT | wide),
            "quantile": CertifiedQuantile(**OUTPUT | wide),
            "half": CertifiedHalfMassRadius(**BALL, **wide),
        }
    few = {"delta": 0.0498, "center_draws": 1_210, "certify_draws": 300}  # at which a third is abstained from
    encoder = tiny_encoder()
    results = rt.run(plan(impossible | {"few": CertifiedBreakaway(**OUTPUT | few)}, encoder, attacked=12), progress=False)
    summary, notes = results.summary().set_index("metric"), results.frame.groupby("metric")["note"].agg(list)

    assert all(notes[name] == ["no certificate"] * 12 for name in impossible)
    assert summary.loc[[*impossible], "estimate"].tolist() == [math.inf, 1, math.inf]
    rows = results.frame[results.frame["metric"] == "few"]
    assert 0 < notes["few"].count("abstained") < 12
    assert (rows["value"].isna() == (rows["note"] == "abstained")).all()
    assert summary.loc["few", "estimate"] == pytest.approx(rows["value"].fillna(1).mean())
    assert summary["abstained"].to_dict() == dict.fromkeys(impossible, 12) | {"few": notes["few"].count("abstained")}
    assert (summary["undefined"] == 0).all()


def test_a_run_makes_the_draws_of_a_sample_once():
    first, all_of_them = tiny_encoder(), tiny_encoder()
    rt.run(plan({"one": METRICS["certified_output_radius"]}, first), progress=False)
    rt.run(plan(METRICS, all_of_them), progress=False)
    assert all_of_them.passes.forwards - first.passes.forwards <= 2 * 64 * len(METRICS)  # of rehearsals


def test_a_plan_of_names_is_a_value():
    described = {
        name: rt.use(name, **options) for name, options in (("certified_output_radius", OUTPUT), ("certified_neighbor_radius", NOISE))
    }
    first = rt.run(plan(described, attacked=2), progress=False).frame
    assert first.equals(rt.run(plan({name: METRICS[name] for name in described}, attacked=2), progress=False).frame)

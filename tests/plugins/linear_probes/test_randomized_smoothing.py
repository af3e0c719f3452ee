"""Randomized smoothing: the bound, the radius and what is made of them, against golden numbers, closed forms and ART."""

import math
import pickle
import sys
import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

import recipe
from reference import GOLDEN, golden_encoder, golden_images, numbers
from rt_core import (
    Encoder,
    Evaluation,
    InvalidInputs,
    MissingLabels,
    RobustnessWarning,
    SampleRandom,
    ShapeError,
    run,
    smoothing,
)
from rt_core import metric as named
from rt_core.datasets import tensors
from rt_core.smoothing import Draws
from rt_core.testing import parametrize_metric_checks, read_example, tiny_encoder, tiny_inputs
from rt_linear_probes.probes import Probe, encoder_print, fit_probe
from rt_linear_probes.smoothing import (
    CertifiedAccuracy,
    CertifiedRadius,
    RandomizedSmoothing,
    SmoothedPrediction,
    _certified,
    _predicted,
    average_certified_radius,
    certified_l2_radius,
    clopper_pearson_lower,
    draws_needed,
)

NEVER = -1
CLIPPED = {"randomized_smoothing_run": True, "randomized_smoothing_run_unclipped": False}
COUNTS = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
ALPHA = st.floats(1e-6, 0.4)


def few(**options):
    return RandomizedSmoothing(**{"sigma": 0.25, "selection_draws": 20, "certify_draws": 200} | options)


def constant(winner=1, classes=3):
    """Logits of one class whatever the inputs."""
    return lambda inputs: torch.eye(classes)[[winner]].expand(len(inputs), -1)


def half_space(weight, threshold):
    """Logits of class 1 above a plane, of class 0 below it."""
    return lambda inputs: torch.stack([threshold - inputs.flatten(1) @ weight, inputs.flatten(1) @ weight - threshold], 1)


def give_noise(monkeypatch, rows):
    """Make a stream's draws ``rows(purpose, first place, shape of one)``, whatever the input's content."""

    def normal(random, purpose, shape):
        name, _, block = purpose.split("/")
        return rows(random.ids[0], name, int(block) * shape[0], shape)[None]

    monkeypatch.setattr(SampleRandom, "normal", normal)


def same(one, two):
    return all(torch.equal(value, vars(two)[name]) for name, value in vars(one).items())


# The bound and the radius


def test_the_golden_bounds_and_radii():
    for row in GOLDEN["clopper_pearson"]:
        lower = clopper_pearson_lower(row["nA"], row["N"], row["alpha"])
        assert lower.item() == pytest.approx(row["p_lower"], abs=1e-12)
        assert lower.item() == pytest.approx(row["art_p_lower"], abs=1e-12)
        assert certified_l2_radius(lower, 0.25).item() == pytest.approx(row["radius_sigma0.25"], abs=1e-12)
        assert (lower.item() < 0.5) == (row["predict"] == NEVER)


@given(counts=COUNTS, alpha=ALPHA)
def test_as_many_successes_have_probability_alpha_at_the_bound(counts, alpha):
    successes, n = counts
    lower = clopper_pearson_lower(successes, n, alpha).item()
    if successes == 0:
        assert lower == 0
    else:
        assert binom.sf(successes - 1, n, lower) == pytest.approx(alpha, rel=1e-8)
        assert 0 < lower < successes / n


@given(counts=COUNTS, alpha=ALPHA, times=st.integers(2, 9))
def test_the_bound_rises_with_successes_with_alpha_and_with_draws_of_the_same_share(counts, alpha, times):
    successes, n = counts
    every = clopper_pearson_lower(torch.arange(n + 1), n, alpha)
    assert every.shape == (n + 1,)
    assert (every.diff() > 0).all()
    lower = every[successes]
    assert lower == clopper_pearson_lower(successes, n, alpha)
    if successes:
        assert lower < clopper_pearson_lower(successes, n, min(2 * alpha, 0.5))
    if 2 * successes > n:
        assert lower < clopper_pearson_lower(times * successes, times * n, alpha)


@given(lower=st.floats(0, 1 - 1e-9), sigma=st.floats(1e-3, 1e3))
def test_the_radius_is_the_quantile_in_units_of_sigma_and_never_negative(lower, sigma):
    radius = certified_l2_radius(lower, sigma).item()
    assert radius == pytest.approx(sigma * max(norm.ppf(lower), 0), rel=1e-12)
    assert certified_l2_radius(lower, 2 * sigma).item() == pytest.approx(2 * radius, rel=1e-12)


def test_half_gives_0_and_only_certainty_is_infinite():
    assert certified_l2_radius(torch.tensor([0.0, 0.3, 0.5, 1.0]), 0.25).tolist() == [0, 0, 0, math.inf]


def test_all_draws_agreeing_are_not_certainty():
    lower = clopper_pearson_lower(torch.tensor([100, 66, 65]), 100, 0.001)
    assert lower[0].item() == pytest.approx(0.001 ** (1 / 100), rel=1e-12)
    radius = certified_l2_radius(lower, 1.0)
    assert lower[0].item() == pytest.approx(0.933254, abs=1e-6)
    assert 0.5 * radius[0].item() == pytest.approx(0.750238, abs=1e-6)
    assert lower[1].item() == pytest.approx(0.50165, abs=1e-5)
    assert radius[1].item() == pytest.approx(0.00414, abs=1e-5)
    assert lower[2] < 0.5


@pytest.mark.parametrize(("alpha", "certify", "predict"), [(0.001, 10, 11), (0.05, 5, 6), (2**-10, 11, 11), (0.6, 1, 2)])
def test_the_draws_that_are_needed_are_the_fewest_that_do(alpha, certify, predict):
    assert draws_needed(alpha) == certify
    assert certified_l2_radius(clopper_pearson_lower(certify, certify, alpha), 1.0) > 0
    assert clopper_pearson_lower(certify - 1, certify - 1, alpha) <= 0.5 + 1e-12 if certify > 1 else True
    assert draws_needed(alpha, two_sided=True) == predict
    assert 2 * 0.5**predict <= alpha < 2 * 0.5 ** (predict - 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: clopper_pearson_lower(3, 2, 0.1), "successes is 3; expected whole numbers between 0 and n = 2"),
        (lambda: clopper_pearson_lower(torch.tensor([1.5, 2]), 2, 0.1), r"successes is \[1.5, 2\]"),
        (lambda: clopper_pearson_lower(0, 0, 0.1), "n is 0"),
        (lambda: clopper_pearson_lower(1, 2, 1.0), "alpha is 1; it is the probability of being wrong"),
        (lambda: draws_needed(0.0), "alpha is 0"),
        (lambda: certified_l2_radius(1.2, 0.5), r"lower is 1.2; expected probabilities, in \[0, 1\]"),
        (lambda: certified_l2_radius(math.nan, 0.5), "lower is nan"),
        (lambda: certified_l2_radius(0.9, 0.0), "sigma is 0; it is a standard deviation"),
        (lambda: average_certified_radius([1.0], [True], over="none"), "over is 'none'; expected 'all' or 'correct'"),
        (lambda: average_certified_radius([1.0], [True, False]), r"radius has shape \[1\] and correct \[2\]"),
        (lambda: average_certified_radius([], []), "n at least 1"),
        (lambda: average_certified_radius([math.nan], [True]), "negative or NaN for a correct sample"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_golden_average_certified_radii():
    known = GOLDEN["acr"]
    radius, correct = numbers(known["radius"]), torch.tensor(known["predict"]) == torch.tensor(known["label"])
    assert average_certified_radius(radius, correct) == pytest.approx(known["acr_macer_mean_over_all"], abs=1e-12)
    assert average_certified_radius(radius, correct, over="correct") == pytest.approx(known["acr_reference_mean_over_correct"], abs=1e-12)
    for threshold, share in known["certacc_gt"].items():
        assert (correct & (radius > float(threshold))).double().mean().item() == pytest.approx(share, abs=1e-12)


def test_a_wrong_sample_counts_as_0_or_not_at_all():
    assert average_certified_radius([math.nan, 0.5], [False, True]) == 0.25
    assert average_certified_radius([math.nan, 0.5], [False, True], over="correct") == 0.5
    assert average_certified_radius([0.5], [False]) == 0
    assert math.isnan(average_certified_radius([0.5], [False], over="correct"))


# Certificates


@pytest.mark.parametrize("golden", CLIPPED)
def test_the_golden_runs(golden, monkeypatch):
    """On the reference's noise: its rows are consumed in order, 100 and 1,000 an image."""
    begins = {"selection": 0, "certify": 100}

    def rows(image, purpose, place, shape):
        first = 1100 * int(image) + begins[purpose] + place
        return torch.from_numpy(recipe.gauss(shape[0], 108, first)).reshape(shape)

    give_noise(monkeypatch, rows)
    classes, dims = torch.arange(5.0).double()[:, None], torch.arange(8.0).double()
    encoder, weight = golden_encoder(), torch.cos(1.1 * classes + 0.6 * dims)

    settings = {"sigma": 0.25, "certify_draws": 1000, "clip": CLIPPED[golden]}
    found = RandomizedSmoothing(**settings).certify(lambda inputs: encoder(inputs) @ weight.T, golden_images(8))

    assert found.predicted.tolist() == GOLDEN[golden]["predict"]
    torch.testing.assert_close(found.radius, numbers(GOLDEN[golden]["radius"]), rtol=0, atol=1e-12)
    assert found.votes.sum(1).tolist() == [1000] * 8
    assert not found.abstained.any()


def test_the_bound_is_above_the_truth_as_often_as_it_says():
    """A plane has probabilities in closed form, and a true radius: the distance. 1,000 certificates at alpha 0.05."""
    sigma, n, alpha, p = 0.25, 100, 0.05, 0.8
    weight = torch.tensor([3.0, -2.0, 1.0, 0.5])
    inputs = torch.full((1000, 4), 0.5)
    distance = sigma * norm.ppf(p)
    model = half_space(weight, (0.5 * weight.sum() - distance * weight.norm()).item())

    found = RandomizedSmoothing(sigma=sigma, selection_draws=50, certify_draws=n, alpha=alpha).certify(model, inputs)

    assert found.top.tolist() == [1] * 1000
    bounds = clopper_pearson_lower(torch.arange(n + 1), n, alpha).numpy()
    exact = binom.sf(int((bounds > p).argmax()) - 1, n, p)  # the chance of a count whose bound is too high
    assert 0.02 < exact <= alpha
    wrong = found.lower > p
    assert binom.ppf(1e-3, 1000, exact) <= wrong.sum().item() <= binom.ppf(1 - 1e-3, 1000, exact)
    # Against the distance, but for where the plane lies in float32.
    assert torch.equal(wrong, found.radius > distance + 1e-6)
    expected = certified_l2_radius(clopper_pearson_lower(found.votes[:, 1], n, alpha), sigma)
    assert torch.equal(found.radius, torch.where(found.abstained, 0.0, expected))


def test_one_class_everywhere_is_certified_as_far_as_the_draws_go():
    found = RandomizedSmoothing(sigma=0.5, certify_draws=100).certify(constant(), tiny_inputs(2))
    assert found.predicted.tolist() == found.top.tolist() == [1, 1]
    assert found.votes.tolist() == [[0, 100, 0]] * 2
    assert found.radius.tolist() == pytest.approx([0.750238] * 2, abs=1e-6)
    assert RandomizedSmoothing(sigma=0.5, certify_draws=100).largest_radius == found.radius[0].item()
    assert RandomizedSmoothing(sigma=0.25).largest_radius == pytest.approx(0.95286, abs=1e-5)


def test_what_abstains_is_whole_as_well():
    found = few(certify_draws=50).certify(half_space(torch.ones(4), 2.0), torch.full((3, 4), 0.5))
    assert found.abstained.tolist() == [True] * 3
    assert found.predicted.tolist() == [NEVER] * 3
    assert set(found.top.tolist()) <= {0, 1}
    assert found.radius.tolist() == [0] * 3
    assert ((found.lower > 0) & (found.lower < 0.5)).all()
    assert not found.correct(found.top).any()
    assert "3 inputs, 3 abstained" in repr(found)


@given(batch=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_the_result_does_not_depend_on_the_batch(batch, seed):
    encoder, inputs = tiny_encoder(dim=3), tiny_inputs(2)
    known = {"seed": seed, "logits": True}
    assert same(few().certify(encoder, inputs, batch=batch, **known), few().certify(encoder, inputs, **known))


def test_an_input_has_its_own_draws_in_any_company():
    encoder, inputs = tiny_encoder(dim=3), tiny_inputs(4)
    whole, part = few().certify(encoder, inputs, logits=True), few().certify(encoder, inputs[[2, 1]], ids=[2, 1], logits=True)
    assert all(torch.equal(value[[2, 1]], vars(part)[name]) for name, value in vars(whole).items())
    assert not same(whole, few().certify(encoder, inputs, seed=1, logits=True))
    assert not same(whole, few().certify(encoder, inputs, ids="abcd", logits=True))


def test_more_draws_bring_a_larger_radius_and_end_at_the_truth():
    sigma, distance = 0.25, 0.2
    weight = torch.tensor([1.0, 2.0])
    model = half_space(weight, (0.5 * weight.sum() - distance * weight.norm()).item())
    found = [few(sigma=sigma, certify_draws=draws).certify(model, torch.full((1, 2), 0.5)).radius.item() for draws in (100, 1000, 20_000)]
    assert all(one < another for one, another in pairwise(found))
    assert distance - 0.02 < found[-1] < distance
    largest = [few(certify_draws=draws).largest_radius for draws in (10, 100, 1000)]
    assert all(one < another for one, another in pairwise(largest))


def test_sigma_and_radius_are_in_the_units_of_the_bounds(monkeypatch):
    give_noise(monkeypatch, lambda identity, purpose, place, shape: torch.from_numpy(recipe.gauss(shape[0], 192, place)).reshape(shape))
    encoder, inputs = tiny_encoder(dim=3), tiny_inputs(3).double()
    wide = Encoder(lambda inputs: encoder((inputs + 1) / 2), name="wide", bounds=(-1.0, 1.0))
    for clip in (False, True):
        narrow = few(sigma=0.25, clip=clip).certify(encoder, inputs, logits=True)
        widened = few(sigma=0.5, clip=clip).certify(wide, 2 * inputs - 1, logits=True)
        assert torch.equal(narrow.votes, widened.votes)
        assert (narrow.radius[1:] > 0).all()
        assert widened.radius.tolist() == pytest.approx((2 * narrow.radius).tolist(), rel=1e-12)


def test_clipping_is_an_option_and_a_part_of_the_model():
    inputs, seen = torch.full((1, 4), 0.5), []

    def model(noisy):
        seen.append(noisy)
        return half_space(torch.ones(4), 2.0)(noisy)

    few().certify(model, inputs)
    assert min(part.min() for part in seen) < 0
    seen.clear()
    few(clip=True).certify(model, inputs)
    assert min(part.min() for part in seen) == 0
    assert max(part.max() for part in seen) == 1


def test_the_cost_is_told_and_kept():
    encoder = tiny_encoder(dim=3)
    assert RandomizedSmoothing(sigma=0.25).passes == (100_100, 0)
    few().certify(encoder, tiny_inputs(3), logits=True)
    assert (encoder.passes.forwards, encoder.passes.backwards) == (3 * few().passes[0], 0)


def test_the_network_is_left_as_it_was():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(192), torch.nn.Dropout(0.5), torch.nn.Linear(192, 3)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    one, two = (few().certify(network, tiny_inputs(2)) for _ in range(2))
    assert same(one, two)
    assert all(module.training for module in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


# Predictions


def test_a_prediction_abstains_where_a_two_sided_test_cannot_tell(monkeypatch):
    """Votes of 3 classes by hand: 66 to 33 is told at alpha 0.01 (p 0.0012), 62 to 37 is not (p 0.0155)."""
    for first, second, told in [(66, 33, True), (62, 37, False), (99, 0, True)]:
        votes = torch.tensor([2] * first + [0] * second + [1])
        give_noise(monkeypatch, lambda identity, purpose, place, shape, votes=votes: torch.eye(3)[votes.roll(-place)[: shape[0]]])
        found = few(alpha=0.01).predict(lambda inputs: inputs, torch.zeros(1, 3), draws=100)
        assert found.votes.tolist() == [[second, 1, first]]
        assert found.predicted.tolist() == ([2] if told else [NEVER])
        assert found.top.tolist() == [2]
        assert found.abstained.tolist() == [not told]
        assert found.radius.tolist() == found.lower.tolist() == [0]


def broken_where(chosen, *, winner=1, classes=3, value=math.nan):
    """Logits of one class, and of some draws, by their place in the stream, nothing that is a number."""
    rows = torch.eye(classes)[[winner]].expand(len(chosen), -1).clone()
    rows[chosen] = value
    return rows


class GivenDraws:
    """Representations that are there already, by purpose."""

    def __init__(self, **rows):
        self.rows = rows

    def chunks(self, purpose, count):
        assert len(self.rows[purpose]) == count
        yield from self.rows[purpose].split(64)


@pytest.mark.parametrize("count", [0, 1, 20, 34, 35, 60, 100])
def test_a_draw_that_is_no_number_is_a_vote_for_no_class(count):
    draws = GivenDraws(selection=broken_where(torch.arange(20) < 10), certify=broken_where(torch.arange(100) < count))
    found = _certified(few(certify_draws=100), draws, None)
    lower = clopper_pearson_lower(100 - count, 100, 0.001)
    assert (found.votes.tolist(), found.top.tolist()) == ([[0, 100 - count, 0]], [1])
    assert found.lower.tolist() == [lower]
    assert found.abstained.tolist() == [count > 34]  # 66 of 100 are told from a half
    assert found.radius.tolist() == [certified_l2_radius(lower, 0.25)]


def test_where_no_draw_is_a_number_it_abstains():
    rows = broken_where(torch.ones(100, dtype=torch.bool))
    found = _certified(few(certify_draws=100), GivenDraws(selection=rows[:20], certify=rows), None)
    assert (found.votes.tolist(), found.abstained.tolist(), found.radius.tolist()) == ([[0, 0, 0]], [True], [0])


def test_an_infinite_logit_is_a_class_as_any_other():
    masked = torch.tensor([[-math.inf, 2.0, 1.0]]).expand(100, -1)
    found = _certified(few(certify_draws=100), GivenDraws(selection=masked[:20], certify=masked), None)
    assert found.votes.tolist() == [[0, 100, 0]]


def test_a_representation_that_is_not_finite_has_no_class_of_a_probe():
    known = Probe(weight=torch.tensor([[1.0, 0], [-1, 0]]), bias=torch.zeros(2), classes=[3, 8])
    rows = torch.tensor([[1.0, 0]]).repeat(100, 1)
    rows[:10] = torch.tensor([math.inf, 0])  # whose logits would be infinity and minus infinity, and class 3
    rows[10:20] = math.nan
    found = _certified(few(certify_draws=100), GivenDraws(selection=rows[-20:], certify=rows), known)
    assert (found.votes.tolist(), found.top.tolist()) == ([[80, 0]], [3])


@pytest.mark.parametrize(("nobody", "told"), [(30, True), (45, False), (55, False), (100, False)])
def test_a_prediction_abstains_where_most_draws_may_be_no_number(nobody, told):
    rows = broken_where(torch.arange(100) < nobody)
    found = _predicted(few(alpha=0.01), GivenDraws(predict=rows), None, 100, lambda draws: None)
    assert (found.abstained.item(), found.votes.tolist()) == (not told, [[0, 100 - nobody, 0]])


class Breaking(torch.nn.Module):
    """The pixels as they are, and NaN for inputs that are far outside the bounds."""

    def forward(self, inputs):
        return inputs.flatten(1).where((inputs.flatten(1) > -0.12).all(1)[:, None], torch.nan)


def test_a_run_counts_draws_on_which_the_encoder_breaks_against_its_certificates():
    options = {"sigma": 0.1, "selection_draws": 20, "certify_draws": 300}
    whole = fit_probe(Encoder(Flat(), name="flat"), labelled(TRAIN), view="noise", sigma=0.1)
    known = replace(whole, encoder_fingerprint=encoder_print(Encoder(Breaking(), name="flat")))
    words = r"encoder 'flat' gave NaN or infinity for \d+\.\d\d% of 300 noisy copies of sample 'sample \d+' \(sigma 0.1\): such draws count against"
    with pytest.warns(RobustnessWarning, match=words) as said:
        results = run(plan({"radius": CertifiedRadius(**options, probe=known)}, Breaking()), progress=False)
    assert len(said) == 1  # of eight samples
    rows = results.frame[results.frame["metric"] == "radius"]
    samples = labelled(MEASURED)
    places = [samples.ids.index(name) for name in rows["sample"]]
    found, unbroken = (
        RandomizedSmoothing(**options).certify(
            Encoder(network, name="flat"), samples.inputs(places), probe=probe, ids=[samples.ids[place] for place in places]
        )
        for network, probe in ((Breaking(), known), (Flat(), whole))
    )
    assert ((found.votes.sum(1) > 200) & (found.votes.sum(1) < 290)).all()
    assert (found.lower < unbroken.lower).all()
    assert 0 < found.abstained.sum() < 8
    assert rows["note"].tolist() == ["abstained" if one else "" for one in found.abstained.tolist()]
    expected = torch.where(found.abstained, torch.nan, found.radius * found.correct(samples.labels(places)))
    np.testing.assert_array_equal(rows["value"], expected)


def test_nothing_warns_of_a_plain_classifier():
    """Neither scipy of what it is going to remove, nor rt of a network that ends in a classifier."""
    network = torch.nn.Sequential(OrderedDict(flat=torch.nn.Flatten(), fc=torch.nn.Linear(192, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few().certify(network, tiny_inputs(1))
        assert few().predict(constant(), tiny_inputs(2)).predicted.tolist() == [1, 1]
        assert few().certify(constant(), tiny_inputs(2)).predicted.tolist() == [1, 1]


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"certify_draws": 9}, "certify_draws is 9; at alpha 0.001 not even as many votes for one class certify anything: at least 10"),
        ({"certify_draws": 1000, "alpha": 1e-302}, "at least 1004 are needed"),
        ({"sigma": 0}, "sigma is 0; it is a standard deviation and must be positive"),
        ({"sigma": "0.25"}, "sigma is '0.25'; expected a plain number"),
        ({"sigma": math.inf}, "sigma is inf"),
        ({"alpha": 0}, "alpha is 0; it is the probability of being wrong"),
        ({"alpha": 1.0}, "alpha is 1"),
        ({"selection_draws": 0}, "selection_draws is 0; at least one is needed"),
        ({"certify_draws": 1e5}, "certify_draws is 100000.0; expected a whole number"),
        ({"clip": "no"}, "clip is 'no'; expected True or False"),
        ({"clip": 1}, "clip is 1; expected True or False"),
    ],
)
def test_options_are_checked_when_it_is_made(options, words):
    with pytest.raises(ValueError, match=words):
        few(**options)


def test_too_few_draws_of_a_prediction_are_refused_with_the_number():
    with pytest.raises(ValueError, match=r"draws is 10; at alpha 0.001 .* decide a prediction: at least 11 are needed"):
        few(certify_draws=10).predict(constant(), tiny_inputs(1))
    assert few(certify_draws=10).certify(constant(), tiny_inputs(1)).radius.item() > 0
    assert few(certify_draws=10).predict(constant(), tiny_inputs(1), draws=11).predicted.tolist() == [1]


def test_inputs_and_models_are_checked():
    with pytest.raises(InvalidInputs, match="outside the bounds"):
        few().certify(constant(), 255 * tiny_inputs(2))
    with pytest.raises(ValueError, match="ids has 1 different names for 2 inputs"):
        few().certify(constant(), tiny_inputs(2), ids=[0, 0])
    with pytest.raises(ShapeError, match="the model gives 1 logit, and a class is one of two at least"):
        few().certify(lambda inputs: inputs.flatten(1)[:, :1], tiny_inputs(2))
    with pytest.raises(ValueError, match="batch is 0"):
        few().certify(constant(), tiny_inputs(2), batch=0)
    for ask in (few(sigma=25.0).certify, few(sigma=25.0).predict):
        with pytest.raises(
            ValueError, match=r"sigma is 25; inputs of encoder '<lambda>' span a range of 1, so it must be in \(0, 1\]: write 25/255"
        ):
            ask(constant(), tiny_inputs(2))
    wide = Encoder(constant(), name="wide", bounds=(0.0, 255.0))
    assert few(sigma=25.0).certify(wide, tiny_inputs(2), logits=True).predicted.tolist() == [1, 1]


def test_representations_are_no_logits_unless_said_so(probe):
    encoder, inputs = Encoder(Flat(), name="flat"), tiny_inputs(1)
    for ask in (few().certify, few().predict):
        with pytest.raises(
            ValueError,
            match=r"encoder 'flat' gives representations, .*; give probe=fit_probe\(encoder, train, view='noise', sigma=0.25\), or say logits=True",
        ):
            ask(encoder, inputs)
        with pytest.raises(ValueError, match="logits is True and a probe is given, which reads representations; leave one of them out"):
            ask(encoder, inputs, probe=probe, logits=True)
        with pytest.raises(ValueError, match="logits is 'no'; expected True or False"):
            ask(encoder, inputs, logits="no")
    assert encoder.passes.forwards == 0
    assert same(few().certify(encoder, inputs, logits=True), few().certify(encoder.module, inputs))


@pytest.mark.parametrize(
    ("options", "clip", "words"),
    [
        ({}, False, r"fitted on plain inputs, and inputs with noise of sigma 0.25 are certified: the radii are valid, and smaller"),
        ({"view": "lowpass"}, False, "fitted on lowpass inputs, and inputs with noise"),
        ({"view": "noise", "sigma": 0.1}, False, r"fitted on inputs with noise of sigma 0.1, .* fit it with view='noise', sigma=0.25$"),
        ({"view": "noise"}, True, r"and clipped inputs with noise of sigma 0.25 are certified: .*, sigma=0.25, clip=True$"),
    ],
)
def test_a_probe_of_other_inputs_than_are_certified_is_warned_of_once(options, clip, words):
    encoder, samples = Encoder(Flat(), name="flat"), labelled(TRAIN)
    other = fit_probe(encoder, samples, **options)
    with pytest.warns(RobustnessWarning, match=words) as said:
        [few(clip=clip).certify(encoder, samples.inputs(range(2)), probe=other) for _ in range(2)]
    assert len(said) == 1
    known = {**OPTIONS, "clip": clip, "probe": Probe(**options)}
    with pytest.warns(RobustnessWarning, match=words) as said:
        measured({"radius": CertifiedRadius(**known), "accuracy": CertifiedAccuracy(**known)})
    assert len(said) == 1
    matching = fit_probe(encoder, samples, view="noise", sigma=0.25, clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few(clip=clip).certify(encoder, samples.inputs(range(2)), probe=matching)


# With a probe, in a plan

LABELS = (2, 7, 40)
TRAIN, MEASURED = range(60), range(60, 80)


def labelled(rows):
    """Samples of three classes, told apart by a channel that is brighter, in some by little; sample 73 has a wrong label: [n, 3, 8, 8]"""
    inputs = 0.15 + 0.1 * tiny_inputs(80)[list(rows)]
    for place, row in enumerate(rows):
        inputs[place, row % 3] += (0.12, 0.06, 0.01)[row // 3 % 3]
    return tensors(inputs, ids=[f"sample {row}" for row in rows], labels=[LABELS[(row + (row == 73)) % 3] for row in rows], name="three")


NOISY = {"seen": 0, "most": math.inf}  # not in the network, which would be another one after each pass


class Flat(torch.nn.Module):
    """The pixels as they are; notes how many of the inputs were noisy, and stops as Ctrl-C does once there were too many."""

    def forward(self, inputs):
        NOISY["seen"] += int((inputs < 0).flatten(1).any(1).sum())
        if NOISY["seen"] > NOISY["most"]:
            raise KeyboardInterrupt
        return inputs.flatten(1)


@dataclass(frozen=True, kw_only=True)
class Center:
    """Stands for another certificate that takes draws of the same kind."""

    sigma: float = 0.25
    clip: bool = False
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, math.inf)
    alone: ClassVar[bool] = True

    def __call__(self, trace, bank, context):
        draws = Draws.of(context, sigma=self.sigma, clip=self.clip)
        center = torch.cat([*draws.chunks("center", 30)]).mean(0)
        return torch.cat([(part - center).norm(dim=1) for part in draws.chunks("certify", 900)]).median()[None]


OPTIONS = {"sigma": 0.25, "selection_draws": 20, "certify_draws": 1500}
RADII = (0.0, 0.1, 0.3, 1.0)


def plan(metrics, network=None, **options):
    encoder = Encoder(network or Flat(), name="flat")
    return Evaluation([encoder], labelled(MEASURED), {}, metrics, train=labelled(TRAIN), attacked=8, **options)


def measured(metrics, **options):
    return run(plan(metrics), progress=False, **options)


@pytest.fixture(scope="module")
def both():
    return measured({"accuracy": CertifiedAccuracy(**OPTIONS, radii=RADII), "radius": CertifiedRadius(**OPTIONS)})


@pytest.fixture(scope="module")
def probe():
    return fit_probe(Encoder(Flat(), name="flat"), labelled(TRAIN), view="noise", sigma=0.25)


def test_encoder_and_probe_are_certified_as_one_classifier(probe):
    encoder, samples = Encoder(Flat(), name="flat"), labelled(MEASURED)
    inputs, labels = samples.inputs(range(20)), torch.tensor(samples.labels(range(20)))
    smoothed = few(certify_draws=1500)
    found = smoothed.certify(encoder, inputs, probe=probe)
    whole = smoothed.certify(torch.nn.Sequential(torch.nn.Flatten(), probe.head), inputs)
    function = smoothed.certify(lambda inputs: probe.logits(encoder(inputs)), inputs)

    assert torch.equal(found.votes, whole.votes)
    assert torch.equal(found.votes, function.votes)
    assert torch.equal(found.radius, whole.radius)
    assert found.top.tolist() == [LABELS[column] for column in whole.top.tolist()] == [LABELS[column] for column in function.top.tolist()]
    told = smoothed.predict(encoder, inputs, probe=probe)
    sure = ~(found.abstained | told.abstained)
    assert sure.sum() > 5
    assert torch.equal(told.predicted[sure], found.predicted[sure])
    # A plane for each pair of classes: no certificate goes beyond the nearest one, but for alpha of them.
    weight, bias = probe.on(torch.device("cpu"))
    logits = inputs.flatten(1) @ weight.T + bias
    for row, column in enumerate(whole.top.tolist()):
        gaps = [
            (logits[row, column] - logits[row, other]) / (weight[column] - weight[other]).norm() for other in range(3) if other != column
        ]
        assert found.radius[row] <= max(min(gaps), 0)
    assert found.abstained.any()
    assert found.correct(labels).tolist() == ((found.top == labels) & ~found.abstained).tolist()
    assert {*found.predicted[found.correct(labels)].tolist()} == {*LABELS}


def test_a_probe_of_another_encoder_is_refused(probe):
    with pytest.raises(ValueError, match="a probe reads the representations of its own encoder alone"):
        few().certify(tiny_encoder(), tiny_inputs(1), probe=probe)
    for unfitted in (Probe(view="noise"), {"view": "noise"}):
        with pytest.raises(ValueError, match=r"is not fitted; give the plan train=.*, or take what fit_probe\(encoder, dataset\) returns"):
            few().certify(Encoder(Flat(), name="flat"), tiny_inputs(1), probe=unfitted)


@pytest.mark.parametrize("wrong", ["probe.safetensors", torch.nn.Linear(2, 2)])
def test_what_is_no_probe_is_refused_with_the_way_to_one(wrong):
    encoder = Encoder(Flat(), name="flat")
    for ask in (few().certify, few().predict):
        with pytest.raises(ValueError, match=r"expected a Probe \(of a file: Probe.load\(path, encoder\)\), or a table of its options"):
            ask(encoder, tiny_inputs(1), probe=wrong)
    assert encoder.passes.forwards == 0


@pytest.mark.parametrize(
    ("labels", "words"),
    [([6], r"labels has shape \[1\]; expected \[2\]"), (torch.eye(2), "of one-hot labels take argmax"), ([0.5, 1], "a label is 0.5")],
)
def test_what_is_correct_is_asked_with_one_class_an_input(labels, words):
    found = few().certify(constant(), tiny_inputs(2))
    assert found.correct(torch.tensor([[1], [0]])).tolist() == [True, False]
    with pytest.raises(ValueError, match=words):
        found.correct(labels)


@pytest.mark.parametrize("seed", [3.9, "3", True])
def test_a_seed_is_a_whole_number(seed):
    for ask in (few().certify, few().predict):
        with pytest.raises(ValueError, match=f"seed is {seed!r}; expected a whole number"):
            ask(constant(), tiny_inputs(1), seed=seed)
    with pytest.raises(ValueError, match=f"seed is {seed!r}; expected a whole number"):
        fit_probe(tiny_encoder(), tensors(tiny_inputs(4), labels=[0, 1, 0, 1]), seed=seed)


def test_a_probe_of_one_class_is_refused_by_its_name_before_any_pass():
    encoder = Encoder(Flat(), name="flat")
    with pytest.warns(RobustnessWarning, match="are all of class 7"):
        single = fit_probe(encoder, tensors(tiny_inputs(4), labels=[7] * 4), view="noise")
    before = encoder.passes.forwards
    for ask in (few().certify, few().predict):
        with pytest.raises(
            ValueError, match="the probe has one class, 7, and a class is one of two at least; fit it on samples of two classes"
        ):
            ask(encoder, tiny_inputs(1), probe=single)
    assert encoder.passes.forwards == before


def test_a_plan_gives_what_certify_gives_of_every_sample(both, probe):
    samples = labelled(MEASURED)
    rows = both.frame[both.frame["metric"] == "radius"].set_index("sample")
    ids = [*rows.index]
    places = [samples.ids.index(name) for name in ids]
    found = RandomizedSmoothing(**OPTIONS).certify(Encoder(Flat(), name="flat"), samples.inputs(places), probe=probe, ids=ids)
    correct = found.correct(samples.labels(places))

    assert 0 < found.abstained.sum() < 8
    assert (correct.sum(), (~correct & ~found.abstained).sum()) == (5, 1)
    assert rows["note"].tolist() == ["abstained" if one else "" for one in found.abstained.tolist()]
    np.testing.assert_array_equal(rows["value"], torch.where(found.abstained, torch.nan, found.radius * correct))
    for radius in RADII:
        at = both.frame[both.frame["metric"] == f"accuracy/{radius:g}"]
        assert at["note"].tolist() == rows["note"].tolist()
        np.testing.assert_array_equal(at["value"], torch.where(found.abstained, torch.nan, (correct & (found.radius > radius)).double()))
    alone = both.frame[both.frame["metric"] == "radius/over_correct"]
    np.testing.assert_array_equal(alone["value"], torch.where(correct, found.radius, torch.nan))
    assert {*alone["note"]} == {""}

    summary = both.summary().set_index("metric")
    assert summary.loc["radius", "estimate"] == pytest.approx(average_certified_radius(found.radius, correct), rel=1e-12)
    assert summary.loc["radius/over_correct", "estimate"] == pytest.approx(
        average_certified_radius(found.radius, correct, over="correct"), rel=1e-12
    )
    assert summary.loc["radius", ["n", "undefined", "abstained"]].tolist() == [8, 0, found.abstained.sum()]
    assert summary.loc["radius/over_correct", ["n", "undefined", "abstained"]].tolist() == [correct.sum(), 8 - correct.sum(), 0]
    assert summary.loc["radius", "high"] <= RandomizedSmoothing(**OPTIONS).largest_radius
    assert summary.loc["accuracy/0", "estimate"] == correct.double().mean()
    assert summary.loc["accuracy/1", "estimate"] == 0


def test_the_curve_over_the_radii_is_the_certified_accuracy(both):
    summary, curve = both.summary().set_index("metric"), both.certified_curve("radius", RADII)
    assert curve["estimate"].tolist() == [summary.loc[f"accuracy/{radius:g}", "estimate"] for radius in RADII]
    assert curve["n"].tolist() == [8] * len(RADII)
    assert all(one >= another for one, another in pairwise(curve["estimate"]))


def passes(results):
    return results.manifest["encoders"]["flat"]["passes"]["forwards"]


def test_certificates_of_one_sigma_share_their_passes(both):
    radius = CertifiedRadius(**OPTIONS)
    alone = passes(measured({"radius": radius}))
    assert passes(both) == alone
    assert passes(measured({"center": Center(), "radius": radius, "accuracy": CertifiedAccuracy(**OPTIONS)})) == alone + 8 * 30
    assert passes(measured({"radius": radius, "center": Center()})) == alone + 8 * 30
    assert passes(measured({"center": Center(clip=True), "radius": radius})) == alone + 8 * (30 + 900)
    assert passes(measured({"center": Center(sigma=0.5), "radius": radius})) == alone + 8 * (30 + 900)
    assert passes(measured({"radius": radius, "longer": replace(radius, certify_draws=1600)})) == alone + 8 * 100


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [
        ("certified_neighbor_radius", {"certify_draws": 1500}, 0),
        ("certified_output_radius", {"center_draws": 1500, "certify_draws": 1500, "delta": 0.1, "input_radius": 0.1}, 2 * 1500),
    ],
)
def test_center_smoothing_takes_the_same_draws(both, name, options, more):
    radius, other = CertifiedRadius(**OPTIONS), named(name, sigma=0.25, **options)
    for metrics in ({"radius": radius, "other": other}, {"other": other, "radius": radius}):
        found = measured(metrics)
        assert passes(found) == passes(both) + 8 * more
        rows = found.frame[found.frame["metric"] == "radius"]
        assert rows["value"].tolist() == pytest.approx(both.frame[both.frame["metric"] == "radius"]["value"].tolist(), nan_ok=True)


def test_a_run_goes_on_inside_a_sample(both, tmp_path, monkeypatch):
    monkeypatch.setattr(smoothing, "_WORTH_KEEPING", 0)
    metrics = {"accuracy": CertifiedAccuracy(**OPTIONS, radii=RADII), "radius": CertifiedRadius(**OPTIONS)}
    monkeypatch.setitem(NOISY, "seen", 0)
    measured(metrics)
    before = NOISY["seen"] - 8 * 1520  # noisy inputs: of two probes, that of the rehearsal too, and what is tried first
    monkeypatch.setitem(NOISY, "seen", 0)
    # In the second chunk of the second sample's draws to certify by.
    monkeypatch.setitem(NOISY, "most", before + 1520 + 20 + 1024 + 100)
    with pytest.raises(KeyboardInterrupt):
        measured(metrics, store=tmp_path / "run")
    monkeypatch.setitem(NOISY, "most", math.inf)
    resumed = measured(metrics, store=tmp_path / "run")

    assert passes(resumed) == 8 * 1520 - (1520 + 20 + 1024)
    assert resumed.frame.equals(both.frame)


def test_the_rehearsal_is_short_and_the_cost_is_told():
    metric = CertifiedRadius(sigma=0.5)
    assert metric.passes == (100_100, 0)
    assert sum(metric.rehearsal().passes) <= 64
    assert metric.rehearsal().probe is metric.probe
    for options in ({"certify_draws": 1, "alpha": 0.6}, {"certify_draws": 1200, "alpha": 1e-300}, {"selection_draws": 1}):
        assert sum(replace(metric, **options).rehearsal().passes) <= 64


def test_the_metrics_share_one_certificate_of_a_sample():
    trace, bank, context = read_example("clean", attacked=1)
    known = fit_probe(tiny_encoder(), tensors(tiny_inputs(30, purpose="train"), labels=[row % 3 for row in range(30)]), view="noise")
    options = {"sigma": 0.25, "certify_draws": 100, "probe": known}
    metrics = [CertifiedRadius(**options), CertifiedAccuracy(**options, radii=0.1), CertifiedAccuracy(**options | {"alpha": 0.01})]
    metrics.append(replace(metrics[0], probe=replace(known, bias=known.bias.on(torch.device("cpu")) - torch.tensor([1e3, 0, 0]))))
    found = []
    for metric in metrics:
        found.append(metric(trace, bank, context))
        assert context.encoder.passes.forwards == 40 + 200  # those of the example, and of the first metric
    assert len([key for key in context.shared if key[0] == "randomized smoothing"]) == 3
    assert found[0][""].notes != found[3][""].notes


def test_the_golden_certified_accuracy_is_strictly_above():
    """Radii that are exactly those of some samples."""
    known = GOLDEN["acr"]
    predicted, label, radius = (torch.tensor(known[name]) for name in ("predict", "label", "radius"))
    abstained = predicted == NEVER
    metric = CertifiedAccuracy(sigma=0.25, radii=[float(one) for one in known["certacc_gt"]])
    found = SmoothedPrediction(
        predicted=predicted, top=predicted, abstained=abstained, radius=radius, lower=radius, votes=predicted[:, None]
    )
    rows = metric.read(found, found.correct(label), ["abstained" if one else "" for one in abstained])
    for name, share in known["certacc_gt"].items():
        one = rows[f"{float(name):g}"]
        assert one.values.isnan().tolist() == abstained.tolist() == [note == "abstained" for note in one.notes]
        assert one.values.nan_to_num(0).mean().item() == pytest.approx(share, abs=1e-12)


def test_the_probe_sees_the_noise_that_is_certified_unless_told():
    metric = CertifiedRadius(sigma=0.12, clip=True)
    assert metric.probe == Probe(view="noise", sigma=0.12, clip=True)
    assert CertifiedRadius(sigma=0.12, probe={"recipe": "paper"}).probe == Probe(view="noise", sigma=0.12, recipe="paper")
    assert CertifiedRadius(sigma=0.12, probe={"view": "noise", "sigma": 0.5}).probe == Probe(view="noise", sigma=0.5)
    assert CertifiedRadius(sigma=0.12, probe={"view": "plain"}).probe == Probe()
    assert CertifiedRadius(sigma=0.12, probe=Probe()).probe == Probe()


def test_the_mean_radius_has_a_finite_span():
    assert CertifiedRadius(sigma=0.25).span == (0, pytest.approx(0.95286, abs=1e-5))
    assert CertifiedAccuracy(sigma=0.25).span == (0, 1)


def test_metrics_say_what_they_miss():
    trace, bank, context = read_example("clean")
    with pytest.raises(ValueError, match=r"is not fitted; give the plan train="):
        CertifiedRadius(sigma=0.25)(trace, bank, context)
    with pytest.raises(MissingLabels):
        CertifiedRadius(sigma=0.25)(trace, bank, replace(context, known_labels=None))
    assert context.encoder.passes.forwards == 40  # none of a certificate


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radii": ()}, "radii is empty"),
        ({"radii": (0.1, -1)}, r"radii\[1\] is -1; a radius cannot be negative"),
        ({"radii": (0.1, 0.1)}, "they name the rows, so each must be another number"),
        ({"probe": "noise"}, "probe is 'noise'; expected a Probe"),
        ({"probe": {"kind": "noise"}}, "a probe has no option 'kind'"),
        ({"certify_draws": 3}, "at least 10 are needed"),
    ],
)
def test_options_of_the_metrics_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        CertifiedAccuracy(**{"sigma": 0.25} | options)


def test_metrics_are_values():
    metric = CertifiedAccuracy(sigma=0.25, radii=[0.1, 0.2])
    assert pickle.loads(pickle.dumps(metric)) == metric == CertifiedAccuracy(sigma=0.25, radii=(0.1, 0.2))
    assert hash(metric) != hash(replace(metric, clip=True))
    assert metric != CertifiedAccuracy(sigma=0.25, radii=0.1)


TINY_PROBE = fit_probe(
    tiny_encoder(), tensors(tiny_inputs(30, purpose="train"), labels=[row % 3 for row in range(30)]), view="noise", sigma=0.1, draws=1
)


@parametrize_metric_checks(
    {kind.__name__: kind(sigma=0.1, certify_draws=60, alpha=0.2, probe=TINY_PROBE) for kind in (CertifiedAccuracy, CertifiedRadius)}
)
def test_the_contract(metric, check):
    check(metric)


# ART


@pytest.fixture
def counts_by_art(monkeypatch):
    """Let ART's certify run where statsmodels, from which it takes one function, is not installed."""
    try:
        import statsmodels.stats.proportion  # noqa: F401
    except ImportError:
        module = ModuleType("statsmodels.stats.proportion")
        module.proportion_confint = lambda successes, n, alpha, method: (beta.ppf(alpha / 2, successes, n - successes + 1), None)
        for name in ("statsmodels", "statsmodels.stats", module.__name__):
            monkeypatch.setitem(sys.modules, name, module)


def test_art_agrees_on_the_same_noise(counts_by_art, monkeypatch):
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.nn.init.normal_(network[1].weight, std=0.4)
    inputs, sigma, seen = torch.cat([tiny_inputs(5), 0.5 + 0.01 * tiny_inputs(1)]), 0.3, []
    with torch.no_grad():  # so that the last lies on the plane between two classes
        network[1].bias.copy_(-(network[1].weight @ inputs[-1].flatten()))

    def recorded(noisy):
        seen.append(noisy)
        return network(noisy)

    smoothed = RandomizedSmoothing(sigma=sigma, selection_draws=60, certify_draws=500)
    found = smoothed.certify(recorded, inputs)
    drawn = torch.cat(seen).split([60, 500] * len(inputs))
    noise = [(part - inputs[place // 2]).double().numpy() for place, part in enumerate(drawn)]
    estimator = PyTorchRandomizedSmoothing(
        network, torch.nn.CrossEntropyLoss(), (3, 8, 8), 3, device_type="cpu", sample_size=60, scale=sigma, alpha=0.001
    )
    given_out = iter(noise)
    monkeypatch.setattr(np.random, "normal", lambda scale, size: next(given_out).reshape(size))
    classes, radius = estimator.certify(inputs.numpy(), 500)

    assert classes.tolist() == found.predicted.tolist()
    assert radius.tolist() == pytest.approx(found.radius.tolist(), abs=1e-12)
    assert found.abstained.any()
    assert not found.abstained.all()

    # A prediction of ART is a row of 0 where it abstains, which argmax reads as class 0.
    seen.clear()
    told = smoothed.predict(recorded, inputs, draws=60)
    given_out = iter([(part - row).double().numpy() for part, row in zip(torch.cat(seen).split(60), inputs, strict=True)])
    rows = estimator.predict(inputs.numpy())
    assert (rows.sum(1) == 0).tolist() == told.abstained.tolist()
    assert rows.argmax(1)[~told.abstained].tolist() == told.predicted[~told.abstained].tolist()
    assert told.abstained.any()

"""Verification: thresholds at a false-accept rate, which pairs are impostors, what counts, and a run."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rt_core as rt
from rt_core import Bank, divergences
from rt_core.datasets import tensors
from rt_core.testing import parametrize_metric_checks, read_example
from rt_linear_probes.verification import DodgingRate, VerificationRate, VerificationThreshold, impostor_distances, verification_threshold
from rt_unsupervised_attacks import UPGD


@parametrize_metric_checks(
    {
        "verification": VerificationRate(far=0.05),
        "verification of sampled pairs": VerificationRate(far=0.05, pairs=100, divergence="cosine"),
        "dodging": DodgingRate(far=0.05),
        "threshold": VerificationThreshold(far=0.05),
    }
)
def test_the_contract(metric, check):
    check(metric)


# Thresholds


def test_a_hundredth_of_a_thousand_distances_is_ten():
    assert verification_threshold(range(1, 1001), far=0.01) == 10
    assert verification_threshold(torch.arange(1.0, 101.0).flip(0), far=0.29) == 29  # 0.29 * 100 is 28.999…


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_distances_may_be_of_any_type_and_carry_a_gradient(dtype):
    distances = torch.arange(1, 201).to(dtype)
    assert verification_threshold(distances, far=0.1) == 20
    if dtype.is_floating_point:
        assert verification_threshold(distances.requires_grad_(), far=0.1) == 20


def test_distances_above_the_diagonal_of_a_square_are_what_a_bank_gives():
    bank = Bank(torch.rand(30, 4, generator=torch.Generator().manual_seed(0)))
    square = torch.cdist(bank.take(torch.arange(30)).double(), bank.take(torch.arange(30)).double()).numpy()
    above = square[np.triu_indices(len(square), 1)]
    assert verification_threshold(above, far=0.05) == pytest.approx(verification_threshold(impostor_distances(bank), far=0.05), rel=1e-6)


@pytest.mark.parametrize("pairs", [0, -5, 10.5, True, "9"])
def test_a_number_of_pairs_is_checked(pairs):
    with pytest.raises(ValueError, match="pairs is"):
        impostor_distances(Bank(torch.rand(50, 4)), pairs=pairs)


@given(
    distances=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    far=st.floats(0.001, 0.999) | st.sampled_from([0.01, 0.1, 0.25, 0.5]),
)
def test_it_accepts_no_more_than_that_share_and_no_larger_one_does(distances, far):
    def accepted(threshold):
        return sum(distance <= threshold for distance in distances)

    allowed = math.floor(far * len(distances) + 1e-9)
    if allowed < 1:
        with pytest.raises(ValueError, match="to accept one of them takes at least"):
            verification_threshold(distances, far=far)
        return
    possible = [distance for distance in distances if accepted(distance) <= allowed]
    if not possible:
        with pytest.raises(ValueError, match="have the same distance"):
            verification_threshold(distances, far=far)
        return
    assert verification_threshold(distances, far=far) == max(possible)


@pytest.mark.parametrize(
    ("distances", "far", "words"),
    [
        (range(50), 0.001, "far is 0.001 and there are 50 impostor pairs; to accept one of them takes at least 1,000: give a larger bank"),
        ([], 0.5, "there are 0 impostor pairs"),
        ([1.0, 1.0, 1.0], 0.5, "more than a share 0.5 of the 3 impostor pairs have the same distance 1"),
        ([1.0, math.nan], 0.5, "is NaN"),
        (
            torch.rand(60, 60),
            0.1,
            r"impostor_distances has shape \[60, 60\]; expected \[pairs\], .*; of a square of distances give those above its",
        ),
        (3.0, 0.1, r"impostor_distances has shape \[\]; expected \[pairs\]"),
        ([1.0, 2.0], 0.0, r"far is 0; a false-accept rate lies in \(0, 1\)"),
        ([1.0, 2.0], 1.0, "far is 1;"),
        ([1.0, 2.0], "0.1", "without quotes"),
    ],
)
def test_what_gives_no_threshold(distances, far, words):
    with pytest.raises(ValueError, match=words):
        verification_threshold(distances, far=far)


# Impostors


@given(seed=st.integers(0, 2**31), divergence=st.sampled_from(["l2", "cosine", "linf"]), labelled=st.booleans())
def test_impostors_are_all_pairs_of_different_labels(seed, divergence, labelled):
    rng = torch.Generator().manual_seed(seed)
    rows, labels = torch.randn(9, 3, generator=rng), torch.randint(0, 3, (9,), generator=rng).tolist()
    measure = divergences.DIVERGENCES[divergence]
    expected = sorted(
        measure(rows[one : one + 1].double(), rows[other : other + 1].double()).item()
        for other in range(9)
        for one in range(other)
        if not labelled or labels[one] != labels[other]
    )
    found = impostor_distances(Bank(rows, labels=labels if labelled else None), divergence)
    assert found.sort().values.tolist() == pytest.approx(expected, abs=1e-15)


def test_of_many_pairs_random_ones_are_taken_and_always_the_same():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 4, generator=rng)
    every, some = (impostor_distances(Bank(rows), pairs=pairs) for pairs in (200_000, 20_000))
    again = impostor_distances(Bank(rows.clone()), pairs=20_000)

    assert (len(every), len(some)) == (500 * 499 // 2, 20_000)
    assert torch.equal(some, again)
    assert set(some.tolist()) <= set(every.tolist())
    shares = torch.tensor([0.01, 0.1, 0.5, 0.9], dtype=torch.float64)
    reached = (every <= some.quantile(shares)[:, None]).double().mean(1)
    assert (reached - shares).abs().max() < 0.01  # Dvoretzky, Kiefer and Wolfowitz: 0.0096 at 95 %
    assert some.min() > 0  # no sample beside itself


def test_sampled_pairs_of_one_label_are_left_out():
    rows, labels = torch.arange(200.0)[:, None], [0] * 100 + [1] * 100
    found = impostor_distances(Bank(rows, labels=labels), pairs=5000)
    assert 2000 < len(found) < 3000  # half of them
    assert found.mean().item() == pytest.approx(100, abs=3)
    assert impostor_distances(Bank(rows, labels=[0] * 200), pairs=5000).shape == (0,)


# What counts


def placed(adversarial, labels=None):
    """A trace on a line: clean samples at 0, 10, 20, 21, each next to its target, in a bank with four more."""
    clean, partner = torch.tensor([[0.0], [10.0], [20.0], [21.0]]), torch.tensor([1, 0, 3, 2])
    trace, _, context = read_example("target", attacked=4)
    trace = replace(trace, clean=clean, adversarial=torch.tensor(adversarial)[:, None], targets=clean[partner], partner=partner)
    rest = torch.tensor([[40.0], [60.0], [100.0], [103.0]])
    known = None if labels is None else labels[:4]
    return trace, Bank(torch.cat([clean, rest]), labels=labels), replace(context, known_labels=known, shared={})


@pytest.mark.parametrize("name", ["dodging", "verification"])
def test_what_a_metric_takes_of_another_s_distances_is_a_look_at_the_bank(name):
    aims = {"dodging": ("away", DodgingRate), "verification": ("target", VerificationRate)}
    aim, kind = aims[name]
    trace, bank, context = read_example(aim)
    alone = kind(far=0.05)(trace, bank, replace(context, shared={}))
    looks = []
    for metric in (VerificationThreshold(far=0.05), kind(far=0.05)):
        before = bank.reads
        found = metric(trace, bank, context)
        looks.append(bank.reads > before)
    assert looks == [True, True]
    assert torch.equal(found.nan_to_num(-1), alone.nan_to_num(-1))


def test_success_is_to_come_as_near_as_the_threshold():
    # 28 pairs, of which 0.1 are 2: at 1 (20, 21) and 3 (100, 103)
    trace, bank, context = placed([7.0, 3.5, 21.0, 21.0])
    assert impostor_distances(bank).sort().values[:3].tolist() == [1, 3, 10]
    found = VerificationRate(far=0.1)(trace, bank, context)
    assert found[:2].tolist() == [1, 0]  # at 3 from 10, the threshold itself, and at 3.5 from 0
    assert found[2:].isnan().all()  # accepted when clean
    assert VerificationRate(far=0.1, divergence=lambda one, other: divergences.l2(one, other) ** 2)(trace, bank, context)[:2].tolist() == [
        1,
        0,
    ]


def test_pairs_of_one_label_are_no_impostors():
    places = [9.0, 9.0, 20.0, 21.0]
    same, other = placed(places, labels=[0, 0, 1, 1, 2, 3, 4, 5]), placed(places, labels=[0, 6, 1, 1, 2, 3, 4, 5])
    assert impostor_distances(same[1]).sort().values[:3].tolist() == [3, 10, 11]  # not 1, of 20 and 21
    assert VerificationThreshold(far=0.05)(*same)[""].tolist() == [3] * 4
    assert VerificationRate(far=0.05)(*same).isnan().all()
    assert VerificationRate(far=0.05)(*other).nan_to_num(nan=-1).tolist() == [1, 0, -1, -1]


def test_dodging_is_to_go_further_than_the_threshold():
    trace, bank, context = placed([3.0, 13.5, 20.0, 30.0])
    assert DodgingRate(far=0.1)(replace(trace, aim="away"), bank, context).tolist() == [0, 1, 0, 1]


def test_threshold_and_number_of_pairs_are_reported():
    found = VerificationThreshold(far=0.1)(*placed([0.0] * 4))
    assert {name: values.tolist() for name, values in found.items()} == {"": [3] * 4, "pairs": [28] * 4}


def test_an_encoder_that_tells_nothing_apart_is_not_robust_but_undefined():
    trace, _, context = placed([0.0] * 4)
    trace, bank = replace(trace, clean=torch.zeros(4, 1), targets=torch.zeros(4, 1)), Bank(torch.zeros(30, 1))
    for metric in (VerificationRate(), DodgingRate()):
        assert metric(trace, bank, context).isnan().all()
    assert VerificationThreshold()(trace, bank, context)[""].isnan().all()


def test_too_small_a_bank_is_refused_with_what_it_takes():
    with pytest.raises(ValueError, match="there are 28 impostor pairs; to accept one of them takes at least 100"):
        VerificationRate(far=0.01)(*placed([0.0] * 4))


@pytest.mark.parametrize(
    ("options", "words"), [({"far": 1}, "far is 1"), ({"pairs": 0}, "pairs is 0"), ({"divergence": "l3"}, "no divergence")]
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        VerificationRate(**options)


def test_they_are_values():
    assert pickle.loads(pickle.dumps(VerificationRate(far=0.1))) == VerificationRate(far=0.1) != VerificationRate(far=0.2)


# A run


@pytest.mark.parametrize("labelled", [True, False])
def test_a_run_counts_who_passes_for_another(labelled):
    encoder, held_out = rt.encoder("digits_contrastive"), rt.dataset("digits", split="test").picked(range(120))
    inputs, labels = held_out.inputs(range(120)), held_out.labels(range(120)) if labelled else None
    attack = UPGD(epsilon=0.1, steps=5)
    metrics = {"rate": VerificationRate(far=0.02), "threshold": VerificationThreshold(far=0.02), "dodging": DodgingRate(far=0.02)}
    plan = rt.Evaluation([encoder], tensors(inputs, labels=labels), {"u-pgd": attack}, metrics, attacked=32, pairing="given")
    results = rt.run(plan, progress=False, diagnose=False)

    clean = rt.represent(encoder, inputs).double()
    pairs = [(one, other) for other in range(120) for one in range(other) if not labelled or labels[one] != labels[other]]
    distances = sorted(torch.linalg.vector_norm(clean[one] - clean[other]).item() for one, other in pairs)
    threshold = distances[int(0.02 * len(pairs)) - 1]
    summary = results.summary().set_index("metric")
    assert summary.loc["threshold", "estimate"] == pytest.approx(threshold, rel=1e-6)
    assert summary.loc["threshold/pairs", "estimate"] == len(pairs)

    partner = [row ^ 1 for row in range(32)]
    toward = rt.perturb(attack, encoder, inputs[:32], targets=inputs[partner]).adversarial.double()
    away = rt.perturb(attack, encoder, inputs[:32]).adversarial.double()
    rows = results.frame.set_index("metric")["value"]
    expected = []
    for row in range(32):
        counts = torch.linalg.vector_norm(clean[row] - clean[partner[row]]) > threshold
        counts = counts and (not labelled or labels[row] != labels[partner[row]])
        expected.append(float(torch.linalg.vector_norm(toward[row] - clean[partner[row]]) <= threshold) if counts else math.nan)
    np.testing.assert_array_equal(rows["rate"], expected)
    np.testing.assert_array_equal(rows["dodging"], (torch.linalg.vector_norm(away - clean[:32], dim=1) > threshold).double())
    assert 0 < np.nanmean(expected) < 1


def test_an_interval_does_not_depend_on_what_else_is_measured():
    """The error that a small bank makes is in it, also where another metric computed the bank's distances before."""
    generator = torch.Generator().manual_seed(0)
    data = tensors(torch.rand(60, 12, generator=generator), labels=[row % 5 for row in range(60)])
    network = torch.nn.Linear(12, 8, bias=False)
    torch.nn.init.orthogonal_(network.weight, generator=generator)

    def measured(*names):
        metrics = [rt.use(name, far=0.05) for name in names]
        encoders = {"linear": rt.Encoder(network, name="linear")}
        plan = rt.Evaluation(encoders, data, {"noise": rt.use("uniform_noise", epsilon=0.2)}, metrics, attacked=20, bank=60)
        found = rt.run(plan, progress=False, diagnose=False).summary()
        return found[found["metric"] == "verification_rate"][["estimate", "low", "high"]].to_numpy()

    np.testing.assert_array_equal(measured("verification_rate"), measured("verification_threshold", "dodging_rate", "verification_rate"))

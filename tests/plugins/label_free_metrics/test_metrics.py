"""The measures against golden numbers, against brute force, and against what must hold of them whatever the encoder."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import GOLDEN, golden_encoder, golden_images, golden_start, numbers
from rt_core import Bank, Encoder, Evaluation, divergences, perturb, represent, run
from rt_core.testing import read_example, tiny_encoder, tiny_inputs
from rt_label_free_metrics import (
    AdversarialMargin,
    BreakawayRisk,
    CosineSimilarity,
    Divergence,
    NearestNeighborAccuracy,
    OverlapRisk,
    RelativeQuantile,
    TargetCosineSimilarity,
    TargetDivergence,
    UniversalQuantile,
    adversarial_margin,
    breakaway_risk,
    nearest_neighbor_accuracy,
    overlap_risk,
    relative_quantile,
    universal_quantile,
)
from rt_unsupervised_attacks import UPGD

DIVERGENCES = ["l1", "l2", "linf", "cosine"]
seeds = st.integers(0, 2**31)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spaced(first, last, count):
    """The images that the reference's scripts take of 24."""
    return [int(place) for place in np.linspace(first, last, count)]


# Golden numbers


@pytest.mark.parametrize("key", GOLDEN["breakaway"])
def test_breakaway_and_nearest_neighbors_are_the_paper_s(key):
    expected, encoder, images = GOLDEN["breakaway"][key], golden_encoder(), golden_images(24)
    rows = expected["attacked_indices"]
    attack = UPGD(epsilon=expected["eps"], step=expected["alpha"], steps=expected["iterations"])
    trace = perturb(attack, encoder, images[rows], start=golden_start(images[rows], attack.epsilon))
    bank, own = Bank(represent(encoder, images)), torch.tensor(rows)

    risk = breakaway_risk(trace.adversarial, trace.clean, bank, own)
    torch.testing.assert_close(risk * 23, numbers(expected["too_close_counts"]), rtol=0, atol=1e-12)
    assert risk.mean().item() == pytest.approx(expected["risk_paper_formula"], abs=1e-12)
    accuracy = nearest_neighbor_accuracy(trace.adversarial, trace.clean, bank, own)
    assert accuracy.mean().item() == pytest.approx(expected["nn_top1"], abs=1e-12)


@pytest.mark.parametrize("key", GOLDEN["margin"])
def test_margin_and_overlap_are_the_reference_s(key):
    expected, encoder, images = GOLDEN["margin"][key], golden_encoder(), golden_images(24)
    attack = UPGD(epsilon=expected["eps"], step=expected["alpha"], steps=expected["iterations"])
    sides = (images[:12], images[12:])
    first, second = (
        perturb(attack, encoder, own, targets=other, start=golden_start(own, attack.epsilon)) for own, other in (sides, sides[::-1])
    )
    four = (first.clean, second.clean, first.adversarial, second.adversarial)

    torch.testing.assert_close(divergences.l2(first.clean, first.adversarial), numbers(expected["d_x_xtoxp"]), rtol=0, atol=1e-12)
    torch.testing.assert_close(divergences.l2(first.clean, second.adversarial), numbers(expected["d_x_xptox"]), rtol=0, atol=1e-12)
    margin = adversarial_margin(*four)
    torch.testing.assert_close(margin, numbers(expected["margin"]), rtol=0, atol=1e-12)
    assert np.median(margin.numpy()) == pytest.approx(expected["median_margin"], abs=1e-12)
    assert margin.mean().item() == pytest.approx(expected["mean_margin"], abs=1e-12)
    assert overlap_risk(*four).mean().item() == pytest.approx(expected["overlap_risk"], abs=1e-12)


@pytest.mark.parametrize("divergence", ["l2", "linf"])
def test_the_universal_quantile_is_the_distribution_of_clean_pairs(divergence):
    expected = GOLDEN["independent_universal_quantile_ecdf"]
    # The last distance stands for "-1", which is none: a distance is never negative.
    distances, values = numbers(expected["distances"])[:-1], numbers(expected[divergence])[:-1]
    bank = Bank(represent(golden_encoder(), golden_images(24)))

    torch.testing.assert_close(universal_quantile(distances, bank, divergence), values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.05, 0.1])
def test_medians_of_attacks_are_the_paper_s_by_its_definition(epsilon):
    expected, encoder, images = GOLDEN["independent_attack_medians_paper_definition"], golden_encoder(), golden_images(24)
    attack, bank = UPGD(epsilon=epsilon, step=0.001, steps=50, marks=(5, 10, 30, 50)), Bank(represent(encoder, images))
    inputs = images[spaced(0, 23, 6)]
    away = perturb(attack, encoder, inputs, start=golden_start(inputs, epsilon))
    inputs, targets = images[spaced(0, 23, 12)].chunk(2)
    toward = perturb(attack, encoder, inputs, targets=targets, start=golden_start(inputs, epsilon))

    for step in attack.marks:
        universal = universal_quantile(divergences.l2(away.clean, away.marked[step]), bank)
        key = f"Untargeted PGD ({epsilon:.2f}) {step}it l2 universal, ECDF (paper)"
        assert np.median(universal.numpy()) == pytest.approx(expected[key], abs=1e-12)
        for divergence in ("l2", "linf"):
            relative = relative_quantile(toward.marked[step], toward.clean, toward.targets, divergence)
            key = f"Targeted PGD ({epsilon:.2f}) {step}it {divergence} relative, clean denominator (paper)"
            assert np.median(relative.numpy()) == pytest.approx(expected[key], abs=1e-12)


# Definitions, by brute force


@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(seed=seeds)
def test_measures_against_others_are_what_counting_gives(divergence, seed):
    bank, adversarial = drawn(seed, 9, 3), drawn(seed + 1, 4, 3)
    own, measure = torch.tensor([2, -1, 0, 8]), divergences.DIVERGENCES[divergence]
    clean = torch.stack([bank[row] if row >= 0 else drawn(seed + 2, 3) for row in own])

    def between(first, second):
        return measure(first[None], second[None]).item()

    closer = []
    for row in range(4):
        others = [bank[other] for other in range(9) if other != own[row]]
        limit = between(clean[row], adversarial[row])
        closer.append(sum(between(other, adversarial[row]) < limit for other in others) / len(others))
    pairs = [between(bank[i], bank[j]) for i in range(9) for j in range(i + 1, 9)]
    moved = measure(clean, adversarial)

    assert breakaway_risk(adversarial, clean, bank, own, divergence).tolist() == closer
    assert nearest_neighbor_accuracy(adversarial, clean, bank, own, divergence).tolist() == [float(share == 0) for share in closer]
    assert universal_quantile(moved, bank, divergence).tolist() == [np.mean([pair <= one for pair in pairs]) for one in moved.tolist()]


@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(seed=seeds)
def test_measures_of_pairs_are_what_their_formulas_say(divergence, seed):
    first, second, outward, inward = drawn(seed, 4, 5, 3)
    measure = divergences.DIVERGENCES[divergence]
    apart, kept, intruder = measure(first, second), measure(first, outward), measure(first, inward)

    torch.testing.assert_close(adversarial_margin(first, second, outward, inward, divergence), (intruder - kept) / apart)
    assert overlap_risk(first, second, outward, inward, divergence).tolist() == (intruder < kept).double().tolist()
    torch.testing.assert_close(relative_quantile(outward, first, second, divergence), measure(second, outward) / apart)


# Ties, duplicates, the ends of the range


LINE = torch.tensor([[0.0], [1.0], [2.0], [5.0]])


def test_others_as_near_as_the_own_representation_do_not_count():
    moved, clean = torch.tensor([[0.5]]), LINE[:1]  # 0 and 1 are equally far from 0.5

    assert breakaway_risk(moved, clean, LINE, torch.tensor([0])).item() == 0
    assert nearest_neighbor_accuracy(moved, clean, LINE, torch.tensor([0])).item() == 1
    past = torch.tensor([[0.5000001]])
    assert breakaway_risk(past, clean, LINE, torch.tensor([0])).item() == 1 / 3
    assert nearest_neighbor_accuracy(past, clean, LINE, torch.tensor([0])).item() == 0


def test_a_pair_exactly_as_far_apart_counts():
    distances = torch.tensor([0.0, 0.9999999, 1.0, 2.0, 5.0, 9.0])  # pairs of the line: 1, 2, 5, 1, 4, 3
    assert universal_quantile(distances, LINE).tolist() == [0, 0, 2 / 6, 3 / 6, 1, 1]


def test_a_duplicate_of_the_own_row_is_another_sample_and_never_nearer():
    bank = torch.cat([LINE, LINE[:1]])
    own, moved = torch.tensor([0]), torch.tensor([[4.0]])

    assert breakaway_risk(moved, LINE[:1], bank, own).item() == 3 / 4  # 1, 2 and 5 are nearer; the duplicate is not
    assert breakaway_risk(LINE[:1], LINE[:1], bank, own).item() == 0


def test_a_sample_that_is_not_in_the_bank_is_compared_with_all_of_it():
    own = torch.tensor([-1])
    assert breakaway_risk(torch.tensor([[4.0]]), torch.tensor([[0.0]]), LINE, own).item() == 3 / 4


def test_two_attacked_samples_that_end_equally_far_do_not_overlap():
    first, second = torch.tensor([[0.0]]), torch.tensor([[4.0]])
    assert overlap_risk(first, second, torch.tensor([[2.0]]), torch.tensor([[2.0]])).item() == 0
    assert adversarial_margin(first, second, torch.tensor([[2.0]]), torch.tensor([[2.0]])).item() == 0


def test_nothing_moved_gives_the_best_value_of_every_measure():
    clean = drawn(0, 6, 4)
    own, partner = torch.arange(6), torch.arange(6) ^ 1

    assert universal_quantile(torch.zeros(6), clean).tolist() == [0] * 6
    assert breakaway_risk(clean, clean, clean, own).tolist() == [0] * 6
    assert nearest_neighbor_accuracy(clean, clean, clean, own).tolist() == [1] * 6
    assert relative_quantile(clean, clean, clean[partner]).tolist() == [1] * 6
    assert adversarial_margin(clean[::2], clean[1::2], clean[::2], clean[1::2]).tolist() == [1] * 3
    assert overlap_risk(clean[::2], clean[1::2], clean[::2], clean[1::2]).tolist() == [0] * 3


def test_a_target_that_is_reached_gives_the_worst_value():
    first, second = drawn(1, 2, 5, 4)
    assert relative_quantile(second, first, second).tolist() == [0] * 5
    assert overlap_risk(first, second, second, first).tolist() == [1] * 5
    torch.testing.assert_close(adversarial_margin(first, second, second, first), torch.full((5,), -1.0, dtype=torch.float64))


def test_rows_without_a_distance_to_divide_by_are_undefined():
    first = drawn(2, 3, 4)
    second = torch.stack([first[0], first[1] + 1, first[2]])

    assert relative_quantile(first + 0.1, first, second).isnan().tolist() == [True, False, True]
    assert adversarial_margin(first, second, first + 0.1, second - 0.1).isnan().tolist() == [True, False, True]
    assert not overlap_risk(first, second, first + 0.1, second - 0.1).isnan().any()


# Identities


@given(seed=seeds, size=st.floats(0, 3))
def test_no_breakaway_is_the_same_as_a_nearest_neighbor_that_stayed(seed, size):
    bank = drawn(seed, 12, 3)
    moved, own = bank[:6] + size * drawn(seed + 1, 6, 3), torch.arange(6)
    risk, accuracy = breakaway_risk(moved, bank[:6], bank, own), nearest_neighbor_accuracy(moved, bank[:6], bank, own)

    assert torch.equal(risk == 0, accuracy == 1)


@given(seed=seeds, size=st.floats(0, 3), digits=st.integers(0, 3))
def test_overlap_is_the_same_as_a_negative_margin(seed, size, digits):
    first, second, outward, inward = (size * drawn(seed, 4, 8, 2)).round(decimals=digits)  # rounding makes ties
    margin = adversarial_margin(first, second, outward, inward)
    defined = ~margin.isnan()

    assert torch.equal(overlap_risk(first, second, outward, inward)[defined] == 1, margin[defined] < 0)


@given(seed=seeds)
def test_the_universal_quantile_grows_with_the_distance(seed):
    bank, distances = drawn(seed, 8, 3), drawn(seed + 1, 20).abs().sort().values
    values = universal_quantile(distances, bank)
    assert (values.diff() >= 0).all()
    assert ((values >= 0) & (values <= 1)).all()


COMPARABLE = [UniversalQuantile, RelativeQuantile, BreakawayRisk, NearestNeighborAccuracy, OverlapRisk, AdversarialMargin]


class Scaled(torch.nn.Module):
    """A network whose outputs are multiplied."""

    def __init__(self, network, factor):
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, inputs):
        return self.network(inputs) * self.factor


def test_a_scale_of_the_representations_changes_no_comparable_measure():
    plain = tiny_encoder()
    by_encoder = {name: Encoder(Scaled(plain.module, factor), name=name) for name, factor in (("plain", 1), ("scaled", 1000))}
    plan = Evaluation(
        by_encoder,
        tiny_inputs(24),
        {"u-pgd": UPGD(epsilon=0.2, steps=3)},
        {cls.__name__: cls() for cls in (*COMPARABLE, Divergence, CosineSimilarity)},
        attacked=12,
        bank=24,
    )
    frame = run(plan, progress=False).frame
    sides = [frame[frame["encoder"] == name].set_index(["aim", "metric", "sample"])["value"] for name in by_encoder]

    for cls in (*COMPARABLE, CosineSimilarity):
        one, other = (side.xs(cls.__name__, level="metric") for side in sides)
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=cls.__name__)
    one, other = (side.xs("Divergence", level="metric") for side in sides)
    np.testing.assert_allclose(1000 * one, other, rtol=1e-4)


# The metrics read the right parts of a trace


def test_metrics_are_their_functions_of_a_trace():
    trace, bank, context = read_example("away")
    own, moved = torch.arange(12), divergences.l2(trace.clean.double(), trace.adversarial.double())

    assert torch.equal(Divergence()(trace, bank, context), moved)
    assert torch.equal(UniversalQuantile()(trace, bank, context), universal_quantile(moved, bank))
    assert torch.equal(BreakawayRisk()(trace, bank, context), breakaway_risk(trace.adversarial, trace.clean, bank, own))
    assert torch.equal(
        NearestNeighborAccuracy()(trace, bank, context), nearest_neighbor_accuracy(trace.adversarial, trace.clean, bank, own)
    )
    torch.testing.assert_close(
        CosineSimilarity()(trace, bank, context), torch.cosine_similarity(trace.clean.double(), trace.adversarial.double())
    )


def test_target_metrics_are_their_functions_of_a_trace():
    trace, bank, context = read_example("target")
    own, other = torch.arange(0, 12, 2), torch.arange(1, 12, 2)
    four = trace.clean[own], trace.clean[other], trace.adversarial[own], trace.adversarial[other]

    assert torch.equal(TargetDivergence()(trace, bank, context), divergences.l2(trace.targets.double(), trace.adversarial.double()))
    assert torch.equal(RelativeQuantile()(trace, bank, context), relative_quantile(trace.adversarial, trace.clean, trace.targets))
    assert torch.equal(OverlapRisk()(trace, bank, context), overlap_risk(*four))
    assert torch.equal(AdversarialMargin()(trace, bank, context), adversarial_margin(*four))
    torch.testing.assert_close(
        TargetCosineSimilarity()(trace, bank, context), torch.cosine_similarity(trace.targets.double(), trace.adversarial.double())
    )


@pytest.mark.parametrize("cls", [Divergence, UniversalQuantile, RelativeQuantile, BreakawayRisk, AdversarialMargin, TargetDivergence])
def test_a_metric_may_name_its_own_divergence(cls):
    reading = read_example(cls.aim)
    plan_s, own = cls()(*reading), cls(divergence="cosine")(*reading)

    assert not torch.equal(plan_s, own)
    assert torch.equal(cls(divergence="l2")(*reading), plan_s)
    with pytest.raises(ValueError, match="no divergence is named 'cosin'; did you mean 'cosine'"):
        cls(divergence="cosin")


def test_spans_hold_every_value_that_a_measure_can_take():
    assert UniversalQuantile.span == BreakawayRisk.span == OverlapRisk.span == NearestNeighborAccuracy.span == (0, 1)
    assert Divergence.span == RelativeQuantile.span == (0, math.inf)
    assert AdversarialMargin.span == (-math.inf, math.inf)


def test_statistics_and_directions_are_the_paper_s():
    def read(cls):
        return cls.statistic, cls.better, cls.aim, cls.per

    assert read(UniversalQuantile) == ("median", "lower", "away", "sample")
    assert read(RelativeQuantile) == ("median", "higher", "target", "sample")
    assert read(BreakawayRisk) == ("mean", "lower", "away", "sample")
    assert read(NearestNeighborAccuracy) == ("rate", "higher", "away", "sample")
    assert read(OverlapRisk) == ("rate", "lower", "target", "pair")
    assert read(AdversarialMargin) == ("median", "higher", "target", "pair")

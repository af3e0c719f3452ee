"""The attacks with an automatic step: known optima, the published schedule, what they cost and what they promise."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rt_core import Attempt, Bank, Batch, Encoder, perturb, represent
from rt_core.divergences import cosine, l2
from rt_core.testing import linear_encoder, parametrize_attack_checks, tiny_encoder, tiny_inputs
from rt_core.traces import aims_of
from rt_unsupervised_attacks.apgd import UAPGD, MarginAPGD, NearestAPGD, margin_near
from rt_unsupervised_attacks.gradient import UPGD

BANKED = [MarginAPGD, NearestAPGD]
ALL = [UAPGD, *BANKED]


@dataclass(frozen=True)
class WithBank:
    """An attack with a bank beside it, where perturb is given none."""

    attack: Any

    @property
    def ball(self):
        return self.attack.ball

    @property
    def aims(self):
        return aims_of(self.attack)

    def __call__(self, encoder, batch, divergence, *, random) -> Attempt:
        others = tiny_inputs(10, batch.inputs.shape[1:], purpose="others").to(batch.inputs)
        with torch.no_grad():
            bank = Bank(encoder(encoder.clip(others)))
        return self.attack(encoder, replace(batch, bank=bank, own=None), divergence, random=random)


@parametrize_attack_checks(
    {
        "u_apgd": UAPGD(epsilon=0.1, steps=6, marks=(1, 3)),
        "u_apgd l2": UAPGD(epsilon=1.0, steps=6, norm="l2", restarts=2, marks=(2,)),
        "u_apgd parity": UAPGD(epsilon=0.1, steps=6, parity=True),
        "u_apgd cosine": UAPGD(epsilon=0.1, steps=6, divergence="cosine", start="eta"),
        "u_apgd clean": UAPGD(epsilon=0.1, steps=6, start="clean"),
        "margin": WithBank(MarginAPGD(epsilon=0.1, steps=8, restarts=2, marks=(4, 8))),
        "nearest": WithBank(NearestAPGD(epsilon=1.0, norm="l2", steps=6, k=2, marks=(3,))),
    }
)
def test_the_contract(attack, check):
    check(attack)


def middle(batch, channel=3, dtype=torch.float32):
    """Inputs in the middle of the bounds, where an epsilon below 0.5 does not meet them."""
    return torch.full((batch, channel, 4, 4), 0.5, dtype=dtype)


# Known optima


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("divergence", ["l1", "l2", "linf"])
@pytest.mark.parametrize("parity", [False, True])
def test_u_apgd_reaches_the_corner_that_is_best_for_a_linear_encoder(divergence, batch, parity):
    encoder, weight = linear_encoder(3, 4, 4)
    trace = perturb(UAPGD(epsilon=0.1, steps=25, parity=parity), encoder, middle(batch), divergence=divergence)

    best = 0.1 * weight.abs().sum().double()
    torch.testing.assert_close(trace.divergence, best.expand(batch), rtol=1e-5, atol=0)


@pytest.mark.parametrize("parity", [False, True])
def test_u_apgd_reaches_the_l2_optimum_along_the_weight(parity):
    encoder, weight = linear_encoder(3, 4, 4)
    trace = perturb(UAPGD(epsilon=0.2, steps=25, norm="l2", parity=parity), encoder, middle(3))

    best = 0.2 * torch.linalg.vector_norm(weight).double()
    torch.testing.assert_close(trace.divergence, best.expand(3), rtol=1e-4, atol=0)
    assert (trace.divergence <= best * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_u_apgd_comes_as_near_to_a_target_as_the_ball_allows(norm, dtype):
    encoder, weight = linear_encoder(3, 4, 4, dtype=dtype)
    epsilon = 0.1 if norm == "linf" else 0.2
    inputs = middle(3, dtype=dtype)
    trace = perturb(UAPGD(epsilon=epsilon, norm=norm, steps=30), encoder, inputs, targets=inputs + 0.3 * weight.sign())

    reach = epsilon * (weight.abs().sum() if norm == "linf" else torch.linalg.vector_norm(weight))
    left = (0.3 * weight.abs().sum() - reach).double()
    torch.testing.assert_close(trace.divergence, left.expand(3), rtol=1e-3, atol=0)
    assert trace.inputs.dtype == dtype


def crossing_bank(encoder, weight):
    """The middle's own representation of a linear encoder of dim 1, and others, 0.16, 0.7 and -0.5 times as far as epsilon 1 reaches."""
    own, reach = represent(encoder, middle(1)), weight.abs().sum()
    return Bank(torch.cat([own + share * reach for share in (0, 0.16, 0.7, -0.5)])), reach.double()


@pytest.mark.parametrize("cls", BANKED)
def test_the_margin_s_optimum_on_a_linear_encoder_is_reached(cls):
    encoder, weight = linear_encoder(3, 4, 4)
    bank, reach = crossing_bank(encoder, weight)
    # From a random start on the far side the plain margin has no way back, since there it is flat.
    trace = perturb(cls(epsilon=0.1, steps=30, start="clean" if cls is MarginAPGD else "random"), encoder, middle(2), bank=bank)

    margin = (trace.adversarial - trace.clean).abs() - (bank.take([1]) - trace.adversarial).abs()
    best = (0.1 - (0.16 - 0.1)) * reach
    torch.testing.assert_close(margin[:, 0].double(), best.expand(2), rtol=1e-3, atol=0)
    assert (bank.closer_counts(trace.adversarial, trace.clean, [0, 0]) == 1).all()


def test_the_margin_leaves_out_a_sample_s_own_row_by_position():
    encoder, weight = linear_encoder(3, 4, 4)
    bank, reach = crossing_bank(encoder, weight)
    moved = bank.take([0]) + 0.1 * reach.float()
    left_out, counted = (margin_near(bank, as_batch(encoder, middle(1), own=[own]), l2)(moved)(moved) for own in (0, -1))
    beside_own = margin_near(bank, as_batch(encoder, middle(1), own=[1]), l2)(moved)(moved)

    torch.testing.assert_close(left_out, 0.04 * reach.float().reshape(1))
    torch.testing.assert_close(counted, left_out)
    torch.testing.assert_close(beside_own, torch.zeros(1))  # then the nearest other is the very row that it came from


def as_batch(encoder, inputs, *, own, bank=None):
    with torch.no_grad():
        clean = encoder(inputs)
    return Batch(ids=tuple(map(str, range(len(inputs)))), inputs=inputs, clean=clean, aim="away", own=torch.tensor(own), bank=bank)


@pytest.mark.parametrize("divergence", [l2, cosine])
def test_the_margin_over_the_near_ones_is_the_margin_over_all_at_the_place_itself(divergence):
    encoder, inputs = tiny_encoder(), tiny_inputs(200)
    bank = Bank(represent(encoder, inputs))
    batch = as_batch(encoder, inputs[:6], own=list(range(6)))
    moved = represent(encoder, tiny_inputs(6, purpose="moved"))
    margin = margin_near(bank, batch, divergence)(moved)(moved)

    everything = torch.stack([divergence(bank.take(range(200)), one.expand(200, -1)) for one in moved])
    everything[torch.arange(6), torch.arange(6)] = torch.inf
    torch.testing.assert_close(margin, divergence(batch.clean, moved) - everything.amin(1), rtol=1e-4, atol=1e-6)


def test_attacks_on_the_border_break_more_samples_away_than_the_divergence_does():
    encoder, inputs = tiny_encoder(), tiny_inputs(64)
    bank = Bank(represent(encoder, inputs))

    def broken(attack):
        trace = perturb(attack, encoder, inputs[:16], bank=bank, ids=range(16))
        return (bank.closer_counts(trace.adversarial, trace.clean, range(16)) > 0).sum()

    options = {"epsilon": 0.035, "steps": 20}
    away, margin, nearest = (broken(cls(**options)) for cls in ALL)
    assert margin > away
    assert nearest > away


# What is kept


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_best_of_all_that_was_looked_at_is_returned(norm, targeted):
    encoder, inputs = tiny_encoder(), tiny_inputs()
    attack = UAPGD(epsilon=0.3 if norm == "linf" else 4.0, norm=norm, steps=20, parity=True)  # a first step that overshoots
    trace = perturb(attack, encoder, inputs, targets=inputs.flip(-1) if targeted else None)

    looked_at = trace.history[:, :-1]
    assert looked_at.shape == (8, 20)
    best = looked_at.amin(1) if targeted else looked_at.amax(1)
    torch.testing.assert_close(trace.divergence, best, rtol=1e-5, atol=0)
    assert (trace.divergence != looked_at[:, -1]).any()


def test_a_mark_is_the_best_of_the_first_steps():
    trace = perturb(UAPGD(epsilon=0.2, steps=12, marks=(1, 5, 12)), tiny_encoder(), tiny_inputs(4))
    for mark, representation in trace.marked.items():
        reached = l2(trace.clean.double(), representation.double())
        torch.testing.assert_close(reached, trace.history[:, :mark].amax(1), rtol=1e-5, atol=0)
    assert torch.equal(trace.marks[12], trace.inputs)


def test_a_divergence_of_its_own_decides_and_the_history_stays_the_plan_s():
    encoder, inputs = tiny_encoder(), tiny_inputs()
    own = perturb(UAPGD(epsilon=0.1, steps=10, divergence="cosine"), encoder, inputs, divergence="l2")
    plan = perturb(UAPGD(epsilon=0.1, steps=10), encoder, inputs, divergence="cosine")

    assert torch.equal(own.inputs, plan.inputs)
    assert not torch.equal(perturb(UAPGD(epsilon=0.1, steps=10), encoder, inputs).inputs, own.inputs)
    first = perturb(UPGD(epsilon=0.1, steps=1), encoder, inputs)  # the same start
    torch.testing.assert_close(own.history[:, 0], first.history[:, 0])


def test_restarts_are_never_worse_and_say_which_won():
    encoder, inputs = tiny_encoder(), tiny_inputs()
    one, three = (perturb(UAPGD(epsilon=0.1, steps=4, restarts=restarts), encoder, inputs) for restarts in (1, 3))

    assert (three.divergence >= one.divergence - 1e-7).all()
    assert (three.divergence > one.divergence).any()
    stayed = three.notes["restart"] == 0
    assert torch.equal(three.inputs[stayed], one.inputs[stayed])
    assert torch.equal(three.history[stayed], one.history[stayed])
    assert set(three.notes["restart"].tolist()) <= {0.0, 1.0, 2.0}
    assert not stayed.all()


def test_more_neighbors_are_never_worse_by_margin():
    encoder, inputs = tiny_encoder(), tiny_inputs(40)
    bank = Bank(represent(encoder, inputs))
    one, three = (perturb(NearestAPGD(epsilon=0.05, steps=6, k=k), encoder, inputs[:8], bank=bank, ids=range(8)) for k in (1, 3))
    margin = [
        margin_near(bank, as_batch(encoder, inputs[:8], own=list(range(8))), l2)(trace.adversarial)(trace.adversarial)
        for trace in (one, three)
    ]

    assert "neighbor" not in one.notes
    assert set(three.notes["neighbor"].tolist()) <= {0.0, 1.0, 2.0}
    assert (margin[1] >= margin[0] - 1e-6).all()
    assert (margin[1] > margin[0]).any()


# Passes


@pytest.mark.parametrize("batch", [3, 64])
@pytest.mark.parametrize(
    "attack", [UAPGD(epsilon=0.1, steps=7), MarginAPGD(epsilon=0.1, steps=7), NearestAPGD(epsilon=0.1, steps=7, k=2)], ids=repr
)
def test_a_run_costs_what_it_says_and_the_two_passes_that_measure(attack, batch):
    encoder = tiny_encoder()
    bank = Bank(represent(encoder, tiny_inputs(20, purpose="bank")))
    before = encoder.passes.forwards
    perturb(attack, encoder, tiny_inputs(8), bank=bank, batch=batch)

    forwards, backwards = attack.passes
    assert forwards == backwards == 7 * getattr(attack, "k", 1)
    assert (encoder.passes.forwards - before, encoder.passes.backwards) == (8 * (forwards + 2), 8 * backwards)


def test_restarts_cost_a_budget_each():
    trace = perturb(UAPGD(epsilon=0.1, steps=5, restarts=3), tiny_encoder(), tiny_inputs(4))
    assert (trace.forwards, trace.backwards) == (4 * (15 + 1), 4 * 15)
    assert UAPGD(steps=5, restarts=3).passes == (15, 15)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("cls", ALL)
def test_epsilon_0_returns_the_input_bit_for_bit_and_asks_nothing(cls, norm):
    inputs, encoder = tiny_inputs(4), tiny_encoder()
    bank = Bank(represent(encoder, tiny_inputs(20, purpose="bank")))
    trace = perturb(cls(epsilon=0, norm=norm, steps=5, marks=(2, 5)), encoder, inputs, bank=bank)

    assert torch.equal(trace.inputs, inputs)
    assert trace.inputs is not inputs
    assert all(torch.equal(trace.marks[mark], inputs) for mark in (2, 5))
    assert trace.backwards == 0


# Balls, batches, stuck


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_changes_nothing(cls, size):
    encoder, inputs = tiny_encoder(), tiny_inputs(8)
    bank = Bank(represent(encoder, tiny_inputs(80, purpose="bank")))
    whole = perturb(cls(epsilon=0.1, steps=9), encoder, inputs, bank=bank, batch=8)
    parts = perturb(cls(epsilon=0.1, steps=9), encoder, inputs, bank=bank, batch=size)

    assert torch.equal(whole.inputs, parts.inputs)
    assert torch.equal(whole.history[:, :-1], parts.history[:, :-1])


@pytest.mark.parametrize("cls", ALL)
def test_an_encoder_without_a_gradient_is_noted(cls):
    def rounded(inputs: Tensor) -> Tensor:
        return (4 * inputs.flatten(1)).round()

    encoder = Encoder(rounded, name="rounded")
    bank = Bank(represent(encoder, tiny_inputs(20, (6,), purpose="bank")))
    trace = perturb(cls(epsilon=0.1, steps=4), encoder, tiny_inputs(3, (6,)), bank=bank)

    assert (trace.notes["zero_gradient"] == 1).all()
    assert trace.stuck.all()


@given(
    seed=st.integers(0, 2**31),
    norm=st.sampled_from(["linf", "l2"]),
    epsilon=st.floats(0, 1),
    bounds=st.sampled_from([(0, 1), (-1, 1), (0.1, 1 / 3 + 1), (-2.7, 3.1)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    parity=st.booleans(),
    targeted=st.booleans(),
)
def test_no_float_ever_leaves_the_ball_or_the_bounds(seed, norm, epsilon, bounds, dtype, parity, targeted):
    encoder = Encoder(lambda inputs: (3 * inputs).sin(), name="waves", bounds=bounds)
    low, high = bounds
    inputs = encoder.clip(low + (high - low) * torch.rand(3, 7, generator=torch.Generator().manual_seed(seed), dtype=dtype))
    attack = UAPGD(epsilon=epsilon, norm=norm, steps=5, parity=parity)
    moved = perturb(attack, encoder, inputs, targets=inputs.flip(-1) if targeted else None, seed=seed).inputs

    distance = torch.linalg.vector_norm(moved.double() - inputs.double(), ord=torch.inf if norm == "linf" else 2, dim=1)
    assert (distance <= epsilon * (1 if norm == "linf" else 1 + 1e-6)).all()
    assert moved.dtype == dtype
    assert ((moved.double() >= low) & (moved.double() <= high)).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_mask_and_an_epsilon_for_each_channel_are_kept(norm):
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:4] = True
    inputs = tiny_inputs(4)
    epsilon = (0.1, 0.0, 0.05) if norm == "linf" else 1.0
    moved = perturb(UAPGD(epsilon=epsilon, norm=norm, steps=8, mask=mask), tiny_encoder(), inputs).inputs - inputs

    assert not moved[:, :, 4:].any()
    assert moved[:, :, :4].any()
    if norm == "linf":
        assert not moved[:, 1].any()
        assert moved[:, 2].abs().max() <= 0.05 + 1e-7 < moved[:, 0].abs().max()


# What cannot be asked for


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -0.1}, "epsilon is -0.1; a radius cannot be negative"),
        ({"norm": "l1"}, "norm is 'l1'; expected 'linf' or 'l2'"),
        ({"steps": 1}, "steps is 1; the first of them looks at the start alone, so at least 2 are needed"),
        ({"steps": 0}, "steps is 0; at least one is needed"),
        ({"steps": 2.5}, "steps is 2.5; expected a whole number"),
        ({"restarts": 0}, "restarts is 0; at least one is needed"),
        ({"start": "zero"}, "start is 'zero'; expected one of 'random', 'eta', 'clean'"),
        ({"start": "clean", "restarts": 2}, "restarts is 2; from the clean input every restart is the same"),
        ({"marks": 2}, r"marks is 2; expected a sequence of numbers of steps, such as \(2,\)"),
        ({"marks": (5, 3)}, r"marks is \(5, 3\); expected ascending"),
        ({"marks": (51,)}, "from 1 to 50"),
        ({"divergence": "l3"}, "no divergence is named 'l3'"),
    ],
)
@pytest.mark.parametrize("cls", ALL)
def test_parameters_out_of_range_are_refused_with_the_remedy(cls, options, words):
    with pytest.raises(ValueError, match=words):
        cls(**options)


@pytest.mark.parametrize("cls", BANKED)
def test_a_bank_is_asked_for_before_any_pass(cls):
    encoder, inputs = tiny_encoder(), tiny_inputs(2)
    with pytest.raises(ValueError, match=f"{cls.__name__} needs a bank of other samples; run gives one, and perturb takes bank=…"):
        perturb(cls(), encoder, inputs)
    assert encoder.passes.backwards == 0
    assert encoder.passes.forwards == 2  # the clean ones
    with pytest.raises(ValueError, match=r"does not support aim 'target' \(it supports away\)"):
        perturb(cls(), encoder, inputs, targets=inputs.flip(0), bank=tiny_inputs(4))


def test_a_bank_of_none_but_the_sample_itself_is_refused():
    encoder, inputs = tiny_encoder(), tiny_inputs(1)
    with pytest.raises(ValueError, match="k is 1; 0 of the bank's 1 rows remain beside a query's own"):
        perturb(MarginAPGD(), encoder, inputs, bank=inputs)
    assert encoder.passes.backwards == 0
    with pytest.raises(ValueError, match="k is 0; at least one is needed"):
        NearestAPGD(k=0)

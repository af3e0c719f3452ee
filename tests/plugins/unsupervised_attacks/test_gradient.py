"""The gradient attacks against golden numbers, known optima, and what they promise of balls, marks, restarts and passes."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import GOLDEN, golden_encoder, golden_images, golden_start, numbers
from rt_core import AttackViolation, Ball, Encoder, divergences, perturb
from rt_core.evaluation import describe
from rt_core.fingerprints import fingerprint
from rt_core.testing import linear_encoder, parametrize_attack_checks, tiny_encoder, tiny_inputs
from rt_core.traces import FrozenTensor
from rt_unsupervised_attacks import UAPGD, UBIM, UFGSM, UMIPGD, UPGD
from rt_unsupervised_attacks.loss_based import LBIM, LFGSM, LPGD, BatchLFGSM, BatchLPGD

ITERATED = [UBIM, UPGD, UMIPGD]
HISTORIES = {"l2": "hist_dist_l2", "linf": "hist_dist_linf", "cosine": "hist_cosine"}


# Golden numbers


def golden_run(key, dtype):
    """Run U-PGD as the key says: -> trace, what the reference found."""
    divergence, mode, epsilon, step, steps, start = key.split("/")
    attack = UPGD(epsilon=float(epsilon[3:]), step=float(step[5:]), steps=int(steps[2:]))
    images = golden_images(4, dtype=dtype)
    first = golden_start(images, attack.epsilon) if start == "start" else images  # "zero", "zero (stuck)"
    targets = images.roll(-1, 0) if mode == "targeted" else None
    return perturb(attack, golden_encoder(dtype), images, targets=targets, divergence=divergence, start=first), GOLDEN["upgd"][key]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("key", [key for key in GOLDEN["upgd"] if "stuck" not in key])
def test_u_pgd_takes_the_reference_s_steps(key, dtype, tolerance):
    trace, expected = golden_run(key, dtype)
    divergence = key.partition("/")[0]
    history = numbers(expected[HISTORIES[divergence]])

    torch.testing.assert_close(trace.inputs.flatten(1).double(), numbers(expected["x_adv"]), rtol=0, atol=tolerance)
    torch.testing.assert_close(trace.history[:, :-1], 1 - history if divergence == "cosine" else history, rtol=0, atol=tolerance)
    torch.testing.assert_close(trace.history[:, -1], trace.divergence, rtol=0, atol=0)


def test_u_pgd_does_not_leave_the_clean_input_by_itself():
    (key,) = [key for key in GOLDEN["upgd"] if "stuck" in key]
    trace, expected = golden_run(key, torch.float64)

    assert (trace.inputs - golden_images(4)).abs().max() == expected["x_adv_minus_x_maxabs"] == 0
    assert trace.stuck.all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["float64", "float32"])
def test_u_fgsm_is_the_first_reading_of_the_paper_s_formula(dtype, tolerance):
    images, expected = golden_images(4, dtype=dtype), GOLDEN["independent_ufgsm"]
    attack, encoder = UFGSM(epsilon=0.03), golden_encoder(dtype)
    away = perturb(attack, encoder, images, start=golden_start(images, 0.01))
    toward = perturb(attack, encoder, images, targets=images.roll(-1, 0))

    for trace, key in ((away, "grad_through_perturbed_argument_only (=first BIM step)"), (toward, "targeted_towards_roll(-1)")):
        torch.testing.assert_close(trace.inputs.flatten(1).double(), numbers(expected[key]), rtol=0, atol=tolerance)
    torch.testing.assert_close(away.divergence, numbers(expected["divergence_after"]["perturbed"]), rtol=0, atol=tolerance)
    torch.testing.assert_close(toward.divergence, numbers(expected["targeted_divergence_before_after"][1]), rtol=0, atol=tolerance)


# Known optima


def middle(batch, channel=3):
    """Inputs in the middle of the bounds, where an epsilon below 0.5 does not meet them."""
    return torch.full((batch, channel, 4, 4), 0.5)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("divergence", ["l1", "l2", "linf"])
@pytest.mark.parametrize("attack", [UFGSM(epsilon=0.1), *(cls(epsilon=0.1, step=0.05, steps=10) for cls in ITERATED)], ids=repr)
def test_attacks_reach_the_corner_that_is_best_for_a_linear_encoder(attack, divergence, batch):
    encoder, weight = linear_encoder(3, 4, 4)
    trace = perturb(attack, encoder, middle(batch), divergence=divergence)

    best = 0.1 * weight.abs().sum().double()
    torch.testing.assert_close(trace.divergence, best.expand(batch), rtol=1e-5, atol=0)


def test_u_pgd_moves_every_number_of_a_linear_encoder_as_far_as_it_goes():
    encoder, weight = linear_encoder(3, 4, 4, 5)
    trace = perturb(UPGD(epsilon=0.1, step=0.05, steps=10), encoder, middle(4), divergence="l1")

    reach = 0.1 * weight.flatten(1).abs().sum(1)
    torch.testing.assert_close((trace.adversarial - trace.clean).abs(), reach.expand(4, 5), rtol=1e-4, atol=0)
    torch.testing.assert_close(trace.divergence, reach.sum().double().expand(4), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "attack", [UFGSM(epsilon=0.2, norm="l2"), *(cls(epsilon=0.2, step=0.2, steps=20, norm="l2") for cls in ITERATED)], ids=repr
)
def test_l2_attacks_reach_the_optimum_along_the_weight(attack):
    encoder, weight = linear_encoder(3, 4, 4)
    trace = perturb(attack, encoder, middle(3))

    best = 0.2 * torch.linalg.vector_norm(weight).double()
    torch.testing.assert_close(trace.divergence, best.expand(3), rtol=1e-4, atol=0)
    assert (trace.divergence <= best * (1 + 1e-6)).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("cls", [UFGSM, *ITERATED])
def test_attacks_come_as_near_to_a_target_as_the_ball_allows(cls, norm):
    encoder, weight = linear_encoder(3, 4, 4)
    inputs, targets = middle(3), (middle(3) + 0.3 * weight.sign()).clone()
    epsilon = 0.1 if norm == "linf" else 0.2
    options = {} if cls is UFGSM else {"step": epsilon, "steps": 20}
    trace = perturb(cls(epsilon=epsilon, norm=norm, **options), encoder, inputs, targets=targets)

    reach = epsilon * (weight.abs().sum() if norm == "linf" else torch.linalg.vector_norm(weight))
    left = 0.3 * weight.abs().sum() - reach
    torch.testing.assert_close(trace.divergence, left.double().expand(3), rtol=1e-3, atol=0)


def test_a_target_inside_the_ball_is_reached():
    encoder, weight = linear_encoder(3, 4, 4)
    inputs = middle(2)
    trace = perturb(UPGD(epsilon=0.2, step=0.002, steps=100, keep="best"), encoder, inputs, targets=inputs + 0.05)

    assert (trace.divergence <= 0.002 * weight.abs().sum() / 2 + 1e-6).all()  # half of what one step moves


def test_momentum_of_decay_0_is_u_pgd():
    inputs, encoder = tiny_inputs(4), tiny_encoder()
    plain = perturb(UPGD(epsilon=0.1, steps=5), encoder, inputs)

    assert torch.equal(perturb(UMIPGD(epsilon=0.1, steps=5, decay=0), encoder, inputs).inputs, plain.inputs)
    assert not torch.equal(perturb(UMIPGD(epsilon=0.1, steps=5, decay=1), encoder, inputs).inputs, plain.inputs)


def test_momentum_adds_gradients_of_mean_size_one():
    encoder, inputs = tiny_encoder(), tiny_inputs(2, bounds=(0.3, 0.7))
    attack = UMIPGD(epsilon=0.25, step=0.01, steps=3, decay=0.5)
    trace = perturb(attack, encoder, inputs, start=inputs + 0.02)

    moved, momentum = inputs + 0.02, torch.zeros_like(inputs)  # the definition, step by step
    for _ in range(3):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(divergences.l2(encoder(inputs).detach(), encoder(moved)).sum(), moved)
        momentum = 0.5 * momentum + slope / slope.abs().mean(dim=(1, 2, 3), keepdim=True)
        moved = moved.detach() + 0.01 * momentum.sign()
    torch.testing.assert_close(trace.inputs, moved, rtol=0, atol=1e-6)


# Epsilon 0, starts


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("cls", [UFGSM, *ITERATED])
def test_epsilon_0_returns_the_input_bit_for_bit(cls, norm, targeted):
    inputs = tiny_inputs(4)
    attack = cls(epsilon=0, norm=norm) if cls is UFGSM else cls(epsilon=0, norm=norm, steps=5, marks=(2, 5))
    trace = perturb(attack, tiny_encoder(), inputs, targets=inputs.flip(0) if targeted else None)

    assert torch.equal(trace.inputs, inputs)
    assert trace.inputs is not inputs
    assert all(torch.equal(marked, inputs) for marked in trace.marks.values())
    assert len(trace.marks) == (0 if cls is UFGSM else 2)
    if not targeted:
        assert torch.equal(trace.divergence, torch.zeros(4, dtype=torch.float64))


def test_an_attack_away_from_the_clean_input_may_not_start_there():
    with pytest.raises(ValueError, match=r"aim 'away'.*gradient of the divergence is zero there: start='random' or 'eta'"):
        perturb(UPGD(start="clean"), tiny_encoder(), tiny_inputs(2))
    toward = perturb(UPGD(start="clean", steps=1, epsilon=0.1, step=0.02), tiny_encoder(), tiny_inputs(2), targets=tiny_inputs(2).flip(-1))
    assert ((toward.inputs - tiny_inputs(2)).abs() <= 0.02 + 1e-7).all()


def test_starts_are_where_they_say():
    encoder, inputs = Encoder(lambda inputs: 0 * inputs.flatten(1).sum(1, keepdim=True), name="constant"), middle(200, channel=1)
    for attack, norm, radius in [
        (UPGD(epsilon=0.1, steps=1), "linf", 0.1),
        (UBIM(epsilon=0.1, steps=1), "linf", 1e-3),
        (UBIM(epsilon=0.1, steps=1, eta=0.01), "linf", 0.01),
        (UPGD(epsilon=0.1, steps=1, norm="l2"), "l2", 0.1),
        (UBIM(epsilon=0.1, steps=1, norm="l2", eta=0.01), "linf", 0.01),
    ]:
        moved = (perturb(attack, encoder, inputs).inputs - inputs).flatten(1)  # a constant encoder leaves the start as it was
        length = moved.abs().max() if norm == "linf" else torch.linalg.vector_norm(moved, dim=1).max()
        assert 0.9 * radius < length <= radius * (1 + 1e-5)
        assert moved.mean().abs() < radius / 20
    spread = torch.linalg.vector_norm((perturb(UPGD(epsilon=0.1, steps=1, norm="l2"), encoder, inputs).inputs - inputs).flatten(1), dim=1)
    assert (spread / 0.1).pow(16).mean() == pytest.approx(0.5, abs=0.1)  # uniform in a ball of 16 dimensions


def test_the_default_step_crosses_the_ball():
    assert UPGD(epsilon=0.1, steps=10).step_size == pytest.approx(0.025)
    assert UPGD(epsilon=0.1, steps=10, step=0.001).step_size == 0.001


# Marks, best, restarts


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("options", [{}, {"keep": "best"}, {"norm": "l2", "epsilon": 1.0}, {"norm": "l2", "epsilon": 1.0, "keep": "best"}])
@pytest.mark.parametrize("cls", ITERATED)
def test_marks_are_what_shorter_runs_of_the_same_step_give(cls, options, targeted):
    options = {"epsilon": 0.1, "step": 0.03} | options
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    targets = inputs.flip(-1) if targeted else None
    long = perturb(cls(steps=6, marks=(1, 3, 6), **options), encoder, inputs, targets=targets)

    assert list(long.marks) == list(long.marked) == [1, 3, 6]
    for mark, marked in long.marks.items():
        short = perturb(cls(steps=mark, **options), encoder, inputs, targets=targets)
        assert torch.equal(marked, short.inputs), f"mark {mark}"
        assert torch.equal(long.marked[mark], short.adversarial), f"mark {mark}"


def test_marks_of_several_restarts_are_the_best_at_that_step():
    options = {"epsilon": 0.1, "step": 0.03, "restarts": 3, "keep": "best"}
    long = perturb(UPGD(steps=4, marks=(2, 4), **options), tiny_encoder(), tiny_inputs(4))
    for mark in (2, 4):
        short = perturb(UPGD(steps=mark, **options), tiny_encoder(), tiny_inputs(4))
        assert torch.equal(long.marks[mark], short.inputs)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_best_iterate_is_never_worse_than_any(norm, targeted):
    size = {"epsilon": 0.3, "step": 0.25} if norm == "linf" else {"epsilon": 4.0, "step": 4.0}
    options = {"steps": 6, "norm": norm, **size}  # a step so long that the last iterate is not the best
    encoder, inputs = tiny_encoder(), tiny_inputs()
    targets = inputs.flip(-1) if targeted else None
    last, best = (perturb(UPGD(keep=keep, **options), encoder, inputs, targets=targets) for keep in ("last", "best"))

    reached = last.history.min(1).values if targeted else last.history.max(1).values
    torch.testing.assert_close(best.divergence, reached, rtol=1e-6, atol=0)
    assert not torch.equal(best.inputs, last.inputs)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("keep", ["last", "best"])
def test_more_restarts_are_never_worse(keep, targeted):
    encoder, inputs = tiny_encoder(), tiny_inputs()
    targets = inputs.flip(-1) if targeted else None
    found = [perturb(UPGD(epsilon=0.1, steps=2, restarts=restarts, keep=keep), encoder, inputs, targets=targets) for restarts in (1, 2, 4)]
    way = -1 if targeted else 1
    for fewer, more in pairwise(found):
        assert (way * more.divergence >= way * fewer.divergence - 1e-7).all()
    assert (way * found[-1].divergence > way * found[0].divergence).any()
    assert set(found[-1].notes["restart"].tolist()) - {0.0} <= {1.0, 2.0, 3.0}
    assert found[-1].notes["restart"].any()


def test_a_history_is_that_of_the_restart_that_won():
    encoder, inputs = tiny_encoder(), tiny_inputs()
    single, several = (perturb(UPGD(epsilon=0.1, steps=2, restarts=restarts), encoder, inputs) for restarts in (1, 4))
    stayed = several.notes["restart"] == 0

    assert stayed.any()
    assert torch.equal(several.history[stayed], single.history[stayed])
    assert (several.history[~stayed, 0] != single.history[~stayed, 0]).all()


def test_one_restart_that_finds_a_gradient_is_enough_not_to_be_stuck():
    def dead_below(inputs):
        return (inputs.sum(1, keepdim=True) - 1).relu()  # about half of the starts see no gradient

    inputs = torch.full((20, 2), 0.5)
    single, several = (
        perturb(UPGD(epsilon=0.1, steps=2, restarts=restarts), Encoder(dead_below, name="dead"), inputs) for restarts in (1, 8)
    )
    assert 0 < single.stuck.sum() < 20
    for trace in (single, several):
        assert torch.equal(trace.stuck, trace.divergence == 0)
    assert several.stuck.sum() <= 1


# Passes


@pytest.mark.parametrize("batch", [3, 64])
@pytest.mark.parametrize("cls", ITERATED)
def test_a_run_costs_its_steps_and_the_two_passes_that_measure(cls, batch):
    encoder = tiny_encoder()
    trace = perturb(cls(epsilon=0.1, steps=5), encoder, tiny_inputs(8), batch=batch)

    assert (encoder.passes.forwards, encoder.passes.backwards) == (8 * (5 + 2), 8 * 5)  # clean, five steps, final
    assert (trace.forwards, trace.backwards) == (8 * (5 + 1), 8 * 5)


@pytest.mark.parametrize(
    ("attack", "forwards", "backwards"),
    [
        (UFGSM(epsilon=0.1), 1 + 1, 1),
        (UPGD(epsilon=0.1, steps=5, keep="best"), 5 + 1 + 1, 5),
        (UPGD(epsilon=0.1, steps=5, restarts=3), 3 * (5 + 1) + 1, 15),
        (UPGD(epsilon=0.1, steps=5, marks=(1, 3, 5)), 5 + 1 + 3, 5),  # each mark is measured too
        (UPGD(epsilon=0, steps=5), 1, 0),
    ],
    ids=repr,
)
def test_what_is_asked_for_beyond_that_costs_what_it_says(attack, forwards, backwards):
    trace = perturb(attack, tiny_encoder(), tiny_inputs(4))
    assert (trace.forwards, trace.backwards) == (4 * forwards, 4 * backwards)


# Slopes that are not finite


def root(inputs):
    """An encoder whose slope is infinite where an input is 0, and which looks at all inputs."""
    values = inputs.flatten(1).sqrt()
    return torch.stack([values.mean(1), values[:, ::2].mean(1), values[:, ::3].mean(1)], dim=1)


def dark(batch=4, pixels=1):
    """Inputs of which some pixels are 0, and stay 0 where an attack would go further down."""
    inputs = tiny_inputs(batch) * 0.5 + 0.3
    inputs[:, :, 0, :pixels] = 0
    return inputs


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 0.05), ("l2", 0.5)])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("cls", [UFGSM, *ITERATED, UAPGD])
def test_an_infinite_slope_at_one_pixel_stops_no_attack(cls, targeted, norm, epsilon):
    encoder, inputs = Encoder(root, name="root"), dark()
    targets = (inputs * 0.8) if targeted else None  # darker: black pixels pull down, out of the bounds
    trace = perturb(cls(epsilon=epsilon, norm=norm), encoder, inputs, targets=targets)
    # Where the black pixels are left alone, slopes are finite.
    lit = torch.ones(3, 8, 8, dtype=torch.bool)
    lit[:, 0, 0] = False
    usual = perturb(cls(epsilon=epsilon, norm=norm, mask=lit), encoder, inputs, targets=targets)
    assert not trace.stuck.any()
    if targeted:
        assert (trace.divergence <= 1.05 * usual.divergence + 1e-4).all()
    else:
        # One step goes along the steep slopes beside the black pixels, which soon are less steep.
        assert (trace.divergence >= (0.3 if cls is UFGSM else 0.95) * usual.divergence).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("cls", [UFGSM, *ITERATED, UAPGD])
def test_a_slope_that_is_nan_everywhere_is_none(cls, norm):
    def broken(inputs):
        return inputs.flatten(1) + (inputs - inputs).flatten(1).abs().sqrt()  # √|0|: 0, of slope 0 · ∞

    trace = perturb(cls(epsilon=0.1, norm=norm), Encoder(broken, name="broken"), tiny_inputs(3))
    assert trace.stuck.all()
    assert (trace.notes["zero_gradient"] == 1).all()


@pytest.mark.parametrize("cls", [UFGSM, *ITERATED, UAPGD])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("scale", [1e-30, 1e36])
def test_slopes_of_any_size_lead_as_far(cls, norm, scale):
    inputs, epsilon = tiny_inputs(3) * 0.5 + 0.25, {"linf": 0.1, "l2": 1.0}[norm]
    trace, usual = (
        perturb(cls(epsilon=epsilon, norm=norm), Encoder(lambda inputs: one * inputs.mean((2, 3)), name="mean"), inputs, divergence="l1")  # noqa: B023
        for one in (scale, 1.0)
    )
    torch.testing.assert_close(trace.divergence / scale, usual.divergence, rtol=1e-3, atol=0)


# Whole numbers


@pytest.mark.parametrize("cls", [*ITERATED, UAPGD])
def test_whole_numbers_of_numpy_are_plain_ones(cls):
    given = cls(steps=np.int64(4), restarts=np.uint8(2), marks=np.array([1, 3]))
    assert given == cls(steps=4, restarts=2, marks=(1, 3))
    assert [type(one) for one in (given.steps, given.restarts, *given.marks)] == [int] * 4
    assert fingerprint(given) == fingerprint(cls(steps=4, restarts=2, marks=(1, 3)))
    for name in ("steps", "restarts"):
        with pytest.raises(ValueError, match=f"{name} is True; expected a whole number, such as 10"):
            cls(**{name: True})
    with pytest.raises(ValueError, match=r"marks is \(True,\); expected ascending numbers of steps from 1 to"):
        cls(marks=(True,))


# Numbers of many digits


@pytest.mark.parametrize("cls", [UFGSM, *ITERATED])
def test_l2_steps_on_a_photo_s_many_pixels_are_as_long_as_they_say(cls):
    def mean_brightness(inputs):
        return 1e-20 * inputs.mean(dim=(2, 3))  # gradients so small that their squares are 0 in float32

    inputs = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    options = {} if cls is UFGSM else {"step": 3.0, "steps": 4}
    trace = perturb(cls(epsilon=3.0, norm="l2", **options), Encoder(mean_brightness, name="brightness"), inputs, divergence="l1")

    moved = torch.linalg.vector_norm((trace.inputs.double() - inputs.double()).flatten(1), dim=1)
    torch.testing.assert_close(moved, torch.full((2,), 3.0, dtype=torch.float64), rtol=2e-5, atol=0)


# What cannot be asked for


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -0.1}, "epsilon is -0.1; a radius cannot be negative"),
        ({"epsilon": float("nan")}, "epsilon is nan; expected a finite number"),
        ({"epsilon": float("inf")}, "epsilon is inf; expected a finite number"),
        ({"epsilon": "8/255"}, "epsilon is '8/255'; expected a plain number, such as 0.03, without quotes"),
        ({"epsilon": np.float32(0.5)}, "epsilon is .*0.5.*; expected a plain number, such as 0.03, not a float32"),
        ({"epsilon": None}, "epsilon is None; expected a plain number"),
        ({"epsilon": True}, "epsilon is True; expected a plain number"),
        ({"norm": "l1"}, "norm is 'l1'; expected 'linf' or 'l2'"),
        ({"step": "a"}, "step is 'a'; expected a plain number"),
        ({"step": float("nan")}, "step is nan; expected a finite number"),
        ({"step": float("inf")}, "step is inf; expected a finite number"),
        ({"step": 0}, "step is 0; it must be positive"),
        ({"step": -0.01}, "step is -0.01; it must be positive .the aim decides"),
        ({"steps": 0}, "steps is 0; at least one"),
        ({"steps": 1.5}, "steps is 1.5; expected a whole number"),
        ({"steps": "10"}, "steps is '10'; expected a whole number"),
        ({"restarts": 2.0}, "restarts is 2.0; expected a whole number"),
        ({"restarts": 0}, "restarts is 0; at least one"),
        ({"start": "zero"}, "start is 'zero'; expected one of 'random', 'eta', 'clean'"),
        ({"start": "clean", "restarts": 2}, "restarts is 2; from the clean input every restart is the same"),
        ({"marks": 2}, r"marks is 2; expected a sequence of numbers of steps, such as \(2,\)"),
        ({"marks": (5, 3)}, r"marks is \(5, 3\); expected ascending"),
        ({"marks": (11,)}, "from 1 to 10"),
        ({"marks": (0,)}, "from 1 to 10"),
        ({"keep": "first"}, "keep is 'first'; expected 'last' or 'best'"),
        ({"eta": "small"}, "eta is 'small'; expected a plain number"),
        ({"eta": 0}, "eta is 0; it must be positive, since the gradient at the clean input is zero"),
    ],
)
def test_parameters_out_of_range_are_refused_with_the_remedy(options, words):
    with pytest.raises(ValueError, match=words):
        UPGD(**options)


def test_a_decay_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"decay is 1.5; expected a factor in \[0, 1\]"):
        UMIPGD(decay=1.5)
    with pytest.raises(ValueError, match="decay is 'half'; expected a plain number"):
        UMIPGD(decay="half")


def test_marks_in_a_list_are_kept_as_a_value():
    assert UPGD(marks=[1, 3]) == UPGD(marks=(1, 3))
    assert hash(UPGD(marks=[1, 3]))


# The ball


@given(
    seed=st.integers(0, 2**31),
    cls=st.sampled_from([UFGSM, *ITERATED]),
    norm=st.sampled_from(["linf", "l2"]),
    epsilon=st.floats(0, 1),
    bounds=st.sampled_from([(0, 1), (-1, 1), (0.1, 1 / 3 + 1), (-2.7, 3.1)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    targeted=st.booleans(),
)
def test_no_float_ever_leaves_the_ball_or_the_bounds(seed, cls, norm, epsilon, bounds, dtype, targeted):
    generator = torch.Generator().manual_seed(seed)
    encoder = Encoder(lambda inputs: (3 * inputs).sin(), name="waves", bounds=bounds)
    low, high = bounds
    inputs = encoder.clip(low + (high - low) * torch.rand(3, 7, generator=generator, dtype=dtype))
    attack = cls(epsilon=epsilon, norm=norm) if cls is UFGSM else cls(epsilon=epsilon, norm=norm, steps=2)
    moved = perturb(attack, encoder, inputs, targets=inputs.flip(-1) if targeted else None, seed=seed).inputs

    distance = torch.linalg.vector_norm(moved.double() - inputs.double(), ord=torch.inf if norm == "linf" else 2, dim=1)
    assert (distance <= epsilon * (1 if norm == "linf" else 1 + 1e-6)).all()
    assert moved.dtype == dtype
    assert ((moved.double() >= low) & (moved.double() <= high)).all()


# Masks: what an attack may move


CORNER = torch.arange(64).reshape(8, 8) % 5 < 2
MASKS = {"pixels": CORNER, "channels": torch.tensor([True, False, True])[:, None, None], "a row": torch.arange(8)[:, None] == 3}
MASKED = [
    *((cls, {}) for cls in (UFGSM, UBIM, UPGD, UMIPGD)),
    (UPGD, {"keep": "best", "restarts": 2}),
    *((cls, {"loss": "rocl"}) for cls in (LFGSM, LBIM, LPGD)),
    *((cls, {"loss": "info_nce"}) for cls in (BatchLFGSM, BatchLPGD)),
]


def bits(values):
    return values.view(torch.int32)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("cls", "options"), MASKED, ids=lambda part: getattr(part, "__name__", str(part)))
def test_what_a_mask_forbids_stays_bit_for_bit(cls, options, norm, mask):
    inputs, encoder = tiny_inputs(4, bounds=(-1, 1)), tiny_encoder(bounds=(-1, 1))
    inputs[:, :, ::3] = -0.0  # not the bits of 0.0
    steps = {} if "FGSM" in cls.__name__ else {"steps": 3, "marks": (1, 3)}
    attack = cls(epsilon=0.2 if norm == "linf" else 1.5, norm=norm, mask=MASKS[mask], **steps, **options)
    free = MASKS[mask].expand(4, 3, 8, 8)

    for targets in (None, inputs.flip(-1))[: len(getattr(attack, "aims", (1, 2)))]:
        trace = perturb(attack, encoder, inputs, targets=targets)
        for moved in (trace.inputs, *trace.marks.values()):
            assert torch.equal(bits(moved)[~free], bits(inputs)[~free])
            assert (moved != inputs)[free].float().mean() > 0.7  # but where a bound stands in the way
        assert (trace.adversarial != trace.clean).any(1).all()


@pytest.mark.parametrize(("cls", "norm"), [(cls, norm) for cls in (UFGSM, *ITERATED) for norm in ("linf", "l2")])
def test_masked_attacks_reach_the_optimum_of_what_they_may_move(cls, norm):
    encoder, weight = linear_encoder(3, 4, 4)
    mask = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(1)) < 0.4
    options = {} if cls is UFGSM else {"step": 0.1, "steps": 30}
    trace = perturb(cls(epsilon=0.2, norm=norm, mask=mask, **options), encoder, middle(3))

    best = 0.2 * (weight[0][mask].abs().sum() if norm == "linf" else torch.linalg.vector_norm(weight[0][mask]))
    torch.testing.assert_close(trace.divergence, best.double().expand(3), rtol=1e-4, atol=0)


def test_a_masked_l2_start_is_uniform_in_the_ball_of_what_may_move():
    encoder, inputs = Encoder(lambda inputs: 0 * inputs.flatten(1).sum(1, keepdim=True), name="constant"), middle(300, channel=1)
    mask = torch.arange(16).reshape(4, 4) < 5
    moved = perturb(UPGD(epsilon=0.1, steps=1, norm="l2", mask=mask), encoder, inputs).inputs - inputs
    share = torch.linalg.vector_norm(moved.flatten(1), dim=1) / 0.1

    assert (share <= 1 + 1e-5).all()
    assert share.pow(5).mean() == pytest.approx(0.5, abs=0.06)  # 5 dimensions


def test_a_gradient_where_nothing_may_move_is_none():
    encoder = Encoder(lambda inputs: inputs[:, 0].flatten(1), name="red")
    trace = perturb(UPGD(epsilon=0.1, steps=2, mask=torch.tensor([False, True, True])[:, None, None]), encoder, tiny_inputs(3))
    assert trace.stuck.all()


# An epsilon for each channel or feature


@pytest.mark.parametrize("cls", [UFGSM, *ITERATED])
@pytest.mark.parametrize("divergence", ["l1", "l2", "linf"])
def test_attacks_reach_the_corner_of_a_box_whose_sides_differ(divergence, cls):
    encoder, weight = linear_encoder(3, 4, 4)
    radii = (0.1, 0.0, 0.03)
    trace = perturb(cls(epsilon=radii, **({} if cls is UFGSM else {"steps": 10})), encoder, middle(3), divergence=divergence)

    best = sum(radius * part.abs().sum().double() for radius, part in zip(radii, weight[0], strict=True))
    torch.testing.assert_close(trace.divergence, best.expand(3), rtol=1e-5, atol=0)
    for radius, moved in zip(radii, (trace.inputs.double() - 0.5).unbind(1), strict=True):
        assert (moved.abs() <= radius).all()
        torch.testing.assert_close(moved.abs(), torch.full_like(moved, radius), rtol=0, atol=1e-7)


def test_features_of_a_table_have_their_own_units():
    weight = torch.tensor([3.0, -0.001, 5.0, 2.0])
    bounds = (torch.tensor([0.0, 0.0, -5.0, 0.0]), torch.tensor([1.0, 90_000.0, 5.0, 1.0]))
    encoder = Encoder(lambda rows: (rows * weight).sum(1, keepdim=True), name="table", bounds=bounds)
    rows = torch.tensor([[0.5, 40_000.0, 0.0, 0.95], [0.5, 89_990.0, 4.9, 0.0]])
    attack = UPGD(epsilon=[0.05, 1000.0, 0.5, 0.1], steps=10)
    moved = perturb(attack, encoder, rows, divergence="l1").inputs - rows

    reached = (moved * weight).sum(1)
    up, down = (
        torch.stack([(step * weight).clamp(min=0) if way else (-step * weight).clamp(min=0) for step in corners(rows, bounds)])
        .amax(0)
        .sum(1)
        for way in (1, 0)
    )
    torch.testing.assert_close(reached.abs(), torch.where(reached > 0, up, down), rtol=1e-3, atol=0)  # a corner of each row's own box


def corners(rows, bounds):
    """The furthest steps down and up that epsilon and the bounds allow."""
    epsilon = torch.tensor([0.05, 1000.0, 0.5, 0.1])
    return torch.maximum(rows - epsilon, bounds[0]) - rows, torch.minimum(rows + epsilon, bounds[1]) - rows


@given(
    seed=st.integers(0, 2**31),
    cls=st.sampled_from([UFGSM, *ITERATED]),
    radii=st.lists(st.one_of(st.just(0.0), st.floats(1e-8, 1)), min_size=5, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    masked=st.booleans(),
)
def test_no_float_ever_leaves_the_box_of_its_feature(seed, cls, radii, dtype, masked):
    generator = torch.Generator().manual_seed(seed)
    encoder, inputs = Encoder(lambda inputs: (3 * inputs).sin(), name="waves"), torch.rand(3, 5, generator=generator, dtype=dtype)
    mask = torch.tensor([True, False, True, True, False]) if masked else None
    moved = perturb(cls(epsilon=radii, mask=mask, **({} if cls is UFGSM else {"steps": 2})), encoder, inputs, seed=seed).inputs

    allowed = torch.tensor(radii, dtype=torch.float64) * (1 if mask is None else mask)
    assert ((moved.double() - inputs.double()).abs() <= allowed).all()


def test_equal_epsilons_are_one():
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    for cls, options in ((UFGSM, {}), (UBIM, {"steps": 4}), (UPGD, {"steps": 4, "start": "eta", "step": 0.02})):
        one, three = (perturb(cls(epsilon=epsilon, **options), encoder, inputs).inputs for epsilon in (0.1, (0.1, 0.1, 0.1)))
        assert torch.equal(one, three)
    start = perturb(UPGD(epsilon=(0.1, 0.02, 0.0), steps=1, step=1e-6), encoder, inputs).inputs - inputs
    for channel, radius in enumerate((0.1, 0.02, 0.0)):
        assert 0.95 * radius <= start[:, channel].abs().max() <= radius


def test_the_default_step_crosses_each_side_of_the_box():
    assert UPGD(epsilon=(0.1, 0.2), steps=10).step_size == pytest.approx((0.025, 0.05))
    assert UPGD(epsilon=[0.1, 0.2], step=0.01).step_size == 0.01


def test_epsilons_of_0_return_the_input():
    inputs = tiny_inputs(2)
    for attack in (UFGSM(epsilon=(0, 0, 0)), UPGD(epsilon=(0, 0, 0), steps=2, marks=(1,))):
        trace = perturb(attack, tiny_encoder(), inputs)
        assert torch.equal(trace.inputs, inputs)
        assert trace.backwards == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": (0.1, 0.1)}, "epsilon has 2 numbers, and an input has 3 entries on its first axis; give one for each, or one for all"),
        ({"mask": torch.ones(4, 8) > 0}, r"mask has shape \[4, 8\]; it must broadcast over one input, \[3, 8, 8\]"),
        ({"mask": torch.ones(1, 3, 8, 8) > 0}, r"mask has shape \[1, 3, 8, 8\]; it must broadcast"),
        ({"epsilon": (0.1, 7.0, 0.1)}, "epsilon is 7; inputs span a range of 1"),
    ],
)
@pytest.mark.parametrize("cls", [UFGSM, UPGD])
def test_what_does_not_fit_the_inputs_is_refused_before_any_pass(cls, options, words):
    encoder = tiny_encoder()
    with pytest.raises(ValueError, match=words):
        perturb(cls(**options), encoder, tiny_inputs(2))
    assert encoder.passes.forwards == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": ()}, "epsilon is empty; give one number, or one for each channel or feature"),
        ({"epsilon": (0.1, -0.1)}, r"epsilon\[1\] is -0.1; a radius cannot be negative"),
        ({"epsilon": (0.1, "b")}, r"epsilon\[1\] is 'b'; expected a plain number"),
        ({"epsilon": (0.1, 0.1), "norm": "l2"}, r"radius is \(0.1, 0.1\); an l2 ball is round and has one radius"),
        ({"mask": torch.ones(8, 8)}, "mask is .*float32.*; expected bool, and True somewhere, where the attack may move"),
        ({"mask": torch.zeros(8, 8) > 0}, "expected bool, and True somewhere"),
    ],
)
@pytest.mark.parametrize("cls", [UFGSM, UPGD])
def test_masks_and_epsilons_that_make_no_sense_are_refused(cls, options, words):
    with pytest.raises(ValueError, match=words):
        cls(**options)


def test_masks_and_epsilons_are_values():
    attack = UPGD(mask=CORNER, epsilon=[0.1, 0.2, 0.3])
    assert attack == replace(attack) == pickle.loads(pickle.dumps(attack)) == UPGD(mask=CORNER.clone(), epsilon=(0.1, 0.2, 0.3))
    assert hash(attack) == hash(replace(attack))
    assert UPGD(mask=CORNER.tolist()) == UPGD(mask=CORNER)  # as a study file has it
    assert UPGD(mask=CORNER) != UPGD(mask=~CORNER)
    assert fingerprint(UPGD(mask=CORNER)) != fingerprint(UPGD(mask=~CORNER))
    assert fingerprint(attack) == fingerprint(pickle.loads(pickle.dumps(attack)))
    shown = describe(attack)
    assert shown["epsilon"] == [0.1, 0.2, 0.3]
    assert shown["mask"]["tensor"] == [8, 8]
    assert shown["mask"] != describe(UPGD(mask=~CORNER))["mask"]


@parametrize_attack_checks(
    {
        "linf": UPGD(epsilon=(0.1, 0.05, 0.2), mask=CORNER, steps=3, marks=(1, 3)),
        "l2": UMIPGD(epsilon=1.0, norm="l2", mask=CORNER, steps=3),
        "one step": UFGSM(epsilon=(0.1, 0.05, 0.2), mask=CORNER),
    },
    expected_failures={"takes_inputs_that_are_no_images": "its mask and its epsilons are those of pictures"},
)
def test_the_contract_with_a_mask(attack, check):
    check(attack)


# What the engine sees of such balls


@pytest.mark.parametrize("shown", ["last bit", "forbidden", "still"])
def test_the_engine_measures_a_ball_feature_by_feature(shown):
    class Wrong:
        ball = Ball("linf", (0.25, 0.0, 0.125), FrozenTensor.of(CORNER))

        def __call__(self, encoder, batch, divergence, *, random):
            free = torch.nonzero(CORNER)[0]
            moved = batch.inputs.clone()
            moved[0, 0, free[0], free[1]] += 0.25
            if shown == "last bit":
                moved[0, 2, free[0], free[1]] = 0.5 + 0.125 + 2**-24
            elif shown == "forbidden":
                moved[0, 0][~CORNER] += 1e-7
            elif shown == "still":
                moved[0, 1, free[0], free[1]] += 1e-7
            return moved

    words = {
        "last bit": r"by 1\.0000004\d* \(linf\), and its ball has a radius for each feature .distances are in units of it. and a mask",
        "forbidden": r"by inf \(linf\)",
        "still": r"by inf \(linf\)",
    }
    with pytest.raises(AttackViolation, match=words[shown]):
        perturb(Wrong(), tiny_encoder(), torch.full((1, 3, 8, 8), 0.5))


def test_distances_in_a_box_whose_sides_differ_are_in_units_of_them():
    ball, center = Ball("linf", (0.25, 0.5, 0.0)), torch.zeros(4, 3)
    moved = torch.tensor([[0.125, 0.0, 0.0], [-0.125, 0.5, 0.0], [0.0, 0.0, 1e-30], [0.0, 0.0, 0.0]])
    assert ball.distance(moved, center).tolist() == [0.5, 1.0, float("inf"), 0.0]
    assert (ball.tolerance, ball.extent) == (1.0, 0.5)
    beyond = torch.tensor([[1 / 3]], dtype=torch.float64).nextafter(torch.tensor(1.0, dtype=torch.float64))
    assert Ball("linf", (1 / 3,)).distance(beyond, torch.zeros(1, 1, dtype=torch.float64)).item() > 1  # by a last bit of float64

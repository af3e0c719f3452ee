"""The ball is exact in every float, and the small values that travel are what they say."""

import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rt_core import Attempt, Ball, Batch, MissingLabels, PlanError, Trace
from rt_core.baselines import Identity, UniformNoise
from rt_core.encoders import round_inward
from rt_core.testing import read_example
from rt_core.traces import Context, aims_of, ball_of, check_metric, check_whole, lengths, passes_of_attack, per_sample

DTYPES = [torch.float32, torch.float64]
radii = st.floats(0, 2, width=64) | st.sampled_from([0.0, 1e-9, 1e-6, 0.4 / 255, 1 / 255, 8 / 255, 0.05, 0.1, 1 / 3])
ranges = st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.1, 1 / 3), (-1 / 3, 2 / 3), (-2.1179, 2.64)])


def drawn(seed, dtype, bounds, batch=4, size=9):
    """Centers inside the bounds, and wild inputs around them."""
    generator = torch.Generator().manual_seed(seed)
    low, high = round_inward(bounds, torch.zeros(1, dtype=dtype))
    center = low + (high - low) * torch.rand(batch, size, generator=generator, dtype=dtype)
    center[0, :2] = torch.stack([low, high])
    wild = center + 3 * torch.randn(batch, size, generator=generator, dtype=dtype)
    return center.clamp(low, high), wild


def furthest(moved, center, order):
    return torch.linalg.vector_norm(moved.double() - center.double(), ord=order, dim=1)


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES), bounds=ranges, radius=radii)
@example(seed=0, dtype=torch.float32, bounds=(0.0, 1.0), radius=8 / 255)
def test_no_projected_value_is_outside_by_even_a_last_bit(seed, dtype, bounds, radius):
    center, wild = drawn(seed, dtype, bounds)
    moved = Ball("linf", radius).project(wild, center, bounds)

    assert moved.dtype == dtype
    assert (furthest(moved, center, torch.inf) <= radius).all()
    assert ((moved.double() >= bounds[0]) & (moved.double() <= bounds[1])).all()


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES), bounds=ranges, radius=radii)
def test_no_larger_box_would_do(seed, dtype, bounds, radius):
    center, _ = drawn(seed, dtype, bounds)
    low, high = Ball("linf", radius).box(center, bounds)

    assert (low <= center).all()
    assert (center <= high).all()
    for edge, way, bound in ((low, -torch.inf, bounds[0]), (high, torch.inf, bounds[1])):
        further = torch.nextafter(edge, torch.full_like(edge, way)).double()
        beyond_bound = further < bound if way < 0 else further > bound
        # float64 itself rounds the difference of two numbers, so there the last bit is not decided.
        assert (beyond_bound | ((further - center.double()).abs() >= radius)).all()


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES), bounds=ranges, radius=radii, size=st.sampled_from([1, 9, 3000]))
@example(seed=0, dtype=torch.float32, bounds=(0.0, 1.0), radius=1e-3, size=3000)
def test_l2_is_inside_to_a_millionth_however_small_the_ball(seed, dtype, bounds, radius, size):
    center, wild = drawn(seed, dtype, bounds, size=max(size, 2))
    ball = Ball("l2", radius)
    moved = ball.project(wild, center, bounds)

    assert (furthest(moved, center, 2) <= radius * (1 + 1e-6)).all()
    assert (ball.distance(moved, center) <= ball.tolerance).all()
    assert ((moved.double() >= bounds[0]) & (moved.double() <= bounds[1])).all()


def test_l2_of_many_pixels_is_inside_and_on_the_edge():
    generator = torch.Generator().manual_seed(0)
    center = torch.rand(2, 3, 224, 224, generator=generator) * 0.2 + 0.4
    moved = Ball("l2", 3.0).project(center + 0.1 * torch.randn(center.shape, generator=generator), center, (0.0, 1.0))

    reached = torch.linalg.vector_norm((moved.double() - center.double()).flatten(1), dim=1)
    assert (reached <= 3.0 * (1 + 1e-6)).all()
    assert (reached >= 3.0 * (1 - 1e-5)).all()
    for values in (center, torch.full_like(center, 0.0123)):  # of equal numbers, each sum rounds the same way
        exact = torch.linalg.vector_norm(values.double().flatten(1), dim=1)
        torch.testing.assert_close(lengths(values).double(), exact, rtol=1e-6, atol=0)


@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(DTYPES), norm=st.sampled_from(["linf", "l2"]), radius=radii)
def test_what_is_inside_already_stays_bit_for_bit(seed, dtype, norm, radius):
    center, wild = drawn(seed, dtype, (0.0, 1.0))
    ball = Ball(norm, radius)
    within = ball.project(center + (wild - center) * radius / 40, center, (0.0, 1.0))

    assert torch.equal(ball.project(center, center, (0.0, 1.0)), center)
    assert torch.equal(ball.project(within, center, (0.0, 1.0)), within)


def test_a_box_that_is_known_is_taken():
    center, wild = drawn(0, torch.float32, (0.0, 1.0))
    for norm in ("linf", "l2"):
        ball = Ball(norm, 0.1)
        box = ball.box(center, (0.0, 1.0))
        assert torch.equal(ball.project(wild, center, (0.0, 1.0), box=box), ball.project(wild, center, (0.0, 1.0)))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_of_any_kind_are_the_same_bounds(norm, dtype):
    center, wild = drawn(3, dtype, (0.0, 1.0), batch=2, size=3 * 4 * 4)
    center, wild = center.view(2, 3, 4, 4), wild.view(2, 3, 4, 4)
    ball = Ball(norm, 0.25)
    plain = ball.project(wild, center, (0.0, 1.0))
    for one in (
        int,
        np.float32,
        np.float64,
        torch.tensor,
        lambda bound: torch.full((3, 1, 1), bound),
        lambda bound: torch.full((3, 4, 4), bound),
    ):
        moved = ball.project(wild, center, (one(0), one(1)))
        assert moved.dtype == dtype
        assert torch.equal(moved, plain)


def test_bounds_of_each_channel_hold_in_their_channel():
    center = torch.full((2, 3, 4, 4), 0.5)
    bounds = torch.zeros(3, 1, 1), torch.tensor([0.6, 0.7, 0.8])[:, None, None]
    moved = Ball("linf", 0.25).project(center + 9, center, bounds)
    assert [channel.unique().tolist() for channel in moved.transpose(0, 1)] == [
        [value] for value in torch.tensor([0.6, 0.7, 0.75]).tolist()
    ]


def test_the_norm_is_that_of_a_whole_input():
    center = torch.zeros(2, 2, 3)
    moved = torch.full((2, 2, 3), 0.5)
    assert Ball("l2", 1).distance(moved, center).tolist() == [pytest.approx(0.5 * 6**0.5)] * 2
    assert Ball("linf", 1).distance(moved, center).tolist() == [0.5, 0.5]
    assert Ball("linf", 1).distance(moved, center).dtype == torch.float64


@pytest.mark.parametrize(
    ("norm", "radius", "words"),
    [
        ("l1", 1, "norm is 'l1'; expected 'linf' or 'l2'"),
        ("l2", -1, "radius is -1; a radius cannot be negative"),
        ("l2", float("nan"), "radius is nan; expected a finite"),
        ("linf", float("inf"), "radius is inf; expected a finite"),
        ("l2", "1", "radius is '1'; expected a plain number, such as 0.03, without quotes"),
    ],
)
def test_a_ball_that_makes_no_sense_is_refused(norm, radius, words):
    with pytest.raises(ValueError, match=words):
        Ball(norm, radius)


def test_a_ball_is_a_value():
    assert pickle.loads(pickle.dumps(Ball("l2", 0.5))) == Ball("l2", 0.5) != Ball("linf", 0.5)


def test_whole_numbers_may_be_numpy_s():
    assert [(whole, type(whole)) for whole in (check_whole("k", 3), check_whole("k", np.int32(3)))] == [(3, int)] * 2
    for wrong in (True, np.bool_(True), 3.0, "3", None, torch.tensor(3)):
        with pytest.raises(ValueError, match=r"k is .*; expected a whole number, such as 10"):
            check_whole("k", wrong)
    with pytest.raises(ValueError, match="k is 0; at least one is needed"):
        check_whole("k", np.int64(0))
    told = passes_of_attack(SimpleNamespace(passes=(np.int64(2), 1)))
    assert told == (2, 1)
    assert type(told[0]) is int
    assert [passes_of_attack(SimpleNamespace(passes=odd)) for odd in ((2.5, 1), (1, 2, 3), [1, 2], None)] == [None] * 4


def test_what_an_attack_does_not_say_has_a_default():
    class Bare:
        pass

    class Aiming:
        aims = ("target",)

    assert aims_of(Bare()) == ("away", "target")
    assert ball_of(Bare()) is None
    assert aims_of(Aiming()) == ("target",)
    assert ball_of(UniformNoise(epsilon=0.1)) == Ball("linf", 0.1)
    assert ball_of(Identity()) == Ball("linf", 0)


def test_the_anchor_is_what_the_divergence_is_measured_from():
    clean, targets = torch.zeros(2, 3), torch.ones(2, 3)
    away = Batch(ids=("a", "b"), inputs=clean, clean=clean, aim="away")
    toward = Batch(ids=("a", "b"), inputs=clean, clean=clean, aim="target", targets=targets)
    assert away.anchor is clean
    assert toward.anchor is targets


def test_labels_that_are_missing_come_with_the_remedy():
    context = read_example("clean").context
    assert context.labels.tolist() == [row % 3 for row in range(12)]
    bare = Context(encoder=context.encoder, divergence=context.divergence, random=context.random)
    with pytest.raises(MissingLabels, match="give a dataset with labels, or leave the metric out"):
        _ = bare.labels


def test_per_sample_values_multiply_their_own_sample():
    inputs = torch.ones(2, 3, 4, 5)
    assert (inputs * per_sample(torch.tensor([2.0, 3.0]), inputs)).flatten(1).unique(dim=1).tolist() == [[2.0], [3.0]]


def test_traces_and_attempts_start_with_nothing_to_say():
    attempt = Attempt(inputs=torch.zeros(1))
    trace = Trace(ids=("a",), aim="away", step=0, clean=torch.zeros(1, 2), adversarial=torch.zeros(1, 2), divergence=torch.zeros(1))
    assert (len(trace), attempt.marks, attempt.notes, attempt.history, trace.inputs, trace.partner) == (1, {}, {}, None, None, None)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [(-0.1, "epsilon is -0.1; a radius"), (float("nan"), "epsilon is nan; expected a finite"), ("a", "epsilon is 'a'")],
)
def test_epsilons_of_noise_are_refused_by_their_own_name(epsilon, words):
    with pytest.raises(ValueError, match=words):
        UniformNoise(epsilon=epsilon)


class Sound:
    """A metric, as far as what it says of itself goes."""

    aim, better, statistic, per, span = "target", "lower", "mean", "pair", (0, 1.0)


def saying(**attributes):
    return type("Changed", (Sound,), attributes)()


@pytest.mark.parametrize(
    "attributes", [{}, {"aim": "clean", "per": "sample"}, {"statistic": "median", "span": (-math.inf, math.inf)}, {"comparable": False}]
)
def test_a_metric_that_says_how_it_is_read_passes(attributes):
    check_metric(saying(**attributes), "mine")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"aim": "forward"}, "aim of metric 'mine' is 'forward'; expected 'away' or 'target' or 'clean', as a class attribute"),
        ({"better": "more"}, "better of metric 'mine' is 'more'; expected 'lower' or 'higher'"),
        ({"statistic": "sum"}, "statistic of metric 'mine' is 'sum'"),
        ({"per": "batch"}, "per of metric 'mine' is 'batch'"),
        ({"comparable": "no"}, "comparable of metric 'mine' is 'no'; expected True or False"),
        ({"span": (0, None)}, r"span of metric 'mine' is \(0, None\); expected two numbers.*or \(0, float\('inf'\)\)"),
        ({"span": (1, 0)}, r"span of metric 'mine' is \(1, 0\)"),
        ({"span": (0, 0)}, "the least and the largest"),
        ({"span": (0, math.nan)}, "the least and the largest"),
        ({"span": (0, 1, 2)}, "the least and the largest"),
        ({"span": 1}, "span of metric 'mine' is 1"),
        ({"span": (0, math.inf)}, "the interval of a mean needs a finite one: give it, or take 'median'"),
        ({"aim": "away"}, "per of metric 'mine' is 'pair', and its aim 'away'; pairs are measured under aim 'target'"),
    ],
)
def test_a_metric_that_says_what_none_can_is_refused(attributes, words):
    with pytest.raises(PlanError, match=words):
        check_metric(saying(**attributes), "mine")


@pytest.mark.parametrize("name", ["aim", "better", "statistic", "per", "span"])
def test_a_metric_that_does_not_say_how_it_is_read_is_refused(name):
    with pytest.raises(PlanError, match=f"{name} of metric 'mine' is missing; expected"):
        check_metric(saying(**{name: None}), "mine")
    with pytest.raises(PlanError, match="aim of metric 'bare' is missing"):
        check_metric(object(), "bare")

"""U-Square: a known optimum without gradients, squares that are squares, and streams that belong to the sample."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rt_core import Encoder, perturb
from rt_core.divergences import cosine, l2
from rt_core.testing import linear_encoder, parametrize_attack_checks, tiny_encoder, tiny_inputs
from rt_unsupervised_attacks.square import USquare, _pyramid


# Fewer queries find, for some sample, nothing nearer to its target than it was.
@parametrize_attack_checks(
    {
        "linf": USquare(epsilon=0.1, queries=25),
        "l2": USquare(epsilon=1.0, norm="l2", queries=25),
        "cosine": USquare(epsilon=0.1, queries=100, divergence="cosine", area=0.3),
    }
)
def test_the_contract(attack, check):
    check(attack)


@pytest.mark.parametrize("shape", [(3, 6, 6), (108,)], ids=["image", "vector"])
def test_random_search_comes_near_the_optimum_of_a_linear_encoder_without_a_gradient(shape):
    encoder, weight = linear_encoder(3, 6, 6)
    inputs = torch.full((4, *shape), 0.5)
    trace = perturb(USquare(epsilon=0.1, queries=1000), encoder, inputs)

    best = 0.1 * weight.abs().sum().double()
    assert (trace.divergence > 0.5 * best).all()
    assert (trace.divergence <= best * (1 + 1e-5)).all()
    assert trace.backwards == 0


def test_large_features_are_found_with_few_queries():
    weight = torch.ones(3, 8, 8)
    weight[:, :, 4:] = -1
    encoder = Encoder(lambda inputs: (inputs * weight).flatten(1).sum(1, keepdim=True), name="halves")
    trace = perturb(USquare(epsilon=0.1, queries=400), encoder, torch.full((4, 3, 8, 8), 0.5))
    assert (trace.divergence > 0.75 * 0.1 * 192).all()


def test_the_l2_search_comes_near_the_optimum():
    encoder, weight = linear_encoder(1, 8, 8)
    trace = perturb(USquare(epsilon=0.3, norm="l2", queries=1000), encoder, torch.full((4, 1, 8, 8), 0.5))

    best = 0.3 * torch.linalg.vector_norm(weight).double()
    assert (trace.divergence > 0.4 * best).all()
    assert (trace.divergence <= best * (1 + 1e-6)).all()


def test_where_gradients_are_rounded_away_the_search_still_moves():
    encoder = Encoder(lambda inputs: (20 * inputs.mean((2, 3))).round(), name="rounded")
    trace = perturb(USquare(epsilon=0.1, queries=50), encoder, torch.full((4, 3, 8, 8), 0.5))
    assert (trace.divergence >= 1).all()


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_more_queries_of_the_same_schedule_are_never_worse(norm, targeted):
    """What is kept is the best that was looked at: a copy of the search, seen from inside the encoder, says so."""
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    targets = inputs.flip(-1) if targeted else None
    seen = []
    watching = Encoder(lambda inputs: seen.append(encoder(inputs)) or seen[-1], name="watching")
    attack = USquare(epsilon=0.1 if norm == "linf" else 1.0, norm=norm, queries=60)
    trace = perturb(attack, watching, inputs, targets=targets)

    looked_at = torch.stack([l2(trace.clean if targets is None else trace.targets, one) for one in seen[-61:-1]])
    best = looked_at.amin(0) if targeted else looked_at.amax(0)
    torch.testing.assert_close(trace.divergence, best.double(), rtol=1e-5, atol=0)
    assert (looked_at[0] != best).all()


def test_linf_changes_are_squares_of_one_sign_at_the_ball_s_edge():
    encoder = Encoder(lambda inputs: inputs.flatten(1), name="pixels")
    seen = []
    watching = Encoder(lambda inputs: seen.append(inputs.clone()) or encoder(inputs), name="watching")
    inputs = torch.full((2, 3, 8, 8), 0.5)
    perturb(USquare(epsilon=0.25, queries=40), watching, inputs, divergence=lambda first, second: first[:, 0] * 0 + second.mean(1))

    stripes, *changed = seen[1:41]
    assert set((stripes - 0.5).unique().tolist()) == {-0.25, 0.25}
    assert torch.equal(stripes, stripes[:, :, :1].expand_as(stripes))  # vertical
    areas = []
    kept, value = stripes, stripes.flatten(1).mean(1)
    for tried in changed:
        assert set((tried - 0.5).unique().tolist()) <= {-0.25, 0.25}
        for new, old in zip(tried, kept, strict=True):
            rows, columns = (new != old).any(0).nonzero().T
            assert len(rows), "a query that changes nothing is wasted"
            box = new[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            assert (box == box[:, :1, :1]).all() or (new != old).any(0).sum() < box[0].numel()  # one color, or a part was so already
            areas.append(max(box.shape[1:]))
        better = tried.flatten(1).mean(1) > value
        kept = torch.where(better[:, None, None, None], tried, kept)
        value = torch.where(better, tried.flatten(1).mean(1), value)
    assert max(areas[:4]) >= 3 > 1 == max(areas[-6:])  # squares shrink


@pytest.mark.parametrize(("sides", "height"), [((5, 5), 2), ((4, 6), 2), ((1, 7), 3), ((3, 3), 1), ((1, 1), None)])
def test_a_pyramid_has_two_halves_of_opposite_sign_and_length_one(sides, height):
    pyramid = _pyramid(sides, torch.zeros(1, dtype=torch.float64))
    assert pyramid.shape == sides
    assert torch.linalg.vector_norm(pyramid) == pytest.approx(1, abs=1e-12)
    if height:
        first, second = (pyramid[:height], pyramid[height:]) if sides[0] > 1 else (pyramid[:, :height], pyramid[:, height:])
        assert (first > 0).all()
        assert (second < 0).all()
        assert torch.linalg.vector_norm(first) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_changes_nothing(norm, size):
    encoder, inputs, attack = tiny_encoder(), tiny_inputs(8), USquare(epsilon=0.1, norm=norm, queries=30)
    assert torch.equal(perturb(attack, encoder, inputs, batch=size).inputs, perturb(attack, encoder, inputs, batch=8).inputs)


def test_queries_are_all_that_it_costs():
    encoder = tiny_encoder()
    perturb(USquare(epsilon=0.1, queries=17), encoder, tiny_inputs(8), batch=3)
    assert (encoder.passes.forwards, encoder.passes.backwards) == (8 * (17 + 2), 0)
    assert USquare(queries=17).passes == (17, 0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_epsilon_0_returns_the_input_bit_for_bit(norm):
    inputs, encoder = tiny_inputs(4), tiny_encoder()
    trace = perturb(USquare(epsilon=0, norm=norm), encoder, inputs)
    assert torch.equal(trace.inputs, inputs)
    assert trace.inputs is not inputs
    assert trace.forwards == 4


def test_a_divergence_of_its_own_decides():
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    own = perturb(USquare(epsilon=0.1, queries=40, divergence="cosine"), encoder, inputs)
    plan = perturb(USquare(epsilon=0.1, queries=40), encoder, inputs, divergence="cosine")
    assert torch.equal(own.inputs, plan.inputs)
    torch.testing.assert_close(plan.divergence, cosine(plan.clean.double(), own.adversarial.double()))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_start_is_the_first_that_is_looked_at_and_a_mask_is_kept(norm):
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    start = encoder.clip(inputs + 0.4)
    trace = perturb(USquare(epsilon=0.01, norm=norm, queries=1), encoder, inputs, start=start)
    assert torch.equal(trace.inputs, start)

    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:5, 2:5] = True
    moved = perturb(USquare(epsilon=0.2, norm=norm, queries=60, mask=mask), encoder, inputs).inputs - inputs
    assert not moved[:, :, ~mask].any()
    assert moved[:, :, mask].any()


@given(
    seed=st.integers(0, 2**31),
    norm=st.sampled_from(["linf", "l2"]),
    epsilon=st.floats(0, 1),
    shape=st.sampled_from([(7,), (2, 3), (1, 2, 9), (3, 5, 4), (2, 3, 2, 2)]),
    bounds=st.sampled_from([(0, 1), (-1, 1), (0.1, 1 / 3 + 1)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_no_float_ever_leaves_the_ball_or_the_bounds(seed, norm, epsilon, shape, bounds, dtype):
    encoder = Encoder(lambda inputs: (3 * inputs.flatten(1)).sin(), name="waves", bounds=bounds)
    low, high = bounds
    inputs = encoder.clip(low + (high - low) * torch.rand(3, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype))
    moved = perturb(USquare(epsilon=epsilon, norm=norm, queries=6), encoder, inputs, seed=seed).inputs

    distance = torch.linalg.vector_norm((moved.double() - inputs.double()).flatten(1), ord=torch.inf if norm == "linf" else 2, dim=1)
    assert (distance <= epsilon * (1 if norm == "linf" else 1 + 1e-6)).all()
    assert moved.dtype == dtype
    assert ((moved.double() >= low) & (moved.double() <= high)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -1}, "epsilon is -1; a radius cannot be negative"),
        ({"epsilon": "8/255"}, "epsilon is '8/255'; expected a plain number"),
        ({"norm": "l1"}, "norm is 'l1'; expected 'linf' or 'l2'"),
        ({"queries": 0}, "queries is 0; at least one is needed"),
        ({"area": 0}, r"area is 0; it is a share of the image, so it must be in \(0, 1\]"),
        ({"area": 1.5}, "area is 1.5; it is a share"),
        ({"divergence": "l3"}, "no divergence is named 'l3'"),
    ],
)
def test_parameters_out_of_range_are_refused_with_the_remedy(options, words):
    with pytest.raises(ValueError, match=words):
        USquare(**options)

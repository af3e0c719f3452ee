"""Radii against their closed forms on a linear encoder, and what they cost and promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rt_core import Bank, Encoder, attack, perturb, represent
from rt_core.divergences import l2
from rt_core.randomness import SampleRandom
from rt_core.testing import linear_encoder, parametrize_metric_checks, tiny_encoder, tiny_inputs
from rt_core.traces import Context
from rt_unsupervised_attacks.radii import BreakawayRadius, QuantileRadius

BOTH = [BreakawayRadius, QuantileRadius]


def reading(encoder, inputs, attacked, *, rows=None):
    """A trace of clean inputs, a bank of all, and a context that gives the inputs."""
    bank = Bank(represent(encoder, inputs))
    ids = list(range(attacked) if rows is None else rows)
    trace = perturb(attack("identity"), encoder, inputs[ids], ids=ids, bank=bank)
    return trace, bank, Context(encoder=encoder, divergence=l2, random=SampleRandom.of(0, ids), read=lambda: inputs[ids])


def linear(dtype=torch.float32, batch=20):
    """A linear encoder of dim 3 and inputs near the middle of the bounds."""
    encoder, weight = linear_encoder(3, 4, 4, 3, dtype=dtype)
    inputs = 0.5 + 0.1 * (torch.rand(batch, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=dtype) - 0.5)
    return encoder, weight.flatten(1).double(), inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("norm", "limit"), [("linf", 0.2), ("l2", 1.0)])
def test_the_breakaway_radius_of_a_linear_encoder(norm, limit, dtype):
    encoder, weight, inputs = linear(dtype)
    trace, bank, context = reading(encoder, inputs, 8)
    found = BreakawayRadius(norm=norm, limit=limit)(trace, bank, context)

    # Another is nearer once u · v > |v|² / 2, u the move and v the way to it. A ball of radius 1 reaches u · v = reach.
    others = bank.take(range(20)).double() - trace.clean.double()[:, None]
    reach = (others.abs() @ weight.abs().sum(1)) if norm == "linf" else (others.square() @ weight.square().sum(1)).sqrt()
    exact = others.square().sum(2) / 2 / reach
    exact[torch.arange(8), torch.arange(8)] = torch.inf
    exact = exact.amin(1)
    assert found.dtype == torch.float64
    assert (found >= exact * (1 - 1e-4)).all()
    assert (found <= exact * 1.06).all()  # eight halvings of a factor of 4 in the radius


@pytest.mark.parametrize(("norm", "limit"), [("linf", 0.2), ("l2", 2.0)])
@pytest.mark.parametrize("quantile", [0.1, 0.5])
def test_the_quantile_radius_of_a_linear_encoder(quantile, norm, limit):
    encoder, weight, inputs = linear()
    trace, bank, context = reading(encoder, inputs, 5)
    found = QuantileRadius(norm=norm, limit=limit, quantile=quantile)(trace, bank, context)

    pairs = torch.pdist(bank.take(range(20)).double()).sort().values
    needed = pairs[int(torch.tensor(quantile * len(pairs)).ceil()) - 1]
    # A ball of radius 1 reaches every number's own optimum at once, or, for l2, goes along the steepest one.
    reach = weight.abs().sum(1).norm() if norm == "linf" else weight.square().sum(1).max().sqrt()
    exact = (needed / reach).expand(5)
    assert (found >= exact * (1 - 1e-4)).all()
    assert (found <= exact * 1.06).all()


def test_what_is_reported_was_enough_and_a_larger_limit_is_no_worse():
    encoder, inputs = tiny_encoder(), tiny_inputs(40)
    trace, bank, context = reading(encoder, inputs, 6)
    small, large = (BreakawayRadius(limit=limit, rounds=5)(trace, bank, context) for limit in (0.001, 0.2))

    assert small.isinf().all()
    assert ((large > 0.001) & (large <= 0.2)).all()


@pytest.mark.parametrize("cls", BOTH)
def test_a_sample_has_its_radius_in_any_company_and_order(cls):
    encoder, inputs = tiny_encoder(), tiny_inputs(40)
    metric = cls(limit=0.3, steps=5, rounds=4)
    whole = metric(*reading(encoder, inputs, 8))
    part = metric(*reading(encoder, inputs, 8, rows=[5, 2, 7]))

    assert torch.equal(part, whole[[5, 2, 7]])
    assert torch.equal(metric(*reading(encoder, inputs, 8)), whole)
    assert whole.isfinite().all()


def test_passes_are_rounds_times_steps_and_eight_more_for_the_straight_way():
    for cls, more in ((BreakawayRadius, 8), (QuantileRadius, 0)):
        encoder = tiny_encoder()
        given = reading(encoder, tiny_inputs(40), 4)
        before = encoder.passes.forwards
        cls(limit=0.2, steps=5, rounds=3)(*given)
        assert (encoder.passes.forwards - before, encoder.passes.backwards) == (4 * (15 + more), 4 * (15 + more))


@pytest.mark.parametrize("cls", BOTH)
def test_an_encoder_without_a_gradient_has_none_up_to_the_limit(cls):
    encoder = Encoder(lambda inputs: (4 * inputs.flatten(1)).round(), name="rounded")
    inputs = (tiny_inputs(12, (6,)) * 4).round() / 4
    assert cls(limit=0.05, steps=3, rounds=3)(*reading(encoder, inputs, 3)).isinf().all()


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("shape", [(5,), (2, 7)])
def test_inputs_that_are_no_images_and_other_divergences(cls, shape):
    encoder, inputs = Encoder(lambda inputs: (3 * inputs.flatten(1)).sin() + 2, name="waves"), tiny_inputs(20, shape)
    for divergence in ("cosine", "l1"):
        found = cls(limit=1.0, steps=8, rounds=4, divergence=divergence)(*reading(encoder, inputs, 4))
        assert found.shape == (4,)
        assert (found > 0).all()
        assert found.isfinite().any()


def test_the_inputs_are_left_alone_and_have_to_be_there():
    encoder, inputs = tiny_encoder(), tiny_inputs(20)
    trace, bank, context = reading(encoder, inputs, 4)
    before = trace.inputs.clone()
    with torch.no_grad():
        found = QuantileRadius(limit=0.2, steps=4, rounds=3)(trace, bank, context)
    assert torch.equal(trace.inputs, before)
    assert not found.requires_grad
    for cls in BOTH:
        with pytest.raises(ValueError, match="this metric looks at the inputs, and the context has none"):
            cls()(trace, bank, replace(context, read=None))


@parametrize_metric_checks([BreakawayRadius(limit=0.5, steps=4, rounds=3), QuantileRadius(limit=0.5, steps=4, rounds=3, quantile=0.2)])
def test_the_contract(metric, check):
    check(metric)


@pytest.mark.parametrize("cls", BOTH)
def test_a_radius_is_found_in_the_run_s_batches(cls):
    encoder, inputs = tiny_encoder(), tiny_inputs(20)
    trace, bank, context = reading(encoder, inputs, 10)
    metric = cls(limit=0.5, steps=4, rounds=3)
    whole = metric(trace, bank, context)
    seen = []
    watched = Encoder(lambda inputs: (seen.append(len(inputs)), encoder(inputs))[1], name="watched")
    assert torch.equal(metric(trace, bank, replace(context, encoder=watched, batch=3)), whole)
    assert max(seen) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "limit is 0; it is the largest radius that is tried, so it must be positive"),
        ({"limit": -1}, "limit is -1; a radius cannot be negative"),
        ({"norm": "l1"}, "norm is 'l1'; expected 'linf' or 'l2'"),
        ({"steps": 1}, "steps is 1; .* at least 2"),
        ({"rounds": 0}, "rounds is 0; at least one is needed"),
        ({"divergence": "l3"}, "no divergence is named 'l3'"),
    ],
)
@pytest.mark.parametrize("cls", BOTH)
def test_parameters_out_of_range_are_refused_with_the_remedy(cls, options, words):
    with pytest.raises(ValueError, match=words):
        cls(**options)


@pytest.mark.parametrize("quantile", [0, 1.1])
def test_a_quantile_out_of_range_is_refused(quantile):
    with pytest.raises(ValueError, match=rf"quantile is {quantile}; it is a share of pairs, so it must be in \(0, 1\]"):
        QuantileRadius(quantile=quantile)


@pytest.mark.parametrize(("norm", "limit"), [("linf", 0.2), ("l2", 1.0)])
@pytest.mark.parametrize("cls", BOTH)
def test_an_infinite_slope_at_one_pixel_does_not_hide_a_radius(cls, norm, limit):
    encoder = Encoder(lambda inputs: inputs.flatten(1).sqrt() @ WAY, name="root")
    inputs = tiny_inputs(20, (3, 4, 4)) * 0.1 + 0.4
    usual = cls(norm=norm, limit=limit)(*reading(encoder, inputs, 6))
    inputs[:, 0, 0, 0] = 0
    found = cls(norm=norm, limit=limit)(*reading(encoder, inputs, 6))
    assert found.isfinite().all()
    assert (found <= 1.3 * usual).all()


WAY = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cls", BOTH)
def test_whole_numbers_of_numpy_are_plain_ones(cls):
    assert cls(steps=np.int64(4), rounds=np.int16(3)) == cls(steps=4, rounds=3)
    assert type(cls(steps=np.int64(4)).steps) is int
    with pytest.raises(ValueError, match="rounds is True; expected a whole number, such as 10"):
        cls(rounds=True)

"""Divergences: known values, rows on their own, never negative, finite gradients where both meet."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rt_core.divergences import DIVERGENCES, cosine, describe_divergence, find_divergence, kl, l1, l2, linf, wasserstein2

NAMES = sorted(DIVERGENCES)
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([1e-6, 1.0, 1e4])


def pairs(seed, size=1.0, batch=5, dim=6):
    return size * torch.randn(2, batch, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_known_values():
    first, second = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, -2.0], [0.0, 0.0]])

    assert l1(first, second).tolist() == [7, 0]
    assert l2(first, second).tolist() == [5, 0]
    assert linf(first, second).tolist() == [4, 0]
    assert cosine(torch.tensor([[2.0, 0.0]] * 3), torch.tensor([[5.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])).tolist() == [0, 1, 2]


def test_kl_is_that_of_the_softmax_of_the_first_from_the_second():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]], dtype=torch.float64)
    others = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]], dtype=torch.float64)
    expected = [
        sum(p * math.log(p / q) for p, q in zip(*rows, strict=True)) for rows in zip(probabilities.tolist(), others.tolist(), strict=True)
    ]

    torch.testing.assert_close(kl(probabilities.log() + 3, others.log() - 2), torch.tensor(expected, dtype=torch.float64))
    assert not torch.allclose(kl(others.log(), probabilities.log()), torch.tensor(expected, dtype=torch.float64))


def test_wasserstein2_is_the_distance_of_diagonal_gaussians():
    # Means 1 and 4, deviations 1 and 5: sqrt(3² + 4²).
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 2 * math.log(5)]])
    torch.testing.assert_close(wasserstein2(first, second), torch.tensor([5.0]))
    torch.testing.assert_close(wasserstein2(first, second, squared=True), torch.tensor([25.0]))
    with pytest.raises(ValueError, match="3 columns cannot be halved"):
        wasserstein2(torch.zeros(1, 3), torch.zeros(1, 3))


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds, size=st.sampled_from([1e-6, 1.0, 100.0]))
def test_it_is_0_where_both_meet_and_never_negative(name, seed, size):
    first, second = pairs(seed, size)
    values = DIVERGENCES[name](first, second)

    assert (values >= 0).all()
    assert values.isfinite().all()
    assert (DIVERGENCES[name](first, first) <= 1e-15 * size).all()


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
def test_rows_do_not_see_each_other(name, seed):
    first, second = pairs(seed)
    values = DIVERGENCES[name](first, second)
    order = torch.tensor([3, 0, 4, 1, 2])

    torch.testing.assert_close(DIVERGENCES[name](first[order], second[order]), values[order], rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.cat([DIVERGENCES[name](*rows) for rows in zip(first.split(1), second.split(1), strict=True)]), values, rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_finite_where_both_meet(name, dtype):
    first = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    first[0] = 0
    moving = first.clone().requires_grad_()
    values = DIVERGENCES[name](first, moving)
    (slope,) = torch.autograd.grad(values.sum(), moving)

    assert values.dtype == dtype
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
def test_the_gradient_is_that_of_the_second_argument(name, seed):
    first, second = pairs(seed, batch=2)
    # No step of the check below may cross the kinks of the absolute value and of the maximum.
    assert torch.autograd.gradcheck(
        lambda moving: DIVERGENCES[name](first, moving), second.requires_grad_(), eps=1e-8, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("name", ["l1", "l2", "linf"])
@given(seed=seeds, size=sizes)
def test_norms_are_metrics(name, seed, size):
    first, second = pairs(seed, size)
    third, measure = pairs(seed + 1, size)[0], DIVERGENCES[name]

    assert torch.equal(measure(first, second), measure(second, first))
    assert (measure(first, third) <= (measure(first, second) + measure(second, third)) * (1 + 1e-12)).all()


@given(seed=seeds, scale=st.sampled_from([1e-3, 3.0, 1e5]))
def test_cosine_does_not_see_scale_and_agrees_with_torch(seed, scale):
    first, second = pairs(seed)
    torch.testing.assert_close(cosine(first, second), 1 - torch.cosine_similarity(first, second), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(cosine(first, scale * second), cosine(first, second), rtol=1e-9, atol=1e-12)


def test_cosine_is_accurate_where_both_nearly_meet():
    first = torch.tensor([[1.0, 0.0]])
    angle = 1e-5  # 1 - cos is 5e-11, which float32 cannot tell from 0 beside 1
    assert cosine(first, torch.tensor([[math.cos(angle), math.sin(angle)]])).item() == pytest.approx(angle**2 / 2, rel=1e-4)


def test_a_zero_vector_has_no_direction():
    zero, other = torch.zeros(2, 3), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).requires_grad_()
    values = cosine(zero, other)
    assert values.tolist() == [1, 1]
    assert not torch.autograd.grad(values.sum(), other)[0].any()


def test_divergences_are_found_by_name_or_are_themselves():
    def mine(first, second):
        return l2(first, second)

    assert find_divergence("linf") is linf
    assert find_divergence(mine) is mine
    with pytest.raises(ValueError, match=r"no divergence is named 'cosin'; did you mean 'cosine'\?"):
        find_divergence("cosin")
    with pytest.raises(ValueError, match="there are l1, l2, linf, cosine, kl, wasserstein2, or give a function"):
        find_divergence("euclid")


def test_descriptions_tell_settings_apart():
    assert describe_divergence("l2") == describe_divergence(l2) == "l2"
    assert describe_divergence(functools.partial(wasserstein2, squared=True)) == "wasserstein2(squared=True)"
    assert describe_divergence(functools.partial(wasserstein2, squared=True)) != describe_divergence(wasserstein2)

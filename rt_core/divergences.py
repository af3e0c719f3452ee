"""Divergences between representations: pure functions of two batches, the first fixed, the second moving."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from rt_core.naming import did_you_mean

__all__ = ["DIVERGENCES", "Divergence", "cosine", "describe_divergence", "find_divergence", "kl", "l1", "l2", "linf", "wasserstein2"]

Divergence = Callable[[Tensor, Tensor], Tensor]


def l1(first: Tensor, second: Tensor) -> Tensor:
    """Sum of absolute differences.

    first, second: [batch, dim] -> [batch]
    """
    return (second - first).abs().sum(dim=1)


def l2(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distance; its gradient where both meet is 0, not NaN.

    first, second: [batch, dim] -> [batch]
    """
    return torch.linalg.vector_norm(second - first, dim=1)


def linf(first: Tensor, second: Tensor) -> Tensor:
    """Largest absolute difference; where several coordinates tie, one of them carries the gradient.

    first, second: [batch, dim] -> [batch]
    """
    return (second - first).abs().max(dim=1).values


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """One minus the cosine similarity, computed as half the squared chord of the unit vectors: never negative, accurate where both meet.

    No metric: it does not see scale. A zero vector has no direction; its distance is 1 by convention and its gradient 0.

    first, second: [batch, dim] -> [batch], in [0, 2]
    """
    first_unit, first_zero = _unit(first)
    second_unit, second_zero = _unit(second)
    value = (second_unit - first_unit).square().sum(dim=1) / 2
    return torch.where(first_zero | second_zero, torch.ones_like(value), value)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) ‖ softmax(second)) in nats: the divergence of VAT and UAT-OT (paper, section A.1).

    first, second: [batch, dim], logits -> [batch]
    """
    fixed, moving = log_softmax(first, dim=1), log_softmax(second, dim=1)
    value = (fixed.exp() * (fixed - moving)).sum(dim=1)
    # Rounding can put it below 0, where clamp itself would let no gradient through.
    return value + (value.clamp(min=0) - value).detach()


def wasserstein2(first: Tensor, second: Tensor, *, squared: bool = False) -> Tensor:
    """2-Wasserstein distance of diagonal Gaussians given as halves [mean, log variance] (Cemgil et al. 2020; paper, section A.1).

    first, second: [batch, 2 * dim] -> [batch]

    Raises:
        ValueError: the two halves cannot be told apart because the number of columns is odd.
    """
    if first.shape[1] % 2:
        raise ValueError(f"wasserstein2 reads [mean, log variance] halves, and {first.shape[1]} columns cannot be halved")
    value = l2(_mean_and_deviation(first), _mean_and_deviation(second))
    return value.square() if squared else value


DIVERGENCES: dict[str, Divergence] = {function.__name__: function for function in (l1, l2, linf, cosine, kl, wasserstein2)}


def find_divergence(divergence: str | Divergence) -> Divergence:
    """Return the divergence of that name, or the callable itself.

    Raises:
        ValueError: no divergence has that name.
    """
    if not isinstance(divergence, str):
        return divergence
    if divergence not in DIVERGENCES:
        meant = did_you_mean(divergence, DIVERGENCES)
        raise ValueError(f"no divergence is named {divergence!r}{meant} (there are {', '.join(DIVERGENCES)}, or give a function)")
    return DIVERGENCES[divergence]


def describe_divergence(divergence: str | Divergence) -> str:
    """Return a divergence's name, as labels, manifests and stores write it."""
    if isinstance(divergence, str):
        return divergence
    if isinstance(divergence, functools.partial):
        arguments = [*map(repr, divergence.args), *(f"{key}={value!r}" for key, value in sorted(divergence.keywords.items()))]
        return f"{describe_divergence(divergence.func)}({', '.join(arguments)})"
    found: Any = getattr(divergence, "__name__", None)
    return found if found is not None else repr(divergence)


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    zero = norm == 0
    return rows / torch.where(zero, torch.ones_like(norm), norm), zero.squeeze(1)


def _mean_and_deviation(rows: Tensor) -> Tensor:
    mean, log_variance = rows.chunk(2, dim=1)
    return torch.cat([mean, (log_variance / 2).exp()], dim=1)

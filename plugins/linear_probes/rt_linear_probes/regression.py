"""Multinomial logistic regression: the one minimum there is, and stochastic steps toward it by the paper's schedule."""

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from rt_core.errors import RobustnessWarning

__all__ = ["descend", "logistic_regression", "probe_rate"]

_BLOCK = 8192  # rows whose logits are held at a time
_ITERATIONS = 2000


def logistic_regression(
    rows: Tensor, targets: Tensor, classes: int, *, penalty: float, start: Tensor | None = None, slope: float = 1e-7
) -> Tensor:
    """Return weight and bias that minimize mean cross-entropy + penalty/2 · ‖weight‖², until no slope is above ``slope``; the bias is free.

    Full-batch L-BFGS with a strong Wolfe search, in the rows' dtype, with a closed-form gradient. Where that finds no lower place before,
    or takes 2,000 steps, it ends there, with a warning that says which slope is left.

    rows: [n, dim]; targets: [n] in 0 … classes-1; start: where the search begins, or None for 0 -> [classes, dim + 1], the bias last
    """
    solution = rows.new_zeros(classes, rows.shape[1] + 1) if start is None else start.clone()
    search = torch.optim.LBFGS(
        [solution],
        max_iter=_ITERATIONS,
        max_eval=4 * _ITERATIONS,
        history_size=20,
        tolerance_grad=slope,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def evaluated() -> Tensor:
        weight = solution[:, :-1]
        loss, uphill = penalty / 2 * weight.square().sum(), torch.zeros_like(solution)
        uphill[:, :-1] = penalty * weight
        for some, wanted in zip(rows.split(_BLOCK), targets.split(_BLOCK), strict=True):
            logs = log_softmax(some @ weight.T + solution[:, -1], dim=1)
            loss = loss - logs.gather(1, wanted[:, None]).sum() / len(rows)
            pull = logs.exp()
            pull[torch.arange(len(some), device=some.device), wanted] -= 1
            uphill[:, :-1] += pull.T @ some / len(rows)
            uphill[:, -1] += pull.sum(0) / len(rows)
        solution.grad = uphill
        return loss

    with torch.no_grad():
        search.step(evaluated)
        evaluated()
    left = float(solution.grad.abs().max()) if solution.grad is not None else 0.0
    solution.grad = None
    if not left <= slope:
        warnings.warn(
            f"the regression (weight decay {penalty:g}, {len(rows)} rows of {rows.shape[1]} numbers) ended at a slope of {left:.2g}, above the {slope:g} "
            "at which it is done: what it found is near the minimum and not at it",
            RobustnessWarning,
            stacklevel=2,
        )
    return solution


def probe_rate(epoch: int, *, rate: float = 30.0, drops: Sequence[int] = (15, 20)) -> float:
    """Return the learning rate of an epoch, counted from 0: ``rate``, a tenth of it from each drop on (paper, section 7)."""
    return rate * 0.1 ** sum(epoch >= drop for drop in drops)


def descend(
    given: Callable[[int, Sequence[int]], Tensor],
    targets: Tensor,
    start: Tensor,
    orders: Sequence[np.ndarray],
    *,
    batch: int,
    rate: float,
    drops: Sequence[int],
) -> Iterator[Tensor]:
    """Yield weight and bias after each epoch of SGD on cross-entropy: momentum 0.9, no weight decay (paper, section 7).

    A last batch of one sample joins the one before it: at a rate of 30 a single sample is a jump.

    given: (epoch, positions) -> rows [batch, dim]; targets: [n]; start: [classes, dim + 1], the bias last; orders: positions, an epoch each
    """
    solution = start.clone().requires_grad_()
    steps = torch.optim.SGD([solution], lr=rate, momentum=0.9)
    for epoch, order in enumerate(orders):
        steps.param_groups[0]["lr"] = probe_rate(epoch, rate=rate, drops=drops)
        for chosen in _parts(order.tolist(), batch):
            rows = given(epoch, chosen)
            loss = cross_entropy(rows @ solution[:, :-1].T + solution[:, -1], targets[chosen])
            (solution.grad,) = torch.autograd.grad(loss, solution)
            steps.step()
        yield solution.detach().clone()


def _parts(order: Sequence[int], size: int) -> list[Sequence[int]]:
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [[*parts[-2], *parts[-1]]]
    return parts

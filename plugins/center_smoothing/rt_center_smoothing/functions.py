"""What a certificate is made of, as pure functions: the ball around most draws, the ranks, the levels and the votes."""

import math

import numpy as np
import torch
from scipy.special import bdtr, betaincinv, log_ndtr, ndtri
from torch import Tensor

from rt_center_smoothing.geometry import Geometry, geometry_of
from rt_core.divergences import Divergence
from rt_core.randomness import whole_of
from rt_core.shapes import check_shape
from rt_core.traces import check_number, check_radius, check_whole

__all__ = [
    "abstains",
    "center_draws_needed",
    "certify_draws_needed",
    "certify_rank",
    "deviation",
    "largest_input_radius",
    "minimum_enclosing_center",
    "quantile_level",
    "smallest_ball",
    "vote_draws_needed",
    "vote_radius",
]

RANKS = ("binomial", "hoeffding")
_BLOCK = 256  # points whose distances to all others are there at a time
_SLACK = 5e-16  # of squared distances from a matrix product, and the direct ones they stand for, for each dimension (see rt_core.neighbors)


def minimum_enclosing_center(
    points: Tensor, divergence: str | Divergence = "l2", *, candidates: int | None = None, parity: bool = False
) -> tuple[int, float]:
    """Return the point around which the smallest ball holds half of all points, itself included, and the ball's radius.

    The radius is the ceil(n / 2)-th smallest distance from the point, and at most twice that of the smallest ball around any place that
    holds half of them (Kumar & Goldstein 2021). Equal to brute force in float64, ties included: of equal points the first. All distances are
    never there at once. A point that is not finite is infinitely far from all, and no center while there is a finite one.

    Args:
        points: [n, dim].
        divergence: l1, l2 or linf, or cosine, whose ball is that of the unit vectors' chord.
        candidates: how many first points can be the center; all unless given. With 30 the factor 2 holds but for a probability of 2^-30, at
            30 / n of the cost.
        parity: the released script's radius, numpy's median, which is the mean of the two middle distances where n is even; of the factor 2
            nothing is proven then.

    Raises:
        ValueError: no points, no candidates, or a divergence that is no metric.
    """
    check_shape(points, "n dim", what="points")
    geometry = geometry_of(divergence)
    center, distance = smallest_ball(geometry, geometry.place(points), candidates=candidates, parity=parity)
    return center, geometry.divergence(distance)


def smallest_ball(geometry: Geometry, points: Tensor, *, candidates: int | None = None, parity: bool = False) -> tuple[int, float]:
    """Return what ``minimum_enclosing_center`` does, of points that are placed, with the radius as a distance."""
    if not (total := len(points)):
        raise ValueError("there are no points; expected at least one, of which one is the center")
    if candidates is not None and check_whole("candidates", candidates) > total:
        raise ValueError(f"candidates is {candidates}; there are {total} points, so it must be in 1 to {total}")
    rank = (total + 1) // 2
    points = points.masked_fill(~points.isfinite().all(1, keepdim=True), torch.nan)  # infinity would be near to itself
    middle = points.nanmedian(0).values.nan_to_num()  # a mean is wherever one far point is
    bounds = _LowerBounds(geometry.norm, points, middle)
    # The nearer to the middle, the smaller the ball: the best comes early, and spares the others.
    away = torch.linalg.vector_norm(points[:candidates] - middle, dim=1)
    order = away.argsort(stable=True)[: max(1, int((~away.isnan()).sum()))]  # NaN comes last
    known: dict[bytes, float] = {}
    best, center = math.inf, int(order[0])
    for rows in order.split(_BLOCK):
        least = bounds.of(rows, rank)
        for place in np.argsort(least, kind="stable"):
            if not least[place] <= bounds.goal(best):  # NaN, of a point without a direction, is no center
                break
            row = int(rows[place])
            content = points[row].numpy().tobytes()  # of equal points one is enough
            if content not in known:
                known[content] = _middle_distance(geometry.distances(points[row], points), rank, parity)
            best, center = min((best, center), (known[content], row))
    return center, best


def certify_rank(*, input_radius: float, sigma: float, delta: float, alpha: float, draws: int, rank: str = "binomial") -> int | None:
    """Return which of the sorted distances from a center, counted from 1, bounds the ball that the certificate needs; None if none does.

    Of ``draws`` fresh draws at x the distance of that rank is, with probability at least 1 - alpha, the radius of a ball that holds
    p* = Φ(Φ⁻¹(1/2 + delta) + input_radius / sigma) of them all, hence 1/2 + delta of the draws at every x' within ``input_radius`` (l2).

    rank: ``"binomial"`` is the smallest k with P[Bin(draws, p*) >= k] <= alpha, exact and never above ``"hoeffding"``, the rank at the level
    p* + √(ln(1 / alpha) / (2 draws)), which the method was published with.

    Raises:
        ValueError: a parameter that none can have.
    """
    quantile = _shifted(input_radius, sigma, delta)
    _check(alpha=alpha, draws=draws, rank=rank)
    if rank == "hoeffding":
        level = _hoeffding(quantile, alpha, draws)
        return math.ceil(level * draws) if level <= 1 else None
    outside = math.exp(log_ndtr(-quantile))
    # The most draws outside that are still unlikely to be so few, by bisection: bdtr grows with them.
    few, many = -1, draws
    while many - few > 1:
        between = (few + many) // 2
        few, many = (between, many) if bdtr(between, draws, outside) <= alpha else (few, between)
    return draws - few if few >= 0 else None


def quantile_level(*, input_radius: float, sigma: float, delta: float, alpha: float, draws: int, rank: str = "binomial") -> float | None:
    """Return the share of the sorted distances that the certified one is at; None if there is none. See ``certify_rank``."""
    found = certify_rank(input_radius=input_radius, sigma=sigma, delta=delta, alpha=alpha, draws=draws, rank=rank)
    if found is None:
        return None
    return found / draws if rank == "binomial" else _hoeffding(_shifted(input_radius, sigma, delta), alpha, draws)


def largest_input_radius(*, sigma: float, delta: float, alpha: float, draws: int, rank: str = "binomial") -> float:
    """Return the largest input radius for which ``certify_rank`` finds one; negative where there is none at all."""
    start = _shifted(0.0, sigma, delta)
    _check(alpha=alpha, draws=draws, rank=rank)
    if rank == "hoeffding":
        share = 1 - math.sqrt(math.log(1 / alpha) / (2 * draws))
        return sigma * (float(ndtri(share)) - start) if share > 0 else -math.inf
    return sigma * (-float(ndtri(-math.expm1(math.log(alpha) / draws))) - start)


def certify_draws_needed(*, input_radius: float, sigma: float, delta: float, alpha: float, rank: str = "binomial") -> float:
    """Return the fewest draws with which ``certify_rank`` finds one; infinity where float64 knows none."""
    quantile = _shifted(input_radius, sigma, delta)
    _check(alpha=alpha, rank=rank)
    outside = math.exp(log_ndtr(-quantile))
    if outside < 1e-150:
        return math.inf
    if rank == "hoeffding":
        return math.ceil(math.log(1 / alpha) / (2 * outside**2))
    return math.ceil(math.log(alpha) / float(log_ndtr(quantile)))


def deviation(*, alpha: float, draws: int) -> float:
    """Return by how much a share of so many draws may be off on one side, but for a probability of alpha / 2: √(ln(2 / alpha) / (2 draws))."""
    _check(alpha=alpha, draws=draws)
    return math.sqrt(math.log(2 / alpha) / (2 * draws))


def abstains(inside: int, draws: int, *, alpha: float, delta: float) -> bool:
    """Return whether a smoothed encoder does not answer: so few of the fresh draws are inside the center's ball that it may hold too little.

    It abstains iff max(Δ₁, 1/2 - (inside / draws - Δ₁)) > delta, where Δ₁ is the ``deviation``.
    """
    off = deviation(alpha=alpha, draws=draws)
    _check_votes("inside", inside, draws)
    return max(off, 0.5 - (inside / draws - off)) > delta


def center_draws_needed(*, alpha: float, delta: float) -> int:
    """Return the fewest center draws with which an input can be answered at all; near them, most are not."""
    _check(alpha=alpha, delta=delta)
    return math.ceil(math.log(2 / alpha) / (2 * delta**2))


def vote_radius(own_votes: int, draws: int, *, sigma: float, alpha: float) -> float:
    """Return the input radius (l2) within which most noisy copies stay nearest to the input's own anchor; NaN where none can be told.

    σ Φ⁻¹(p), where p is the lower Clopper-Pearson bound of the share of votes (Cohen et al. 2019). With probability at least 1 - alpha it
    holds at every x' within it. NaN where p is at most 1/2.

    Raises:
        ValueError: more votes than draws, or a parameter that none can have.
    """
    _check(alpha=alpha, draws=draws, sigma=sigma)
    _check_votes("own_votes", own_votes, draws)
    share = float(betaincinv(own_votes, draws - own_votes + 1, alpha)) if own_votes else 0.0
    return sigma * float(ndtri(share)) if share > 0.5 else math.nan


def vote_draws_needed(*, alpha: float) -> int:
    """Return the fewest draws of which unanimous ones tell that a majority is there."""
    _check(alpha=alpha)
    return math.floor(math.log(alpha) / math.log(0.5)) + 1


class _LowerBounds:
    """Bounds from below on the distances of some points from all, quick ones; of l2 on the squared distances, by a matrix product."""

    def __init__(self, norm: str, points: Tensor, middle: Tensor) -> None:
        self._norm, self._keep = norm, 1 - (points.shape[1] + 8) * _SLACK
        self._points = points - middle if norm == "l2" else points  # centered, or a product loses the digits of a distance
        self._squares = torch.linalg.vecdot(self._points, self._points) * self._keep

    def of(self, rows: Tensor, rank: int) -> np.ndarray:
        """Return the bound on the distance of a rank, counted from 1: [block] -> [block]"""
        if self._norm == "l2":
            bounds = torch.addmm(self._squares[None], self._points[rows], self._points.T, alpha=-2).numpy()
        else:
            bounds = torch.cdist(self._points[rows], self._points, p={"l1": 1.0, "linf": math.inf}[self._norm]).mul_(self._keep).numpy()
        bounds.partition(rank - 1, axis=1)
        return bounds[:, rank - 1] + self._squares[rows].numpy() if self._norm == "l2" else bounds[:, rank - 1]

    def goal(self, distance: float) -> float:
        """Return the bound that a distance of this size has at most."""
        return distance * distance if self._norm == "l2" else distance


def _check_votes(name: str, votes: int, draws: int) -> None:
    if (whole := whole_of(votes)) is None or not 0 <= whole <= draws:
        raise ValueError(f"{name} is {votes!r}; of {draws} draws it must be a whole number in 0 to {draws}")


def _middle_distance(distances: Tensor, rank: int, parity: bool) -> float:
    ordered = np.sort(distances.numpy())
    return float(ordered[rank - 1 : len(ordered) // 2 + 1].mean() if parity else ordered[rank - 1])


def _shifted(input_radius: float, sigma: float, delta: float) -> float:
    """Return the normal quantile of p*."""
    _check(sigma=sigma, delta=delta)
    check_radius("input_radius", input_radius)
    return float(ndtri(0.5 + delta)) + input_radius / sigma


def _hoeffding(quantile: float, alpha: float, draws: int) -> float:
    return math.exp(log_ndtr(quantile)) + math.sqrt(math.log(1 / alpha) / (2 * draws))


def _check(
    *, alpha: float | None = None, delta: float | None = None, draws: int | None = None, sigma: float | None = None, rank: str | None = None
) -> None:
    for name, value in (("alpha", alpha), ("delta", delta), ("sigma", sigma)):
        if value is not None:
            check_number(name, value)
    if draws is not None:
        check_whole("draws", draws)
    if alpha is not None and not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha:g}; it is a probability of error and must be in (0, 1)")
    if delta is not None and not 0 <= delta < 0.5:
        raise ValueError(f"delta is {delta:g}; 1/2 + delta is a share of draws, so it must be in [0, 0.5)")
    if sigma is not None and not sigma > 0:
        raise ValueError(f"sigma is {sigma:g}; the noise's standard deviation must be positive")
    if rank is not None and rank not in RANKS:
        raise ValueError(f"rank is {rank!r}; expected 'binomial' or 'hoeffding'")

"""Where representations lie so that their divergence is a distance: the metrics, and cosine through the chord of unit vectors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rt_core import divergences
from rt_core.divergences import describe_divergence, find_divergence
from rt_core.neighbors import pairwise

__all__ = ["Geometry", "geometry_of"]


@dataclass(frozen=True)
class Geometry:
    """A divergence as a distance: of the representations themselves, or, for cosine, of their directions.

    name: of the divergence; norm: of the differences of placed points.
    """

    name: str
    norm: str

    @property
    def directions(self) -> bool:
        """Return whether points are unit vectors."""
        return self.name == "cosine"

    def place(self, rows: Tensor) -> Tensor:
        """Return points in float64; NaN for a zero vector where directions are compared, since it has none.

        rows: [n, dim] -> same shape
        """
        points = rows.detach().cpu().double()
        return points / torch.linalg.vector_norm(points, dim=1, keepdim=True) if self.directions else points

    def distances(self, center: Tensor, points: Tensor) -> Tensor:
        """Return how far points are from a center, in direct form; a point without a direction, or with NaN, is infinitely far from all.

        center: [dim], points: [n, dim], placed -> [n]
        """
        return pairwise(self.norm, center[None], points)[0].nan_to_num(nan=torch.inf, posinf=torch.inf)

    def divergence(self, distance: float) -> float:
        """Return the divergence of two points that are so far apart: for cosine half the squared chord, which is at most 2."""
        return min(distance, 2.0) ** 2 / 2 if self.directions and distance < float("inf") else distance

    def keeps(self, center: Tensor, distance: float, own: Tensor, others: Tensor) -> Tensor:
        """Return which points stay no nearer than ``own`` wherever a representation goes within ``distance`` of a center.

        Of l2 exactly: the half-space of what is nearer to the other is at least that far away. Of cosine exactly too (in two numbers or
        more): at height h above that half-space, which begins at the origin, its nearest unit vector is a chord of √(2 - 2√(1 - h²)) away,
        which is more than h. Of other norms by the triangle inequality, which asks for more. A copy of ``own`` is never strictly nearer; what
        has no direction is not told apart, so it counts as in reach.

        center, own: [dim], others: [n, dim], placed -> [n], bool
        """
        if self.norm == "l2":
            toward = own - others
            length = torch.linalg.vector_norm(toward, dim=1)
            height = ((center - (own + others) / 2) * toward).sum(1) / length
            if self.directions:  # the chord, in a form that keeps its digits where it is small
                height = height * (2 / (1 + (1 - height.square()).clamp(min=0).sqrt())).sqrt()
            return (height >= distance) | (length == 0)
        spare = self.distances(center, others) - self.distances(center, own[None])
        return (spare >= 2 * distance) | (self.distances(own, others) == 0)


_GEOMETRIES: dict[divergences.Divergence, Geometry] = {
    divergences.l1: Geometry("l1", "l1"),
    divergences.l2: Geometry("l2", "l2"),
    divergences.linf: Geometry("linf", "linf"),
    divergences.cosine: Geometry("cosine", "l2"),
}


def geometry_of(divergence: str | divergences.Divergence) -> Geometry:
    """Return where a divergence is a distance.

    Raises:
        ValueError: it is nowhere known to be one, and the triangle inequality is what a certificate rests on.
    """
    found = _GEOMETRIES.get(find_divergence(divergence))
    if found is None:
        raise ValueError(
            f"divergence is {describe_divergence(divergence)}; center smoothing needs the triangle inequality and certifies l1, l2, linf, "
            "and cosine through the chord of unit vectors: say divergence='l2' (a bound on l2 bounds its square too)"
        )
    return found

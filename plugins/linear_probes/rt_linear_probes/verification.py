"""Verification by distance, as face and retrieval systems do it: the threshold at a false-accept rate, and attacks that pass or dodge it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.errors import ShapeError
from rt_core.neighbors import Bank
from rt_core.perturbing import measure
from rt_core.randomness import stream
from rt_core.traces import Context, Trace, check_number, check_whole

__all__ = ["DodgingRate", "VerificationRate", "VerificationThreshold", "impostor_distances", "verification_threshold"]

_ROWS = 256  # pairs at a time, whose representations then stay in the cache
_ROUNDING = 1e-9  # 0.29 * 100 is below 29


def verification_threshold(impostor_distances: Sequence[float] | np.ndarray | Tensor, *, far: float = 0.01) -> float:
    """Return the largest distance seen at which no more than a share ``far`` of impostor pairs are accepted, those at it included.

    impostor_distances: [pairs], between clean samples that are not the same

    Raises:
        ShapeError: a matrix, say.
        ValueError: far outside (0, 1), a distance that is NaN, too few pairs to tell (far · pairs below 1), or so many equal distances that
            no threshold accepts so few.
    """
    _check_far(far)
    given = impostor_distances.detach().cpu().double() if isinstance(impostor_distances, Tensor) else impostor_distances
    distances = np.asarray(given, dtype=np.float64)
    if distances.ndim != 1:
        raise ShapeError(
            f"impostor_distances has shape {list(distances.shape)}; expected [pairs], each pair of different samples once; of a square of "
            "distances give those above its diagonal: square[numpy.triu_indices(len(square), 1)]"
        )
    distances = np.sort(distances)
    if np.isnan(distances).any():
        raise ValueError("a distance between impostors is NaN; leave out representations that have none, or choose another divergence")
    threshold = _threshold(distances, far)
    if math.isnan(threshold):
        raise ValueError(
            f"more than a share {far:g} of the {len(distances):,} impostor pairs have the same distance {distances[0]:g}, the least of all: no "
            "threshold accepts so few; the encoder does not tell them apart, or the samples have duplicates"
        )
    return threshold


@torch.no_grad()
def impostor_distances(bank: Bank, divergence: str | Divergence = "l2", *, pairs: int = 100_000) -> Tensor:
    """Return the distances of pairs of different clean samples, of different labels where the bank has labels: [at most pairs], float64.

    All unordered pairs where there are no more than ``pairs``, else that many random ones, the same for the same size of the bank; of these,
    pairs of one label are left out. Computed directly.

    Raises:
        ValueError: the distance of a pair is NaN.
    """
    size, function, pairs = len(bank), find_divergence(divergence), check_whole("pairs", pairs)
    if size * (size - 1) // 2 <= pairs:
        first, second = torch.triu_indices(size, size, 1)
    else:
        random = stream(0, "impostor pairs")
        drawn, other = (torch.from_numpy(random.integers(end, size=pairs)) for end in (size, size - 1))
        other = other + (other >= drawn)
        first, second = torch.minimum(drawn, other), torch.maximum(drawn, other)
    if bank.labels is not None:
        labels = torch.tensor(bank.labels)
        different = labels[first] != labels[second]
        first, second = first[different], second[different]
    parts = [
        measure(function, bank.take(some), bank.take(more)) for some, more in zip(first.split(_ROWS), second.split(_ROWS), strict=True)
    ]
    distances = torch.cat(parts) if len(first) else torch.empty(0, dtype=torch.float64)
    if distances.isnan().any():
        raise ValueError("the distance between some representations of the bank is NaN; choose another divergence")
    return distances


@dataclass(frozen=True, kw_only=True)
class _Verification:
    """What the measures share. Abstract: use one of those below."""

    far: float = 0.01
    divergence: str | Divergence | None = None
    pairs: int = 100_000
    per: ClassVar[str] = "sample"

    def __post_init__(self) -> None:
        _check_far(self.far)
        check_whole("pairs", self.pairs)
        if self.divergence is not None:
            find_divergence(self.divergence)

    def _measure(self, context: Context) -> Divergence:
        return context.divergence if self.divergence is None else find_divergence(self.divergence)

    def _impostors(self, bank: Bank, context: Context) -> np.ndarray:
        """Return the distances of impostor pairs, in order; once for all attacks on a block."""
        key = ("impostor distances", self.divergence, self.pairs)
        if key not in context.shared:
            context.shared[key] = np.sort(impostor_distances(bank, self._measure(context), pairs=self.pairs).numpy())
        bank.reads += 1  # who takes what is shared rests on the bank as well
        return context.shared[key]

    def _threshold(self, bank: Bank, context: Context) -> float:
        """Return the threshold, NaN where equal distances leave none.

        Raises:
            ValueError: too few pairs.
        """
        return _threshold(self._impostors(bank, context), self.far)


@dataclass(frozen=True, kw_only=True)
class VerificationRate(_Verification):
    """Whether a sample that was attacked toward another passes for it: its distance to the other's clean representation is at most the
    threshold at which a share ``far`` of clean impostor pairs are accepted.

    Pairs that are accepted before the attack, and where there are labels those of one label, do not count. The threshold comes from the bank
    (see ``impostor_distances``): from pairs of different labels, or from all where there are none. ``verification_threshold`` reports it.

    Args:
        far: the false-accept rate.
        divergence: the distance; None takes the plan's.
        pairs: how many impostor pairs at most.

    Raises:
        ValueError: an option out of its range; in use, fewer than 1 / far impostor pairs.
    """

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "rate"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1; NaN where the pair does not count, or no threshold accepts so few"""
        threshold = self._threshold(bank, context)
        assert trace.targets is not None, "a trace of aim target holds targets"
        before, after = (measure(self._measure(context), trace.targets, one) for one in (trace.clean, trace.adversarial))
        counts = before > threshold
        if context.known_labels is not None:
            counts &= context.labels != context.labels[trace.partner]
        return torch.where(counts, (after <= threshold).double(), torch.nan)


@dataclass(frozen=True, kw_only=True)
class DodgingRate(_Verification):
    """Whether an attacked sample is no longer accepted as itself: its distance to its own clean representation is above the threshold at
    which a share ``far`` of clean impostor pairs are accepted. Options and errors as for ``VerificationRate``.
    """

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "rate"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1; NaN where no threshold accepts so few"""
        threshold = self._threshold(bank, context)
        moved = measure(self._measure(context), trace.clean, trace.adversarial)
        return torch.full_like(moved, torch.nan) if math.isnan(threshold) else (moved > threshold).double()


@dataclass(frozen=True, kw_only=True)
class VerificationThreshold(_Verification):
    """The threshold of the two rates, and in the part ``pairs`` from how many impostor pairs it comes: the same for every sample.

    Not comparable between encoders. Options and errors as for ``VerificationRate``.
    """

    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, math.inf)
    comparable: ClassVar[bool] = False

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> dict[str, Tensor]:
        """-> the threshold, NaN where none accepts so few, and pairs: [n]"""
        values = {"": self._threshold(bank, context), "pairs": float(len(self._impostors(bank, context)))}
        return {name: torch.full((len(trace),), value, dtype=torch.float64) for name, value in values.items()}


def _check_far(far: float) -> None:
    check_number("far", far)
    if not 0 < far < 1:
        raise ValueError(f"far is {far:g}; a false-accept rate lies in (0, 1): write 0.01, not 1, for one percent")


def _threshold(distances: np.ndarray, far: float) -> float:
    """Return the threshold for ascending distances, NaN where there is none."""
    allowed = min(math.floor(far * len(distances) + _ROUNDING), len(distances) - 1)
    if allowed < 1:
        raise ValueError(
            f"far is {far:g} and there are {len(distances):,} impostor pairs; to accept one of them takes at least {math.ceil(1 / far - _ROUNDING):,}: "
            "give a larger bank (and pairs), or a larger far"
        )
    below = distances[:allowed]
    below = below[below < distances[allowed]]  # of equal distances all would be accepted
    return float(below[-1]) if len(below) else math.nan

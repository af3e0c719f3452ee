"""The measures as metrics: what each reads off a trace, and how its numbers are read."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rt_core import divergences
from rt_core.neighbors import Bank
from rt_core.traces import Context, Trace
from rt_label_free_metrics import functions

__all__ = [
    "AdversarialMargin",
    "BreakawayRisk",
    "CosineSimilarity",
    "Divergence",
    "NearestNeighborAccuracy",
    "OverlapRisk",
    "RelativeQuantile",
    "TargetCosineSimilarity",
    "TargetDivergence",
    "UniversalQuantile",
]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What the measures share: ``divergence`` names their own; None takes the plan's. Abstract: use one of those below."""

    divergence: str | divergences.Divergence | None = None
    per: ClassVar[str] = "sample"

    def __post_init__(self) -> None:
        if self.divergence is not None:
            divergences.find_divergence(self.divergence)

    def _measure(self, context: Context) -> divergences.Divergence:
        return context.divergence if self.divergence is None else divergences.find_divergence(self.divergence)


@dataclass(frozen=True, kw_only=True)
class Divergence(_Measured):
    """How far the attack moved the representation. Not comparable between encoders: each has a scale of its own."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, math.inf)
    comparable: ClassVar[bool] = False

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n]"""
        return self._measure(context)(trace.clean.double(), trace.adversarial.double())


@dataclass(frozen=True, kw_only=True)
class CosineSimilarity:
    """Cosine similarity of the attacked and the clean representation."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (-1, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n]"""
        return 1 - divergences.cosine(trace.clean.double(), trace.adversarial.double())


@dataclass(frozen=True, kw_only=True)
class TargetDivergence(_Measured):
    """How far the attacked representation still is from the target's. Not comparable between encoders."""

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, math.inf)
    comparable: ClassVar[bool] = False

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n]"""
        return self._measure(context)(trace.targets.double(), trace.adversarial.double())


@dataclass(frozen=True, kw_only=True)
class TargetCosineSimilarity:
    """Cosine similarity of the attacked and the target's representation."""

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (-1, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n]"""
        return 1 - divergences.cosine(trace.targets.double(), trace.adversarial.double())


@dataclass(frozen=True, kw_only=True)
class UniversalQuantile(_Measured):
    """Share of pairs of clean samples that are at most as far apart as the attack moved a sample: comparable between encoders."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], in [0, 1]"""
        measure = self._measure(context)
        return functions.universal_quantile(measure(trace.clean.double(), trace.adversarial.double()), bank, measure)


@dataclass(frozen=True, kw_only=True)
class RelativeQuantile(_Measured):
    """What is left of the distance to the target: 1 if the attack came no nearer, 0 if it arrived."""

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, math.inf)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n]"""
        return functions.relative_quantile(trace.adversarial, trace.clean, trace.targets, self._measure(context))


@dataclass(frozen=True, kw_only=True)
class BreakawayRisk(_Measured):
    """Share of other samples that are strictly nearer to the attacked representation than its own clean one."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "mean"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], in [0, 1]"""
        return functions.breakaway_risk(trace.adversarial, trace.clean, bank, bank.rows(trace.ids), self._measure(context))


@dataclass(frozen=True, kw_only=True)
class NearestNeighborAccuracy(_Measured):
    """Whether the nearest clean neighbor of the attacked representation is still its own. Depends on the size of the bank."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "rate"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1"""
        return functions.nearest_neighbor_accuracy(trace.adversarial, trace.clean, bank, bank.rows(trace.ids), self._measure(context))


@dataclass(frozen=True, kw_only=True)
class OverlapRisk(_Measured):
    """Whether two samples, each attacked toward the other, change places as seen from the first."""

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "rate"
    per: ClassVar[str] = "pair"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n / 2], 0 or 1"""
        return functions.overlap_risk(*_sides(trace), self._measure(context))


@dataclass(frozen=True, kw_only=True)
class AdversarialMargin(_Measured):
    """How far two samples, each attacked toward the other, stay apart as seen from the first, in units of their clean distance."""

    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "pair"
    span: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n / 2]"""
        return functions.adversarial_margin(*_sides(trace), self._measure(context))


def _sides(trace: Trace) -> tuple[Any, ...]:
    """Return both clean and both attacked representations of each pair, first sides first; neighbours in a trace are a pair."""
    second = trace.partner[::2]
    return trace.clean[::2], trace.clean[second], trace.adversarial[::2], trace.adversarial[second]

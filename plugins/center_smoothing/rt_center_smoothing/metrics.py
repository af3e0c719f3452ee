"""The certificates as metrics of clean samples: what each reads off the draws that all of them share, and how its numbers are read."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rt_center_smoothing import functions
from rt_center_smoothing.geometry import Geometry, geometry_of
from rt_center_smoothing.smoothing import ABSTAINED, IMPOSSIBLE, OUTPUT_FACTOR, CenteredSettings, Measured, NoiseSettings, OutputSettings
from rt_core.divergences import Divergence, find_divergence
from rt_core.neighbors import Bank, pairwise
from rt_core.smoothing import Draws, check_sigma
from rt_core.traces import Context, Rows, Trace, check_radius

__all__ = [
    "CertifiedBreakaway",
    "CertifiedHalfMassRadius",
    "CertifiedNeighborRadius",
    "CertifiedOutputRadius",
    "CertifiedQuantile",
    "HalfMassRadius",
]


@dataclass(frozen=True, kw_only=True)
class _Centered(CenteredSettings):
    """What the metrics around a center share: ``divergence`` names their own; None takes the plan's. Abstract: use one of those below."""

    divergence: str | Divergence | None = None
    aim: ClassVar[str] = "clean"
    alone: ClassVar[bool] = True
    per: ClassVar[str] = "sample"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence is not None:
            geometry_of(self.divergence)

    def _geometry(self, context: Context) -> Geometry:
        return geometry_of(context.divergence if self.divergence is None else self.divergence)

    def _measured(self, context: Context) -> Measured:
        """Return what is drawn for a sample, which metrics share that draw and choose the same."""
        check_sigma(self.sigma, context.encoder)
        geometry = self._geometry(context)
        chosen = (self.center_draws, self.certify_draws, self.candidates, self.parity)
        key = ("center smoothing", geometry, float(self.sigma), self.clip, chosen)
        if key not in context.shared:
            context.shared[key] = Measured(Draws.of(context, sigma=self.sigma, clip=self.clip), geometry, self)
        return context.shared[key]


@dataclass(frozen=True, kw_only=True)
class HalfMassRadius(_Centered):
    """Radius around a sample's center that holds half of its noisy representations, bounded from above.

    True with probability 1 - ``alpha_certify``, at the sample itself; of no input nearby. Not comparable between encoders.
    """

    span: ClassVar[tuple[float, float]] = (0, math.inf)
    comparable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_reach(input_radius=self._around, delta=0.0)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Rows:
        """-> [1]"""
        geometry, measured = self._geometry(context), self._measured(context)
        radius = measured.radius(self, input_radius=self._around, delta=0.0)
        return _row(geometry.divergence(radius)) if math.isfinite(radius) else _row(math.nan, IMPOSSIBLE)

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and backward passes a sample."""
        return super().passes if self.level(input_radius=self._around, delta=0.0)[0] is not None else (0, 0)

    @property
    def _around(self) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class CertifiedHalfMassRadius(HalfMassRadius):
    """Radius around a sample's center that holds half of the noisy representations of every input within ``input_radius`` (l2).

    True with probability 1 - ``alpha_certify``, of all these inputs at once. Never abstains. Not comparable between encoders.
    """

    input_radius: float

    def __post_init__(self) -> None:
        check_radius("input_radius", self.input_radius)
        super().__post_init__()

    @property
    def _around(self) -> float:
        return self.input_radius

    def _reduced(self) -> dict[str, Any]:
        return super()._reduced() | {"input_radius": 0.0}


@dataclass(frozen=True, kw_only=True)
class CertifiedOutputRadius(_Centered, OutputSettings):
    """How far the smoothed representation moves at most for an input within ``input_radius`` (l2); ``CenterSmoothing`` says what that means.

    Not comparable between encoders.
    """

    span: ClassVar[tuple[float, float]] = (0, math.inf)
    comparable: ClassVar[bool] = False

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Rows:
        """-> [1]"""
        distance, why = self._distance(context)
        return _row(self._geometry(context).divergence(distance), why)

    def _distance(self, context: Context) -> tuple[float, str]:
        measured = self._measured(context)
        if why := measured.reason(self):
            return math.nan, why
        return OUTPUT_FACTOR * measured.radius(self, input_radius=self.input_radius, delta=self.delta), ""


@dataclass(frozen=True, kw_only=True)
class CertifiedQuantile(CertifiedOutputRadius):
    """Share of pairs of clean samples that are at most as far apart as the smoothed representation can move: comparable between encoders."""

    span: ClassVar[tuple[float, float]] = (0, 1)
    comparable: ClassVar[bool] = True

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Rows:
        """-> [1], in [0, 1]"""
        distance, why = self._distance(context)
        if why:
            return _row(math.nan, why)
        geometry = self._geometry(context)
        return _row(bank.pair_quantiles(torch.tensor([geometry.divergence(distance)], dtype=torch.float64), geometry.name).item())


@dataclass(frozen=True, kw_only=True)
class CertifiedBreakaway(CertifiedOutputRadius):
    """Share of other samples that can become strictly nearer to the smoothed representation than the sample's own clean one.

    0: none can, whatever the input within ``input_radius`` (l2), so its nearest neighbor is certified by its center; for most encoders that asks for
    more than this method gives, see ``CertifiedNeighborRadius``. For l2 and cosine exact about the ball that is certified, else an upper bound.
    """

    statistic: ClassVar[str] = "mean"
    span: ClassVar[tuple[float, float]] = (0, 1)
    comparable: ClassVar[bool] = True

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Rows:
        """-> [1], in [0, 1]"""
        distance, why = self._distance(context)
        if why:
            return _row(math.nan, why)
        geometry, row = self._geometry(context), int(bank.rows(trace.ids)[0])
        center, own = (geometry.place(one)[0] for one in (self._measured(context).center[None], trace.clean))
        kept = torch.cat([geometry.keeps(center, distance, own, geometry.place(block)) for _, block in bank.blocks()])
        others = len(bank) - (row >= 0)
        if row >= 0:
            kept[row] = True
        return _row(int((~kept).sum()) / others)


@dataclass(frozen=True, kw_only=True)
class CertifiedNeighborRadius(NoiseSettings):
    """Input radius (l2) within which most noisy copies stay nearest to the sample's own clean representation: the vote certificate.

    Randomized smoothing (Cohen et al. 2019) of the encoder as a classifier of anchors, the bank's samples: no label is read. With probability
    1 - ``alpha_certify``, at every input within the radius more than half of the noisy copies are strictly nearer to the sample's own
    clean representation than to any other sample's; a tie counts against, and so does a copy whose representation is not finite. The mean is
    the average certified radius over all samples, 0 where none is certified. Depends on how many others there are. Holds for any divergence.
    Each draw is compared with the whole bank, which a run's announced time does not count: about 0.5 ms a draw on a CPU core for 10,000
    samples of 512 numbers, growing with both.
    """

    divergence: str | Divergence | None = None
    aim: ClassVar[str] = "clean"
    alone: ClassVar[bool] = True
    per: ClassVar[str] = "sample"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence is not None:
            find_divergence(self.divergence)

    @property
    def span(self) -> tuple[float, float]:
        """Return 0 and the radius that unanimous votes give."""
        return 0.0, functions.vote_radius(self.certify_draws, self.certify_draws, sigma=self.sigma, alpha=self.alpha_certify)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Rows:
        """-> [1], in input units"""
        check_sigma(self.sigma, context.encoder)
        measure = find_divergence(context.divergence if self.divergence is None else self.divergence)
        draws, row, votes = Draws.of(context, sigma=self.sigma, clip=self.clip), bank.rows(trace.ids), 0
        for chunk in draws.chunks("certify", self.certify_draws):
            known = chunk[chunk.isfinite().all(1)]  # the others are nowhere near
            nearest, _ = bank.nearest(known, 1, row.expand(len(known)), measure)
            own = pairwise(measure, trace.clean.double(), known.double())[0]
            votes += int((own < nearest[:, 0]).sum())
        radius = functions.vote_radius(votes, self.certify_draws, sigma=self.sigma, alpha=self.alpha_certify)
        return _row(radius, ABSTAINED if math.isnan(radius) else "")


def _row(value: float, why: str = "") -> Rows:
    return Rows(values=torch.tensor([value], dtype=torch.float64), notes=[why])

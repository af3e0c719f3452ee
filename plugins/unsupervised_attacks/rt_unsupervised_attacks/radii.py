"""Radii as measures: how small a change of the input is enough, found by bisection with attacks."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder
from rt_core.neighbors import Bank
from rt_core.perturbing import moved_to
from rt_core.randomness import SampleRandom
from rt_core.traces import Ball, Batch, Context, Trace, check_number, check_radius, lengths, per_sample
from rt_unsupervised_attacks.apgd import Objective, climb, direction, look, margin_near, nearest_others, squared_margin
from rt_unsupervised_attacks.gradient import _in_l2_ball, _set_whole

__all__ = ["BreakawayRadius", "QuantileRadius"]

_LEAP = 4  # by how much a radius shrinks from one success to the next try, as long as none has failed
_STRAIGHT = 8  # others to which the straight way is looked at


@dataclass(frozen=True, kw_only=True)
class _Radius(ABC):
    """The smallest change that is enough for something. Abstract: use BreakawayRadius or QuantileRadius.

    Each of ``rounds`` climbs ``steps`` gradients far (as U-APGD does) in a ball whose radius is each sample's own: ``limit`` until it has
    succeeded, then smaller by 4 until it fails, then the geometric mean of the largest that failed and the smallest that succeeded. A climb
    starts from the change that succeeded last, shrunk into the new ball. What is reported is the measured size of the smallest change that
    succeeded: an upper bound of the true radius, as attacks give. Costs ``rounds`` · ``steps`` forward and backward passes a sample.
    """

    limit: float = 0.1
    norm: str = "linf"
    steps: int = 20
    rounds: int = 10
    divergence: str | Divergence | None = None
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, math.inf)

    def __post_init__(self) -> None:
        check_radius("limit", self.limit)
        if self.limit == 0:
            raise ValueError("limit is 0; it is the largest radius that is tried, so it must be positive")
        Ball(self.norm, self.limit)
        _set_whole(self, "steps", "rounds")
        if self.steps < 2:
            raise ValueError(f"steps is {self.steps}; the first of them looks at the start alone, so at least 2 are needed")
        if self.divergence is not None:
            find_divergence(self.divergence)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], in the units of the encoder's bounds; infinity where nothing up to ``limit`` was enough

        Raises:
            ValueError: the context has no inputs.
        """
        divergence = context.divergence if self.divergence is None else find_divergence(self.divergence)
        encoder, own = context.encoder, bank.rows(trace.ids)
        with torch.inference_mode(False), torch.enable_grad(), encoder.in_use():
            inputs, found = context.inputs, []
            device = encoder.where() or inputs.device
            for rows in torch.arange(len(trace)).split(context.batch):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                moved, clean = (moved_to(device, values[part]) for values in (inputs, trace.clean))
                batch = Batch(ids=trace.ids[part], inputs=moved, clean=clean, aim="away", bank=bank, own=own[part])
                found.append(_search(self, encoder, batch, divergence, context.random.select(part)))
        return torch.cat(found)

    def straight(self, encoder: Encoder, batch: Batch, divergence: Divergence) -> Tensor | None:
        """Return a change as large as ``limit`` that promises to be enough soonest, [batch, *input], or None."""
        return None

    @abstractmethod
    def climbed(self, batch: Batch, divergence: Divergence) -> Objective:
        """Return what is made large, [batch, dim] -> [batch]."""

    @abstractmethod
    def reached(self, representations: Tensor, batch: Batch, divergence: Divergence) -> Tensor:
        """Return for which representations it is enough: [batch, dim] -> [batch], bool, on the CPU, exact."""


@dataclass(frozen=True, kw_only=True)
class BreakawayRadius(_Radius):
    """The smallest change found after which another sample is strictly nearer to the representation than its own clean one.

    Depends on how many others there are. Climbs d(own clean, x̂)² − min over others d(r_k, x̂)², over the 64 others that are nearest to the
    clean representation; whether one of the whole bank is nearer is decided exactly. Every other climb starts on the straight way to one of
    the 8 nearest: the one that would be reached with the smallest change if the encoder were linear. That takes 8 more gradients.

    Args:
        limit: the largest radius that is tried, in the bounds' units. norm: ``"linf"`` or ``"l2"``, of the input.
        steps, rounds: gradients in a climb, and climbs.
        divergence: what is nearer, by name or a function; None is the plan's.

    Raises:
        ValueError: a parameter out of its range.
    """

    def straight(self, encoder: Encoder, batch: Batch, divergence: Divergence) -> Tensor | None:
        assert batch.bank is not None, "a metric always has a bank"
        count = min(_STRAIGHT, max(len(batch.bank) - 1, 1))
        best, change = torch.full((len(batch.ids),), math.inf).to(batch.clean), torch.zeros_like(batch.inputs)
        for other in nearest_others(batch.bank, batch, batch.clean, count, divergence).unbind(1):
            value, _, slope = look(encoder, squared_margin(divergence, batch.clean, other), batch.inputs, None)
            needed = -value / (slope.flatten(1).abs().sum(1) if self.norm == "linf" else lengths(slope))
            sooner = (needed > 0) & (needed < best)  # 0 is a duplicate, which never gets nearer; NaN has no gradient
            change = torch.where(per_sample(sooner, slope), self.limit * direction(slope, self.norm), change)
            best = torch.where(sooner, needed, best)
        return change

    def climbed(self, batch: Batch, divergence: Divergence) -> Objective:
        assert batch.bank is not None, "a metric always has a bank"
        return margin_near(batch.bank, batch, divergence, squared=True)(batch.clean)

    def reached(self, representations: Tensor, batch: Batch, divergence: Divergence) -> Tensor:
        assert batch.bank is not None, "a metric always has a bank"
        assert batch.own is not None, "a metric knows its samples' rows"
        return batch.bank.closer_counts(representations.cpu(), batch.clean.cpu(), batch.own, divergence) > 0


@dataclass(frozen=True, kw_only=True)
class QuantileRadius(_Radius):
    """The smallest change found that moves the representation as far as a share of the pairs of clean samples are apart at most.

    Args:
        quantile: the universal quantile that is to be reached, in (0, 1].

    Further options as for ``BreakawayRadius``.
    """

    quantile: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("quantile", self.quantile)
        if not 0 < self.quantile <= 1:
            raise ValueError(f"quantile is {self.quantile:g}; it is a share of pairs, so it must be in (0, 1]")

    def climbed(self, batch: Batch, divergence: Divergence) -> Objective:
        return lambda moved: divergence(batch.clean, moved)

    def reached(self, representations: Tensor, batch: Batch, divergence: Divergence) -> Tensor:
        assert batch.bank is not None, "a metric always has a bank"
        apart = divergence(batch.clean.cpu().double(), representations.cpu().double())
        return batch.bank.pair_quantiles(apart, divergence) >= self.quantile


def _search(radius: _Radius, encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom) -> Tensor:
    """Return the size of the smallest change that is enough, [batch], float64, on the CPU."""
    objective, inputs, ball = radius.climbed(batch, divergence), batch.inputs, Ball(radius.norm, radius.limit)
    box, straight = ball.box(inputs, encoder.bounds), radius.straight(encoder, batch, divergence)
    failed = torch.zeros(len(inputs), dtype=torch.float64)
    found = torch.full_like(failed, math.inf)
    change = torch.zeros_like(inputs)
    for turn in range(radius.rounds):
        tried = torch.maximum(failed, found / _LEAP).mul(found).sqrt()
        tried = torch.where(failed > 0, tried, found / _LEAP)
        tried = torch.where(found.isinf(), radius.limit, tried)
        reach = per_sample(tried.to(inputs), inputs)

        def project(moved: Tensor, reach: Tensor = reach) -> Tensor:
            return ball.project(inputs + _shrunk(moved - inputs, reach, radius.norm), inputs, encoder.bounds, box=box)

        fresh = per_sample(found.isinf(), inputs).to(inputs.device)
        begun = torch.where(fresh, _noise(random, inputs, radius, turn), change) if straight is None or turn % 2 else straight
        start = project(inputs + begun)
        climbed = climb(encoder, objective, start, project, reach, norm=radius.norm, calls=radius.steps)
        size = ball.distance(climbed.inputs, inputs).cpu()
        enough = radius.reached(climbed.representation, batch, divergence)
        better = enough & (size < found)
        change = torch.where(per_sample(better, inputs).to(inputs.device), climbed.inputs - inputs, change)
        found, failed = torch.where(better, size, found), torch.where(enough | found.isinf(), failed, tried)
    return found


def _shrunk(change: Tensor, reach: Tensor, norm: str) -> Tensor:
    """Return changes [batch, *input] that are no larger than ``reach`` [batch, 1, …]."""
    if norm == "linf":
        return change.clamp(-reach, reach)
    length = per_sample(lengths(change), change)
    return change * (reach / length.clamp(min=torch.finfo(change.dtype).tiny)).clamp(max=1)


def _noise(random: SampleRandom, inputs: Tensor, radius: _Radius, turn: int) -> Tensor:
    purpose = f"radius/{turn}"
    if radius.norm == "l2":
        return _in_l2_ball(random, inputs, radius.limit, purpose, None)
    return random.uniform(purpose, inputs.shape[1:], low=-radius.limit, high=radius.limit).to(inputs)

"""Attacks that choose their own steps: APGD on a divergence, on the breakaway margin, and toward each of the nearest others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rt_core.divergences import Divergence, cosine, find_divergence, l2
from rt_core.encoders import Encoder
from rt_core.neighbors import Bank
from rt_core.randomness import SampleRandom
from rt_core.traces import AIMS, Attempt, Batch, lengths, per_sample
from rt_unsupervised_attacks.gradient import STARTS, _any, _Bounded, _checked_marks, _followed, _set_whole, _start

__all__ = [
    "UAPGD",
    "Climbed",
    "MarginAPGD",
    "NearestAPGD",
    "Objective",
    "climb",
    "direction",
    "look",
    "margin_near",
    "nearest_others",
    "squared_margin",
]

FIRST_STEP = 0.25
"""The first step, as a share of the ball's radius."""

_PUBLISHED_FIRST_STEP = 2.0
_ENOUGH = 0.75  # the step is halved unless more than this share of the steps raised the objective
_NEW = 0.75  # how much of a move is the new step; the rest is the last move again
_CANDIDATES = 64

Objective = Callable[[Tensor], Tensor]


class Climbed(NamedTuple):
    """Where a climb led: the best iterate, with its objective and its representation.

    inputs: [batch, *input]; value: [batch]; representation: [batch, dim]; marks: {calls: (best inputs so far, their representations)};
    seen: the representation at every call, each [batch, dim]; zero: [batch], at how many calls the gradient was exactly zero.
    """

    inputs: Tensor
    value: Tensor
    representation: Tensor
    marks: dict[int, tuple[Tensor, Tensor]]
    seen: list[Tensor]
    zero: Tensor


def climb(
    encoder: Encoder,
    objective: Objective,
    start: Tensor,
    project: Callable[[Tensor], Tensor],
    reach: float | Tensor,
    *,
    norm: str,
    calls: int,
    parity: bool = False,
    free: Tensor | None = None,
    marks: Sequence[int] = (),
    refresh: Callable[[Tensor], Objective] | None = None,
) -> Climbed:
    """Climb an objective of the representation by steps whose size is found on the way (Croce & Hein 2020, section 3 and algorithm 1).

    ``calls`` forward and backward passes and no other; each sample has its own step. For linf the first step is a quarter of the radius and
    the gradient is accumulated (divided by its mean size, added up with factor 1). For l2, and with ``parity``, it is the published two radii
    and plain gradients: steps along an accumulated gradient turn too slowly, and were found to reach a tenth less.

    Args:
        objective: [batch, dim] -> [batch], to be made large.
        project: moves iterates back into the ball and the bounds, [batch, *input] -> same shape.
        reach: the radius, broadcasts over ``start``.
        free: bool, where the iterates may move; None is everywhere.
        marks: after how many calls the best so far is kept as well.
        refresh: gives a new objective at every checkpoint of the schedule, from the best representations, [batch, dim].
    """
    gaps, published = dict(_checkpoints(calls - 1)), parity or norm == "l2"
    share = start.new_full((len(start),), _PUBLISHED_FIRST_STEP if published else FIRST_STEP)
    zero, raised, halved = torch.zeros_like(share), torch.zeros_like(share), torch.ones_like(share, dtype=torch.bool)
    moved, before, moment = start, start, torch.zeros_like(start)
    last, seen, kept = torch.zeros_like(share), [], {}
    for call in range(calls):
        value, representation, slope = look(encoder, objective, moved, free)
        seen.append(representation)
        zero += ~_any(slope)
        if not published:
            moment = moment + slope / per_sample(slope.flatten(1).abs().mean(1).clamp(min=torch.finfo(slope.dtype).tiny), slope)
            slope = moment
        if call == 0:
            best = checked = value
            top, climbed, uphill = moved, representation, slope
        else:
            # The published code compares the first step with 0, and every loss of its own is above that.
            raised += torch.ones_like(raised) if parity and call == 1 else value > last
            won = value > best
            best = torch.where(won, value, best)
            top, climbed, uphill = (
                torch.where(per_sample(won, new), new, old) for new, old in ((moved, top), (representation, climbed), (slope, uphill))
            )
        last = value
        if call + 1 in marks:
            kept[call + 1] = top, climbed
        if call in gaps:
            halved = (raised <= _ENOUGH * gaps[call]) | (~halved & (best <= checked))
            share, raised = torch.where(halved, share / 2, share), torch.zeros_like(raised)
            moved, slope = (torch.where(per_sample(halved, new), old, new) for new, old in ((moved, top), (slope, uphill)))
            moment = slope
            if refresh is not None:
                objective = refresh(climbed)
                best = objective(climbed)
            checked = best
        if call + 1 < calls:
            inertia = 1 - _NEW if call else 0.0
            ahead = project(moved + per_sample(share, moved) * reach * direction(slope, norm))
            moved, before = project(moved + (ahead - moved) * (1 - inertia) + (moved - before) * inertia), moved
    return Climbed(top, best, climbed, kept, seen, zero)


def margin_near(bank: Bank, batch: Batch, divergence: Divergence, *, squared: bool = False) -> Callable[[Tensor], Objective]:
    """Return what gives, for representations [batch, dim], the margin over the others near them: d(own clean, ·) − min over others d(r_k, ·).

    The others are the 64 nearest in the bank (all, if there are fewer), own rows left out by position. Near means by the divergence itself
    if that is l2 or cosine, and else by l2, since the bank ranks by others pair by pair. At the representations themselves the margin is
    therefore exact for l2 and cosine. ``squared`` takes the difference of squares, which has the same sign.
    """
    near = divergence if divergence in (l2, cosine) else l2
    count = min(_CANDIDATES, max(len(bank) - 1, 1))

    def around(representations: Tensor) -> Objective:
        others = nearest_others(bank, batch, representations, count, near)

        def margin(moved: Tensor) -> Tensor:
            with torch.no_grad():
                apart = divergence(others.flatten(0, 1), moved.repeat_interleave(count, 0)).unflatten(0, others.shape[:2])
            nearest = others[torch.arange(len(moved), device=moved.device), apart.argmin(1)]
            if squared:
                return squared_margin(divergence, batch.clean, nearest)(moved)
            return divergence(batch.clean, moved) - divergence(nearest, moved)

        return margin

    return around


def nearest_others(bank: Bank, batch: Batch, representations: Tensor, k: int, divergence: Divergence) -> Tensor:
    """Return the ``k`` representations of others that are nearest to each: [batch, dim] -> [batch, k, dim]

    Raises:
        ValueError: the bank has fewer.
    """
    own = torch.full((len(representations),), -1) if batch.own is None else batch.own.cpu()
    _, rows = bank.nearest(representations.cpu(), k, own, divergence)
    return bank.take(rows.flatten()).to(batch.clean).unflatten(0, rows.shape)


def squared_margin(divergence: Divergence, own: Tensor, other: Tensor) -> Objective:
    """Return d(own, ·)² − d(other, ·)²: the margin's sign, and for l2 no plateau on which it has no gradient, as the plain margin has.

    own, other: [batch, dim]; what is returned takes [batch, dim] -> [batch]
    """
    return lambda moved: divergence(own, moved).square() - divergence(other, moved).square()


class _Run(NamedTuple):
    """What one climb follows, and what makes it follow something else on the way."""

    objective: Objective
    refresh: Callable[[Tensor], Objective] | None = None


@dataclass(frozen=True, kw_only=True)
class _Climber(_Bounded):
    """The fields that the attacks share. Abstract: use UAPGD, MarginAPGD or NearestAPGD."""

    steps: int = 50
    start: str = "random"
    restarts: int = 1
    marks: Sequence[int] = ()
    divergence: str | Divergence | None = None
    parity: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_whole(self, "steps", "restarts")
        if self.steps < 2:
            raise ValueError(f"steps is {self.steps}; the first of them looks at the start alone, so at least 2 are needed")
        if self.start not in STARTS:
            raise ValueError(f"start is {self.start!r}; expected one of {', '.join(map(repr, STARTS))}")
        if self.start == "clean" and self.restarts > 1:
            raise ValueError(f"restarts is {self.restarts}; from the clean input every restart is the same, so write 1, or start='random'")
        object.__setattr__(self, "marks", _checked_marks(self.marks, self.steps))
        if self.divergence is not None:
            find_divergence(self.divergence)

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and the backward passes of the attack on one sample."""
        return self.steps * self.restarts, self.steps * self.restarts

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Attempt:
        """[batch, *input] -> same shape"""
        runs, judge = self.follow(batch, divergence if self.divergence is None else find_divergence(self.divergence))
        if self.ball.extent == 0:
            return Attempt(inputs=batch.inputs.clone(), marks={mark: batch.inputs.clone() for mark in self.marks})
        box = self.ball.box(batch.inputs, encoder.bounds)
        found = []
        for restart in range(self.restarts):
            for run in runs:
                found.append(
                    climb(
                        encoder,
                        run.objective,
                        _start(self, encoder, batch, random, box, restart),
                        lambda moved: self.ball.project(moved, batch.inputs, encoder.bounds, box=box),
                        self.ball.radii(batch.inputs),
                        norm=self.norm,
                        calls=self.steps,
                        parity=self.parity,
                        free=None if self.mask is None else box[0] < box[1],
                        marks=self.marks,
                        refresh=run.refresh,
                    )
                )
        won, inputs = _best([(one.inputs, one.representation) for one in found], judge)
        histories = torch.stack([torch.stack([divergence(batch.anchor, at) for at in one.seen], dim=1) for one in found])
        notes = {"zero_gradient": torch.stack([one.zero for one in found]).amin(0) / self.steps}
        if self.restarts > 1:
            notes["restart"] = (won // len(runs)).float()
        if len(runs) > 1:
            notes["neighbor"] = (won % len(runs)).float()
        return Attempt(
            inputs=inputs,
            marks={mark: _best([one.marks[mark] for one in found], judge)[1] for mark in self.marks},
            history=histories[won, torch.arange(len(won), device=won.device)],
            notes=notes,
        )

    def follow(self, batch: Batch, divergence: Divergence) -> tuple[list[_Run], Objective]:
        """Return the climbs that make up the attack, and what tells which of their results is the best, [batch, dim] -> [batch]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class UAPGD(_Climber):
    """Climb the divergence from the clean representation, or descend it to a target, with an automatic step: no step size to choose.

    The schedule of APGD (Croce & Hein 2020) without labels. For linf it differs from the published one in two ways: the first step is a
    quarter of ``epsilon`` instead of twice it, and the gradient is accumulated. ``parity=True`` is the published schedule, which l2 has
    anyway: there it moves representations further. The best iterate is kept,
    by the divergence that is attacked. A run costs ``steps`` forward and backward passes and no other: the first looks at the start, and
    what comes after the last is not looked at and not kept.

    Args:
        epsilon: radius of the ball, in the bounds' units; 0 returns the input bit for bit. For linf also a sequence: one number for each
            entry of an input's first axis (a channel, or a feature of a vector).
        steps: how many gradients are asked for, the whole budget; the schedule follows from it. marks: after how many of them the best
            iterate is kept as well. A mark is not what a shorter run gives, whose schedule is another.
        norm: ``"linf"`` (sign steps) or ``"l2"`` (steps along the gradient).
        start: ``"random"`` in the ball, clipped to the bounds; ``"eta"``, within ``eta`` of the input; ``"clean"``, for targets only.
        restarts: from how many starts; the best result is kept.
        divergence: what is climbed, by name or a function; None is the plan's.
        mask: bool, broadcasts over one input, True where the attack may move; elsewhere an input stays as it is, bit for bit.
        parity: take the published schedule.

    Raises:
        ValueError: a parameter out of its range.
    """

    @property
    def aims(self) -> tuple[str, ...]:
        return ("target",) if self.start == "clean" else AIMS

    def follow(self, batch: Batch, divergence: Divergence) -> tuple[list[_Run], Objective]:
        way = 1 if batch.aim == "away" else -1

        def objective(moved: Tensor) -> Tensor:
            return way * divergence(batch.anchor, moved)

        return [_Run(objective)], objective


@dataclass(frozen=True, kw_only=True)
class MarginAPGD(_Climber):
    """Climb d(own clean, x̂) − min over others d(r_k, x̂): where it is positive, another sample is nearer than the sample itself.

    Needs a bank. To be quick with a large one, the minimum runs over the 64 others that are nearest, first to the clean representation and
    then, at each checkpoint of the schedule, to the best one so far. Candidates only steer: measures rank the whole bank. Of several
    restarts the one with the largest margin is kept. Steps and options as for ``UAPGD``; a start may be ``"clean"``.

    Raises:
        ValueError: a parameter out of its range, or no bank.
    """

    aims: ClassVar[tuple[str, ...]] = ("away",)
    climbs: ClassVar[str] = "margin"

    def follow(self, batch: Batch, divergence: Divergence) -> tuple[list[_Run], Objective]:
        around = margin_near(_bank_of(batch, self), batch, divergence)
        return [_Run(around(batch.clean), around)], lambda moved: around(moved)(moved)


@dataclass(frozen=True, kw_only=True)
class NearestAPGD(_Climber):
    """Go past the border to each of the ``k`` nearest others in turn, and keep the result with the largest margin: ``MarginAPGD``'s targeted form.

    Toward other r it climbs d(own clean, x̂)² − d(r, x̂)²: positive exactly where r is nearer than the sample itself, and for l2 free of
    plateaus, on which the plain difference has no gradient. Each other (all, if there are fewer than ``k``) has the whole budget:
    ``k`` · ``steps`` forward and backward passes. Needs a bank; the note ``neighbor`` says which other won, 0 the nearest. Steps and options as
    for ``UAPGD``.

    Raises:
        ValueError: a parameter out of its range, or no bank.
    """

    k: int = 3
    aims: ClassVar[tuple[str, ...]] = ("away",)
    climbs: ClassVar[str] = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_whole(self, "k")

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and the backward passes of the attack on one sample."""
        return self.steps * self.restarts * self.k, self.steps * self.restarts * self.k

    def follow(self, batch: Batch, divergence: Divergence) -> tuple[list[_Run], Objective]:
        bank = _bank_of(batch, self)
        count = min(self.k, max(len(bank) - 1, 1))
        others, around = nearest_others(bank, batch, batch.clean, count, divergence), margin_near(bank, batch, divergence)
        runs = [_Run(squared_margin(divergence, batch.clean, other)) for other in others.unbind(1)]
        return runs, lambda moved: around(moved)(moved)


def look(encoder: Encoder, objective: Objective, moved: Tensor, free: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the objective at ``moved``, its representation and the gradient, 0 where nothing may move: one forward and one backward pass."""
    at = moved.detach().requires_grad_()
    representation = encoder(at)
    value = objective(representation)
    return value.detach(), representation.detach(), _followed(value.sum(), at, free)


def _checkpoints(steps: int) -> Iterator[tuple[int, int]]:
    """Yield after how many steps the step size is looked at, and how many steps that is after the last time."""
    gap, least, less = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    at = gap
    while at <= steps:
        yield at, gap
        gap = max(gap - less, least)
        at += gap


def direction(slope: Tensor, norm: str) -> Tensor:
    """Return a step of size one: signs, or a vector of length one; 0 where the gradient is."""
    if norm == "linf":
        return slope.sign()
    tiny = torch.finfo(slope.dtype).tiny
    unit = slope / per_sample(slope.flatten(1).abs().amax(1).clamp(min=tiny), slope)  # so that squares of a small slope are not 0
    return unit / per_sample(lengths(unit).clamp(min=0.5), slope)  # 1 at least, but for a slope of zero, which stays one


def _best(found: Sequence[tuple[Tensor, Tensor]], judge: Objective) -> tuple[Tensor, Tensor]:
    """Return which of some (inputs, representation) is the best for each sample, the first of equal ones, and its inputs."""
    inputs = torch.stack([one for one, _ in found])
    if len(found) == 1:
        return torch.zeros(inputs.shape[1], dtype=torch.long, device=inputs.device), inputs[0]
    won = torch.stack([judge(representation) for _, representation in found]).argmax(0)
    return won, inputs[won, torch.arange(len(won), device=won.device)]


def _bank_of(batch: Batch, attack: _Climber) -> Bank:
    if batch.bank is None:
        raise ValueError(f"{type(attack).__name__} needs a bank of other samples; run gives one, and perturb takes bank=…")
    return batch.bank

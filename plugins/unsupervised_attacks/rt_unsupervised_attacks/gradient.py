"""Gradient attacks on a divergence of representations: U-FGSM, U-BIM, U-PGD and its momentum form."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rt_core.adapting import finite_slope
from rt_core.divergences import Divergence
from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom, whole_of
from rt_core.traces import AIMS, Attempt, Ball, Batch, FrozenTensor, check_number, check_radii, check_whole, lengths, per_sample

__all__ = ["UBIM", "UFGSM", "UMIPGD", "UPGD", "Iterated", "Objective", "OneStep"]

STARTS = ("random", "eta", "clean")


class Objective(NamedTuple):
    """What an attack follows: ``value`` gives [batch], or one number for the whole batch, and ``way`` is 1 to climb it, -1 to descend."""

    value: Callable[[Tensor], Tensor]
    way: int = 1


@dataclass(frozen=True, kw_only=True)
class _Bounded:
    """The ball of an attack, and what the attack follows unless it says otherwise: the divergence from the batch's anchor."""

    epsilon: float | Sequence[float] = 8 / 255
    norm: str = "linf"
    eta: float = 1e-3
    mask: FrozenTensor | Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_radii("epsilon", self.epsilon))
        object.__setattr__(self, "mask", self.ball.mask)
        check_number("eta", self.eta)
        if not self.eta > 0:
            raise ValueError(f"eta is {self.eta:g}; it must be positive, since the gradient at the clean input is zero")

    @property
    def ball(self) -> Ball:
        return Ball(self.norm, self.epsilon, self.mask)

    def objective(self, encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom) -> Objective:
        """Return what is followed from a batch's inputs: called once a run, before the first step."""
        return Objective(lambda moved: divergence(batch.anchor, encoder(moved)), 1 if batch.aim == "away" else -1)


@dataclass(frozen=True, kw_only=True)
class OneStep(_Bounded):
    """One step of size ``epsilon`` from the input along the gradient beside it. Abstract: use UFGSM or LFGSM."""

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """[batch, *input] -> same shape"""
        if self.ball.extent == 0:
            return batch.inputs.clone()
        free, beside = self.ball.free(batch.inputs), batch.inputs.clone()
        if batch.start is not None:
            beside = batch.start.clone()
        elif getattr(self, "start", "clean" if batch.aim == "target" else "eta") == "eta":
            eta = _eta(random, batch.inputs, self.eta, "eta")
            beside = encoder.clip(batch.inputs + (eta if free is None else eta * free))
        objective = self.objective(encoder, batch, divergence, random)
        _, slope = _slope(objective, beside, free)
        moved = batch.inputs + _step(slope, self.norm, objective.way * self.ball.radii(slope))
        return Attempt(inputs=self.ball.project(moved, batch.inputs, encoder.bounds), notes={"zero_gradient": (~_any(slope)).float()})


@dataclass(frozen=True, kw_only=True)
class UFGSM(OneStep):
    """One step of size ``epsilon`` from the input, up the divergence from its own representation or down to the target's
    (Petrov & Kwiatkowska 2022, section 4.1).

    The gradient of d(f(x), ·) is taken at x + η, η uniform in ±``eta``: at x itself it is zero. f(x) stays fixed. Toward a target it is
    taken at x. The paper's formula can be read in other ways; U-BIM's first step is this reading.

    Args:
        epsilon: size of the step and radius of the ball, in the bounds' units; 0 returns the input bit for bit. For linf also a sequence:
            one number for each entry of an input's first axis (a channel, or a feature of a vector).
        norm: ``"linf"`` (a sign step) or ``"l2"`` (a step along the gradient).
        eta: half the width of the perturbation at which the gradient is taken.
        mask: bool, broadcasts over one input, True where the attack may move; elsewhere an input stays as it is, bit for bit.

    Raises:
        ValueError: a parameter out of its range.
    """


@dataclass(frozen=True, kw_only=True)
class Iterated(_Bounded):
    """The fields that the iterated attacks share. Abstract: use UBIM, UPGD, UMIPGD or a loss-based one."""

    step: float | None = None
    steps: int = 10
    start: str = "random"
    marks: Sequence[int] = ()
    keep: str = "last"
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None:
            check_number("step", self.step)
            if not self.step > 0:
                raise ValueError(
                    f"step is {self.step:g}; it must be positive (the aim decides the direction), or None for 2.5 * epsilon / steps"
                )
        _set_whole(self, "steps", "restarts")
        object.__setattr__(self, "marks", _checked_marks(self.marks, self.steps))
        if self.start not in STARTS:
            raise ValueError(f"start is {self.start!r}; expected one of {', '.join(map(repr, STARTS))}")
        if self.start == "clean" and self.restarts > 1:
            raise ValueError(f"restarts is {self.restarts}; from the clean input every restart is the same, so write 1, or start='random'")
        if self.keep not in ("last", "best"):
            raise ValueError(f"keep is {self.keep!r}; expected 'last' or 'best'")

    @property
    def aims(self) -> tuple[str, ...]:
        return ("target",) if self.start == "clean" else AIMS

    @property
    def step_size(self) -> float | tuple[float, ...]:
        """Return the size of a step: ``step``, or 2.5 * epsilon / steps, with which the ball can be crossed; one for each epsilon."""
        if self.step is not None:
            return self.step
        radius = self.ball.radius
        return tuple(2.5 * one / self.steps for one in radius) if isinstance(radius, tuple) else 2.5 * radius / self.steps

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """[batch, *input] -> same shape"""
        if self.ball.extent == 0:
            return Attempt(inputs=batch.inputs.clone(), marks={mark: batch.inputs.clone() for mark in self.marks})
        return _climb(self, encoder, batch, divergence, random, decay=getattr(self, "decay", None))


@dataclass(frozen=True, kw_only=True)
class UPGD(Iterated):
    """Climb the divergence from the clean representation, or descend it to a target, by projected gradient steps from a random start
    (Petrov & Kwiatkowska 2022, section 4.2).

    Inputs stay inside the encoder's bounds and within ``epsilon`` of the clean input, exactly. A run costs ``steps`` forward and backward
    passes and no other, unless ``keep="best"`` or ``restarts`` ask for one more forward pass each.

    Args:
        epsilon: radius of the ball, in the bounds' units; 0 returns the input bit for bit. For linf also a sequence: one number for each
            entry of an input's first axis (a channel, or a feature of a vector).
        step: size of a step; None takes 2.5 * epsilon / steps. The paper evaluates with 0.001.
        steps: how many steps; marks: after how many of them the iterate is kept as well.
        norm: ``"linf"`` (sign steps) or ``"l2"`` (steps along the gradient).
        start: ``"random"`` in the ball, clipped to the bounds; ``"eta"``, within ``eta`` of the input; ``"clean"``, for targets only.
        keep: ``"last"`` iterate, as in the paper, or the ``"best"`` one, by the divergence that is attacked.
        restarts: from how many starts; the best of them is kept, by the same divergence.
        mask: bool, broadcasts over one input, True where the attack may move; elsewhere an input stays as it is, bit for bit.

    Raises:
        ValueError: a parameter out of its range.
    """


@dataclass(frozen=True, kw_only=True)
class UBIM(Iterated):
    """U-PGD from beside the input, x + η, instead of a random start (Petrov & Kwiatkowska 2022, section 4.2; after Kurakin et al. 2017).

    Options as for ``UPGD``.
    """

    start: str = "eta"


@dataclass(frozen=True, kw_only=True)
class UMIPGD(Iterated):
    """U-PGD along an accumulated gradient: g ← decay · g + slope / mean|slope| (after Dong et al. 2018).

    Options as for ``UPGD``; ``decay`` 0 forgets at once, 1 never.
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("decay", self.decay)
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is {self.decay:g}; expected a factor in [0, 1]")


class _Path(NamedTuple):
    """Where one start led: the kept iterate and, where it was asked for, its divergence."""

    inputs: Tensor
    value: Tensor | None
    marks: dict[int, tuple[Tensor, Tensor]]
    history: Tensor
    zero: Tensor


def _climb(
    attack: Iterated, encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom, *, decay: float | None
) -> Attempt:
    box = attack.ball.box(batch.inputs, encoder.bounds)
    objective = attack.objective(encoder, batch, divergence, random)
    path, winner = None, torch.zeros(len(batch.inputs), device=batch.inputs.device)
    for restart in range(attack.restarts):
        found = _path(attack, encoder, batch, objective, box, _start(attack, encoder, batch, random, box, restart), decay)
        if path is None:
            path = found
            continue
        won = _beats(objective, found.value, path.value)
        winner = torch.where(won, restart, winner)
        path = _Path(
            inputs=torch.where(per_sample(won, batch.inputs), found.inputs, path.inputs),
            value=torch.where(won, found.value, path.value),
            marks={mark: _better(objective, path.marks[mark], found.marks[mark]) for mark in path.marks},
            history=torch.where(won[:, None], found.history, path.history),
            zero=torch.minimum(path.zero, found.zero),
        )
    notes = {"zero_gradient": path.zero / attack.steps} | ({"restart": winner} if attack.restarts > 1 else {})
    return Attempt(inputs=path.inputs, marks={mark: inputs for mark, (inputs, _) in path.marks.items()}, history=path.history, notes=notes)


def _path(
    attack: Iterated,
    encoder: Encoder,
    batch: Batch,
    objective: Objective,
    box: tuple[Tensor, Tensor],
    moved: Tensor,
    decay: float | None,
) -> _Path:
    history, marks, zero = [], {}, torch.zeros(len(moved), device=moved.device)
    best, momentum, free = None, None, _free(attack, box)
    size = objective.way * Ball(attack.norm, attack.step_size).radii(moved)
    for step in range(attack.steps):
        value, slope = _slope(objective, moved, free)
        moved = moved.detach()
        history.append(value)
        zero += ~_any(slope)
        kept = (moved, value)
        if attack.keep == "best":
            kept = best = kept if best is None else _better(objective, best, kept)
        if step in attack.marks:
            marks[step] = kept
        if decay is not None:
            scale = per_sample(slope.flatten(1).abs().mean(1).clamp(min=torch.finfo(slope.dtype).tiny), slope)
            slope = slope / scale if momentum is None else momentum.mul(decay).add_(slope / scale)
            momentum = slope
        moved = moved + _step(slope, attack.norm, size)
        moved = attack.ball.project(moved, batch.inputs, encoder.bounds, box=box)
    value = None
    if attack.keep == "best" or attack.restarts > 1:
        with torch.no_grad():
            value = objective.value(moved).expand(len(moved))
        if best is not None:
            moved, value = _better(objective, best, (moved, value))
    if attack.steps in attack.marks:
        marks[attack.steps] = (moved, history[-1] if value is None else value)
    return _Path(moved, value, marks, torch.stack(history, dim=1), zero)


def _set_whole(attack: Any, *names: str) -> None:
    """Put plain whole numbers where whole numbers are, so that numpy's make no other attack."""
    for name in names:
        object.__setattr__(attack, name, check_whole(name, getattr(attack, name)))


def _checked_marks(marks: Any, steps: int) -> tuple[int, ...]:
    if not isinstance(marks, Iterable):
        raise ValueError(f"marks is {marks!r}; expected a sequence of numbers of steps, such as ({marks!r},)")
    given = tuple(marks)
    whole = [mark for one in given if (mark := whole_of(one)) is not None and 1 <= mark <= steps]
    if len(whole) < len(given) or whole != sorted(set(whole)):
        raise ValueError(f"marks is {given}; expected ascending numbers of steps from 1 to {steps}")
    return tuple(whole)


def _start(attack: Iterated, encoder: Encoder, batch: Batch, random: SampleRandom, box: tuple[Tensor, Tensor], restart: int) -> Tensor:
    if batch.start is not None and restart == 0:
        return batch.start.clone()
    purpose = "start" if restart == 0 else f"start/{restart}"
    if attack.start == "clean":
        return batch.inputs.clone()
    if attack.start == "eta":
        moved = batch.inputs + _eta(random, batch.inputs, attack.eta, purpose)
    elif isinstance(attack.ball.radius, tuple):
        moved = batch.inputs + _eta(random, batch.inputs, 1.0, purpose) * attack.ball.radii(batch.inputs)
    elif attack.norm == "linf":
        moved = batch.inputs + _eta(random, batch.inputs, attack.ball.radius, purpose)
    else:
        moved = batch.inputs + _in_l2_ball(random, batch.inputs, attack.ball.radius, purpose, _free(attack, box))
    return attack.ball.project(moved, batch.inputs, encoder.bounds, box=box)


def _slope(objective: Objective, moved: Tensor, free: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the objective at ``moved``, [batch], and its gradient there, [batch, *input], 0 where nothing may move."""
    moved.requires_grad_()
    value = objective.value(moved)
    return value.detach().expand(len(moved)), _followed(value.sum(), moved, free)


def _followed(total: Tensor, at: Tensor, free: Tensor | None) -> Tensor:
    """Return the gradient of a number at some inputs, [batch, *input], finite, and 0 where nothing may move."""
    # A constant output has no graph at all, which means the same as a gradient of zero.
    slope = torch.autograd.grad(total, at, allow_unused=True)[0] if total.requires_grad else None
    slope = torch.zeros_like(at) if slope is None else slope
    return finite_slope(slope if free is None else torch.where(free, slope, 0))


def _free(attack: Iterated, box: tuple[Tensor, Tensor]) -> Tensor | None:
    """Return where an attack with a mask may move, [batch, *input]: in its box."""
    return None if attack.mask is None else box[0] < box[1]


def _step(slope: Tensor, norm: str, size: float | Tensor) -> Tensor:
    if norm == "linf":
        return slope.sign().mul_(size)
    tiny = torch.finfo(slope.dtype).tiny
    unit = slope / per_sample(slope.flatten(1).abs().amax(1).clamp(min=tiny), slope)  # so that squares of a small slope are not 0
    return unit * per_sample(size / lengths(unit).clamp(min=0.5), slope)  # 1 at least, but for a slope of zero, which stays one


def _in_l2_ball(random: SampleRandom, inputs: Tensor, radius: float, purpose: str, free: Tensor | None) -> Tensor:
    """Draw uniformly from the ball: a direction, and a length whose power of the dimension is uniform."""
    direction, dimension = random.normal(purpose, inputs.shape[1:]).to(inputs), inputs[0].numel()
    if free is not None:
        direction, dimension = direction * free, free.flatten(1).sum(1)
    length = random.uniform(f"{purpose}/length", ()).to(inputs) ** (1 / dimension)
    return direction * per_sample(radius * length / lengths(direction), direction)


def _eta(random: SampleRandom, inputs: Tensor, eta: float, purpose: str) -> Tensor:
    return random.uniform(purpose, inputs.shape[1:], low=-eta, high=eta).to(inputs)


def _beats(objective: Objective, value: Tensor, other: Tensor) -> Tensor:
    return value > other if objective.way > 0 else value < other


def _better(objective: Objective, known: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    won = _beats(objective, found[1], known[1])
    return torch.where(per_sample(won, known[0]), found[0], known[0]), torch.where(won, found[1], known[1])


def _any(slope: Tensor) -> Tensor:
    return (slope != 0).flatten(1).any(1)

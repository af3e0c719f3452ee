"""The values that travel: what an attack may see, what it may return, what is kept of it, and what a metric gives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from rt_core.divergences import Divergence
from rt_core.encoders import Bound, Encoder, round_inward
from rt_core.errors import MissingLabels, PlanError
from rt_core.neighbors import Bank
from rt_core.randomness import SampleRandom

__all__ = [
    "AIMS",
    "Attack",
    "Attempt",
    "Ball",
    "Batch",
    "Context",
    "Divergence",
    "Metric",
    "Rows",
    "Suite",
    "Trace",
    "aims_of",
    "ball_of",
    "check_metric",
    "check_number",
    "check_radius",
    "check_whole",
    "lengths",
    "per_sample",
]

AIMS = ("away", "target")
_READINGS = {
    "aim": (*AIMS, "clean"),
    "better": ("lower", "higher"),
    "statistic": ("rate", "mean", "median"),
    "per": ("sample", "pair"),
    "comparable": (True, False),
}
# An l2 step computed in float32 must not end a rounding error outside.
_INSIDE = 1 - 5e-7


@dataclass(frozen=True, slots=True)
class Ball:
    """How far an attack may move an input: ``norm`` is ``"linf"`` or ``"l2"`` over all of one input, ``radius`` in the bounds' units.

    Raises:
        ValueError: another norm, or a radius that is no number, not finite or negative.
    """

    norm: str
    radius: float

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm is {self.norm!r}; expected 'linf' or 'l2'")
        check_radius("radius", self.radius)

    def box(self, center: Tensor, bounds: tuple[Bound, Bound]) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value that each element may take: inside the bounds, and for linf inside the ball.

        Computed in float64 and rounded inward, so that no float32 value in it is outside by even a last bit.

        center: [batch, *input] -> two of the same shape
        """
        low, high = (bound.expand_as(center) for bound in round_inward(bounds, center))
        if self.norm != "linf":
            return low, high
        exact = _double(center)
        grid = exact.to(center.dtype)
        ball_low, ball_high = ((exact + way * self.radius).to(center.dtype) for way in (-1, 1))
        ball_low = torch.where(exact - ball_low.double() > self.radius, torch.nextafter(ball_low, grid), ball_low)
        ball_high = torch.where(ball_high.double() - exact > self.radius, torch.nextafter(ball_high, grid), ball_high)
        return torch.maximum(low, ball_low.to(low.device)), torch.minimum(high, ball_high.to(high.device))

    def project(self, inputs: Tensor, center: Tensor, bounds: tuple[Bound, Bound], *, box: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the inputs moved back into the ball and the bounds; ``box`` is that of ``center`` where it is known already.

        inputs, center: [batch, *input] -> same shape
        """
        low, high = self.box(center, bounds) if box is None else box
        if self.norm == "linf":
            return torch.minimum(torch.maximum(inputs, low), high)
        moved = inputs - center
        length = per_sample(lengths(moved), moved)
        inside = moved * (self.radius * _INSIDE / length)
        placed = center + inside
        # In a small ball around a large value, rounding the sum is a long way: where it went outward, one step back.
        placed = torch.where((placed - center).abs() > inside.abs(), torch.nextafter(placed, center), placed)
        return torch.minimum(torch.maximum(torch.where(length > self.radius * _INSIDE, placed, inputs), low), high)

    def distance(self, inputs: Tensor, center: Tensor) -> Tensor:
        """Return how far each sample was moved, in float64.

        inputs, center: [batch, *input] -> [batch]
        """
        order = torch.inf if self.norm == "linf" else 2
        return torch.linalg.vector_norm((_double(inputs) - _double(center)).flatten(1), ord=order, dim=1)

    @property
    def tolerance(self) -> float:
        """Return the largest measured distance that counts as inside: the radius itself for linf, 1e-6 more for l2."""
        return self.radius if self.norm == "linf" else self.radius * (1 + 1e-6)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What an attack may see of some samples.

    inputs: [batch, *input], inside the bounds; clean: [batch, dim], their representations; aim: ``"away"`` from ``clean`` or to the
    ``targets`` [batch, dim] (of ``target_inputs``); bank: representations of others or None, ``own`` [batch] each sample's row in it or
    -1; start: a given first iterate, to be taken as it is, or None.
    """

    ids: tuple[str, ...]
    inputs: Tensor
    clean: Tensor
    aim: str
    targets: Tensor | None = None
    target_inputs: Tensor | None = None
    bank: Bank | None = None
    own: Tensor | None = None
    start: Tensor | None = None

    @property
    def anchor(self) -> Tensor:
        """Return what the divergence is measured from: ``clean`` for aim away, else ``targets``."""
        if self.aim == "away":
            return self.clean
        assert self.targets is not None, "a batch of aim target holds targets"
        return self.targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """What an attack returns when there is more to say than the adversarial inputs.

    inputs: [batch, *input]; marks: {step: inputs after that many steps}; history: [batch, steps], the divergence before each step;
    notes: {name: [batch]}, such as ``zero_gradient``, the share of steps at which a sample's gradient was exactly zero.
    """

    inputs: Tensor
    marks: Mapping[int, Tensor] = field(default_factory=dict)
    history: Tensor | None = None
    notes: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What one attack did to some samples; all on the CPU.

    clean, adversarial: [n, dim]; divergence: [n] float64, from the clean representation (aim away, clean) or to the target;
    targets: [n, dim] or None; partner: [n], the row of each sample's target in this trace, or None; history: [n, steps + 1] or None,
    its last entry is ``divergence``; notes: {name: [n]}; stuck: [n], samples whose gradient was zero at every step; inputs: the
    adversarial inputs or None; marks: {step: inputs}; marked: {step: representations}; forwards, backwards: passes, in samples.
    """

    ids: tuple[str, ...]
    aim: str
    step: int
    clean: Tensor
    adversarial: Tensor
    divergence: Tensor
    targets: Tensor | None = None
    partner: Tensor | None = None
    history: Tensor | None = None
    notes: Mapping[str, Tensor] = field(default_factory=dict)
    stuck: Tensor | None = None
    inputs: Tensor | None = None
    marks: Mapping[int, Tensor] = field(default_factory=dict)
    marked: Mapping[int, Tensor] = field(default_factory=dict)
    forwards: int = 0
    backwards: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        moved = f"divergence {self.divergence.min():.3g} to {self.divergence.max():.3g}, median {self.divergence.median():.3g}"
        return f"Trace({len(self)} samples, aim {self.aim}, {self.step} steps, {moved})"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A metric's numbers where some need a word: values [n], and a note a row (``""``, ``"abstained"``, ``"no certificate"``)."""

    values: Tensor
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What a metric may use besides the trace and the bank."""

    encoder: Encoder
    divergence: Divergence
    random: SampleRandom
    known_labels: Sequence[int] | None = None

    @property
    def labels(self) -> Tensor:
        """Return the labels of the trace's samples, [n].

        Raises:
            MissingLabels: the dataset has none.
        """
        if self.known_labels is None:
            raise MissingLabels("this metric reads labels and the dataset has none; give a dataset with labels, or leave the metric out")
        return torch.as_tensor(self.known_labels)


@runtime_checkable
class Attack(Protocol):
    """Adversarial inputs for a batch: a frozen dataclass whose fields are its configuration.

    Two attributes may be there, read once at the seam: ``ball`` (a ``Ball``; without it only the bounds are checked) and ``aims``
    (without it both).
    """

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """Return the adversarial inputs, [batch, *input]; ``random`` is the only source of randomness."""


class Metric(Protocol):
    """One number a row, read off a trace.

    aim: ``"away"``, ``"target"`` or ``"clean"`` (no attack); better: ``"lower"`` or ``"higher"``; statistic: ``"rate"``, ``"mean"`` or
    ``"median"``; per: ``"sample"``, or ``"pair"`` (rows for first sides only); span: the least and the largest value. A metric on each
    encoder's own scale says ``comparable = False`` (without it, True), and two encoders are not compared by it. ``check_metric`` checks
    all of these.
    """

    aim: ClassVar[str]
    better: ClassVar[str]
    statistic: ClassVar[str]
    per: ClassVar[str]
    span: ClassVar[tuple[float, float]]

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor | Rows | Mapping[str, Tensor | Rows]:
        """Return [n] for per sample, [n / 2] for per pair; NaN where the metric is not defined."""


@dataclass(frozen=True)
class Suite:
    """Named attacks that belong together; a plan runs its members as ordinary attacks, labelled ``suite/member``."""

    members: Mapping[str, Attack]


def aims_of(attack: Attack) -> tuple[str, ...]:
    """Return the aims that an attack supports: both unless it says otherwise."""
    return tuple(getattr(attack, "aims", AIMS))


def ball_of(attack: Attack) -> Ball | None:
    """Return the ball that an attack promises to stay in, if it promises one."""
    return getattr(attack, "ball", None)


def check_metric(metric: Any, label: str) -> None:
    """Raise unless a metric says how its numbers are read; see ``Metric``.

    Raises:
        PlanError: a class attribute is missing, or has a value that none can have.
    """
    for name, allowed in _READINGS.items():
        value = getattr(metric, name, True if name == "comparable" else None)
        if value not in allowed:
            said = "is missing" if value is None else f"is {value!r}"
            raise PlanError(f"{name} of metric {label!r} {said}; expected {' or '.join(map(repr, allowed))}, as a class attribute")
    span: Any = getattr(metric, "span", None)
    if not _is_span(span):
        said = "is missing" if span is None else f"is {span!r}"
        raise PlanError(
            f"span of metric {label!r} {said}; expected two numbers, the least and the largest value, such as (0, 1) or (0, float('inf'))"
        )
    if metric.statistic != "median" and not all(map(math.isfinite, span)):
        raise PlanError(
            f"span of metric {label!r} is {span!r}; the interval of a {metric.statistic} needs a finite one: give it, or take 'median'"
        )
    if metric.per == "pair" and metric.aim != "target":
        raise PlanError(f"per of metric {label!r} is 'pair', and its aim {metric.aim!r}; pairs are measured under aim 'target'")


def check_number(name: str, value: Any) -> None:
    """Raise unless a parameter is a plain, finite number.

    Raises:
        ValueError: it is something else.
    """
    if not _is_number(value):
        remedy = ", without quotes" if isinstance(value, str) else f", not a {type(value).__name__}"
        raise ValueError(f"{name} is {value!r}; expected a plain number, such as 0.03{remedy}")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; expected a finite number, such as 0.03")


def check_radius(name: str, value: Any) -> None:
    """Raise unless a parameter can be the radius of a ball.

    Raises:
        ValueError: it is no number, not finite or negative.
    """
    check_number(name, value)
    if value < 0:
        raise ValueError(f"{name} is {value:g}; a radius cannot be negative")


def check_whole(name: str, value: Any) -> None:
    """Raise unless a parameter is a whole number of at least 1.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected a whole number, such as 10")
    if value < 1:
        raise ValueError(f"{name} is {value}; at least one is needed")


def lengths(values: Tensor) -> Tensor:
    """Return the Euclidean length of each sample; torch's own norm adds one by one, and is off by 1e-4 for a photo's equal float32 steps.

    values: [batch, *input] -> [batch]
    """
    return values.flatten(1).square().sum(dim=1).sqrt()


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Reshape [batch] so that it multiplies ``like`` [batch, *input] sample by sample."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_span(span: Any) -> bool:
    return isinstance(span, (tuple, list)) and len(span) == 2 and all(map(_is_number, span)) and span[0] < span[1]


def _double(tensor: Tensor) -> Tensor:
    # Some accelerators have no float64; there the exact work is done on the CPU.
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()

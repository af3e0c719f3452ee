"""The values that travel: what an attack may see, what it may return, what is kept of it, and what a metric gives."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rt_core.divergences import Divergence
from rt_core.encoders import Bound, Encoder, round_inward
from rt_core.errors import MissingLabels, PlanError
from rt_core.fingerprints import content_of
from rt_core.neighbors import Bank
from rt_core.randomness import SampleRandom, whole_of

__all__ = [
    "AIMS",
    "Attack",
    "Attempt",
    "Ball",
    "Batch",
    "Context",
    "Divergence",
    "FrozenTensor",
    "Metric",
    "Progress",
    "Rows",
    "Suite",
    "Trace",
    "aims_of",
    "ball_of",
    "check_metric",
    "check_number",
    "check_radii",
    "check_radius",
    "check_whole",
    "is_alone",
    "lengths",
    "needs_fit",
    "parts_of",
    "passes_of_attack",
    "per_sample",
    "steps_of",
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
class FrozenTensor:
    """A tensor as a value, for the fields of frozen dataclasses: hashable, compared by content, described by its shape."""

    shape: tuple[int, ...]
    dtype: str
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, values: Any) -> "FrozenTensor":
        """Return a tensor, or what torch makes one of, as a value."""
        if isinstance(values, FrozenTensor):
            return values
        tensor = torch.as_tensor(values)
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), content_of(tensor))

    def on(self, device: torch.device) -> Tensor:
        """Return the tensor itself, on a device."""
        return torch.frombuffer(bytearray(self.content), dtype=getattr(torch, self.dtype)).reshape(self.shape).to(device)


@dataclass(frozen=True, slots=True)
class Ball:
    """How far an attack may move an input: ``norm`` is ``"linf"`` or ``"l2"`` over all of one input, ``radius`` in the bounds' units.

    radius: for linf also one number for each entry of an input's first axis (a channel, or a feature of a vector); mask: bool, True where
    the attack may move, broadcasts over one input; elsewhere an input stays as it is, bit for bit.

    Raises:
        ValueError: another norm, a radius that is no number, not finite or negative, or a mask that is not bool or nowhere True.
    """

    norm: str
    radius: float | tuple[float, ...]
    mask: FrozenTensor | None = None

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm is {self.norm!r}; expected 'linf' or 'l2'")
        object.__setattr__(self, "radius", check_radii("radius", self.radius))
        if self.norm == "l2" and isinstance(self.radius, tuple):
            raise ValueError(f"radius is {self.radius}; an l2 ball is round and has one radius: give one number, or take norm='linf'")
        if self.mask is not None:
            object.__setattr__(self, "mask", FrozenTensor.of(self.mask))
            if self.mask.dtype != "bool" or True not in self.mask.content:
                raise ValueError(f"mask is {self.mask}; expected bool, and True somewhere, where the attack may move")

    def __str__(self) -> str:
        radius = "a radius for each feature (distances are in units of it)" if self._varies else f"radius {self.radius:.9g}"
        return radius + (" and a mask" if self.mask is not None else "")

    @property
    def extent(self) -> float:
        """Return the radius, or the largest of several."""
        return max(self.radius) if isinstance(self.radius, tuple) else self.radius

    def radii(self, like: Tensor) -> float | Tensor:
        """Return the radius as what multiplies ``like``, [batch, *input].

        Raises:
            ValueError: the input has another number of entries on its first axis than there are radii.
        """
        if not isinstance(self.radius, tuple):
            return self.radius
        if len(self.radius) != like.shape[1]:
            raise ValueError(
                f"epsilon has {len(self.radius)} numbers, and an input has {like.shape[1]} entries on its first axis; give one for each, or one for all"
            )
        return torch.tensor(self.radius, dtype=like.dtype, device=like.device).reshape(-1, *[1] * (like.ndim - 2))

    def free(self, like: Tensor) -> Tensor | None:
        """Return the mask as what broadcasts over ``like``, [batch, *input]; None where everything may move.

        Raises:
            ValueError: it does not fit.
        """
        if self.mask is None:
            return None
        given, wanted = self.mask.shape, tuple(like.shape[1:])
        if len(given) > len(wanted) or any(size not in (1, whole) for size, whole in zip(given[::-1], wanted[::-1], strict=False)):
            raise ValueError(f"mask has shape {list(given)}; it must broadcast over one input, {list(wanted)}")
        return self.mask.on(like.device)

    def box(self, center: Tensor, bounds: tuple[Bound, Bound]) -> tuple[Tensor, Tensor]:
        """Return the least and the largest value that each element may take: inside the bounds, and for linf inside the ball.

        Computed in float64 and rounded inward, so that no float32 value in it is outside by even a last bit. Where a mask is False, both
        are the center.

        center: [batch, *input] -> two of the same shape
        """
        low, high = (bound.expand_as(center) for bound in round_inward(bounds, center))
        if self.norm == "linf":
            exact = _double(center)
            grid, radius = exact.to(center.dtype), self.radii(exact)
            ball_low, ball_high = ((exact + way * radius).to(center.dtype) for way in (-1, 1))
            ball_low = torch.where(exact - ball_low.double() > radius, torch.nextafter(ball_low, grid), ball_low)
            ball_high = torch.where(ball_high.double() - exact > radius, torch.nextafter(ball_high, grid), ball_high)
            low, high = torch.maximum(low, ball_low.to(low.device)), torch.minimum(high, ball_high.to(high.device))
        free = self.free(center)
        return (low, high) if free is None else (torch.where(free, low, center), torch.where(free, high, center))

    def project(self, inputs: Tensor, center: Tensor, bounds: tuple[Bound, Bound], *, box: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the inputs moved back into the ball and the bounds; ``box`` is that of ``center`` where it is known already.

        inputs, center: [batch, *input] -> same shape
        """
        low, high = self.box(center, bounds) if box is None else box
        placed = inputs
        if self.norm == "l2":
            moved = inputs - center if self.mask is None else torch.where(low == high, 0, inputs - center)
            length = per_sample(lengths(moved), moved)
            inside = moved * (self.extent * _INSIDE / length)
            placed = center + inside
            # In a small ball around a large value, rounding the sum is a long way: where it went outward, one step back.
            placed = torch.where((placed - center).abs() > inside.abs(), torch.nextafter(placed, center), placed)
            placed = torch.where(length > self.extent * _INSIDE, placed, inputs)
        placed = torch.minimum(torch.maximum(placed, low), high)
        return placed if self.mask is None else torch.where(low == high, low, placed)  # the clamp may give 0 for -0: other bits

    def distance(self, inputs: Tensor, center: Tensor) -> Tensor:
        """Return how far each sample was moved, in float64; infinity where a mask forbids it.

        With a radius for each feature, distances are in units of it: 1 is on the surface.

        inputs, center: [batch, *input] -> [batch]
        """
        moved = _double(inputs) - _double(center)
        if self._varies:
            radii, length = self.radii(moved), moved.abs()
            share = (length / radii).nan_to_num(nan=0.0, posinf=torch.inf)  # 0 / 0: a feature that may not move, and did not
            moved = torch.where(length > radii, share.clamp(min=1 + 2**-52), share)  # a quotient may round to 1
        free = self.free(moved)
        if free is not None:
            moved = torch.where(free | (moved == 0), moved, torch.inf)
        return torch.linalg.vector_norm(moved.flatten(1), ord=torch.inf if self.norm == "linf" else 2, dim=1)

    @property
    def tolerance(self) -> float:
        """Return the largest measured distance that counts as inside: the radius itself for linf, 1e-6 more for l2."""
        return 1.0 if self._varies else self.extent * (1 if self.norm == "linf" else 1 + 1e-6)

    @property
    def _varies(self) -> bool:
        return isinstance(self.radius, tuple)


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


class Progress(Protocol):
    """A place for what is half done, such as a run's store has for each sample.

    All metrics of a sample share it: a name has to say whose it is, and of which configuration.
    """

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Return what was saved under a name, or None."""

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a name, until the sample is done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What a metric may use besides the trace and the bank.

    batch: how many samples a metric that runs the encoder should send at a time; shared: a place for what does not depend on the attack,
    the same one for all attacks on the same samples and encoder; progress: for a metric that sees samples alone, where it may keep what
    took long, so that a run that dies goes on inside the sample.
    """

    encoder: Encoder
    divergence: Divergence
    random: SampleRandom
    known_labels: Sequence[int] | None = None
    read: Callable[[], Tensor] | None = None
    batch: int = 64
    shared: dict[Any, Any] = field(default_factory=dict)
    progress: Progress | None = None

    @property
    def inputs(self) -> Tensor:
        """Return the clean inputs of the trace's samples, [n, *input], read when they are asked for.

        Raises:
            ValueError: there are none.
        """
        if self.read is None:
            raise ValueError("this metric looks at the inputs, and the context has none; give read=lambda: inputs")
        return self.read()

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

    Some attributes may be there, read once at the seam: ``ball`` (a ``Ball``; without it only the bounds are checked), ``aims`` (without
    it both), ``joint`` (True where the loss couples the rows of a batch: a run then gives it whole blocks of 64, whatever its batch),
    ``steps`` (how many, what its rows are labelled by), ``passes`` (forward and backward ones a sample, two whole numbers, for what it costs),
    ``climbs`` (``"divergence"`` unless it climbs something else, which its diagnosis has to know) and
    ``fit(encoder, train, divergence, *, random)``, which a run calls once for each encoder with the plan's ``train``.
    """

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """Return the adversarial inputs, [batch, *input]; ``random`` is the only source of randomness."""


class Metric(Protocol):
    """One number a row, read off a trace.

    aim: ``"away"``, ``"target"`` or ``"clean"`` (no attack); better: ``"lower"`` or ``"higher"``; statistic: ``"rate"``, ``"mean"`` or
    ``"median"``; per: ``"sample"``, or ``"pair"`` (rows for first sides only); span: the least and the largest value. A metric on each
    encoder's own scale says ``comparable = False`` (without it, True), and two encoders are not compared by it. ``check_metric`` checks
    all of these.

    One of aim clean that takes long says ``alone = True``: a run gives it one sample at a time, and keeps each number as soon as it is
    there. It may have ``rehearsal()``, a reduced metric for the rehearsal of two samples, and then says by ``passes`` how many forward and
    backward passes a sample it takes itself. A metric, or what a field of it holds, may have ``fit(encoder, train, *, random)``, which a
    run calls once for each encoder with the plan's ``train``.
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


def steps_of(attack: Any) -> int:
    """Return how many steps an attack says that it takes, 0 if it does not say."""
    return getattr(attack, "steps", 0) or 0


def passes_of_attack(attack: Any) -> tuple[int, int] | None:
    """Return the forward and backward passes a sample that an attack or a metric says it takes, or None."""
    passes = getattr(attack, "passes", None)
    forwards, backwards = map(whole_of, passes if isinstance(passes, tuple) and len(passes) == 2 else (None, None))
    return None if forwards is None or backwards is None else (forwards, backwards)


def is_alone(metric: Any) -> bool:
    """Say whether a metric sees one sample at a time."""
    return bool(getattr(metric, "alone", False))


def parts_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that hold a dataclass, such as the probe of a metric."""
    if not is_dataclass(thing) or isinstance(thing, type):
        return {}
    held = {one.name: getattr(thing, one.name) for one in fields(thing)}
    return {name: part for name, part in held.items() if is_dataclass(part) and not isinstance(part, (type, FrozenTensor))}


def needs_fit(thing: Any) -> bool:
    """Say whether an attack or metric, or a part of it, has a ``fit`` and is not fitted: a thing whose ``fitted`` is set is taken as it is."""
    if getattr(thing, "fitted", None):
        return False
    return callable(getattr(thing, "fit", None)) or any(map(needs_fit, parts_of(thing).values()))


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
    if is_alone(metric) and metric.aim != "clean":
        raise PlanError(f"metric {label!r} sees samples alone, and its aim is {metric.aim!r}; only one of aim 'clean' can")
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


def check_radii(name: str, value: Any) -> Any:
    """Return a radius, or several as a tuple.

    Raises:
        ValueError: one of them cannot be the radius of a ball.
    """
    if not isinstance(value, (tuple, list)):
        check_radius(name, value)
        return value
    if not value:
        raise ValueError(f"{name} is empty; give one number, or one for each channel or feature")
    for index, one in enumerate(value):
        check_radius(f"{name}[{index}]", one)
    return tuple(value)


def check_radius(name: str, value: Any) -> None:
    """Raise unless a parameter can be the radius of a ball.

    Raises:
        ValueError: it is no number, not finite or negative.
    """
    check_number(name, value)
    if value < 0:
        raise ValueError(f"{name} is {value:g}; a radius cannot be negative")


def check_whole(name: str, value: Any) -> int:
    """Return a parameter that is a whole number of at least 1, Python's or numpy's, as a plain one.

    Raises:
        ValueError: it is something else.
    """
    if (whole := whole_of(value)) is None:
        raise ValueError(f"{name} is {value!r}; expected a whole number, such as 10")
    if whole < 1:
        raise ValueError(f"{name} is {value}; at least one is needed")
    return whole


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

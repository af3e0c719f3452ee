"""One attack on some inputs: called part by part, what comes back measured again, kept as a trace."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from rt_core.datasets import as_samples
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.errors import AttackViolation, EncoderError, ShapeError
from rt_core.neighbors import Bank
from rt_core.randomness import SampleRandom, names_of, whole_of
from rt_core.shapes import check_shape
from rt_core.traces import Attack, Attempt, Batch, Suite, Trace, aims_of, ball_of, steps_of

__all__ = [
    "BLOCK",
    "attack_batch",
    "check_batch",
    "check_fit",
    "measure",
    "moved_to",
    "passes_of",
    "perturb",
    "progress_bar",
    "represent",
    "represent_rows",
]

BLOCK = 64  # samples at a time unless told otherwise, and in a run's block whatever the batch
_LENT = ("inputs", "clean", "targets", "target_inputs", "start")  # what of a batch an attack must leave as it is
_WITHOUT_DOUBLE = frozenset({"mps"})  # types of devices that have no float64


def perturb(
    attack: Attack,
    encoder: Any,
    inputs: Tensor,
    *,
    targets: Tensor | None = None,
    divergence: str | Divergence = "l2",
    seed: int = 0,
    ids: Sequence[object] | None = None,
    start: Tensor | None = None,
    bank: Tensor | Bank | None = None,
    batch: int | None = None,
    progress: bool = False,
) -> Trace:
    """Attack some inputs, without an evaluation around it.

    Args:
        attack: any attack; what it returns is measured again and refused if it left its ball, the bounds or the shape.
        encoder: an ``Encoder``, or a network with bounds 0..1.
        inputs: [n, *input], float32 or float64, inside the encoder's bounds.
        targets: inputs to imitate, [n, *input]: aim target. None: aim away from each input's own representation.
        divergence: what the attack moves, by name or a function.
        seed, ids: of the randomness, which belongs to (seed, id); ids are 0 … n-1 unless given.
        start: a first iterate to be taken as it is, for tests and warm starts; what comes of it may lie outside the ball.
        bank: inputs of other samples, or a ``Bank`` of representations. A sample's own row is the one with its input; in a ``Bank``, that of
            its id where ``ids`` are given, or else the one equal to its representation.
        batch: how many inputs at a time, 64 unless given.

    Returns:
        A trace with the adversarial inputs, on the inputs' device.

    Raises:
        InvalidInputs, ShapeError, ValueError: before any pass, with the remedy.
        AttackViolation: the attack returned what its ball or the bounds forbid.
    """
    if isinstance(attack, str):
        raise ValueError(f"attack is {attack!r}; perturb takes the attack itself: rt_core.attack({attack!r}, …)")
    if isinstance(attack, Suite):
        raise ValueError(
            f"a suite is {len(attack.members)} attacks ({', '.join(attack.members)}); perturb takes one of them, run takes the suite"
        )
    encoder, moved_by = as_encoder(encoder), find_divergence(divergence)
    check_inputs(inputs, encoder)
    names = names_of(range(len(inputs)) if ids is None else ids)
    if len(names) != len(inputs):
        raise ShapeError(f"{len(inputs)} inputs and {len(names)} ids; one an input is needed")
    for what, given in (("targets", targets), ("start", start)):
        if given is not None and not given.is_floating_point():
            raise TypeError(f"{what} is {given.dtype}; expected inputs of the same shape ({list(inputs.shape)}), not labels")
        if given is not None and given.shape != inputs.shape:
            raise ShapeError(f"{what} has shape {list(given.shape)}; expected that of the inputs, {list(inputs.shape)}")
    if targets is not None:
        check_inputs(targets, encoder, what="targets")
    aim = "away" if targets is None else "target"
    check_fit(attack, encoder, aim, inputs, label=type(attack).__name__)
    size = check_batch(batch)
    with torch.inference_mode(False), encoder.in_use():
        clean = represent_rows(encoder, inputs, size)
        known = _bank_of(encoder, bank, size)
        whole = Batch(
            ids=names,
            inputs=inputs,
            clean=clean,
            aim=aim,
            targets=None if targets is None else represent_rows(encoder, targets, size),
            target_inputs=targets,
            bank=known,
            own=_own_inputs(bank, inputs) if isinstance(bank, Tensor) else _own_rows(bank, None if ids is None else names, clean),
            start=start,
        )
        with progress_bar(progress, len(inputs)) as bar:
            return attack_batch(
                encoder, attack, whole, moved_by, SampleRandom.of(seed, names), size, label=type(attack).__name__, tick=bar.update
            )


def represent(encoder: Any, dataset: Any, *, batch: int | None = None, progress: bool = False) -> Tensor:
    """Return the representations of inputs or of any dataset, [n, dim], float32 (float64 kept), on the CPU."""
    encoder, samples = as_encoder(encoder), as_samples(dataset)
    size = check_batch(batch)
    parts = []
    with torch.inference_mode(False), encoder.in_use(), progress_bar(progress, len(samples)) as bar:
        for rows in _chunks(range(len(samples)), size):
            inputs = samples.inputs(rows)
            check_inputs(inputs, encoder, what=f"inputs of dataset {samples.name!r}", ids=[samples.ids[row] for row in rows])
            parts.append(represent_rows(encoder, inputs, size))
            bar.update(len(rows))
    return torch.cat(parts)


def attack_batch(
    encoder: Encoder,
    attack: Attack,
    whole: Batch,
    divergence: Divergence,
    random: SampleRandom,
    size: int,
    *,
    label: str,
    represented: int | None = None,
    tick: Callable[[int], Any] = lambda samples: None,
) -> Trace:
    """Attack a batch part by part, check and measure what comes back; ``represented``: how many at a time, as many as are attacked unless given."""
    before, parts = passes_of(encoder), []
    for rows in _chunks(range(len(whole.ids)), size):
        chosen = slice(rows[0], rows[-1] + 1)
        part = _part(whole, chosen, encoder.where() or whole.inputs.device)
        attempt = _attempt(encoder, attack, part, divergence, random.select(chosen), label)
        parts.append(_trace(encoder, attack, part, attempt, divergence, home=whole.inputs.device, size=represented or len(rows)))
        tick(len(rows))
    passes = passes_of(encoder)
    return _joined(parts, forwards=passes.forwards - before.forwards, backwards=passes.backwards - before.backwards)


def check_fit(attack: Attack, encoder: Encoder, aim: str, inputs: Tensor, *, label: str) -> None:
    """Raise ValueError unless an attack has this aim, and a ball that is no larger than the encoder's bounds."""
    if aim not in aims_of(attack):
        if aim == "target":
            reason = "it does not support targets; leave them out, or take an attack that imitates"
        elif getattr(attack, "start", None) == "clean":
            reason = (
                "an attack that starts at the clean input cannot move away from it, since the gradient of the divergence is zero there: "
                "start='random' or 'eta' can"
            )
        else:
            reason = "it only imitates targets; give targets, or take an attack that moves away"
        raise ValueError(f"attack {label!r} does not support aim {aim!r} (it supports {', '.join(aims_of(attack))}): {reason}")
    ball = ball_of(attack)
    if ball is None:
        return
    ball.radii(inputs), ball.free(inputs)  # raise where they do not fit
    low, high = (torch.as_tensor(bound) for bound in encoder.bounds)
    width = (high - low).max().item()
    reach = width if ball.norm == "linf" else width * inputs[0].numel() ** 0.5
    if ball.extent > reach:
        raise ValueError(
            f"epsilon is {ball.extent:g}; inputs span a range of {width:g}, so {'it' if ball.norm == 'linf' else 'an l2 epsilon'} must be in [0, {reach:g}]"
            + (f": write {ball.extent:g}/255, not {ball.extent:g}" if width == 1 and ball.extent <= 255 else "")
        )


def measure(divergence: Divergence, anchor: Tensor, representations: Tensor) -> Tensor:
    """Return the divergence of representations from their anchors in float64, on the CPU: [batch]."""
    return divergence(anchor.cpu().double(), representations.cpu().double())


def moved_to(device: torch.device, values: Tensor) -> Tensor:
    """Return values on a device, in float32 where it has no float64."""
    return (values.float() if values.dtype == torch.float64 and device.type in _WITHOUT_DOUBLE else values).to(device)


def represent_rows(encoder: Encoder, inputs: Tensor, size: int) -> Tensor:
    """Return the representations of some inputs, ``size`` at a time, on the CPU.

    Raises:
        EncoderError: one of them is not finite.
    """
    with torch.no_grad():
        device = encoder.where() or inputs.device
        representations = torch.cat([encoder(moved_to(device, part)).cpu() for part in inputs.split(size)])
    broken = (~representations.isfinite()).any(1).sum().item()
    if broken:
        raise EncoderError(
            f"encoder {encoder.name!r} gave NaN or infinity for {broken} of {len(inputs)} inputs; no measure reads such representations"
        )
    return representations


def passes_of(encoder: Encoder) -> SimpleNamespace:
    """Return a copy of the encoder's counts of passes."""
    return SimpleNamespace(**vars(encoder.passes))


def check_batch(batch: int | None) -> int:
    """Return how many samples go at a time: 64 unless told otherwise."""
    if batch is None:
        return BLOCK
    if (size := whole_of(batch)) is None or size < 1:
        raise ValueError(f"batch is {batch!r}; expected a positive number of samples")
    return size


@contextlib.contextmanager
def progress_bar(wanted: bool, total: int, postfix: str = "") -> Iterator[tqdm]:
    # disable=None: no bar where stderr is no terminal.
    with tqdm(total=total, disable=None if wanted else True, unit="sample", desc=postfix or None, leave=False) as bar:
        yield bar


def _attempt(encoder: Encoder, attack: Attack, part: Batch, divergence: Divergence, random: SampleRandom, label: str) -> Attempt:
    lent = {name: value for name in _LENT if (value := getattr(part, name)) is not None}
    unchanged = {name: value._version for name, value in lent.items()}
    try:
        with random.global_generators("global generators"), torch.enable_grad():
            returned = attack(encoder, part, divergence, random=random)
    except Exception as error:
        error.add_note(f"in attack {label!r}, aim {part.aim}, on encoder {encoder.name!r}, samples {part.ids[0]} to {part.ids[-1]}")
        raise
    attempt = returned if isinstance(returned, Attempt) else Attempt(inputs=returned)
    for name, value in lent.items():
        if value._version != unchanged[name]:
            raise AttackViolation(f"attack {label!r} changed the {name} that it was given in place; it must return new ones")
    for name, note in attempt.notes.items():
        check_shape(note, "batch", what=f"note {name!r} of attack {label!r}", batch=len(part.ids))
    if attempt.history is not None:
        check_shape(attempt.history, "batch steps", what=f"history of attack {label!r}", batch=len(part.ids))
    checked = {step: _checked(encoder, attack, part, inputs, label) for step, inputs in attempt.marks.items()}
    return replace(attempt, inputs=_checked(encoder, attack, part, attempt.inputs, label), marks=checked)


def _checked(encoder: Encoder, attack: Attack, part: Batch, inputs: Any, label: str) -> Tensor:
    """Return adversarial inputs, detached, after measuring that they are what the attack promises."""
    if not isinstance(inputs, Tensor) or inputs.shape != part.inputs.shape or inputs.dtype != part.inputs.dtype:
        what = f"{inputs.dtype} {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise AttackViolation(f"attack {label!r} returned {what}; expected {part.inputs.dtype} {list(part.inputs.shape)}")
    inputs = inputs.detach().to(part.inputs.device)
    finite = inputs.isfinite().flatten(1).all(1)
    if not finite.all():
        raise AttackViolation(f"attack {label!r} returned NaN or infinity for sample {part.ids[_first(~finite)]!r}")
    if part.start is not None:
        return inputs
    low, high = (torch.as_tensor(bound, dtype=torch.float64, device="cpu").to(inputs.dtype).to(inputs.device) for bound in encoder.bounds)
    outside = ((inputs < low) | (inputs > high)).flatten(1).any(1)
    if outside.any():
        raise AttackViolation(
            f"attack {label!r} moved sample {part.ids[_first(outside)]!r} out of the encoder's bounds; end with encoder.clip(…)"
        )
    ball = ball_of(attack)
    if ball is not None:
        distance = ball.distance(inputs, part.inputs)
        far = distance > ball.tolerance
        if far.any():
            row = _first(far)
            raise AttackViolation(
                f"attack {label!r} moved sample {part.ids[row]!r} by {distance[row].item():.9g} ({ball.norm}), and its ball has {ball}; "
                "end with ball.project(…)"
            )
    return inputs


def _trace(
    encoder: Encoder, attack: Attack, part: Batch, attempt: Attempt, divergence: Divergence, *, home: torch.device, size: int
) -> Trace:
    """Represent what an attack returned and put it on the CPU; the inputs themselves at ``home``."""
    adversarial, clean = represent_rows(encoder, attempt.inputs, size), part.clean.cpu()
    measured = measure(divergence, part.anchor, adversarial)
    notes = {name: note.detach().cpu() for name, note in attempt.notes.items()}
    radius = getattr(ball_of(attack), "extent", None)
    # A search whose goal was reached before it began rightly leaves the input alone.
    reached = notes["reached"] == 1 if "reached" in notes else torch.zeros(len(part.ids), dtype=torch.bool)
    return Trace(
        ids=part.ids,
        aim=part.aim,
        step=steps_of(attack),
        clean=clean,
        adversarial=adversarial,
        divergence=measured,
        targets=None if part.targets is None else part.targets.cpu(),
        history=None if attempt.history is None else torch.cat([attempt.history.detach().cpu().double(), measured[:, None]], dim=1),
        notes=notes,
        stuck=notes["zero_gradient"] == 1 if "zero_gradient" in notes else (adversarial == clean).all(1) & (radius != 0) & ~reached,
        inputs=attempt.inputs.to(home),
        marks={step: inputs.to(home) for step, inputs in attempt.marks.items()},
        marked={step: represent_rows(encoder, inputs, size) for step, inputs in attempt.marks.items()},
    )


def _joined(parts: Sequence[Trace], **passes: Any) -> Trace:
    """Return the traces of consecutive parts as one."""
    first = parts[0]
    joined: dict[str, Any] = {}
    for field in fields(Trace):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor):
            joined[field.name] = torch.cat(values)
        elif isinstance(values[0], Mapping):
            joined[field.name] = {key: torch.cat([value[key] for value in values]) for key in values[0]}
    return replace(first, ids=tuple(identity for part in parts for identity in part.ids), **joined, **passes)


def _part(whole: Batch, rows: slice, device: torch.device) -> Batch:
    moved: dict[str, Any] = {}
    for name in (*_LENT, "own"):
        if (values := getattr(whole, name)) is not None:
            # What was made under inference_mode is copied: autograd may not touch it.
            moved[name] = moved_to(device, values[rows].clone() if values.is_inference() else values[rows])
    return replace(whole, ids=whole.ids[rows], **moved)


def _bank_of(encoder: Encoder, bank: Tensor | Bank | None, size: int) -> Bank | None:
    if bank is None or isinstance(bank, Bank):
        return bank
    check_inputs(bank, encoder, what="bank")
    return Bank(represent_rows(encoder, bank, size), ids=tuple(f"bank/{row}" for row in range(len(bank))))


def _own_inputs(bank: Tensor, inputs: Tensor) -> Tensor:
    """Return the row of each input in a bank of inputs, bit for bit the same, or -1: representations may differ with the batch."""
    rows: dict[bytes, int] = {}
    for row, one in enumerate(bank):
        rows.setdefault(_digest(one), row)
    return torch.tensor([rows.get(_digest(one), -1) for one in inputs])


def _digest(one: Tensor) -> bytes:
    return hashlib.sha256(one.detach().cpu().double().numpy().tobytes()).digest()


def _own_rows(bank: Bank | None, ids: Sequence[str] | None, clean: Tensor) -> Tensor | None:
    """Return the row of each sample in a bank of representations: by its id, if it has one that was given, or else an equal one; or -1."""
    if bank is None:
        return None
    own = torch.full((len(clean),), -1) if ids is None else bank.rows(ids)
    for row in (own < 0).nonzero().flatten().tolist():
        for first, block in bank.blocks():
            same = (block == clean[row]).all(1).nonzero().flatten()
            if len(same):
                own[row] = first + int(same[0])
                break
    return own


def _chunks(rows: range, size: int) -> Iterator[range]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0])

"""The only loop over data: clean representations, attacks, metrics, in blocks that do not depend on what else runs."""

import contextlib
import hashlib
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from rt_core.datasets import Samples, as_samples
from rt_core.divergences import Divergence, describe_divergence, find_divergence
from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.errors import AttackViolation, PlanError, RobustnessWarning, ShapeError
from rt_core.evaluation import Evaluation, describe
from rt_core.neighbors import Bank
from rt_core.randomness import SampleRandom, stream
from rt_core.registry import Use, installed
from rt_core.results import Results
from rt_core.shapes import check_shape
from rt_core.store import Store, key_of
from rt_core.traces import AIMS, Attack, Attempt, Batch, Context, Metric, Rows, Suite, Trace, aims_of, ball_of

__all__ = ["BLOCK", "perturb", "represent", "run"]

BLOCK = 64  # samples (32 pairs) in a block, whatever the batch
_REHEARSED = 2
_REHEARSAL_BANK = 32


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
        bank: inputs of other samples, or a ``Bank`` of representations; a row of a sample's id, or equal to its representation, is its own.
        batch: how many inputs at a time, 64 unless given.

    Returns:
        A trace with the adversarial inputs, on the inputs' device.

    Raises:
        InvalidInputs, ShapeError, ValueError: before any pass, with the remedy.
        AttackViolation: the attack returned what its ball or the bounds forbid.
    """
    if isinstance(attack, Suite):
        raise ValueError(
            f"a suite is {len(attack.members)} attacks ({', '.join(attack.members)}); perturb takes one of them, run takes the suite"
        )
    encoder, moved_by = as_encoder(encoder), find_divergence(divergence)
    check_inputs(inputs, encoder)
    names = tuple(map(str, range(len(inputs)) if ids is None else ids))
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
    _check_fit(attack, encoder, aim, inputs, label=type(attack).__name__)
    size = _checked_batch(batch, len(inputs))
    with torch.inference_mode(False), encoder.in_use():
        clean = _represent_rows(encoder, inputs, size)
        known = _bank_of(encoder, bank, size)
        whole = Batch(
            ids=names,
            inputs=inputs,
            clean=clean,
            aim=aim,
            targets=None if targets is None else _represent_rows(encoder, targets, size),
            target_inputs=targets,
            bank=known,
            own=None if known is None else _own_rows(known, names, clean),
            start=start,
        )
        with _progress(progress, len(inputs)) as bar:
            return _traced(
                encoder, attack, whole, moved_by, SampleRandom.of(seed, names), size, label=type(attack).__name__, tick=bar.update
            )


def represent(encoder: Any, dataset: Any, *, batch: int | None = None, progress: bool = False) -> Tensor:
    """Return the representations of inputs or of any dataset, [n, dim], float32 (float64 kept), on the CPU."""
    encoder, samples = as_encoder(encoder), as_samples(dataset)
    size = _checked_batch(batch, len(samples))
    parts = []
    with torch.inference_mode(False), encoder.in_use(), _progress(progress, len(samples)) as bar:
        for rows in _chunks(range(len(samples)), size):
            inputs = samples.inputs(rows)
            check_inputs(inputs, encoder, what=f"inputs of dataset {samples.name!r} from row {rows[0]} on")
            parts.append(_represent_rows(encoder, inputs, size))
            bar.update(len(rows))
    return torch.cat(parts)


def run(
    plan: Evaluation,
    *,
    store: str | Path | None = None,
    device: str = "auto",
    batch: int | None = None,
    progress: bool = True,
) -> Results:
    """Run a plan: a rehearsal of two samples through everything, then each encoder, block by block.

    Args:
        store: a folder; finished blocks are kept there and found again, so that a run that died goes on where it was.
        device: ``"auto"`` takes the accelerator if there is one.
        batch: how many samples an attack sees at a time, at most 64. Encoders whose last bits depend on the rows beside a row (most with a
            Linear layer) give slightly other numbers with another batch; the manifest says which.
        progress: one bar on stderr, where that is a terminal.

    Raises:
        PlanError, InvalidInputs, …: in the first seconds, from the rehearsal.
        AttackViolation: an attack returned what its ball or the bounds forbid.
        StoreError: the folder holds another run.
    """
    began = time.monotonic()
    samples = as_samples(plan.dataset.make("dataset") if isinstance(plan.dataset, Use) else plan.dataset)
    work = _Work.of(plan, samples, _checked_batch(batch, BLOCK), _device(device))
    identity = {"dataset": key_of([samples.name, *samples.ids]), "seed": plan.seed, "pairing": plan.pairing, "batch": work.batch}
    kept = Store(store, identity)
    with torch.inference_mode(False):
        estimate = sum(_rehearse(work, label, encoder) for label, encoder in plan.encoders.items())
        frames, notes, encoders = [], [], {}
        with _progress(progress, work.ticks * len(plan.encoders), f"about {max(1, round(estimate / 60))} min") as bar:
            for label, encoder in plan.encoders.items():
                for frame, more in _evaluate(work, label, encoder, kept, encoders, bar):
                    frames.append(frame)
                    notes.append(more)
    manifest = _manifest(work, encoders, time.monotonic() - began, estimate)
    results = Results(
        frame=pd.concat([part for part in frames if len(part)], ignore_index=True),
        notes=pd.concat(notes, ignore_index=True),
        manifest=manifest,
    )
    _warn_if_stuck(results)
    if store is not None:
        results.save(store)
    return results


@dataclass(frozen=True, eq=False)
class _Work:
    """A plan with its samples in order, its attacks and metrics made."""

    plan: Evaluation
    samples: Samples
    order: tuple[int, ...]
    attacked: int
    attacks: Mapping[str, Attack]
    metrics: Mapping[str, Metric]
    divergence: Divergence
    batch: int
    device: torch.device

    @classmethod
    def of(cls, plan: Evaluation, samples: Samples, batch: int, device: torch.device) -> "_Work":
        if len(samples) < 2:
            raise PlanError(
                f"dataset {samples.name!r} has {len(samples)} sample; at least 2 are needed, since measures compare a sample with others"
            )
        order = stream(plan.seed, "order").permutation(len(samples)).tolist() if plan.pairing == "random" else range(len(samples))
        attacked = min(plan.attacked, len(samples) // 2 * 2)
        attacks, metrics = plan.made_attacks(), plan.made_metrics()
        return cls(plan, samples, tuple(order)[: plan.bank], attacked, attacks, metrics, find_divergence(plan.divergence), batch, device)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.samples.ids[row] for row in self.order)

    @property
    def blocks(self) -> list[range]:
        return [range(first, min(first + BLOCK, self.attacked)) for first in range(0, self.attacked, BLOCK)]

    def jobs(self) -> Iterator[tuple[str, Attack | None, str]]:
        """Yield (label, attack, aim), the clean one first: an attack runs in the aims that metrics need and that it supports."""
        wanted = {metric.aim for metric in self.metrics.values()}
        if "clean" in wanted:
            yield "-", None, "clean"
        for label, attack in self.attacks.items():
            for aim in AIMS:
                if aim in wanted and aim in aims_of(attack):
                    yield label, attack, aim

    @property
    def ticks(self) -> int:
        return len(self.order) + self.attacked * sum(attack is not None for _, attack, _ in self.jobs())

    def bank(self, representations: Tensor, labels: Sequence[int] | None) -> Bank:
        ids = self.ids[: len(representations)]
        return Bank(representations, ids=ids, labels=labels, quantile_rows=min(self.plan.quantile_bank, len(ids)))


def _evaluate(
    work: _Work, label: str, given: Encoder | Use, store: Store, encoders: dict, bar: tqdm
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    encoder = _made(given, label)
    with encoder.in_use(work.device):
        before, fingerprint = replace_passes(encoder), encoder.fingerprint
        bank = work.bank(_clean(work, encoder, fingerprint, store, bar), work.samples.labels(work.order))
        for block in work.blocks:
            inputs = work.samples.inputs([work.order[row] for row in block])
            check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}")
            for name, attack, aim in work.jobs():
                bar.set_postfix_str(f"{label} {name} {aim}", refresh=False)
                for trace in _stored_traces(work, encoder, fingerprint, store, bank, block, inputs, name, attack, aim):
                    yield _frame(work, label, name, encoder, bank, trace), _note_frame(label, name, trace)
                bar.update(len(block) if attack is not None else 0)
        passes = {what: getattr(encoder.passes, what) - getattr(before, what) for what in ("forwards", "backwards")}
        encoders[label] = {
            **describe(encoder),
            "described": describe(given),
            "dim": bank.dim,
            "passes": passes,
            **_verdict(encoder, work.samples.inputs(work.order[:3])),
        }


def _clean(work: _Work, encoder: Encoder, fingerprint: str, store: Store, bar: tqdm) -> Tensor:
    """Return the bank's representations, in the blocks and batches of the attacks, so that an input left alone has its very own."""
    parts = []
    edges = [*work.blocks, *(range(first, min(first + BLOCK, len(work.order))) for first in range(work.attacked, len(work.order), BLOCK))]
    for block in edges:
        key = key_of(["clean", fingerprint, [work.ids[row] for row in block], work.batch, _versions()])
        found = store.load(key)
        if found is None:
            inputs = work.samples.inputs([work.order[row] for row in block])
            check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}")
            found = {"representations": _represent_rows(encoder, inputs, work.batch).numpy()}
            store.save(key, found)
        parts.append(torch.from_numpy(found["representations"]))
        bar.update(len(block))
    return torch.cat(parts)


def _stored_traces(
    work: _Work,
    encoder: Encoder,
    fingerprint: str,
    store: Store,
    bank: Bank,
    block: range,
    inputs: Tensor,
    name: str,
    attack: Attack | None,
    aim: str,
) -> list[Trace]:
    """Return one trace a mark, the last step's last; from the store where it has them."""
    clean = bank.take(torch.tensor(block))
    partner = torch.arange(len(block)) ^ 1  # neighbours are each other's targets; a block holds whole pairs
    whole = Batch(
        ids=tuple(work.ids[row] for row in block),
        inputs=inputs,
        clean=clean,
        aim=aim,
        targets=clean[partner] if aim == "target" else None,
        target_inputs=inputs[partner] if aim == "target" else None,
        bank=bank,
        own=torch.tensor(block),
    )
    if attack is None:
        return [
            Trace(ids=whole.ids, aim=aim, step=0, clean=clean, adversarial=clean, divergence=torch.zeros(len(block), dtype=torch.float64))
        ]
    parts = [
        ["attack", fingerprint, describe(attack), aim, describe_divergence(work.plan.divergence), whole.ids, work.plan.seed, work.batch],
        [hashlib.sha256(inputs.numpy().tobytes()).hexdigest(), len(bank), _versions(), str(work.device)],
    ]
    found = store.load(key_of(parts))
    if found is None:
        random = SampleRandom.of(work.plan.seed, whole.ids)
        trace = _traced(encoder, attack, whole, work.divergence, random, work.batch, label=name, keep_inputs=False)
        found = _arrays(trace)
        store.save(key_of(parts), found)
    return _from_arrays(found, whole, partner if aim == "target" else None, work.divergence)


def _arrays(trace: Trace) -> dict[str, np.ndarray]:
    arrays = {"adversarial": trace.adversarial, "step": torch.tensor(trace.step), "stuck": trace.stuck}
    arrays |= {f"mark/{step}": representations for step, representations in trace.marked.items()}
    arrays |= {f"note/{name}": values for name, values in trace.notes.items()}
    if trace.history is not None:
        arrays["history"] = trace.history
    return {name: values.numpy() for name, values in arrays.items()}


def _from_arrays(arrays: Mapping[str, np.ndarray], whole: Batch, partner: Tensor | None, divergence: Divergence) -> list[Trace]:
    loaded = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
    final = Trace(
        ids=whole.ids,
        aim=whole.aim,
        step=int(loaded["step"]),
        clean=whole.clean,
        adversarial=loaded["adversarial"],
        divergence=_measured(divergence, whole, loaded["adversarial"]),
        targets=whole.targets,
        partner=partner,
        history=loaded.get("history"),
        notes={name.removeprefix("note/"): values for name, values in loaded.items() if name.startswith("note/")},
        stuck=loaded["stuck"],
    )
    marked = {int(name.removeprefix("mark/")): values for name, values in loaded.items() if name.startswith("mark/")}
    earlier = [
        replace(final, step=step, adversarial=values, divergence=_measured(divergence, whole, values), history=None, notes={}, stuck=None)
        for step, values in sorted(marked.items())
        if step != final.step
    ]
    return [*earlier, final]


def _traced(
    encoder: Encoder,
    attack: Attack,
    whole: Batch,
    divergence: Divergence,
    random: SampleRandom,
    size: int,
    *,
    label: str,
    keep_inputs: bool = True,
    tick: Callable[[int], Any] = lambda samples: None,
) -> Trace:
    """Attack a batch part by part, check and measure what comes back."""
    before = replace_passes(encoder)
    attempts, adversarial, marked = [], [], []
    for rows in _chunks(range(len(whole.ids)), size):
        part = _part(whole, slice(rows[0], rows[-1] + 1), encoder.where() or whole.inputs.device)
        attempt = _attempt(encoder, attack, part, divergence, random.select(slice(rows[0], rows[-1] + 1)), label)
        adversarial.append(_represent_rows(encoder, attempt.inputs, size))
        marked.append({step: _represent_rows(encoder, inputs, size) for step, inputs in attempt.marks.items()})
        home = whole.inputs.device
        kept = (
            {"inputs": attempt.inputs.to(home), "marks": {step: inputs.to(home) for step, inputs in attempt.marks.items()}}
            if keep_inputs
            else {"marks": {}}
        )
        attempts.append(
            replace(attempt, **kept, history=_on_cpu(attempt.history), notes={name: _on_cpu(note) for name, note in attempt.notes.items()})
        )
        tick(len(rows))
    representations = torch.cat(adversarial)
    measured = _measured(divergence, whole, representations)
    histories = [attempt.history for attempt in attempts]
    notes = {name: torch.cat([attempt.notes[name] for attempt in attempts]) for name in attempts[0].notes}
    unmoved = (representations == whole.clean).all(1)
    radius = getattr(ball_of(attack), "radius", None)
    return Trace(
        ids=whole.ids,
        aim=whole.aim,
        step=getattr(attack, "steps", 0),
        clean=whole.clean,
        adversarial=representations,
        divergence=measured,
        targets=whole.targets,
        history=None if histories[0] is None else torch.cat([torch.cat(histories).double(), measured[:, None]], dim=1),
        notes=notes,
        stuck=notes["zero_gradient"] == 1 if "zero_gradient" in notes else unmoved & (radius != 0),
        inputs=torch.cat([attempt.inputs for attempt in attempts]) if keep_inputs else None,
        marks={step: torch.cat([attempt.marks[step] for attempt in attempts]) for step in attempts[0].marks} if keep_inputs else {},
        marked={step: torch.cat([part[step] for part in marked]) for step in marked[0]},
        forwards=encoder.passes.forwards - before.forwards,
        backwards=encoder.passes.backwards - before.backwards,
    )


def _attempt(encoder: Encoder, attack: Attack, part: Batch, divergence: Divergence, random: SampleRandom, label: str) -> Attempt:
    unchanged = part.inputs._version
    try:
        with random.global_generators("global generators"), torch.enable_grad():
            returned = attack(encoder, part, divergence, random=random)
    except Exception as error:
        error.add_note(f"in attack {label!r}, aim {part.aim}, on encoder {encoder.name!r}, samples {part.ids[0]} to {part.ids[-1]}")
        raise
    attempt = returned if isinstance(returned, Attempt) else Attempt(inputs=returned)
    if part.inputs._version != unchanged:
        raise AttackViolation(f"attack {label!r} changed the inputs that it was given in place; it must return new ones")
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
    low, high = (torch.as_tensor(bound).to(inputs) for bound in encoder.bounds)
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
                f"attack {label!r} moved sample {part.ids[row]!r} by {distance[row].item():.9g} ({ball.norm}), and its ball has radius {ball.radius:.9g}; "
                "end with ball.project(…)"
            )
    return inputs


def _check_fit(attack: Attack, encoder: Encoder, aim: str, inputs: Tensor, *, label: str) -> None:
    if aim not in aims_of(attack):
        reason = (
            "an attack that starts at the clean input cannot move away from it, since the gradient of the divergence is zero there: start='random' or 'eta' can"
            if aim == "away"
            else "it does not support targets; leave them out, or take an attack that imitates"
        )
        raise ValueError(f"attack {label!r} does not support aim {aim!r} (it supports {', '.join(aims_of(attack))}): {reason}")
    ball = ball_of(attack)
    if ball is None:
        return
    low, high = (torch.as_tensor(bound) for bound in encoder.bounds)
    width = (high - low).max().item()
    reach = width if ball.norm == "linf" else width * inputs[0].numel() ** 0.5
    if ball.radius > reach:
        raise ValueError(
            f"epsilon is {ball.radius:g}; inputs span a range of {width:g}, so {'it' if ball.norm == 'linf' else 'an l2 epsilon'} must be in [0, {reach:g}]"
            + (f": write {ball.radius:g}/255, not {ball.radius:g}" if width == 1 and ball.radius <= 255 else "")
        )


def _rehearse(work: _Work, label: str, given: Encoder | Use) -> float:
    """Send two samples through everything, so that what cannot work fails in the first seconds; return the seconds that the run may take."""
    encoder = _made(given, label)
    inputs = work.samples.inputs(work.order[: min(len(work.order), _REHEARSAL_BANK)])
    check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}")
    for name, attack, aim in work.jobs():
        if attack is not None:
            _check_fit(attack, encoder, aim, inputs, label=name)
    seconds = 0.0
    with encoder.in_use(work.device):
        began = time.monotonic()
        first = _represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)
        clean = torch.cat([first, _represent_rows(encoder, inputs[_REHEARSED:], work.batch)]) if len(inputs) > _REHEARSED else first
        seconds += (time.monotonic() - began) / len(inputs) * len(work.order)
        if not torch.equal(first, _represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)):
            warnings.warn(
                f"encoder {label!r} is not deterministic: two passes of the same inputs differ, so measures mix its own noise with the attack's effect",
                RobustnessWarning,
                stacklevel=3,
            )
        bank = work.bank(clean, work.samples.labels(work.order[: len(inputs)]))
        for name, attack, aim in work.jobs():
            began = time.monotonic()
            for trace in _stored_traces(
                work, encoder, "", Store(None, {}), bank, range(_REHEARSED), inputs[:_REHEARSED], name, attack, aim
            ):
                _frame(work, label, name, encoder, bank, trace)
            seconds += (time.monotonic() - began) / _REHEARSED * work.attacked
    return seconds


def _frame(work: _Work, label: str, name: str, encoder: Encoder, bank: Bank, trace: Trace) -> pd.DataFrame:
    """Return the rows of every metric that reads this trace."""
    rows = [bank_row for bank_row in bank.rows(trace.ids).tolist()]
    context = Context(
        encoder=encoder,
        divergence=work.divergence,
        random=SampleRandom.of(work.plan.seed, trace.ids),
        known_labels=None if bank.labels is None else [int(bank.labels[row]) for row in rows],
    )
    parts = []
    for metric_label, metric in work.metrics.items():
        if metric.aim != trace.aim:
            continue
        try:
            measured = metric(trace, bank, context)
        except Exception as error:
            error.add_note(f"in metric {metric_label!r}, reading attack {name!r} on encoder {label!r}")
            raise
        for part, values in (measured if isinstance(measured, Mapping) else {"": measured}).items():
            full = metric_label if not part else part if metric_label == _registered_as(metric) else f"{metric_label}/{part}"
            parts.append(_metric_frame(label, name, trace, full, metric, values))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _metric_frame(label: str, name: str, trace: Trace, full: str, metric: Metric, rows: Tensor | Rows) -> pd.DataFrame:
    values, notes = (rows.values, list(rows.notes)) if isinstance(rows, Rows) else (rows, None)
    ids = trace.ids if metric.per == "sample" else trace.ids[::2]
    values = torch.as_tensor(values).detach().cpu().double()
    check_shape(values, "batch", what=f"metric {full!r} output", batch=len(ids))
    return pd.DataFrame(
        {
            "encoder": label,
            "attack": name,
            "aim": trace.aim,
            "step": trace.step,
            "metric": full,
            "sample": ids,
            "value": values.numpy(),
            "note": "" if notes is None else notes,
        }
    )


def _note_frame(label: str, name: str, trace: Trace) -> pd.DataFrame:
    columns = dict(trace.notes)
    if trace.stuck is not None:
        columns["stuck"] = trace.stuck
    if trace.history is not None:
        columns |= {f"history/{step}": values for step, values in enumerate(trace.history.T)}
    parts = [
        pd.DataFrame(
            {"encoder": label, "attack": name, "aim": trace.aim, "sample": trace.ids, "name": what, "value": values.double().numpy()}
        )
        for what, values in columns.items()
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["encoder", "attack", "aim", "sample", "name", "value"])


def _manifest(work: _Work, encoders: Mapping[str, Any], seconds: float, estimate: float) -> dict[str, Any]:
    groups = work.samples.groups
    attacked = work.order[: work.attacked]
    return {
        "plan": work.plan.describe(),
        "encoders": dict(encoders),
        "dataset": {"name": work.samples.name, "samples": len(work.samples), "notes": list(work.samples.notes)},
        "input_shape": list(work.samples.inputs(work.order[:1]).shape[1:]),
        "attacked": work.attacked,
        "bank": len(work.order),
        "quantile_bank": min(work.plan.quantile_bank, len(work.order)),
        "metrics": {
            label: {name: getattr(metric, name) for name in ("aim", "better", "statistic", "per")}
            | {"span": [_finite(edge) for edge in metric.span]}
            for label, metric in work.metrics.items()
        },
        "samples": {
            "sample": list(work.ids[: work.attacked]),
            "pair": [row // 2 for row in range(work.attacked)],
            "group": None if groups is None else [groups[row] for row in attacked],
        },
        "seed": work.plan.seed,
        "batch": work.batch,
        "device": str(work.device),
        "versions": _versions(),
        "seconds": round(seconds, 3),
        "estimated_seconds": round(estimate, 3),
    }


def _verdict(encoder: Encoder, inputs: Tensor) -> dict[str, bool]:
    """Say whether a row's representation depends on the rows beside it, bit for bit."""
    together = _represent_rows(encoder, inputs, len(inputs))
    return {"rows_depend_on_batch": not torch.equal(together, _represent_rows(encoder, inputs, 1))}


def _versions() -> dict[str, str]:
    plugins = {plugin.distribution: plugin.version for plugin in installed().plugins if plugin.error is None}
    return {"python": platform.python_version(), "torch": version("torch"), "numpy": np.__version__, "pandas": pd.__version__, **plugins}


def _warn_if_stuck(results: Results) -> None:
    stuck = results.notes[results.notes["name"] == "stuck"]
    for (encoder, attack), share in stuck.groupby(["encoder", "attack"])["value"].mean().items():
        if share >= 0.1:
            warnings.warn(
                f"attack {attack!r} found no gradient at all for {share:.0%} of the samples on encoder {encoder!r}: its gradients may be masked "
                "(rounded inputs, saturated outputs), and the measures below say little about its robustness",
                RobustnessWarning,
                stacklevel=3,
            )


def _measured(divergence: Divergence, whole: Batch, representations: Tensor) -> Tensor:
    return divergence(whole.anchor.cpu().double(), representations.double())


def _represent_rows(encoder: Encoder, inputs: Tensor, size: int) -> Tensor:
    with torch.no_grad():
        device = encoder.where() or inputs.device
        return torch.cat([encoder(part.to(device)).cpu() for part in inputs.split(size)])


def _part(whole: Batch, rows: slice, device: torch.device) -> Batch:
    tensors = ("inputs", "clean", "targets", "target_inputs", "own", "start")
    moved = {name: None if (value := getattr(whole, name)) is None else value[rows].to(device) for name in tensors}
    if moved["inputs"].is_inference():  # made under inference_mode, where autograd may not touch it
        moved["inputs"] = moved["inputs"].clone()
    return replace(whole, ids=whole.ids[rows], **moved)


def _bank_of(encoder: Encoder, bank: Tensor | Bank | None, size: int) -> Bank | None:
    if bank is None or isinstance(bank, Bank):
        return bank
    check_inputs(bank, encoder, what="bank")
    return Bank(_represent_rows(encoder, bank, size), ids=tuple(f"bank/{row}" for row in range(len(bank))))


def _own_rows(bank: Bank, ids: Sequence[str], clean: Tensor) -> Tensor:
    own = bank.rows(ids)
    for row in (own < 0).nonzero().flatten().tolist():
        for first, block in bank.blocks():
            same = (block == clean[row]).all(1).nonzero().flatten()
            if len(same):
                own[row] = first + int(same[0])
                break
    return own


def _made(given: Encoder | Use, label: str) -> Encoder:
    encoder = given.make("encoder") if isinstance(given, Use) else given
    if not isinstance(encoder, Encoder):
        raise PlanError(f"encoder {label!r} came out as {type(encoder).__name__}; its factory must return an rt_core.Encoder")
    return encoder


def replace_passes(encoder: Encoder) -> Any:
    """Return a copy of the encoder's counts of passes."""
    return type(encoder.passes)(**vars(encoder.passes))


def _registered_as(metric: Metric) -> str:
    return type(metric).__name__


def _checked_batch(batch: int | None, most: int) -> int:
    if batch is None:
        return BLOCK
    if not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch is {batch!r}; expected a positive number of samples")
    return batch


def _device(device: str) -> torch.device:
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _chunks(rows: range, size: int) -> Iterator[range]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


@contextlib.contextmanager
def _progress(wanted: bool, total: int, postfix: str = "") -> Iterator[tqdm]:
    # disable=None: no bar where stderr is no terminal.
    with tqdm(total=total, disable=None if wanted else True, unit="sample", desc=postfix or None, leave=False) as bar:
        yield bar


def _finite(edge: float) -> float | None:
    return edge if abs(edge) != float("inf") else None


def _first(mask: Tensor) -> int:
    return int(mask.nonzero()[0])


def _on_cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().cpu()

"""The unit of work: one attack on one block of samples gives traces, and each metric reads its rows off them; both are kept."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rt_core.datasets import Samples
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder, check_inputs
from rt_core.errors import AttackViolation, InvalidInputs, PlanError, RtError
from rt_core.evaluation import Evaluation
from rt_core.fingerprints import fingerprint
from rt_core.gallery import Picture
from rt_core.neighbors import Bank
from rt_core.perturbing import BLOCK, attack_batch, measure, passes_of
from rt_core.randomness import SampleRandom, stream
from rt_core.registry import installed
from rt_core.results import worst_label
from rt_core.shapes import check_shape
from rt_core.store import Store, key_of
from rt_core.traces import AIMS, Attack, Batch, Context, Metric, Progress, Rows, Trace, aims_of, is_alone

__all__ = [
    "Block",
    "Subject",
    "Work",
    "attack_key",
    "batch_of",
    "core_versions",
    "metric_frames",
    "metric_keys",
    "note_frame",
    "traces_of",
    "version_of",
    "worst_traces",
]

_PARTS = 10
_FIXED, _WORST, _SHOWN = 4, 1, 4  # adversarial inputs that are kept: of the first block, of every block, and of the worst of all blocks


@dataclass(frozen=True, eq=False)
class Work:
    """A plan with its samples in order, its attacks and metrics made."""

    plan: Evaluation
    samples: Samples
    order: tuple[int, ...]
    attacked: int
    attacks: Mapping[str, Attack]
    metrics: Mapping[str, Metric]
    suites: Mapping[str, tuple[str, ...]]
    divergence: Divergence
    batch: int
    device: torch.device

    @classmethod
    def of(cls, plan: Evaluation, samples: Samples, batch: int, device: torch.device) -> "Work":
        """Put the samples in the plan's order.

        Raises:
            PlanError: a dataset of one sample.
        """
        if len(samples) < 2:
            raise PlanError(
                f"dataset {samples.name!r} has {len(samples)} sample; at least 2 are needed, since measures compare a sample with others"
            )
        order = stream(plan.seed, "order").permutation(len(samples)).tolist() if plan.pairing == "random" else range(len(samples))
        attacked = min(plan.attacked, len(samples) // 2 * 2)
        attacks, metrics, suites = plan.made_attacks(), plan.made_metrics(), plan.suites()
        moved_by = find_divergence(plan.divergence)
        return cls(plan, samples, tuple(order)[: plan.bank], attacked, attacks, metrics, suites, moved_by, batch, device)

    def fitted(self, attacks: Mapping[str, Attack], metrics: Mapping[str, Metric]) -> "Work":
        """Return the same work with attacks and metrics that are fitted; what is known of the samples goes along."""
        work = replace(self, attacks=attacks, metrics=metrics)
        vars(work).update({name: getattr(self, name) for name in ("labels", "labels_key", "ids", "parts", "parts_key")})
        return work

    def print_of(self, thing: Any) -> str:
        """Return the fingerprint of an attack or a metric of this work, or of its divergence, with its plugin's version; taken once."""
        known: dict[int, tuple[str, Any]] = vars(self).setdefault("_prints", {})
        if id(thing) not in known:
            known[id(thing)] = key_of([fingerprint(thing), version_of(thing)]), thing  # held, or another one may get its id
        return known[id(thing)][0]

    @cached_property
    def labels(self) -> list[int] | None:
        return self.samples.labels(self.order)

    @cached_property
    def labels_key(self) -> str:
        return key_of(self.labels)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.samples.ids[row] for row in self.order)

    @cached_property
    def parts(self) -> list[int] | None:
        """Return which of ten parts of the bank each sample of the order is in; None where the bank's own sampling error is small.

        It is where there are ten times as many as attacked of what is independent: groups where the dataset has them, else pairs. A part
        holds whole ones of these, so that each is a smaller sample of the same kind.
        """
        groups = self.samples.groups
        owners: list[Any] = [row // 2 if groups is None else groups[place] for row, place in enumerate(self.order)]
        number = {owner: place for place, owner in enumerate(dict.fromkeys(owners))}
        few = len(number) < 10 * len(set(owners[: self.attacked]))
        return [number[owner] % _PARTS for owner in owners] if few and len(number) > 1 else None

    @cached_property
    def parts_key(self) -> str:
        return key_of(self.parts)

    def inputs(self, rows: Sequence[int]) -> Tensor:
        """Return the inputs of some rows of the order.

        Raises:
            InvalidInputs: the dataset raised something that is no error of rt's own; those say what is wrong themselves.
        """
        try:
            return self.samples.inputs([self.order[row] for row in rows])
        except Exception as error:
            if isinstance(error, RtError):
                raise
            for row in rows if len(rows) > 1 else ():  # one by one, to name the one that fails
                self.inputs([row])
            what = f"{type(error).__name__} for sample {', '.join(repr(self.ids[row]) for row in rows)}: {error}"
            remedy = "mend it and make the same call again (finished blocks stay where there is a store)"
            raise InvalidInputs(f"dataset {self.samples.name!r} raised {what}; {remedy}") from error

    def blocks(self, first: int, last: int) -> Iterator["Block"]:
        """Yield the rows of the order from ``first`` up to ``last`` in blocks of 64, which hold whole pairs."""
        # One at a time, since a block holds on to its inputs.
        for start in range(first, last, BLOCK):
            yield Block(self, range(start, min(start + BLOCK, last)))

    def jobs(self) -> Iterator[tuple[str, Attack | None, str]]:
        """Yield (label, attack, aim), the clean one first: an attack runs in the aims that metrics need and that it supports."""
        wanted = {metric.aim for metric in self.metrics.values()}
        if "clean" in wanted:
            yield "-", None, "clean"
        for label, attack in self.attacks.items():
            for aim in AIMS:
                if aim in wanted and aim in aims_of(attack):
                    yield label, attack, aim

    def bank(self, representations: Tensor | np.ndarray) -> Bank:
        """Return the bank of the first samples of the order."""
        known = len(representations)
        labels, parts = (None if values is None else values[:known] for values in (self.labels, self.parts))
        rows = min(self.plan.quantile_bank, known)
        return Bank(representations, ids=self.ids[:known], labels=labels, quantile_rows=rows, parts=parts, seed=self.plan.seed)


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive samples of the order; their inputs are read when they are first needed."""

    work: Work
    rows: range

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return self.work.ids[self.rows.start : self.rows.stop]

    @cached_property
    def inputs(self) -> Tensor:
        return self.work.inputs(self.rows)

    def samples(self) -> Iterator["Block"]:
        """Yield each sample as a block of its own."""
        for row in self.rows:
            yield Block(self.work, range(row, row + 1))

    def inputs_for(self, encoder: Encoder) -> Tensor:
        """Return the inputs, after checking that this encoder can be asked about them."""
        check_inputs(self.inputs, encoder, what=f"inputs of dataset {self.work.samples.name!r}", ids=self.ids)
        return self.inputs


@dataclass(frozen=True, eq=False)
class Subject:
    """One encoder of the plan under evaluation, with its bank.

    strict: whether an attack or metric that raises stops everything, as in the rehearsal, or becomes one of ``errors``.
    """

    label: str
    encoder: Encoder
    fingerprint: str
    bank: Bank
    store: Store
    strict: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[tuple[str, str], list[Picture]] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)

    def shared_for(self, block: Block, part: int | None) -> dict[Any, Any]:
        """Return what metrics of one block share, in the whole bank or in that without a part; forgotten when the next block comes."""
        if self.shared.get("block") != block.rows:
            self.shared.clear()
            self.shared.update(block=block.rows, looked=set())
        return self.shared.setdefault(part, {})

    @cached_property
    def reduced(self) -> dict[int, Bank]:
        """Return the bank without each of its parts."""
        parts = self.bank.parts.unique().tolist()
        return {part: self.bank.without(part) for part in parts}

    def failed(self, error: Exception, block: Block | None = None, **what: str) -> None:
        """Record what an attack or metric raised, on a block or in its fit, with where, or raise it again."""
        where = {"encoder": self.label, **what} | ({} if block is None else {"samples": f"{block.ids[0]} to {block.ids[-1]}"})
        error.add_note(f"in {', '.join(f'{name} {value!r}' for name, value in where.items())}")
        too_large = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if too_large:
            below = "" if block is None else f" below {block.work.batch}"
            error.add_note(f"give a batch{below}, and with it another store: blocks that are stored keep theirs")
        # A broken promise, or a machine that is too small, concerns every block.
        if self.strict or too_large or isinstance(error, AttackViolation):
            raise error
        origin = traceback.extract_tb(error.__traceback__)[-1]
        self.errors.append({**where, "error": f"{type(error).__name__}: {error}", "at": f"{origin.name}, line {origin.lineno}"})


def traces_of(work: Work, subject: Subject, block: Block, name: str, attack: Attack | None, aim: str) -> tuple[str, list[Trace]]:
    """Return the key of an attack's block and one trace a mark, the last step's last; from the store where it has them.

    No trace where the attack raised.
    """
    rows = torch.tensor(block.rows)
    clean, partner = subject.bank.take(rows), torch.arange(len(rows)) ^ 1  # neighbours are each other's targets
    known: dict[str, Any] = {"ids": block.ids, "aim": aim, "clean": clean, "targets": clean[partner] if aim == "target" else None}
    if attack is None:
        return attack_key(work, subject.fingerprint, block, None, aim), [
            Trace(**known, step=0, adversarial=clean, divergence=torch.zeros(len(rows), dtype=torch.float64))
        ]
    key = attack_key(work, subject.fingerprint, block, attack, aim)
    found, known_by = subject.store.load(key), np.array([len(subject.bank), subject.bank.quantile_rows])
    if found is None or (found["bank"].any() and (found["bank"] != known_by).any()):
        inputs = block.inputs_for(subject.encoder)
        whole = Batch(**known, inputs=inputs, target_inputs=inputs[partner] if aim == "target" else None, bank=subject.bank, own=rows)
        random, reads = SampleRandom.of(work.plan.seed, block.ids), subject.bank.reads
        try:
            size = batch_of(work, attack)
            trace = attack_batch(subject.encoder, attack, whole, work.divergence, random, size, label=name, represented=work.batch)
        except Exception as error:
            subject.failed(error, block, attack=name, aim=aim)
            return key, []
        # An attack that looked at the bank may do another thing in another bank.
        found = _arrays(trace) | _kept(block, trace) | {"bank": known_by if subject.bank.reads > reads else np.zeros(2, int)}
        subject.store.save(key, found)
    traces = _from_arrays(found, {**known, "partner": partner if aim == "target" else None}, work.divergence)
    _show(subject, block, name, found, traces[-1])
    return key, traces


def worst_traces(work: Work, keyed: Mapping[str, tuple[str, Trace]]) -> Iterator[tuple[str, str, Trace]]:
    """Yield (label, key, trace) of each suite: of every sample, what the member did that got it nearest to its target (paper, Eq. 2).

    A measure of a pair is then taken once, of the worst that was found for either side. keyed: {member: (key, trace)} under aim target
    """
    for suite, members in work.suites.items():
        found = {member: keyed[member] for member in members if member in keyed}
        if not found:
            continue
        traces = [trace for _, trace in found.values()]
        winner = torch.stack([trace.divergence for trace in traces]).argmin(0)  # of equal ones the first
        rows = torch.arange(len(winner))
        notes = {f"winner/{member}": (winner == place).double() for place, member in enumerate(found)}
        adversarial = torch.stack([trace.adversarial for trace in traces])[winner, rows]
        divergence = torch.stack([trace.divergence for trace in traces])[winner, rows]
        worst = replace(traces[0], step=0, adversarial=adversarial, divergence=divergence, history=None, notes=notes, stuck=None)
        yield worst_label(suite), key_of(["worst", *(key for key, _ in found.values())]), worst


def metric_frames(
    work: Work,
    subject: Subject,
    block: Block,
    name: str,
    key: str,
    traces: Sequence[Trace],
    *,
    pairs_alone: bool = False,
    tick: Callable[[int], Any] = lambda samples: None,
) -> Iterator[pd.DataFrame]:
    """Yield the rows of every metric that reads these traces, or of those of pairs alone; from the store where it has them."""
    if not traces:
        return
    read_by = {label: metric for label, metric in work.metrics.items() if metric.aim == traces[0].aim}
    read_by = {label: metric for label, metric in read_by.items() if not pairs_alone or metric.per == "pair"}
    yield from _frames(
        work, subject, block, name, key, traces, {label: metric for label, metric in read_by.items() if not is_alone(metric)}
    )
    alone = {label: metric for label, metric in read_by.items() if is_alone(metric)}
    for sample in block.samples() if alone else ():
        sample_key, trace = traces_of(work, subject, sample, name, None, "clean")
        shelf = subject.store.shelf(sample_key)
        yield from _frames(work, subject, sample, name, sample_key, trace, alone, shelf)
        if all(subject.store.has(metric_key(work, sample_key, metric)) for metric in alone.values()):
            shelf.clear()
        tick(1)


def _frames(
    work: Work,
    subject: Subject,
    block: Block,
    name: str,
    key: str,
    traces: Sequence[Trace],
    metrics: Mapping[str, Metric],
    progress: Progress | None = None,
) -> Iterator[pd.DataFrame]:
    labels = None if work.labels is None else work.labels[block.rows.start : block.rows.stop]
    context = Context(
        encoder=subject.encoder,
        divergence=work.divergence,
        random=SampleRandom.of(work.plan.seed, block.ids),
        known_labels=labels,
        read=lambda: block.inputs_for(subject.encoder),
        batch=work.batch,
        shared=subject.shared_for(block, None),
        progress=progress,
    )
    for label, metric in metrics.items():
        named = metric_key(work, key, metric)
        found = subject.store.load(named)
        if found is None:
            try:
                found = _rows_of(metric, label, traces, subject, block, context)
            except Exception as error:
                subject.failed(error, block, attack=name, aim=traces[0].aim, metric=label)
                continue
            subject.store.save(named, found)
        ids = block.ids if metric.per == "sample" else block.ids[::2]
        about = {"encoder": subject.label, "attack": name, "aim": traces[0].aim}
        for entry in (entry for entry in found if entry.startswith("value/")):
            _, step, part = entry.split("/", 2)
            rows = {"step": int(step), "metric": f"{label}/{part}" if part else label, "sample": ids, "value": found[entry]}
            without = {
                f"without_{left_out}": found.get(f"without_{left_out}/{entry}", np.nan) for left_out in sorted(set(work.parts or ()))
            }
            yield pd.DataFrame(about | rows | {"note": found.get(f"note/{step}/{part}", "")} | without)


def attack_key(work: Work, encoder: str, block: Block, attack: Attack | None, aim: str) -> str:
    """Return the key of an attack's block: everything that its traces depend on, with ``encoder``'s fingerprint.

    But for the bank, of which the block itself says whether the attack looked at it.
    """
    made_by = [work.print_of(attack), aim, work.print_of(work.divergence), work.plan.seed, work.batch]
    return key_of(["attack", encoder, *made_by, block.ids, str(work.device), core_versions()])


def metric_keys(work: Work, subject_fingerprint: str, block: Block, key: str, metric: Metric) -> list[str]:
    """Return the keys of what a metric keeps of the attack's block of that key: one, or one a sample where it sees them alone."""
    if not is_alone(metric):
        return [metric_key(work, key, metric)]
    return [metric_key(work, attack_key(work, subject_fingerprint, sample, None, "clean"), metric) for sample in block.samples()]


def metric_key(work: Work, key: str, metric: Metric) -> str:
    """Return the key of a metric's block on the attack's block of that key."""
    read_by = [work.print_of(metric), work.print_of(work.divergence), len(work.order), work.plan.quantile_bank]
    return key_of(["metric", key, *read_by, work.labels_key, work.parts_key])


def note_frame(subject: Subject, name: str, trace: Trace) -> pd.DataFrame:
    """Return what an attack had to say of each sample: its notes, whether it was stuck, and the divergence before each step."""
    columns = dict(trace.notes)
    if trace.stuck is not None:
        columns["stuck"] = trace.stuck
    if trace.history is not None:
        columns |= {f"history/{step}": values for step, values in enumerate(trace.history.T)}
    about = {"encoder": subject.label, "attack": name, "aim": trace.aim}
    if not columns:
        return pd.DataFrame(columns=[*about, "sample", "name", "value"])
    # One frame for all columns: a history has one a step.
    values = torch.stack([column.double() for column in columns.values()]).flatten().numpy()
    names = np.repeat(np.array([*columns], dtype=object), len(trace.ids))
    return pd.DataFrame(about | {"sample": trace.ids * len(columns), "name": names, "value": values})


@cache
def core_versions() -> list[str]:
    """Return the versions that every number depends on."""
    return [version("torch"), np.__version__, version("rt-core")]


def batch_of(work: Work, attack: Attack) -> int:
    """Return how many samples an attack sees at a time: a whole block where its loss couples them, so that the plan alone says which."""
    return BLOCK if getattr(attack, "joint", False) else work.batch


def _rows_of(
    metric: Metric, label: str, traces: Sequence[Trace], subject: Subject, block: Block, context: Context
) -> dict[str, np.ndarray]:
    """Return what a metric says of each trace, and, if it looked at a small bank, what it says with each part of the bank left out.

    Not of one that runs the encoder, which would cost its passes again for every part.
    """
    reads, passes = subject.bank.reads, passes_of(subject.encoder)
    found = {name: rows for trace in traces for name, rows in _measured(metric, label, trace, subject.bank, context)}
    looked: set[str] = subject.shared["looked"]  # one that looked and shares what it saw need not look again
    if subject.bank.reads > reads:
        looked.add(label)
    ran = passes_of(subject.encoder) != passes or is_alone(metric)
    if label not in looked or ran or subject.strict or len(subject.bank.parts.unique()) == 1:
        return found
    values = [name for name in found if name.startswith("value/")]
    for part, bank in subject.reduced.items():
        try:
            smaller = replace(context, shared=subject.shared_for(block, part))
            again = {name: rows for trace in traces for name, rows in _measured(metric, label, trace, bank, smaller)}
        except Exception:  # what the whole bank can just do (40 neighbors, say) a smaller one cannot: then its error is not known
            again = {name: np.full(len(found[name]), np.inf) for name in values}
        found |= {f"without_{part}/{name}": again[name] for name in values}
    return found


def _kept(block: Block, trace: Trace) -> dict[str, np.ndarray]:
    """Return the adversarial inputs to keep: those of the first samples of the order, and the worst of each block."""
    assert trace.inputs is not None, "a block's trace holds its inputs"
    worst = trace.divergence.argsort(descending=trace.aim == "away", stable=True)[:_WORST]
    rows = torch.cat([torch.arange(_FIXED if block.rows.start == 0 else 0)[: len(trace)], worst])
    return {"kept/rows": rows.numpy(), "kept/inputs": trace.inputs[rows].cpu().numpy()}


def _show(subject: Subject, block: Block, name: str, found: Mapping[str, np.ndarray], trace: Trace) -> None:
    """Add what a block keeps to what will be shown of its attack; of the worst, the worst few of all blocks stay."""
    about = {"encoder": subject.label, "attack": name, "aim": trace.aim}
    shown = subject.pictures.setdefault((name, trace.aim), [])
    rows = found["kept/rows"].tolist()
    for place, (row, adversarial) in enumerate(zip(rows, found["kept/inputs"], strict=True)):
        why = "fixed" if place < len(rows) - _WORST else "worst"
        one = {**about, "sample": block.ids[row], "why": why, "divergence": trace.divergence[row].item()}
        shown.append(Picture(one, block.rows[row], adversarial.copy()))
    worst = [picture for picture in shown if picture.about["why"] == "worst"]
    worst.sort(key=lambda picture: picture.about["divergence"], reverse=trace.aim == "away")
    for picture in worst[_SHOWN:]:
        shown.remove(picture)


def _measured(metric: Metric, label: str, trace: Trace, bank: Bank, context: Context) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what a metric says of one trace as named arrays: ``value/<step>/<part>``, and notes where there are any."""
    expected = len(trace.ids) if metric.per == "sample" else len(trace.ids) // 2
    measured = metric(trace, bank, context)
    for part, rows in (measured if isinstance(measured, Mapping) else {"": measured}).items():
        values, notes = (rows.values, list(rows.notes)) if isinstance(rows, Rows) else (rows, None)
        values = torch.as_tensor(values).detach().cpu().double()
        check_shape(values, "batch", what=f"metric {label!r} output", batch=expected)
        yield f"value/{trace.step}/{part}", values.numpy()
        if notes is not None:
            yield f"note/{trace.step}/{part}", np.array(notes, dtype=np.str_)


def _arrays(trace: Trace) -> dict[str, np.ndarray]:
    arrays = {"adversarial": trace.adversarial, "step": torch.tensor(trace.step)}
    arrays |= {f"mark/{step}": representations for step, representations in trace.marked.items()}
    arrays |= {f"note/{name}": values for name, values in trace.notes.items()}
    arrays |= {name: values for name in ("history", "stuck") if (values := getattr(trace, name)) is not None}
    return {name: values.numpy() for name, values in arrays.items()}


def _from_arrays(arrays: Mapping[str, np.ndarray], known: Mapping[str, Any], divergence: Divergence) -> list[Trace]:
    loaded = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
    anchor = known["clean"] if known["aim"] == "away" else known["targets"]
    final = Trace(
        **known,
        step=int(loaded["step"]),
        adversarial=loaded["adversarial"],
        divergence=measure(divergence, anchor, loaded["adversarial"]),
        history=loaded.get("history"),
        notes={name.removeprefix("note/"): values for name, values in loaded.items() if name.startswith("note/")},
        stuck=loaded["stuck"],
    )
    marked = {int(name.removeprefix("mark/")): values for name, values in loaded.items() if name.startswith("mark/")}
    earlier = [
        replace(final, step=step, adversarial=values, divergence=measure(divergence, anchor, values), history=None, notes={}, stuck=None)
        for step, values in sorted(marked.items())
        if step != final.step
    ]
    return [*earlier, final]


def version_of(thing: Any) -> str | None:
    """Return the version of the plugin that an attack or metric comes from, so that a new version makes its blocks again."""
    package = type(thing).__module__.split(".")[0]
    for item in installed().items:
        if isinstance(item.entry.factory, str) and item.entry.factory.split(".")[0].split(":")[0] == package:
            return item.plugin.version
    return None

"""The only loop over data: clean representations, attacks, metrics, in blocks that do not depend on what else runs."""

import hashlib
import platform
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from rt_core.encoders import Encoder, check_inputs
from rt_core.errors import PlanError, RobustnessWarning
from rt_core.evaluation import Evaluation, describe
from rt_core.neighbors import Bank
from rt_core.perturbing import BLOCK, attack_batch, check_batch, check_fit, measure, passes_of, progress_bar, represent_rows
from rt_core.randomness import SampleRandom, stream
from rt_core.registry import Use, installed
from rt_core.results import Results
from rt_core.shapes import check_shape
from rt_core.store import Store, kept_batch, key_of
from rt_core.traces import AIMS, Attack, Batch, Context, Metric, Rows, Trace, aims_of

__all__ = ["run"]

_REHEARSED = 2
_REHEARSAL_BANK = 32
_SPOTS = 16


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
    work = _Work.of(plan, samples, min(check_batch(batch if batch is not None else kept_batch(store)), BLOCK), _device(device))
    dataset = "" if store is None else key_of([samples.name, *samples.ids, _spot_check(samples)])
    kept = Store(store, {"dataset": dataset, "seed": plan.seed, "pairing": plan.pairing, "batch": work.batch})
    with torch.inference_mode(False):
        estimate = sum(_rehearse(work, label, encoder) for label, encoder in plan.encoders.items())
        frames, notes = [], []
        encoders: dict[str, Any] = {}
        with progress_bar(progress, work.ticks * len(plan.encoders), f"about {max(1, round(estimate / 60))} min") as bar:
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

    @cached_property
    def labels(self) -> list[int] | None:
        return self.samples.labels(self.order)

    @cached_property
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
        before, fingerprint = passes_of(encoder), encoder.fingerprint
        bank = work.bank(_clean(work, encoder, fingerprint, store, bar), work.labels)
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
            "dtype": next((str(weight.dtype).removeprefix("torch.") for weight in encoder.module.parameters()), None),
            "passes": passes,
            "rows_depend_on_batch": _rows_depend_on_batch(encoder, work.samples.inputs(work.order[: work.batch])),
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
            found = {"representations": represent_rows(encoder, inputs, work.batch).numpy()}
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
        trace = attack_batch(encoder, attack, whole, work.divergence, random, work.batch, label=name, keep_inputs=False)
        found = _arrays(trace)
        store.save(key_of(parts), found)
    return _from_arrays(found, whole, partner if aim == "target" else None, work.divergence)


def _arrays(trace: Trace) -> dict[str, np.ndarray]:
    arrays = {"adversarial": trace.adversarial, "step": torch.tensor(trace.step)}
    arrays |= {f"mark/{step}": representations for step, representations in trace.marked.items()}
    arrays |= {f"note/{name}": values for name, values in trace.notes.items()}
    arrays |= {name: values for name in ("history", "stuck") if (values := getattr(trace, name)) is not None}
    return {name: values.numpy() for name, values in arrays.items()}


def _from_arrays(arrays: Mapping[str, np.ndarray], whole: Batch, partner: Tensor | None, divergence: Divergence) -> list[Trace]:
    loaded = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
    final = Trace(
        ids=whole.ids,
        aim=whole.aim,
        step=int(loaded["step"]),
        clean=whole.clean,
        adversarial=loaded["adversarial"],
        divergence=measure(divergence, whole, loaded["adversarial"]),
        targets=whole.targets,
        partner=partner,
        history=loaded.get("history"),
        notes={name.removeprefix("note/"): values for name, values in loaded.items() if name.startswith("note/")},
        stuck=loaded["stuck"],
    )
    marked = {int(name.removeprefix("mark/")): values for name, values in loaded.items() if name.startswith("mark/")}
    earlier = [
        replace(final, step=step, adversarial=values, divergence=measure(divergence, whole, values), history=None, notes={}, stuck=None)
        for step, values in sorted(marked.items())
        if step != final.step
    ]
    return [*earlier, final]


def _rehearse(work: _Work, label: str, given: Encoder | Use) -> float:
    """Send two samples through everything, so that what cannot work fails in the first seconds; return the seconds that the run may take."""
    encoder = _made(given, label)
    inputs = work.samples.inputs(work.order[: min(len(work.order), _REHEARSAL_BANK)])
    check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}")
    for name, attack, aim in work.jobs():
        if attack is not None:
            check_fit(attack, encoder, aim, inputs, label=name)
    seconds = 0.0
    with encoder.in_use(work.device):
        began = time.monotonic()
        first = represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)
        clean = torch.cat([first, represent_rows(encoder, inputs[_REHEARSED:], work.batch)]) if len(inputs) > _REHEARSED else first
        seconds += (time.monotonic() - began) / len(inputs) * len(work.order)
        if not torch.equal(first, represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)):
            warnings.warn(
                f"encoder {label!r} is not deterministic: two passes of the same inputs differ, so measures mix its own noise with the attack's effect",
                RobustnessWarning,
                stacklevel=3,
            )
        bank = work.bank(clean, None if work.labels is None else work.labels[: len(inputs)])
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
    context = Context(
        encoder=encoder,
        divergence=work.divergence,
        random=SampleRandom.of(work.plan.seed, trace.ids),
        known_labels=None if bank.labels is None else [int(bank.labels[row]) for row in bank.rows(trace.ids)],
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
            full = f"{metric_label}/{part}" if part else metric_label
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
            | {"span": [_finite(edge) for edge in metric.span], "comparable": getattr(metric, "comparable", True)}
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


def _spot_check(samples: Samples) -> str:
    """Return a hash of some inputs, spread over the dataset: two tensors of as many samples have the same name and ids."""
    rows = sorted({round(row) for row in np.linspace(0, len(samples) - 1, _SPOTS)})
    return hashlib.sha256(samples.inputs(rows).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _rows_depend_on_batch(encoder: Encoder, inputs: Tensor) -> bool:
    """Say whether a row's representation depends, in its last bits, on the rows beside it."""
    together, few = represent_rows(encoder, inputs, len(inputs)), min(len(inputs), 4)
    return not torch.equal(together[:few], represent_rows(encoder, inputs[:few], 1))


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


def _made(given: Encoder | Use, label: str) -> Encoder:
    encoder = given.make("encoder") if isinstance(given, Use) else given
    if not isinstance(encoder, Encoder):
        raise PlanError(f"encoder {label!r} came out as {type(encoder).__name__}; its factory must return an rt_core.Encoder")
    return encoder


def _device(device: str) -> torch.device:
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _finite(edge: float) -> float | None:
    return edge if abs(edge) != float("inf") else None

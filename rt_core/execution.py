"""The only loop over plans: a rehearsal, then each encoder's clean pass and its blocks, to results."""

import contextlib
import hashlib
import itertools
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from rt_core import diagnosis
from rt_core.blocks import Block, Subject, Work, attack_key, core_versions, metric_frames, metric_keys, note_frame, traces_of, worst_traces
from rt_core.datasets import Samples, as_samples
from rt_core.encoders import Encoder, check_inputs
from rt_core.errors import InvalidInputs, PlanError, RobustnessWarning, RtError
from rt_core.evaluation import Evaluation, describe
from rt_core.fingerprints import content_of
from rt_core.fitting import Fitting
from rt_core.gallery import Gallery, Picture
from rt_core.neighbors import quantile_error
from rt_core.perturbing import BLOCK, check_batch, check_fit, passes_of, progress_bar, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.registry import Use, installed
from rt_core.results import Results
from rt_core.smoothing import Draws
from rt_core.store import Store, alone_in, kept_batch, key_of
from rt_core.traces import AIMS, Attack, Trace, aims_of, is_alone, needs_fit, passes_of_attack

__all__ = ["clean_of", "evaluated", "find_device", "fingerprint_of", "made_encoder", "run", "samples_of", "store_of"]

_REHEARSED = 2
_REHEARSAL_BANK = 32
_SPOTS = 16
# Above this many bytes a stored run's bank is mapped from its file instead of held in memory.
_MAPPED = 256 * 2**20
_LONG = 600  # seconds that a run is announced to take, bar or no bar
# A sample whose nearest other is nearer than this share of the median distance between clean samples is reported as a near-duplicate.
_DUPLICATE = 1e-3


def run(
    plan: Evaluation,
    *,
    store: str | Path | None = None,
    device: str = "auto",
    batch: int | None = None,
    progress: bool = True,
    diagnose: bool = True,
) -> Results:
    """Run a plan: a rehearsal of two samples through everything, then each encoder, block by block, and a diagnosis of each.

    Args:
        store: a folder; finished blocks are kept there and found again, so that a run that died goes on where it was.
        device: ``"auto"`` takes the accelerator if there is one.
        batch: how many samples an attack sees at a time, at most 64. Encoders whose last bits depend on the rows beside a row (most with a
            Linear layer) give slightly other numbers with another batch; the manifest says which.
        progress: one bar on stderr, where that is a terminal.
        diagnose: whether to look, on up to 32 samples and for a tenth of the run's passes at most, for signs that the attack's numbers cannot
            be believed (``manifest["diagnosis"]``; what is found is warned about).

    An attack or metric that raises after the rehearsal costs its block, or in its ``fit`` its rows of that encoder: it is recorded in
    ``manifest["errors"]``, warned about, and tried again by the next run in the same store; everything else goes on.

    Raises:
        PlanError, InvalidInputs, …: in the first seconds, from the rehearsal.
        AttackViolation: an attack returned what its ball or the bounds forbid.
        StoreError: the folder holds another run, or cannot be written.
    """
    return evaluated(plan, store=store, device=device, batch=batch, progress=progress, diagnose=diagnose)


def evaluated(
    plan: Evaluation,
    *,
    store: str | Path | None,
    device: str,
    batch: int | None,
    progress: bool,
    diagnose: bool,
    together: bool = False,
) -> Results:
    """Run a plan, encoder by encoder as ``run`` does, or all encoders together, block by block, for attacks that serve more than one."""
    began = time.monotonic()
    samples, train = samples_of(plan.dataset), None if plan.train is None else samples_of(plan.train)
    work = Work.of(plan, samples, min(check_batch(batch if batch is not None else kept_batch(store)), BLOCK), find_device(device))
    kept = store_of(work, store)
    fitting = Fitting(train, "" if train is None else fingerprint_of(train), kept)
    frames, notes, errors = [pd.DataFrame(columns=Results.COLUMNS)], [pd.DataFrame(columns=Results.NOTE_COLUMNS)], []
    encoders: dict[str, Any] = {}
    pictures: list[Picture] = []
    diagnoses: dict[str, diagnosis.Diagnosis] = {}
    with torch.inference_mode(False):
        _warn_of_rows_to_miss(work)
        if train is not None:
            _warn_of_overlap(work, train)
        estimate = sum(_rehearse(work, label, given, kept, fitting) for label, given in plan.encoders.items())
        jobs = sum(attack is not None for _, attack, _ in work.jobs()) + any(map(is_alone, work.metrics.values()))
        ticks = len(work.order) + work.attacked * jobs
        if estimate > _LONG:
            again = (
                "the same call goes on where it was stopped"
                if store is not None
                else "give store=, so that it can go on where it was stopped"
            )
            _say(
                f"about {_hours(estimate)} on {work.device}, says a rehearsal of two samples; fewer attacked, draws or steps take less; {again}"
            )
        with progress_bar(progress, ticks * len(plan.encoders), f"about {_hours(estimate)}") as bar:
            for group in [[*plan.encoders.items()]] if together else [[item] for item in plan.encoders.items()]:
                with contextlib.ExitStack() as held:
                    studied = [_opened(work, label, given, kept, fitting, held, bar) for label, given in group]
                    for block in work.blocks(0, work.attacked):
                        for one in studied:
                            _evaluate(one.work, one.subject, block, frames, notes, bar)
                    for (label, given), one in zip(group, studied, strict=True):
                        if diagnose and (found := diagnosis.diagnose(one.work, one.subject, diagnoses)) is not None:
                            diagnoses[label] = found
                        passes = passes_of(one.subject.encoder)
                        spent = {what: getattr(passes, what) - getattr(one.before, what) for what in ("forwards", "backwards")}
                        encoders[label] = {**_about(work, one.subject, given), "passes": spent}
                        errors += one.subject.errors
                        pictures += itertools.chain.from_iterable(one.subject.pictures.values())
                    del studied, one  # before the next one's bank is made
    results = Results(
        frame=pd.concat([part for part in frames if len(part)] or frames, ignore_index=True),
        notes=pd.concat([part for part in notes if len(part)] or notes, ignore_index=True),
        manifest=_manifest(work, encoders, errors, time.monotonic() - began, estimate, fitting.key)
        | {"diagnosis": [found.described() for found in diagnoses.values()]},
        gallery=Gallery.of(pictures, lambda row: work.inputs([row])[0].detach().cpu().numpy()),
    )
    _warn_about(results)
    if store is not None:
        with alone_in(Path(store)):
            results.added_to(store).save(store)
    return results


@dataclass(frozen=True, eq=False)
class _Studied:
    """An encoder in use, with the work fitted to it and the passes that it had made before."""

    work: Work
    subject: Subject
    before: Any


def _opened(
    work: Work, label: str, given: Encoder | Use, store: Store, fitting: Fitting, held: contextlib.ExitStack, bar: tqdm
) -> _Studied:
    encoder = held.enter_context(made_encoder(given, label).in_use(work.device))
    before, fingerprint = passes_of(encoder), encoder.fingerprint
    subject = Subject(label, encoder, fingerprint, work.bank(clean_of(work, encoder, fingerprint, store, bar.update)), store)
    return _Studied(fitting.fitted(work, encoder, fingerprint, failed=subject.failed), subject, before)


def _evaluate(work: Work, subject: Subject, block: Block, frames: list[pd.DataFrame], notes: list[pd.DataFrame], bar: tqdm) -> None:
    """Add the rows and the notes of every attack on a block."""
    toward: dict[str, tuple[str, Trace]] = {}
    for name, attack, aim in work.jobs():
        bar.set_postfix_str(f"{subject.label} {name} {aim}", refresh=False)
        key, traces = traces_of(work, subject, block, name, attack, aim)
        frames += metric_frames(work, subject, block, name, key, traces, tick=bar.update)
        notes += [note_frame(subject, name, trace) for trace in traces]
        if aim == "target" and traces:
            toward[name] = key, traces[-1]
        bar.update(len(block.rows) if attack is not None else 0)
    for name, key, worst in worst_traces(work, toward):
        frames += metric_frames(work, subject, block, name, key, [worst], pairs_alone=True)
        notes.append(note_frame(subject, name, worst))


def clean_of(
    work: Work, encoder: Encoder, fingerprint: str, store: Store, tick: Callable[[int], Any] = lambda samples: None
) -> Tensor | np.ndarray:
    """Return the bank's representations, made in the blocks and batches of the attacks, so that an input left alone has its very own.

    Each block is kept as it is made. A large bank of a stored run is put together in one file and mapped from there.
    """
    blocks = [*work.blocks(0, work.attacked), *work.blocks(work.attacked, len(work.order))]
    first = _clean_block(work, encoder, fingerprint, store, blocks[0])
    shape = (len(work.order), first.shape[1])

    def parts() -> Iterator[np.ndarray]:
        for block in blocks:
            yield first if block is blocks[0] else _clean_block(work, encoder, fingerprint, store, block)
            tick(len(block.rows))

    if store.folder is not None and first.itemsize * shape[0] * shape[1] > _MAPPED:
        return store.mapped(
            key_of(["bank", fingerprint, work.ids, work.batch, str(work.device), core_versions()]), shape, first.dtype, parts()
        )
    whole = np.empty(shape, first.dtype)
    for block, part in zip(blocks, parts(), strict=True):
        whole[block.rows.start : block.rows.stop] = part
    return torch.from_numpy(whole)


def _clean_block(work: Work, encoder: Encoder, fingerprint: str, store: Store, block: Block) -> np.ndarray:
    key = key_of(["clean", fingerprint, block.ids, work.batch, str(work.device), core_versions()])
    found = store.load(key)
    if found is None:
        # Not block.inputs, which a block keeps: a bank's pictures are not held.
        inputs = work.inputs(block.rows)
        check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}", ids=block.ids)
        found = {"representations": represent_rows(encoder, inputs, work.batch).numpy()}
        store.save(key, found)
    return found["representations"]


def store_of(work: Work, folder: str | Path | None) -> Store:
    """Open the store of a run: what all of its blocks share is the dataset, the seed, the pairing and the batch.

    Raises:
        StoreError: the folder holds another run, or cannot be written.
    """
    dataset = "" if folder is None else fingerprint_of(work.samples)
    return Store(folder, {"dataset": dataset, "seed": work.plan.seed, "pairing": work.plan.pairing, "batch": work.batch})


def samples_of(given: Any) -> Samples:
    """Return the samples of a plan's dataset or train, made if they are described."""
    return as_samples(given.make("dataset") if isinstance(given, Use) else given)


def _rehearse(work: Work, label: str, given: Encoder | Use, store: Store, fitting: Fitting) -> float:
    """Send two samples through all that is not in the store yet, so that what cannot work fails in the first seconds.

    Return the seconds that the run may take.
    """
    encoder = made_encoder(given, label)
    on_few = any(map(needs_fit, (*work.attacks.values(), *work.metrics.values())))
    with encoder.in_use(work.device), _quiet(on_few):
        work = fitting.fitted(work, encoder, encoder.fingerprint, rehearsal=True)
    pending = list(_pending(work, encoder.fingerprint, store))
    if not pending:
        return 0.0
    inputs = work.inputs(range(min(_REHEARSAL_BANK, len(work.order))))
    check_inputs(inputs, encoder, what=f"inputs of dataset {work.samples.name!r}", ids=work.ids)
    if not torch.equal(inputs[:_REHEARSED], work.inputs(range(_REHEARSED))):
        raise InvalidInputs(
            f"dataset {work.samples.name!r} gives other inputs when it is read again (a random transform?), so clean and attacked would be of "
            "different pictures; take the transform of evaluation"
        )
    low = torch.as_tensor(encoder.bounds[0])
    if (low < 0).all() and inputs.min() >= 0:
        _say(
            f"no input of dataset {work.samples.name!r} is below 0, and the bounds of encoder {label!r} go down to {low.min().item():g}: pictures are read as "
            "0..1; leave the bounds at (0, 1) and rescale by normalize=(0.5, 0.5), or give inputs in the encoder's own range"
        )
    for name, attack, aim in pending:
        if attack is not None:
            check_fit(attack, encoder, aim, inputs, label=name)
    with contextlib.ExitStack() as held:
        held.enter_context(encoder.in_use(work.device))
        alone = represent_rows(encoder, inputs[:1], 1)  # the first pass of a process is slow, and is not timed
        began = time.monotonic()
        first = represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)
        between = time.monotonic()
        clean = represent_rows(encoder, inputs, work.batch)
        whole = (time.monotonic() - between) / len(inputs)
        # A sample costs less in a batch than in the company of one other.
        share = min(1.0, whole / max((between - began) / _REHEARSED, 1e-9))
        seconds = whole * (len(work.order) + fitting.passes[encoder.fingerprint])
        if not torch.equal(first, represent_rows(encoder, inputs[:_REHEARSED], _REHEARSED)):
            _say(
                f"encoder {label!r} is not deterministic: two passes of the same inputs differ, so measures mix its own noise with the attack's effect"
            )
        elif (apart := (torch.linalg.vector_norm(first[0] - alone) / torch.linalg.vector_norm(first[0])).item()) > _rounding(encoder):
            _say(
                f"encoder {label!r} depends on the batch: a sample's representation beside another differs from that alone by {apart:.2g} of its length "
                "(statistics of the batch?), so measures depend on the batch size and on which samples go together; give each sample its own"
            )
        with torch.enable_grad():
            if not encoder(inputs[:_REHEARSED].clone().requires_grad_()).requires_grad:
                _say(
                    f"the output of encoder {label!r} carries no gradient (torch.no_grad() or detach() inside the network?): gradient attacks "
                    "have nothing to follow, and their rows say nothing about its robustness"
                )
        subject = Subject(label, encoder, "", work.bank(clean), Store(None, {}), strict=True)
        held.enter_context(_quiet(on_few))
        reduced = {name: metric.rehearsal() for name, metric in work.metrics.items() if hasattr(metric, "rehearsal")}
        if reduced and any(aim == "clean" for *_, aim in pending):
            seconds += work.attacked * _passes_to_come(work, subject, reduced) * _seconds_a_draw(work, encoder, inputs[0])
        work = work.fitted(work.attacks, {name: metric for name, metric in work.metrics.items() if name not in reduced})
        block = Block(work, range(_REHEARSED))
        for name, attack, aim in pending:
            began = time.monotonic()
            key, traces = traces_of(work, subject, block, name, attack, aim)
            try:
                list(metric_frames(work, subject, block, name, key, traces))
            except ValueError as error:
                # What the whole bank can do (40 neighbors, say) may be too much for the rehearsal's: try one of its size.
                if isinstance(error, RtError) or len(subject.bank) == len(work.order):
                    raise
                rows = torch.arange(len(work.order)) % len(clean)
                list(metric_frames(work, replace(subject, bank=work.bank(clean[rows])), block, name, key, traces))
            seconds += (time.monotonic() - began) / _REHEARSED * work.attacked * share
    return seconds


def _rounding(encoder: Encoder) -> float:
    """Return how far apart, of its length, a representation may come out of two batches by rounding alone."""
    return max([1e-3, *(10 * torch.finfo(one.dtype).eps for one in encoder.module.parameters() if one.is_floating_point())])


def _passes_to_come(work: Work, subject: Subject, reduced: Mapping[str, Any]) -> float:
    """Send two samples through the reduced metrics; return how many passes a sample the metrics themselves will take.

    Metrics share passes: by as much as the reduced ones do.
    """
    block, before = Block(work, range(_REHEARSED)), passes_of(subject.encoder)
    key, traces = traces_of(work, subject, block, "-", None, "clean")
    list(metric_frames(work.fitted(work.attacks, reduced), subject, block, "-", key, traces))
    after = passes_of(subject.encoder)
    made = after.forwards + after.backwards - before.forwards - before.backwards
    told, few = (sum(sum(passes_of_attack(metrics[name]) or ()) for name in reduced) for metrics in (work.metrics, reduced))
    return told * made / max(few * _REHEARSED, 1)


def _seconds_a_draw(work: Work, encoder: Encoder, one: torch.Tensor) -> float:
    draws = Draws(encoder, one, SampleRandom.of(0, ["rehearsal"]), sigma=0.1, batch=work.batch)
    began = time.monotonic()
    list(draws.chunks("rehearsal", draws.size))
    return (time.monotonic() - began) / draws.size


def _pending(work: Work, fingerprint: str, store: Store) -> Iterator[tuple[str, Attack | None, str]]:
    """Yield the jobs of which some block is not in the store."""
    for name, attack, aim in work.jobs():
        for block in work.blocks(0, work.attacked):
            key = attack_key(work, fingerprint, block, attack, aim)
            read_by = [metric for metric in work.metrics.values() if metric.aim == aim]
            needed = [one for metric in read_by for one in metric_keys(work, fingerprint, block, key, metric)]
            if not all(map(store.has, needed if attack is None else [key, *needed])):
                yield name, attack, aim
                break


def _warn_of_rows_to_miss(work: Work) -> None:
    served = {member: members for members in work.suites.values() for member in members}
    for label, attack in work.attacks.items():
        if any(len(aims_of(work.attacks[other])) == len(AIMS) for other in served.get(label, ())):
            continue  # another member of its suite has those rows
        unread = [name for name, metric in work.metrics.items() if metric.aim != "clean" and metric.aim not in aims_of(attack)]
        if unread:
            _say(f"attack {label!r} supports aim {', '.join(aims_of(attack))} alone, so {', '.join(unread)} will have no rows for it")


def _warn_of_overlap(work: Work, train: Samples) -> None:
    """Warn where samples that are measured are among those that attacks or metrics are fitted on."""
    if not any(map(needs_fit, (*work.attacks.values(), *work.metrics.values()))):
        return
    rows = {name: row for row, name in enumerate(train.ids)}
    both = [row for row in range(work.attacked) if work.ids[row] in rows]
    # Tensors are all called 0, 1, 2, …: of some of the same name it is looked whether they are the same.
    some = both[:: max(1, len(both) // _REHEARSED)][:_REHEARSED]
    if some and all(
        torch.equal(*pair) for pair in zip(work.inputs(some), train.inputs([rows[work.ids[row]] for row in some]), strict=True)
    ):
        _say(
            f"{len(both)} of {work.attacked} attacked samples are in train as well: what is fitted on them and read off them is too good; give others"
        )


def _about(work: Work, subject: Subject, given: Encoder | Use) -> dict[str, Any]:
    """Return what the manifest says of an encoder."""
    encoder = subject.encoder
    inputs = work.inputs(range(min(work.batch, len(work.order))))
    together, few = represent_rows(encoder, inputs, len(inputs)), min(len(inputs), 4)
    return {
        **describe(encoder),
        "described": describe(given),
        "dim": subject.bank.dim,
        "dtype": next((str(weight.dtype).removeprefix("torch.") for weight in encoder.module.parameters()), None),
        "rows_depend_on_batch": not torch.equal(together[:few], represent_rows(encoder, inputs[:few], 1)),
        "zero_representations": sum(int((rows == 0).all(1).sum()) for _, rows in subject.bank.blocks()),
        "near_duplicates": _near_duplicates(work, subject) if len(subject.bank) > 2 else 0,
    }


def _near_duplicates(work: Work, subject: Subject) -> int:
    """Count attacked samples that have a near-duplicate in the bank: another sample breaks away from them at no cost."""
    attacked = torch.arange(work.attacked)
    clean = subject.bank.take(attacked)
    distance, _ = subject.bank.nearest(clean, 1, attacked, "l2")
    apart = torch.linalg.vector_norm(clean[::2].double() - clean[1::2].double(), dim=1).median()  # pairs are random ones
    return int((distance[:, 0] <= _DUPLICATE * apart).sum())


def _manifest(
    work: Work, encoders: Mapping[str, Any], errors: list[dict[str, Any]], seconds: float, estimate: float, train: str
) -> dict[str, Any]:
    groups = work.samples.groups
    attacked, quantile_bank = work.order[: work.attacked], min(work.plan.quantile_bank, len(work.order))
    plan = work.plan.describe()
    for what, made in (("attacks", work.attacks), ("metrics", work.metrics)):
        for label in (label for label, thing in made.items() if needs_fit(thing)):
            about = plan[what][label]  # other samples to fit on make it another thing
            plan[what][label] = {**(about if isinstance(about, dict) else {"described": about}), "train": train}
    return {
        "plan": plan,
        "encoders": dict(encoders),
        "errors": errors,
        "dataset": {"name": work.samples.name, "samples": len(work.samples), "notes": list(work.samples.notes)},
        "input_shape": list(work.inputs([0]).shape[1:]),
        "attacked": work.attacked,
        "bank": len(work.order),
        "quantile_bank": quantile_bank,
        "quantile_error": quantile_error(quantile_bank * (quantile_bank - 1) // 2),
        "metrics": {
            label: {name: getattr(metric, name) for name in ("aim", "better", "statistic", "per")}
            | {"span": [_finite(edge) for edge in metric.span], "comparable": getattr(metric, "comparable", True)}
            for label, metric in work.metrics.items()
        },
        "suites": {label: list(members) for label, members in work.suites.items()},
        "passes_a_sample": {label: list(told) for label, attack in work.attacks.items() if (told := passes_of_attack(attack)) is not None},
        "samples": {
            "sample": list(work.ids[: work.attacked]),
            "pair": [row // 2 for row in range(work.attacked)],
            "group": None if groups is None else [groups[row] for row in attacked],
            "part": None if work.parts is None else work.parts[: work.attacked],
        },
        "seed": work.plan.seed,
        "batch": work.batch,
        "block": BLOCK,  # what attacks whose loss couples samples see together
        "device": str(work.device),
        "versions": _versions(),
        "seconds": round(seconds, 3),
        "estimated_seconds": round(estimate, 3),
    }


def fingerprint_of(samples: Samples) -> str:
    """Return what a store knows a dataset by: its name and ids, what it says of its content, and some inputs spread over it."""
    rows = sorted({round(row) for row in np.linspace(0, len(samples) - 1, _SPOTS)})
    spots = hashlib.sha256(content_of(samples.inputs(rows))).hexdigest()
    return key_of([samples.name, *samples.ids, samples.content() if samples.content else None, spots])


def _versions() -> dict[str, str]:
    plugins = {plugin.distribution: plugin.version for plugin in installed().plugins if plugin.error is None}
    return {"python": platform.python_version(), "torch": version("torch"), "numpy": np.__version__, "pandas": pd.__version__, **plugins}


def _warn_about(results: Results) -> None:
    stuck = results.notes[results.notes["name"] == "stuck"]
    for (encoder, attack), share in stuck.groupby(["encoder", "attack"])["value"].mean().items():
        if share >= 0.1:
            _say(
                f"attack {attack!r} found no gradient at all for {share:.0%} of the samples on encoder {encoder!r}: its gradients may be masked "
                "(rounded inputs, saturated outputs), and the measures below say little about its robustness"
            )
    for label, about in results.manifest["encoders"].items():
        if about["near_duplicates"] == results.manifest["attacked"]:
            _say(f"encoder {label!r} maps all attacked samples to nearly one point: its measures mean nothing")
        if about["near_duplicates"]:
            _say(
                f"{about['near_duplicates']} of {results.manifest['attacked']} attacked samples have a near-duplicate in the bank for encoder {label!r}: "
                "breakaway and nearest-neighbor accuracy count it as a stranger, so take duplicates out of the dataset, or, "
                "where impersonation_pairs made them (…#2), leave such measures out of this plan"
            )
    for found in results.manifest["diagnosis"]:
        for warning in found["warnings"]:
            _say(warning)
    errors = results.manifest["errors"]
    if errors:
        last = errors[-1]
        _say(
            f"{len(errors)} blocks or fits failed and their rows are missing (manifest['errors']); the last: {last['error']} in "
            f"{', '.join(f'{what} {last[what]!r}' for what in ('encoder', 'attack', 'metric', 'samples') if what in last)}"
        )


def made_encoder(given: Encoder | Use, label: str) -> Encoder:
    """Return an encoder of a plan, made and named if it is described.

    Raises:
        PlanError: what was made is no encoder.
    """
    encoder = given.make("encoder") if isinstance(given, Use) else given
    if not isinstance(encoder, Encoder):
        raise PlanError(f"encoder {label!r} came out as {type(encoder).__name__}; its factory must return an rt_core.Encoder")
    if encoder is not given:
        encoder.name = label  # what messages call it
    return encoder


def find_device(device: str) -> torch.device:
    """Return the device of that name; ``"auto"`` takes the accelerator if there is one.

    Raises:
        ValueError: it is not to be had here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"device is {device!r}, which is not to be had here ({why}); 'auto' takes what there is") from error
    return torch.device(device)


@contextlib.contextmanager
def _quiet(wanted: bool) -> Iterator[None]:
    """Leave out what is said of things that are fitted on a few samples: it would not be true of those that the run fits."""
    with warnings.catch_warnings():
        if wanted:
            warnings.simplefilter("ignore", RobustnessWarning)
        yield


def _say(what: str) -> None:
    warnings.warn(what, RobustnessWarning, stacklevel=5)


def _hours(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _finite(edge: float) -> float | None:
    return edge if abs(edge) != float("inf") else None

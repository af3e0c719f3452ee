"""The paper's protocol: how large a perturbation of each granularity makes a victim err, as results like those of any other run."""

import math
import platform
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rt_core.blocks import core_versions
from rt_core.divergences import describe_divergence
from rt_core.encoders import Encoder
from rt_core.errors import RobustnessWarning
from rt_core.evaluation import describe
from rt_core.execution import find_device
from rt_core.fingerprints import fingerprint
from rt_core.gallery import Gallery, Picture
from rt_core.neighbors import Bank
from rt_core.perturbing import check_batch, passes_of, progress_bar, represent_rows
from rt_core.randomness import SampleRandom, check_seed
from rt_core.registry import installed
from rt_core.results import Results
from rt_core.store import Store, alone_in, kept_batch, key_of
from rt_core.traces import check_whole
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.goals import (
    Goal,
    TargetRepresentation,
    check_inputs_of,
    check_target_classes,
    check_targets,
    find_goal,
    print_of_goal,
    with_bank,
)
from rt_generator_perturbations.latents import Latents, check_is_latents
from rt_generator_perturbations.looking import ask, check_answers, check_latents, look
from rt_generator_perturbations.searching import Coordinates, Relaxation, coordinates_of, further_draws, searched
from rt_generator_perturbations.victims import check_bounds, check_finite, check_generator, victims_of

__all__ = ["METRIC", "granularity_curve"]

METRIC = "magnitude"
_READING = {"aim": "away", "better": "higher", "statistic": "median", "per": "sample", "span": [0.0, None], "comparable": True}
_NOTED = ("label", "target", "reached", "first", "steps", "stuck")
_LOST = "skipped/not finite"
_PICTURES = 256 * 2**20  # bytes of pictures that are kept unless told otherwise
_FEW = 6  # below this many items a median has no interval


def granularity_curve(
    generator: Generator,
    victims: Any,
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    goal: str | Goal | type[Goal] = "target",
    items: int | Latents = 100,
    classes: Any = None,
    targets: Any = None,
    seed: int = 0,
    scales: str | Mapping[str, Any] = "layer",
    pictures: int | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    batch: int | None = None,
    progress: bool = True,
    **relaxation: Any,
) -> Results:
    """Find for each item, victim and group of layers the smallest perturbation that reaches the goal (Dunn et al., arXiv 2001.11055).

    The paper's protocol: an image of class y is drawn (without classes, y is what the victim says of it); it is skipped if the victim does
    not say y; a target is drawn; the activations of one group of layers are perturbed, the constraint being relaxed until the victim says
    the target. Whether the image still shows y is for people to say, afterwards: ``judged_items``, ``labelling_sheet``, ``read_votes``. All
    victims see the same images and targets; without classes, an image that two victims call by different names may have another target for
    each, as drawn targets must not be what the victim says anyway. Goals that need no classes (``"representation"``, ``"quantile"``, ``"breakaway"``) skip
    nothing.

    Args:
        generator: a ``Generator``.
        victims: one or several encoders, classifiers (``classifier``), registered names; or a mapping by label.
        groups: {name: layers}, each perturbed for itself; None takes latent, early, middle, late and pixels (``generator.groups``).
        goal: a name, a ``Goal``, or a kind of it; the paper's is ``"target"``.
        items: how many images; or the ``Latents`` of given ones.
        classes: of the images, one or one an item; None draws them. Not beside given latents, which have theirs.
        targets: [items] classes (an item of which that is the class is skipped), or for the goal ``"representation"`` images [items, channel,
            height, width] to imitate; unless given, classes are drawn, and items imitate each other in pairs (0 with 1, 2 with 3). Goals that lead
            away have none.
        seed: of latents, classes, targets and starts.
        scales: ``"layer"`` or ``"neuron"`` (``generator.scales(per=…)``), or a mapping by layer.
        pictures: of how many items clean and perturbed pictures are kept; None keeps as many as take 256 MiB.
        store: a folder; finished blocks of items are kept there, so that a run that died goes on where it was.
        device, batch, progress: as in ``rt_core.run``.
        relaxation: the fields of ``Relaxation``.

    Returns:
        Results: encoder is the victim, attack the group of layers, metric ``magnitude``, higher is better, statistic median. The value is
        infinite where the goal was not reached up to the limit, and NaN (undefined, counted) where the item was skipped, or lost since the victim
        gave something that is not finite on the way. Notes: ``skipped/…`` with the reason (``skipped/not finite`` of what was lost), ``label``,
        ``target``, ``reached``, ``first`` (the magnitude before it was shortened), ``steps``, ``stuck`` (no gradient, or none that is finite). The
        magnitudes of different groups are comparable in the norm ``"rms"`` at most; compare victims within a group.

    Raises:
        ValueError: a parameter that makes no sense or would be ignored, no items, ids that repeat, latents that are not finite, an odd number of
            items that are to imitate each other, a target that is no class, a victim of other bounds than the generator's images, one that gives
            probabilities to a goal of classes, or a ``Bank``, which is one victim's, for several.
        EncoderError: a victim gives NaN or infinity for a clean image.
        InvalidInputs: targets or a bank that are no inputs of a victim.
        LayerError: a layer that is not there.
        StoreError: the folder holds another run, or cannot be written.
    """
    began = time.monotonic()
    check_generator(generator)
    seed = check_seed(seed)
    wanted, chosen, schedule = find_goal(goal), generator.groups(groups), Relaxation.of(relaxation, granularity_curve)
    given_victims, bank = victims_of(victims), getattr(wanted, "bank", None)
    targets = None if targets is None else torch.as_tensor(targets)
    check_targets(wanted, targets)
    for victim in given_victims.values():
        check_bounds(victim, generator)
        check_inputs_of(wanted, victim, targets)
    if isinstance(bank, Bank) and len(given_victims) > 1:
        raise ValueError(
            f"bank is a Bank, of one victim's representations, and there are {len(given_victims)} victims; give its inputs, [n, *input], which each "
            "victim represents, or how many draws"
        )
    if isinstance(items, Latents) and classes is not None:
        raise ValueError(
            f"classes is {classes!r}, and items are latents that have theirs; leave classes out, or say how many items to draw"
        )
    with torch.inference_mode(False), generator.in_use(place := find_device(device)):
        given = fingerprint(items) if isinstance(items, Latents) else ""
        if isinstance(items, (Tensor, np.ndarray)):
            check_is_latents(items, "items")
        if not isinstance(items, Latents):
            check_whole("items", items)
            items = generator.draw(range(items), seed=seed, classes=classes)
        check_latents(items)
        size = check_batch(batch if batch is not None else kept_batch(store))
        study = _Study(
            generator=generator,
            latents=items,
            groups=chosen,
            goal=wanted,
            schedule=schedule,
            scaled_by=scales if isinstance(scales, str) else "",
            targets=targets,
            seed=seed,
            batch=size + (size % 2 if _in_pairs(wanted, targets) else 0),
            device=place,
            of=generator.fingerprint,
            pictured=_pictured(generator, len(items), len(chosen) * len(given_victims)) if pictures is None else pictures,
        )
        images = look(generator, given_victims, items, batch=size)
        for label, victim in given_victims.items():
            with victim.in_use(place):
                said = ask(generator, label, victim, images.to(place), wanted, batch=size, classes=items.classes)
            if wanted.reads == "logits":
                check_answers(label, said, items.classes)
                if study.targets is not None:
                    check_target_classes(study.targets, said.shape[1])
        layers = [layer for layer in generator.layers if any(layer in group for group in chosen.values())]
        study.scales = generator.scales(seed=seed, per=scales, layers=layers) if isinstance(scales, str) else dict(scales)
        for group, layers_of_it in chosen.items():  # raises for scales that are missing or make no sense, and for too many radii
            study.coordinates[group] = coordinates_of(generator, layers_of_it, study.scales, schedule.norm)
            schedule.radii(study.coordinates[group].size)
        kept = Store(store, {"dataset": study.of + given, "seed": seed, "pairing": "given", "batch": size})
        total = len(items) * len(chosen) * len(given_victims)
        with progress_bar(progress, total, "perturbations") as bar:
            for label, victim in given_victims.items():
                with victim.in_use(place):
                    for count in study.blocks(label, victim, kept):
                        bar.update(count)
        results = study.results(time.monotonic() - began)
    _warn_of_skipped(results)
    _warn_of_lost(results)
    _warn_of_unreached(results, schedule)
    if store is not None:
        with alone_in(Path(store)):
            results.added_to(store).save(store)
    return results


@dataclass(kw_only=True, eq=False)
class _Study:
    """What one call of ``granularity_curve`` is about, and what it has found so far."""

    generator: Generator
    latents: Latents
    groups: Mapping[str, tuple[str, ...]]
    goal: Goal
    schedule: Relaxation
    scaled_by: str  # "layer", "neuron", or "" where they were given
    targets: Tensor | None
    seed: int
    batch: int
    device: torch.device
    pictured: int
    of: str  # the generator's fingerprint
    scales: Mapping[str, Any] = field(default_factory=dict)
    coordinates: dict[str, Coordinates] = field(default_factory=dict)
    rows: list[pd.DataFrame] = field(default_factory=list)
    notes: list[pd.DataFrame] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    clean: dict[int, np.ndarray] = field(default_factory=dict)
    encoders: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def goal_print(self) -> str:
        return print_of_goal(self.goal)

    def __post_init__(self) -> None:
        items = len(self.latents)
        if repeated := [name for name, times in Counter(self.latents.ids).items() if times > 1]:
            raise ValueError(
                f"id {repeated[0]!r} stands for more than one item; give each latent an id of its own, by which rows are told apart"
            )
        if self.targets is not None and len(self.targets) != items:
            raise ValueError(f"{len(self.targets)} targets for {items} items; give one an item, or none to draw them")
        if _in_pairs(self.goal, self.targets) and items % 2:
            raise ValueError(f"items is {items}; they imitate each other in pairs, so give an even number, or targets")

    def blocks(self, label: str, victim: Encoder, store: Store) -> Iterator[int]:
        """Do all of one victim, a block of items at a time, or find it in the store; yield how many items each has."""
        before, print_of_it = passes_of(victim), victim.fingerprint
        goal = with_bank(
            self.goal, victim, lambda count: further_draws(self.generator, count, self.seed, self.batch), batch=self.batch, seed=self.seed
        )
        for start in range(0, len(self.latents), self.batch):
            part, settled = self.latents.select(slice(start, start + self.batch)), None
            shown = min(max(self.pictured - start, 0), len(part))
            for group in self.groups:
                key = key_of(["perturbations", *self._identity(group, start), print_of_it, fingerprint(part)])
                block = store.load(key)
                if block is None or len(block["images"]) < shown:
                    if settled is None:
                        settled = self._settle(victim, part, start)
                    block = self._block(victim, goal, group, part, settled, shown)
                    store.save(key, block)
                self._keep(label, group, start, part.ids, block)
                yield len(part)
        spent = {what: getattr(passes_of(victim), what) - getattr(before, what) for what in ("forwards", "backwards")}
        self.encoders[label] = {**describe(victim), "fingerprint": print_of_it, "passes": spent}

    def _identity(self, group: str, start: int) -> list[Any]:
        layers = self.groups[group]
        targets = None if self.targets is None else self.targets[start : start + self.batch]
        parts = map(fingerprint, ({layer: self.scales.get(layer) for layer in layers}, targets))
        made_by = [self.seed, self.batch, str(self.device), core_versions(), version("rt-generator-perturbations")]
        return [self.of, list(layers), asdict(self.schedule), self.goal_print, *parts, *made_by]

    def _settle(self, victim: Encoder, part: Latents, start: int) -> "_Settled":
        """Return which items of a block are asked about, and what for: the steps of the protocol before the search."""
        with torch.no_grad(), SampleRandom.of(self.seed, part.ids).global_generators("clean"):
            images = self.generator(part)
            outputs = victim(images)
        check_finite(victim, outputs)
        given = None if self.targets is None else self.targets[start : start + len(part)]
        skipped = {"misclassified": torch.zeros(len(part), dtype=torch.bool)}
        if self.goal.reads != "logits":
            if isinstance(self.goal, TargetRepresentation):
                given = outputs[torch.arange(len(part)) ^ 1].cpu() if given is None else represent_rows(victim, given, self.batch)
            return _Settled(images.cpu(), None, given, skipped)
        said = outputs.argmax(1).cpu()
        labels = said if part.classes is None else part.classes.cpu()
        skipped["misclassified"] = said != labels
        if given is not None:
            skipped["target is own class"] = given == labels
        return _Settled(images.cpu(), labels, given, skipped)

    def _block(self, victim: Encoder, goal: Goal, group: str, part: Latents, settled: "_Settled", shown: int) -> dict[str, np.ndarray]:
        kept = settled.kept
        block = {name: np.full(len(part), math.nan) for name in ("value", *_NOTED)}
        block |= {f"skipped/{why}": np.where(who, 1.0, math.nan) for why, who in settled.skipped.items()}
        block[_LOST] = np.full(len(part), math.nan)
        images = settled.images.clone()
        if kept.any():
            found = searched(
                self.generator,
                victim,
                part.select(kept),
                goal,
                self.coordinates[group],
                self.schedule,
                labels=None if settled.labels is None else settled.labels[kept],
                targets=None if settled.targets is None else settled.targets[kept],
                seed=self.seed,
                batch=self.batch,
            )
            classes = found.targets if found.targets is not None and found.targets.ndim == 1 else None
            values = {"value": found.magnitude, "label": found.labels, "target": classes}
            values |= {"reached": found.reached, "first": found.first, "steps": found.steps, "stuck": found.stuck | found.lost}
            values[_LOST] = torch.where(found.lost, 1.0, math.nan)
            for name, numbers in values.items():
                if numbers is not None:
                    block[name][kept.numpy()] = numbers.double().numpy()
            images[kept] = found.images.to(images)
        return {**block, "clean": settled.images[:shown].float().numpy(), "images": images[:shown].float().numpy()}

    def _keep(self, label: str, group: str, start: int, ids: Sequence[str], block: Mapping[str, np.ndarray]) -> None:
        key = {"encoder": label, "attack": group, "aim": self.goal.aim}
        self.rows.append(pd.DataFrame({**key, "step": 0, "metric": METRIC, "sample": ids, "value": block["value"], "note": ""}))
        for name in block.keys() - {"value", "clean", "images"}:
            told = ~np.isnan(block[name])
            samples = [one for one, there in zip(ids, told, strict=True) if there]
            self.notes.append(pd.DataFrame({**key, "sample": samples, "name": name, "value": block[name][told]}))
        for row in range(min(len(ids), self.pictured - start)):
            if not np.isnan(block["value"][row]):
                self.clean[start + row] = block["clean"][row]
                about = {**key, "sample": ids[row], "why": "fixed", "divergence": float(block["value"][row])}
                self.pictures.append(Picture(about, start + row, block["images"][row]))

    def results(self, seconds: float) -> Results:
        """Return what was found."""
        order = {group: place for place, group in enumerate(self.groups)}
        tables = [
            pd.concat(parts, ignore_index=True).sort_values(
                ["encoder", "attack"], key=lambda column: column.map({**order, **places}), kind="stable"
            )
            for places in [{label: place for place, label in enumerate(self.encoders)}]
            for parts in (self.rows, self.notes)
        ]
        return Results(
            frame=tables[0].reset_index(drop=True),
            notes=tables[1].reset_index(drop=True),
            manifest=self._manifest(seconds),
            gallery=Gallery.of(self.pictures, lambda row: self.clean[row]),
        )

    def _manifest(self, seconds: float) -> dict[str, Any]:
        ids, bank = list(self.latents.ids), getattr(self.goal, "bank", 0)
        bank = bank if isinstance(bank, int) else len(bank)
        about, goal = self.generator.describe(), describe(self.goal)
        goal = {"goal": type(self.goal).__name__, **(goal if isinstance(goal, dict) else {})}
        if isinstance(given := getattr(self.goal, "bank", 0), (Bank, torch.Tensor)):
            goal["bank"] = f"{len(given)} given, {self.goal_print[:8]}"
        shapes = self.generator.shapes()
        schedule = {"class": "layers of a generator", **asdict(self.schedule)}
        attacks = {
            group: {
                **goal,
                **schedule,
                "layers": list(layers),
                "scales": {layer: _told(self.scales[layer]) for layer in layers},
                "size": self.coordinates[group].size,
                "of": self._of(layers),
            }
            for group, layers in self.groups.items()
        }
        return {
            "plan": {
                "encoders": {label: {**described} for label, described in self.encoders.items()},
                "dataset": about,
                "train": None,
                "attacks": attacks,
                "metrics": {METRIC: {"class": "the smallest magnitude that reaches the goal", "norm": self.schedule.norm}},
                "divergence": describe_divergence(getattr(self.goal, "divergence", "-")),
                "attacked": len(ids),
                "bank": bank,
                "quantile_bank": bank,
                "pairing": "given",
                "seed": self.seed,
            },
            "generator": {
                "fingerprint": self.of,
                "shapes": {layer: list(shape) for layer, shape in shapes.items()},
            },
            "encoders": self.encoders,
            "errors": [],
            "dataset": {"name": self.generator.name, "samples": len(ids), "notes": []},
            "input_shape": list(next(iter(self.clean.values())).shape) if self.clean else None,
            "attacked": len(ids),
            "bank": bank,
            "quantile_bank": bank,
            "quantile_error": 0.0,
            "metrics": {METRIC: {**_READING, "aim": self.goal.aim}},
            "suites": {},
            "passes_a_sample": {},
            "diagnosis": None,
            "samples": {
                "sample": ids,
                "pair": [row // 2 if _in_pairs(self.goal, self.targets) else row for row in range(len(ids))],
                "group": None,
                "part": None,
            },
            "seed": self.seed,
            "batch": self.batch,
            "device": str(self.device),
            "versions": _versions(),
            "seconds": round(seconds, 3),
        }

    def _of(self, layers: Sequence[str]) -> str:
        """Return by short fingerprints what the magnitudes of some layers are of: those of other images, targets or units are others."""
        # What is measured of the generator and the seed may differ in last bits between machines; how it was asked for does not.
        scales = self.scaled_by or fingerprint({layer: torch.as_tensor(self.scales[layer]) for layer in layers})[:8]
        parts = {"generator": self.of[:8], "items": fingerprint(self.latents)[:8], "scales": scales}
        if self.targets is not None:
            parts["targets"] = fingerprint(self.targets)[:8]
        return " ".join(f"{what}:{print_of_it}" for what, print_of_it in parts.items())


@dataclass(frozen=True, eq=False)
class _Settled:
    """A block of items before the search: clean images, classes, what to reach, and who is skipped for which reason; on the CPU."""

    images: Tensor
    labels: Tensor | None
    targets: Tensor | None
    skipped: Mapping[str, Tensor]

    @property
    def kept(self) -> Tensor:
        return ~torch.stack([*self.skipped.values()]).any(0)


def _in_pairs(goal: Goal, targets: Any) -> bool:
    """Say whether items are each other's targets."""
    return isinstance(goal, TargetRepresentation) and targets is None


def _pictured(generator: Generator, items: int, times: int) -> int:
    """Return of how many items all pictures together take no more than what is kept."""
    return min(items, _PICTURES // (4 * math.prod(generator.shapes()["image"]) * (times + 1)))


def _told(scale: Any) -> float | str:
    """Return a layer's scale to three digits, or the range of its neurons': last bits, which differ between machines, do not make another group."""
    numbers = torch.as_tensor(scale, dtype=torch.float64)
    return float(f"{numbers:.3g}") if numbers.ndim == 0 else f"{numbers.min():.3g} to {numbers.max():.3g}, mean {numbers.mean():.3g}"


def _versions() -> dict[str, str]:
    plugins = {plugin.distribution: plugin.version for plugin in installed().plugins if plugin.error is None}
    return {"python": platform.python_version(), "torch": version("torch"), "numpy": np.__version__, "pandas": pd.__version__, **plugins}


def _warn_of_skipped(results: Results) -> None:
    told = results.notes.groupby(["encoder", "name"]).size()
    items, groups = results.manifest["attacked"], len(results.manifest["plan"]["attacks"])
    for label in results.manifest["encoders"]:
        count, wrong = (int(told.get((label, name), 0)) // groups for name in ("reached", "skipped/misclassified"))
        own = items - wrong - count  # of an item that is misclassified as well, only that is counted
        if count < min(_FEW, items):
            reasons = [f"victim {label!r} is right about {items - wrong} of {items} images of the generator"]
            remedies = ["look whether both number the classes alike, and whether the victim sees what it was trained on"] if wrong else []
            if own:
                reasons.append(f"the target of {own} of these is the class that they are of")
                remedies.append("give those other targets=, or none to draw them")
            warnings.warn(
                f"{', '.join(reasons)}, so only {count} are perturbed: too few for an interval; {'; '.join(remedies)}",
                RobustnessWarning,
                stacklevel=3,
            )


def _warn_of_lost(results: Results) -> None:
    asked = results.notes[results.notes["name"] == "reached"].groupby("encoder").size()
    for label, lost in results.notes[results.notes["name"] == _LOST].groupby("encoder", sort=False):
        where = ", ".join(f"{len(part)} in {group!r}" for group, part in lost.groupby("attack", sort=False))
        warnings.warn(
            f"victim {label!r} gave NaN or infinity, or a slope of these, on the way for {len(lost)} of {asked[label]} perturbations ({where}), which are "
            "undefined: what is left is no sample of all; look for a square root, a logarithm, a division or half precision in it",
            RobustnessWarning,
            stacklevel=3,
        )


def _warn_of_unreached(results: Results, schedule: Relaxation) -> None:
    about, stuck = results.manifest["plan"]["attacks"], results.notes[results.notes["name"] == "stuck"]
    asked = results.frame[results.frame["value"].notna()]
    for label, rows in asked.groupby("encoder", sort=False):
        none = [group for group, part in rows.groupby("attack", sort=False) if not np.isfinite(part["value"]).any()]
        if none:
            count = int(rows["attack"].isin(none).sum())
            still = int(stuck.loc[(stuck["encoder"] == label) & stuck["attack"].isin(none), "value"].sum())
            tried = ", ".join(f"{group!r} (up to {schedule.radii(about[group]['size'])[-1]:g})" for group in none)
            warnings.warn(
                f"for victim {label!r} the goal was reached for no item in {tried}, so these {count} magnitudes are infinite; say a larger limit="
                + (
                    f", which does not help the {still} of them that never had a gradient: look whether the victim has one" if still else ""
                ),
                RobustnessWarning,
                stacklevel=3,
            )

"""Impersonation (Petrov & Kwiatkowska 2022, C.10): whether a sample attacked toward one of another group is taken for one of that group."""

import contextlib
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from rt_core.datasets import Samples, as_samples
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Bound
from rt_core.errors import InvalidInputs, MissingLabels, PlanError
from rt_core.neighbors import Bank
from rt_core.randomness import stream
from rt_core.registry import Use, dataset
from rt_core.results import Results
from rt_core.shapes import check_shape
from rt_core.store import key_of
from rt_core.traces import Context, Trace, check_whole
from rt_linear_probes.probes import Probe, as_probe, check_labels

__all__ = [
    "ImpersonationRate",
    "NeighborImpersonationRate",
    "gallery_pairs",
    "impersonation_grid",
    "impersonation_pairs",
    "impersonation_rate",
    "impersonation_rates",
]

Groups = tuple[tuple[str, tuple[int, ...]], ...]

_OUTSIDE = torch.iinfo(torch.int64).min  # stands for the group of a label that is in none
_COPY = re.compile(r"#(?:[2-9]|[1-9]\d+)$")
_COLUMNS = ["encoder", "attack", "step", "metric", "direction", "successes", "n", "rate", "low", "high", "left_out"]
_GAP, _SMALLEST = 2, 96  # pixels between the pictures of a grid, and the least size of one of them
_ROWS, _TEXT = ("sample", "attacked toward\nthe target", "target", "attacked toward\nthe sample"), 12


def impersonation_pairs(
    source: Any, *, groups: Mapping[str, int | Sequence[int]] | None = None, limit: int | None = None, seed: int | None = 0
) -> Samples:
    """Return samples of two groups as pairs, one of either group: what a plan with ``pairing="given"`` attacks in both directions.

    Each sample of the larger group comes once, those of the smaller one as often as they are needed, under ids of their own (``…#2``).
    The smaller group's stand first in their pairs, so that intervals, which resample pairs by their first sides, count all pairs that
    share a sample as one observation. Give the plan ``attacked=len(pairs)``.

    Args:
        source: a dataset with labels, in any form or as ``use(…)``; or, without labels, two datasets by name: ``{"cat": "photos/cats",
            "dog": "photos/dogs"}``.
        groups: the classes of each of the two groups, by name: ``{"cat": range(281, 294), "dog": range(151, 275)}``. Of two datasets they are
            the classes that a probe knows the groups by, and the first of each becomes the label of its samples; without them labels are 0 and 1.
        limit: how many pairs at most.
        seed: of the order; None keeps that of the dataset, as the paper's scripts do.

    Raises:
        MissingLabels: one dataset without labels.
        InvalidInputs: a group without samples.
        ValueError: not two groups, or groups that share a class.
    """
    if limit is not None:
        check_whole("limit", limit)
    two = isinstance(source, Mapping) and "use" not in source
    known = _checked_groups({name: place for place, name in enumerate(source)} if two and groups is None else groups)
    if len(known) != 2:
        raise ValueError(f"groups are {', '.join(name for name, _ in known)}; a pair has two sides, so give two groups")
    sides = _of_datasets(source, known) if two else _of_labels(_samples(source), known)
    for (name, _), side in zip(known, sides, strict=True):
        if not side:
            raise InvalidInputs(f"no sample is in group {name!r}; check its classes, or give a dataset that has some")
    if seed is not None:
        sides = [[side[row] for row in stream(seed, "pairs").permutation(len(side))] for side in sides]
    smaller, larger = sorted(sides, key=len)
    ordered = []
    for place, member in enumerate(larger[:limit]):
        copy, row = divmod(place, len(smaller))
        ordered += [(smaller[row], f"#{copy + 1}" if copy else ""), (member, "")]
    members, ids = tuple(member for member, _ in ordered), tuple(member.name + copy for member, copy in ordered)
    if taken := next((one for one, count in Counter(ids).items() if count > 1), None):
        raise InvalidInputs(
            f"a sample is called {taken!r}, as the copy of {_COPY.sub('', taken)!r} is that makes a pair; expected no id that ends in # and "
            "a number; rename it"
        )
    return Samples(
        name=f"{' and '.join(dict.fromkeys(member.samples.name for member in members))} in pairs",
        ids=ids,
        read=_Inputs(members),
        find_labels=_Labels(members, tuple(row // 2 for row in range(len(members)))),
        groups=tuple(member.owner for member in members),
        notes=tuple(dict.fromkeys(itertools.chain.from_iterable(member.samples.notes for member in members))),
        content=_Content(members) if all(member.samples.content for member in members) else None,
    )


def impersonation_rate(
    labels: Tensor, clean: Tensor, attacked: Tensor, partner: Tensor, *, groups: Mapping[str, int | Sequence[int]] | None = None
) -> Tensor:
    """Return whether each attacked sample is taken for one of its target's group: 1 or 0, and NaN where its pair does not count.

    A pair counts where its sides are of different groups and both clean samples are taken for what they are (paper, C.10).

    Args:
        labels: [n], what each sample is; clean, attacked: [n], what it is taken for before and after.
        partner: [n], the row of each sample's target.
        groups: the classes of each group, by name; without them each label is a group of its own.

    Returns:
        [n], float64

    Raises:
        InvalidInputs, ShapeError: labels that are not one class a sample.
        ValueError: a partner that is no row, or groups that share a class.
    """
    named, rows = {"labels": labels, "clean": clean, "attacked": attacked}, torch.as_tensor(partner).cpu()
    classes = [check_labels(values, len(labels), what=name) for name, values in named.items()]
    check_shape(rows, "n", what="partner", n=len(labels))
    if rows.is_floating_point() or rows.dtype == torch.bool or not ((rows >= 0) & (rows < len(labels))).all():
        raise ValueError(f"partner is {rows.tolist()}; expected the row of each sample's target, a whole number in 0 to {len(labels) - 1}")
    return _rows(*classes, rows, None if groups is None else _checked_groups(groups))[""]


@dataclass(frozen=True, kw_only=True)
class _Impersonation:
    """What both metrics share. Abstract: use one of those below."""

    groups: Any = None
    aim: ClassVar[str] = "target"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "rate"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", _checked_groups(self.groups))

    def _check(self, bank: Bank, context: Context) -> None:
        raise NotImplementedError

    def _taken_for(self, representations: Tensor, trace: Trace, bank: Bank, context: Context) -> Tensor:
        raise NotImplementedError

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> dict[str, Tensor]:
        """-> [n], 0 or 1, NaN where the pair does not count; with groups also one part for each direction, NaN in the others"""
        assert trace.partner is not None, "a trace of aim target knows each sample's target"
        pairs = [getattr(label, "pair", None) for label in context.known_labels or ()]
        if any(pair != pairs[other] for pair, other in zip(pairs, trace.partner.tolist(), strict=False)):
            raise PlanError(
                "the samples of impersonation_pairs have other partners than it gave them, so these are no pairs of its two groups; give the "
                "plan pairing='given' (and pick rows of such a dataset by whole pairs)"
            )
        labels, key = context.labels, ("clean classes", self)
        if key not in context.shared:
            self._check(bank, context)
            context.shared[key] = self._taken_for(trace.clean, trace, bank, context)
        attacked = self._taken_for(trace.adversarial, trace, bank, context)
        return _rows(labels, context.shared[key], attacked, trace.partner, self.groups)


@dataclass(frozen=True, kw_only=True)
class ImpersonationRate(_Impersonation):
    """Whether a linear probe takes a sample that was attacked toward one of another group for one of that group (paper, C.10).

    Only pairs of which the probe gets both clean sides right count; the others are undefined. Both directions of a pair count alike, so
    that the rate is the average of the rates of the two directions. The attack never sees the probe.

    Args:
        groups: the classes of each group, by name, such as ``{"cat": range(281, 294), "dog": range(151, 275)}``: then success is any class of
            the target's group, and there is a part for each direction, ``"cat to dog"``. Without them each class is a group of its own.
        probe: a plain probe, or its options; fitted on the plan's ``train`` where it is not yet.

    Raises:
        ValueError: groups that share a class, or a probe of filtered or noisy inputs.
    """

    probe: Probe | Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "probe", as_probe(self.probe))
        if self.probe.view != "plain":
            raise ValueError(f"the probe's view is {self.probe.view!r}; impersonation reads what was attacked itself: take view='plain'")

    def _check(self, bank: Bank, context: Context) -> None:
        self.probe.check(context.encoder)

    def _taken_for(self, representations: Tensor, trace: Trace, bank: Bank, context: Context) -> Tensor:
        return self.probe.predict(representations)


@dataclass(frozen=True, kw_only=True)
class NeighborImpersonationRate(_Impersonation):
    """Whether the nearest clean neighbor of a sample that was attacked toward one of another group is of that group: needs no probe.

    The neighbor is the nearest row of the bank other than the sample itself (and copies of it, whose ids are the sample's and ``#2``, …).
    Only pairs of which both clean sides have a nearest neighbor of their own group count. Labels say which group a row is of;
    ``impersonation_pairs`` of two folders makes them.

    Args:
        groups: as for ``ImpersonationRate``.
        divergence: which neighbors are near; None takes the plan's.
    """

    divergence: str | Divergence | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence is not None:
            find_divergence(self.divergence)

    def _check(self, bank: Bank, context: Context) -> None:
        if bank.labels is None:
            raise MissingLabels("impersonation needs to know which group a row of the bank is of; give a dataset with labels")

    def _taken_for(self, representations: Tensor, trace: Trace, bank: Bank, context: Context) -> Tensor:
        measure = context.divergence if self.divergence is None else find_divergence(self.divergence)
        return torch.tensor(bank.labels or ())[_nearest_other(representations, trace.ids, bank, measure)]


def impersonation_rates(results: Results, *, level: float = 0.95) -> pd.DataFrame:
    """Return the impersonation rates of a run: each direction's, and their average, with intervals.

    Returns:
        Columns encoder, attack, step, metric, direction (``"both"`` for the average), successes, n, rate, low, high, left_out: pairs that do not
        count, because a clean side was taken for something else or both are of one group.

    Raises:
        ValueError: the run measured no impersonation.
    """
    ours = {f"{one.__module__}.{one.__qualname__}" for one in (ImpersonationRate, NeighborImpersonationRate)}
    described = {label: about for label, about in results.manifest["plan"]["metrics"].items() if isinstance(about, Mapping)}
    labels = [label for label, about in described.items() if about.get("class") in ours]
    if not labels:
        raise ValueError("these results hold no impersonation rate; put the metric impersonation_rate into the plan")
    tables, summary = [], results.summary(level=level)
    for label in labels:
        rows = summary[(summary["metric"] == label) | summary["metric"].str.startswith(f"{label}/")]
        both = rows["undefined"].where(rows["metric"] == label)  # a direction's own would count the other's rows
        tables.append(
            rows.assign(
                metric=label,
                direction=rows["metric"].str.removeprefix(label).str.removeprefix("/").replace("", "both"),
                successes=(rows["estimate"] * rows["n"]).fillna(0).round().astype(int),
                left_out=both.groupby([rows[key] for key in ("encoder", "attack", "step")]).transform("first").astype(int) // 2,
            )
        )
    return pd.concat(tables, ignore_index=True).rename(columns={"estimate": "rate"})[_COLUMNS]


def impersonation_grid(
    clean: Tensor, attacked: Tensor, target: Tensor, reverse: Tensor, *, bounds: tuple[Bound, Bound] = (0.0, 1.0)
) -> Image.Image:
    """Return pairs as a picture, a column each, in the four rows of the paper's figures (appendix D).

    From the top: a sample, the same attacked toward its target, the target, and the target attacked toward the sample, as the margin says;
    pairs are numbered. Small pictures are enlarged, pixel by pixel.

    clean, attacked, target, reverse: [pairs, channel, height, width], one or three channels, inside ``bounds``

    Raises:
        ValueError: not pictures, or not the same number of each.
    """
    rows = [torch.as_tensor(row).detach().cpu().double() for row in (clean, attacked, target, reverse)]
    shape = rows[0].shape
    if len(shape) != 4 or shape[1] not in (1, 3) or not shape[0] or any(row.shape != shape for row in rows):
        shapes = ", ".join(str(list(row.shape)) for row in rows)
        raise ValueError(f"the rows have shapes {shapes}; expected four of [pairs, 1 or 3 channels, height, width]")
    pairs, channel, height, width = shape
    low, high = (torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in bounds)
    scale = -(-_SMALLEST // max(height, width))
    shown = ((torch.stack(rows) - low) / (high - low) * 255).round().clamp(0, 255).repeat_interleave(scale, 3).repeat_interleave(scale, 4)
    high_step, wide_step, font = scale * height + _GAP, scale * width + _GAP, ImageFont.load_default(_TEXT)
    margin, heading = (round(max(font.getlength(line) for row in _ROWS for line in row.split("\n"))) + 3 * _GAP, _TEXT + 2 * _GAP)
    picture = Image.new("L" if channel == 1 else "RGB", (margin + pairs * wide_step + _GAP, heading + 4 * high_step + 2 * _GAP), "white")
    pen = ImageDraw.Draw(picture)
    tops = [heading + _GAP + row * high_step + (row > 1) * _GAP for row in range(4)]  # one gap more between the two directions
    for top, text in zip(tops, _ROWS, strict=True):
        pen.multiline_text((margin - _GAP, top + scale * height // 2), text, fill="black", font=font, anchor="rm", align="right")
    for column in range(pairs):
        left = margin + _GAP + column * wide_step
        pen.text((left + scale * width // 2, heading // 2), str(column + 1), fill="black", font=font, anchor="mm")
        for row, top in enumerate(tops):
            values = shown[row, column].permute(1, 2, 0).to(torch.uint8).numpy()
            picture.paste(Image.fromarray(np.ascontiguousarray(values).squeeze(2 if channel == 1 else ())), (left, top))
    return picture


def gallery_pairs(results: Results, *, encoder: str, attack: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the pairs that a run kept of an attack, in both directions: the four rows of ``impersonation_grid``.

    A run keeps its first two pairs, and of others those of which both sides were among the worst.

    Returns:
        clean, attacked, target, reverse: [pairs, *input]

    Raises:
        ValueError: nothing of such an attack was kept.
    """
    about, known = results.gallery.about, results.manifest["samples"]
    chosen = (about["encoder"] == encoder) & (about["attack"] == attack) & (about["aim"] == "target")
    attacked = {about["sample"][row]: results.gallery.adversarial[row] for row in np.flatnonzero(chosen)}
    pairs = [both for both in zip(known["sample"][::2], known["sample"][1::2], strict=True) if all(one in attacked for one in both)]
    if not pairs:
        raise ValueError(
            f"the run kept no pair of attack {attack!r} on encoder {encoder!r}; make some with perturb, once for each direction"
        )
    rows = [[kept[both[side]] for both in pairs] for side in (0, 1) for kept in (results.gallery.originals, attacked)]
    clean, there, target, back = (torch.from_numpy(np.stack(row)) for row in rows)
    return clean, there, target, back


@dataclass(frozen=True, eq=False)
class _Member:
    """A sample of one side: where it is read, and what it is called."""

    samples: Samples
    row: int
    name: str
    owner: str
    label: int


@dataclass(frozen=True, eq=False)
class _Inputs:
    members: tuple[_Member, ...]

    def __call__(self, rows: Sequence[int]) -> Tensor:
        chosen = [self.members[row] for row in rows]
        inputs = [member.samples.inputs([member.row])[0] for member in chosen]
        for member, one in zip(chosen, inputs, strict=True):
            if one.shape != inputs[0].shape:
                raise InvalidInputs(
                    f"samples {chosen[0].name!r} and {member.name!r} have shapes {list(inputs[0].shape)} and {list(one.shape)}; expected one "
                    "shape for all: give both datasets one size, such as use('folder', path='photos/cats', size=224)"
                )
        return torch.stack(inputs)


class _Sided(int):
    """A label that knows which pair its sample is a side of, so that a metric sees whether a run kept the pairs."""

    pair: int


@dataclass(frozen=True, eq=False)
class _Labels:
    members: tuple[_Member, ...]
    pairs: tuple[int, ...]

    def __call__(self, rows: Sequence[int]) -> list[int]:
        labels = []
        for row in rows:
            labels.append(label := _Sided(self.members[row].label))
            label.pair = self.pairs[row]
        return [*labels]


@dataclass(frozen=True, eq=False)
class _Content:
    members: tuple[_Member, ...]

    def __call__(self) -> str:
        sources = {id(member.samples): member.samples for member in self.members}.values()
        return key_of([source.content() for source in sources if source.content])


def _samples(source: Any) -> Samples:
    if isinstance(source, Mapping):  # from a file
        return as_samples(dataset(source["use"], **{name: value for name, value in source.items() if name != "use"}))
    return as_samples(source.make("dataset") if isinstance(source, Use) else source)


def _members(samples: Samples, rows: Iterable[int], labels: Sequence[int], prefix: str = "") -> list[_Member]:
    owners = samples.ids if samples.groups is None else samples.groups
    return [_Member(samples, row, prefix + samples.ids[row], prefix + owners[row], labels[row]) for row in rows]


def _of_datasets(sources: Mapping[str, Any], groups: Groups) -> list[list[_Member]]:
    if {*sources} != {name for name, _ in groups}:
        raise ValueError(
            f"the datasets are called {', '.join(sources)}, and the groups {', '.join(name for name, _ in groups)}; name both alike"
        )
    made = [(name, _samples(sources[name]), classes[0]) for name, classes in groups]
    return [_members(samples, range(len(samples)), [label] * len(samples), f"{name}/") for name, samples, label in made]


def _of_labels(samples: Samples, groups: Groups) -> list[list[_Member]]:
    labels = samples.labels(range(len(samples)))
    if labels is None:
        raise MissingLabels(
            f"dataset {samples.name!r} has no labels to tell the groups by; give one that has, or two datasets: {{'cat': …, 'dog': …}}"
        )
    return [_members(samples, [row for row, label in enumerate(labels) if label in classes], labels) for _, classes in groups]


def _checked_groups(groups: Any) -> Groups:
    """Return the groups as a value, each with the classes that are in it.

    Raises:
        ValueError: not at least two, one without classes, a class of two groups, or what is no class.
    """
    given = {} if groups is None else dict(groups)
    if len(given) < 2:
        raise ValueError(f"groups are {groups!r}; give the classes of two, such as {{'cat': range(281, 294), 'dog': range(151, 275)}}")
    known = {name: _whole_numbers(classes) for name, classes in given.items()}
    for name, classes in known.items():
        if not classes:
            raise ValueError(f"group {name!r} has classes {given[name]!r}; expected whole numbers, at least one")
    for (name, classes), (other, more) in itertools.combinations(known.items(), 2):
        if shared := {*classes} & {*more}:
            raise ValueError(f"class {min(shared)} is in groups {name!r} and {other!r}; a class belongs to one")
    return tuple(known.items())


def _whole_numbers(classes: Any) -> tuple[int, ...]:
    """Return one class or several as a tuple, empty if they are no whole numbers."""
    for read in (lambda: (operator.index(classes),), lambda: tuple(map(operator.index, classes))):
        with contextlib.suppress(TypeError):
            return read()
    return ()


def _group_of(labels: Tensor, groups: Groups | None) -> Tensor:
    """[n] labels -> [n], the place of each one's group, or the label itself where each is a group"""
    if groups is None:
        return labels
    places = torch.full(labels.shape, _OUTSIDE)
    for place, (_, classes) in enumerate(groups):
        places[torch.isin(labels, torch.tensor(classes))] = place
    return places


def _rows(labels: Tensor, clean: Tensor, attacked: Tensor, partner: Tensor, groups: Groups | None) -> dict[str, Tensor]:
    own, before, after = (_group_of(torch.as_tensor(one).long().cpu(), groups) for one in (labels, clean, attacked))
    right, target = (before == own) & (own != _OUTSIDE), own[partner]
    counts = right & right[partner] & (own != target)
    success = torch.where(counts, (after == target).double(), torch.nan)
    parts = {"": success}
    for (first, (name, _)), (second, (other, _)) in itertools.permutations(enumerate(groups or ()), 2):
        parts[f"{name} to {other}"] = torch.where((own == first) & (target == second), success, torch.nan)
    return parts


def _nearest_other(queries: Tensor, ids: Sequence[str], bank: Bank, divergence: Divergence) -> Tensor:
    """Return the row of the bank nearest to each query that is not a copy of the query's own sample.

    queries: [n, dim] -> [n]
    """
    known = {*bank.ids, *ids}

    def original(one: str) -> str:
        found = _COPY.sub("", one)
        return found if found in known else one  # else what ends in #2 is no copy, but called so

    names = [*map(original, bank.ids)]
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    rows_of = torch.tensor([number[name] for name in names])
    own = [*map(original, ids)]
    copies = Counter(names)
    _, rows = bank.nearest(queries, 1 + max(copies[name] for name in own), torch.full((len(own),), -1), divergence)
    others = rows_of[rows] != torch.tensor([number.get(name, -1) for name in own])[:, None]
    return rows.gather(1, others.long().argmax(1, keepdim=True)).squeeze(1)  # argmax takes the first of equals

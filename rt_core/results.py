"""What a run found: one row a sample and measure, and readings of it: a summary with intervals, a comparison of two encoders, a table."""

import contextlib
import csv
import functools
import itertools
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from rt_core import statistics
from rt_core.errors import RobustnessWarning, StoreError
from rt_core.gallery import Gallery
from rt_core.store import written

__all__ = ["Results", "worst_label"]

_KEYS = ["encoder", "attack", "aim", "step", "metric"]
_NOTE_KEYS = ["encoder", "attack", "aim", "sample", "name"]
_FILES = ("frame", "notes")
_NEEDED = ("plan", "encoders", "metrics", "samples", "suites", "passes_a_sample", "diagnosis", "errors", "seed", "bank", "quantile_bank")


@dataclass(frozen=True, eq=False)
class Results:
    """Everything a run found.

    frame: columns encoder, attack, aim, step, metric, sample, value, note. One row a sample, or a pair (named by its first side); step is a
    mark, else the attack's number of steps, else 0; aim clean has attack ``-``. NaN is *not defined for this sample*, unless the note says
    ``abstained`` or ``no certificate``: then it is a certificate that was not given, and every summary reads it as the worst value.

    notes: columns encoder, attack, aim, sample, name, value: stuck samples, the divergence before each step (``history/…``), and whatever
    else an attack had to say. manifest: versions, parameters, seeds, fingerprints, passes, time, and how each metric is read; its ``diagnosis`` is None
    where a runner knows none. gallery: a few adversarial inputs, to be looked at.

    Where the bank is too small for its own sampling error to be left out, the values in the bank without each tenth of it come with the
    frame (as further columns, ``without_0`` …), are kept beside it and saved, and widen the intervals.
    """

    COLUMNS: ClassVar = (*_KEYS, "sample", "value", "note")
    NOTE_COLUMNS: ClassVar = ("encoder", "attack", "aim", "sample", "name", "value")

    frame: pd.DataFrame
    notes: pd.DataFrame
    manifest: Mapping[str, Any]
    gallery: Gallery = field(default_factory=Gallery)
    _rows: pd.DataFrame = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # One type a column, however the rows were made or read, so that a run and what is loaded of it are equal.
        numbers = {"step": "int64", "value": "float64"} | dict.fromkeys(_left_out(self.frame), "float64")
        for name in _FILES:
            frame = getattr(self, name)
            object.__setattr__(self, name, frame.astype({column: numbers.get(column, "str") for column in frame.columns}))
        object.__setattr__(self, "_rows", self.frame)
        object.__setattr__(self, "frame", self.frame[[*self.COLUMNS]])

    def summary(self, *, level: float = 0.95) -> pd.DataFrame:
        """Return one row a measure: estimate, interval, and the numbers behind them.

        Rates get Clopper-Pearson intervals, medians order statistics, means of a bounded measure a bounded-mean interval (never [0, 0]),
        others a bootstrap; where samples belong together (both sides of a pair, a group), whole clusters count as one observation. Ranks
        in a bank below ten times the attacked carry the bank's own sampling error as well, by a jackknife over ten parts of the bank and of
        the attacked in it (but for measures that run the encoder themselves, such as radii, which would cost ten times as much).

        Returns:
            Columns encoder, attack, aim, step, metric, statistic, estimate, low, high, n, undefined, abstained, better. n counts the rows
            that are defined; abstained ones are among them.
        """
        statistics.allowed_error(level)
        rows = []
        for key, part in self._parts():
            reading = self._reading(key[-1])
            values, clusters, undefined, abstained = self._values(part, reading)
            found = statistics.interval(
                values, statistic=reading.statistic, span=reading.bounded, groups=clusters, level=level, seed=self.manifest["seed"]
            )
            low, high = found.low, found.high
            if found.n and (again := self._resampled(part, reading)) is not None:
                errors = statistics.jackknife_errors(found.estimate, *again, statistic=reading.statistic)
                low, high = statistics.widened(low, found.estimate, high, errors, again[0].shape[1], level=level)
            low, high = np.clip([low, high], *reading.span)
            rows.append([*key, reading.statistic, found.estimate, low, high, found.n, undefined, abstained, reading.better])
        return pd.DataFrame(rows, columns=[*_KEYS, "statistic", "estimate", "low", "high", "n", "undefined", "abstained", "better"])

    def compare(self, first: str, second: str, *, level: float = 0.95) -> pd.DataFrame:
        """Compare two encoders on the samples that both have: paired, and corrected for the number of comparisons (Holm).

        It says what holds of these two encoders and these samples' kind; one set of weights each says nothing of two training methods.
        Differences are of means, also where the summary shows medians, since the mean of differences is the difference of means.

        Returns:
            Columns attack, aim, step, metric, mean_first, mean_second (medians where values are infinite), difference (first minus
            second), low, high, p (sign flips, or exact for rates), p_corrected, n, better: the encoder that the difference favours (more
            of the samples, where values are infinite); ``"-"`` where it cannot be told: p_corrected is above 1 - level, or the bank is
            small and the interval, which assumes less, holds 0; ``"no gradient"`` where the attack had none on one of the two; ``"not comparable"``, without p,
            for what each encoder measures on its own scale.

        Raises:
            ValueError: no rows of an encoder of that name, or a level outside (0, 1).
        """
        alpha, known = statistics.allowed_error(level), list(dict.fromkeys(self.frame["encoder"]))
        for name in (first, second):
            if name not in known:
                raise ValueError(f"no results of encoder {name!r}; there are {', '.join(map(repr, known))}")
        indexed = self._rows.set_index("encoder")
        joined = indexed.loc[[first]].merge(indexed.loc[[second]], on=[*_KEYS[1:], "sample"], suffixes=("_first", "_second"), sort=False)
        rows: list[list[Any]] = []
        small: list[bool] = []
        for key, part in joined.groupby(_KEYS[1:], sort=False):
            reading = self._reading(key[-1])
            sides = [reading.filled(part[f"value_{side}"].to_numpy(), part[f"note_{side}"].to_numpy()) for side in ("first", "second")]
            defined = ~(np.isnan(sides[0]) | np.isnan(sides[1]))
            if not defined.any():
                continue
            clusters = self._clusters(part["sample"].to_numpy()[defined], str(key[1]))
            left, right = (side[defined] for side in sides)
            found = statistics.paired_comparison(
                left, right, statistic=reading.statistic, span=reading.bounded, groups=clusters, level=level, seed=self.manifest["seed"]
            )
            finite = np.isfinite([left, right]).all()
            center = np.mean if finite else np.median
            lean = found.difference if finite else int((left > right).sum()) - int((left < right).sum())  # what p is of
            favoured = first if (lean < 0) == (reading.better == "lower") else second
            low, high, p = found.low, found.high, found.p if reading.comparable else math.nan
            shifts = self._resampled(part[defined], reading, "_first", "_second")
            small.append(shifts is not None)
            if shifts is not None:
                errors = statistics.jackknife_errors(found.difference, *shifts, statistic="mean" if finite else "median")
                low, high = statistics.widened(low, found.difference, high, errors, shifts[0].shape[1], level=level)
                p = max(p, _student(found.difference, errors, shifts[0].shape[1])) if finite else p
            width = reading.span[1] - reading.span[0]
            low, high = np.clip([low, high], -width, width)
            rows.append([*key, center(left), center(right), found.difference, low, high, p, found.n, favoured])
        table = pd.DataFrame(rows, columns=[*_KEYS[1:], "mean_first", "mean_second", "difference", "low", "high", "p", "n", "better"])
        table.insert(len(table.columns) - 2, "p_corrected", statistics.holm(table["p"].to_numpy(dtype=np.float64)))
        unsure = np.array(small, dtype=bool) & (table["low"] <= 0) & (table["high"] >= 0)
        told = (table["p_corrected"] <= alpha) & ~unsure
        masked = table["attack"].isin({**self.unbelievable(first), **self.unbelievable(second)})
        verdicts = ["not comparable", "no gradient", table["better"]]
        return table.assign(better=np.select([table["p"].isna(), masked, told], verdicts, "-"))

    def comparison(self, first: str, second: str, *, level: float = 0.95, attack: str | None = None) -> str:
        """Return ``compare`` as a text to read; ``attack``: only the rows of this one, and of clean representations."""
        table = self.compare(first, second, level=level)
        compared = table["p"].notna().sum()
        heading = f"{first} minus {second}: differences of means, paired, [{level:.0%} interval], p corrected for {compared} comparisons"
        if attack is not None:
            table = table[table["attack"].isin([attack, "-"])]
            heading += f"; here those of {attack}"
        return f"{heading}\n\n{table.to_string(index=False, float_format=lambda value: f'{value:.4g}')}"

    def unbelievable(self, encoder: str) -> dict[str, str]:
        """Return why the rows of an attack on an encoder are not to be believed, in words, by the attack's label: it found no gradient.

        Where a tenth of the samples or more had none at any step, an attack that failed is told, not an encoder that is robust.
        """
        stuck = self.notes[(self.notes["name"] == "stuck") & (self.notes["encoder"] == encoder)]
        shares = stuck.groupby("attack", sort=False)["value"].mean()
        words = "{attack} found no gradient, or none that is finite, for {share:.0%} of the samples on {encoder} (rounded inputs, saturated outputs)"
        return {str(attack): words.format(attack=attack, share=share, encoder=encoder) for attack, share in shares.items() if share >= 0.1}

    def curve(self, attack: str, parameter: str = "epsilon", *, level: float = 0.95) -> pd.DataFrame:
        """Return the summary of one attack over a grid of a parameter, in ascending order of it: the points of curves.

        attack: the label of the grid, such as ``"u-pgd"`` for ``u-pgd[epsilon=0.1]``, ``u-pgd[epsilon=0.2]`` …

        Raises:
            ValueError: no attack of that label has such a parameter.
        """
        described = self.manifest["plan"]["attacks"]
        known = {label: about[parameter] for label, about in described.items() if isinstance(about, dict) and parameter in about}
        chosen = {label: value for label, value in known.items() if label == attack or label.startswith(f"{attack}[")}
        if not chosen:
            raise ValueError(f"no attack {attack!r} with a {parameter}; those that have one: {', '.join(map(repr, known)) or 'none'}")
        summary = self.summary(level=level)
        summary = summary[summary["attack"].isin(chosen)]
        summary.insert(2, parameter, summary["attack"].map(chosen))
        return summary.sort_values(["encoder", "aim", "step", "metric", parameter], kind="stable", ignore_index=True)

    def certified_curve(self, metric: str, thresholds: float | Sequence[float], *, level: float = 0.95) -> pd.DataFrame:
        """Return the share of samples whose value is above each threshold: a certified curve, if the metric is a certified radius.

        Strictly above, over all samples for which the metric is defined; a certificate that was not given is the worst value: above no
        threshold where higher is better (a radius), above every one where lower is (a certified quantile). The intervals are a band: they hold for
        all thresholds at once with probability ``level`` (Clopper-Pearson, or by cluster, at a level that Bonferroni gives).

        Returns:
            Columns encoder, attack, aim, step, metric, threshold, estimate, low, high, n, abstained.

        Raises:
            ValueError: no rows of that metric, no threshold or one that is NaN, or a level outside (0, 1).
        """
        alpha, counted = statistics.allowed_error(level), np.atleast_1d(np.asarray(thresholds, dtype=np.float64)).tolist()
        if metric not in {*self.frame["metric"]}:
            raise ValueError(f"no rows of metric {metric!r}; there are {', '.join(map(repr, dict.fromkeys(self.frame['metric'])))}")
        if not counted or any(map(math.isnan, counted)):
            raise ValueError(f"thresholds is {thresholds}; give the radii (or whatever the metric is in) at which to count")
        rows, each = [], 1 - alpha / len(counted)
        for key, part in self._parts():
            if key[-1] != metric:
                continue
            values, clusters, _, abstained = self._values(part, self._reading(metric))
            for threshold in counted:
                above = (values > threshold).astype(np.float64)
                found = statistics.interval(above, statistic="rate", span=(0, 1), groups=clusters, level=each, seed=self.manifest["seed"])
                rows.append([*key, threshold, found.estimate, found.low, found.high, found.n, abstained])
        return pd.DataFrame(rows, columns=[*_KEYS, "threshold", "estimate", "low", "high", "n", "abstained"])

    def worst(self, suite: str) -> "Results":
        """Return the worst case over the members of a suite: for each encoder, measure and sample the member that did most harm.

        A reading and no attack: no single input is the worst for two measures, so these rows are not the numbers of one attack (not the
        paper's Eq. 1). Measures of pairs are taken once, of the traces nearest their targets (`rt_core.run` does that, since it needs the
        representations). Of marks, each member's last counts; of equal members, the first. A certificate that was not given is the worst. The
        notes ``winner/<measure>/<member>`` say who it was; for measures of pairs ``winner/<member>`` is 1 or 0 for each sample.

        Returns:
            Results whose attack is ``<suite> (worst case)``, at step 0.

        Raises:
            ValueError: there is no suite of that name.
        """
        suites = self.manifest["suites"]
        if suite not in suites:
            raise ValueError(f"no suite {suite!r}; there are {', '.join(map(repr, suites)) or 'none in this plan'}")
        rows, label, keys = self._rows, worst_label(suite), ["encoder", "aim", "metric", "sample"]
        members = {member: place for place, member in enumerate(suites[suite])}
        own = rows[rows["attack"].isin(members)]
        own = own[own["step"] == own.groupby(["encoder", "attack", "aim", "metric"])["step"].transform("max")]
        joint = rows[rows["attack"] == label]
        paired = pd.MultiIndex.from_frame(own[keys]).isin(pd.MultiIndex.from_frame(joint[keys]))
        own = own[~paired].assign(place=lambda frame: frame["attack"].map(members))
        own = own.assign(order=own.groupby(keys, sort=False).ngroup())
        harm = np.full(len(own), math.nan)
        for metric in own["metric"].unique():
            reading, chosen = self._reading(metric), (own["metric"] == metric).to_numpy()
            values = reading.filled(own["value"].to_numpy()[chosen], own["note"].to_numpy()[chosen])
            harm[chosen] = values if reading.better == "lower" else -values
        own = own.assign(harm=harm)
        worst = own.sort_values(["harm", "place"], ascending=[False, True], kind="stable", na_position="last").drop_duplicates(keys)
        worst = worst.sort_values("order")
        named = pd.DataFrame(
            {
                **worst[["encoder", "aim", "sample"]],
                "attack": label,
                "name": "winner/" + worst["metric"] + "/" + worst["attack"],
                "value": 1.0,
            }
        )
        named = named[worst["value"].notna().to_numpy()]
        return Results(
            frame=pd.concat([worst[rows.columns].assign(attack=label, step=0), joint], ignore_index=True),
            notes=pd.concat([self.notes[self.notes["attack"] == label], named[[*self.NOTE_COLUMNS]]], ignore_index=True),
            manifest=self.manifest,
            gallery=self.gallery.where(self.gallery.about["attack"].isin(members)),
        )

    def table(self, *, level: float = 0.95) -> pd.DataFrame:
        """Return the summary for reading: a row an attack and measure, a column an encoder, each cell ``estimate [low, high]``.

        Measures of clean representations, which say whether an encoder is of any use, stand first. Of marks, the last is shown. An arrow
        says which way is better, except for measures on each encoder's own scale. A suite's worst case stands below its members.
        """
        suites = [] if self.frame["attack"].str.endswith(worst_label("")).all() else self.manifest["suites"]
        whole = [
            self.worst(suite).summary(level=level) for suite in suites if self.frame["attack"].isin(self.manifest["suites"][suite]).any()
        ]
        summary = self.summary(level=level)
        summary = pd.concat([summary[~summary["attack"].isin(map(worst_label, suites))], *whole], ignore_index=True)
        last = summary.groupby(["encoder", "attack", "aim", "metric"], sort=False)["step"].transform("max") == summary["step"]
        arrow = {"lower": " ↓", "higher": " ↑"}
        rows = [
            (
                row.attack,
                row.metric + (arrow[row.better] if self._reading(row.metric).comparable else " (own scale)"),
                row.encoder,
                _cell(row),
            )
            for row in summary[last].itertuples()
        ]
        cells = pd.DataFrame(rows, columns=["attack", "metric", "encoder", "text"])
        order = [list(dict.fromkeys(cells[name])) for name in ("attack", "metric", "encoder")]
        table = cells.pivot(index=["attack", "metric"], columns="encoder", values="text")
        present = [row for row in pd.MultiIndex.from_product(order[:2]) if row in table.index]
        return table.reindex(index=pd.MultiIndex.from_tuples(present, names=["attack", "metric"]), columns=order[2]).fillna("")

    def caption(self, *, level: float = 0.95) -> str:
        """Return what a table needs beside it: how many samples, in which bank, moved by which attacks."""
        statistics.allowed_error(level)
        about, plan = self.manifest, self.manifest["plan"]
        beside = [f", {about['bank']} in the bank"] * bool(about["bank"]) + [f"; divergence {plan['divergence']}"] * (
            plan["divergence"] != "-"
        )
        lines = [
            f"{about['attacked']} of {about['dataset']['samples']} samples of {about['dataset']['name']!r} attacked{''.join(beside)}; "
            f"estimate [{level:.0%} interval]"
        ]
        if about["samples"]["part"] is not None:
            lines.append(
                "  the bank is below ten times the attacked, so the intervals of ranks in it hold its own sampling error: both are resampled "
                "(but for measures that run the encoder)"
            )
        if about["quantile_error"]:
            lines.append(
                f"  quantiles are taken over a random sample of the pairs of {about['quantile_bank']} samples: within {about['quantile_error']:.1g} of all"
            )
        diagnoses = about["diagnosis"] or []
        diagnosed = {found["encoder"] for found in diagnoses} if about["diagnosis"] is not None else {*about["encoders"]}
        if missing := [label for label in about["encoders"] if label not in diagnosed and any(self.frame["attack"] != "-")]:
            lines.append(
                f"  not diagnosed: {', '.join(missing)} (a tenth of the run's passes is too few for 8 samples, or it was not asked for)"
            )
        lines += [f"  not to be believed: {words}" for label in about["encoders"] for words in self.unbelievable(label).values()]
        for found in diagnoses:
            signs = f"{len(found['warnings'])} signs against the numbers" if found["warnings"] else "no sign against the numbers"
            lines.append(f"  {found['encoder']}: {signs} in a diagnosis of {found['samples']} samples ({found['passes']:,} passes)")
        lines += [f"  {suite}: {self._cost(members)}" for suite, members in about["suites"].items() if self._cost(members)]
        told = {label: _options(described) for label, described in plan["attacks"].items()}
        alike = [
            option for option in next(iter(told.values()), []) if len(told) > 1 and all(option in options for options in told.values())
        ]
        lines += [f"  all attacks: {', '.join(alike)}"] * bool(alike)
        lines += [
            f"  {label}: {', '.join(own)}"
            for label, options in told.items()
            if (own := [option for option in options if option not in alike])
        ]
        return "\n".join(lines)

    def _cost(self, members: Sequence[str]) -> str:
        """Return what a suite costs, in words, as far as its members say."""
        known, costs = self.manifest["passes_a_sample"], []
        for aim in dict.fromkeys(self.frame["aim"]):
            there = {*self.frame.loc[self.frame["aim"] == aim, "attack"]}
            passes = [known[member] for member in members if member in there and member in known]
            if passes:
                forwards, backwards = map(sum, zip(*passes, strict=True))
                costs.append(f"{backwards:,} gradient calls and {forwards - backwards:,} more forward passes a sample, aim {aim}")
        return "; ".join(costs)

    def __repr__(self) -> str:
        about = self.manifest
        return f"Results({len(self.frame)} rows: encoders {', '.join(about['encoders'])}; attacks {', '.join(about['plan']['attacks'])}; see .table())"

    def added_to(self, path: str | Path) -> "Results":
        """Return these results with what an earlier run left in a folder and this one does not speak of: another encoder, attack or metric.

        Where a label means something else now, or other samples were attacked, the earlier rows go, with a warning.
        """
        folder = Path(path)
        if not (folder / "manifest.json").exists():
            return self
        try:
            earlier = self._load_one(folder)
        except StoreError as error:
            _say(f"the results in {folder} are damaged ({error.__cause__!r}), so they are replaced, not added to")
            return self
        if changed := earlier._changed(self):
            _say(
                f"the results in {folder} were of another {' and '.join(changed)}, so they are replaced, not added to (finished blocks are used again)"
            )
            return self
        stale = earlier._clashes(self)
        for what, labels in stale.items():
            for label in labels:
                _say(f"{what} {label!r} is another than in the earlier run in {folder}, whose rows of it are replaced")
        fresh = earlier.frame["metric"].isin([name for name in earlier.frame["metric"].unique() if earlier._label(name) in stale["metric"]])
        for what in ("encoder", "attack"):
            fresh |= earlier.frame[what].isin(stale[what])
        keys = ["encoder", "attack", "aim", "metric"]
        again = pd.MultiIndex.from_frame(earlier.frame[keys]).isin(pd.MultiIndex.from_frame(self.frame[keys]))

        def superseded(mine: pd.DataFrame, theirs: pd.DataFrame) -> np.ndarray:
            known = pd.MultiIndex.from_frame(theirs[keys[:3]]).isin(pd.MultiIndex.from_frame(mine[keys[:3]]))
            return known | theirs["encoder"].isin(stale["encoder"]) | theirs["attack"].isin(stale["attack"])

        manifest = {**self.manifest, **_joined(earlier.manifest, self.manifest)}
        # Those of blocks that this run did not try again: their rows are still missing.
        tried = self._meanings() | {"aim": {metric["aim"] for metric in self.manifest["metrics"].values()}}
        unsettled = [
            error for error in earlier.manifest["errors"] if any(error.get(what, "-") not in {*tried[what], "-"} for what in tried)
        ]
        manifest["errors"] = [*self.manifest["errors"], *unsettled]
        return Results(
            frame=pd.concat([earlier._rows[~(fresh | again)], self._rows], ignore_index=True),
            notes=pd.concat([earlier.notes[~superseded(self.notes, earlier.notes)], self.notes], ignore_index=True),
            manifest=manifest,
            gallery=self.gallery.joined(earlier.gallery.where(~superseded(self.gallery.about, earlier.gallery.about))),
        )

    def _meanings(self) -> dict[str, dict[str, Any]]:
        """Return what each label stands for, so that two runs can be told apart."""
        plan = self.manifest["plan"]
        prints = {label: about["fingerprint"] for label, about in self.manifest["encoders"].items()}
        return json.loads(json.dumps({"encoder": prints, "attack": plan["attacks"], "metric": plan["metrics"]}))

    def _changed(self, other: "Results") -> list[str]:
        """Return what differs so that no rows of the two can stand in one table."""
        one, two = (
            {
                **results.manifest,
                "divergence": results.manifest["plan"]["divergence"],
                "samples": {**results.manifest["samples"], "part": None},  # which follow from the sizes
            }
            for results in (self, other)
        )
        return [what for what in ("samples", "seed", "bank", "quantile_bank", "divergence") if one[what] != two[what]]

    def _clashes(self, other: "Results") -> dict[str, set[str]]:
        """Return the labels that mean one thing here and another there; a suite's worst case does so with any of its members."""
        one, two = self._meanings(), other._meanings()
        clashes = {what: {label for label in one[what].keys() & two[what].keys() if one[what][label] != two[what][label]} for what in one}
        for suite, members in self.manifest["suites"].items():
            others = other.manifest["suites"].get(suite, members)
            if others != members or clashes["attack"] & {*members}:
                clashes["attack"].add(worst_label(suite))
        return clashes

    def save(self, path: str | Path) -> None:
        """Write the results to a folder: two csv files, the gallery and the manifest.

        Raises:
            StoreError: they cannot be written; what was there before stays.
        """
        contents = {"manifest.json": json.dumps(self.manifest, indent=1, ensure_ascii=False).encode(errors="backslashreplace")}
        contents |= {
            "frame.csv.gz": _compressed(self._rows),
            "notes.csv.gz": _compressed(self.notes),
            "gallery.npz": self.gallery.to_bytes(),
        }
        with contextlib.ExitStack() as files:  # all are written before the first takes its name; the manifest does so last
            for name, content in contents.items():
                file = files.enter_context(written(Path(path), name))
                file.write(content)
                file.flush()

    @classmethod
    def load(cls, *paths: str | Path) -> "Results":
        """Read results that were saved; of several folders, the rows of all, if they are of the same samples and labels mean the same.

        Raises:
            StoreError: no folder, one without results or with damaged ones, or results that differ in samples, seed, bank, divergence or what a label means.
        """
        if not paths:
            raise StoreError("no folder is given; expected one or more to which results were saved; write Results.load('store')")
        loaded = [cls._load_one(Path(path)) for path in paths]
        for (path, one), (place, two) in itertools.combinations(zip(paths, loaded, strict=True), 2):
            labels = [f"what {what} {label!r} is" for what, clashing in one._clashes(two).items() for label in sorted(clashing)]
            if differing := one._changed(two) or labels:
                raise StoreError(f"{path} and {place} differ in {' and '.join(differing)}, so their rows cannot stand in one table")
        manifest = loaded[0].manifest
        for other in loaded[1:]:
            manifest = {**manifest, **_joined(manifest, other.manifest)}
        return cls(
            frame=pd.concat([one._rows for one in loaded], ignore_index=True).drop_duplicates([*_KEYS, "sample"], ignore_index=True),
            notes=pd.concat([one.notes for one in loaded], ignore_index=True).drop_duplicates(_NOTE_KEYS, ignore_index=True),
            manifest=manifest,
            gallery=functools.reduce(Gallery.joined, [one.gallery for one in loaded]),
        )

    @classmethod
    def _load_one(cls, folder: Path) -> "Results":
        if not (folder / "manifest.json").exists():
            raise StoreError(
                f"{folder} holds no finished results; run the plan with store={str(folder)!r} (a run that was interrupted goes on)"
            )

        def read(name: str) -> pd.DataFrame:
            # Read as text first: a sample may be called "NA", "007" is not 7, and a carriage return in an id ends no line.
            frame = pd.read_csv(folder / f"{name}.csv.gz", dtype=str, keep_default_na=False, lineterminator="\n")
            numbers = {column: [float(value) if value else math.nan for value in frame[column]] for column in ["value", *_left_out(frame)]}
            return frame.assign(**numbers)

        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            if missing := [what for what in _NEEDED if what not in manifest]:
                raise ValueError(f"the manifest of another version of rt lacks {', '.join(missing)}")
            gallery = Gallery.from_bytes((folder / "gallery.npz").read_bytes())
            return cls(**{name: read(name) for name in _FILES}, manifest=manifest, gallery=gallery)
        except Exception as error:  # what unpacks and parses fails in many ways
            remedy = f"run the plan with store={str(folder)!r} again, which makes them from the finished blocks"
            raise StoreError(f"the results in {folder} are damaged ({type(error).__name__}: {error}); {remedy}") from error

    def _parts(self) -> Any:
        return self._rows.groupby(_KEYS, sort=False)

    def _label(self, metric: str) -> str:
        """Return the label of the metric that a row's measure is, or is a part of; a label may hold a slash of its own."""
        return max((label for label in self.manifest["metrics"] if f"{metric}/".startswith(f"{label}/")), key=len)

    def _reading(self, metric: str) -> "_Reading":
        described = self.manifest["metrics"][self._label(metric)]
        low, high = (edge if edge is not None else sign * math.inf for edge, sign in zip(described["span"], (-1, 1), strict=True))
        return _Reading(described["better"], described["statistic"], (low, high), described["comparable"])

    def _values(self, part: pd.DataFrame, reading: "_Reading") -> tuple[np.ndarray, np.ndarray | None, int, int]:
        notes = part["note"].to_numpy()
        values = reading.filled(part["value"].to_numpy(), notes)
        undefined = np.isnan(values)
        clusters = self._clusters(part["sample"].to_numpy()[~undefined], part["aim"].iloc[0])
        return values[~undefined], clusters, int(undefined.sum()), int((notes != "").sum())

    def _resampled(self, part: pd.DataFrame, reading: "_Reading", *sides: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the values in the bank without each of its parts, [rows, parts], and each row's own part; None where no bank was looked at.

        Of two sides, the first's minus the second's.
        """
        names = _left_out(self._rows)
        if not names or part[[f"{name}{(*sides, '')[0]}" for name in names]].isna().all(axis=None):
            return None
        tables = [
            np.stack([reading.filled(part[f"{name}{side}"].to_numpy(), part[f"note{side}"].to_numpy()) for name in names], axis=1)
            for side in sides or ("",)
        ]
        about = self.manifest["samples"]
        own = dict(zip(about["sample"], about["part"], strict=True))
        return tables[0] - tables[1] if sides else tables[0], np.array([own[sample] for sample in part["sample"]])

    def _clusters(self, samples: np.ndarray, aim: str) -> np.ndarray | None:
        """Return which samples count as one observation: a group of the dataset; under aim target both sides of a pair, in the first's group.

        That a second side may be of another group is left out: following it would tie a few large groups into one observation.
        """
        about = self.manifest["samples"]
        owner = about["group"]
        if aim == "target":
            firsts = {pair: (owner or about["pair"])[row] for row, pair in reversed([*enumerate(about["pair"])])}
            owner = [firsts[pair] for pair in about["pair"]]
        if owner is None:
            return None
        known = dict(zip(about["sample"], owner, strict=True))
        return np.array([known[sample] for sample in samples])


@dataclass(frozen=True)
class _Reading:
    """How a metric's numbers are read."""

    better: str
    statistic: Literal["rate", "mean", "median"]
    span: tuple[float, float]
    comparable: bool

    @property
    def worst(self) -> float:
        """Return what stands for a certificate that was not given."""
        return self.span[1] if self.better == "lower" else self.span[0]

    @property
    def bounded(self) -> tuple[float, float] | None:
        return self.span if all(map(math.isfinite, self.span)) else None

    def filled(self, values: np.ndarray, notes: np.ndarray) -> np.ndarray:
        """Return the values with the worst one wherever a certificate was not given."""
        return np.where((notes != "") & np.isnan(values), self.worst, values.astype(np.float64))


def worst_label(suite: str) -> str:
    """Return what the rows of a suite's worst case are called."""
    return f"{suite} (worst case)"


def _left_out(frame: pd.DataFrame) -> list[str]:
    """Return the columns with the values in a bank without one of its parts, in order."""
    return [name for name in frame.columns if name.startswith("without_")]


def _student(difference: float, errors: tuple[float, float], parts: int) -> float:
    """Return the two-sided p of a difference with the larger of a jackknife's errors; where one is not known, nothing is told."""
    from scipy.stats import t

    error = max(errors)
    if any(map(math.isnan, errors)):
        return 1.0
    return 2 * float(t.sf(abs(difference) / error, parts - 1)) if error > 0 else 0.0


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two manifests say of their labels, in one."""
    plan = {what: {**first["plan"][what], **second["plan"][what]} for what in ("encoders", "attacks", "metrics")}
    earlier, later = (manifest["diagnosis"] or [] for manifest in (first, second))
    again = {(found["encoder"], found["attack"]) for found in later}
    kept = [found for found in earlier if (found["encoder"], found["attack"]) not in again]
    diagnosis = None if second["diagnosis"] is None else [*kept, *later]
    labels = {what: {**first[what], **second[what]} for what in ("encoders", "metrics", "suites", "passes_a_sample")}
    return {**labels, "plan": {**second["plan"], **plan}, "diagnosis": diagnosis}


def _options(described: Any) -> list[str]:
    """Return what an attack is called with, as a caption says it."""
    if not isinstance(described, dict):
        return [str(described)]
    given = {name: value for name, value in described.items() if name != "class" and value not in (None, [], {})}
    return [f"{name}={_shown(value)}" for name, value in given.items()] or [str(described)]


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "class" in value:  # a part, such as a loss with its probe
        return f"{value['class'].rpartition('.')[2]}({', '.join(_options(value)) if len(value) > 1 else ''})"
    if isinstance(value, dict) and "tensor" in value:
        return f"tensor {value['tensor']}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(row: Any) -> str:
    if row.abstained and math.isinf(row.estimate):  # the worst value stands for those, and would read as one that was measured
        return f"no certificate for {row.abstained} of {row.n}"
    return f"{_number(row.estimate)} [{_number(row.low)}, {_number(row.high)}]" if row.n else "undefined"


def _number(value: float) -> str:
    if 0 < abs(value) < 0.0005:
        return f"{value:.0e}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def _say(what: str) -> None:
    warnings.warn(what, RobustnessWarning, stacklevel=5)


def _compressed(frame: pd.DataFrame) -> bytes:
    import gzip

    # All text is quoted, so that other readers do not end a line at a carriage return in an id.
    text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return gzip.compress(text.encode(), compresslevel=4, mtime=0)

"""Readings of magnitudes by granularity: growing shares with bands, ratios of two victims, what a fixed maximum misses, pictures."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from rt_core import statistics
from rt_core.errors import RobustnessWarning
from rt_core.results import Results
from rt_generator_perturbations.labelling import Item
from rt_generator_perturbations.searching import Relaxation

__all__ = ["cumulative", "curve_plot", "judged_items", "picture_grid", "ratios", "trade_off"]

_POINTS = 25
_COLORS = ((0, 90, 160), (200, 80, 0), (0, 130, 90), (150, 60, 140), (110, 110, 30), (90, 90, 90))
_INK, _PAPER, _FRAME = (20, 20, 20), (255, 255, 255), (200, 60, 40)
_FAINT, _GRID = (150, 150, 150), (230, 230, 230)
_LETTERS, _LINE, _GAP, _MOST_TICKS = 12, 18, 40, 10  # pixels, and a number
_BELOW = 0.1  # of a curve's items, which may lie below where it begins
_DIGITS = 1e-6  # by which a magnitude may miss itself after it was written and read
_OF_VOTES = ("item", "victim", "group", "label", "magnitude", "clean_kept", "kept", "judged_by")
_AXIS = "magnitude, standard deviations, log scale"


def cumulative(
    results: Results, magnitudes: float | Sequence[float] | None = None, *, votes: pd.DataFrame | None = None, level: float = 0.95
) -> pd.DataFrame:
    """Return the share of all items for which a perturbation of at most each magnitude succeeds: the paper's curves, slower is more robust.

    All items that were not skipped count, also those for which nothing was found up to the limit; not those that were lost, since their victim gave
    something that is not finite. With votes there is a second reading,
    label-keeping: a success is one whose perturbed picture kept its class, among the items whose clean picture truly shows it. The intervals
    are a band: at magnitudes that are fixed beforehand they hold for all of a curve at once with probability ``level`` (Clopper-Pearson, or by
    pair where items imitate each other in pairs, at the level that Bonferroni gives). With a single magnitude this is the reading without
    people: a fixed maximum.

    Args:
        results: of ``granularity_curve``.
        magnitudes: where to read, one or several; None takes 25 of each group, evenly spread on a log scale from where the search starts to its limit,
            and warns of a curve that has more than a tenth of its items below the first.
        votes: what ``read_votes`` or ``judge_votes`` returns, of these very results' pictures: labels and magnitudes are compared. An item's clean
            picture is judged once for all groups; items whose clean picture was not judged are left out, and counted.

    Returns:
        Columns encoder, attack, aim, reading (``"raw"``, ``"label-keeping"``), judged_by, magnitude, share, low, high, reached, n (the share's
        denominator), skipped, not_kept (clean pictures that do not show their class), unjudged, items (all that were drawn).

    Raises:
        ValueError: no magnitudes, or such as are none; results of an earlier version that do not say where to read; votes of other pictures, the
            same ones twice, or a perturbed picture that was found and not judged.
    """
    frame = _magnitudes(results)
    given = None if magnitudes is None else _checked(magnitudes)
    judged = None if votes is None else _judged(results, frame, votes)
    rows: list[list[Any]] = []
    pairs, seed = _pairs(results), results.manifest["seed"]
    for (encoder, attack, aim), part in frame.groupby(["encoder", "attack", "aim"], sort=False):
        at = _places(attack, results.manifest["plan"]["attacks"][attack]) if given is None else given
        own = part[part["value"].notna()]
        skipped, items = len(part) - len(own), len(part)
        about = [encoder, attack, aim]
        if given is None and (below := (own["value"] < at[0]).mean()) > _BELOW:
            warnings.warn(
                f"{below:.0%} of the items of {encoder!r} in {attack!r} were reached below {at[0]:.3g}, the first magnitude that is read; give magnitudes=, "
                "or search from a smaller start=",
                RobustnessWarning,
                stacklevel=2,
            )
        rows += _curve([*about, "raw", ""], own["value"].to_numpy(), own["sample"].map(pairs), at, level, seed, [skipped, 0, 0, items])
        if judged is not None:
            seen = judged.loc[own.index]
            shown = own[seen["clean_kept"] == 1]
            values = np.where(judged.loc[shown.index, "kept"] == 1, shown["value"], math.inf)
            left_out = [skipped, int((seen["clean_kept"] == 0).sum()), int(seen["clean_kept"].isna().sum()), items]
            by = [*about, "label-keeping", judged.attrs["by"]]
            rows += _curve(by, values, shown["sample"].map(pairs), at, level, seed, left_out)
    columns = ["encoder", "attack", "aim", "reading", "judged_by", "magnitude", "share", "low", "high", "reached", "n"]
    return pd.DataFrame(rows, columns=[*columns, "skipped", "not_kept", "unjudged", "items"])


def ratios(results: Results, first: str, second: str, *, level: float = 0.95) -> pd.DataFrame:
    """Return by which factor a victim needs larger perturbations than another, on the items that neither skipped: paired, per group.

    Above 1: the first is more robust. Two readings, since what was not reached has no ratio: the geometric mean over the items that were
    reached for both (bootstrap-t of the logarithms), which leaves out the items that are hardest, and the median over all (order
    statistics), where an item that was reached for one alone counts as infinite or zero; items reached for neither say nothing. Items that
    imitate each other in pairs are resampled as pairs, for both. Intervals are not corrected for their number; for tests and corrected
    p-values see ``Results.compare``.

    Returns:
        Columns attack, aim, ratio, low, high, n, median, median_low, median_high, first_alone and second_alone (reached for that one alone),
        neither.

    Raises:
        ValueError: no rows of a victim of that name.
    """
    frame = _magnitudes(results)
    for name in (first, second):
        if name not in {*frame["encoder"]}:
            raise ValueError(f"no results of victim {name!r}; there are {', '.join(map(repr, dict.fromkeys(frame['encoder'])))}")
    keys, pairs, seed = ["attack", "aim", "sample"], _pairs(results), results.manifest["seed"]
    one, two = (frame[frame["encoder"] == name].set_index(keys)["value"].dropna() for name in (first, second))
    rows: list[list[Any]] = []
    for (attack, aim), part in pd.concat([one, two], axis=1, join="inner", keys=["one", "two"]).groupby(["attack", "aim"], sort=False):
        left, right = part["one"].to_numpy(), part["two"].to_numpy()
        owners = part.index.get_level_values("sample").map(pairs).to_numpy()
        there = [np.isfinite(left), np.isfinite(right)]
        told = (there[0] | there[1]) & ((left > 0) | (right > 0))
        with np.errstate(divide="ignore"):
            logs = np.log(left[told]) - np.log(right[told])
        both = logs[np.isfinite(logs)]
        empty = statistics.Interval(math.nan, math.nan, math.nan, 0, "no values")
        groups = owners[told][np.isfinite(logs)]
        mean = statistics.bootstrap_interval(both, "mean", level=level, seed=seed, groups=groups) if len(both) else empty
        middle = statistics.interval(logs, statistic="median", groups=owners[told], level=level, seed=seed) if len(logs) else empty
        alone = [int((there[0] & ~there[1]).sum()), int((there[1] & ~there[0]).sum()), int((~there[0] & ~there[1]).sum())]
        factors = [np.exp(value) for found in (mean, middle) for value in (found.estimate, found.low, found.high)]
        rows.append([attack, aim, *factors[:3], len(both), *factors[3:], *alone])
    columns = [
        "attack",
        "aim",
        "ratio",
        "low",
        "high",
        "n",
        "median",
        "median_low",
        "median_high",
        "first_alone",
        "second_alone",
        "neither",
    ]
    return pd.DataFrame(rows, columns=columns)


def trade_off(results: Results, votes: pd.DataFrame, magnitudes: float | Sequence[float]) -> pd.DataFrame:
    """Return what a fixed maximum magnitude, the paper's alternative to people, would have got wrong by the votes.

    A maximum counts every success up to it: those that lost their class are its false positives. It counts none beyond: those that kept it
    are its false negatives.

    Returns:
        Columns encoder, attack, magnitude, counted (successes up to it), false_positives, false_negatives, kept (all successes that kept
        their class): numbers of items whose clean picture truly shows its class.

    Raises:
        ValueError: as for ``cumulative``.
    """
    frame, maxima = _magnitudes(results), _checked(magnitudes)
    judged = _judged(results, frame, votes)
    rows = []
    for (encoder, attack), part in frame.groupby(["encoder", "attack"], sort=False):
        own = part[np.isfinite(part["value"]) & (judged.loc[part.index, "clean_kept"] == 1)]
        kept, value = judged.loc[own.index, "kept"].to_numpy() == 1, own["value"].to_numpy()
        for magnitude in maxima:
            within = value <= magnitude
            rows.append([encoder, attack, magnitude, within.sum(), (within & ~kept).sum(), (~within & kept).sum(), kept.sum()])
    return pd.DataFrame(rows, columns=["encoder", "attack", "magnitude", "counted", "false_positives", "false_negatives", "kept"])


def judged_items(results: Results, *, names: Sequence[str] | None = None) -> list[Item]:
    """Return what ``labelling_sheet`` and ``judge_votes`` take: every item that was not skipped and whose pictures were kept.

    names: of the classes, in order; their numbers unless given

    Raises:
        ValueError: the goal has no classes, so there is nothing to ask; or there are fewer names than classes.
    """
    from torch import from_numpy

    notes = results.notes[results.notes["name"] == "label"]
    if notes.empty:
        raise ValueError("these results have no labels: the goal knows no classes, and people can only be asked about classes")
    labels = notes.set_index(["encoder", "attack", "sample"])["value"]
    if names is not None and (last := int(labels.max())) >= len(names):
        raise ValueError(f"names has {len(names)} names, and there are items of class {last}; give one for each class, in order from 0 on")
    gallery, items = results.gallery, []
    for place, row in enumerate(gallery.about.itertuples()):
        label = int(labels[row.encoder, row.attack, row.sample])
        item = Item(
            id=row.sample,
            clean=from_numpy(gallery.originals[row.sample]),
            perturbed=from_numpy(gallery.adversarial[place]) if math.isfinite(row.divergence) else None,
            label=str(label) if names is None else names[label],
            magnitude=row.divergence,
            victim=row.encoder,
            group=row.attack,
            victim_fingerprint=results.manifest["encoders"][row.encoder]["fingerprint"],
        )
        items.append(item)
    return items


def curve_plot(curves: pd.DataFrame, *, reading: str = "raw", pixels: int = 280) -> Image.Image:
    """Return curves with their bands as a picture: a panel for each group of layers, a color for each victim; magnitudes on a log scale.

    A curve is exact at the magnitudes that it was read at, and holds each share until the next of these, where it steps: in between it may
    be higher, as high as there. One magnitude is drawn as a point with its interval.

    curves: of ``cumulative``; reading: ``"raw"`` or ``"label-keeping"``; pixels: the side of a panel

    Raises:
        ValueError: no rows of that reading.
    """
    rows = curves[(curves["reading"] == reading) & (curves["magnitude"] > 0) & (curves["n"] > 0)]
    if rows.empty:
        raise ValueError(f"no curves of reading {reading!r}; there are {', '.join(map(repr, dict.fromkeys(curves['reading'])))}")
    groups, victims = ([*dict.fromkeys(rows[name])] for name in ("attack", "encoder"))
    colors = {victim: _COLORS[place % len(_COLORS)] for place, victim in enumerate(victims)}
    low, high = math.log(rows["magnitude"].min()), math.log(rows["magnitude"].max())
    font, by = ImageFont.load_default(_LETTERS), next(iter(rows["judged_by"]))
    points = "/".join(str(count) for count in sorted({*rows.groupby(["attack", "encoder"]).size()}))
    title = f"share of items reached, {reading}{f' ({by})' if by else ''}, with bands; " + (
        "read at one magnitude" if points == "1" else f"read at {points} magnitudes, steps between"
    )
    wide = [math.ceil(font.getlength(name)) for name in victims]
    left, column = 52, max(pixels, *(math.ceil(font.getlength(group)) for group in groups)) + _GAP
    width = max(left + len(groups) * column, *(math.ceil(font.getlength(text)) + left + 8 for text in (title, _AXIS)), max(wide) + 48)
    places, across, line = [], 8, 0  # of the victims' names, as many a line as fit
    for name in wide:
        if across > 8 and across + 40 + name > width:
            across, line = 8, line + 1
        places.append((across, 8 + (line + 1) * _LINE))
        across += 40 + name
    top = 8 + (line + 3) * _LINE + 6
    image = Image.new("RGB", (width, top + pixels + 3 * _LINE), _PAPER)
    pen = ImageDraw.Draw(image, "RGBA")
    pen.text((8, 8), title, fill=_INK, font=font)
    for victim, (start, row) in zip(victims, places, strict=True):
        pen.line((start, row + _LINE // 2, start + 14, row + _LINE // 2), fill=colors[victim], width=3)
        pen.text((start + 20, row), victim, fill=_INK, font=font)
    pen.text((left, top + pixels + _LINE + 8), _AXIS, fill=_INK, font=font)
    for panel, group in enumerate(groups):
        corner = left + panel * column

        def at(magnitude: float, share: float, corner: int = corner) -> tuple[float, float]:
            along = (math.log(magnitude) - low) / (high - low) if high > low else 0.5
            return corner + along * pixels, top + (1 - share) * pixels

        pen.text((corner, top - _LINE), group, fill=_INK, font=font)
        pen.rectangle((corner, top, corner + pixels, top + pixels), outline=_FAINT)
        for share in (0, 0.25, 0.5, 0.75, 1):
            pen.line((corner, at(1, share)[1], corner + pixels, at(1, share)[1]), fill=_GRID)
            if panel == 0:
                pen.text((left - 6, at(1, share)[1]), f"{share:.0%}", fill=_INK, font=font, anchor="rm")
        end = -math.inf  # of the last label
        for tick in _ticks(math.exp(low), math.exp(high)):
            along, half = at(tick, 0)[0], font.getlength(f"{tick:g}") / 2
            pen.line((along, top + pixels, along, top + pixels + 4), fill=_INK)
            if along - half > end + 3:
                pen.text((along, top + pixels + 6), f"{tick:g}", fill=_INK, font=font, anchor="ma")
                end = along + half
        drawn = []
        for victim in victims:
            part = rows[(rows["attack"] == group) & (rows["encoder"] == victim)].sort_values("magnitude")
            lower, upper, middle = (_steps([at(*one) for one in part[["magnitude", name]].to_numpy()]) for name in ("low", "high", "share"))
            if len(part) > 1:
                pen.polygon([*lower, *upper[::-1]], fill=(*colors[victim], 50))
            drawn.append((victim, lower, upper, middle))
        for place, (victim, lower, upper, middle) in enumerate(drawn):  # above every band
            if len(middle) > 1:
                pen.line(middle, fill=colors[victim], width=2)
            elif middle:
                along, height = middle[0][0] + 12 * (place - (len(drawn) - 1) / 2), middle[0][1]
                pen.line((along, upper[0][1], along, lower[0][1]), fill=colors[victim], width=2)
                pen.ellipse((along - 4, height - 4, along + 4, height + 4), fill=colors[victim])
    return image


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the line that holds the height of each point until the next."""
    corners = [*points[:1]]
    for (_, before), (across, height) in pairwise(points):
        corners += [(across, before), (across, height)]
    return corners


def _ticks(low: float, high: float) -> list[float]:
    """Return the numbers 1, 2 and 5 times a power of ten in a range, only the powers where these are many; or its ends where they are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in [(1, 2, 5), (1,)]:
        inside = [float(f"{factor}e{power}") for power in powers for factor in factors]
        inside = [tick for tick in inside if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= _MOST_TICKS:
            break
    return inside if len(inside) > 1 else sorted({float(f"{end:.3g}") for end in (low, high)})


def picture_grid(results: Results, *, items: int = 6, pixels: int = 64) -> Image.Image:
    """Return clean pictures beside perturbed ones: a block of rows for each victim, a row for each item, a column for each group of layers.

    Below a clean picture stands its class and, of targeted ones, what the victim was made to say; below each perturbed one its magnitude.
    Where nothing was reached up to the limit, the last attempt is shown in a frame. Pictures are scaled by whole numbers, without smoothing,
    to about ``pixels`` at the longer side.

    Raises:
        ValueError: no pictures were kept.
    """
    about = results.gallery.about
    if about.empty:
        raise ValueError("no pictures were kept; give granularity_curve(…, pictures=) a number above 0")
    groups, encoders = ([*dict.fromkeys(about[name])] for name in ("attack", "encoder"))
    groups = [group for group in results.manifest["plan"]["attacks"] if group in groups] or groups
    tall, wide = results.gallery.adversarial.shape[-2:]
    factor = max(1, round(pixels / max(tall, wide)))
    tall, wide = tall * factor, wide * factor
    width, height, head = max(wide, tall) + 12, tall + 22, 22
    shown = {encoder: [*dict.fromkeys(about.loc[about["encoder"] == encoder, "sample"])][:items] for encoder in encoders}
    size = (len(groups) + 1) * width + 12, sum(head + len(samples) * height for samples in shown.values()) + head
    image, top = Image.new("RGB", size, _PAPER), head
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(_LETTERS)
    for column, name in enumerate(["clean", *groups]):
        pen.text((12 + column * width, 6), name, fill=_INK, font=font)
    asked = _asked(results)
    places = {(row.encoder, row.attack, row.sample): place for place, row in enumerate(about.itertuples())}
    for encoder, samples in shown.items():
        pen.text((12, top + 4), f"victim {encoder}", fill=_INK, font=font)
        top += head
        for sample in samples:
            image.paste(_tile(results.gallery.originals[sample], wide, tall), (12, top))
            pen.text((12, top + tall + 3), asked.get((encoder, sample), ""), fill=_INK, font=font)
            for column, group in enumerate(groups, start=1):
                place = places.get((encoder, group, sample))
                if place is None:
                    continue
                corner = 12 + column * width, top
                image.paste(_tile(results.gallery.adversarial[place], wide, tall), corner)
                value = float(about["divergence"].iloc[place])
                said = f"{value:.3g}" if math.isfinite(value) else "not reached"
                pen.text((corner[0], top + tall + 3), said, fill=_INK, font=font)
                if not math.isfinite(value):
                    pen.rectangle((corner[0] - 2, top - 2, corner[0] + wide + 1, top + tall + 1), outline=_FRAME, width=2)
            top += height
    return image


def _asked(results: Results) -> dict[tuple[str, str], str]:
    """Return for each victim and item its class and its target, in words."""
    notes = results.notes[results.notes["name"].isin(["label", "target"])]
    said: dict[tuple[str, str], dict[str, str]] = {}
    for row in notes.itertuples():
        said.setdefault((str(row.encoder), str(row.sample)), {})[str(row.name)] = f"{row.value:.0f}"
    return {key: " to ".join(told[name] for name in ("label", "target") if name in told) for key, told in said.items()}


def _magnitudes(results: Results) -> pd.DataFrame:
    return results.frame[results.frame["metric"] == "magnitude"].reset_index(drop=True)


def _places(group: str, about: Mapping[str, Any]) -> list[float]:
    """Return where to read a curve of a group of layers, by how it was searched alone."""
    if "size" not in about:
        raise ValueError(
            f"results say no size of group {group!r}, as those of earlier versions do not, and where the search began may hang on it; "
            "give magnitudes= at which to read"
        )
    radii = Relaxation(**{option.name: about[option.name] for option in fields(Relaxation)}).radii(about["size"])
    return np.unique(np.geomspace(radii[0], radii[-1], _POINTS)).tolist()


def _pairs(results: Results) -> dict[str, int]:
    """Return what each item is one observation with: the pair in which two items imitate each other, else itself."""
    about = results.manifest["samples"]
    return dict(zip(about["sample"], about["pair"], strict=True))


def _curve(
    about: list[Any], values: np.ndarray, owners: Iterable[int], magnitudes: Iterable[float], level: float, seed: int, counts: list[int]
) -> Iterator[list[Any]]:
    thresholds, groups = [*magnitudes], np.asarray(owners)
    for magnitude in thresholds:
        within, each = (values <= magnitude).astype(np.float64), 1 - (1 - level) / len(thresholds)
        found = statistics.interval(within, statistic="rate", groups=groups, level=each, seed=seed)
        yield [*about, magnitude, found.estimate, found.low, found.high, int(within.sum()), len(values), *counts]


def _checked(magnitudes: float | Sequence[float]) -> list[float]:
    """Return one or several magnitudes as a list."""
    try:
        given = np.atleast_1d(np.asarray(magnitudes, dtype=np.float64)) if not isinstance(magnitudes, str) else None
    except (TypeError, ValueError):
        given = None
    if given is None or given.ndim > 1:
        raise ValueError(f"magnitudes is {magnitudes!r:.60}; expected one number, or several, such as [0.1, 0.3, 1.0]")
    if not len(given):
        raise ValueError("magnitudes is empty; give those at which to read, or None")
    if strange := [one for one in given.tolist() if not 0 <= one < math.inf]:
        raise ValueError(f"magnitudes holds {strange[0]:g}; expected finite numbers of at least 0")
    return given.tolist()


def _judged(results: Results, frame: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Return for each row of the frame whether its clean and its perturbed picture kept their class: 1, 0, or NaN where nobody was asked."""
    if missing_columns := [name for name in _OF_VOTES if name not in votes.columns]:
        raise ValueError(f"votes lack the columns {', '.join(missing_columns)}; give what read_votes or judge_votes returns")
    known = votes.assign(item=votes["item"].astype(str)).set_index(["item", "victim", "group"])
    if known.index.has_duplicates:
        item, victim, group = known.index[known.index.duplicated()][0]
        raise ValueError(f"votes hold item {item!r} for victim {victim!r}, group {group!r}, more than once; give each item's votes once")
    _check_same(results, frame, known)
    # By victim as well: without classes, what a picture is asked about is what its victim says.
    clean = known.groupby(["item", "victim"])["clean_kept"].first()
    rows = pd.MultiIndex.from_frame(frame[["sample", "encoder", "attack"]])
    judged = pd.DataFrame(
        {
            "clean_kept": clean.reindex(rows.droplevel(2)).astype("float64").to_numpy(),
            "kept": known["kept"].reindex(rows).astype("float64").to_numpy(),
        },
        index=frame.index,
    )
    missing = np.isfinite(frame["value"]) & (judged["clean_kept"] == 1) & judged["kept"].isna()
    if missing.any():
        row = frame[missing].iloc[0]
        raise ValueError(
            f"{int(missing.sum())} perturbed pictures were found and not judged, such as of item {row['sample']!r} for victim {row['encoder']!r}, "
            f"group {row['attack']!r}; put all of them on the sheet: judged_items(results)"
        )
    judged.attrs["by"] = ", ".join(dict.fromkeys(votes["judged_by"]))
    return judged


def _check_same(results: Results, frame: pd.DataFrame, votes: pd.DataFrame) -> None:
    """Raise where votes are of other pictures than these results': ids repeat between runs, labels and magnitudes do not.

    votes: by item, victim and group
    """
    keys = ["sample", "encoder", "attack"]
    found = frame.set_index(keys)["value"]
    found.index.names = votes.index.names
    both = votes[["label", "magnitude"]].join(found.rename("found"), how="inner")
    if both.empty:
        there = (f"item {item!r} for victim {victim!r}, group {group!r}" for item, victim, group in (votes.index[0], found.index[0]))
        raise ValueError("votes are of none of these results' items; they hold {}, the results {}: read them with their own".format(*there))
    same = np.isclose(both["magnitude"].to_numpy(np.float64), both["found"].to_numpy(), rtol=_DIGITS, atol=0)
    if not same.all():
        (item, victim, group), row = both.index[~same][0], both[~same].iloc[0]
        raise ValueError(
            f"votes are of other pictures: item {item!r} for victim {victim!r}, group {group!r}, was judged at magnitude {row['magnitude']:.6g} and has "
            f"{row['found']:.6g} here, as have {int((~same).sum())} of {len(both)}; give those on the sheet of these results' judged_items"
        )
    notes = results.notes[results.notes["name"] == "label"]
    numbers = notes.set_index(keys)["value"]
    numbers.index.names = votes.index.names
    called = both.join(numbers.rename("number"), how="inner").groupby("number")["label"].unique()
    if len(mixed := called[called.map(len) > 1]):
        raise ValueError(
            f"votes are of other pictures: items of class {mixed.index[0]:.0f} were judged as {' and as '.join(map(repr, mixed.iloc[0][:2]))}; give those on "
            "the sheet of these results' judged_items"
        )


def _tile(picture: np.ndarray, width: int, height: int) -> Image.Image:
    pixels = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    whole = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return whole.resize((width, height), Image.Resampling.NEAREST)

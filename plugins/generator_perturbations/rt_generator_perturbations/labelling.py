"""Does a perturbed picture still show its class? A sheet for human judges, the rule by which their votes count, and a classifier as a stand-in."""

import base64
import csv
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib.resources import files
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from rt_core import Encoder, represent
from rt_core.errors import RtError
from rt_core.store import key_of, written
from rt_core.traces import check_whole

__all__ = ["Item", "Sheet", "VotesError", "count_votes", "judge_votes", "labelling_sheet", "read_votes"]

_FORMAT = "rt-labelling-sheet 1"
_COLUMNS = ["sheet", "judge", "picture", "answer"]
_PARTS = {"clean": 1, "perturbed": 2}
_ORDER = "a judge's own, by a hash of seed, judge and picture: all clean pictures, then the perturbed ones of those that the judge kept"
_INSTRUCTIONS = (
    "You will see one picture after the other, each with a question. Answer by what you see: would a person call it that? "
    "A picture need not be pretty to show what it shows. Where you cannot tell, answer no."
)


class VotesError(RtError, ValueError):
    """A sheet or a file of votes is not what it should be: malformed, of another sheet, incomplete, or given twice."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Item:
    """A generated picture and what a search made of it.

    id: of the draw, as the results have it; victim, group: whom and where it was attacked; the three together name the item.
    clean, perturbed: [channel, height, width] in [0, 1], one or three channels; perturbed is None where no perturbation reached the
    target: such an item has magnitude inf, and only its clean picture is judged, since it counts among all items.
    label: the name of the class that the clean picture was drawn from, as judges read it.
    victim_fingerprint: of the victim (``Encoder.fingerprint``), by which it is known whatever it is called; "" where it is not known.

    Raises:
        ValueError: pictures of another shape or range, a label that is no text, or a magnitude that does not belong to them.
    """

    id: str
    clean: Tensor
    perturbed: Tensor | None
    label: str
    magnitude: float = inf
    victim: str = ""
    group: str = ""
    victim_fingerprint: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise ValueError(
                f"label of item {self.id!r} is {self.label!r}; expected the class's name as judges read it, such as {str(self.label)!r}"
            )
        pixels = [_pixels(self.clean, f"clean picture of item {self.id!r}")]
        if self.perturbed is not None:
            pixels.append(_pixels(self.perturbed, f"perturbed picture of item {self.id!r}"))
            if pixels[0].shape != pixels[1].shape:
                raise ValueError(
                    f"item {self.id!r} has a clean picture of shape {list(self.clean.shape)} and a perturbed one of {list(self.perturbed.shape)}; "
                    "both come from one generator and have one shape"
                )
        if not self.magnitude >= 0 or isfinite(self.magnitude) != (self.perturbed is not None):
            raise ValueError(
                f"magnitude of item {self.id!r} is {self.magnitude:g}; with a perturbed picture it is finite and not negative, without one inf"
            )

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the item: id, victim and group."""
        return str(self.id), self.victim, self.group


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Where a sheet was written: the page for the judges, the list of items for ``read_votes``, and the fingerprint that ties votes to both."""

    page: Path
    items: Path
    fingerprint: str


def labelling_sheet(
    items: Iterable[Item],
    path: str | Path,
    *,
    question: str | Mapping[str, str] = "Does this picture show {label}?",
    instructions: str = _INSTRUCTIONS,
    judges: int = 5,
    seed: int = 0,
) -> Sheet:
    """Write a page on which people judge pictures, and the list of its items, for ``read_votes`` (Dunn et al. 2020, section 4).

    The page is one file that works without server or network. A judge gives a name, says of each clean picture whether it shows its class,
    and then of the perturbed pictures of those that they kept; never of two side by side, and in an order of their own. The page knows
    neither victim nor group nor magnitude. Clean pictures that are equal, as those of one draw for several victims are, are asked once.
    Pictures are shown in 8 bits a channel.

    Args:
        items: what was found; see ``Item``.
        path: the page (``….html``; the list is ``….json`` beside it), or a folder for ``labelling.html`` and ``labelling.json``.
        question: what is asked, with ``{label}`` where the class's name goes; or the whole question by label.
        instructions: what a judge reads first.
        judges: how many are asked, independently of each other; the paper has five.
        seed: of the orders.

    Raises:
        ValueError: no items, one twice, a question that does not name the class, no judge.
        VotesError: another sheet is at that place, whose votes could no longer be read without its list.
    """
    chosen = list(items)
    if not chosen:
        raise ValueError("there are no items; a sheet needs at least one, and a search that found nothing still has clean pictures")
    if twice := [key for key, count in Counter(item.key for item in chosen).items() if count > 1]:
        raise ValueError(
            f"item {twice[0]} is there {sum(item.key == twice[0] for item in chosen)} times; id, victim and group name one item"
        )
    check_whole("judges", judges)
    questions = {label: _asked(question, label) for label in dict.fromkeys(item.label for item in chosen)}
    listed, shown = _listed(chosen)
    said = {"order": _ORDER, "instructions": instructions, "questions": questions}
    sheet: dict[str, Any] = {"format": _FORMAT, "judges": judges, "seed": seed, **said, **listed}
    sheet["sheet"] = _fingerprint(sheet)
    page = {
        "sheet": sheet["sheet"],
        "seed": seed,
        "instructions": instructions,
        "pictures": [
            {
                "picture": picture["picture"],
                "part": _PARTS[picture["shows"]],
                "after": picture["after"],
                "question": questions[picture["label"]],
                "height": pixels.shape[0],
                "width": pixels.shape[1],
                "source": _data_uri(pixels),
            }
            for picture, pixels in zip(sheet["pictures"], shown, strict=True)
        ],
    }
    place = Path(path)
    html = place if place.suffix.lower() in (".html", ".htm") else place / "labelling.html"
    made = Sheet(page=html, items=html.with_suffix(".json"), fingerprint=sheet["sheet"])
    if made.items.exists() and (there := _read_sheet(made.items)["sheet"]) != made.fingerprint:
        raise VotesError(
            f"{made.items} lists sheet {there}; this is another, {made.fingerprint}, and votes on the old one need its list: choose another path"
        )
    template = files(__package__).joinpath("labelling.html").read_text(encoding="utf-8")
    # No "<" in the data, so that no label ends the script it stands in.
    contents = {
        made.page: template.replace("__SHEET__", json.dumps(page, ensure_ascii=False).replace("<", "\\u003c")),
        made.items: json.dumps(sheet, indent=1, ensure_ascii=False, allow_nan=False),
    }
    for target, text in contents.items():
        with written(target.parent, target.name) as file:
            file.write(text.encode())
    return made


def read_votes(sheet: Sheet | str | Path, votes: str | Path | Iterable[str | Path], *, judges: int | None = None) -> pd.DataFrame:
    """Count the votes on a sheet by the paper's rule; see ``count_votes``.

    Args:
        sheet: what ``labelling_sheet`` returned, or its list of items (``….json``).
        votes: the files that the judges downloaded, or a folder of them (all that end in .csv, in any case, but for hidden ones).
        judges: how many there are, where they are not as many as the sheet asks for.

    Returns:
        A row an item: item, victim, group, label, magnitude, judges (who were asked), clean_votes (that keep the clean picture), clean_kept,
        perturbed_votes (of those judges, that keep the perturbed one), kept and judged_by (``"people"``).

    Raises:
        VotesError: a file that is malformed, incomplete or of another sheet, a judge who is there twice, another number of judges.
        ValueError: judges is no whole number of at least 1.
    """
    if judges is not None:
        check_whole("judges", judges)
    there = _read_sheet(sheet.items if isinstance(sheet, Sheet) else Path(sheet))
    ballots: dict[str, tuple[Path, dict[str, bool]]] = {}
    for path in _files(votes):
        judge, answers = _ballot(path, there)
        if judge in ballots:
            raise VotesError(f"{path} has votes of {judge!r}, as {ballots[judge][0]} has; each judge votes once: keep one of the two files")
        ballots[judge] = path, answers
    wanted = there["judges"] if judges is None else judges
    if len(ballots) != wanted:
        judges_said = "1 judge" if len(ballots) == 1 else f"{len(ballots)} judges"
        remedy = "wait for the others" if len(ballots) < wanted else "take those who were asked first"
        raise VotesError(
            f"there are votes of {judges_said} ({', '.join(sorted(ballots)) or 'none'}); {wanted} were to be asked: {remedy}, "
            f"or say judges={len(ballots)} if that was decided before anyone looked"
        )
    cast = [given for _, given in ballots.values()]
    clean = np.array([[given[item["clean"]] for given in cast] for item in there["items"]], dtype=bool)
    perturbed = np.array([[given.get(item["perturbed"], False) for given in cast] for item in there["items"]], dtype=bool)
    magnitudes = [inf if item["magnitude"] is None else item["magnitude"] for item in there["items"]]
    about = [{name: item[name] for name in ("item", "victim", "group", "label")} for item in there["items"]]
    return _outcome(about, magnitudes, clean, perturbed, "people")


def judge_votes(
    items: Iterable[Item], judge: Encoder | Sequence[Encoder], classes: Sequence[str], *, batch: int | None = None
) -> pd.DataFrame:
    """Let a classifier stand in for the human judges: it keeps a picture when its first class is the item's label.

    A stand-in, and named so in the column ``judged_by``: it errs as classifiers do, on what it was not trained on most of all, and a
    perturbation that misleads the victim may mislead it as well, which then counts as a class that was not kept. Several judges vote by the
    rule for people. It must not be one of the victims, which see another class by construction: one is known by its name, and by its fingerprint
    where items have it. The same network wrapped with other settings has another one.

    Args:
        items: as for ``labelling_sheet``, of one shape.
        judge: a classifier as an encoder whose outputs are logits; or several.
        classes: the labels of its logits, in their order.
        batch: how many pictures go at a time.

    Returns:
        The columns of ``read_votes``; judged_by is ``"stand-in: <its name>"``.

    Raises:
        ValueError: no items, pictures of several shapes, an unknown label, no logit for each class, a judge that is a victim.
    """
    chosen = list(items)
    panel: list[Any] = list(judge) if isinstance(judge, (list, tuple)) else [judge]
    if strange := [one for one in panel if not isinstance(one, Encoder)]:
        raise ValueError(
            f"judge is a {type(strange[0]).__name__}; expected an Encoder whose outputs are logits, or a list of them: wrap a network, "
            "classifier(network, name='judge')"
        )
    if not chosen or not panel:
        raise ValueError(f"there are {len(chosen)} items and {len(panel)} judges; at least one of each is needed")
    for item in chosen:
        if item.label not in classes:
            close = get_close_matches(item.label, classes, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"the judge knows {', '.join(classes)}"
            raise ValueError(f"item {item.id!r} has label {item.label!r}; {known}")
    known_victims = {item.victim_fingerprint for item in chosen} - {""}
    victims = {item.victim for item in chosen} & {one.name for one in panel}
    if known_victims:
        victims |= {one.name for one in panel if one.fingerprint in known_victims}
    if victims:
        raise ValueError(
            f"judge {min(victims)!r} is a victim too; it was led to another class by construction: take a classifier that nothing was searched against"
        )
    if len(shapes := {tuple(item.clean.shape) for item in chosen}) > 1:
        raise ValueError(
            f"items have pictures of shapes {', '.join(map(str, sorted(shapes)))}; a classifier judges one shape: judge each alone"
        )
    labels = torch.tensor([classes.index(item.label) for item in chosen])
    reached = torch.tensor([item.perturbed is not None for item in chosen])
    pictures = (
        torch.stack([item.clean for item in chosen] + [item.perturbed for item in chosen if item.perturbed is not None])
        .detach()
        .float()
        .cpu()
    )
    clean, perturbed = np.zeros((2, len(chosen), len(panel)), dtype=bool)
    for column, one in enumerate(panel):
        logits = represent(one, pictures, batch=batch)
        if logits.shape[1] != len(classes):
            raise ValueError(
                f"judge {one.name!r} gives {logits.shape[1]} logits; classes names {len(classes)}: name each logit once, in order"
            )
        said = logits.argmax(1)
        clean[:, column] = said[: len(chosen)] == labels
        perturbed[reached.numpy(), column] = said[len(chosen) :] == labels[reached]
    about = [{"item": str(item.id), "victim": item.victim, "group": item.group, "label": item.label} for item in chosen]
    by = "stand-in: " + ", ".join(one.name for one in panel)
    return _outcome(about, [item.magnitude for item in chosen], clean, perturbed & clean, by)


def count_votes(clean: np.ndarray, perturbed: np.ndarray) -> pd.DataFrame:
    """Count votes by the paper's rule: of all judges on the clean picture, then of those who kept it on the perturbed one (Dunn et al. 2020).

    Each is decided by a majority of those who were asked; a tie does not keep (the paper does not say). A clean picture that is not kept is
    skipped, and so is what was made of it.

    clean, perturbed: [items, judges], true where a judge keeps -> a row an item: judges, clean_votes, clean_kept, perturbed_votes, kept

    Raises:
        ValueError: another shape, no judge, or a judge who keeps a perturbed picture without having kept the clean one.
    """
    if clean.ndim != 2 or clean.shape != perturbed.shape or not clean.shape[1]:
        raise ValueError(f"votes have shapes {list(clean.shape)} and {list(perturbed.shape)}; expected [items, judges] twice, with a judge")
    if (perturbed & ~clean).any():
        item, judge = np.argwhere(perturbed & ~clean)[0]
        raise ValueError(f"judge {judge} keeps the perturbed picture of item {item} and not the clean one; only who kept that is asked")
    clean_votes, perturbed_votes = clean.sum(1), perturbed.sum(1)
    clean_kept = 2 * clean_votes > clean.shape[1]
    return pd.DataFrame(
        {
            "judges": clean.shape[1],
            "clean_votes": clean_votes,
            "clean_kept": clean_kept,
            "perturbed_votes": perturbed_votes,
            "kept": clean_kept & (2 * perturbed_votes > clean_votes),
        }
    )


def _outcome(about: list[dict[str, str]], magnitudes: list[float], clean: np.ndarray, perturbed: np.ndarray, by: str) -> pd.DataFrame:
    return pd.concat([pd.DataFrame(about).assign(magnitude=magnitudes), count_votes(clean, perturbed)], axis=1).assign(judged_by=by)


def _pixels(picture: Tensor, what: str) -> np.ndarray:
    """[channel, height, width] in [0, 1] -> [height, width, channel], 8 bits"""
    if picture.ndim != 3 or picture.shape[0] not in (1, 3):
        raise ValueError(f"{what} has shape {list(picture.shape)}; expected [channel, height, width] with one or three channels")
    values = picture.detach().cpu().double().numpy()
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{what} has values from {values.min():g} to {values.max():g}; expected [0, 1], as Generator gives them")
    return np.rint(values * 255).astype(np.uint8).transpose(1, 2, 0)


def _data_uri(pixels: np.ndarray) -> str:
    with io.BytesIO() as file:
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "png", optimize=True)
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _asked(question: str | Mapping[str, str], label: str) -> str:
    if isinstance(question, str):
        if "{label}" not in question:
            raise ValueError(f"question is {question!r}; it must say which class is asked for: write {{label}} where its name goes")
        return question.replace("{label}", label)
    if label not in question:
        raise ValueError(f"there is no question for label {label!r}; there is one for {', '.join(map(repr, question)) or 'none'}: add it")
    return question[label]


def _listed(items: Sequence[Item]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the pictures that are asked about and the items that they belong to, as the list has them, and each picture's pixels."""
    pictures: dict[str, dict[str, Any]] = {}
    shown: list[np.ndarray] = []
    counts: Counter[str] = Counter()

    def asked(picture: Tensor, shows: str, label: str, after: str | None) -> str:
        pixels = _pixels(picture, shows)
        digest = sha256(f"{label}\0{pixels.shape}\0".encode() + pixels.tobytes()).hexdigest()
        known = digest if shows == "clean" else f"{len(pictures)}"  # equal clean pictures are one question, perturbed ones never
        if known not in pictures:
            counts[shows] += 1
            pictures[known] = {"picture": f"{shows}-{counts[shows]:04}", "shows": shows, "after": after, "label": label, "digest": digest}
            shown.append(pixels)
        return pictures[known]["picture"]

    records = []
    for item in items:
        clean = asked(item.clean, "clean", item.label, None)
        perturbed = None if item.perturbed is None else asked(item.perturbed, "perturbed", item.label, clean)
        name, victim, group = item.key
        about = {"item": name, "victim": victim, "group": group, "label": item.label, "magnitude": float(item.magnitude)}
        records.append({**about, "magnitude": None if perturbed is None else about["magnitude"], "clean": clean, "perturbed": perturbed})
    return {"pictures": list(pictures.values()), "items": records}, shown


def _fingerprint(sheet: Mapping[str, Any]) -> str:
    return key_of({name: value for name, value in sheet.items() if name != "sheet"})[:16]


def _read_sheet(path: Path) -> dict[str, Any]:
    try:
        sheet = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VotesError(
            f"{path} cannot be read as a sheet's list of items ({error}); expected the json that labelling_sheet wrote"
        ) from error
    if not isinstance(sheet, dict) or sheet.get("format") != _FORMAT:
        raise VotesError(f"{path} is no list of items of format {_FORMAT!r}; expected the json that labelling_sheet wrote")
    if sheet.get("sheet") != _fingerprint(sheet):
        raise VotesError(
            f"{path} says sheet {sheet.get('sheet')} and has the content of {_fingerprint(sheet)}; it was changed: take it as it was written"
        )
    return sheet


def _files(votes: str | Path | Iterable[str | Path]) -> list[Path]:
    if not isinstance(votes, (str, Path)):
        return list(map(Path, votes))
    if not Path(votes).is_dir():
        return [Path(votes)]
    # A Mac leaves a hidden "._votes.csv" beside a file that it copies.
    return sorted(path for path in Path(votes).iterdir() if path.suffix.lower() == ".csv" and not path.name.startswith("."))


def _ballot(path: Path, sheet: Mapping[str, Any]) -> tuple[str, dict[str, bool]]:
    """Return who voted in a file, and how on each picture.

    Raises:
        VotesError: it is malformed, of another sheet, of several judges, or has not exactly the answers that the page asked for.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file, strict=True) if row] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise VotesError(f"{path} cannot be read as votes ({error}); expected the csv that the page downloads") from error
    if header != _COLUMNS:
        raise VotesError(
            f"{path} has columns {', '.join(header) or 'none'}; expected {', '.join(_COLUMNS)}: take the file as the page downloaded it"
        )
    if not rows:
        raise VotesError(f"{path} has no votes; the judge must answer and download again")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(_COLUMNS):
            raise VotesError(
                f"{path}, row {number}, has {len(row)} values; expected {len(_COLUMNS)}: take the file as the page downloaded it"
            )
    if strange := {row[0] for row in rows} - {sheet["sheet"]}:
        raise VotesError(
            f"{path} has votes on sheet {min(strange)}; this is {sheet['sheet']}: read them with the list of the page they were given on"
        )
    names = {" ".join(unicodedata.normalize("NFC", row[1]).split()).lower() for row in rows}
    if len(names) > 1 or "" in names:
        raise VotesError(
            f"{path} has votes of {', '.join(map(repr, sorted(names)))}; expected one judge a file, with a name: give each their own"
        )
    answers: dict[str, bool] = {}
    known = {picture["picture"]: picture for picture in sheet["pictures"]}
    for number, (_, _, picture, answer) in enumerate(rows, start=2):
        where = f"{path}, row {number},"
        if picture not in known:
            raise VotesError(f"{where} answers for {picture!r}; the sheet has no such picture: take the file as the page downloaded it")
        if answer not in ("yes", "no"):
            raise VotesError(f"{where} answers {answer!r}; expected yes or no: take the file as the page downloaded it")
        if picture in answers:
            raise VotesError(f"{where} answers for {picture!r} again; each picture is asked once: take the file as the page downloaded it")
        answers[picture] = answer == "yes"
    for name, picture in known.items():
        asked = picture["after"] is None or answers.get(picture["after"], False)
        if name in answers and not asked:
            raise VotesError(
                f"{path} answers for {name!r}, whose clean picture {picture['after']!r} this judge did not keep; "
                "only who kept it sees the perturbed one: take the file as the page downloaded it"
            )
        if asked and name not in answers:
            raise VotesError(f"{path} has no answer for {name!r}; the judge must finish the page and download again")
    return names.pop(), answers

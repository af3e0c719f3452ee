"""Human judgement: the rule by truth table, files that must be refused, the stand-in, and the page itself in a real browser."""

import base64
import contextlib
import csv
import io
import itertools
import json
import math
import shutil
import socket
import subprocess
import time
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rt_core import Encoder
from rt_generator_perturbations.labelling import Item, VotesError, count_votes, judge_votes, labelling_sheet, read_votes


def picture(number, *, size=8, channel=1):
    return torch.rand((channel, size, size), generator=torch.Generator().manual_seed(number))


def some_items():
    """Three draws against two victims, so that clean pictures are shared; one perturbation was not found."""
    labels = ["zero", "one", "zero"]
    items = [
        Item(
            id=str(draw),
            clean=picture(draw),
            perturbed=picture(10 * draw + i + 100),
            label=labels[draw],
            magnitude=1.5 + i,
            victim=victim,
            group="late",
        )
        for draw in range(3)
        for i, victim in enumerate(("standard", "robust"))
    ]
    return [*items[:5], replace(items[5], perturbed=None, magnitude=math.inf)]


def read_list(sheet):
    return json.loads(sheet.items.read_text(encoding="utf-8"))


def read_page(sheet):
    text = sheet.page.read_text(encoding="utf-8").split('<script type="application/json" id="sheet">')[1]
    return json.loads(text.split("</script>")[0])


def ballot(sheet, keeps):
    """The rows that the page gives for a judge who keeps what ``keeps(picture)`` says."""
    votes = {}
    for one in read_list(sheet)["pictures"]:
        if one["after"] is None or votes[one["after"]] == "yes":
            votes[one["picture"]] = "yes" if keeps(one["picture"]) else "no"
    return votes


def write_votes(path, sheet, judge, votes):
    rows = [["sheet", "judge", "picture", "answer"], *([sheet.fingerprint, judge, *vote] for vote in votes.items())]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


# The rule


@pytest.mark.parametrize(
    ("judges", "clean", "perturbed", "clean_kept", "kept"),
    [
        (5, 5, 5, True, True),
        (5, 5, 3, True, True),
        (5, 5, 2, True, False),
        (5, 5, 0, True, False),
        (5, 4, 4, True, True),
        (5, 4, 3, True, True),
        (5, 4, 2, True, False),  # a tie among the four who kept the clean one
        (5, 3, 3, True, True),
        (5, 3, 2, True, True),  # two of five, and yet a majority of those who were asked
        (5, 3, 1, True, False),
        (5, 2, 2, False, False),  # skipped, whatever the two say
        (5, 1, 1, False, False),
        (5, 0, 0, False, False),
        (4, 2, 2, False, False),  # a tie
        (4, 3, 2, True, True),
        (2, 1, 1, False, False),
        (1, 1, 1, True, True),
        (1, 1, 0, True, False),
        (1, 0, 0, False, False),
    ],
)
def test_a_majority_of_those_who_were_asked_decides(judges, clean, perturbed, clean_kept, kept):
    said = np.arange(judges)[None]
    counted = count_votes(said < clean, said < perturbed)
    assert counted.loc[0].to_dict() == {
        "judges": judges,
        "clean_votes": clean,
        "clean_kept": clean_kept,
        "perturbed_votes": perturbed,
        "kept": kept,
    }


@given(seed=st.integers(0, 2**31), judges=st.integers(1, 7))
def test_the_rule_is_that_of_counting_by_hand_in_any_order_of_judges(seed, judges):
    rng = np.random.default_rng(seed)
    clean = rng.random((9, judges)) < 0.6
    perturbed = clean & (rng.random((9, judges)) < 0.6)
    counted = count_votes(clean, perturbed)
    for row, (first, second) in enumerate(zip(clean.tolist(), perturbed.tolist(), strict=True)):
        asked = [late for early, late in zip(first, second, strict=True) if early]
        stays = first.count(True) > first.count(False)
        assert counted["clean_kept"][row] == stays
        assert counted["kept"][row] == (stays and asked.count(True) > asked.count(False))
    order = rng.permutation(judges)
    assert count_votes(clean[:, order], perturbed[:, order]).equals(counted)


def test_who_did_not_keep_the_clean_one_has_no_say():
    with pytest.raises(ValueError, match="judge 1 keeps the perturbed picture of item 0"):
        count_votes(np.array([[True, False, True]]), np.array([[True, True, False]]))
    with pytest.raises(ValueError, match=r"expected \[items, judges\]"):
        count_votes(np.zeros((2, 0), bool), np.zeros((2, 0), bool))


# Sheets


@pytest.mark.parametrize(("channel", "size"), [(1, 8), (3, 16)])
def test_the_page_shows_the_very_pictures(tmp_path, channel, size):
    item = Item(
        id="a", clean=picture(0, size=size, channel=channel), perturbed=picture(1, size=size, channel=channel), label="zero", magnitude=1
    )
    shown = read_page(labelling_sheet([item], tmp_path))["pictures"]
    assert [one["part"] for one in shown] == [1, 2]
    for one, tensor in zip(shown, (item.clean, item.perturbed), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["source"].removeprefix("data:image/png;base64,")))))
        assert (one["height"], one["width"]) == pixels.shape[:2] == (size, size)
        expected = torch.from_numpy(pixels.copy()).reshape(size, size, channel).permute(2, 0, 1) / 255
        torch.testing.assert_close(expected, tensor, atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_page_is_one_file_that_tells_judges_nothing_but_pictures_and_questions(tmp_path):
    label = 'a </script><b>"tricky" {label} & class'
    items = [
        Item(
            id="secret-id",
            clean=picture(0),
            perturbed=picture(1),
            label=label,
            magnitude=7.25,
            victim="secret-victim",
            group="secret-group",
        )
    ]
    sheet = labelling_sheet(items, tmp_path / "sheet.html", question="Is it {label}?")
    page = sheet.page.read_text(encoding="utf-8")
    assert read_page(sheet)["pictures"][0]["question"] == f"Is it {label}?"
    assert page.count("</script>") == 2
    for hidden in ("secret", "7.25", "http:", "https:", "src=", "@import", "url("):
        assert hidden not in page, hidden
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet.html", "sheet.json"]
    assert read_list(sheet)["items"] == [
        {
            "item": "secret-id",
            "victim": "secret-victim",
            "group": "secret-group",
            "label": label,
            "magnitude": 7.25,
            "clean": "clean-0001",
            "perturbed": "perturbed-0001",
        }
    ]


def test_equal_clean_pictures_of_one_label_are_asked_once(tmp_path):
    listed = read_list(labelling_sheet(some_items(), tmp_path))
    assert [item["clean"] for item in listed["items"]] == ["clean-0001"] * 2 + ["clean-0002"] * 2 + ["clean-0003"] * 2
    assert [item["perturbed"] for item in listed["items"]] == [*(f"perturbed-000{n}" for n in range(1, 6)), None]
    same = [replace(item, perturbed=picture(5), magnitude=1.0, clean=picture(0)) for item in some_items()]
    listed = read_list(labelling_sheet(same, tmp_path / "same"))
    assert len({item["clean"] for item in listed["items"]}) == 2  # one for each label: another question
    assert len({item["perturbed"] for item in listed["items"]}) == 6


def test_a_question_by_label(tmp_path):
    sheet = labelling_sheet(some_items(), tmp_path, question={"zero": "A ring?", "one": "A stroke?"})
    assert {one["question"] for one in read_page(sheet)["pictures"]} == {"A ring?", "A stroke?"}
    with pytest.raises(ValueError, match="no question for label 'one'"):
        labelling_sheet(some_items(), tmp_path, question={"zero": "A ring?"})
    with pytest.raises(ValueError, match=r"write {label} where its name goes"):
        labelling_sheet(some_items(), tmp_path, question="Is it good?")


def test_a_sheet_is_known_by_its_content(tmp_path):
    first, again = (labelling_sheet(some_items(), tmp_path / name) for name in "ab")
    assert first.fingerprint == again.fingerprint
    assert first.page.read_bytes() == again.page.read_bytes()
    moved = [replace(some_items()[0], clean=picture(0).flip(-1)), *some_items()[1:]]
    others = [
        labelling_sheet(some_items(), tmp_path / "c", seed=1),
        labelling_sheet(some_items(), tmp_path / "d", judges=3),
        labelling_sheet(some_items(), tmp_path / "e", question="Is this {label}?"),
        labelling_sheet(moved, tmp_path / "f"),
        labelling_sheet(some_items(), tmp_path / "g", instructions="Answer yes."),
    ]
    assert len({sheet.fingerprint for sheet in (first, *others)}) == 6
    labelling_sheet(some_items(), tmp_path / "a")  # the same sheet may be written again
    with pytest.raises(VotesError, match="choose another path"):
        labelling_sheet(moved, tmp_path / "a")
    with pytest.raises(VotesError, match="choose another path"):
        labelling_sheet(some_items(), tmp_path / "a", instructions="Answer yes.")
    assert read_list(first)["sheet"] == first.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clean": torch.zeros(2, 8, 8)}, "one or three channels"),
        ({"clean": torch.zeros(8, 8)}, r"expected \[channel, height, width\]"),
        ({"clean": torch.full((1, 8, 8), -1.0)}, r"values from -1 to -1; expected \[0, 1\]"),
        ({"perturbed": torch.full((1, 8, 8), math.nan)}, r"perturbed picture of item 'a'.*expected \[0, 1\]"),
        ({"perturbed": torch.zeros(1, 9, 8)}, "have one shape"),
        ({"magnitude": math.inf}, "finite and not negative"),
        ({"magnitude": -1.0}, "is -1"),
        ({"magnitude": math.nan}, "is nan"),
        ({"perturbed": None}, "without one inf"),
    ],
)
def test_an_item_that_cannot_be_judged_is_refused(change, message):
    item = Item(id="a", clean=picture(0), perturbed=picture(1), label="zero", magnitude=1.0)
    with pytest.raises(ValueError, match=message):
        replace(item, **change)


def test_a_sheet_needs_items_and_judges(tmp_path):
    with pytest.raises(ValueError, match="no items"):
        labelling_sheet([], tmp_path)
    with pytest.raises(ValueError, match="is there 2 times"):
        labelling_sheet([*some_items(), some_items()[0]], tmp_path)
    with pytest.raises(ValueError, match="judges is 0"):
        labelling_sheet(some_items(), tmp_path, judges=0)
    assert not [*tmp_path.iterdir()]


# Votes


def test_votes_are_read_back_by_the_rule(tmp_path):
    sheet = labelling_sheet(some_items(), tmp_path / "sheet.html")
    refused = {  # by judge: everything else is kept
        "ann": {"clean-0003"},
        "bob": {"clean-0003", "perturbed-0001"},
        "cem": {"clean-0003", "perturbed-0001", "perturbed-0003"},
        "dee": {"clean-0002", "perturbed-0001"},
        "eve": {"perturbed-0003", "perturbed-0004"},
    }
    paths = [
        write_votes(tmp_path / f"{judge}.csv", sheet, judge, ballot(sheet, lambda name, no=no: name not in no))
        for judge, no in refused.items()
    ]
    votes = read_votes(sheet, paths)
    assert list(votes.columns) == [
        "item", "victim", "group", "label", "magnitude", "judges", "clean_votes", "clean_kept", "perturbed_votes", "kept", "judged_by",
    ]  # fmt: skip
    assert votes["item"].tolist() == ["0", "0", "1", "1", "2", "2"]
    assert votes["victim"].tolist() == ["standard", "robust"] * 3
    assert votes["magnitude"].tolist() == [1.5, 2.5, 1.5, 2.5, 1.5, math.inf]
    assert votes["clean_votes"].tolist() == [5, 5, 4, 4, 2, 2]
    assert votes["clean_kept"].tolist() == [True, True, True, True, False, False]
    assert votes["perturbed_votes"].tolist() == [2, 5, 2, 3, 2, 0]
    assert votes["kept"].tolist() == [False, True, False, True, False, False]
    assert set(votes["judges"]) == {5}
    assert set(votes["judged_by"]) == {"people"}
    assert read_votes(sheet.items, tmp_path).equals(votes)  # a folder, the list by its path
    assert read_votes(str(sheet.items), reversed(paths)).equals(votes)  # whatever the order


def judged(tmp_path, *, judges=2):
    sheet = labelling_sheet(some_items(), tmp_path / "sheet.html", judges=judges)
    for name in ("ann", "bob", "cem")[:judges]:
        write_votes(tmp_path / f"{name}.csv", sheet, name, ballot(sheet, lambda name: name != "clean-0002"))
    return sheet


def test_the_judges_are_as_many_as_asked_for(tmp_path):
    sheet = judged(tmp_path, judges=3)
    assert len(read_votes(sheet, tmp_path)) == 6
    (tmp_path / "bob.csv").unlink()
    with pytest.raises(VotesError, match=r"votes of 2 judges \(ann, cem\); 3 were to be asked: wait for the others, or say judges=2"):
        read_votes(sheet, tmp_path)
    assert set(read_votes(sheet, tmp_path, judges=2)["judges"]) == {2}
    with pytest.raises(VotesError, match="take those who were asked first"):
        read_votes(sheet, tmp_path, judges=1)
    (tmp_path / "cem.csv").unlink()
    with pytest.raises(VotesError, match=r"votes of 1 judge \(ann\); 3 were"):
        read_votes(sheet, tmp_path)
    with pytest.raises(VotesError, match="of 0 judges"):
        read_votes(sheet, [])


@pytest.mark.parametrize("name", ["ann", " Ann ", "ANN"])
def test_a_judge_votes_once(tmp_path, name):
    sheet = judged(tmp_path)
    write_votes(tmp_path / "bob.csv", sheet, name, ballot(sheet, lambda _: True))
    with pytest.raises(VotesError, match="each judge votes once"):
        read_votes(sheet, tmp_path)


def lines(change):
    return lambda text: "\r\n".join(change(text.split("\r\n")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "columns none"),
        (lambda text: text.replace(",", ";"), "columns sheet;judge;picture;answer; expected sheet, judge, picture, answer"),
        (lambda text: text.replace("answer", "vote"), "columns sheet, judge, picture, vote"),
        (lines(lambda rows: rows[:1]), "has no votes"),
        (lambda text: text.replace("clean-0001,yes", "clean-0001,yes,yes"), r"row 2, has 5 values; expected 4"),
        (lambda text: text.replace("clean-0001,yes", "clean-0001"), r"row 2, has 3 values; expected 4"),
        (lines(lambda rows: [rows[0], "0123456789abcdef" + rows[1][16:], *rows[2:]]), "votes on sheet 0123456789abcdef; this is"),
        (lambda text: text.replace("bob,clean-0001", "ann,clean-0001"), "votes of 'ann', 'bob'; expected one judge a file"),
        (lambda text: text.replace("bob", " "), "with a name"),
        (lambda text: text.replace("clean-0001", "clean-0009"), "no such picture"),
        (lambda text: text.replace("clean-0001,yes", "clean-0001,maybe"), "answers 'maybe'; expected yes or no"),
        (lines(lambda rows: [*rows[:-1], rows[1], ""]), "answers for 'clean-0001' again"),
        (lines(lambda rows: [rows[0], *rows[2:]]), "no answer for 'clean-0001'; the judge must finish"),
        (lines(lambda rows: [*rows[:-2], ""]), "no answer for 'perturbed-0005'; the judge must finish"),
        (lambda text: text.replace("clean-0001,yes", "clean-0001,no"), "only who kept it sees the perturbed one"),
        (lambda text: text.replace("clean-0002,no", "clean-0002,yes"), "no answer for 'perturbed-0003'"),
        (lambda text: text + '"', "cannot be read as votes"),
    ],
)
def test_files_that_are_not_as_downloaded_are_refused(tmp_path, change, message):
    sheet = judged(tmp_path)
    path = tmp_path / "bob.csv"
    path.write_bytes(change(path.read_bytes().decode()).encode())
    with pytest.raises(VotesError, match=message) as error:
        read_votes(sheet, tmp_path)
    assert str(path) in str(error.value)


def test_a_file_that_a_spreadsheet_marked_or_that_ends_oddly_is_read(tmp_path):
    sheet = judged(tmp_path)
    votes = read_votes(sheet, tmp_path)
    text = (tmp_path / "bob.csv").read_bytes().decode()
    (tmp_path / "bob.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\r\n", "\n").encode() + b"\n\n")
    assert read_votes(sheet, tmp_path).equals(votes)
    (tmp_path / "bob.csv").write_bytes(text.encode("utf-16"))
    with pytest.raises(VotesError, match="cannot be read as votes"):
        read_votes(sheet, tmp_path)
    with pytest.raises(VotesError, match="cannot be read as votes"):
        read_votes(sheet, [tmp_path / "nobody.csv"])


def test_votes_on_another_sheet_are_refused(tmp_path):
    judged(tmp_path)
    other = labelling_sheet(some_items()[:4], tmp_path / "other")
    with pytest.raises(VotesError, match=f"this is {other.fingerprint}: read them with the list of the page"):
        read_votes(other, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-5], "cannot be read as a sheet's list"),
        (lambda text: "[]", "no list of items of format"),
        (lambda text: text.replace("sheet 1", "sheet 9"), "no list of items of format"),
        (lambda text: text.replace('"magnitude": 2.5', '"magnitude": 0.5'), "it was changed"),
        (lambda text: text.replace('"judges": 2', '"judges": 1'), "it was changed"),
    ],
)
def test_a_list_of_items_that_was_changed_is_refused(tmp_path, change, message):
    sheet = judged(tmp_path)
    sheet.items.write_text(change(sheet.items.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(VotesError, match=message):
        read_votes(sheet, tmp_path)
    with pytest.raises(VotesError, match="cannot be read"):
        read_votes(tmp_path / "none.json", tmp_path)


# The stand-in


def brightness_judge(name="judge"):
    """Says "bright" where the mean is above a half, "dark" below; for each of two further judges the bar is higher."""
    bar = {"judge": 0.5, "stern": 0.7, "sterner": 0.9}[name]
    return Encoder(lambda images: torch.stack([bar - images.flatten(1).mean(1), images.flatten(1).mean(1) - bar], 1), name=name)


def shade(level):
    return torch.full((1, 4, 4), level)


@pytest.mark.parametrize(
    ("clean", "perturbed", "clean_kept", "kept"),
    [(0.95, 0.95, True, True), (0.95, 0.2, True, False), (0.2, 0.95, False, False), (0.2, 0.2, False, False), (0.95, None, True, False)],
)
def test_a_classifier_stands_in_and_is_named_as_one(clean, perturbed, clean_kept, kept):
    magnitude = math.inf if perturbed is None else 2.0
    moved = None if perturbed is None else shade(perturbed)
    item = Item(id="a", clean=shade(clean), perturbed=moved, label="bright", magnitude=magnitude, victim="v", group="late")
    (row,) = judge_votes([item], brightness_judge(), ["dark", "bright"]).to_dict("records")
    assert (row["clean_kept"], row["kept"]) == (clean_kept, kept)
    assert (row["item"], row["victim"], row["group"], row["magnitude"], row["judges"]) == ("a", "v", "late", magnitude, 1)
    assert row["judged_by"] == "stand-in: judge"


def test_several_stand_ins_vote_like_people(tmp_path):
    levels = [0.1, 0.6, 0.8, 0.95]
    items = [
        Item(id=f"{number}", clean=shade(first), perturbed=shade(second), label="bright", magnitude=1.0)
        for number, (first, second) in enumerate(itertools.product(levels, levels))
    ]
    panel = [brightness_judge(name) for name in ("judge", "stern", "sterner")]
    votes = judge_votes(items, panel, ["dark", "bright"], batch=5)
    bars = torch.tensor([0.5, 0.7, 0.9])
    for row, (first, second) in enumerate(itertools.product(levels, levels)):
        asked = first > bars
        assert votes["clean_votes"][row] == asked.sum()
        assert votes["clean_kept"][row] == (asked.sum() >= 2)
        assert votes["perturbed_votes"][row] == (asked & (second > bars)).sum()
        assert votes["kept"][row] == (asked.sum() >= 2 and 2 * (asked & (second > bars)).sum() > asked.sum())
    assert set(votes["judged_by"]) == {"stand-in: judge, stern, sterner"}
    sheet = labelling_sheet(items, tmp_path, judges=1)
    write_votes(tmp_path / "ann.csv", sheet, "ann", ballot(sheet, lambda _: True))
    assert list(read_votes(sheet, tmp_path).dtypes.items()) == list(votes.dtypes.items())


def test_a_stand_in_that_cannot_judge_is_refused():
    item = Item(id="a", clean=shade(0.9), perturbed=shade(0.9), label="bright", magnitude=1.0, victim="stern")
    with pytest.raises(ValueError, match="'stern' is a victim too"):
        judge_votes([item], brightness_judge("stern"), ["dark", "bright"])
    judge, stern = brightness_judge(), brightness_judge("stern")
    same = replace(item, victim="v", victim_fingerprint=judge.fingerprint)
    for panel in (judge, [stern, judge]):  # whatever the victim was called
        with pytest.raises(ValueError, match="'judge' is a victim too"):
            judge_votes([same, replace(same, id="b", victim_fingerprint="")], panel, ["dark", "bright"])
    assert judge_votes([same], stern, ["dark", "bright"])["kept"].tolist() == [True]
    with pytest.raises(ValueError, match="did you mean 'bight'"):
        judge_votes([item], brightness_judge(), ["dark", "bight"])
    with pytest.raises(ValueError, match="gives 2 logits; classes names 3"):
        judge_votes([item], brightness_judge(), ["dark", "bright", "gray"])
    with pytest.raises(ValueError, match="one shape"):
        judge_votes([item, replace(item, clean=picture(0), perturbed=picture(1))], brightness_judge(), ["dark", "bright"])
    with pytest.raises(ValueError, match="0 items"):
        judge_votes([], brightness_judge(), ["dark", "bright"])
    for bare in (torch.nn.Sequential(torch.nn.Flatten()), lambda images: images, None, [brightness_judge(), torch.nn.Flatten()]):
        with pytest.raises(ValueError, match=r"judge is a \w+; expected an Encoder whose outputs are logits.*classifier\(network"):
            judge_votes([item], bare, ["dark", "bright"])


# The page, in a real browser


class Browser:
    """Chromium, driven through its driver's WebDriver protocol, which is JSON over HTTP: nothing else is needed for it."""

    ENTER, LEFT, RIGHT, BACKSPACE = "\ue007", "\ue012", "\ue014", "\ue003"

    def __init__(self, address, folder):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
        self.folder, self.address = folder, f"{address}/session"
        options = {"args": arguments, "binary": shutil.which("chromium"), "prefs": {"download.default_directory": str(folder)}}
        session = self.ask("", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "unhandledPromptBehavior": "ignore"}}})
        self.address += f"/{session['sessionId']}"

    def ask(self, path, data=None, method=None):
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.address + path, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, path):
        self.ask("/url", {"url": path.as_uri()})

    def run(self, script):
        return self.ask("/execute/sync", {"script": script, "args": []})

    def find(self, name):
        return next(iter(self.ask("/element", {"using": "css selector", "value": f"#{name}"}).values()))

    def click(self, name):
        self.ask(f"/element/{self.find(name)}/click", {})

    def text(self, name):
        """What a person can read there; nothing of what is hidden."""
        return self.ask(f"/element/{self.find(name)}/text")

    def type(self, keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def shoot(self, path):
        path.write_bytes(base64.b64decode(self.ask("/screenshot")))

    def size(self, width, height):
        self.ask("/window/rect", {"width": width, "height": height})
        frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        self.ask("/execute/async", {"script": frames, "args": []})  # until it is drawn at that size

    def downloaded(self, pattern):
        deadline = time.monotonic() + 20
        while not (found := [*self.folder.glob(pattern)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        (path,) = found
        return path


@pytest.fixture(scope="module")
def driver():
    """The address of chromium's driver."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed; Debian: apt-get install chromium chromium-driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                if json.load(answer)["value"]["ready"]:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def browser(driver, tmp_path):
    opened = Browser(driver, tmp_path)
    try:
        yield opened
    finally:
        opened.ask("", method="DELETE")


def names_of(sheet):
    """Which picture an image is, by what the page shows."""
    return {one["source"]: one["picture"] for one in read_page(sheet)["pictures"]}


def begin(browser, judge):
    browser.run("document.getElementById('judge').value = ''")
    browser.click("judge")
    browser.type(judge + Browser.ENTER)


def shown(browser, sheet):
    """The picture that is on the page, or None where there is none."""
    source = browser.run("const one = document.getElementById('picture'); return one.checkVisibility() ? one.src : null")
    return source and names_of(sheet)[source]


def judge_all(browser, sheet, keeps, act, *, until=None):
    """Answer until the page is through or ``until`` is shown; return what was shown, in order."""
    seen = []
    while (name := shown(browser, sheet)) and name != until:
        seen.append(name)
        act("yes" if keeps(name) else "no")
    return seen


def test_two_judges_go_through_a_whole_sheet(browser, tmp_path):
    sheet = labelling_sheet(some_items(), tmp_path / "sheet.html", judges=2)
    browser.open(sheet.page)
    refused = {"ann": {"clean-0002", "perturbed-0001"}, "bob lee": {"perturbed-0005"}}
    expected = {judge: ballot(sheet, lambda name, judge=judge: name not in refused[judge]) for judge in refused}
    keys = {"yes": itertools.cycle(["y", "Y", Browser.RIGHT]), "no": itertools.cycle(["n", Browser.LEFT])}

    # Ann uses the keyboard, errs twice, and reloads in the middle of each part.
    def by_key(word):
        browser.type(next(keys[word]))

    assert browser.run("return document.activeElement.id") == "judge"
    assert "Keys:" in browser.text("start")
    begin(browser, "  Ann ")
    first = shown(browser, sheet)
    assert browser.text("place") == "part 1 of 2, picture 1 of 3"
    assert browser.text("question") == f"Does this picture show {'one' if first == 'clean-0002' else 'zero'}?"
    wrong = "no" if first not in refused["ann"] else "yes"
    by_key(wrong)
    assert shown(browser, sheet) != first
    browser.type("u")
    assert shown(browser, sheet) == first
    by_key("yes" if wrong == "no" else "no")
    second = shown(browser, sheet)
    browser.ask("/refresh", {})
    assert browser.run("return document.getElementById('judge').value") == "ann"  # who was here last
    browser.type(Browser.ENTER)
    assert shown(browser, sheet) == second
    seen = [first, *judge_all(browser, sheet, lambda name: name not in refused["ann"], by_key, until="perturbed-0002")]
    assert sorted(seen[:3]) == ["clean-0001", "clean-0002", "clean-0003"]
    assert browser.text("place").startswith("part 2 of 2, picture ")
    assert browser.text("place").endswith("of 3")  # those of the two clean ones that she kept
    browser.open(sheet.page)
    begin(browser, "ann")
    seen += judge_all(browser, sheet, lambda name: name not in refused["ann"], by_key)
    assert sorted(seen) == sorted(expected["ann"])
    last = seen[-1]
    browser.type(Browser.BACKSPACE)
    assert shown(browser, sheet) == last
    by_key("no" if last in refused["ann"] else "yes")
    assert "8 answers" not in browser.text("thanks")
    assert f"{len(expected['ann'])} answers by ann" in browser.text("thanks")
    browser.type("d")
    browser.downloaded("votes-ann-*.csv")

    # Bob clicks, on the same computer.
    browser.click("leave")
    begin(browser, "Bob Lee")
    order = judge_all(browser, sheet, lambda name: name not in refused["bob lee"], browser.click)
    assert sorted(order) == sorted(expected["bob lee"])
    browser.click("download")
    browser.downloaded("votes-bob-lee-*.csv")

    votes = read_votes(sheet, tmp_path)
    for column, part in (("clean_votes", "clean"), ("perturbed_votes", "perturbed")):
        assert votes[column].tolist() == [
            sum(answers.get(item[part]) == "yes" for answers in expected.values()) for item in read_list(sheet)["items"]
        ]
    assert votes["clean_kept"].tolist() == [True, True, False, False, True, True]
    assert votes["kept"].tolist() == [False, True, False, False, False, False]
    assert browser.run("return performance.getEntriesByType('resource').filter(one => !/^(data|blob):/.test(one.name)).length") == 0


def test_each_judge_has_an_order_of_their_own_and_always_the_same(browser, tmp_path):
    items = [Item(id=f"{n}", clean=picture(n), perturbed=picture(n + 50), label="zero", magnitude=1.0) for n in range(8)]
    orders = {}
    for seed, judge in itertools.product((0, 1), ("ann", "bob")):
        sheet = labelling_sheet(items, tmp_path / f"{seed}", seed=seed)
        browser.open(sheet.page)
        begin(browser, judge)
        orders[seed, judge] = judge_all(browser, sheet, lambda _: True, lambda _: browser.type("y"))
        half = len(items)
        assert {name.split("-")[0] for name in orders[seed, judge][:half]} == {"clean"}
        assert {name.split("-")[0] for name in orders[seed, judge][half:]} == {"perturbed"}
    assert len({tuple(order) for order in orders.values()}) == 4
    browser.run("localStorage.clear()")
    browser.open(sheet.page)
    begin(browser, "BOB")
    assert judge_all(browser, sheet, lambda _: True, lambda _: browser.type("y")) == orders[1, "bob"]


def test_what_would_spoil_votes_does_nothing(browser, tmp_path):
    sheet = labelling_sheet(some_items(), tmp_path / "sheet.html")
    browser.open(sheet.page)
    begin(browser, "a,b")  # a comma has no place in a name
    assert "letters" in browser.text("wrong")
    assert shown(browser, sheet) is None
    browser.type("yyn")  # typed into the name
    begin(browser, "ann")
    first = shown(browser, sheet)
    for held in ("repeat", "ctrlKey", "altKey", "metaKey"):  # a key that is held down, or is the browser's own
        browser.run(f"document.dispatchEvent(new KeyboardEvent('keydown', {{key: 'y', bubbles: true, {held}: true}}))")
        assert shown(browser, sheet) == first
    browser.type("ux5d")
    assert shown(browser, sheet) == first
    browser.type("y")
    second = shown(browser, sheet)
    browser.run("document.getElementById('other').click()")
    begin(browser, "bob")
    assert browser.text("place") == "part 1 of 2, picture 1 of 3"  # another judge's answers are not his
    stored = f"localStorage['rt-labelling/{sheet.fingerprint}/judge/%s'] = '%s'"
    browser.run(stored % ("bob", "{not json"))
    browser.run(stored % ("cem", '[["perturbed-0001","yes"]]'))  # an answer that could not have been given
    for judge, place in (("bob", 1), ("cem", 1), ("ann", 2)):
        browser.open(sheet.page)
        begin(browser, judge)
        assert browser.text("place") == f"part 1 of 2, picture {place} of 3"
    assert shown(browser, sheet) == second


def test_a_key_that_is_held_or_a_second_click_answers_for_no_picture_that_nobody_saw(browser, tmp_path):
    items = [Item(id=f"{n}", clean=picture(n), perturbed=picture(n + 50), label="zero", magnitude=1.0) for n in range(8)]
    browser.open(labelling_sheet(items, tmp_path).page)
    begin(browser, "ann")

    def hold(key, text, code):
        """A key that is held down, as the browser hears of it: the first time, and repeats."""
        about = {"key": key, "code": key if key == "Enter" else "Space", "windowsVirtualKeyCode": code}
        for repeated in (False, True, True, True):
            down = {"type": "keyDown", "text": text, "autoRepeat": repeated, **about}
            browser.ask("/goog/cdp/execute", {"cmd": "Input.dispatchKeyEvent", "params": down})
        browser.ask("/goog/cdp/execute", {"cmd": "Input.dispatchKeyEvent", "params": {"type": "keyUp", **about}})

    def at(number):
        assert browser.text("place") == f"part 1 of 2, picture {number} of 8"

    browser.click("yes")
    at(2)
    hold("Enter", "\r", 13)
    hold(" ", " ", 32)
    at(2)
    for place, key in enumerate((("Enter", "\r", 13), (" ", " ", 32)), start=3):  # who goes to a button by Tab means it, once
        browser.run("document.getElementById('no').focus()")
        hold(*key)
        at(place)
    browser.run("document.getElementById('undo').focus()")
    hold("Enter", "\r", 13)
    at(3)
    browser.type("n")
    press = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")] * 2
    there = {"type": "pointerMove", "x": 0, "y": 0, "origin": {"element-6066-11e4-a52e-4f735466cecf": browser.find("yes")}}
    browser.ask("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [there, *press]}]})
    at(5)


def test_a_browser_that_keeps_nothing_says_so_and_works(browser, tmp_path):
    sheet = labelling_sheet(some_items(), tmp_path / "sheet.html", judges=1)
    blocked = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('blocked') }})"
    sheet.page.write_text(sheet.page.read_text(encoding="utf-8").replace('"use strict";', f'"use strict"; {blocked};'), encoding="utf-8")
    browser.open(sheet.page)
    begin(browser, "ann")
    assert "does not keep answers" in browser.text("unkept")
    judge_all(browser, sheet, lambda _: True, lambda _: browser.type("y"))
    browser.click("download")
    browser.downloaded("votes-ann-*.csv")
    assert read_votes(sheet, tmp_path)["kept"].tolist() == [True] * 5 + [False]


@pytest.mark.parametrize(("size", "channel"), [(16, 1), (256, 3), (900, 3)])
def test_the_picture_and_the_buttons_fit_into_the_window(browser, tmp_path, size, channel):
    clean, perturbed = (picture(number, size=size, channel=channel) for number in range(2))
    sheet = labelling_sheet([Item(id="a", clean=clean, perturbed=perturbed, label="a tabby cat", magnitude=1.0)], tmp_path)
    browser.open(sheet.page)
    begin(browser, "ann")
    for width, height in ((1100, 900), (420, 640), (500, 380)):
        browser.size(width, height)
        *parts, window = browser.run(
            "return ['picture', 'yes', 'no', 'undo', 'question', 'place'].map(id => document.getElementById(id).getBoundingClientRect().toJSON())"
            ".concat([{width: innerWidth, height: innerHeight}])"
        )
        for part in parts:
            assert 0 <= part["left"] < part["right"] <= window["width"]
            assert 0 <= part["top"] < part["bottom"] <= window["height"]
        factor = parts[0]["width"] / size
        assert parts[0]["height"] / size == pytest.approx(factor, rel=0.01)
        assert (factor == int(factor) >= 4) if size == 16 else factor <= 1
        pixelated = browser.run("return getComputedStyle(document.getElementById('picture')).imageRendering") == "pixelated"
        assert pixelated == (size == 16)

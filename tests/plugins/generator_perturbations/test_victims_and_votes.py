"""What victims, votes, targets and banks must be, so that a magnitude is one: refused, warned of, or undefined and counted."""

import functools
import math
import random
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from rt_core import Encoder, Results
from rt_core.errors import EncoderError, InvalidInputs, RobustnessWarning
from rt_generator_perturbations import granularity, labelling
from rt_generator_perturbations.embedded import digits_classifier, digits_generator
from rt_generator_perturbations.goals import Breakaway, TargetClass, TargetRepresentation, UniversalQuantile, Untargeted, find_goal
from rt_generator_perturbations.granularity import granularity_curve
from rt_generator_perturbations.labelling import Item, judge_votes, labelling_sheet, read_votes
from rt_generator_perturbations.latents import Latents
from rt_generator_perturbations.readings import cumulative, judged_items, picture_grid, trade_off
from rt_generator_perturbations.searching import Coordinates, Relaxation, perturbation_model, search
from rt_generator_perturbations.victims import classifier

QUICK = {"growth": 1.5, "refine": 2}
PIXELS = {"pixels": ["image"]}
CLASSES = [str(number) for number in range(10)]


@functools.cache
def digits():
    return digits_generator()


@functools.cache
def plain():
    return digits_classifier()


def changed(change, name="changed"):
    """The classifier of digits, whose logits go through a function of images and logits."""

    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = plain().module

        def forward(self, images):
            return change(images, self.network(images))

    return classifier(Changed(), name=name)


def curve(victims, **options):
    return granularity_curve(digits(), victims, **{"groups": PIXELS, "items": 8, "progress": False, **QUICK, **options})


@functools.cache
def found(seed=0):
    return curve({"plain": plain()}, seed=seed)


@functools.cache
def votes(seed=0):
    return judge_votes(judged_items(found(seed)), digits_classifier(robust=True), CLASSES)


def nothing_long(monkeypatch):
    def long(*given, **named):
        raise AssertionError("something long began")

    monkeypatch.setattr(granularity, "searched", long)
    monkeypatch.setattr(granularity, "further_draws", long)


# ── probabilities ──


def test_probabilities_are_refused_where_logits_are_read(monkeypatch):
    soft = changed(lambda images, logits: logits.softmax(1), "soft")
    half = changed(lambda images, logits: logits.bfloat16().softmax(1).float(), "half")
    latents = digits().draw(range(4))

    for victim in (soft, half):
        with pytest.raises(
            ValueError, match=rf"victim '{victim.name}' gives probabilities .* expected logits.*log\(\), name='{victim.name}'\)"
        ):
            search(digits(), victim, latents, layers=["image"])
        with pytest.raises(ValueError, match="gives probabilities"):
            search(digits(), victim, latents, "untargeted", layers=["image"], labels=latents.classes)
    nothing_long(monkeypatch)
    with pytest.raises(ValueError, match="victim 'soft' gives probabilities"):
        curve([plain(), soft])


def test_logarithms_of_probabilities_are_as_good_as_logits():
    latents, options = digits().draw(range(6)), {"layers": ["image"], "growth": 1.3}

    logits, logs = (
        search(digits(), victim, latents, **options) for victim in (plain(), changed(lambda images, logits: logits.softmax(1).log()))
    )

    torch.testing.assert_close(logs.magnitude, logits.magnitude, rtol=1e-3, atol=0)


def test_probabilities_are_representations_as_good_as_any():
    soft = changed(lambda images, logits: logits.softmax(1))

    assert search(digits(), soft, digits().draw(range(2)), "breakaway", layers=["image"], **QUICK).reached.any()


# ── what works in place, draws noise, or is not finite ──


def test_a_victim_that_works_in_place_spoils_no_picture():
    inplace = classifier(lambda images: plain().module(images.sub_(0.5).div_(0.5).mul(0.5).add(0.5)), name="inplace")
    latents = digits().draw(range(4))

    mine, others = (search(digits(), victim, latents, layers=["image"], **QUICK) for victim in (plain(), inplace))

    assert torch.equal(mine.clean_images, others.clean_images)
    assert (others.images.min(), others.images.max()) >= (0, 0)
    torch.testing.assert_close(mine.magnitude, others.magnitude, rtol=1e-3, atol=0)


def noisy():
    return classifier(lambda images: plain().module(nn.functional.dropout(images, 0.2, training=True)), name="noisy")


def states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


def same_states(one, two):
    return torch.equal(one[0], two[0]) and (one[1] == two[1]).all() and one[2] == two[2]


@pytest.mark.parametrize("goal", ["target", "quantile"])
def test_noise_of_a_victims_own_is_warned_of_and_hangs_on_no_global_generator(goal):
    before, frames = states(), []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with pytest.warns(
                RobustnessWarning, match="victim 'noisy' is not deterministic: two passes of the same images differ"
            ) as caught:
                frames.append(curve(noisy(), goal=goal).frame)
        assert [one.filename for one in caught if "not deterministic" in str(one.message)] == [__file__]

    pd.testing.assert_frame_equal(*frames)
    assert same_states(before, states())


def test_a_search_warns_of_noise_and_leaves_the_global_generators_alone():
    before, latents, options = states(), digits().draw(range(4)), {"layers": ["image"], **QUICK}

    with pytest.warns(RobustnessWarning, match="not deterministic") as caught:
        one, two = (search(digits(), noisy(), latents, **options) for _ in range(2))

    assert {one.filename for one in caught} == {__file__}
    assert torch.equal(one.outputs, two.outputs)
    assert same_states(before, states())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(digits(), plain(), latents, **options)


def test_clean_outputs_that_are_not_finite_are_an_error():
    clean = digits()(digits().draw(range(80)))
    last = clean[79].mean()

    def spoiled(images, logits):
        return torch.where((images.mean((1, 2, 3)) == last)[:, None], math.nan, logits)

    with pytest.raises(EncoderError, match="victim 'changed' gave NaN or infinity for 1 of 1 clean images; no magnitude can be read"):
        search(digits(), changed(spoiled), digits().draw([79]), layers=["image"])
    with pytest.raises(EncoderError, match="gave NaN or infinity for 1 of 80 clean images"):  # beyond what is looked at
        curve(changed(spoiled), items=80, batch=80)
    with pytest.raises(EncoderError, match="for 8 of 8 clean images"):
        curve(changed(lambda images, logits: logits / 0))


def near(latents, reach, spoil):
    """A victim that spoils its logits where an image is further than this from the clean one, a root mean square."""
    clean = digits()(latents)

    def spoiled(images, logits):
        far = (images[:, None] - clean).square().mean((2, 3, 4)).amin(1).detach() > reach**2
        return spoil(logits, far[:, None])

    return changed(spoiled, "near")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda logits, far: logits * torch.where(far, math.nan, 1.0),
        lambda logits, far: logits + torch.where(far, math.nan, 0.0),
        lambda logits, far: logits + torch.where(far, math.inf, 0.0),
    ],
    ids=["nan and its slope", "nan of a finite slope", "infinity"],
)
def test_what_is_lost_on_the_way_is_undefined_noted_and_warned_of_never_robust(spoil):
    latents = digits().draw(range(12), seed=0)
    sound = search(digits(), plain(), latents, layers=["image"], **QUICK)
    victim = near(latents, 0.045, spoil)

    lost = search(digits(), victim, latents, layers=["image"], **QUICK)

    assert lost.lost.any()
    assert lost.reached.any()
    assert torch.equal(lost.magnitude.isnan(), lost.lost)
    assert torch.equal(lost.reached, ~lost.lost)
    assert lost.outputs[lost.reached].isfinite().all()
    assert not lost.magnitude.isinf().any()
    assert lost.status.count("not finite") == int(lost.lost.sum())
    assert "nan" not in repr(lost)
    assert sound.status == ("reached",) * 12

    with pytest.warns(
        RobustnessWarning, match=rf"victim 'near' gave NaN or infinity.* for {int(lost.lost.sum())} of 12 perturbations .*'pixels'"
    ):
        results = curve(victim, items=12)
    assert results.frame["value"].isna().tolist() == lost.lost.tolist()
    told = results.notes[results.notes["name"] == "skipped/not finite"]
    assert told["sample"].astype(int).tolist() == lost.lost.nonzero().flatten().tolist()
    assert (results.summary()["undefined"] == int(lost.lost.sum())).all()
    assert "pixels" in results.unbelievable("near")
    assert cumulative(results, 1.0)["skipped"].tolist() == [int(lost.lost.sum())]
    assert {*results.gallery.about["sample"]}.isdisjoint({*told["sample"]})


def test_of_what_is_finite_nothing_is_lost():
    limited = search(digits(), plain(), digits().draw(range(6)), layers=["image"], limit=0.02, **QUICK)

    assert not limited.lost.any()
    assert "not reached" in limited.status
    assert "skipped/not finite" not in {*found().notes["name"]}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_latents_that_are_not_finite_are_refused(bad):
    drawn = digits().draw(range(3))
    values = drawn.latents.clone()
    values[1, 2] = bad
    latents = Latents(ids=drawn.ids, latents=values, classes=drawn.classes)

    for ask in (
        lambda: search(digits(), plain(), latents, layers=["image"]),
        lambda: curve(plain(), items=latents),
        lambda: perturbation_model(digits(), plain(), latents, layers=["image"]),
    ):
        with pytest.raises(ValueError, match="latents of 1 of 3 items hold NaN or infinity, such as of '1'; give finite ones"):
            ask()


# ── targets and banks ──


def images():
    return digits()(digits().draw(range(50, 58))).detach()


OTHER_INPUTS = {
    "uint8": (lambda: (images() * 255).byte(), "is uint8, 0..255"),
    "0..255": (lambda: images() * 255, "outside the bounds .*divide by 255"),
    "[-1, 1]": (lambda: images() * 2 - 1, "outside the bounds"),
    "nan": (lambda: images() * math.nan, "holds NaN or infinity"),
}


@pytest.mark.parametrize(("make", "words"), OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_targets_and_banks_that_are_no_inputs_of_a_victim_are_refused(make, words, monkeypatch):
    encoder = Encoder(plain().module, name="encoder")
    for kind in (UniversalQuantile, Breakaway):
        with pytest.raises(InvalidInputs, match=f"bank .*{words}"):
            search(digits(), encoder, digits().draw(range(2)), kind(bank=make()), layers=["image"])
    nothing_long(monkeypatch)
    with pytest.raises(InvalidInputs, match=f"targets .*{words}"):
        curve(encoder, goal="representation", targets=make())
    with pytest.raises(InvalidInputs, match=f"bank .*{words}"):
        curve(encoder, goal=Breakaway(bank=make()))


def test_targets_that_are_no_classes_are_refused_before_the_first_block(monkeypatch, tmp_path):
    nothing_long(monkeypatch)
    with pytest.raises(ValueError, match=r"targets are torch\.int64 in 0 to 10; the victim has 10 logits"):
        curve(plain(), items=4, targets=[0, 0, 0, 10], batch=2, store=tmp_path)
    with pytest.raises(ValueError, match=r"targets are torch\.float32"):
        curve(plain(), items=4, targets=[0.0] * 4)
    assert not [*tmp_path.rglob("*.npz")]


def test_a_search_refuses_a_target_that_is_the_items_own_class():
    latents = digits().draw(range(5))
    targets = (latents.classes + 1) % 10
    targets[3] = latents.classes[3]

    with pytest.raises(
        ValueError, match=rf"the target of 1 of 5 items is the class that they are of, such as {targets[3]} of item '3'; give each another"
    ):
        search(digits(), plain(), latents, layers=["image"], targets=targets)
    targets[3] = 10
    with pytest.raises(ValueError, match="in 0 to 9"):
        search(digits(), plain(), latents, layers=["image"], targets=targets, batch=2)


def test_representations_to_reach_are_finite():
    with pytest.raises(ValueError, match="targets hold NaN or infinity in 1 of 2 rows"):
        TargetRepresentation().objective(torch.zeros(2, 3), targets=torch.tensor([[1.0, 2, 3], [1, math.nan, 3]]))


# ── what is an item's own row of a bank ──


def own_of(rows, clean):
    """Return which rows count as the items' own, by what the goal does with them."""
    goal = Breakaway(bank=granularity.Bank(rows))
    return goal.objective(clean).rows["own"]


def sized(many, sizes, seed=0):
    return torch.randn(many, len(sizes), generator=torch.Generator().manual_seed(seed)) * torch.tensor(sizes)


@pytest.mark.parametrize(
    "offset", [torch.zeros(6), torch.tensor([100.0, 0, 0, 0, 0, 0]), torch.tensor([1e4, 0, 0, 0, 0, 0])], ids=["none", "100", "10,000"]
)
def test_beside_a_coordinate_that_dominates_other_samples_are_others(offset):
    rows = sized(40, [1e-4, 0.01, 0.01, 0.01, 0.01, 0.01]) + offset

    assert torch.equal(own_of(rows, rows), torch.eye(40, dtype=torch.bool))
    apart = rows.clone()
    apart[:, 1] += 1e-3 if offset.max() < 1e3 else 5e-3  # one small coordinate alone
    assert not own_of(rows, apart).any()


@pytest.mark.parametrize(
    "scales", [[1.0] * 64, [*[100.0] * 4, *[0.01] * 60], [*[1e-3] * 32, *[1e3] * 32]], ids=["equal", "some large", "apart"]
)
def test_an_items_own_row_is_known_whatever_float32_makes_of_its_batch(scales):
    wide = torch.Generator().manual_seed(1)
    first, second = (torch.randn(*shape, generator=wide) / shape[0] ** 0.5 for shape in ((2048, 1024), (1024, 64)))

    def network(inputs):
        return ((inputs @ first).relu() @ second + 0.3) * torch.tensor(scales)

    inputs = torch.rand(96, 2048, generator=wide)
    whole, exact = network(inputs), network(inputs.double().float())
    # As a device that sums in another order: a row at a time, halves, and the columns turned round.
    turned = ((inputs.flip(1) @ first.flip(0)).relu().flip(1) @ second.flip(0) + 0.3) * torch.tensor(scales)
    alone = torch.cat([network(inputs[row : row + 1]) for row in range(96)])

    assert not torch.equal(turned, whole)
    for clean in (whole, exact, turned, alone, torch.cat([network(inputs[:7]), network(inputs[7:])])):
        assert torch.equal(own_of(whole, clean), torch.eye(96, dtype=torch.bool))


def test_a_breakaway_beside_a_dominating_coordinate_goes_half_way_to_the_nearest():
    class Sized(nn.Module):
        def forward(self, pictures):
            rows = pictures.flatten(1)
            return torch.cat([rows[:, :1] * 1e-4 + 100, (rows[:, 112:144] - 0.5) * 0.001], 1)

    encoder, latents = Encoder(Sized(), name="sized"), digits().draw(range(12))
    bank = digits()(latents).detach()
    rows = encoder(bank).double()

    result = search(digits(), encoder, latents, Breakaway(bank=bank), layers=["image"], growth=1.2)

    nearest = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(math.inf).min(1)
    moved = torch.cdist(result.outputs.double(), rows, compute_mode="donot_use_mm_for_euclid_dist")
    assert result.reached.sum() >= 6
    for row in result.reached.nonzero().flatten().tolist():
        assert moved[row, nearest.indices[row]] >= nearest.values[row] / 2 * 0.95  # no neighbor that is nearer was dropped
        assert (moved[row] < moved[row, row]).any()


# ── votes ──


def test_votes_of_another_run_are_refused():
    mine = cumulative(found(), [0.3], votes=votes())
    assert (mine["unjudged"] == 0).all()

    for read in (lambda given: cumulative(found(), [0.3], votes=given), lambda given: trade_off(found(), given, [0.3])):
        with pytest.raises(
            ValueError, match=r"votes are of other pictures: item '\d' for victim 'plain', group 'pixels', was judged at magnitude .*of 8"
        ):
            read(votes(1))
        with pytest.raises(ValueError, match=r"votes hold item '0' for victim 'plain', group 'pixels', more than once"):
            read(pd.concat([votes(), votes()]))
        with pytest.raises(
            ValueError,
            match=r"none of these results' items; they hold item '0' for victim 'other'.*the results item '0' for victim 'plain'",
        ):
            read(votes().assign(victim="other"))
        with pytest.raises(ValueError, match="votes lack the columns magnitude, kept"):
            read(votes().drop(columns=["magnitude", "kept"]))


def test_votes_of_another_run_in_which_nothing_was_found_are_known_by_their_labels():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (curve(plain(), seed=seed, limit=0.011, start=0.01) for seed in (0, 1))
    assert np.isinf(one.frame["value"].dropna()).all()
    given = judge_votes(judged_items(one), digits_classifier(robust=True), CLASSES)

    cumulative(one, [0.01], votes=given)
    with pytest.raises(ValueError, match=r"votes are of other pictures: items of class \d were judged as '\d' and as '\d'"):
        cumulative(two, [0.01], votes=given)


def test_votes_go_through_files_to_the_results_that_they_are_of(tmp_path):
    found().save(tmp_path / "results")
    sheet = labelling_sheet(judged_items(found(), names=[f"digit {name}" for name in CLASSES]), tmp_path / "sheet", judges=1)
    page = labelling.json.loads(sheet.items.read_text())
    lines = ["sheet,judge,picture,answer", *(f"{page['sheet']},ann,{one['picture']},yes" for one in page["pictures"])]
    (tmp_path / "votes").mkdir()
    (tmp_path / "votes" / "ANN.CSV").write_text("\r\n".join(lines))
    (tmp_path / "votes" / "._ANN.CSV").write_bytes(b"\x00\x05\x16\x07\xff")
    (tmp_path / "votes" / "notes.txt").write_text("none")

    read = read_votes(sheet, tmp_path / "votes")

    table = cumulative(Results.load(tmp_path / "results"), 5.0, votes=read)
    assert table["share"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("magnitudes", "words"),
    [
        ([math.nan], "magnitudes holds nan; expected finite numbers of at least 0"),
        ([0.1, -1], "magnitudes holds -1;"),
        ([math.inf], "magnitudes holds inf;"),
        (-0.5, "magnitudes holds -0.5;"),
        ("0.3", "magnitudes is '0.3'; expected one number, or several"),
        ([[0.3]], "expected one number, or several"),
        (["a"], "expected one number, or several"),
        ([], "magnitudes is empty"),
    ],
)
def test_magnitudes_at_which_nothing_can_be_read_are_refused(magnitudes, words):
    with pytest.raises(ValueError, match=words):
        cumulative(found(), magnitudes)
    with pytest.raises(ValueError, match=words):
        trade_off(found(), votes(), magnitudes)


def test_one_magnitude_is_one():
    pd.testing.assert_frame_equal(cumulative(found(), 0.3), cumulative(found(), [0.3]))
    pd.testing.assert_frame_equal(cumulative(found(), np.float32(0.5)), cumulative(found(), [0.5]))
    pd.testing.assert_frame_equal(trade_off(found(), votes(), 0.3), trade_off(found(), votes(), [0.3]))


def test_each_class_has_a_name():
    last = int(found().notes.query("name == 'label'")["value"].max())

    with pytest.raises(
        ValueError, match=f"names has 2 names, and there are items of class {last}; give one for each class, in order from 0 on"
    ):
        judged_items(found(), names=["zero", "one"])


def test_a_label_is_text_and_judges_are_whole(tmp_path):
    item = Item(id="a", clean=torch.zeros(1, 4, 4), perturbed=None, label="3")
    with pytest.raises(ValueError, match="label of item 'a' is 3; expected the class's name as judges read it, such as '3'"):
        replace(item, label=3)
    for judges in (2.5, "5", True, math.nan):
        with pytest.raises(ValueError, match=f"judges is {judges!r}; expected a whole number"):
            labelling_sheet([item], tmp_path, judges=judges)
    sheet = labelling_sheet([item], tmp_path, judges=1)
    with pytest.raises(ValueError, match=r"judges is 2\.5; expected a whole number"):
        read_votes(sheet, tmp_path, judges=2.5)


def test_the_work_of_a_sheet_grows_no_faster_than_its_items():
    calls = []
    for many in (50, 200):
        items = [
            Item(id=str(row), clean=torch.rand(1, 2, 2), perturbed=torch.rand(1, 2, 2), label="a", magnitude=1.0) for row in range(many)
        ]
        count = [0]

        def counted(frame, event, argument, count=count):
            count[0] += event == "call"  # of a generator, each of its values

        sys.setprofile(counted)
        try:
            listed, _ = labelling._listed(items)
        finally:
            sys.setprofile(None)
        calls.append(count[0])
        assert [one["picture"] for one in listed["pictures"][-2:]] == [f"clean-{many:04}", f"perturbed-{many:04}"]
    assert calls[1] <= 4.5 * calls[0]


# ── the rest ──


@pytest.mark.parametrize("shape", [(1, 32, 16), (3, 16, 32), (3, 40, 8)])
def test_pictures_of_any_shape_stand_beside_each_other(shape):
    _, height, width = shape
    results = found()
    about = results.gallery.about.iloc[:3]
    drawn = np.random.default_rng(0).uniform(0.2, 0.8, (3, *shape)).astype(np.float32)
    pictures = [granularity.Picture(row._asdict(), place, drawn[place]) for place, row in enumerate(about.itertuples(index=False))]
    grid = picture_grid(
        Results(
            frame=results.frame,
            notes=results.notes,
            manifest=results.manifest,
            gallery=granularity.Gallery.of(pictures, lambda row: drawn[row] / 2),
        )
    )

    image, factor = np.asarray(grid), max(1, round(64 / max(height, width)))
    tall, wide = height * factor, width * factor
    column, line = max(tall, wide) + 12, tall + 22
    for row in range(3):
        for place, picture in enumerate((drawn[row] / 2, drawn[row])):
            top, left = 44 + row * line, 12 + place * column
            shown = image[top : top + tall : factor, left : left + wide : factor]
            expected = np.rint(picture * 255).astype(np.uint8).transpose(1, 2, 0)
            np.testing.assert_array_equal(shown, np.broadcast_to(expected, shown.shape))
    assert grid.size == (2 * column + 12, 22 + 22 + 3 * line)


def test_a_kind_of_goal_is_the_goal_with_its_defaults():
    assert find_goal(TargetClass) == TargetClass()
    assert find_goal(UniversalQuantile) == UniversalQuantile()
    latents = digits().draw(range(2))
    one, two = (search(digits(), plain(), latents, goal, layers=["image"], **QUICK) for goal in (Untargeted, "untargeted"))
    assert torch.equal(one.magnitude, two.magnitude)
    for strange in (3, None, dict, nn.Linear(1, 1)):
        with pytest.raises(ValueError, match=r"goal is .*; expected a name \(target, untargeted.*\) or a Goal, such as"):
            find_goal(strange)


def test_radii_beyond_reason_are_refused(monkeypatch):
    with pytest.raises(
        ValueError, match=r"growth is 1\.000001; from 0\.01 to 5 these are 6,214,\d+ radii, and at most 10,000 are expected"
    ):
        Relaxation(growth=1.000001).radii(100)
    assert len(Relaxation(growth=1.00065).radii(100)) < 10_000
    nothing_long(monkeypatch)
    with pytest.raises(ValueError, match="radii, and at most 10,000"):
        curve(plain(), growth=1.0001)
    with pytest.raises(ValueError, match="radii, and at most 10,000"):
        search(digits(), plain(), digits().draw([0]), layers=["image"], growth=1.0001)


@pytest.mark.parametrize("seed", [1.5, "1", None, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match=f"seed is {seed!r}; expected a whole number"):
        search(digits(), plain(), digits().draw([0]), layers=["image"], seed=seed)
    with pytest.raises(ValueError, match=f"seed is {seed!r}; expected a whole number"):
        curve(plain(), seed=seed)


@pytest.mark.parametrize("norm", ["rms", "l2", "layer_max"])
def test_a_random_start_counts_no_neuron_that_moves_nothing(norm):
    scales = {"block16": torch.rand(digits().shapes()["block16"], generator=torch.Generator().manual_seed(0)) + 0.5}
    dead = torch.rand(scales["block16"].shape, generator=torch.Generator().manual_seed(1)) < 0.5
    scales["block16"][dead] = 0
    encoder, start = Encoder(plain().module, name="encoder"), 0.05 * (8192**0.5 if norm == "l2" else 1)

    result = search(
        digits(),
        encoder,
        digits().draw(range(3)),
        UniversalQuantile(bank=30),
        layers=["block16"],
        scales=scales,
        norm=norm,
        start=start,
        **QUICK,
    )

    moved = result.perturbations["block16"].double()
    assert (moved[:, dead] == 0).all()
    q = torch.where(dead, 0.0, moved / scales["block16"].where(~dead, 1.0)).flatten(1)
    measured = q.norm(dim=1) / (1 if norm == "l2" else 8192**0.5)
    assert result.reached.all()
    torch.testing.assert_close(result.magnitude, measured, rtol=1e-5, atol=0)
    coordinates = Coordinates({"block16": dead.shape}, scales, norm)
    assert torch.equal(coordinates.moved(torch.ones(1, 8192)).reshape(dead.shape) == 0, dead)


def test_a_joined_store_tells_scales_and_sizes_of_all_groups(tmp_path):
    groups, options = {"coarse": ["latent"], "late": ["block8", "block16"], "pixels": ["image"]}, {"items": 4, "progress": False, **QUICK}
    whole = curve(plain(), groups=groups, limit=0.1)
    for name, layers in groups.items():
        last = curve(plain(), groups={name: layers}, limit=0.1, store=tmp_path)

    joined = Results.load(tmp_path)

    one, two = (results.manifest["plan"]["attacks"] for results in (whole, joined))
    assert one == two
    assert {*two} == {*groups}
    scales = digits().scales()
    assert two["late"]["scales"] == {layer: pytest.approx(scales[layer], rel=5e-3) for layer in ("block8", "block16")}
    assert two["late"]["size"] == 2048 + 8192
    assert {"scales", "sizes"}.isdisjoint(joined.manifest["generator"])
    assert {*last.frame["attack"]} == {"pixels"}
    assert {*cumulative(joined)["attack"]} == {*groups}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        neurons = granularity_curve(digits(), plain(), groups={"late": ["block8"]}, scales="neuron", limit=0.02, **options)
    assert neurons.manifest["plan"]["attacks"]["late"]["scales"]["block8"].startswith("0 to ")


def test_only_chosen_layers_are_measured_and_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve(plain(), scales="neuron", limit=0.5)
    with pytest.warns(RobustnessWarning, match="neurons of layer 'block16' never vary") as caught:
        curve(plain(), groups={"late": ["block16"]}, scales="neuron", limit=0.5)
    assert not [one for one in caught if "block4" in str(one.message)]

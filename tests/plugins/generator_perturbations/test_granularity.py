"""The paper's protocol as results: who is skipped, what curves count, what a dead run keeps."""

import functools
import importlib.metadata
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rt_core import Bank, Encoder, Results, statistics
from rt_core.errors import RobustnessWarning, StoreError
from rt_generator_perturbations import granularity
from rt_generator_perturbations.embedded import digits_classifier, digits_generator
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.goals import Breakaway, TargetRepresentation
from rt_generator_perturbations.granularity import granularity_curve
from rt_generator_perturbations.labelling import judge_votes, labelling_sheet
from rt_generator_perturbations.miniature import demo
from rt_generator_perturbations.readings import cumulative, judged_items, picture_grid, ratios, trade_off
from rt_generator_perturbations.searching import Relaxation, search, searched
from rt_generator_perturbations.victims import classifier

CLASSES = 3
GROUPS = {"coarse": ["latent"], "middle": ["start"], "fine": ["end", "image"]}
SCHEDULE = {"growth": 1.25, "limit": 3.0, "refine": 4}


class Patterns(nn.Module):
    """Each class has a pattern, to which the latent adds something."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.start = nn.Linear(4 + classes, 10)
        self.end = nn.Linear(10, 12)
        with torch.no_grad():
            self.start.weight[:, 4:] *= 4

    def forward(self, latents, classes=None):
        given = latents if classes is None else torch.cat([latents, classes], 1)
        return self.end(self.start(given).tanh()).sigmoid().view(-1, 1, 3, 4)


@functools.cache
def generator(classes=CLASSES):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Patterns(classes or 0)
    return Generator(module, latent=(4,), classes=classes, layers=["start", "end"], values=(0.0, 1.0), name="patterns")


@functools.cache
def victim(name="exact", noise=0.0):
    """Least squares on draws of the generator, and some noise that costs accuracy."""
    drawn = generator().draw(range(1000, 1400))
    images = generator()(drawn).flatten(1)
    inputs = torch.cat([images, torch.ones(len(images), 1)], 1)
    weight = torch.linalg.lstsq(inputs, nn.functional.one_hot(drawn.classes, CLASSES).float()).solution
    weight = weight + noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return classifier(lambda images: images.flatten(1) @ weight[:-1] + weight[-1], name=name)


def victims():
    return [victim(), victim("noisy", 0.6)]


@functools.cache
def results():
    return granularity_curve(generator(), victims(), groups=GROUPS, items=30, batch=16, progress=False, **SCHEDULE)


def frame_of(values, encoder="a", attack="early"):
    return pd.DataFrame(
        {
            "encoder": encoder,
            "attack": attack,
            "aim": "target",
            "step": 0,
            "metric": "magnitude",
            "sample": [str(place) for place in range(len(values))],
            "value": values,
            "note": "",
        }
    )


def results_of(*frames):
    """Results with these magnitudes."""
    frame = pd.concat(frames, ignore_index=True)
    about = {**results().manifest["samples"], "sample": [str(place) for place in range(99)], "pair": [*range(99)]}
    manifest = {**results().manifest, "samples": about}
    return Results(frame=frame, notes=results().notes.iloc[:0], manifest=manifest)


def test_rows_are_what_a_search_of_each_item_alone_finds():
    found = results()
    latents, scales = generator().draw(range(30)), generator().scales()

    assert list(dict.fromkeys(found.frame["encoder"])) == ["exact", "noisy"]
    assert list(dict.fromkeys(found.frame["attack"])) == [*GROUPS]
    assert set(found.frame["aim"]) == {"target"}
    assert len(found.frame) == 2 * 3 * 30
    rows = found.frame.set_index(["encoder", "attack", "sample"])["value"]
    for group in GROUPS:
        alone = search(generator(), victim(), latents.select([7]), layers=GROUPS[group], scales=scales, **SCHEDULE)
        assert rows["exact", group, "7"] == pytest.approx(alone.magnitude.item(), rel=1e-4)


def test_items_that_the_victim_gets_wrong_are_skipped_counted_and_named():
    latents = generator().draw(range(30))
    images = generator()(latents)

    for who in victims():
        wrong = (who(images).argmax(1) != latents.classes).numpy()
        rows = results().frame[results().frame["encoder"] == who.name]
        for group in GROUPS:
            part = rows[rows["attack"] == group]
            assert (part["value"].isna().to_numpy() == wrong).all()
            skipped = results().notes.query("encoder == @who.name and attack == @group and name == 'skipped/misclassified'")
            assert list(skipped["sample"]) == list(part["sample"][wrong])
    assert wrong.any()
    summary = results().summary()
    assert (summary[summary["encoder"] == "noisy"]["undefined"] == wrong.sum()).all()
    assert (summary["statistic"] == "median").all()


def test_all_victims_see_the_same_targets_and_labels():
    notes = results().notes
    for name in ("label", "target"):
        table = notes[notes["name"] == name].pivot_table(index="sample", columns=["encoder", "attack"], values="value", aggfunc="first")
        for row in table.itertuples(index=False):
            assert len({value for value in row if not math.isnan(value)}) == 1
    both = notes[notes["name"].isin(["label", "target"])].pivot_table(index=["encoder", "attack", "sample"], columns="name", values="value")
    assert (both["label"] != both["target"]).all()


def test_what_was_not_reached_is_infinite_and_the_summary_still_stands():
    found = granularity_curve(generator(), victim(), groups=GROUPS, items=30, progress=False, growth=1.25, limit=0.3, refine=2)

    reached = found.notes[found.notes["name"] == "reached"]["value"].to_numpy() == 1
    values = found.frame["value"].dropna().to_numpy()
    assert (np.isfinite(values) == reached).all()
    assert not reached.all()
    assert reached.any()
    assert (values[reached] <= 0.3).all()
    assert (found.summary()["estimate"] > 0).all()


def test_batches_do_not_matter():
    again = granularity_curve(generator(), victims(), groups=GROUPS, items=30, batch=7, progress=False, **SCHEDULE)

    pd.testing.assert_frame_equal(again.frame, results().frame, rtol=1e-4)
    pd.testing.assert_frame_equal(
        again.notes.sort_values([*Results.NOTE_COLUMNS]).reset_index(drop=True),
        results().notes.sort_values([*Results.NOTE_COLUMNS]).reset_index(drop=True),
        rtol=1e-4,
    )


def test_results_are_saved_loaded_tabled_and_compared(tmp_path):
    results().save(tmp_path)
    loaded = Results.load(tmp_path)

    pd.testing.assert_frame_equal(loaded.frame, results().frame)
    pd.testing.assert_frame_equal(loaded.notes, results().notes)
    assert loaded.table().shape == (3, 2)
    assert "magnitude ↑" in str(loaded.table().index[0])
    assert "limit=3" in loaded.caption()
    compared = loaded.compare("exact", "noisy")
    assert set(compared["attack"]) == {*GROUPS}
    kept = loaded.frame.pivot_table(index=["attack", "sample"], columns="encoder", values="value").dropna()
    assert compared.set_index("attack")["n"].to_dict() == kept.groupby("attack").size().to_dict()


def test_the_manifest_says_what_was_done():
    manifest = results().manifest

    about = manifest["plan"]["attacks"]["fine"]
    assert about["layers"] == ["end", "image"]
    assert (about["goal"], about["norm"], about["growth"], about["limit"]) == ("TargetClass", "rms", 1.25, 3.0)
    told = {group: (about["scales"], about["size"]) for group, about in manifest["plan"]["attacks"].items()}
    rounded = {layer: float(f"{scale:.3g}") for layer, scale in generator().scales().items()}
    sizes = {"coarse": 4, "middle": 10, "fine": 24}
    assert told == {group: ({layer: rounded[layer] for layer in layers}, sizes[group]) for group, layers in GROUPS.items()}
    assert manifest["generator"]["fingerprint"] == generator().fingerprint
    assert manifest["encoders"]["noisy"]["fingerprint"] == victims()[1].fingerprint
    assert manifest["encoders"]["noisy"]["passes"]["backwards"] > 0
    assert "latent" in str(manifest["plan"]["dataset"])


def test_without_classes_the_victims_own_word_is_the_label_and_nobody_is_skipped():
    free = generator(None)

    found = granularity_curve(free, victim(), items=8, progress=False, **SCHEDULE)

    said = victim()(free(free.draw(range(8)))).argmax(1).tolist()
    labels = found.notes.query("name == 'label' and attack == 'latent'")["value"].tolist()
    assert labels == said
    assert found.frame["value"].notna().all()
    assert list(dict.fromkeys(found.frame["attack"])) == [*free.groups()]


def test_given_targets_are_kept_and_an_items_own_class_is_skipped():
    latents = generator().draw(range(20))

    found = granularity_curve(generator(), victim(), groups=GROUPS, items=latents, targets=[1] * 20, progress=False, **SCHEDULE)

    own = found.notes.query("name == 'skipped/target is own class' and attack == 'fine'")["sample"].astype(int).tolist()
    assert own == (latents.classes == 1).nonzero().flatten().tolist()
    assert set(found.notes.query("name == 'target'")["value"]) == {1}


def encoder():
    weight = torch.randn(12, 5, generator=torch.Generator().manual_seed(3))
    return Encoder(lambda images: (images.flatten(1) @ weight).tanh(), name="encoder")


def test_encoders_are_measured_without_labels():
    found = {
        goal: granularity_curve(generator(), encoder(), groups=GROUPS, items=8, goal=goal, progress=False, **SCHEDULE)
        for goal in ("quantile", "breakaway", "representation")
    }

    assert {goal: set(one.frame["aim"]) for goal, one in found.items()} == {
        "quantile": {"away"},
        "breakaway": {"away"},
        "representation": {"target"},
    }
    for one in found.values():
        assert one.frame["value"].notna().all()
        assert np.isfinite(one.frame["value"]).any()
        assert "label" not in set(one.notes["name"])
        one.summary()
    assert found["breakaway"].manifest["bank"] == 500
    with pytest.raises(ValueError, match="no labels"):
        judged_items(found["quantile"])


def test_items_imitate_each_other_in_pairs_whatever_the_batch():
    options = {"groups": {"fine": ["image"]}, "items": 6, "goal": TargetRepresentation(share=0.4), "progress": False, **SCHEDULE}
    pairs = granularity_curve(generator(), encoder(), batch=3, **options)
    latents = generator().draw(range(6))
    clean = encoder()(generator()(latents))

    alone = search(generator(), encoder(), latents, options["goal"], layers=["image"], targets=clean[[1, 0, 3, 2, 5, 4]], **SCHEDULE)

    np.testing.assert_allclose(pairs.frame["value"], alone.magnitude, rtol=1e-4)
    assert pairs.manifest["samples"]["pair"] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="items is 5; they imitate each other in pairs"):
        granularity_curve(generator(), encoder(), **{**options, "items": 5})
    images = generator()(latents)[[1, 0, 3, 2, 5, 4]]
    given = granularity_curve(generator(), encoder(), targets=images, **options)
    np.testing.assert_allclose(given.frame["value"], alone.magnitude, rtol=1e-4)
    assert given.manifest["samples"]["pair"] == [*range(6)]


def test_a_run_that_dies_goes_on_where_it_was(tmp_path, monkeypatch):
    options = {"groups": GROUPS, "items": 12, "batch": 4, "progress": False, **SCHEDULE}
    whole = granularity_curve(generator(), victims(), **options)
    calls = []

    def dying(*given, **named):
        if len(calls) == 7:
            raise KeyboardInterrupt
        calls.append(1)
        return searched(*given, **named)

    monkeypatch.setattr(granularity, "searched", dying)
    with pytest.raises(KeyboardInterrupt):
        granularity_curve(generator(), victims(), store=tmp_path, **options)
    made = []
    monkeypatch.setattr(granularity, "searched", lambda *given, **named: made.append(1) or searched(*given, **named))
    resumed = granularity_curve(generator(), victims(), store=tmp_path, **options)

    assert len(made) == 2 * 3 * 3 - 7
    pd.testing.assert_frame_equal(resumed.frame, whole.frame)
    np.testing.assert_array_equal(resumed.gallery.adversarial, whole.gallery.adversarial)
    pd.testing.assert_frame_equal(Results.load(tmp_path).frame, whole.frame)
    made.clear()
    granularity_curve(generator(), victims(), store=tmp_path, **options)
    assert not made
    granularity_curve(generator(), victim(), store=tmp_path, **{**options, "limit": 2.5})
    assert made  # another schedule is another block
    with pytest.raises(StoreError, match="another seed"):
        granularity_curve(generator(), victims(), store=tmp_path, seed=1, **options)


def test_a_victim_that_is_hardly_ever_right_is_warned_of():
    wrong = classifier(lambda images: -victim()(images), name="wrong")

    with pytest.warns(RobustnessWarning, match="victim 'wrong' is right about 0 of 9 images"):
        found = granularity_curve(generator(), wrong, groups=GROUPS, items=9, progress=False, **SCHEDULE)

    assert found.frame["value"].isna().all()
    assert found.gallery.about.empty


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (lambda images: -images.flatten(1)[:, :CLASSES], ""),
        (lambda images: images.flatten(1)[:, :CLASSES].round(), "does not help the .* never had a gradient"),
    ],
    ids=["smooth", "flat"],
)
def test_a_group_in_which_nothing_is_reached_is_warned_of(module, told):
    groups = {"fine": ["image"], "coarse": ["latent"]}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = granularity_curve(generator(None), {"v": module}, groups=groups, items=6, progress=False, limit=0.01)

    said = [str(one.message) for one in caught if "for no item" in str(one.message)]
    assert np.isinf(found.frame["value"]).all()
    (message,) = said
    assert "victim 'v'" in message
    assert "'fine' (up to 0.01), 'coarse' (up to 0.01), so these 12 magnitudes are infinite; say a larger limit=" in message
    assert bool(told) == ("gradient" in message)
    assert not told or re.search(told, message)
    assert caught[-1].filename == __file__


def test_any_victim_may_be_given():
    found = granularity_curve(
        generator(), {"mine": nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))}, groups=GROUPS, items=30, progress=False, limit=0.02
    )

    assert set(found.frame["encoder"]) == {"mine"}


OTHERS = {
    "classes": ({}, {"classes": 1}),
    "targets": ({"targets": [1] * 9}, {"targets": [2] * 9}),
    "scales": ({}, {"scales": "neuron"}),
    "given scales": ({"scales": {"image": 0.1}}, {"scales": {"image": 0.2}}),
    "items": ({}, {"items": 9, "classes": [0, 1, 2] * 3}),
    "generator": ({}, {"generator": "another"}),
    "bank": ({"goal": "bank 0"}, {"goal": "bank 1"}),
}


@pytest.mark.parametrize(("one", "two"), OTHERS.values(), ids=OTHERS)
def test_magnitudes_of_other_images_targets_or_units_stand_in_no_table_together(one, two, tmp_path):
    def made(name, options, **more):
        options = {"items": 9, "groups": {"fine": ["image"]}, "progress": False, **SCHEDULE, **options}
        if "goal" in options:
            options["goal"] = Breakaway(bank=generator()(generator().draw(range(20), seed=int(options["goal"][-1]))).detach())
        source = generator()
        if options.pop("generator", None):
            source = Generator(source.module, latent=(4,), classes=CLASSES, layers=["start", "end"], values=(-1.0, 1.0), name="patterns")
        victims = {name: encoder() if "goal" in options else victim()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few are right
            return granularity_curve(source, victims, **options, **more)

    made("a", one).save(tmp_path / "a")
    made("b", two).save(tmp_path / "b")
    with pytest.raises(StoreError, match="differ in what attack 'fine' is"):
        Results.load(tmp_path / "a", tmp_path / "b")
    made("b", one).save(tmp_path / "c")
    assert {*Results.load(tmp_path / "a", tmp_path / "c").frame["encoder"]} == {"a", "b"}


def test_what_a_store_holds_of_other_targets_is_replaced_with_a_warning(tmp_path):
    options = {"items": 9, "groups": {"fine": ["image"]}, "progress": False, "store": tmp_path, **SCHEDULE}
    granularity_curve(generator(), {"a": victim()}, targets=[1] * 9, **options)

    with pytest.warns(RobustnessWarning, match="attack 'fine' is another than in the earlier run"):
        granularity_curve(generator(), {"b": victim("b", 0.1)}, targets=[2] * 9, **options)

    assert {*Results.load(tmp_path).frame["encoder"]} == {"b"}
    assert "items:" in Results.load(tmp_path).caption()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"items": "latents", "classes": 1}, "items are latents that have theirs"),
        ({"goal": "untargeted", "targets": [1] * 4}, "targets are given, and goal Untargeted leads away"),
        ({"goal": "quantile", "targets": [1] * 4}, "targets are given, and goal UniversalQuantile leads away"),
        ({"goal": "breakaway", "targets": [1] * 4}, "targets are given, and goal Breakaway leads away"),
        ({"items": "none"}, "latents hold no items"),
        ({"items": "twice"}, "id '0' stands for more than one item"),
        ({"victims": "shifted"}, r"victim 'shifted' takes inputs in \[-1, 1\]"),
        ({"goal": "bank"}, "bank is a Bank, of one victim's representations, and there are 2 victims"),
    ],
)
def test_what_would_be_ignored_or_mixed_up_is_refused(options, words):
    latents = {"latents": [0, 1], "none": [], "twice": [0, 0]}
    given = {"items": 4, **options}
    if isinstance(given["items"], str):
        given["items"] = generator().draw(latents[given["items"]])
    asked = Encoder(nn.Flatten(), name="shifted", bounds=(-1, 1)) if given.pop("victims", None) else victims()
    if given.get("goal") == "bank":
        given["goal"] = Breakaway(bank=Bank(torch.randn(9, CLASSES)))

    with pytest.raises(ValueError, match=words):
        granularity_curve(generator(), asked, groups=GROUPS, progress=False, **given, **SCHEDULE)


def searches(monkeypatch):
    made = []
    monkeypatch.setattr(granularity, "searched", lambda *given, **named: made.append(1) or searched(*given, **named))
    return made


def test_a_bank_does_not_break_what_is_stored(tmp_path, monkeypatch):
    goal = Breakaway(bank=Bank(torch.randn(9, 5, generator=torch.Generator().manual_seed(0))))
    options = {"groups": GROUPS, "items": 4, "progress": False, "store": tmp_path, "goal": goal, **SCHEDULE}
    first = granularity_curve(generator(), encoder(), **options)
    made = searches(monkeypatch)

    again = granularity_curve(generator(), encoder(), **options)

    assert not made
    pd.testing.assert_frame_equal(again.frame, first.frame)


def test_another_version_of_the_plugin_makes_its_blocks_again(tmp_path, monkeypatch):
    options = {"groups": GROUPS, "items": 4, "progress": False, "store": tmp_path, **SCHEDULE}
    granularity_curve(generator(), victim(), **options)
    made = searches(monkeypatch)
    granularity_curve(generator(), victim(), **options)
    assert not made
    monkeypatch.setattr(granularity, "version", lambda name: "9" if name.startswith("rt-gen") else importlib.metadata.version(name))

    granularity_curve(generator(), victim(), **options)

    assert len(made) == 3


def test_blocks_hold_the_pictures_that_were_asked_for_and_no_others(tmp_path, monkeypatch):
    options = {"groups": GROUPS, "items": 8, "batch": 4, "progress": False, "store": tmp_path, **SCHEDULE}
    kept = []
    save = granularity.Store.save
    monkeypatch.setattr(
        granularity.Store,
        "save",
        lambda self, key, block: kept.append((len(block["clean"]), len(block["images"]))) or save(self, key, block),
    )
    made = searches(monkeypatch)

    few = granularity_curve(generator(), victim(), pictures=3, **options)
    assert sorted(kept) == [(0, 0)] * 3 + [(3, 3)] * 3
    made.clear()
    granularity_curve(generator(), victim(), pictures=2, **options)
    assert not made  # fewer are there
    more = granularity_curve(generator(), victim(), pictures=5, **options)

    assert len(made) == 6
    assert {*few.gallery.about["sample"]} < {*more.gallery.about["sample"]} == {"0", "1", "2", "3", "4"}
    pd.testing.assert_frame_equal(few.frame, more.frame)


def test_without_classes_victims_share_a_target_unless_it_is_what_one_of_them_says():
    weights = torch.randn(2, 12, 10, generator=torch.Generator().manual_seed(5)) * 3
    others = [
        classifier(lambda images, weight=weight: (images.flatten(1) - 0.5) @ weight, name=name)
        for name, weight in zip(("one", "two"), weights, strict=True)
    ]

    found = granularity_curve(generator(None), others, groups={"fine": ["image"]}, items=200, progress=False, growth=1.5, limit=0.02)

    told = found.notes[found.notes["name"].isin(["label", "target"])].pivot_table(
        index="sample", columns=["name", "encoder"], values="value", aggfunc="first"
    )
    label, target = told["label"], told["target"]
    differ = target["one"] != target["two"]
    assert (label["one"] != label["two"]).sum() > 100
    assert 0 < differ.sum() < 60  # two classes of ten
    assert ((target["one"] == label["two"]) | (target["two"] == label["one"]))[differ].all()


# ── readings ──


def test_a_curve_counts_all_items_that_were_not_skipped():
    values = [0.1, 0.2, 0.2, math.inf, math.nan, 0.5]

    curve = cumulative(results_of(frame_of(values)), [0.05, 0.2, 1.0])

    assert curve["reached"].tolist() == [0, 3, 4]
    assert curve["n"].tolist() == [5] * 3
    assert (curve["skipped"].tolist(), curve["items"].tolist()) == ([1] * 3, [6] * 3)
    assert curve["share"].tolist() == [0, 0.6, 0.8]
    band = statistics.proportion_interval(3, 5, level=1 - 0.05 / 3)
    assert (curve["low"][1], curve["high"][1]) == (band.low, band.high)


def test_the_default_places_of_a_curve_are_fixed_by_the_search_and_not_by_what_it_found():
    places = {}
    for limit, norm in ((3.0, "rms"), (None, "l2")):
        found = granularity_curve(
            generator(), victims(), groups=GROUPS, items=6, progress=False, growth=1.5, limit=limit, norm=norm, refine=1
        )
        for group, part in cumulative(found).groupby("attack"):
            radii = Relaxation(limit=limit, norm=norm).radii({"coarse": 4, "middle": 10, "fine": 24}[group])
            for _, curve in part.groupby("encoder"):
                np.testing.assert_allclose(curve["magnitude"], np.geomspace(radii[0], radii[-1], 25))
                assert curve["magnitude"].iloc[-1] == radii[-1]
            reached = found.frame.query("attack == @group")["value"].pipe(np.isfinite).sum()
            assert part.groupby("encoder")["reached"].max().sum() == reached
            places[norm, group] = tuple(part["magnitude"])
    assert places["rms", "coarse"] == places["rms", "fine"]
    assert places["l2", "coarse"] != places["l2", "fine"]


def test_results_that_do_not_say_where_to_read_are_read_where_one_says():
    plan = results().manifest["plan"]
    attacks = {group: {name: value for name, value in about.items() if name != "size"} for group, about in plan["attacks"].items()}
    older = Results(frame=results().frame, notes=results().notes, manifest={**results().manifest, "plan": {**plan, "attacks": attacks}})

    with pytest.raises(ValueError, match=r"no size of group 'coarse'.*give magnitudes="):
        cumulative(older)
    pd.testing.assert_frame_equal(cumulative(older, [0.1, 1.0]), cumulative(results(), [0.1, 1.0]))


def test_items_in_pairs_are_one_observation_each_pair():
    values = np.random.default_rng(0).uniform(0.1, 1, 24).repeat(2)  # as alike as can be
    factors = np.random.default_rng(1).uniform(1, 3, 24).repeat(2)
    found = results_of(frame_of(values * factors, "a"), frame_of(values, "b"))
    pairs = Results(
        frame=found.frame,
        notes=found.notes,
        manifest={**found.manifest, "samples": {**found.manifest["samples"], "pair": [place // 2 for place in range(99)]}},
    )

    (alone,), (paired,) = (ratios(one, "a", "b").itertuples() for one in (found, pairs))

    logs = np.log(factors)
    mean = statistics.bootstrap_interval(logs, "mean", groups=np.arange(48) // 2)
    median = statistics.interval(logs, statistic="median", groups=np.arange(48) // 2)
    assert (paired.low, paired.high) == pytest.approx((math.exp(mean.low), math.exp(mean.high)))
    assert (paired.median_low, paired.median_high) == pytest.approx((math.exp(median.low), math.exp(median.high)))
    assert paired.high - paired.low > 1.2 * (alone.high - alone.low)
    curves = [cumulative(one, [0.5]).iloc[0] for one in (found, pairs)]
    assert curves[0]["share"] == curves[1]["share"]
    assert curves[1]["high"] - curves[1]["low"] > curves[0]["high"] - curves[0]["low"]


def test_pairs_of_a_study_reach_its_ratios():
    options = {"groups": {"fine": ["image"]}, "items": 44, "goal": TargetRepresentation(share=0.4), "progress": False, **SCHEDULE}
    weight = torch.randn(12, 5, generator=torch.Generator().manual_seed(4))
    other = Encoder(lambda images: (images.flatten(1) @ weight).tanh(), name="other")
    found = granularity_curve(generator(), [encoder(), other], **options)

    (row,) = ratios(found, "encoder", "other").itertuples()

    one, two = (found.frame.query("encoder == @name")["value"].to_numpy() for name in ("encoder", "other"))
    both = np.isfinite(one) & np.isfinite(two)
    logs = np.log(one[both]) - np.log(two[both])
    interval = statistics.bootstrap_interval(logs, "mean", groups=np.arange(44)[both] // 2)
    assert (row.low, row.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))


magnitudes = st.lists(st.one_of(st.floats(0, 5), st.just(math.inf), st.just(math.nan)), min_size=1, max_size=30)


@settings(deadline=None)
@given(values=magnitudes, at=st.lists(st.floats(0, 6), min_size=1, max_size=6))
def test_curves_rise_and_stay_in_their_bands(values, at):
    curve = cumulative(results_of(frame_of(values)), sorted(at))

    n = sum(not math.isnan(value) for value in values)
    assert (curve["n"] == n).all()
    if n:
        assert curve["share"].is_monotonic_increasing
        assert curve["low"].is_monotonic_increasing
        assert curve["high"].is_monotonic_increasing
        assert ((curve["low"] <= curve["share"]) & (curve["share"] <= curve["high"])).all()
        assert curve["reached"].tolist() == [sum(value <= one for value in values) for one in sorted(at)]


def votes_of(rows, magnitudes):
    """Votes on items whose magnitudes are known by id."""
    columns = ["item", "victim", "group", "clean_kept", "kept"]
    told = [magnitudes[int(row[0])] for row in rows]
    return pd.DataFrame(rows, columns=columns).assign(judged_by="people", label="any", magnitude=told)


def test_label_keeping_counts_successes_that_kept_their_class_among_true_pictures():
    given_results = results_of(frame_of([0.1, 0.2, 0.3, math.inf, math.nan, 0.4]))
    votes = votes_of(
        [
            ("0", "a", "early", True, True),
            ("1", "a", "early", True, False),  # changed its class
            ("2", "a", "early", False, False),  # was never true
            ("3", "a", "early", True, False),  # not reached: its clean picture alone was judged
            ("5", "a", "early", True, True),
        ],
        [0.1, 0.2, 0.3, math.inf, math.nan, 0.4],
    )

    curve = cumulative(given_results, [0.25, 1.0], votes=votes)

    raw, kept = (curve[curve["reading"] == reading] for reading in ("raw", "label-keeping"))
    assert (raw["reached"].tolist(), raw["n"].tolist()) == ([2, 4], [5, 5])
    assert (kept["reached"].tolist(), kept["n"].tolist()) == ([1, 2], [4, 4])
    assert (kept["not_kept"].tolist(), kept["unjudged"].tolist()) == ([1, 1], [0, 0])
    assert set(kept["judged_by"]) == {"people"}
    assert cumulative(given_results, [0.25], votes=votes[votes["item"] != "3"])["unjudged"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="1 perturbed pictures were found and not judged"):
        cumulative(
            results_of(frame_of([0.1, 0.2]), frame_of([0.1, 0.2], attack="late")),
            [1.0],
            votes=votes_of(
                [("0", "a", "early", True, True), ("1", "a", "early", False, False), ("1", "a", "late", False, False)], [0.1, 0.2]
            ),
        )
    with pytest.raises(ValueError, match="magnitudes is empty"):
        cumulative(given_results, [])


def test_what_a_fixed_maximum_gets_wrong():
    values = [0.1, 0.2, 0.3, 0.4, 0.1]
    votes = votes_of([(str(place), "a", "early", place != 4, kept) for place, kept in enumerate([True, False, True, False, False])], values)

    table = trade_off(results_of(frame_of(values)), votes, [0.25, 1.0])

    assert table["counted"].tolist() == [2, 4]
    assert table["false_positives"].tolist() == [1, 2]
    assert table["false_negatives"].tolist() == [1, 0]
    assert table["kept"].tolist() == [2, 2]


def test_ratios_are_paired_and_say_what_has_none():
    left = [0.2, 0.4, 0.8, math.inf, 0.3, math.nan, math.inf]
    right = [0.1, 0.4, 0.2, 0.5, math.inf, 0.3, math.inf]
    both = results_of(frame_of(left, "a"), frame_of(right, "b"))

    (row,) = ratios(both, "a", "b").itertuples()
    (turned,) = ratios(both, "b", "a").itertuples()

    assert row.ratio == pytest.approx((2 * 1 * 4) ** (1 / 3))
    assert turned.ratio == pytest.approx(1 / row.ratio)
    assert row.n == 3
    assert (row.first_alone, row.second_alone, row.neither) == (1, 1, 1)
    assert row.median == pytest.approx(2)  # of 2, 1, 4, infinity and 0
    assert row.low <= row.ratio <= row.high
    with pytest.raises(ValueError, match="no results of victim 'c'"):
        ratios(both, "a", "c")


def test_a_victim_that_needs_twice_as_much_has_a_ratio_of_two():
    values = np.random.default_rng(0).uniform(0.1, 1, 40)

    (row,) = ratios(results_of(frame_of(values * 2, "a"), frame_of(values, "b")), "a", "b").itertuples()

    assert (row.ratio, row.median) == (pytest.approx(2), pytest.approx(2))
    assert row.high - row.low < 1e-9


def test_found_pictures_go_to_judges_and_back(tmp_path):
    items = judged_items(results(), names=["ring", "bar", "dot"])

    kept = results().frame["value"].notna().sum()
    assert len(items) == kept
    assert {item.label for item in items} == {"ring", "bar", "dot"}
    assert {item.victim: item.victim_fingerprint for item in items} == {one.name: one.fingerprint for one in victims()}
    assert all((item.perturbed is None) == math.isinf(item.magnitude) for item in items)
    one = next(item for item in items if item.victim == "noisy" and item.group == "fine" and item.perturbed is not None)
    assert (
        victims()[1](one.perturbed[None]).argmax().item()
        == results().notes.query("encoder == 'noisy' and attack == 'fine' and sample == @one.id and name == 'target'")["value"].item()
    )
    labelling_sheet(items, tmp_path)
    with pytest.raises(ValueError, match="judge 'the same one' is a victim too"):
        judge_votes(items, victim("the same one"), classes=["ring", "bar", "dot"])
    votes = judge_votes(items, classifier(lambda images: 2 * victim()(images), name="alike"), classes=["ring", "bar", "dot"])
    curve = cumulative(results(), [0.5, 3.0], votes=votes)
    judged = curve[curve["reading"] == "label-keeping"]
    assert judged["judged_by"].str.contains("stand-in").all()
    assert (judged.query("encoder == 'exact'")["reached"] == 0).all()  # who was fooled cannot see that the class was kept


def test_the_grid_shows_clean_and_perturbed_pictures():
    image = np.asarray(picture_grid(results(), items=2, pixels=12))

    tile, width, height = 12, 24, 31
    assert image.shape == (22 + 2 * (22 + 2 * height), 4 * width + 12, 3)
    gallery = results().gallery
    first = gallery.about.iloc[0]
    assert (first["encoder"], first["attack"]) == ("exact", "coarse")
    top = 44
    for left, picture in ((12, gallery.originals[first["sample"]]), (12 + width, gallery.adversarial[0])):
        shown = image[top : top + 9, left : left + tile, 0]  # 3 x 4 pixels, each 3 x 3
        np.testing.assert_array_equal(shown[::3, ::3], np.rint(picture[0] * 255).astype(np.uint8))


def test_pictures_of_fewer_items_can_be_kept():
    found = granularity_curve(generator(), victim(), groups=GROUPS, items=10, pictures=3, progress=False, **SCHEDULE)

    assert set(found.gallery.about["sample"]) <= {"0", "1", "2"}
    with pytest.raises(ValueError, match="no pictures were kept"):
        picture_grid(granularity_curve(generator(), victim(), groups=GROUPS, items=10, pictures=0, progress=False, **SCHEDULE))


def test_a_goal_may_bring_its_own_bank():
    images = generator()(generator().draw(range(500, 520)))

    found = granularity_curve(generator(), encoder(), groups=GROUPS, items=4, goal=Breakaway(bank=images), progress=False, **SCHEDULE)

    assert found.manifest["bank"] == 20


# ── the embedded default ──


def test_on_digits_pixel_robustness_shows_at_the_pixels_and_least_at_the_latent():
    found = granularity_curve(
        digits_generator(),
        {"standard": digits_classifier(), "robust": digits_classifier(robust=True)},
        groups={"latent": ["latent"], "pixels": ["image"]},
        items=32,
        progress=False,
        growth=1.25,
        refine=4,
    )

    latent, pixels = ratios(found, "robust", "standard").itertuples()
    assert pixels.low > 1.5
    assert latent.high < pixels.low
    assert (found.notes.query("name == 'reached' and attack == 'pixels'")["value"] == 1).all()
    compared = found.compare("robust", "standard").set_index("attack")
    assert compared.loc["pixels", "better"] == "robust"


def test_the_demo_leaves_pictures_and_curves_and_says_what_they_show(tmp_path):
    threads = torch.get_num_threads()

    found, words = demo(tmp_path, items=4, progress=False, growth=1.5)

    assert {"pictures.png", "curves.png", "curves.csv", "manifest.json"} <= {path.name for path in tmp_path.iterdir()}
    pd.testing.assert_frame_equal(Results.load(tmp_path).frame, found.frame)
    for group in digits_generator().groups():
        (row,) = ratios(found, "robust", "standard").query("attack == @group").itertuples()
        assert f"{group:8} {row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]" in words
    assert (
        words.count("it is more robust") == (found.compare("robust", "standard")["better"] == "robust").sum() == 0
    )  # of 4, nothing is told
    assert str(tmp_path / "pictures.png") in words
    assert torch.get_num_threads() == threads


def test_targets_that_are_the_items_own_class_are_told_from_misclassified():
    drawn = generator().draw(range(8))
    options = {"groups": GROUPS, "items": drawn, "progress": False, **SCHEDULE}

    with pytest.warns(
        RobustnessWarning, match="is right about 8 of 8 images of the generator, the target of 8 of these is the class that"
    ) as caught:
        granularity_curve(generator(), victim(), targets=drawn.classes, **options)
    assert not any("number the classes alike" in str(one.message) for one in caught)
    assert any("so only 0 are perturbed: too few for an interval; give those other targets=" in str(one.message) for one in caught)

    wrong = classifier(lambda images: victim()(images).roll(1, 1), name="wrong")
    with pytest.warns(
        RobustnessWarning, match="'wrong' is right about 0 of 8 images of the generator, so only 0 .* number the classes alike"
    ):
        granularity_curve(generator(), wrong, targets=drawn.classes, **options)


def test_curves_that_begin_above_what_was_reached_are_warned_of():
    first = cumulative(results_of(frame_of([1.0] * 10, attack="coarse")))["magnitude"].min()
    values = [first / 2] * 2 + [2.0] * 7 + [math.inf, math.nan]

    with pytest.warns(
        RobustnessWarning, match=rf"^20% of the items of 'a' in 'coarse' were reached below {first:.3g}, the first magnitude"
    ):
        cumulative(results_of(frame_of(values, attack="coarse")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cumulative(results_of(frame_of(values, attack="coarse")), [0.5, 1.0])  # where the user wants
        cumulative(results_of(frame_of([first / 2] + [2.0] * 9, attack="coarse")))  # a tenth

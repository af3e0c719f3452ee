"""Transfer and the worst case: made once a source, measured on every victim, and what the worst of several is."""

from dataclasses import dataclass

import pandas as pd
import pytest
import torch

from rt_core import Encoder, Evaluation, PlanError, Results, RobustnessWarning, Suite, perturb, represent, run, transfer, use
from rt_core.baselines import UniformNoise
from rt_core.divergences import l2
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_label_free_metrics import adversarial_margin, overlap_risk
from rt_unsupervised_attacks import UPGD, MarginAPGD, UniversalPerturbation

METRICS = [
    "divergence",
    "universal_quantile",
    "breakaway_risk",
    "cosine_similarity",
    "target_divergence",
    "overlap_risk",
    "adversarial_margin",
]
SIZES = {"attacked": 40, "bank": 60}
INPUTS = tiny_inputs(60)


def moved(sources, victims, attacks=None, metrics=METRICS, **options):
    return transfer(sources, victims, INPUTS, attacks or {"pgd": UPGD(epsilon=0.1, steps=3)}, metrics, progress=False, **SIZES, **options)


def values(results, **where):
    frame = results.frame
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    return frame["value"].tolist()


# Transfer


@dataclass(frozen=True)
class Scaled:
    """A victim with preprocessing of its own."""

    encoder: Encoder

    def __call__(self, inputs):
        return 3 * self.encoder(1 - inputs)


def test_what_was_made_against_one_encoder_is_measured_on_another():
    source, victim = tiny_encoder(seed=1), Encoder(Scaled(tiny_encoder(seed=2)), name="victim")
    results = moved({"source": source}, {"victim": victim})
    order = [int(sample) for sample in results.manifest["samples"]["sample"]]
    inputs = INPUTS[order]
    made = perturb(UPGD(epsilon=0.1, steps=3), source, inputs, ids=order).inputs
    expected = l2(represent(victim, inputs).double(), represent(victim, made).double())
    assert values(results, attack="pgd/source", metric="divergence") == pytest.approx(expected.tolist(), rel=1e-6)

    toward = inputs[torch.arange(40) ^ 1]
    made = perturb(UPGD(epsilon=0.1, steps=3), source, inputs, targets=toward, ids=order).inputs
    expected = l2(represent(victim, toward).double(), represent(victim, made).double())
    assert values(results, attack="pgd/source", metric="target_divergence") == pytest.approx(expected.tolist(), rel=1e-6)
    assert not (results.notes["name"].str.startswith("history")).any()  # which is of the source


def test_inputs_are_made_once_whatever_the_number_of_victims():
    def passes(victims):
        source = tiny_encoder(seed=1)
        moved({"source": source}, {f"victim {seed}": tiny_encoder(seed=seed) for seed in range(2, 2 + victims)})
        return source.passes.backwards

    assert passes(1) == passes(3) == (40 + 2) * 2 * 3  # samples and those of the rehearsal, aims, steps


def test_a_victim_that_is_a_source_has_its_white_box_rows():
    encoder = tiny_encoder(seed=1)
    results = moved({"mine": encoder, "other": tiny_encoder(seed=2)}, {"mine": encoder})
    own = run(Evaluation([encoder], INPUTS, {"pgd": UPGD(epsilon=0.1, steps=3)}, METRICS, **SIZES), progress=False)
    for metric in METRICS:
        assert values(results, attack="pgd/mine", metric=metric) == values(own, metric=metric)
        assert values(results, attack="pgd/other", metric=metric) != values(own, metric=metric)


def test_an_attack_that_looks_at_the_bank_sees_the_source_s():
    source, victim = tiny_encoder(seed=1, dim=16), tiny_encoder(seed=2, dim=8)  # whose dimensions would not fit
    results = moved({"source": source}, {"victim": victim}, {"margin": MarginAPGD(epsilon=0.1, steps=4)}, ["divergence"])
    assert results.frame["value"].gt(0).all()
    assert not results.manifest["errors"]


def test_the_worst_source_is_read_like_any_worst_case():
    results = moved({"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)}, {"a": tiny_encoder(seed=1), "c": tiny_encoder(seed=3)})
    worst = results.worst("pgd")
    for victim in ("a", "c"):
        pairs = zip(*(values(results, encoder=victim, attack=f"pgd/{source}", metric="divergence") for source in "ab"), strict=True)
        assert values(worst, encoder=victim, metric="divergence") == [max(pair) for pair in pairs]
    assert set(worst.frame["attack"]) == {"pgd (worst case)"}


def test_a_transfer_is_kept_and_goes_on(tmp_path):
    first = moved({"a": tiny_encoder(seed=1)}, {"c": tiny_encoder(seed=3)}, store=tmp_path)
    source = tiny_encoder(seed=1)
    again = moved({"a": source}, {"c": tiny_encoder(seed=3)}, store=tmp_path)
    pd.testing.assert_frame_equal(first.frame, again.frame)
    assert source.passes.backwards == 0
    more = moved({"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)}, {"c": tiny_encoder(seed=3)}, store=tmp_path)
    assert values(more, attack="pgd/a") == values(first, attack="pgd/a")
    assert set(Results.load(tmp_path).frame["attack"]) == {"pgd/a", "pgd/b", "pgd (worst case)"}


@pytest.mark.parametrize("batch", [1, 7])
def test_a_transfer_does_not_depend_on_the_batch(batch):
    sides = {"a": tiny_encoder(seed=1)}, {"c": tiny_encoder(seed=3)}
    pd.testing.assert_frame_equal(moved(*sides).frame, moved(*sides, batch=batch).frame)


def test_what_cannot_be_transferred_is_refused():
    with pytest.raises(PlanError, match="no attack is given; a transfer needs one"):
        transfer([tiny_encoder()], [tiny_encoder()], INPUTS, {}, METRICS)
    with pytest.raises(PlanError, match="'both' is a suite; a transfer takes single attacks"):
        moved([tiny_encoder()], [tiny_encoder()], {"both": Suite({"one": UniformNoise()})})
    with pytest.raises(PlanError, match="attacked is 3"):
        transfer([tiny_encoder()], [tiny_encoder()], INPUTS, {"noise": use("uniform_noise")}, METRICS, attacked=3)


def test_every_victim_knows_that_the_source_s_bank_was_looked_at(tmp_path):
    def once(bank, store=None):
        victims = {"first": tiny_encoder(seed=2), "second": tiny_encoder(seed=3)}
        attacks = {"margin": MarginAPGD(epsilon=0.1, steps=4)}
        options = {"attacked": 20, "bank": bank, "progress": False, "store": store}
        return transfer({"source": tiny_encoder(seed=1)}, victims, INPUTS, attacks, ["divergence"], **options)

    once(20, tmp_path)
    grown, fresh = once(60, tmp_path), once(60)
    for victim in ("first", "second"):
        assert values(grown, encoder=victim) == values(fresh, encoder=victim)


def test_a_stored_transfer_is_read_without_a_pass(tmp_path):
    moved({"a": tiny_encoder(seed=1)}, {"c": tiny_encoder(seed=3)}, store=tmp_path)
    source = tiny_encoder(seed=1)
    moved({"a": source}, {"c": tiny_encoder(seed=3)}, store=tmp_path)
    assert source.passes.forwards == 0


def test_what_is_fitted_is_fitted_to_its_source():
    attacks = {"universal": UniversalPerturbation(epsilon=0.1, epochs=2, batch=25)}
    results = moved(
        {"a": tiny_encoder(seed=1)}, {"c": tiny_encoder(seed=3)}, attacks, ["divergence"], train=tiny_inputs(50, purpose="train")
    )
    assert results.frame["value"].gt(0).all()


def test_a_victim_with_narrower_bounds_sees_what_lies_inside_them():
    inputs = 0.2 + 0.6 * INPUTS
    narrow = Encoder(tiny_encoder(seed=3).module, name="narrow", bounds=(0.2, 0.8))
    results = transfer(
        {"a": tiny_encoder(seed=1)},
        {"narrow": narrow},
        inputs,
        {"pgd": UPGD(epsilon=0.1, steps=3)},
        ["divergence"],
        progress=False,
        **SIZES,
    )
    clipped = results.notes[results.notes["name"] == "clipped"]["value"]
    assert 0 < clipped.mean() < 0.5
    assert not results.manifest["errors"]


# The worst case

SUITE = Suite({"weak": UPGD(epsilon=0.1, steps=1), "other": UPGD(epsilon=0.1, steps=3), "noise": UniformNoise(epsilon=0.1)})


def studied(suite=SUITE, metrics=METRICS, **options):
    return run(Evaluation([tiny_encoder()], INPUTS, {"suite": suite}, metrics, **SIZES), progress=False, **options)


@pytest.mark.parametrize(
    ("metric", "harm"), [("divergence", max), ("breakaway_risk", max), ("cosine_similarity", min), ("target_divergence", min)]
)
def test_the_worst_case_takes_the_worst_of_each_sample_and_names_it(metric, harm):
    results = studied()
    members = [values(results, attack=f"suite/{member}", metric=metric) for member in SUITE.members]
    worst = results.worst("suite")
    assert values(worst, metric=metric) == [harm(each) for each in zip(*members, strict=True)]
    winners = worst.notes[worst.notes["name"].str.startswith(f"winner/{metric}/")].set_index("sample")["name"]
    frame = worst.frame[worst.frame["metric"] == metric]
    for sample, value, each in zip(frame["sample"], frame["value"], zip(*members, strict=True), strict=True):
        first = list(SUITE.members)[each.index(value)]  # of equal ones
        assert winners[sample] == f"winner/{metric}/suite/{first}"


def test_a_pair_is_measured_once_of_the_traces_nearest_their_targets():
    results = studied()
    order = [int(sample) for sample in results.manifest["samples"]["sample"]]
    encoder, inputs = tiny_encoder(), INPUTS[order]
    partner = torch.arange(40) ^ 1
    clean = represent(encoder, inputs)
    found = [perturb(attack, encoder, inputs, targets=inputs[partner], ids=order).adversarial for attack in SUITE.members.values()]
    distances = torch.stack([l2(clean[partner].double(), one.double()) for one in found])
    nearest = torch.stack(found)[distances.argmin(0), torch.arange(40)]
    sides = clean[::2], clean[1::2], nearest[::2], nearest[1::2]
    worst = results.worst("suite")
    for metric, expected in (("overlap_risk", overlap_risk(*sides)), ("adversarial_margin", adversarial_margin(*sides))):
        assert values(worst, metric=metric) == pytest.approx(expected.tolist(), rel=1e-9)
        assert values(results, attack="suite (worst case)", metric=metric) == values(worst, metric=metric)
    margins = [values(results, attack=f"suite/{member}", metric="adversarial_margin") for member in SUITE.members]
    assert values(worst, metric="adversarial_margin") != [min(each) for each in zip(*margins, strict=True)]  # another thing
    chosen = worst.notes[worst.notes["name"] == "winner/suite/other"].set_index("sample")["value"]
    assert [chosen[str(sample)] for sample in order] == (distances.argmin(0) == 1).double().tolist()


def test_undefined_rows_lose_and_marks_count_by_their_last():
    @dataclass(frozen=True)
    class Odd:
        aim = "away"
        better = "lower"
        statistic = "median"
        per = "sample"
        span = (-10.0, 10.0)

        def __call__(self, trace, bank, context):
            rows = torch.arange(len(trace)).double()
            return torch.where(rows % 2 == 0, torch.nan, rows) if trace.step == 3 else torch.full((len(trace),), float(trace.step))

    suite = Suite({"one": UPGD(epsilon=0.1, steps=2, marks=(1,)), "other": UPGD(epsilon=0.1, steps=3)})
    worst = studied(suite, {"odd": Odd()}).worst("suite")
    assert values(worst) == [2.0 if row % 2 == 0 or row < 2 else float(row) for row in range(40)]
    assert (worst.frame["step"] == 0).all()
    assert len(worst.summary()) == 1


def test_a_suite_that_is_not_there_is_said():
    with pytest.raises(ValueError, match="no suite 'pgd'; there are 'suite'"):
        studied().worst("pgd")


def test_a_worst_case_is_kept_in_the_store_and_for_any_batch(tmp_path):
    first = studied(store=tmp_path)
    pd.testing.assert_frame_equal(Results.load(tmp_path).worst("suite").frame, first.worst("suite").frame)
    run(Evaluation([tiny_encoder()], INPUTS, {"more": UPGD(epsilon=0.1, steps=1)}, METRICS, **SIZES), store=tmp_path, progress=False)
    pd.testing.assert_frame_equal(Results.load(tmp_path).worst("suite").frame, first.worst("suite").frame)
    pd.testing.assert_frame_equal(studied(batch=7).worst("suite").frame, first.worst("suite").frame)


def test_a_table_shows_the_worst_case_below_the_members():
    results = studied()
    table = results.table()
    rows = list(dict.fromkeys(attack for attack, _ in table.index))
    assert rows == ["suite/weak", "suite/other", "suite/noise", "suite (worst case)"]
    worst = results.worst("suite").table()
    pd.testing.assert_frame_equal(table.loc[["suite (worst case)"]], worst, check_names=False)
    assert len(worst) == len(METRICS)


def test_a_suite_whose_members_changed_leaves_no_worst_case_behind(tmp_path):
    def once(epsilon, metric):
        plan = Evaluation([tiny_encoder()], INPUTS, {"suite": Suite({"one": UPGD(epsilon=epsilon, steps=1)})}, [metric], **SIZES)
        return run(plan, store=tmp_path, progress=False)

    once(0.01, "overlap_risk")
    with pytest.warns(RobustnessWarning, match="attack 'suite/one' is another than in the earlier run"):
        once(0.3, "adversarial_margin")
    assert set(Results.load(tmp_path).frame["metric"]) == {"adversarial_margin"}

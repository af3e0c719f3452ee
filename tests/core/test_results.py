"""Results: rows to summaries by hand-computed values, what is undefined and what was not given, comparisons, files."""

import gzip
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import beta, binom
from scipy.stats import t as stats_t

from rt_core import Evaluation, Results, RobustnessWarning, StoreError, run, statistics, use
from rt_core.baselines import UniformNoise
from rt_core.datasets import tensors
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_unsupervised_attacks import UPGD

METRICS: dict[str, dict] = {
    "risk": {"aim": "away", "better": "lower", "statistic": "rate", "per": "sample", "span": [0, 1]},
    "share": {"aim": "away", "better": "lower", "statistic": "mean", "per": "sample", "span": [0, 1]},
    "shift": {"aim": "away", "better": "lower", "statistic": "median", "per": "sample", "span": [0, None]},
    "radius": {"aim": "clean", "better": "higher", "statistic": "median", "per": "sample", "span": [0, None]},
    "bound": {"aim": "clean", "better": "lower", "statistic": "median", "per": "sample", "span": [0, None]},
    "relative": {"aim": "target", "better": "higher", "statistic": "median", "per": "sample", "span": [0, None]},
    "accuracy": {"aim": "clean", "better": "higher", "statistic": "rate", "per": "sample", "span": [0, 1]},
}
for reading in METRICS.values():
    reading["comparable"] = True
METRICS["raw"] = METRICS["shift"] | {"comparable": False}


def made(values, *, groups=None, seed=0, bank=20, metrics=METRICS):
    """Results of these values: {(encoder, metric): values}, a value a sample; a string beside one is its note."""
    rows, longest = [], max(map(len, values.values()))
    for (encoder, metric), numbers in values.items():
        aim = metrics[metric]["aim"]
        for sample, value in enumerate(numbers):
            number, note = value if isinstance(value, tuple) else (value, "")
            attack = "-" if aim == "clean" else "pgd"
            rows.append((encoder, attack, aim, 0, metric, f"s{sample}", number, note))
    manifest = {
        "plan": {"encoders": {}, "attacks": {"pgd": {}}, "metrics": metrics, "divergence": "l2"},
        "metrics": metrics,
        "encoders": {encoder: {"fingerprint": encoder} for encoder, _ in values},
        "errors": [],
        "suites": {},
        "passes_a_sample": {},
        "diagnosis": [],
        "samples": {
            "sample": [f"s{row}" for row in range(longest)],
            "pair": [row // 2 for row in range(longest)],
            "group": groups,
            "part": None,
        },
        "seed": seed,
        "bank": bank,
        "quantile_bank": bank,
        "quantile_error": 0.0,
    }
    columns = ["encoder", "attack", "aim", "step", "metric", "sample", "value", "note"]
    notes = pd.DataFrame([("a", "pgd", "away", "s0", "stuck", 0.0)], columns=["encoder", "attack", "aim", "sample", "name", "value"])
    return Results(frame=pd.DataFrame(rows, columns=columns), notes=notes, manifest=manifest)


def summary_of(numbers, metric, **options):
    (row,) = made({("a", metric): numbers}, **options).summary().to_dict("records")
    return row


# The summary


def test_a_rate_is_the_share_of_ones_with_its_exact_interval():
    row = summary_of([1, 0, 0, 1, 0, 0, 0, 0, 0, 0], "risk")

    assert (row["estimate"], row["n"], row["statistic"], row["better"]) == (0.2, 10, "rate", "lower")
    assert row["low"] == pytest.approx(beta.ppf(0.025, 2, 9))
    assert row["high"] == pytest.approx(beta.ppf(0.975, 3, 8))


def test_a_mean_counts_each_row_once():
    row = summary_of([0, 0, 0, 0, 1], "share")
    assert row["estimate"] == 0.2
    assert 0 <= row["low"] < 0.2 < row["high"] <= 1
    nothing = summary_of([0.0] * 20, "share")
    assert (nothing["estimate"], nothing["low"]) == (0, 0)
    assert nothing["high"] > 0


def test_a_median_has_the_interval_of_order_statistics():
    numbers = np.random.default_rng(0).permutation(11)
    row = summary_of(numbers.tolist(), "shift")
    # Of 11 values the second and the tenth enclose the median with probability 0.9883, the third and the ninth with less than 0.95.
    assert binom.cdf(9, 11, 0.5) - binom.cdf(1, 11, 0.5) > 0.95 > binom.cdf(8, 11, 0.5) - binom.cdf(2, 11, 0.5)
    assert (row["estimate"], row["low"], row["high"]) == (5, 1, 9)


def test_intervals_stay_inside_the_span():
    row = summary_of([0.1, 0.2], "shift")
    assert row["low"] >= 0
    for metric in ("share", "risk"):
        row = summary_of([1.0, 1.0], metric)
        assert (row["estimate"], row["high"]) == (1, 1)
        assert row["low"] < 0.5


def test_undefined_rows_are_left_out_and_counted():
    row = summary_of([math.nan, 1, math.nan, 3, 2], "shift")
    assert (row["estimate"], row["n"], row["undefined"], row["abstained"]) == (2, 3, 2, 0)


def test_nothing_defined_is_no_number_and_no_error():
    results = made({("a", "shift"): [math.nan, math.nan]})
    row = results.summary().to_dict("records")[0]
    assert math.isnan(row["estimate"])
    assert (row["n"], row["undefined"]) == (0, 2)
    assert "undefined" in results.table().to_string()


@pytest.mark.parametrize("note", ["abstained", "no certificate"])
def test_a_certificate_that_was_not_given_is_the_worst_value_and_counted(note):
    row = summary_of([3.0, 1.0, (math.nan, note), (math.nan, note), 2.0], "radius")
    assert (row["estimate"], row["n"], row["undefined"], row["abstained"]) == (1.0, 5, 0, 2)  # of 0, 0, 1, 2, 3
    row = summary_of([3.0, 1.0, (math.nan, note), (math.nan, note), (math.nan, note)], "bound")
    assert (row["estimate"], row["n"], row["abstained"]) == (math.inf, 5, 3)


def test_undefined_and_not_given_are_told_apart():
    row = summary_of([3.0, math.nan, (math.nan, "abstained")], "radius")
    assert (row["n"], row["undefined"], row["abstained"]) == (2, 1, 1)
    assert row["estimate"] == 1.5


def test_both_sides_of_a_pair_are_one_observation():
    # Thirty pairs whose two sides agree: as good as thirty samples, not as sixty.
    numbers = np.repeat(np.random.default_rng(0).random(30), 2)
    paired = summary_of(numbers.tolist(), "relative")
    single = statistics.bootstrap_interval(numbers, "median", seed=0)
    grouped = statistics.bootstrap_interval(numbers, "median", seed=0, groups=np.arange(60) // 2)

    assert (paired["low"], paired["high"]) == (grouped.low, grouped.high)
    assert paired["high"] - paired["low"] > single.high - single.low


def test_groups_of_the_dataset_are_what_is_independent():
    numbers = np.repeat(np.random.default_rng(1).random(10), 6).tolist()
    groups = [str(row // 6) for row in range(60)]
    for metric in ("share", "shift", "relative"):
        alone, grouped = summary_of(numbers, metric), summary_of(numbers, metric, groups=groups)
        assert grouped["high"] - grouped["low"] > alone["high"] - alone["low"]
        assert grouped["estimate"] == alone["estimate"]


def test_a_pair_belongs_to_the_group_of_its_first_side():
    # Pairs (0, 1), (2, 3), …; under aim target both sides count with the first's group, under aim away each with its own.
    numbers = np.random.default_rng(2).random(80).tolist()
    groups = [str(row // 4 if row % 2 == 0 else row) for row in range(80)]
    for metric, owner in (("relative", np.arange(80) // 4), ("shift", np.array(groups))):
        row = summary_of(numbers, metric, groups=groups)
        expected = statistics.interval(np.array(numbers), statistic="median", groups=owner, seed=0)
        assert (row["low"], row["high"]) == (expected.low, expected.high)


def test_with_a_group_each_both_sides_of_a_pair_are_still_one_observation():
    numbers = np.repeat(np.random.default_rng(0).random(30), 2).tolist()
    alone, grouped = summary_of(numbers, "relative"), summary_of(numbers, "relative", groups=[str(row) for row in range(60)])
    assert (alone["low"], alone["high"]) == (grouped["low"], grouped["high"])


def test_a_level_may_be_asked_for():
    results = made({("a", "risk"): [1, 0, 0, 0, 0, 1]})
    wide, narrow = (results.summary(level=level).iloc[0] for level in (0.99, 0.8))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_parts_of_one_metric_are_read_alike():
    results = made({("a", "radius"): [1.0, 2.0, 3.0]})
    frame = results.frame.assign(metric="radius/low")
    assert Results(frame=frame, notes=results.notes, manifest=results.manifest).summary().iloc[0]["better"] == "higher"


def test_a_label_may_hold_a_slash():
    metrics = {"mine/radius": METRICS["radius"], "mine": METRICS["bound"], "mine/rad": METRICS["bound"]}
    results = made({("a", "mine/radius"): [1.0, 2.0, 3.0]}, metrics=metrics)
    for metric, better in (("mine/radius", "higher"), ("mine/radius/low", "higher"), ("mine/other", "lower"), ("mine", "lower")):
        parts = Results(frame=results.frame.assign(metric=metric), notes=results.notes, manifest=results.manifest)
        assert parts.summary().iloc[0]["better"] == better


# Comparing


def test_a_comparison_is_paired_and_says_whom_it_favours():
    first, second = np.linspace(0.2, 0.6, 12), np.linspace(0.3, 0.7, 12)
    results = made({("a", "share"): first.tolist(), ("b", "share"): second.tolist()})
    (row,) = results.compare("a", "b").to_dict("records")

    assert row["difference"] == pytest.approx(-0.1)
    assert (row["mean_first"], row["mean_second"]) == (pytest.approx(0.4), pytest.approx(0.5))
    assert row["better"] == "a"
    assert row["n"] == 12
    assert row["low"] <= row["difference"] <= row["high"]
    assert row["p"] == pytest.approx(2 / 2**12, abs=2e-3)  # every sample says the same
    (reverse,) = results.compare("b", "a").to_dict("records")
    assert (reverse["difference"], reverse["better"], reverse["p"]) == (pytest.approx(0.1), "a", pytest.approx(row["p"], abs=2e-3))


def test_an_encoder_compared_with_itself_shows_no_difference():
    numbers = np.random.default_rng(0).random(20).tolist()
    results = made({("a", "share"): numbers, ("b", "share"): numbers})
    (row,) = results.compare("a", "b").to_dict("records")
    assert (row["difference"], row["p"], row["p_corrected"], row["better"]) == (0, 1, 1, "-")


def test_higher_is_better_where_the_metric_says_so():
    results = made({("a", "accuracy"): [1] * 10, ("b", "accuracy"): [0] * 10})
    (row,) = results.compare("a", "b").to_dict("records")
    assert row["better"] == "a"
    assert row["p"] == pytest.approx(2 / 2**10)


def test_only_samples_that_both_have_are_compared():
    results = made({("a", "shift"): [1.0, 2.0, math.nan, 4.0], ("b", "shift"): [1.5, math.nan, 3.0, 4.5, 9.0]})
    (row,) = results.compare("a", "b").to_dict("records")
    assert row["n"] == 2
    assert row["difference"] == pytest.approx(-0.5)


def test_a_certificate_that_was_not_given_loses():
    abstained = (math.nan, "abstained")
    results = made({("a", "radius"): [0.5, 0.6, 0.7, 0.8, 0.9], ("b", "radius"): [abstained] * 5})
    (row,) = results.compare("a", "b").to_dict("records")
    assert (row["n"], row["better"], row["p"]) == (5, "-", pytest.approx(2 / 2**5))  # five samples cannot tell at 95 %
    assert row["difference"] == pytest.approx(0.7)
    (row,) = results.compare("a", "b", level=0.9).to_dict("records")
    assert row["better"] == "a"


def test_where_values_are_infinite_the_favoured_encoder_is_the_one_that_p_is_of():
    # On twenty samples a is infinitely better, on three a little worse; on two, both are infinite.
    first, second = [math.inf] * 20 + [1.0] * 3 + [math.inf] * 2, [1.0] * 20 + [1.5] * 3 + [math.inf] * 2
    results = made({("a", "radius"): first, ("b", "radius"): second})
    for names in ("ab", "ba"):
        (row,) = results.compare(*names).to_dict("records")
        assert row["p"] < 0.01
        assert row["better"] == "a"


def test_p_values_are_corrected_for_their_number():
    rng = np.random.default_rng(0)
    values = {(encoder, metric): rng.random(15).tolist() for encoder, metric in itertools.product("ab", ("share", "shift", "relative"))}
    table = made(values).compare("a", "b")
    assert len(table) == 3
    np.testing.assert_allclose(table["p_corrected"], statistics.holm(table["p"].to_numpy()))
    assert (table["p_corrected"] >= table["p"]).all()


def test_measures_on_an_encoder_s_own_scale_are_not_ranked():
    rng = np.random.default_rng(0)
    values = {(encoder, metric): rng.random(15).tolist() for encoder in "ab" for metric in ("share", "raw", "shift")}
    table = made(values).compare("a", "b").set_index("metric")

    assert table.loc["raw", "better"] == "not comparable"
    assert np.isnan(table.loc["raw", ["p", "p_corrected"]].astype(float)).all()
    np.testing.assert_allclose(table.loc[["share", "shift"], "p_corrected"], statistics.holm(table.loc[["share", "shift"], "p"].to_numpy()))
    assert "raw (own scale)" in made(values).table().to_string()


def test_two_encoders_without_a_common_defined_sample_have_nothing_to_compare():
    table = made({("a", "shift"): [1.0, math.nan], ("b", "shift"): [math.nan, 1.0]}).compare("a", "b")
    assert len(table) == 0
    assert {"difference", "p", "p_corrected", "n", "better"} <= set(table.columns)


def test_an_encoder_without_results_is_named():
    with pytest.raises(ValueError, match="no results of encoder 'c'; there are 'a', 'b'"):
        made({("a", "share"): [0.1], ("b", "share"): [0.2]}).compare("a", "c")


# The table


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, math.nan])
@pytest.mark.parametrize("reads", ["summary", "compare", "comparison", "certified_curve", "table", "caption", "curve"])
def test_every_reading_takes_levels_between_0_and_1_and_names_what_it_was_given(reads, level):
    results = made({("a", "share"): [0.1, 0.2, 0.4], ("b", "share"): [0.2, 0.2, 0.3]})
    results.manifest["plan"]["attacks"]["pgd"]["epsilon"] = 0.1
    given = {"compare": ("a", "b"), "comparison": ("a", "b"), "certified_curve": ("share", [0.1, 0.2]), "curve": ("pgd",)}.get(reads, ())
    with pytest.raises(ValueError, match=rf"^level is {level:g}; expected between 0 and 1: write 0.95, not 95$"):
        getattr(results, reads)(*given, level=level)


def test_the_table_says_for_how_many_there_is_no_certificate_where_that_decides():
    none, given = (math.nan, "no certificate"), (0.5, "")
    table = made(
        {("a", "bound"): [none, none, none, given], ("b", "bound"): [given, given, given, none], ("c", "bound"): [math.inf] * 4}
    ).table()
    assert table.loc[("-", "bound ↓"), "a"] == "no certificate for 3 of 4"
    assert table.loc[("-", "bound ↓"), "b"].startswith("0.500 [")
    assert table.loc[("-", "bound ↓"), "c"].startswith("inf [")  # which were measured


def test_the_table_has_a_row_for_each_measure_and_a_column_for_each_encoder():
    results = made(
        {
            ("b", "accuracy"): [1, 0, 1, 1],
            ("b", "share"): [0.1, 0.2, 0.3, 0.4],
            ("a", "accuracy"): [1, 1, 1, 1],
            ("a", "share"): [0.1, 0.1, 0.1, 0.1],
        }
    )
    table = results.table()
    assert list(table.columns) == ["b", "a"]
    assert list(table.index) == [("-", "accuracy ↑"), ("pgd", "share ↓")]
    assert table.loc[("-", "accuracy ↑"), "b"].startswith("0.750 [0.194, 0.994")


def test_of_several_marks_the_table_shows_the_last():
    results = made({("a", "shift"): [1.0, 1.0, 1.0]})
    earlier = results.frame.assign(step=5, value=7.0)
    frame = pd.concat([earlier, results.frame.assign(step=10)])
    table = Results(frame=frame, notes=results.notes, manifest=results.manifest).table()
    assert table.iloc[0, 0].startswith("1.000")
    assert len(Results(frame=frame, notes=results.notes, manifest=results.manifest).summary()) == 2


# Files


def real(**changed):
    parts = {
        "encoders": {"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)},
        "dataset": tensors(
            tiny_inputs(20), labels=[row % 2 for row in range(20)], ids=[f"{row:03d}" for row in range(18)] + ["NA", 'x,"y"']
        ),
        "attacks": {"pgd": UPGD(epsilon=0.1, steps=2, marks=(1, 2)), "noise": UniformNoise(epsilon=0.1)},
        "metrics": ["divergence", "breakaway_risk", "relative_quantile", "overlap_risk", use("knn_accuracy", k=3)],
        "attacked": 20,
    }
    return run(Evaluation(**parts | changed), progress=False)


def assert_equal(first, second):
    pd.testing.assert_frame_equal(first.frame, second.frame, check_exact=True)
    pd.testing.assert_frame_equal(first.notes, second.notes, check_exact=True)
    assert first.manifest == second.manifest


def test_what_is_saved_is_what_is_loaded(tmp_path):
    results = real()
    results.save(tmp_path / "new" / "folder")
    loaded = Results.load(tmp_path / "new" / "folder")

    assert_equal(results, loaded)
    assert {"NA", "007", 'x,"y"'} <= set(loaded.frame["sample"])
    pd.testing.assert_frame_equal(results.summary(), loaded.summary())
    pd.testing.assert_frame_equal(results.compare("a", "b"), loaded.compare("a", "b"))
    assert results.summary()["n"].min() > 0


def test_values_survive_to_the_last_bit_and_undefined_and_infinite_ones_too(tmp_path):
    numbers = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, math.nan, math.inf, (math.nan, "abstained")]
    results = made({("a", "bound"): numbers})
    results.save(tmp_path)
    assert_equal(results, Results.load(tmp_path))


def test_saving_twice_writes_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        made({("a", "share"): [0.1, 0.2]}).save(tmp_path / name)
    for file in ("frame.csv.gz", "notes.csv.gz", "manifest.json", "gallery.npz"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    assert gzip.decompress((tmp_path / "first" / "frame.csv.gz").read_bytes()).startswith(
        b'"encoder","attack","aim","step","metric","sample","value","note"\n'
    )
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == [
        "frame.csv.gz",
        "gallery.npz",
        "manifest.json",
        "notes.csv.gz",
    ]


def test_results_of_several_folders_are_merged_by_sample(tmp_path):
    whole = real()
    for name, seed in (("a", 1), ("b", 2)):
        real(encoders={name: tiny_encoder(seed=seed)}).save(tmp_path / name)
    merged = Results.load(tmp_path / "a", tmp_path / "b", tmp_path / "a")

    keys = ["encoder", "attack", "aim", "step", "metric", "sample"]
    one, other = (results.frame.sort_values(keys, ignore_index=True) for results in (whole, merged))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    pd.testing.assert_frame_equal(whole.compare("a", "b"), merged.compare("a", "b"))
    assert set(merged.manifest["encoders"]) == {"a", "b"}
    assert len(merged.notes) == len(whole.notes)


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"seed": 1}, "differ in samples|differ in seed"), ({"attacked": 10}, "differ in samples"), ({"bank": 30}, "differ in bank")],
)
def test_results_that_cannot_stand_together_are_refused(tmp_path, changed, words):
    dataset = {"dataset": tiny_inputs(40), "metrics": ["divergence"], "attacked": 20, "bank": 40}
    real(**dataset).save(tmp_path / "a")
    real(**dataset | changed).save(tmp_path / "b")
    with pytest.raises(StoreError, match=words):
        Results.load(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantile_bank": 10}, "differ in quantile_bank"),
        ({"divergence": "l1"}, "differ in divergence"),
        ({"encoders": {"a": tiny_encoder(seed=3)}}, "differ in what encoder 'a' is"),
        ({"attacks": {"noise": UniformNoise(epsilon=0.2)}}, "differ in what attack 'noise' is"),
        ({"metrics": ["divergence", use("knn_accuracy", k=5)]}, "differ in what metric 'knn_accuracy' is"),
    ],
)
def test_folders_of_which_a_label_says_two_things_are_refused(tmp_path, changed, words):
    parts = {"attacks": {"noise": UniformNoise(epsilon=0.1)}, "metrics": ["divergence", use("knn_accuracy", k=3)]}
    real(encoders={"other": tiny_encoder(seed=4)}, attacks={"pgd": UPGD(epsilon=0.1, steps=2)}, metrics=["overlap_risk"]).save(
        tmp_path / "a"
    )
    for name, more in (("b", {}), ("c", changed)):
        real(**parts | more).save(tmp_path / name)
    Results.load(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreError, match=f"{tmp_path / 'b'} and {tmp_path / 'c'} {words}"):
        Results.load(tmp_path / "b", tmp_path / "c")
    if "what" in words:  # the first of three knows nothing of the label
        with pytest.raises(StoreError, match=f"{tmp_path / 'b'} and {tmp_path / 'c'} {words}"):
            Results.load(tmp_path / "a", tmp_path / "b", tmp_path / "c")


def test_the_attacks_of_every_folder_stand_in_the_caption(tmp_path):
    for name, attack in (("mild", UniformNoise(epsilon=0.1)), ("strong", UniformNoise(epsilon=0.2))):
        real(attacks={name: attack}).save(tmp_path / name)
    merged = Results.load(tmp_path / "mild", tmp_path / "strong")
    assert "attacks mild, strong;" in repr(merged)
    assert ["mild: epsilon=0.1" in merged.caption(), "strong: epsilon=0.2" in merged.caption()] == [True, True]


def test_a_caption_says_once_what_all_attacks_share():
    lines = real(attacks={"short": UPGD(epsilon=0.1, steps=2), "long": UPGD(epsilon=0.1, steps=3)}).caption().splitlines()
    assert [line for line in lines if "epsilon=0.1" in line] == [line for line in lines if line.startswith("  all attacks: ")]
    assert lines[-2:] == ["  short: steps=2", "  long: steps=3"]
    masked = real(attacks={"part": UPGD(epsilon=0.1, mask=torch.ones(8, 8, dtype=torch.bool))}).caption()
    assert "mask=tensor [8, 8]" in masked
    alone = real(attacks={"short": UPGD(epsilon=0.1, steps=2)}).caption()
    assert "all attacks" not in alone
    assert "short: " in alone
    assert "epsilon=0.1" in alone


def test_what_is_added_to_a_folder_takes_the_place_of_its_own_label_alone(tmp_path):
    metrics = {"mine/radius": METRICS["radius"], "mine": METRICS["bound"]}
    made({("a", "mine/radius"): [1.0, 2.0], ("a", "mine"): [3.0, 4.0]}, metrics=metrics).save(tmp_path)
    later = made({("a", "mine/radius"): [5.0, 6.0]}, metrics={"mine/radius": METRICS["radius"] | {"comparable": False}})
    later = Results(frame=later.frame.assign(metric="mine/radius/low"), notes=later.notes, manifest=later.manifest)
    with pytest.warns(RobustnessWarning, match="metric 'mine/radius' is another"):
        both = later.added_to(tmp_path)
    assert dict(zip(both.frame["metric"], both.frame["value"], strict=True)) == {"mine": 4.0, "mine/radius/low": 6.0}


def test_what_is_added_to_a_folder_keeps_the_notes_and_errors_of_another_aim(tmp_path):
    earlier = made({("a", "share"): [0.1, 0.2], ("a", "relative"): [1.0, 2.0]})
    where = {"encoder": "a", "attack": "pgd", "samples": "s0 to s1", "error": "wrong"}
    earlier.manifest["errors"] = [where | {"aim": aim} for aim in ("away", "target")]
    notes = pd.concat([earlier.notes, earlier.notes.assign(aim="target", value=1.0)])
    Results(frame=earlier.frame, notes=notes, manifest=earlier.manifest).save(tmp_path)
    both = made({("a", "share"): [0.3, 0.4]}, metrics={"share": METRICS["share"]}).added_to(tmp_path)

    assert [error["aim"] for error in both.manifest["errors"]] == ["target"]
    assert both.notes[["aim", "value"]].to_numpy().tolist() == [["target", 1.0], ["away", 0.0]]


def test_to_load_nothing_is_refused():
    with pytest.raises(
        StoreError, match=r"no folder is given; expected one or more to which results were saved; write Results.load\('store'\)"
    ):
        Results.load()


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "\n", "\0", "\t", " x ", "", "NA", '"', "a,b", "\\"])
def test_every_text_of_a_frame_is_saved_as_it_is(tmp_path, text):
    results = made({("a", "share"): [0.1, 0.2]})
    frame = results.frame.assign(sample=[text, "other"], encoder=text, attack=text, note=["", "abstained"])
    results = Results(frame=frame, notes=results.notes.assign(attack=text, sample=text, name=text), manifest=results.manifest)
    results.save(tmp_path)
    loaded = Results.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.frame, results.frame)
    pd.testing.assert_frame_equal(loaded.notes, results.notes)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no finished results; run the plan with store="):
        Results.load(tmp_path)


def test_the_manifest_is_plain_json(tmp_path):
    results = real()
    assert json.loads(json.dumps(results.manifest, allow_nan=False)) == results.manifest


# A small bank


def small(shift=0.0, seed=0, **manifest):
    """Results whose ranks were taken in a small bank: with the values without each of five parts of it."""
    random = np.random.default_rng(seed)
    values, errors = random.uniform(0.2, 0.6, 40), random.normal(0, 0.05, 5)
    results = made({("a", "share"): values.tolist(), ("b", "share"): (values + shift).tolist(), ("a", "shift"): values.tolist()})
    wide = results.frame.copy()
    for part in range(5):
        ranks = wide["metric"] == "share"
        wide[f"without_{part}"] = np.where(ranks, wide["value"] + np.where(wide["encoder"] == "a", errors[part], 0), np.nan)
    samples = results.manifest["samples"] | {"part": [row % 5 for row in range(40)]}
    return Results(frame=wide, notes=results.notes, manifest={**results.manifest, "samples": samples} | manifest), errors


def test_the_interval_of_ranks_in_a_small_bank_holds_the_banks_error():
    results, errors = small()
    plain = made({("a", "share"): results.frame["value"][:40].tolist()}).summary().iloc[0]
    row, other = (results.summary().set_index(["encoder", "metric"]).loc[key] for key in (("a", "share"), ("b", "share")))
    error = math.sqrt(4 / 5 * ((errors - errors.mean()) ** 2).sum())
    expected = math.hypot(plain["high"] - plain["estimate"], stats_t.isf(0.025, 4) * error)
    assert row["high"] - row["estimate"] >= expected * (1 - 1e-9)
    assert row["low"] < plain["low"] < plain["high"] < row["high"]
    assert (row["estimate"], row["n"]) == (plain["estimate"], 40)
    assert other["high"] - other["low"] < row["high"] - row["low"]  # whose values do not depend on the bank
    shift = results.summary().set_index("metric").loc["shift"]
    assert (shift["low"], shift["high"]) == tuple(
        made({("a", "shift"): results.frame["value"][:40].tolist()}).summary().iloc[0][["low", "high"]]
    )


def test_a_difference_in_a_small_bank_is_told_only_if_the_bank_tells_it():
    results, _ = small(shift=0.02)
    row = results.compare("a", "b").iloc[0]
    sure = made({(encoder, "share"): results.frame["value"][start : start + 40].tolist() for encoder, start in (("a", 0), ("b", 40))})
    told = sure.compare("a", "b").iloc[0]
    assert told["p"] < 1e-4 < 0.05 < row["p"]
    assert row["low"] < told["low"]
    assert row["high"] > told["high"]
    assert (told["better"], row["better"]) == ("a", "-")
    assert results.compare("a", "a").iloc[0]["p"] == 1


def test_what_a_small_bank_says_is_saved_and_merged(tmp_path):
    results, _ = small()
    assert list(results.frame.columns) == list(Results.COLUMNS)
    results.save(tmp_path)
    pd.testing.assert_frame_equal(Results.load(tmp_path).summary(), results.summary(), check_exact=True)
    again = results.added_to(tmp_path)
    pd.testing.assert_frame_equal(again.summary(), results.summary(), check_exact=True)


# Curves


def test_a_grid_of_a_parameter_is_a_curve():
    attacks = {f"pgd[epsilon={epsilon:g}]": UPGD(epsilon=epsilon, steps=2) for epsilon in (0.2, 0.05, 0.1)} | {
        "noise": UniformNoise(epsilon=0.1)
    }
    plan = Evaluation([tiny_encoder()], tiny_inputs(20), attacks, ["divergence", "breakaway_risk"], attacked=20, bank=20)
    results = run(plan, progress=False)
    curve = results.curve("pgd")
    points = curve[curve["metric"] == "divergence"]
    assert points["epsilon"].tolist() == [0.05, 0.1, 0.2]
    assert points["estimate"].is_monotonic_increasing
    assert points["estimate"].tolist() == [
        results.summary().set_index(["attack", "metric"]).loc[(f"pgd[epsilon={epsilon:g}]", "divergence"), "estimate"]
        for epsilon in (0.05, 0.1, 0.2)
    ]
    assert len(results.curve("noise")) == 2
    with pytest.raises(ValueError, match="no attack 'fgsm' with a epsilon; those that have one: 'pgd"):
        results.curve("fgsm")
    with pytest.raises(ValueError, match="no attack 'pgd' with a eta2; those that have one: none"):
        results.curve("pgd", "eta2")


def test_where_the_banks_error_is_not_known_nothing_is_told():
    results, _ = small(shift=0.3)
    wide = results._rows.copy()
    wide.loc[wide["metric"] == "share", "without_3"] = np.where(wide.loc[wide["metric"] == "share", "encoder"] == "a", np.inf, 0)
    row = Results(frame=wide, notes=results.notes, manifest=results.manifest).compare("a", "b").iloc[0]
    assert (row["low"], row["high"], row["p"], row["better"]) == (-1, 1, 1, "-")


def test_a_worst_case_counts_a_certificate_that_was_not_given_as_the_worst():
    results = made({("a", "radius"): [1.0, 2.0, (math.nan, "abstained"), math.nan]})
    frame = pd.concat([results.frame.assign(attack="s/one"), results.frame.assign(attack="s/two", value=[0.5, 3.0, 0.1, 0.2], note="")])
    worst = Results(frame=frame, notes=results.notes, manifest={**results.manifest, "suites": {"s": ["s/one", "s/two"]}}).worst("s")
    assert worst.frame["value"].iloc[[0, 1, 3]].tolist() == [0.5, 2.0, 0.2]
    assert worst.frame["note"].tolist() == ["", "", "abstained", ""]
    assert worst.summary().iloc[0]["abstained"] == 1


def test_an_attack_without_a_gradient_makes_no_winner_and_is_told_beside_the_table():
    values = np.linspace(0.1, 0.3, 30)
    results = made({("a", "share"): values.tolist(), ("b", "share"): (values + 0.5).tolist()})
    notes = pd.DataFrame(
        [("a", "pgd", "away", f"s{row}", "stuck", float(row < 6)) for row in range(30)], columns=list(Results.NOTE_COLUMNS)
    )
    masked = Results(frame=results.frame, notes=notes, manifest=results.manifest)
    assert results.compare("a", "b").iloc[0]["better"] == "a"
    assert masked.compare("a", "b").iloc[0]["better"] == "no gradient"
    assert list(masked.unbelievable("a")) == ["pgd"]
    assert masked.unbelievable("b") == {}
    assert "pgd found no gradient, or none that is finite, for 20% of the samples on a" in masked.unbelievable("a")["pgd"]

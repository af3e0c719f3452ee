"""Intervals cover what they promise, comparisons reject as often as they promise, and both give known numbers where these are known."""

import itertools
import json
import math
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from scipy.stats import t as student

from rt_core import statistics
from rt_core.errors import RobustnessWarning
from rt_core.statistics import (
    bootstrap_interval,
    bounded_mean_interval,
    holm,
    interval,
    median_interval,
    paired_comparison,
    proportion_interval,
    samples_needed,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "golden.json"
LEAST_COVERAGE = 0.93  # seen, of a nominal 0.95

shares = st.lists(st.floats(0, 1), min_size=1, max_size=30)
reals = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)
seeds = st.integers(0, 2**31)
unhurried = settings(deadline=None, max_examples=60)


def coverage(make, truth, *, runs):
    """Share of intervals that hold the truth; ``make`` is called with the number of the run."""
    found = [make(run) for run in range(runs)]
    return sum(one.low <= truth <= one.high for one in found) / runs


def clusters(random, *, groups, equal):
    """Group labels in random order, five values a group or one to ten."""
    sizes = np.full(groups, 5) if equal else random.integers(1, 11, groups)
    return random.permutation(np.repeat(np.arange(groups), sizes))


# proportions


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["clopper_pearson"], ids=lambda case: f"{case['nA']}-of-{case['N']}")
def test_proportions_have_the_bounds_of_randomized_smoothing(case):
    successes, n, level = case["nA"], case["N"], 1 - 2 * case["alpha"]  # a one-sided bound at alpha is a two-sided one at 2 alpha
    assert proportion_interval(successes, n, level=level).low == pytest.approx(case["p_lower"], rel=1e-12)
    assert proportion_interval(n - successes, n, level=level).high == pytest.approx(1 - case["p_lower"], rel=1e-9)


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_no_success_leaves_the_rule_of_three(n):
    found = proportion_interval(0, n)
    assert (found.estimate, found.low) == (0, 0)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / n), rel=1e-9)
    assert proportion_interval(0, 1000, level=0.9).high == pytest.approx(3 / 1000, rel=1e-2)


@pytest.mark.parametrize("n", [5, 20, 100])
def test_proportions_are_covered_at_every_rate(n):
    every = [proportion_interval(successes, n) for successes in range(n + 1)]
    low, high = np.array([one.low for one in every]), np.array([one.high for one in every])
    for rate in np.linspace(0.005, 0.995, 100):
        assert binom.pmf(np.arange(n + 1), n, rate)[(low <= rate) & (rate <= high)].sum() >= 0.95


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5), (2.5, 5), (math.nan, 5)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match=rf"is {successes if n else n}"):
        proportion_interval(successes, n)


# bounded means


def test_zeros_are_never_certain():
    for n in (1, 10, 1000):
        found = bounded_mean_interval(np.zeros(n))
        assert found.low == 0
        assert found.high > 3 / (n + 3)
    assert found.high < 6 / 1000


def test_the_ends_are_where_a_player_would_have_become_rich_enough():
    random = np.random.default_rng(0)
    values = random.beta(2, 5, 200)
    found = bounded_mean_interval(values, seed=4)

    bets, spread, total = [], 0.25, 0.5  # the definition, value by value
    ordered = values[np.random.default_rng(4).permutation(200)]
    for t, value in enumerate(ordered, start=1):
        bets.append(math.sqrt(2 * math.log(2 / 0.05) / (200 * (spread / t))))
        total += value
        spread += (value - total / (t + 1)) ** 2

    def richest(mean):
        up = np.cumprod([1 + min(bet, 0.75 / mean) * (value - mean) for bet, value in zip(bets, ordered, strict=True)])
        down = np.cumprod([1 - min(bet, 0.75 / (1 - mean)) * (value - mean) for bet, value in zip(bets, ordered, strict=True)])
        return max(up.max(), down.max()) / 2

    for end, inward in ((found.low, 1e-6), (found.high, -1e-6)):
        assert richest(end - inward) > 1 / 0.05 > richest(end + inward)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda random: (random.random(200) < 0.01) * 0.3 * random.random(200), 0.0015),  # as breakaway: nearly all zero
        (lambda random: random.random(30), 0.5),
        (lambda random: (random.random(50) < 0.5) * 1.0, 0.5),
    ],
    ids=["sparse", "uniform", "coin"],
)
def test_bounded_means_are_covered(draw, mean):
    random = np.random.default_rng(1)
    assert coverage(lambda run: bounded_mean_interval(draw(random), seed=run), mean, runs=400) >= LEAST_COVERAGE


def test_a_span_only_scales():
    values = np.random.default_rng(2).random(50)
    unit, scaled = bounded_mean_interval(values), bounded_mean_interval(values * 6 - 2, span=(-2, 4))
    assert [scaled.estimate, scaled.low, scaled.high] == pytest.approx(
        [unit.estimate * 6 - 2, unit.low * 6 - 2, unit.high * 6 - 2], abs=1e-7
    )


def test_ten_thousand_values_are_quick():
    values = np.random.default_rng(3).random(10_000)
    started = time.perf_counter()
    bounded_mean_interval(values)
    assert time.perf_counter() - started < 0.5


def test_values_outside_the_span_are_named():
    with pytest.raises(ValueError, match=r"a value is 1\.25; expected all inside the span \[0\.0, 1\.0\]"):
        bounded_mean_interval([0.5, 1.25])
    with pytest.raises(ValueError, match="the lower first"):
        bounded_mean_interval([0.5], span=(1, 0))


@given(values=shares, seed=seeds)
@unhurried
def test_a_bounded_interval_holds_the_mean_and_stays_in_the_span(values, seed):
    found = bounded_mean_interval(values, seed=seed)
    assert 0 <= found.low <= found.estimate <= found.high <= 1
    assert found.low < found.high
    wider = bounded_mean_interval(values, seed=seed, level=0.999)
    assert wider.high - wider.low >= found.high - found.low - 1e-8


# medians


def test_medians_lie_between_the_textbook_order_statistics():
    found = median_interval(np.arange(1, 21)[::-1])
    assert (found.estimate, found.low, found.high, found.n) == (10.5, 6, 15, 20)


@pytest.mark.parametrize("n", [1, 5])
def test_few_values_say_nothing_of_a_median(n):
    found = median_interval(np.arange(n))
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert "too few" in found.method
    assert math.isfinite(median_interval(np.arange(6)).low)


def test_infinite_values_have_a_median():
    assert median_interval([1, 2, math.inf]).estimate == 2
    assert median_interval([-math.inf] * 3 + [0] * 9 + [math.inf] * 9).high == math.inf
    assert math.isnan(median_interval([-math.inf, math.inf]).estimate)


@pytest.mark.parametrize("n", [7, 30])
def test_skewed_medians_are_covered(n):
    random = np.random.default_rng(4)
    assert coverage(lambda run: median_interval(random.lognormal(size=n)), 1, runs=1000) >= LEAST_COVERAGE


@given(values=reals)
@unhurried
def test_a_median_interval_holds_it_and_does_not_care_about_order(values):
    found = median_interval(values)
    assert found.low <= found.estimate <= found.high
    assert median_interval(sorted(values)) == found
    wider = median_interval(values, level=0.999)
    assert wider.low <= found.low
    assert found.high <= wider.high


# bootstrap


@pytest.mark.parametrize(
    ("draw", "mean", "n"),
    [
        (lambda random, n: random.normal(size=n), 0, 8),
        (lambda random, n: random.exponential(size=n), 1, 25),
    ],
    ids=["normal", "exponential"],
)
def test_means_without_a_span_are_covered(draw, mean, n):
    random = np.random.default_rng(5)
    seen = coverage(lambda run: bootstrap_interval(draw(random, n), seed=run, resamples=999), mean, runs=600)
    assert seen >= LEAST_COVERAGE


@pytest.mark.parametrize("equal", [True, False])
def test_grouped_means_and_medians_are_covered(equal):
    random = np.random.default_rng(6)

    def draw(run, statistic):
        groups = clusters(random, groups=25, equal=equal)
        values = random.normal(size=25)[groups] + random.normal(size=len(groups))
        return bootstrap_interval(values if statistic == "mean" else np.exp(values), statistic, groups=groups, seed=run, resamples=999)

    assert coverage(lambda run: draw(run, "mean"), 0, runs=400) >= LEAST_COVERAGE
    assert coverage(lambda run: draw(run, "median"), 1, runs=400) >= LEAST_COVERAGE


def test_groups_make_intervals_honest():
    groups = np.repeat(np.arange(30), 10)
    values = np.random.default_rng(7).normal(size=30)[groups]
    alone, together = bootstrap_interval(values), bootstrap_interval(values, groups=groups)
    ratio = (together.high - together.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(math.sqrt(10), rel=0.2)  # thirty observations, not three hundred


def test_a_function_is_resampled_like_a_name():
    values = np.random.default_rng(8).normal(size=25)
    named, called = (bootstrap_interval(values, statistic, resamples=999) for statistic in ("median", np.median))
    assert (named.estimate, named.low, named.high) == (called.estimate, called.low, called.high)  # an odd number has one middle
    groups = np.repeat(np.arange(25), 2)
    sums = bootstrap_interval(np.ones(50), np.sum, groups=groups, resamples=99)
    assert (sums.low, sums.estimate, sums.high) == (50, 50, 50)


def test_few_groups_warn():
    with pytest.warns(RobustnessWarning, match="2 groups are resampled"):
        found = bootstrap_interval(np.arange(6), groups=[0, 0, 0, 1, 1, 1])
    assert found.low < found.estimate < found.high
    with pytest.warns(RobustnessWarning):
        assert bootstrap_interval([1, 2], groups=[0, 0]).high == math.inf
    with pytest.warns(RobustnessWarning):
        assert bootstrap_interval([1, 2, 3], "median", groups=[0, 0, 1]).low == -math.inf


def test_a_resample_without_spread_is_no_infinity():
    values = np.zeros(100)
    values[0] = 1
    found = bootstrap_interval(values)
    assert 0.03 < found.high < 0.3


def test_infinite_values_have_no_mean():
    with pytest.raises(ValueError, match="a value is inf; a mean of infinite values has no interval: ask for the median"):
        bootstrap_interval([1, math.inf])


@given(values=reals, seed=seeds)
@settings(deadline=None, max_examples=30)
def test_a_bootstrap_interval_holds_its_estimate_and_widens_with_the_level(values, seed):
    for statistic in ("mean", "median"):
        found, wider = (bootstrap_interval(values, statistic, seed=seed, resamples=199, level=level) for level in (0.9, 0.98))
        assert wider.low <= found.low <= found.estimate <= found.high <= wider.high


# the dispatch


@pytest.mark.parametrize(
    ("statistic", "span", "method"),
    [
        ("rate", None, "Clopper-Pearson"),
        ("mean", (0, 1), "betting"),
        ("mean", None, "bootstrap-t"),
        ("mean", (0, math.inf), "bootstrap-t"),
        ("median", (0, 1), "order statistics"),
    ],
)
def test_every_statistic_has_its_interval(statistic, span, method):
    values = [0, 1, 1, 0, 1, 1, 1]
    assert interval(values, statistic=statistic, span=span).method == method
    assert interval(values, statistic=statistic, span=span, groups=list("abcdefg")).method == method  # groups of one are none


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("statistic", ["rate", "mean"])
def test_grouped_rates_and_bounded_means_are_covered(equal, statistic):
    random = np.random.default_rng(9)

    def draw(run):
        groups = clusters(random, groups=20, equal=equal)
        values = random.beta(0.5, 4.5, 20)[groups]
        if statistic == "rate":
            values = (random.random(len(groups)) < values) * 1.0
        return interval(values, statistic=statistic, span=(0, 1), groups=groups, seed=run)

    assert coverage(draw, 0.1, runs=300) >= LEAST_COVERAGE


def test_equal_groups_are_their_means():
    values = np.random.default_rng(10).random(60)
    grouped = interval(values, statistic="mean", span=(0, 1), groups=np.repeat(np.arange(20), 3))
    means = bounded_mean_interval(values.reshape(20, 3).mean(axis=1))
    assert [grouped.estimate, grouped.low, grouped.high] == pytest.approx([means.estimate, means.low, means.high], abs=1e-8)
    assert (grouped.n, grouped.method) == (60, "betting over 20 groups")


def test_unequal_groups_without_a_success_are_no_point():
    groups = np.repeat(np.arange(30), np.arange(30) % 3 + 1)
    found = interval(np.zeros(60), statistic="rate", groups=groups)
    assert found.low == found.estimate == 0
    assert proportion_interval(0, 60).high < found.high < 0.5


@pytest.mark.parametrize("statistic", ["rate", "mean", "median"])
def test_nothing_has_an_interval_of_nothing(statistic):
    found = interval([], statistic=statistic)
    assert found.n == 0
    assert all(map(math.isnan, (found.estimate, found.low, found.high)))


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ([0.0, math.nan], {"statistic": "mean"}, "a value is nan; drop undefined rows"),
        ([0.5, 1], {"statistic": "rate"}, "a value is 0.5; a rate counts"),
        ([0, 2], {"statistic": "mean", "span": (0, 1)}, "a value is 2; expected all inside the span"),
        ([0, 1], {"statistic": "mode"}, "statistic is 'mode'; expected one of rate, mean, median"),
        ([0, 1], {"statistic": "mean", "level": 95}, "level is 95; .*write 0.95, not 95"),
        ([0, 1], {"statistic": "mean", "groups": [1]}, r"groups have shape \[1\]; expected \[2\]"),
        ([[0, 1]], {"statistic": "mean"}, r"values have shape \[1, 2\]"),
    ],
)
def test_what_cannot_be_is_said(values, given, message):
    with pytest.raises(ValueError, match=message):
        interval(values, **given)


@given(values=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=30), seed=seeds)
@unhurried
def test_every_interval_holds_its_estimate(values, seed):
    groups = np.arange(len(values)) // 3
    for given_groups, span in itertools.product((None, groups), (None, (0, 1))):
        for statistic in ("rate", "mean", "median"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RobustnessWarning)
                found = interval(values, statistic=statistic, span=span, groups=given_groups, seed=seed)
            assert found.low <= found.estimate <= found.high
            assert found.n == len(values)


# paired comparisons


def test_few_pairs_are_enumerated():
    differences = np.array([0.3, -0.1, 0.25, 0.4, -0.05, 0.2, 0.15, 0.1])
    totals = np.array([np.dot(signs, differences) for signs in itertools.product([1, -1], repeat=8)])
    expected = (np.abs(totals) >= differences.sum() - 1e-9).mean()
    second = np.full(8, 0.4)
    found = paired_comparison(second + differences, second, span=(0, 1))
    assert found.p == expected
    assert found.difference == pytest.approx(differences.mean())
    assert found.low < found.difference < found.high


def test_random_flips_agree_with_all_flips():
    differences = np.random.default_rng(11).normal(0.3, 1, 16)
    exact = paired_comparison(differences, np.zeros(16))
    assert "all flips" in exact.method
    again = paired_comparison(np.append(differences, 1e-9), np.zeros(17))  # one more sum that hardly counts: drawn, not enumerated
    assert "99,999 flips" in again.method
    assert again.p == pytest.approx(exact.p, abs=5 * math.sqrt(exact.p / 99_999))


@pytest.mark.parametrize(("above", "below", "ties"), [(12, 3, 40), (5, 5, 0), (0, 4, 6), (1, 0, 9)])
def test_ungrouped_rates_have_mcnemars_p(above, below, ties):
    first = [1] * above + [0] * below + [1] * ties
    second = [0] * above + [1] * below + [1] * ties
    found = paired_comparison(first, second, statistic="rate")
    assert found.p == pytest.approx(binomtest(above, above + below).pvalue)
    assert found.difference == pytest.approx((above - below) / len(first))
    assert found.method == "McNemar, betting"


@pytest.mark.parametrize("statistic", ["rate", "mean", "median"])
@pytest.mark.parametrize("span", [None, (0, 1)])
@pytest.mark.parametrize("groups", [None, np.arange(40) // 2])
def test_an_encoder_does_not_differ_from_itself(statistic, span, groups):
    values = (np.random.default_rng(12).random(40) < 0.3) * 1.0
    found = paired_comparison(values, values, statistic=statistic, span=span, groups=groups)
    assert (found.p, found.difference, found.n) == (1, 0, 40)
    endless = np.where(values > 0, math.inf, values)
    if statistic != "rate" and span is None:
        assert paired_comparison(endless, endless, groups=groups).p == 1
        assert paired_comparison(endless, endless, groups=groups).difference == 0


@pytest.mark.parametrize(
    ("draw", "given"),
    [
        (lambda random: random.exponential(size=(2, 12)), {}),
        (lambda random: random.exponential(size=(2, 40)), {"span": (0, 100)}),
        (lambda random: (random.normal(size=(2, 20, 1)) + random.normal(size=(2, 20, 4))).reshape(2, 80), {"groups": np.arange(80) // 4}),
        (lambda random: (random.random((2, 60)) < 0.3) * 1.0, {"statistic": "rate"}),
        (lambda random: np.where(random.random((2, 40)) < 0.2, math.inf, random.normal(size=(2, 40))), {}),
    ],
    ids=["enumerated", "drawn", "grouped", "mcnemar", "infinite"],
)
def test_a_true_null_hypothesis_is_rejected_as_often_as_promised(draw, given, monkeypatch):
    monkeypatch.setattr(statistics, "bootstrap_interval", lambda *_, **__: statistics.Interval(0, 0, 0, 0, ""))  # p alone is asked
    random, runs = np.random.default_rng(13), 800
    p = np.array([paired_comparison(*draw(random), **{"flips": 499, "seed": run} | given).p for run in range(runs)])
    assert (p <= 0.05).sum() <= binom.ppf(0.999, runs, 0.05)
    if "statistic" not in given and given:  # discrete tests reject more seldom
        assert (p <= 0.05).sum() >= binom.ppf(0.001, runs, 0.05)
        assert np.quantile(p, 0.5) == pytest.approx(0.5, abs=0.06)


def test_groups_are_flipped_whole():
    groups = np.repeat(np.arange(5), 20)
    differences = np.random.default_rng(14).normal(1, 0.1, 5)[groups]
    with pytest.warns(RobustnessWarning):
        assert paired_comparison(differences, np.zeros(100), groups=groups).p == 2 / 2**5
    assert paired_comparison(differences, np.zeros(100)).p == 1 / 100_000


def test_infinite_values_leave_signs_and_a_median():
    first = np.array([1, 2, 3, 4, 5, 6, math.inf, math.inf, math.inf])
    second = np.array([0, 0, 0, 0, 0, 9, 1, math.inf, 2])
    found = paired_comparison(first, second)
    assert found.p == pytest.approx(binomtest(7, 8).pvalue)  # both infinite: a tie
    assert found.difference == 2  # the middle of -3, 1, 2, 3, 4, 5 and the tie's 0
    assert found.low <= found.difference <= found.high == math.inf
    assert (found.n, found.method) == (9, "sign test, order statistics")


def test_differences_of_bounded_values_are_covered():
    random = np.random.default_rng(15)

    def draw(run):
        base = random.random(40) * 0.8
        return paired_comparison(base + 0.2 * random.random(40), base, span=(0, 1), seed=run, flips=9)

    assert coverage(draw, 0.1, runs=200) >= LEAST_COVERAGE


def test_a_thousand_pairs_are_quick():
    first, second = np.random.default_rng(16).random((2, 1000))
    started = time.perf_counter()
    paired_comparison(first, second, span=(0, 1))
    assert time.perf_counter() - started < 1


def test_pairs_must_match():
    with pytest.raises(ValueError, match=r"first has shape \[2\], second \[3\]"):
        paired_comparison([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="a value is 2; expected all inside"):
        paired_comparison([1, 2], [1, 1], span=(0, 1))
    assert math.isnan(paired_comparison([], []).p)


@given(values=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=14))
@unhurried
def test_to_swap_the_two_turns_the_difference_and_keeps_p(values):
    first, second = np.array(values).T
    there, back = paired_comparison(first, second, span=(0, 1)), paired_comparison(second, first, span=(0, 1))
    assert there.p == back.p
    assert there.difference == -back.difference
    assert [there.low, there.high] == pytest.approx([-back.high, -back.low], abs=1e-7)
    order = np.argsort(first)
    assert paired_comparison(first[order], second[order], span=(0, 1)).p == there.p


# corrections and sizes


def test_holm_steps_down():
    corrected = holm([0.01, 0.04, math.nan, 0.03, 0.005])
    np.testing.assert_allclose(corrected, [0.03, 0.06, math.nan, 0.06, 0.02])
    np.testing.assert_array_equal(holm([0.5, 0.9]), [1, 1])
    assert holm([]).shape == (0,)
    with pytest.raises(ValueError, match=r"a value is 1\.5; a p-value lies in"):
        holm([1.5])


@given(p_values=st.lists(st.floats(0, 1), max_size=20))
@unhurried
def test_holm_lies_between_no_correction_and_bonferroni(p_values):
    given_p, corrected = np.array(p_values), holm(p_values)
    assert (corrected >= given_p).all()
    assert (corrected <= np.minimum(given_p * len(p_values), 1)).all()
    assert (np.diff(corrected[np.argsort(given_p, kind="stable")]) >= 0).all()


@pytest.mark.parametrize(("half_width", "expected"), [(0.05, 0.5), (0.03, 0.0), (0.1, 1.0), (0.2, 0.5)])
def test_samples_needed_is_the_smallest_number_that_does(half_width, expected):
    n = samples_needed(half_width, expected=expected)
    n += n % 2 if expected == 0.5 else 0  # so that half of them is a whole number
    found, fewer = (proportion_interval(int(expected * count), count) for count in (n, n - 2))
    assert found.high - found.low <= 2 * half_width < fewer.high - fewer.low


def test_samples_needed_for_a_mean():
    assert samples_needed(0.1, statistic="mean", deviation=1) == 387  # 1.966² · 100
    assert samples_needed(0.1, statistic="mean", deviation=0) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"half_width": 3}, "half_width is 3; .*write 0.03"),
        ({"half_width": 0}, "half_width is 0; expected a positive number"),
        ({"half_width": 0.1, "expected": 10}, "write 0.1, not 10"),
        ({"half_width": 0.1, "statistic": "mean"}, "deviation is None; a mean needs"),
        ({"half_width": 0.1, "statistic": "median"}, "expected one of rate, mean"),
    ],
)
def test_samples_needed_says_what_is_missing(given, message):
    with pytest.raises(ValueError, match=message):
        samples_needed(**given)


# The bank's own error


def test_the_jackknife_of_a_mean_is_that_of_its_parts():
    random = np.random.default_rng(0)
    rows, bank, parts = random.normal(size=60), random.normal(size=40), np.arange(40) % 10
    without = np.stack([rows + bank[parts != part].mean() for part in range(10)], axis=1)  # values that are means over the bank
    own = np.arange(60) % 10
    alone, both = statistics.jackknife_errors(0.0, without, own, statistic="mean")
    means = np.array([bank[parts == part].mean() for part in range(10)])
    assert alone == pytest.approx(means.std(ddof=1) / math.sqrt(10))  # equal parts: the standard error of ten means
    shares = np.array([bank[parts != part].mean() + rows[own != part].mean() for part in range(10)])
    assert both == pytest.approx(math.sqrt(9 / 10 * ((shares - shares.mean()) ** 2).sum()))


def test_a_jackknife_of_medians_and_rates_reads_each_column_by_itself():
    without = np.array([[0.0, 1.0], [2.0, 5.0], [4.0, np.nan], [9.0, 3.0]])
    alone, both = statistics.jackknife_errors(3.0, without, [0, 0, 1, -1], statistic="median")
    assert alone == pytest.approx(math.sqrt(0.5 * 2 * 0.0**2))  # medians 3 and 3
    # without the rows of part 0: 4, 9 in the first column; without that of part 1: 1, 5, 3 in the second
    assert both == pytest.approx(math.sqrt(0.5 * 2 * ((6.5 - 3) / 2) ** 2))


def test_a_part_that_cannot_be_left_out_is_no_error_of_zero():
    finite, infinite = np.ones((4, 3)), np.full((4, 3), np.inf)
    assert statistics.jackknife_errors(1.0, finite, [0, 1, 2, 0], statistic="mean") == (0, 0)
    assert all(map(math.isnan, statistics.jackknife_errors(1.0, infinite, [0, 1, 2, 0], statistic="median")))
    assert statistics.jackknife_errors(np.inf, infinite, [0, 1, 2, 0], statistic="median") == (0, 0)
    alone, both = statistics.jackknife_errors(1.0, np.full((2, 2), np.nan), [0, 1], statistic="mean")
    assert math.isnan(alone)
    assert math.isnan(both)
    assert statistics.widened(0.4, 0.5, 0.6, (math.nan, 0.0), 10) == (-math.inf, math.inf)


def test_an_interval_is_widened_in_quadrature_and_at_least_to_what_both_say():
    quantile = student.isf(0.025, 9)
    low, high = statistics.widened(0.4, 0.5, 0.7, (0.1, 0.0), 10)
    assert (0.5 - low, high - 0.5) == pytest.approx((math.hypot(0.1, 0.1 * quantile), math.hypot(0.2, 0.1 * quantile)))
    assert statistics.widened(0.4, 0.5, 0.7, (0.1, 1.0), 10) == pytest.approx((0.5 - quantile, 0.5 + quantile))
    assert statistics.widened(0.4, 0.5, 0.7, (0.0, 0.0), 10) == pytest.approx((0.4, 0.7))
    assert statistics.widened(-math.inf, 0.5, math.inf, (0.1, 0.1), 10) == (-math.inf, math.inf)
    assert statistics.widened(0.4, 0.5, 0.7, (0.1, 0.2), 10, level=0.99)[0] < statistics.widened(0.4, 0.5, 0.7, (0.1, 0.2), 10)[0]


def test_an_infinite_estimate_keeps_its_ends():
    assert statistics.widened(3, math.inf, math.inf, (0.0, 0.0), 10) == (3, math.inf)
    assert statistics.widened(3, math.inf, math.inf, (math.nan, 0.0), 10) == (-math.inf, math.inf)
    assert statistics.widened(math.inf, math.inf, math.inf, (0.0, 0.0), 10) == (math.inf, math.inf)
    assert statistics.widened(-math.inf, 0.5, 0.7, (0.1, 0.0), 10)[0] == -math.inf


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, math.nan, math.inf])
def test_a_level_lies_between_0_and_1(level):
    with pytest.raises(ValueError, match=rf"^level is {level:g}; expected between 0 and 1: write 0.95, not 95$"):
        statistics.allowed_error(level)
    assert statistics.allowed_error(0.75) == 0.25

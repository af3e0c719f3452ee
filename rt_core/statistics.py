"""Intervals for rates, means and medians, and paired comparisons: arrays in, plain numbers out, independent groups kept whole."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rt_core.errors import RobustnessWarning

__all__ = [
    "Comparison",
    "Interval",
    "allowed_error",
    "bootstrap_interval",
    "bounded_mean_interval",
    "holm",
    "interval",
    "jackknife_errors",
    "median_interval",
    "paired_comparison",
    "proportion_interval",
    "samples_needed",
    "widened",
]

Array = NDArray[np.float64]
Members = NDArray[np.intp] | None  # the number of each value's group; None where every value stands alone
Statistic = Literal["rate", "mean", "median"]
Span = tuple[float, float]

_CAUTION = 0.75  # c of the betting interval: the share of the capital that one bet may cost
_CELLS = 100_000  # numbers in one chunk of a bootstrap's weights, which then stay in the cache
_FEW_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between the ends of its confidence interval; ``n`` counts values, not groups."""

    estimate: float
    low: float
    high: float
    n: int
    method: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the first of two paired sets of values lies above the second; ``p`` is two-sided and not corrected, see `holm`."""

    difference: float
    low: float
    high: float
    p: float
    n: int
    method: str


def interval(
    values: ArrayLike,
    *,
    statistic: Statistic,
    span: Span | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval that fits a metric's statistic; the caller has dropped undefined (NaN) rows.

    Rates have Clopper-Pearson's interval, means inside a finite span the betting interval, other means a bootstrap, medians order
    statistics. Where groups have several members, groups are what is independent. Medians, and means without a span, resample them whole.
    Rates and bounded means bet on them: under the true mean m, (sum - m · size) / (largest size) has mean 0 and lies in [-m, 1 - m], which
    is all that betting asks for (the largest size is taken as known). Equal groups thus get the interval of their means; unequal ones a
    valid one, never a point, which grows wide when one group outweighs the others.

    values: [n], groups: [n] labels -> Interval; NaNs for no values

    Raises:
        ValueError: a value is NaN, outside the span, infinite where a mean is asked for, or not 0 or 1 where a rate is.
    """
    _check_statistic(statistic, "rate", "mean", "median")
    alpha = allowed_error(level)
    if not np.size(values):
        return Interval(math.nan, math.nan, math.nan, 0, "no values")
    array = _checked(values)
    members = _members(groups, len(array))
    if statistic == "median" and members is None:
        return median_interval(array, level=level)
    if statistic == "rate":
        _check_binary(array)
        if members is None:
            return proportion_interval(int(array.sum()), len(array), level=level)
    if statistic != "median" and (span := _finite_span(statistic, span)):
        return _betting_interval(array, members, span, alpha, seed)
    return bootstrap_interval(array, "median" if statistic == "median" else "mean", level=level, seed=seed, groups=groups)


def proportion_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Return the exact interval of a share (Clopper & Pearson 1934), valid for every n; [0, 1 - (alpha / 2)^(1 / n)] for no success.

    Raises:
        ValueError: n is below 1, or successes is not a whole number in 0..n.
    """
    alpha = allowed_error(level)
    if n < 1:
        raise ValueError(f"n is {n}; a share needs at least one trial")
    if not 0 <= successes <= n or successes != int(successes):
        raise ValueError(f"successes is {successes}; expected a whole number between 0 and n = {n}")
    return Interval(successes / n, *_clopper_pearson(successes, n, alpha), int(n), "Clopper-Pearson")


def bounded_mean_interval(values: ArrayLike, *, level: float = 0.95, span: Span = (0.0, 1.0), seed: int = 0) -> Interval:
    """Return an interval for the mean of independent values inside ``span`` that holds for every n and every such distribution.

    The hedged-capital interval of Waudby-Smith & Ramdas (2023, "Estimating means of bounded random variables by betting"): at each
    candidate mean one player bets that values lie above it, one that they lie below; candidates at which either would ever have become
    2 / alpha times as rich are dropped. Bets are the predictable plug-ins for a fixed n, truncated at 3/4 of what could ruin. The
    ends are found by bisection, to 1e-9 of the span and on the outer side.

    Values are bet on in a random order drawn from ``seed``: the result depends on it, and on the order in which they are given. It is
    extended to hold the sample mean. Bets depend on the level: once in thousands a hair's higher level gives a hair narrower interval.

    values: [n] -> Interval

    Raises:
        ValueError: there are no values, or one is NaN or outside the span.
    """
    return _betting_interval(_checked(values), None, span, allowed_error(level), seed)


def median_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the interval of a median between two order statistics, by the binomial distribution; it asks for independence only.

    Infinite values are legal. Too few values for the level (below 6 at 95 %) give [-inf, inf]. The estimate is the mean of the two
    middle values, NaN where these are -inf and inf.

    values: [n] -> Interval

    Raises:
        ValueError: there are no values, or one is NaN.
    """
    from scipy.stats import binom

    alpha = allowed_error(level)
    ordered = np.sort(_checked(values))
    n = len(ordered)
    rank = int(binom.ppf(alpha / 2, n, 0.5))  # the largest k with P(fewer than k values below the median) < alpha / 2
    if rank < 1:
        return Interval(_middle(ordered), -math.inf, math.inf, n, f"order statistics: {n} values are too few for a level of {level:g}")
    return Interval(_middle(ordered), float(ordered[rank - 1]), float(ordered[n - rank]), n, "order statistics")


def bootstrap_interval(
    values: ArrayLike,
    statistic: Literal["mean", "median"] | Callable[[Array], float] = "mean",
    *,
    level: float = 0.95,
    seed: int = 0,
    groups: ArrayLike | None = None,
    resamples: int = 9999,
) -> Interval:
    """Return a bootstrap interval over samples, or over groups, which are resampled whole.

    Means are studentized (bootstrap-t, Efron & Tibshirani 1993, section 12.5) by the linearised deviation of a ratio of group sums to
    group sizes: of the cheap variants the one that covers best for few and skewed values. Two guards: each resample's variance counts one
    observation more, at the sample's variance, so that a resample without spread is no infinity; and no end is nearer than Student's t
    puts it. Other statistics take percentiles of the resamples, pushed outward as Student's t asks (Hesterberg 2015, "expanded"); a
    median's low end is read from the lower of the two middle values, its high end from the upper.

    A single group gives [-inf, inf], as do too few for a percentile interval (below 6 at 95 %); values without spread give a point. In
    another order, values meet other resamples, and the ends differ by that noise.

    values: [n], groups: [n] labels; statistic: a name, or a function [n] -> float -> Interval

    Raises:
        ValueError: there are no values, one is NaN, or one is infinite where a mean is asked for.

    Warns:
        RobustnessWarning: there are fewer than 20 groups.
    """
    alpha = allowed_error(level)
    array = _checked(values)
    if resamples < 1 / alpha:
        raise ValueError(f"resamples is {resamples}; a level of {level:g} needs at least {math.ceil(1 / alpha)}, better thousands")
    members = _members(groups, len(array))
    units = np.arange(len(array)) if members is None else members
    count = int(units.max()) + 1
    method = "bootstrap-t" if statistic == "mean" else "percentile bootstrap"
    if members is not None:
        method += f" over {count} groups"
        if count < _FEW_GROUPS:
            message = (
                f"{count} groups are resampled; below {_FEW_GROUPS} a bootstrap interval may be too narrow: trust its order of magnitude"
            )
            warnings.warn(message, RobustnessWarning, stacklevel=2)
    weights = _weights(count, resamples, seed)
    if statistic == "mean":
        _require(array, np.isfinite(array), "a mean of infinite values has no interval: ask for the median")
        return Interval(*_studentized(array, units, count, alpha, weights), len(array), method)
    if isinstance(statistic, str):
        _check_statistic(statistic, "mean", "median")
        estimate = _middle(np.sort(array))
    else:
        estimate = float(statistic(array))
    if 2.0 ** (1 - count) > alpha:
        return Interval(estimate, -math.inf, math.inf, len(array), f"{method}: too few for a level of {level:g}")
    draws = _resampled_medians(array, units, weights) if isinstance(statistic, str) else _resampled_values(statistic, array, units, weights)
    low, high = _expanded_percentiles(*draws, count, alpha)
    return Interval(estimate, min(low, estimate), max(high, estimate), len(array), method)


def paired_comparison(
    first: ArrayLike,
    second: ArrayLike,
    *,
    statistic: Statistic = "mean",
    span: Span | None = None,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    seed: int = 0,
    flips: int = 99_999,
) -> Comparison:
    """Compare two sets of values of the same samples; the null hypothesis: to swap the two of a sample (of a group) changes nothing.

    The difference is the mean of first - second, also for a metric whose statistic is the median: a difference of medians is not paired.
    Ungrouped rates have McNemar's exact p, all else the p of random sign flips of the differences (of their sums in groups):
    (1 + flips at least as extreme) / (1 + flips), or all 2^k flips where at most 16 sums are not zero. The interval is the betting
    interval for a finite span (of the values; a rate's is [0, 1]), a bootstrap without.

    Infinite values have no mean: p is the sign test's, the difference is the median of the finite differences, and its interval
    (extended to hold it) is the median's of all; two infinities of one sign are a tie.

    first, second: [n], groups: [n] labels -> Comparison; NaNs for no values

    Raises:
        ValueError: the two differ in length, or hold a value that `interval` would refuse.
    """
    _check_statistic(statistic, "rate", "mean", "median")
    alpha = allowed_error(level)
    if flips < 1:
        raise ValueError(f"flips is {flips}; at least one is needed, and p cannot fall below 1 / (flips + 1)")
    if np.shape(first) != np.shape(second):
        raise ValueError(f"first has shape {list(np.shape(first))}, second {list(np.shape(second))}; pairs are values of the same samples")
    if not np.size(first):
        return Comparison(math.nan, math.nan, math.nan, math.nan, 0, "no values")
    left, right = _checked(first), _checked(second)
    both, n, members = np.concatenate([left, right]), len(left), _members(groups, len(left))
    if statistic == "rate":
        _check_binary(both)
    if span := _finite_span(statistic, span):
        _check_span(both, span)
    differences = np.zeros(n)
    np.subtract(left, right, out=differences, where=left != right)  # equal infinities are a tie, not NaN
    if np.isinf(both).any():
        signs = np.sign(differences)
        p, test = (_sign_test(signs), "sign test") if members is None else _flip_test(_sums(members, signs), flips, seed, of="signs")
        found = interval(differences, statistic="median", groups=groups, level=level, seed=seed)
        finite = np.sort(differences[np.isfinite(differences)])
        middle = _middle(finite) if len(finite) else found.estimate
        return Comparison(middle, min(found.low, middle), max(found.high, middle), p, n, f"{test}, {found.method}")
    if statistic == "rate" and members is None:
        p, test = _sign_test(differences), "McNemar"
    else:
        p, test = _flip_test(_sums(members, differences), flips, seed)
    if span:
        width = span[1] - span[0]
        found = _betting_interval(differences, members, (-width, width), alpha, seed)
    else:
        found = bootstrap_interval(differences, level=level, seed=seed, groups=groups)
    return Comparison(found.estimate, found.low, found.high, p, n, f"{test}, {found.method}")


def holm(p_values: ArrayLike) -> Array:
    """Return p-values corrected for their number, step by step from the smallest (Holm 1979); NaN is no test, and stays.

    p_values: [tests] -> [tests], in the same order

    Raises:
        ValueError: a p-value is outside [0, 1].
    """
    given = np.asarray(p_values, dtype=np.float64)
    _require(given, np.isnan(given) | ((given >= 0) & (given <= 1)), "a p-value lies in [0, 1], or is NaN for no test")
    tests = np.flatnonzero(~np.isnan(given))
    order = tests[np.argsort(given[tests], kind="stable")]
    left = np.arange(len(order), 0, -1)  # hypotheses not yet rejected at each step
    corrected = given.copy()
    corrected[order] = np.minimum(np.maximum.accumulate(left * given[order]), 1)
    return corrected


def jackknife_errors(estimate: float, without: ArrayLike, own: ArrayLike, *, statistic: Statistic) -> tuple[float, float]:
    """Return two standard errors of an estimate whose values are ranks in a bank: from the bank's sampling alone, and from both samplings.

    A jackknife that deletes a part at a time (Shao & Wu 1989): once from the bank alone, once from the bank and from the values whose own
    sample is in that part, which counts in what the two samplings have in common. NaN where a part cannot be left out, because nothing is
    then defined or all is infinite.

    estimate: in the whole bank; without: [n, parts], each value in the bank without each part, NaN where it is not defined then; own: [n],
    the part that each value's sample is in, a number from 0 on
    """
    table, parts = np.asarray(without, dtype=np.float64), np.asarray(own)
    center = _median if statistic == "median" else np.mean
    errors = []
    for everyone in (True, False):
        kept = [column[~np.isnan(column) & (everyone | (parts != part))] for part, column in enumerate(table.T)]
        if not all(map(len, kept)):
            errors.append(math.nan)
            continue
        estimates = np.array([center(column) for column in kept])
        known = np.isfinite(estimates).all()
        deviations = estimates - estimates.mean() if known else np.where(estimates == estimate, 0, math.nan)
        errors.append(float(np.sqrt((len(kept) - 1) / len(kept) * (deviations**2).sum())))
    return errors[0], errors[1]


def widened(low: float, estimate: float, high: float, errors: tuple[float, float], parts: int, *, level: float = 0.95) -> Span:
    """Return an interval's ends with the bank's sampling error in them: moved out by it in quadrature, and at least to where both put them.

    errors: of `jackknife_errors`, from ``parts`` parts; a NaN opens the interval altogether
    """
    from scipy.stats import t

    bank, both = (math.inf if math.isnan(error) else float(t.isf(allowed_error(level) / 2, parts - 1)) * error for error in errors)
    if not bank and not both:
        return low, high
    ends = []
    for end, way in ((low, -1), (high, 1)):
        side = 0.0 if end == estimate else abs(end - estimate)  # two infinities are equal, and their difference is none
        out = max(math.hypot(side, bank), both)
        ends.append(end if math.isinf(end) else estimate + way * out if math.isfinite(estimate) else way * math.inf)
    return ends[0], ends[1]


def samples_needed(
    half_width: float, *, statistic: Statistic = "rate", level: float = 0.95, expected: float = 0.5, deviation: float | None = None
) -> int:
    """Return the smallest number of independent samples whose interval is at most ``half_width`` to a side.

    Rates: Clopper-Pearson's interval at ``expected`` · n successes, which need not be whole here. Means: Student's interval at that
    standard ``deviation``; the betting interval of a bounded mean needs about twice as many, since it assumes nothing else.

    Raises:
        ValueError: a parameter is out of its range, or a mean has no deviation.
    """
    from scipy.stats import t

    _check_statistic(statistic, "rate", "mean")
    alpha = allowed_error(level)
    if not 0 < half_width < math.inf:
        raise ValueError(f"half_width is {half_width:g}; expected a positive number")
    if statistic == "mean":
        if deviation is None or not 0 <= deviation < math.inf:
            raise ValueError(f"deviation is {deviation}; a mean needs the standard deviation of its values, from a pilot run say")
        return _smallest(lambda n: t.isf(alpha / 2, n - 1) * deviation / math.sqrt(n) <= half_width, start=2)
    if half_width >= 0.5:
        raise ValueError(f"half_width is {half_width:g}; a rate lies in [0, 1], so it must be below 0.5: write 0.03 for three points")
    if not 0 <= expected <= 1:
        raise ValueError(f"expected is {expected:g}; a rate lies in [0, 1]: write 0.1, not 10")
    return _smallest(lambda n: -np.subtract(*_clopper_pearson(expected * n, n, alpha)) <= 2 * half_width, start=1)


def allowed_error(level: float) -> float:
    """Return 1 - level, the share of intervals that may miss.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level:g}; expected between 0 and 1: write 0.95, not 95")
    return 1 - level


def _require(array: Array, right: NDArray[np.bool_], expectation: str) -> None:
    if not right.all():
        raise ValueError(f"a value is {array[~right][0]:.17g}; {expectation}")


def _checked(values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"values have shape {list(array.shape)}; expected [n] with at least one value")
    _require(array, ~np.isnan(array), "drop undefined rows first, and count them")
    return array


def _check_statistic(statistic: str, *known: str) -> None:
    if statistic not in known:
        raise ValueError(f"statistic is {statistic!r}; expected one of {', '.join(known)}")


def _check_binary(array: Array) -> None:
    _require(array, (array == 0) | (array == 1), "a rate counts values that are 0 or 1: for others ask for the mean")


def _check_span(array: Array, span: Span) -> None:
    if not -math.inf < span[0] < span[1] < math.inf:
        raise ValueError(f"span is {span}; expected two finite numbers, the lower first")
    _require(array, (array >= span[0]) & (array <= span[1]), f"expected all inside the span {list(span)}: check the values, or widen it")


def _finite_span(statistic: str, span: Span | None) -> Span | None:
    if statistic == "rate":
        return (0.0, 1.0)
    return None if span is None or any(map(math.isinf, span)) else span


def _members(groups: ArrayLike | None, n: int) -> Members:
    if groups is None:
        return None
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(f"groups have shape {list(labels.shape)}; expected [{n}], a label for each value")
    numbers: dict[Any, int] = {}
    members = np.array([numbers.setdefault(label, len(numbers)) for label in labels.tolist()], dtype=np.intp)
    return None if len(numbers) == n else members


def _sums(members: Members, values: Array) -> Array:
    return values if members is None else np.bincount(members, weights=values).astype(np.float64)


def _middle(ordered: Array) -> float:
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return low if low == high else low / 2 + high / 2  # halves first: the sum may overflow


def _median(values: Array) -> float:
    return _middle(np.sort(values))


def _smallest(fits: Callable[[int], bool], *, start: int) -> int:
    high = start
    while not fits(high):
        high *= 2
    low = max(high // 2, start - 1)  # does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _clopper_pearson(successes: float, n: int, alpha: float) -> tuple[float, float]:
    from scipy.stats import beta

    low = beta.ppf(alpha / 2, successes, n - successes + 1) if successes > 0 else 0.0
    high = beta.isf(alpha / 2, successes + 1, n - successes) if successes < n else 1.0
    return float(low), float(high)


def _betting_interval(array: Array, members: Members, span: Span, alpha: float, seed: int) -> Interval:
    _check_span(array, span)
    width, estimate = span[1] - span[0], float(array.mean())
    sums, sizes = _sums(members, (array - span[0]) / width), _sums(members, np.ones(len(array)))
    order = np.random.default_rng(seed).permutation(len(sums))
    sums, sizes = sums[order] / sizes.max(), sizes[order] / sizes.max()
    bets = _bets(sums, sizes, alpha)
    low = span[0] + width * _lowest_kept(sums, sizes, bets, alpha)
    high = span[1] - width * _lowest_kept(sizes - sums, sizes, bets, alpha)
    ends = (low, high, estimate)  # at worst in a share alpha of all runs nothing is kept: low lies above high
    method = "betting" if members is None else f"betting over {len(sums)} groups"
    return Interval(estimate, max(min(ends), span[0]), min(max(ends), span[1]), len(array), method)


def _bets(sums: Array, sizes: Array, alpha: float) -> Array:
    """Return each bet before truncation: from the values before it alone, and the same for every candidate mean."""
    means = (0.5 + sums.cumsum()) / (1 + sizes.cumsum())
    variances = (0.25 + ((sums - means * sizes) ** 2).cumsum()) / np.arange(2, len(sums) + 2)
    return np.sqrt(2 * math.log(2 / alpha) / (len(sums) * np.concatenate([[0.25], variances[:-1]])))


def _lowest_kept(sums: Array, sizes: Array, bets: Array, alpha: float) -> float:
    """Return the low end: as a candidate rises every factor falls, so what is dropped are all candidates below one number."""

    def dropped(mean: float) -> bool:
        most = _CAUTION / mean if mean > 0 else math.inf
        return bool(np.log1p(np.minimum(bets, most) * (sums - mean * sizes)).cumsum().max() >= math.log(2 / alpha))

    if not dropped(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if dropped(middle) else (low, middle)
    return low


def _weights(count: int, resamples: int, seed: int) -> Iterator[Array]:
    """Yield how often each unit is drawn: [some resamples, count] at a time."""
    random, rows = np.random.default_rng(seed), max(1, _CELLS // count)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = random.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def _studentized(array: Array, units: NDArray[np.intp], count: int, alpha: float, draws: Iterator[Array]) -> tuple[float, float, float]:
    from scipy.stats import t

    estimate = float(array.mean())
    if count == 1:
        return estimate, -math.inf, math.inf
    sizes, rests = _sums(units, np.ones(len(array))), _sums(units, array - estimate)
    one_more = float((rests**2).mean())
    if one_more == 0:
        return estimate, estimate, estimate
    columns = np.stack([sizes, rests, rests**2, rests * sizes, sizes**2], axis=1)
    ratios = []
    for weights in draws:
        size, rest, square, cross, size_square = (weights @ columns).T
        shift = rest / size
        squares = np.maximum(square - 2 * shift * cross + shift**2 * size_square, 0)
        ratios.append(rest / np.sqrt(squares + one_more))  # shift / error, but for a constant
    scale = count / math.sqrt((count + 1) * (count - 1))
    low, high = np.quantile(np.concatenate(ratios), [alpha / 2, 1 - alpha / 2]) / scale
    error = math.sqrt(one_more * count / (count - 1) * count) / len(array)
    student = float(t.isf(alpha / 2, count - 1))
    return estimate, estimate - max(float(high), student) * error, estimate - min(float(low), -student) * error


def _resampled_medians(array: Array, units: NDArray[np.intp], draws: Iterator[Array]) -> tuple[Array, Array]:
    order = np.argsort(array, kind="stable")
    ordered, owners = array[order], units[order]
    lower, upper = [], []
    for weights in draws:
        for part in np.array_split(weights, math.ceil(len(weights) * len(array) / _CELLS)):  # values outnumber groups
            reached = part[:, owners].cumsum(axis=1)
            total = reached[:, -1:]
            lower.append(ordered[(reached < (total + 1) // 2).sum(axis=1)])
            upper.append(ordered[(reached < total // 2 + 1).sum(axis=1)])
    return np.concatenate(lower), np.concatenate(upper)


def _resampled_values(
    statistic: Callable[[Array], float], array: Array, units: NDArray[np.intp], draws: Iterator[Array]
) -> tuple[Array, Array]:
    found = np.array([statistic(np.repeat(array, row[units].astype(np.intp))) for weights in draws for row in weights], dtype=np.float64)
    return found, found


def _expanded_percentiles(lower: Array, upper: Array, count: int, alpha: float) -> tuple[float, float]:
    from scipy.stats import norm, t

    tail = norm.sf(math.sqrt(count / (count - 1)) * t.isf(alpha / 2, count - 1))
    rank = math.floor(tail * len(lower))  # outward, and no interpolation: values may be infinite
    return float(np.sort(lower)[rank]), float(np.sort(upper)[len(upper) - 1 - rank])


def _sign_test(differences: Array) -> float:
    from scipy.stats import binomtest

    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    return float(binomtest(above, above + below).pvalue) if above + below else 1.0


def _flip_test(sums: Array, flips: int, seed: int, of: str = "differences") -> tuple[float, str]:
    """Return p of the total under random signs: a byte holds the signs of eight sums, a table what they add up to."""
    sums = sums[sums != 0]
    exact = len(sums) <= 16
    draws = 2 ** len(sums) if exact else flips
    random, codes, totals = np.random.default_rng(seed), np.arange(draws), np.zeros(draws)
    signs = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    for start in range(0, len(sums), 8):
        block = sums[start : start + 8]
        drawn = (codes >> start) & 255 if exact else random.integers(256, size=draws, dtype=np.uint8)
        totals += (signs[:, : len(block)] @ block)[drawn]
    rounding = 1e-12 * np.abs(sums).sum()  # a flip as extreme as what was seen counts, whatever its last bits
    reached = int((np.abs(totals) >= abs(sums.sum()) - rounding).sum())
    return (reached / draws, f"all flips of {of}") if exact else ((1 + reached) / (1 + flips), f"{flips:,} flips of {of}")

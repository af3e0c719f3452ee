"""The bank of clean representations: exact ranks, nearest neighbors and pair quantiles, in blocks, in memory or on disk."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rt_core.divergences import Divergence, cosine, describe_divergence, find_divergence, l2
from rt_core.labels import classes_of
from rt_core.randomness import names_of, stream
from rt_core.shapes import check_shape

__all__ = ["Bank", "pairwise", "quantile_error"]

_BLOCK = 1024  # rows that are float64 at a time, of the bank and of the queries
_TILE = 2**15 - 1  # numbers in one direct call: they stay in the cache, and just below what torch starts more threads for
_SORTED_KEPT = 4  # divergences whose sorted pairs are kept: 0.4 GiB each at 10,000 rows
_ALL_PAIRS = 50_000_000  # all pairs of 10,000 rows; of more, this many are too slow to sort and too large to keep
_SAMPLED_PAIRS = 2**19
_UNIT_SLACK = 5e-16  # see _Form: at most (4 dim + 18) roundings of 1.1e-16, of the product form and of the direct form together


def pairwise(divergence: str | Divergence, first: Tensor, second: Tensor) -> Tensor:
    """Every divergence between two sets of representations, in direct form: slow and right, also for close pairs.

    Works tile by tile; differentiable, in which case all tiles stay in memory.

    first: [n, dim], second: [m, dim] -> [n, m], entry (i, j) is d(first[i], second[j])
    """
    check_shape(first, "n dim", what="first")
    check_shape(second, "m dim", what="second", dim=first.shape[1])
    pairs = torch.arange(len(first) * len(second), device=first.device)
    width = max(len(second), 1)
    return _direct(find_divergence(divergence), first, second, pairs // width, pairs % width).view(len(first), len(second))


def quantile_error(pairs: int) -> float:
    """Return by how much the quantiles over so many pairs may be off, all at once, with probability 95 %: 0 where all can be counted.

    The inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990), for pairs drawn independently.
    """
    return math.sqrt(math.log(2 / 0.05) / (2 * _SAMPLED_PAIRS)) if pairs > _ALL_PAIRS else 0.0


class Bank:
    """Clean representations of others, against which one representation is ranked.

    Every answer equals brute force with the divergence itself on float64 rows, ties included, and does not depend on the batch in
    which queries come. l2 and cosine are fast (one matrix product, and direct recomputation where it cannot tell); any other
    divergence is computed directly, pair by pair. Arguments are d(bank representation, query): the first fixed, the second moving.

    Args:
        representations: [bank, dim], float32 or float64; a tensor on the CPU or a numpy memory map. Not copied: leave it unchanged.
        ids: one a row; ``"0"``, ``"1"``, … unless given.
        labels: one a row, classes from 0 on, for measures that need them.
        quantile_rows: how many first rows the pair quantiles use; all unless given. Of more than 10,000 rows the pairs are too many: then
            524,288 random ones, drawn from ``seed``, stand for them, and quantiles are off by at most ``quantile_error``.
        parts: one a row, whole numbers from 0 on; ``without`` leaves one of them out.

    Attributes:
        parts: [bank], the part of each row.
        reads: how often representations were looked at, so that one can tell who did.

    Raises:
        ValueError: no rows, a type that cannot be ranked exactly, values that are not finite, ids that repeat, labels that are no classes, or
            lengths that differ.
    """

    def __init__(
        self,
        representations: Tensor | np.ndarray,
        *,
        ids: Sequence[object] | None = None,
        labels: Sequence[int] | None = None,
        quantile_rows: int | None = None,
        parts: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        _check_representations(representations)
        self.reads = 0
        self._rows = representations if isinstance(representations, np.ndarray) else representations.detach()
        size = len(representations)
        self.ids = names_of(range(size) if ids is None else ids)
        self.labels: tuple[int, ...] | None = None if labels is None else tuple(classes_of(labels))
        self.quantile_rows = size if quantile_rows is None else int(quantile_rows)
        for name, given in (("ids", self.ids), ("labels", self.labels)):
            if given is not None and len(given) != size:
                raise ValueError(f"{len(given)} {name} for {size} rows: give one a row")
        if not 0 < self.quantile_rows <= size:
            raise ValueError(f"quantile_rows is {quantile_rows}; the bank has {size} rows, so it must be in 1 to {size}")
        self._row_of = {identity: row for row, identity in enumerate(self.ids)}
        if len(self._row_of) < size:
            repeated = next(identity for row, identity in enumerate(self.ids) if self._row_of[identity] != row)
            raise ValueError(
                f"id {repeated!r} stands for more than one row: an id must be unique, or a sample's own row cannot be excluded"
            )
        self.parts = torch.zeros(size, dtype=torch.long) if parts is None else torch.as_tensor(parts)
        check_shape(self.parts, "rows", what="parts", rows=size)
        if self.parts.is_floating_point() or bool((self.parts < 0).any()):
            raise ValueError(f"parts are {self.parts.dtype} from {self.parts.min():g} on; expected whole numbers from 0 on, one a row")
        self._seed, self._whole = seed, self
        self._kept: Tensor | None = None  # rows of the whole, of which this is a part
        self._left_out: int | None = None
        self._centers = _measure(self)
        self._sorted: list[tuple[Divergence, _SortedPairs]] = []

    def __len__(self) -> int:
        return len(self.ids)

    def without(self, part: int) -> "Bank":
        """Return the bank without the rows of one part; it shares the representations and the sorted pairs of this one.

        Raises:
            ValueError: a part is left out already.
        """
        if self._left_out is not None:
            raise ValueError(f"part {self._left_out} is left out already; leave parts out of the whole bank, one at a time")
        kept = (self.parts != part).nonzero().flatten()
        reduced = copy.copy(self)
        reduced._kept, reduced._left_out, reduced.parts = kept, part, self.parts[kept]
        reduced.ids = tuple(self.ids[row] for row in kept.tolist())
        reduced.labels = None if self.labels is None else tuple(self.labels[row] for row in kept.tolist())
        reduced.quantile_rows = int((kept < self.quantile_rows).sum())
        reduced._row_of = {identity: row for row, identity in enumerate(reduced.ids)}
        return reduced

    @property
    def dim(self) -> int:
        """Numbers in one representation."""
        return self._rows.shape[1]

    @property
    def pair_count(self) -> int:
        """Unordered distinct pairs of the first ``quantile_rows`` rows."""
        return self.quantile_rows * (self.quantile_rows - 1) // 2

    @property
    def quantile_error(self) -> float:
        """By how much pair quantiles may be off, all at once, with probability 95 %; 0 where all pairs are counted."""
        return quantile_error(self.pair_count)

    def blocks(self, size: int = _BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Yield (first row, block) in order, read when asked for.

        -> (int, [at most size, dim]) of the bank's own type
        """
        for start in range(0, len(self), size):
            yield start, self._read(slice(start, start + size))

    def rows(self, ids: Sequence[object]) -> Tensor:
        """Return the row of each id, -1 for one that is not in the bank.

        ids: [batch] -> [batch], long
        """
        return torch.tensor([self._row_of.get(identity, -1) for identity in names_of(ids)], dtype=torch.long)

    def take(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Return the representations of some rows.

        rows: [batch] -> [batch, dim] of the bank's own type

        Raises:
            ValueError: a row that the bank does not have, -1 included.
        """
        return self._read(_checked_rows(rows, "rows", low=0, size=len(self)))

    @torch.no_grad()
    def closer_counts(self, queries: Tensor, own: Tensor, exclude: Tensor | Sequence[int], divergence: str | Divergence = "l2") -> Tensor:
        """Count the others that are strictly closer to a query than its own clean representation is (paper, Eq. 1 and 4).

        queries, own: [batch, dim]; exclude: [batch], a row that does not count, or -1 -> [batch], long

        Raises:
            ValueError: queries or own that are not finite, a row that the bank does not have, or a divergence that is NaN.
        """
        form, exclude = self._form(divergence), self._checked_queries(queries, exclude)
        check_shape(own, "batch dim", what="own", batch=len(queries), dim=self.dim)
        _check_finite(own, "own")
        counts = torch.zeros(len(queries), dtype=torch.long)
        for part in _parts(len(queries)):
            moving, each = form.place(queries[part]), torch.arange(len(queries[part]))
            limit = form.decide(form.place(own[part]), moving, each, each)
            for start, block in self.blocks():
                counts[part] += _count_closer(form, form.place(block), moving, limit, exclude[part] - start)
        return counts

    @torch.no_grad()
    def nearest(
        self, queries: Tensor, k: int, exclude: Tensor | Sequence[int], divergence: str | Divergence = "l2"
    ) -> tuple[Tensor, Tensor]:
        """Find the ``k`` rows nearest to each query, nearest first; of equal ones the lower row comes first.

        queries: [batch, dim]; exclude: [batch], a row that does not count, or -1 -> divergences [batch, k] float64, rows [batch, k] long

        Raises:
            ValueError: ``k`` is more than the rows that remain, or as for ``closer_counts``.
        """
        form, exclude = self._form(divergence), self._checked_queries(queries, exclude)
        remain = len(self) - bool((exclude >= 0).any())
        if not 1 <= k <= remain:
            raise ValueError(
                f"k is {k}; {remain} of the bank's {len(self)} rows remain beside a query's own, so it must be in 1 to {remain}"
            )
        # NaN stands for "none yet": it sorts behind everything, also behind infinity
        values = torch.full((len(queries), k), torch.nan, dtype=torch.float64)
        rows = torch.full((len(queries), k), len(self))
        for part in _parts(len(queries)):
            moving = form.place(queries[part])
            for start, block in self.blocks():
                near = _find_near(form, form.place(block), moving, values[part], exclude[part] - start)
                values[part], rows[part] = _merge(values[part], rows[part], near, start)
        return values, rows

    @torch.no_grad()
    def pair_quantiles(self, values: Tensor, divergence: str | Divergence = "l2") -> Tensor:
        """Return the share of pairs of clean representations that are no further apart than each value (paper, section 5).

        Pairs are the unordered distinct ones i < j of the first ``quantile_rows`` rows, d(r_i, r_j) <= value. They are computed and
        sorted once for each divergence and kept; where they are too many, a random sample of them is. NaN stays NaN.

        values: [batch] -> [batch], float64, in [0, 1]

        Raises:
            ValueError: fewer than two rows, which make no pair, or a divergence that is NaN.
        """
        check_shape(values, "batch", what="values")
        form = self._form(divergence)
        pairs = self._sorted_pairs(form)
        numbers = values.detach().cpu().double().numpy()
        known = ~np.isnan(numbers)
        result = np.full(len(numbers), np.nan)
        asked, place = np.unique(numbers[known], return_inverse=True)
        result[known] = _count_pairs(self, form, pairs, asked)[place] / sum(len(cell) for cell in pairs.cells_without(self._left_out))
        return torch.from_numpy(result)

    @torch.no_grad()
    def quantile_value(self, share: float, divergence: str | Divergence = "l2") -> float:
        """Return the smallest divergence that at least this share of pairs do not exceed: ``pair_quantiles`` of it is ``share`` or just above.

        Rounded up by the rounding error of the pairs' scores, if at all.

        Raises:
            ValueError: a share outside (0, 1], or as for ``pair_quantiles``.
        """
        if not 0 < share <= 1:
            raise ValueError(f"share is {share:g}; a share of pairs lies in (0, 1]: write 0.5 for the median")
        form = self._form(divergence)
        pairs = self._sorted_pairs(form)
        cells = pairs.cells_without(self._left_out)
        scores = cells[0] if len(cells) == 1 else np.concatenate(cells)
        rank = max(math.ceil(share * len(scores)) - 1, 0)
        if len(cells) > 1:
            scores.partition(rank)
        score = float(scores[rank])
        if score <= pairs.slack and self.pair_quantiles(torch.zeros(1), divergence).item() >= share:
            return 0.0
        return score if pairs.exact else form.divergence(score + pairs.slack)

    def _read(self, rows: slice | Tensor) -> Tensor:
        self.reads += 1
        if self._kept is not None:
            rows = self._kept[rows]
        if isinstance(self._rows, np.ndarray):  # copied, for a memory map may be read-only, which torch does not know
            return torch.from_numpy(np.array(self._rows[rows if isinstance(rows, slice) else rows.numpy()]))
        return self._rows[rows]

    def _form(self, divergence: str | Divergence) -> "_Form":
        function = find_divergence(divergence)
        return _Form(function, next((center for product, center in self._centers if product is function), None))

    def _checked_queries(self, queries: Tensor, exclude: Tensor | Sequence[int]) -> Tensor:
        check_shape(queries, "batch dim", what="queries", dim=self.dim)
        _check_finite(queries, "queries")
        rows = _checked_rows(exclude, "exclude", low=-1, size=len(self))
        check_shape(rows, "batch", what="exclude", batch=len(queries))
        return rows

    def _sorted_pairs(self, form: "_Form") -> "_SortedPairs":
        self.reads += 1
        if not self.pair_count:
            raise ValueError(f"pair quantiles need at least 2 rows, and there is {self.quantile_rows}: give a larger bank or quantile_rows")
        for function, pairs in self._sorted:
            if function == form.function:
                return pairs
        del self._sorted[: len(self._sorted) + 1 - _SORTED_KEPT]
        self._sorted.append((form.function, _sort_pairs(self._whole, form)))
        return self._sorted[-1][1]


@dataclass(frozen=True)
class _Placed:
    """Some float64 rows, with the points whose squared distances score them."""

    rows: Tensor
    points: Tensor
    squares: Tensor
    zero: Tensor


@dataclass(frozen=True)
class _Form:
    """How a divergence is scored: by squared distances of points, from a matrix product, where it allows that (there is a center).

    Scores order pairs as the divergence does, but for pairs whose scores differ by no more than the slack, which are for ``function``
    itself to decide. Points are centered (any center is right, the mean keeps the slack small): rounding errors then stay below
    _UNIT_SLACK (dim + 8) (‖a‖² + ‖b‖²), the error of the directly computed divergence included.
    """

    function: Divergence
    center: Tensor | None

    def place(self, rows: Tensor) -> _Placed:
        """rows: [n, dim] of any float type"""
        rows = rows.detach().cpu().double()
        points, zero = rows, torch.zeros(0, dtype=torch.long)
        if self.function is cosine:
            norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            points, zero = rows / norm.masked_fill(norm == 0, 1), (norm == 0).squeeze(1).nonzero().squeeze(1)
        points = points if self.center is None else points - self.center
        return _Placed(rows, points, torch.linalg.vecdot(points, points), zero)

    def scores(self, block: _Placed, queries: _Placed) -> tuple[Tensor, Tensor]:
        """-> scores [queries, block], slack [queries, 1]"""
        if self.center is None:
            values = _defined(self.function, pairwise(self.function, block.rows, queries.rows))
            return values.T.contiguous(), values.new_zeros(len(queries.rows), 1)
        squares = queries.squares[:, None]
        scores = torch.addmm(block.squares[None], queries.points, block.points.T, alpha=-2).add_(squares)
        scores[:, block.zero] = 2  # only cosine has these: by convention at divergence 1, which is a squared chord of 2
        scores[queries.zero] = 2
        scale = _UNIT_SLACK * (block.squares.max() + squares) + torch.finfo(torch.float64).tiny
        return scores, (self.center.numel() + 8) * scale

    def goal(self, divergence: Tensor) -> Tensor:
        """Return the score that stands for a divergence; a negative one stays below every score.

        any shape -> same shape
        """
        if self.center is None:
            return divergence
        return 2 * divergence if self.function is cosine else divergence * divergence.abs()

    def divergence(self, score: float) -> float:
        """Return the divergence that a score stands for, the inverse of ``goal``."""
        if self.center is None:
            return score
        return score / 2 if self.function is cosine else math.sqrt(max(score, 0.0))

    def decide(self, block: _Placed, queries: _Placed, rows: Tensor, which: Tensor) -> Tensor:
        """Divergences of the pairs (block[rows], queries[which]) by the function itself: [pairs]"""
        return _defined(self.function, _direct(self.function, block.rows, queries.rows, rows, which))


@dataclass(frozen=True)
class _SortedPairs:
    """The scores of pairs in ascending order, an array for each two parts, their common slack, and counts that had to be decided directly.

    exact: the scores are the divergences themselves.
    """

    cells: Mapping[tuple[int, int], np.ndarray]
    slack: float
    exact: bool
    settled: dict[float, dict[tuple[int, int], int]] = field(default_factory=dict)  # by value and the two parts

    def cells_without(self, part: int | None) -> list[np.ndarray]:
        return [scores for parts, scores in self.cells.items() if part not in parts]


def _direct(function: Divergence, first: Tensor, second: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """Divergences of the pairs (first[rows], second[others]), by the function itself.

    Every call has the same number of pairs, the last ones repeated: a reduction's last bit may depend on the shape of the call, and
    equal pairs must give equal numbers whatever stands beside them.

    rows, others: [pairs], long -> [pairs]
    """
    tile = max(_TILE // max(first.shape[1], 1), 2)  # never 1: torch sums a single long row in another order
    values = []
    for start in range(0, len(rows), tile):
        at = torch.arange(start, start + tile, device=rows.device).clamp_(max=len(rows) - 1)
        value = function(first.index_select(0, rows[at]), second.index_select(0, others[at]))
        check_shape(value, "batch", what=f"the result of {describe_divergence(function)}", batch=tile)
        values.append(value[: len(rows) - start])
    return torch.cat(values) if values else first.new_zeros(0)


def _defined(function: Divergence, values: Tensor) -> Tensor:
    if values.isnan().any():  # NaN is closer than nothing: a broken divergence would read as a robust encoder
        name = describe_divergence(function)
        raise ValueError(f"{name} is NaN between some of these representations: they are not what it measures; choose another divergence")
    return values


def _count_closer(form: _Form, block: _Placed, queries: _Placed, limit: Tensor, exclude: Tensor) -> Tensor:
    scores, slack = form.scores(block, queries)
    goal = form.goal(limit)[:, None]
    closer = scores < goal - slack
    unsure = (scores > goal + slack).logical_not_() ^ closer  # NaN, from an overflow, is unsure
    out = _inside(exclude, len(block.rows))
    closer[out] = unsure[out] = False
    which, rows = unsure.nonzero(as_tuple=True)
    decided = form.decide(block, queries, rows, which) < limit[which]
    return closer.sum(dim=1) + torch.bincount(which[decided], minlength=len(limit))


def _find_near(form: _Form, block: _Placed, queries: _Placed, best: Tensor, exclude: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the rows of a block that may be among the nearest, given the best divergences so far.

    best: [batch, k] -> query, row in the block, divergence: [candidates] each
    """
    k = best.shape[1]
    scores, slack = form.scores(block, queries)
    out = _inside(exclude, len(block.rows))
    scores[out] = torch.inf
    bound = form.goal(best[:, -1:]) + slack
    if k <= len(block.rows):
        bound = torch.fmin(bound, scores.topk(k, dim=1, largest=False).values[:, -1:] + 2 * slack)
    near = (scores > bound).logical_not_()
    near[out] = False
    which, rows = near.nonzero(as_tuple=True)
    return which, rows, form.decide(block, queries, rows, which)


def _merge(best: Tensor, rows: Tensor, near: tuple[Tensor, Tensor, Tensor], start: int) -> tuple[Tensor, Tensor]:
    batch, k = best.shape
    which = torch.cat([torch.arange(batch).repeat_interleave(k), near[0]])
    values, rows = torch.cat([best.flatten(), near[2]]), torch.cat([rows.flatten(), near[1] + start])
    order = torch.from_numpy(np.lexsort((rows.numpy(), values.numpy(), which.numpy())))
    first = torch.searchsorted(which[order], torch.arange(batch))
    chosen = order[first[:, None] + torch.arange(k)]
    return values[chosen], rows[chosen]


def _pair_blocks(bank: Bank, form: _Form) -> Iterator[tuple[tuple[int, int], _Placed, _Placed, Tensor, Tensor]]:
    """Yield (parts, block, later block, scores [later, block], slack [later, 1]); where both are the same, pairs below the diagonal count."""
    parts = bank.parts[: bank.quantile_rows]
    spans = [(part, rows) for part in parts.unique().tolist() for rows in (parts == part).nonzero().flatten().split(_BLOCK)]
    for index, (part, rows) in enumerate(spans):
        block = form.place(bank._read(rows))
        yield (part, part), block, block, *form.scores(block, block)
        for part_later, rows_later in spans[index + 1 :]:
            later = form.place(bank._read(rows_later))
            scores, slack = form.scores(block, later)
            if form.center is None and part_later != part:  # which may be no distance: the lower row comes first
                which, lower = (rows_later[:, None] < rows).nonzero(as_tuple=True)
                scores[which, lower] = form.decide(later, block, which, lower)
            yield (part, part_later), block, later, scores, slack


def _below_diagonal(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool).tril_(-1)


def _sort_pairs(bank: Bank, form: _Form) -> _SortedPairs:
    if bank.pair_count > _ALL_PAIRS:
        return _sample_pairs(bank, form)
    members = torch.bincount(bank.parts[: bank.quantile_rows]).tolist()
    cells, filled, slack = {}, {}, 0.0
    for parts, block, later, scores, needed in _pair_blocks(bank, form):
        if parts not in cells:
            first, second = (members[part] for part in parts)
            cells[parts], filled[parts] = np.empty(first * (first - 1) // 2 if parts[0] == parts[1] else first * second), 0
        found = scores[_below_diagonal(scores)] if later is block else scores.flatten()
        cells[parts][filled[parts] : filled[parts] + len(found)] = found.numpy()
        slack, filled[parts] = max(slack, float(needed.max())), filled[parts] + len(found)
    for pairs in cells.values():
        pairs.sort()  # in place, and ten times as fast as torch's
    return _SortedPairs(cells, slack, exact=form.center is None)


def _sample_pairs(bank: Bank, form: _Form) -> _SortedPairs:
    """Draw pairs of different rows, each as likely as any other, and compute them directly."""
    random, size = stream(bank._seed, "pairs"), bank.quantile_rows
    first, second = random.integers(size, size=_SAMPLED_PAIRS), random.integers(size - 1, size=_SAMPLED_PAIRS)
    second += second >= first
    first, second = np.minimum(first, second), np.maximum(first, second)
    parts = np.sort(bank.parts.numpy()[np.stack([first, second])], axis=0)
    order = np.lexsort((first, parts[1], parts[0]))  # by parts, then as the rows lie on the disk
    rows, others, parts = torch.from_numpy(first[order]), torch.from_numpy(second[order]), parts[:, order]
    values = np.concatenate(
        [
            _defined(
                form.function,
                _direct(form.function, bank._read(some).double(), bank._read(more).double(), each := torch.arange(len(some)), each),
            ).numpy()
            for some, more in zip(rows.split(4 * _BLOCK), others.split(4 * _BLOCK), strict=True)
        ]
    )
    edges = np.flatnonzero(np.diff(parts, axis=1).any(axis=0)) + 1
    cells = {
        tuple(cell[:, 0].tolist()): np.sort(part)
        for cell, part in zip(np.split(parts, edges, axis=1), np.split(values, edges), strict=True)
    }
    return _SortedPairs(cells, 0.0, exact=True)


def _count_pairs(bank: Bank, form: _Form, pairs: _SortedPairs, values: np.ndarray) -> np.ndarray:
    """values: [batch], ascending, distinct -> pairs with d <= value: [batch]"""
    goal = values if pairs.exact else form.goal(torch.from_numpy(values)).numpy()
    low, counts = np.zeros(len(values), dtype=np.intp), np.zeros(len(values), dtype=np.intp)
    for scores in pairs.cells_without(bank._left_out):
        low += np.searchsorted(scores, goal - pairs.slack, "left")
        counts += np.searchsorted(scores, goal + pairs.slack, "right")
    unsure = (low < counts) & (not pairs.exact)
    missing = [value for value in values[unsure].tolist() if value not in pairs.settled]
    if missing:  # for the whole bank at once, so that each part that is left out finds them
        by_cell = _settle(bank._whole, form, pairs.slack, torch.tensor(missing, dtype=torch.float64))
        pairs.settled.update({value: {cell: found[place] for cell, found in by_cell.items()} for place, value in enumerate(missing)})
    counts[unsure] = [
        sum(count for cell, count in pairs.settled[value].items() if bank._left_out not in cell) for value in values[unsure].tolist()
    ]
    return counts


def _settle(bank: Bank, form: _Form, slack: float, values: Tensor) -> dict[tuple[int, int], list[int]]:
    """Count again in one more pass for all values, deciding directly where scores cannot.

    Sure pairs are counted anew too, for a matrix product need not give the same bits twice.

    values: [batch], ascending, distinct -> pairs with d <= value: [batch] for each two parts
    """
    goal = form.goal(values)
    low, high = torch.cat([goal - slack, goal.new_tensor([torch.nan])]), goal + slack
    counts: dict[tuple[int, int], Tensor] = {}
    for parts, block, later, scores, _ in _pair_blocks(bank, form):
        if later is block:
            scores.masked_fill_(~_below_diagonal(scores), torch.inf)
        # the first value that a pair may count for: it does so for all later ones too, unless that is unsure
        above = torch.bucketize(scores, high, out_int32=True)
        unsure = scores >= low[above]
        found = torch.bincount(above[~unsure], minlength=len(low))[:-1].cumsum(0)
        which, rows = unsure.nonzero(as_tuple=True)
        found += torch.searchsorted(form.decide(block, later, rows, which).sort().values, values, right=True)
        counts[parts] = counts.get(parts, 0) + found
    return {parts: found.tolist() for parts, found in counts.items()}


def _measure(bank: Bank) -> list[tuple[Divergence, Tensor]]:
    """Check that all is finite, in one pass, and return the divergences that a matrix product can score, with a center for each."""
    total, norms, largest = torch.zeros(bank.dim, dtype=torch.float64), 0.0, 0.0
    for start, block in bank.blocks():
        _check_finite(block, "the bank", start)
        rows = block.double()
        total += rows.sum(dim=0)
        norms += float(torch.linalg.vector_norm(rows, dim=1).sum())
        largest = max(largest, float(block.abs().max()))
    # squares that overflow have no slack: such a bank is compared directly
    return [(l2, total / len(bank)), (cosine, total / (norms or 1.0))] if largest < 1e140 else []


def _check_representations(representations: Tensor | np.ndarray) -> None:
    if representations.ndim != 2 or 0 in representations.shape:
        raise ValueError(f"the bank has shape {list(representations.shape)}; expected [bank, dim] with at least one row and one column")
    if representations.dtype not in (torch.float32, torch.float64, np.float32, np.float64):
        raise ValueError(
            f"the bank is {representations.dtype}; half precision rounds neighbors into ties and other types are no "
            "representations: keep it in float32 or float64"
        )
    if not isinstance(representations, np.ndarray) and representations.device.type != "cpu":
        raise ValueError(f"the bank lies on {representations.device}; it is ranked in float64 on the CPU: write representations.cpu()")


def _check_finite(rows: Tensor, what: str, start: int = 0) -> None:
    bad = ~torch.isfinite(rows).all(dim=1)
    if bad.any():
        raise ValueError(f"row {start + int(bad.nonzero()[0])} of {what} is not finite: it has no distance to anything; leave it out")


def _checked_rows(rows: Tensor | Sequence[int], what: str, *, low: int, size: int) -> Tensor:
    found = torch.as_tensor(rows).cpu()
    if found.numel() and found.is_floating_point():
        raise ValueError(f"{what} is {found.dtype}; rows are whole numbers: write .long()")
    wrong = found[(found < low) | (found >= size)]
    if wrong.numel():
        raise ValueError(f"{what} holds {int(wrong[0])}; the bank has {size} rows, so each must be in {low} to {size - 1}")
    return found.long()


def _inside(exclude: Tensor, size: int) -> tuple[Tensor, Tensor]:
    queries = ((exclude >= 0) & (exclude < size)).nonzero().squeeze(1)
    return queries, exclude[queries]


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))

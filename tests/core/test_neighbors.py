"""The bank against brute force in float64: every answer the same, ties included."""

import functools
import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rt_core import neighbors
from rt_core.divergences import DIVERGENCES, find_divergence, l1, l2, wasserstein2
from rt_core.errors import ShapeError
from rt_core.neighbors import Bank, pairwise

GOLDEN = Path(__file__).parents[1] / "golden"
EVERY = [*DIVERGENCES, functools.partial(wasserstein2, squared=True)]
BANK, DIM, BATCH = 90, 6, 40


def brute(divergence, bank, queries):
    """-> [batch, bank], float64"""
    function, bank = find_divergence(divergence), bank.double()
    return torch.stack([function(bank, query.expand_as(bank).contiguous()) for query in queries.double()])


def brute_counts(divergence, bank, queries, own, exclude):
    limit = find_divergence(divergence)(own.double(), queries.double())
    closer = brute(divergence, bank, queries) < limit[:, None]
    for query, row in enumerate(exclude.tolist()):
        if row >= 0:
            closer[query, row] = False
    return closer.sum(dim=1)


def brute_nearest(divergence, bank, queries, k, exclude):
    values, rows = [], []
    for query, row_values in enumerate(brute(divergence, bank, queries).tolist()):
        order = sorted((value, row) for row, value in enumerate(row_values) if row != exclude[query])[:k]
        values.append([value for value, _ in order])
        rows.append([row for _, row in order])
    return torch.tensor(values, dtype=torch.float64), torch.tensor(rows)


def brute_pairs(divergence, bank):
    first, second = torch.triu_indices(len(bank), len(bank), offset=1)
    return find_divergence(divergence)(bank.double()[first], bank.double()[second])


def make(kind, size=BANK, dim=DIM):
    """-> bank [size, dim], queries [BATCH, dim], own [BATCH, dim], exclude [BATCH]; one in four queries is of no row."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    bank = normal(size, dim)
    if kind == "large mean":
        bank = bank + 1e4
    elif kind == "large mean, float32":
        bank = (bank + 1e3).float()
    elif kind == "float32":
        bank = bank.float()
    elif kind == "near duplicates":
        bank[size // 2 :] = bank[: size - size // 2] + 1e-6 * normal(size - size // 2, dim)
    elif kind == "duplicates":
        bank[size // 3 :] = bank[torch.arange(size - size // 3) % (size // 3)]
    elif kind == "integers":
        bank = bank.round().float()
    elif kind == "zeros":
        bank[::5] = 0
    elif kind == "one point":
        bank = bank[:1].expand(size, dim)
    exclude = torch.arange(BATCH)
    own = bank[:BATCH].clone()
    queries = own + torch.where(torch.arange(BATCH) % 2 == 0, 1.0, 1e-6)[:, None].to(own) * normal(BATCH, dim).to(own)
    if kind == "integers":
        queries = queries.round()
    queries[::8] = own[::8]  # the query is its own clean representation: only what is strictly closer counts
    queries[1::8] = bank[-BATCH:][1::8]
    return bank, queries, own, torch.where(exclude % 4 == 3, -1, exclude)


KINDS = ["random", "float32", "large mean", "large mean, float32", "near duplicates", "duplicates", "integers", "zeros", "one point"]


@pytest.mark.parametrize("divergence", EVERY, ids=lambda one: one if isinstance(one, str) else "squared wasserstein2")
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_equals_brute_force(kind, divergence):
    bank, queries, own, exclude = make(kind)
    subject = Bank(bank)
    if brute(divergence, bank, queries).isnan().any():
        pytest.skip("the exponential of such log variances overflows; see test_a_divergence_that_is_nan_is_an_error")
    counts = subject.closer_counts(queries, own, exclude, divergence)
    assert counts.dtype == torch.long
    assert torch.equal(counts, brute_counts(divergence, bank, queries, own, exclude))
    for k in (1, 7, BANK - 1):
        found, expected = subject.nearest(queries, k, exclude, divergence), brute_nearest(divergence, bank, queries, k, exclude)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    assert_quantiles(subject, divergence, brute_pairs(divergence, bank))


def assert_quantiles(subject, divergence, pairs):
    some = pairs[:: max(len(pairs) // 100, 1)]
    above, below = (torch.nextafter(some, torch.full_like(some, end)) for end in (math.inf, -math.inf))
    values = torch.cat([some, above, below, 1.5 * some, pairs.new_tensor([0.0, -1.0, 1e-300, 1e200, math.inf])])
    expected = torch.searchsorted(pairs.sort().values, values, right=True).double() / len(pairs)
    assert torch.equal(subject.pair_quantiles(values, divergence), expected)
    assert torch.equal(subject.pair_quantiles(values.flip(0), divergence).flip(0), expected)  # from what was kept


@pytest.mark.parametrize(("kind", "divergence"), [("integers", "l2"), ("large mean", "l2"), ("duplicates", "cosine"), ("random", "linf")])
def test_several_blocks_of_the_bank_and_of_the_queries(kind, divergence):
    bank, queries, own, exclude = make(kind, size=2100, dim=3)
    subject = Bank(bank, quantile_rows=1300)
    queries, own, exclude = queries.repeat(30, 1), own.repeat(30, 1), exclude.repeat(30)  # 1,200 queries
    expected = brute_counts(divergence, bank, queries[:BATCH], own[:BATCH], exclude[:BATCH])
    assert torch.equal(subject.closer_counts(queries, own, exclude, divergence), expected.repeat(30))
    values, rows = subject.nearest(queries, 5, exclude, divergence)
    expected_values, expected_rows = brute_nearest(divergence, bank, queries[:BATCH], 5, exclude)
    assert torch.equal(values, expected_values.repeat(30, 1))
    assert torch.equal(rows, expected_rows.repeat(30, 1))
    assert subject.nearest(queries[:1], 2000, exclude[:1], divergence)[1].unique().numel() == 2000
    assert subject.pair_count == 1300 * 1299 // 2
    assert_quantiles(subject, divergence, brute_pairs(divergence, bank[:1300]))


def test_wide_representations_with_a_common_mean():
    bank, queries, own, exclude = make("large mean", size=200, dim=512)
    queries[10:20] = bank[60:70] + 1e-6
    for divergence in ("l2", "cosine"):
        expected = brute_counts(divergence, bank, queries, own, exclude)
        assert torch.equal(Bank(bank).closer_counts(queries, own, exclude, divergence), expected)
        assert torch.equal(Bank(bank).nearest(queries, 3, exclude, divergence)[1], brute_nearest(divergence, bank, queries, 3, exclude)[1])


def test_values_whose_squares_overflow_are_compared_directly():
    bank, queries, own, exclude = make("random")
    for scale in (1e-200, 1e100, 1e145):
        subject = Bank(bank * scale)
        assert torch.equal(
            subject.closer_counts(queries * scale, own * scale, exclude),
            brute_counts("l2", bank * scale, queries * scale, own * scale, exclude),
        )
        assert_quantiles(subject, "cosine", brute_pairs("cosine", bank * scale))
    far = torch.full((1, DIM), 1e300, dtype=torch.float64)
    assert Bank(bank).closer_counts(far, own[:1], [0]).item() == brute_counts("l2", bank, far, own[:1], torch.tensor([0])).item()
    assert Bank(bank).nearest(far, 3, [-1])[1].tolist() == brute_nearest("l2", bank, far, 3, [-1])[1].tolist()


def test_own_row_is_excluded_by_index_and_a_duplicate_of_it_is_a_tie():
    bank = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    query, own = torch.tensor([[0.6, 0.0]]), bank[:1]
    subject = Bank(bank)
    assert subject.closer_counts(query, own, [0]).item() == 1  # row 2; row 1 is as close as own
    assert subject.closer_counts(query, own, [2]).item() == 0
    assert subject.nearest(query, 3, [0])[1].tolist() == [[2, 1, 3]]
    assert subject.nearest(bank[:1], 2, [-1])[1].tolist() == [[0, 1]]  # a tie: the lower row
    assert subject.nearest(bank[:1], 1, [0])[1].tolist() == [[1]]


def test_argument_order_is_bank_then_query():
    bank, queries, own, _ = make("random")
    seen = brute("kl", bank, queries)
    assert not torch.equal(seen, brute(lambda first, second: find_divergence("kl")(second, first), bank, queries))
    assert torch.equal(pairwise("kl", bank, queries).T, seen)
    values, rows = Bank(bank).nearest(queries, 1, torch.full((BATCH,), -1), "kl")
    assert torch.equal(values.squeeze(1), seen.min(dim=1).values)
    assert torch.equal(rows.squeeze(1), seen.argmin(dim=1))
    assert Bank(bank).closer_counts(own, own, torch.arange(BATCH), "kl").sum() == 0


small_banks = st.integers(2, 12).flatmap(
    lambda size: st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), min_size=size, max_size=size)
)


@settings(deadline=None, max_examples=60)
@given(rows=small_banks, divergence=st.sampled_from([*DIVERGENCES]), offset=st.sampled_from([0.0, 0.1, 3e3]), double=st.booleans())
def test_small_banks_full_of_ties_equal_brute_force(rows, divergence, offset, double):
    assume(divergence != "wasserstein2" or offset < 10)  # log variances whose exponential overflows
    bank = torch.tensor(rows, dtype=torch.float64 if double else torch.float32) + offset
    subject, exclude = Bank(bank), torch.arange(len(bank))
    own = bank.roll(1, 0)
    assert torch.equal(subject.closer_counts(bank, own, exclude, divergence), brute_counts(divergence, bank, bank, own, exclude))
    found, expected = subject.nearest(bank, 1, exclude, divergence), brute_nearest(divergence, bank, bank, 1, exclude)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert_quantiles(subject, divergence, brute_pairs(divergence, bank))


@settings(deadline=None, max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    divergence=st.sampled_from([*DIVERGENCES]),
    cuts=st.lists(st.integers(0, BATCH), max_size=4),
    order=st.permutations(range(BATCH)),
)
def test_answers_do_not_depend_on_the_batch(kind, divergence, cuts, order):
    assume(divergence != "wasserstein2" or kind != "large mean")
    bank, queries, own, exclude = make(kind, size=50)
    values = torch.linspace(0, 4, BATCH, dtype=torch.float64)
    subject, order = Bank(bank), torch.tensor(order)
    counts = subject.closer_counts(queries, own, exclude, divergence)
    near = subject.nearest(queries, 4, exclude, divergence)
    quantiles = subject.pair_quantiles(values, divergence)
    edges = [0, *sorted(cuts), BATCH]
    for start, stop in itertools.pairwise(edges):
        part = order[start:stop]
        assert torch.equal(subject.closer_counts(queries[part], own[part], exclude[part], divergence), counts[part])
        found = subject.nearest(queries[part], 4, exclude[part], divergence)
        assert torch.equal(found[0], near[0][part])
        assert torch.equal(found[1], near[1][part])
        assert torch.equal(subject.pair_quantiles(values[part], divergence), quantiles[part])


def test_float32_and_float64_queries_of_the_same_numbers_agree():
    bank, queries, own, exclude = make("float32")
    subject = Bank(bank)
    assert torch.equal(subject.closer_counts(queries, own, exclude), subject.closer_counts(queries.double(), own.double(), exclude))
    assert torch.equal(subject.nearest(queries, 3, exclude)[0], subject.nearest(queries.double(), 3, exclude)[0])
    assert not subject.closer_counts(queries.requires_grad_(), own, exclude).requires_grad


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_map_answers_as_the_tensor_does(tmp_path, dtype):
    bank, queries, own, exclude = make("duplicates")
    np.save(tmp_path / "bank.npy", bank.numpy().astype(dtype))
    mapped = Bank(np.load(tmp_path / "bank.npy", mmap_mode="r"), ids=[f"photo-{row}" for row in range(BANK)])
    held = Bank(torch.from_numpy(bank.numpy().astype(dtype)))
    assert (len(mapped), mapped.dim) == (BANK, DIM)
    for divergence in ("l2", "cosine", "l1"):
        assert torch.equal(mapped.closer_counts(queries, own, exclude, divergence), held.closer_counts(queries, own, exclude, divergence))
        values = torch.linspace(0, 5, 50, dtype=torch.float64)
        assert torch.equal(mapped.pair_quantiles(values, divergence), held.pair_quantiles(values, divergence))
    assert torch.equal(mapped.take([5, 0, 5]), held.take([5, 0, 5]))
    assert mapped.take([1]).numpy().dtype == dtype


@pytest.mark.parametrize(
    "kind", [torch.arange, np.arange, lambda size: list(torch.arange(size)), lambda size: list(np.arange(size)), range]
)
def test_ids_are_the_same_whether_plain_numpys_or_in_a_tensor(kind):
    bank = Bank(torch.zeros(3, 2), ids=kind(3))
    assert bank.ids == ("0", "1", "2")
    assert bank.rows(kind(2)).tolist() == [0, 1]


@pytest.mark.parametrize(
    "labels", [[0.0, 2.0, 1.0], torch.tensor([0.0, 2.0, 1.0]), np.array([[0], [2], [1]]), np.array([0, 2, 1], np.uint8)]
)
def test_labels_are_whole_numbers_in_whatever_form(labels):
    found = Bank(torch.zeros(3, 2), labels=labels).labels
    assert found == (0, 2, 1)
    assert all(type(label) is int for label in found)


def test_blocks_rows_and_take():
    bank = torch.arange(20, dtype=torch.float32).view(10, 2)
    subject = Bank(bank, ids=list("abcdefghij"), labels=torch.arange(10) % 3)
    blocks = list(subject.blocks(size=4))
    assert [start for start, _ in blocks] == [0, 4, 8]
    assert torch.equal(torch.cat([block for _, block in blocks]), bank)
    assert subject.rows(["c", "nobody", "a"]).tolist() == [2, -1, 0]
    assert torch.equal(subject.take(subject.rows(["c", "a"])), bank[[2, 0]])
    assert subject.labels == (0, 1, 2, 0, 1, 2, 0, 1, 2, 0)
    assert Bank(bank).ids == tuple("0123456789")
    assert Bank(bank).rows([3]).tolist() == [3]
    assert Bank(bank).labels is None
    assert Bank(bank, quantile_rows=4).pair_count == 6


def test_nothing_asked_nothing_answered():
    subject, nothing = Bank(torch.eye(4)), torch.zeros(0, 4)
    assert subject.closer_counts(nothing, nothing, []).tolist() == []
    assert subject.nearest(nothing, 2, [])[0].shape == (0, 2)
    assert subject.pair_quantiles(torch.zeros(0)).shape == (0,)
    assert pairwise("l2", torch.eye(4), nothing).shape == (4, 0)


def test_nan_has_no_quantile():
    found = Bank(torch.eye(4)).pair_quantiles(torch.tensor([math.nan, 1.0, 2.0], dtype=torch.float64))
    assert found[0].isnan()
    assert found[1:].tolist() == [0.0, 1.0]


def test_a_divergence_that_is_nan_is_an_error():
    bank, queries, own, exclude = make("large mean")
    with pytest.raises(ValueError, match="wasserstein2 is NaN between"):
        Bank(bank).closer_counts(queries, own, exclude, "wasserstein2")
    with pytest.raises(ValueError, match="wasserstein2 is NaN between"):
        Bank(bank).nearest(queries, 1, exclude, "wasserstein2")
    with pytest.raises(ValueError, match="wasserstein2 is NaN between"):
        Bank(bank).pair_quantiles(torch.ones(1), "wasserstein2")


def test_sorted_pairs_are_computed_once_for_each_divergence():
    calls = []

    def counted(first, second):
        calls.append(len(first))
        return l1(first, second)

    subject = Bank(torch.eye(4))
    expected = subject.pair_quantiles(torch.tensor([1.0, 2.0]), "l1")
    for _ in range(3):
        assert torch.equal(subject.pair_quantiles(torch.tensor([1.0, 2.0]), counted), expected)
    assert len(calls) == 1


def golden_recipe():
    spec = importlib.util.spec_from_file_location("golden_recipe", GOLDEN / "recipe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_golden_quantiles():
    recipe, golden = golden_recipe(), json.loads((GOLDEN / "golden.json").read_text())
    subject = Bank(torch.from_numpy(recipe.encode(recipe.images(24))))
    exact, table = golden["independent_universal_quantile_ecdf"], golden["quantile_table"]
    assert subject.pair_count == table["n_pairs"]
    asked = [index for index, distance in enumerate(exact["distances"]) if distance >= 0]  # the last stands for an abstention
    for divergence in ("l2", "linf"):
        found = subject.pair_quantiles(torch.tensor([exact["distances"][index] for index in asked], dtype=torch.float64), divergence)
        np.testing.assert_allclose(found.numpy(), [exact[divergence][index] for index in asked], rtol=0, atol=1e-12)
    for divergence in ("l1", "l2", "linf"):  # a level's value lies between two pairs, so the share counts up to the lower of them
        found = subject.pair_quantiles(torch.tensor(table[divergence], dtype=torch.float64), divergence)
        expected = [(math.floor(level * (subject.pair_count - 1)) + 1) / subject.pair_count for level in table["levels"]]
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("divergence", EVERY, ids=lambda one: one if isinstance(one, str) else "squared wasserstein2")
def test_pairwise_is_the_direct_form_and_differentiable(divergence):
    first, second, _, _ = make("near duplicates")
    second = second[:9].requires_grad_()
    found = pairwise(divergence, first, second)
    assert torch.equal(found.detach(), brute(divergence, first, second.detach()).T)
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    (slope,) = torch.autograd.grad((found * weights).sum(), second)
    function = find_divergence(divergence)
    alone = torch.stack([function(first, query.expand_as(first)) for query in second], dim=1)
    (expected,) = torch.autograd.grad((alone * weights).sum(), second)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12)
    assert pairwise(divergence, first.float(), first[:3].float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("representations", "options", "message"),
    [
        (torch.zeros(3, 2).half(), {}, "float16.*rounds neighbors into ties"),
        (torch.zeros(3, 2).bfloat16(), {}, "bfloat16"),
        (np.zeros((3, 2), dtype=np.float16), {}, "float16"),
        (torch.zeros(3, 2, dtype=torch.long), {}, "int64"),
        (torch.zeros(3), {}, r"shape \[3\]"),
        (torch.zeros(0, 3), {}, r"shape \[0, 3\]"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), {}, "row 1 of the bank is not finite"),
        (torch.cat([torch.zeros(1500, 2), torch.full((1, 2), math.inf)]), {}, "row 1500 of the bank is not finite"),
        (torch.zeros(3, 2), {"ids": ["a", "b", "a"]}, "id 'a' stands for more than one row"),
        (torch.zeros(3, 2), {"ids": ["a", "b"]}, "2 ids for 3 rows"),
        (torch.zeros(3, 2), {"labels": [1]}, "1 labels for 3 rows"),
        (torch.zeros(3, 2), {"labels": [0.7, 1.2, 2.9]}, "a label is 0.7; expected a class, a whole number from 0 on"),
        (torch.zeros(3, 2), {"labels": [0, -1, 1]}, "a label is -1; expected a class.*leave out samples without a label"),
        (torch.zeros(3, 2), {"labels": ["a", "b", "a"]}, "a label is 'a'; .*number the classes"),
        (torch.zeros(3, 2), {"labels": torch.eye(3)}, r"a label is \[1.0, 0.0, 0.0\]; .*argmax"),
        (torch.zeros(3, 2), {"quantile_rows": 4}, "quantile_rows is 4; the bank has 3 rows"),
    ],
)
def test_banks_that_are_refused(representations, options, message):
    with pytest.raises(ValueError, match=message):
        Bank(representations, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda bank, rows: bank.nearest(rows, 4, [0, 1]), "k is 4; 3 of the bank's 4 rows remain"),
        (lambda bank, rows: bank.nearest(rows, 5, [-1, -1]), "k is 5; 4 of the bank's 4 rows remain"),
        (lambda bank, rows: bank.nearest(rows, 0, [-1, -1]), "k is 0"),
        (lambda bank, rows: bank.nearest(rows, 1, [-1, 4]), "exclude holds 4; the bank has 4 rows"),
        (lambda bank, rows: bank.nearest(rows, 1, [-2, 0]), "exclude holds -2"),
        (lambda bank, rows: bank.nearest(rows, 1, [0.0, 1.0]), "whole numbers"),
        (lambda bank, rows: bank.nearest(rows, 1, [0]), r"exclude has shape \[1\]"),
        (lambda bank, rows: bank.nearest(rows, 1, [0, 1], "L2"), "no divergence is named 'L2'"),
        (lambda bank, rows: bank.nearest(rows, 1, [0, 1], lambda first, second: first - second), "the result of <lambda> has shape"),
        (lambda bank, rows: bank.nearest(rows[:, :3], 1, [0, 1]), r"queries has shape \[2, 3\]"),
        (lambda bank, rows: bank.nearest(rows * math.nan, 1, [0, 1]), "row 0 of queries is not finite"),
        (lambda bank, rows: bank.closer_counts(rows, rows[:1], [0, 1]), r"own has shape \[1, 4\]"),
        (lambda bank, rows: bank.closer_counts(rows, rows / 0, [0, 1]), "row 0 of own is not finite"),
        (lambda bank, rows: bank.take([0, -1]), "rows holds -1"),
        (lambda bank, rows: bank.pair_quantiles(rows), "values has shape"),
        (lambda bank, rows: Bank(rows, quantile_rows=1).pair_quantiles(rows[0]), "at least 2 rows, and there is 1"),
        (lambda bank, rows: pairwise("l2", rows, rows[:, :2]), "second has shape"),
    ],
)
def test_questions_that_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(Bank(torch.eye(4)), torch.eye(4)[:2])


MEMORY = """
import resource, sys
import numpy as np, torch
from rt_core.neighbors import Bank

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.set_num_threads(1)
warm = Bank(torch.randn(1100, 512))
warm.pair_quantiles(torch.ones(3, dtype=torch.float64)), warm.nearest(torch.randn(64, 512), 2, torch.arange(64))
del warm
rows = torch.randn(4000, 512)
before = peak()
subject = Bank(rows)
values = (rows[1:9].double() - rows[:8].double()).norm(dim=1)  # exact ties: the second pass is part of the price
subject.pair_quantiles(values)
subject.pair_quantiles(torch.linspace(20, 40, 1000, dtype=torch.float64))
print(peak() - before)
del subject
mapped = np.lib.format.open_memmap(sys.argv[1], mode="w+", dtype=np.float32, shape=(100_000, 256))
for start in range(0, len(mapped), 10_000):
    mapped[start : start + 10_000] = np.random.default_rng(start).standard_normal((10_000, 256), dtype=np.float32)
mapped.flush()
before = peak()
Bank(np.load(sys.argv[1], mmap_mode="r")).closer_counts(torch.randn(64, 256), torch.randn(64, 256), torch.arange(64))
print(peak() - before)
"""


def test_memory_stays_within_its_ceiling(tmp_path):
    """All pairs of 10,000 x 2,048 fit in 1 GiB above the bank; here that is scaled to the 8 million pairs of 4,000 rows."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "bank.npy")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    pairs, mapped = map(float, done.stdout.split())
    assert pairs < 1024 * (4000 * 3999) / (10_000 * 9_999)  # 164 MiB, of which the pairs themselves are 61
    assert mapped < 98 + 60  # the pages that were read of a map count as memory; a copy in float64 would be 195 more


def test_l2_is_recognised_by_name_and_by_function():
    bank, queries, own, exclude = make("random")
    assert torch.equal(Bank(bank).closer_counts(queries, own, exclude, l2), Bank(bank).closer_counts(queries, own, exclude, "l2"))


def parted(size=60, dim=5, parts=4, **options):
    rows = torch.randn(size, dim, generator=torch.Generator().manual_seed(3)).round(decimals=1)  # coarse, so that there are ties
    return rows, Bank(rows, parts=[row // 2 % parts for row in range(size)], labels=range(size), **options)


@pytest.mark.parametrize("divergence", ["l2", "cosine", "linf"])
def test_a_bank_without_a_part_is_the_bank_of_the_other_rows(divergence):
    rows, bank = parted(quantile_rows=41)
    queries, own = rows[:7] + 0.3, rows[:7]
    bank.pair_quantiles(torch.tensor([1.0]), divergence)  # what is sorted already is shared
    for part in range(4):
        kept = [row for row in range(60) if row // 2 % 4 != part]
        reduced, other = bank.without(part), Bank(rows[kept], ids=kept, labels=kept, quantile_rows=sum(row < 41 for row in kept))
        assert len(reduced) == len(other)
        assert (reduced.ids, reduced.labels, reduced.pair_count) == (other.ids, other.labels, other.pair_count)
        exclude = reduced.rows(range(7))
        assert exclude.equal(other.rows(range(7)))
        assert reduced.take([0, 5, 2]).equal(other.take([0, 5, 2]))
        assert reduced.closer_counts(queries, own, exclude, divergence).equal(other.closer_counts(queries, own, exclude, divergence))
        for one, two in zip(reduced.nearest(queries, 6, exclude, divergence), other.nearest(queries, 6, exclude, divergence), strict=True):
            assert one.equal(two)
        distances = reduced.nearest(queries, 6, exclude, divergence)[0].flatten()  # among them ties with pairs of the bank
        assert reduced.pair_quantiles(distances, divergence).equal(other.pair_quantiles(distances, divergence))
        assert reduced.quantile_value(0.3, divergence) == pytest.approx(other.quantile_value(0.3, divergence), rel=1e-12)


def test_parts_change_no_answer_of_the_whole_bank():
    rows, bank = parted()
    plain, values = Bank(rows), pairwise("l2", rows.double(), rows.double()).flatten()
    assert bank.pair_quantiles(values).equal(plain.pair_quantiles(values))
    with pytest.raises(ShapeError, match="parts"):
        Bank(rows, parts=[0, 1])


@pytest.mark.parametrize("divergence", ["l2", "cosine", "linf"])
def test_the_value_of_a_quantile_is_the_smallest_that_reaches_it(divergence):
    rows, bank = parted(parts=1)
    values = pairwise(divergence, rows.double(), rows.double())[torch.ones(60, 60).triu(1).bool()].sort().values
    for share in (1e-9, 0.1, 0.5, 0.99, 1.0):
        found = bank.quantile_value(share, divergence)
        assert bank.pair_quantiles(torch.tensor([found], dtype=torch.float64), divergence).item() >= share
        assert found == pytest.approx(values[max(math.ceil(share * len(values)) - 1, 0)].item(), rel=1e-7)
    assert Bank(torch.ones(5, 3)).quantile_value(0.5, divergence) == 0
    for share in (0.0, 1.1, -1):
        with pytest.raises(ValueError, match="share"):
            bank.quantile_value(share, divergence)


@pytest.mark.parametrize("divergence", ["l2", "linf"])
def test_of_too_many_pairs_a_random_sample_stands_for_all_within_the_stated_error(monkeypatch, divergence):
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(4))
    values = torch.linspace(0, 6, 50, dtype=torch.float64)
    parts = [row % 3 for row in range(300)]
    exact = Bank(rows, parts=parts)
    assert exact.quantile_error == 0
    everything, reduced = exact.pair_quantiles(values, divergence), exact.without(1).pair_quantiles(values, divergence)
    monkeypatch.setattr(neighbors, "_ALL_PAIRS", 1000)
    monkeypatch.setattr(neighbors, "_SAMPLED_PAIRS", 20_000)
    errors = []
    for seed in range(20):
        sampled = Bank(rows, parts=parts, seed=seed)
        found = sampled.pair_quantiles(values, divergence)
        assert found.equal(Bank(rows, seed=seed).pair_quantiles(values, divergence))  # parts are no part of the draw
        assert sampled.pair_quantiles(values[7:9], divergence).equal(found[7:9])
        errors.append((found - everything).abs().max().item())
        assert (sampled.without(1).pair_quantiles(values, divergence) - reduced).abs().max() < 2 * sampled.quantile_error
    assert sampled.quantile_error == pytest.approx(math.sqrt(math.log(40) / 40_000))
    assert sum(error <= sampled.quantile_error for error in errors) >= 18  # all at once in 95 % of draws at least
    assert len(set(errors)) > 10
    assert sampled.quantile_value(0.5, divergence) == pytest.approx(exact.quantile_value(0.5, divergence), rel=0.05)


def test_a_bank_counts_who_looks_at_its_representations():
    rows, bank = parted()
    before = bank.reads
    bank.rows(["3"]), len(bank), bank.labels, bank.ids
    assert bank.reads == before
    for look in (
        lambda: bank.take([1]),
        lambda: bank.nearest(rows[:1], 1, [0]),
        lambda: bank.closer_counts(rows[:1], rows[:1], [0]),
        lambda: bank.pair_quantiles(torch.ones(1)),
        lambda: bank.pair_quantiles(torch.ones(1)),  # also where the answer is known already
        lambda: bank.quantile_value(0.5),
        lambda: next(bank.blocks()),
    ):
        before = bank.reads
        look()
        assert bank.reads > before


def test_the_lower_row_comes_first_in_every_pair_whatever_the_parts():
    rows, bank = parted()
    values = pairwise("kl", rows.double(), rows.double())[torch.ones(60, 60).triu(1).bool()]
    asked = values.sort().values[::50]
    expected = torch.tensor([(values <= one).double().mean().item() for one in asked], dtype=torch.float64)
    torch.testing.assert_close(bank.pair_quantiles(asked, "kl"), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(Bank(rows).pair_quantiles(asked, "kl"), expected, rtol=0, atol=1e-12)
    kept = [row for row in range(60) if row // 2 % 4 != 2]
    torch.testing.assert_close(
        bank.without(2).pair_quantiles(asked, "kl"), Bank(rows[kept]).pair_quantiles(asked, "kl"), rtol=0, atol=1e-12
    )


def test_parts_are_left_out_one_at_a_time_and_are_whole_numbers():
    rows, bank = parted()
    with pytest.raises(ValueError, match="part 1 is left out already; leave parts out of the whole bank"):
        bank.without(1).without(2)
    for parts in ([-1] * 60, [0.5] * 60):
        with pytest.raises(ValueError, match="expected whole numbers from 0 on, one a row"):
            Bank(rows, parts=parts)


def test_what_must_be_settled_is_settled_once_for_all_parts(monkeypatch):
    rows, bank = parted()
    calls, settle = [], neighbors._settle
    monkeypatch.setattr(neighbors, "_settle", lambda *arguments: calls.append(1) or settle(*arguments))
    ties = pairwise("l2", rows[:5].double(), rows[5:10].double()).flatten()
    answers = [reduced.pair_quantiles(ties) for reduced in (bank, *(bank.without(part) for part in range(4)))]
    assert len(calls) == 1
    for part, answer in enumerate(answers[1:]):
        assert answer.equal(Bank(rows[[row for row in range(60) if row // 2 % 4 != part]]).pair_quantiles(ties))

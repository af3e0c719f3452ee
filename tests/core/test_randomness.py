"""Randomness belongs to the sample: whatever the batch, the order or what was drawn before, a sample's numbers are its own."""

import pickle
import random as python_random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rt_core.randomness import SampleRandom, stream

KNOWN = {
    "uniform": [[0.32089853286743164, 0.9250635504722595], [0.7444124817848206, 0.5868501663208008]],
    "normal": [[0.2920137941837311, -2.1135857105255127], [-0.8806913495063782, 0.343082457780838]],
    "library": 172754546,
}
IDS = tuple(f"photos/{number}.png" for number in range(7))
DRAWS = {"uniform": lambda random, *shape: random.uniform("start", shape), "normal": lambda random, *shape: random.normal("start", shape)}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(seed=st.integers(0, 2**63), split=st.integers(1, 6), order=st.permutations(range(7)))
def test_a_sample_s_numbers_do_not_depend_on_the_others(draw, seed, split, order):
    whole = draw(SampleRandom.of(seed, IDS), 3, 2)
    parts = [draw(SampleRandom.of(seed, IDS[first : first + split]), 3, 2) for first in range(0, 7, split)]
    shuffled = draw(SampleRandom.of(seed, [IDS[row] for row in order]), 3, 2)

    assert whole.shape == (7, 3, 2)
    assert whole.dtype == torch.float32
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(shuffled, whole[list(order)])


def test_the_same_purpose_gives_the_same_numbers_and_another_gives_others():
    random = SampleRandom.of(0, IDS)
    first = random.uniform("start", (50,))

    assert torch.equal(random.uniform("start", (50,)), first)
    others = [
        random.uniform("noise", (50,)),
        SampleRandom.of(1, IDS).uniform("start", (50,)),
        SampleRandom.of(0, [f"{one}x" for one in IDS]).uniform("start", (50,)),
    ]
    for one in others:
        assert not torch.isclose(one, first).all(1).any()
        assert abs(np.corrcoef(one.flatten(), first.flatten())[0, 1]) < 0.2


def test_keys_do_not_run_into_each_other():
    assert stream(1, "a", "b").random() != stream(1, "a\0b").random() != stream(1, "ab").random()
    assert stream(11, "a").random() != stream(1, "1a").random()
    assert stream(3, "a", "b").random() == stream(3, "a", "b").random()


def test_no_two_of_many_samples_share_their_numbers():
    drawn = SampleRandom.of(0, range(20_000)).uniform("start", (2,)).double()
    assert len(torch.unique(drawn, dim=0)) == 20_000


def test_draws_have_the_distributions_that_they_say():
    random = SampleRandom.of(5, range(400))
    uniform, normal = random.uniform("a", (50,), low=-2, high=3), random.normal("a", (50,))

    assert uniform.min() >= -2
    assert uniform.max() < 3
    assert stats.kstest(uniform.flatten().numpy(), "uniform", args=(-2, 5)).pvalue > 0.01
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.01


def test_numbers_stay_the_same_over_versions():
    # These are what stores and papers hold: a change of them is a change of every result.
    random = SampleRandom.of(0, ["a", 1])
    assert random.uniform("start", (2,)).tolist() == KNOWN["uniform"]
    assert random.normal("start", (2,)).tolist() == KNOWN["normal"]
    assert random.library_seed("start") == KNOWN["library"]


def test_a_scalar_a_sample_and_parts_of_the_samples():
    random = SampleRandom.of(0, IDS)
    assert random.uniform("length", ()).shape == (7,)
    assert torch.equal(random.select(slice(2, 5)).normal("a", (4,)), random.normal("a", (4,))[2:5])
    assert torch.equal(random.select([4, 1]).normal("a", (4,)), random.normal("a", (4,))[[4, 1]])


@pytest.mark.parametrize(
    "ids", [[2, 0], np.array([2, 0]), torch.tensor([2, 0]), torch.tensor([[2], [0]]), list(torch.tensor([2, 0])), "20"]
)
def test_ids_are_the_same_of_whatever_type_a_number_is(ids):
    assert SampleRandom.of(0, ids) == SampleRandom(0, ("2", "0"))


@pytest.mark.parametrize("seed", [3, np.int64(3), np.uint8(3)])
def test_a_seed_may_be_numpy_s(seed):
    assert SampleRandom.of(seed, [0]) == SampleRandom(3, ("0",))
    assert type(SampleRandom.of(seed, [0]).seed) is int


@pytest.mark.parametrize("seed", [3.9, 3.0, "3", None, True, np.float64(3), np.bool_(True), torch.tensor(3)])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ValueError, match=r"^seed is .*; expected a whole number, such as 0$"):
        SampleRandom.of(seed, [0])


def test_global_generators_are_seeded_and_put_back_on_error_too():
    def draws():
        return python_random.random(), np.random.random(), torch.rand(1).item()

    def fail_after_drawing(random):
        with random.global_generators("library"):
            seen.append(draws())
            raise ArithmeticError

    seen = []
    before = python_random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            fail_after_drawing(SampleRandom.of(0, IDS))
    with SampleRandom.of(0, IDS[::-1]).global_generators("library"):
        seen.append(draws())

    assert seen[0] == seen[1]
    assert all(one != other for one, other in zip(seen[1], seen[2], strict=True))
    assert before[:2] == (python_random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def test_only_generators_that_are_put_back_are_seeded(monkeypatch):
    seeded, put_back = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)  # before CUDA is started, it would be kept until then
    monkeypatch.setattr(torch.mps, "manual_seed", seeded.append)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "before")
    monkeypatch.setattr(torch.mps, "set_rng_state", put_back.append)
    for available in (False, True):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda available=available: available)
        with SampleRandom.of(0, IDS).global_generators("library"):
            drawn = torch.rand(3)
    assert seeded == [SampleRandom.of(0, IDS).library_seed("library")]
    assert put_back == ["before"]
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(seeded[0])))


def test_drawing_leaves_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    SampleRandom.of(0, IDS).normal("a", (3,))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


def test_it_is_a_value():
    random = SampleRandom.of(3, [1, 2])
    assert pickle.loads(pickle.dumps(random)) == random == SampleRandom(3, ("1", "2"))

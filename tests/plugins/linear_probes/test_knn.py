"""k-nearest-neighbor accuracy: votes, ties, the sample itself, and what it refuses."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rt_core import Bank, MissingLabels, divergences
from rt_core.testing import read_example
from rt_linear_probes import KnnAccuracy, knn_predictions

LINE = torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0], [11.0]])
NOT_IN_BANK = torch.tensor([-1])


def predict(query, labels, k, own=NOT_IN_BANK):
    return knn_predictions(torch.tensor([[query]]), Bank(LINE, labels=labels), own, k=k).item()


def test_most_of_the_nearest_decide():
    assert predict(0.4, [7, 5, 5, 5, 5, 5], k=1) == 7
    assert predict(0.4, [7, 5, 5, 7, 7, 7], k=3) == 5
    assert predict(0.4, [7, 5, 5, 7, 7, 7], k=5) == 7


def test_of_labels_with_as_many_votes_that_of_the_nearest_row_is_taken():
    assert predict(0.4, [7, 5, 5, 7, 0, 0], k=4) == 7
    assert predict(0.6, [7, 5, 5, 7, 0, 0], k=4) == 5
    assert predict(0.5, [7, 5, 0, 0, 0, 0], k=2) == 7  # equally near: the first row


def test_the_sample_itself_has_no_vote():
    labels = [7, 5, 5, 1, 1, 1]
    assert predict(0.0, labels, k=1) == 7
    assert predict(0.0, labels, k=1, own=torch.tensor([0])) == 5


def test_k_others_are_asked_and_never_more_than_there_are():
    bank, queries, own = Bank(LINE, labels=[0, 1, 2, 3, 4, 5]), LINE, torch.arange(6)
    _, rows = bank.nearest(queries, 5, own)
    assert all(sorted([*found, own]) == list(range(6)) for own, found in enumerate(rows.tolist()))
    assert knn_predictions(queries, bank, own, k=5).shape == (6,)
    with pytest.raises(ValueError, match="k is 6; 5 of the bank's 6 rows remain"):
        knn_predictions(queries, bank, own, k=6)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"k is {wrong}"):
            knn_predictions(queries, bank, own, k=wrong)


@given(seed=st.integers(0, 2**31), k=st.integers(1, 8), divergence=st.sampled_from(["l2", "cosine", "l1"]))
def test_predictions_are_what_counting_gives(seed, k, divergence):
    generator = torch.Generator().manual_seed(seed)
    rows, labels = torch.randn(9, 3, generator=generator), torch.randint(0, 3, (9,), generator=generator).tolist()
    found = knn_predictions(rows, Bank(rows, labels=labels), torch.arange(9), k=k, divergence=divergence)

    for row in range(9):
        distances = divergences.DIVERGENCES[divergence](rows.double(), rows[row].double().expand(9, 3)).tolist()
        votes = [labels[other] for other in sorted((other for other in range(9) if other != row), key=distances.__getitem__)[:k]]
        assert found[row] == max(votes, key=lambda label: (votes.count(label), -votes.index(label)))


def test_accuracy_compares_with_the_sample_s_own_label():
    trace, bank, context = read_example("clean")
    accuracy = KnnAccuracy(k=3)(trace, bank, context)
    predicted = knn_predictions(trace.clean, bank, torch.arange(12), k=3)

    assert accuracy.tolist() == (predicted == context.labels).double().tolist()
    assert set(accuracy.tolist()) == {0.0, 1.0}
    own = replace(context, known_labels=predicted.tolist())
    assert KnnAccuracy(k=3)(trace, bank, own).tolist() == [1.0] * 12


def test_normalization_is_an_option():
    rows = torch.tensor([[1.0, 0.0], [100.0, 0.0], [0.0, 1.0]])
    bank, query = Bank(rows, labels=[0, 1, 2]), torch.tensor([[9.0, 1.0]])

    assert knn_predictions(query, bank, NOT_IN_BANK, k=1).item() == 0
    assert knn_predictions(query * 11, bank, NOT_IN_BANK, k=1).item() == 1
    assert {knn_predictions(scale * query, bank, NOT_IN_BANK, k=1, divergence="cosine").item() for scale in (1, 11)} == {0}


def test_labels_that_are_missing_are_asked_for():
    trace, bank, context = read_example("clean")
    with pytest.raises(
        MissingLabels, match="metric knn_accuracy reads labels and the dataset has none; give a dataset with labels, or leave"
    ):
        KnnAccuracy()(trace, bank, replace(context, known_labels=None))
    with pytest.raises(MissingLabels, match="labels of the bank"):
        knn_predictions(LINE, Bank(LINE), torch.arange(6), k=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 1.5}, "k is 1.5"),
        ({"k": True}, "k is True; expected a whole number"),
        ({"divergence": "l3"}, "no divergence"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        KnnAccuracy(**options)


def test_it_is_a_value():
    assert pickle.loads(pickle.dumps(KnnAccuracy(k=3))) == KnnAccuracy(k=3) != KnnAccuracy(k=4)
    assert type(KnnAccuracy(k=np.int64(3)).k) is int

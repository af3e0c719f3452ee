"""Labels as classes: whole numbers from 0 on, in whatever form they come."""

import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from rt_core.errors import InvalidInputs

__all__ = ["classes_of"]

_REMEDIES: dict[Any, str] = {
    str: "number the classes: [sorted(set(labels)).index(one) for one in labels]",
    (list, tuple): "of one-hot labels take argmax(1)",
    object: "number the classes from 0 on, leave out samples without a label (torch.utils.data.Subset), and labels that measure something",
}


def classes_of(labels: Iterable[Any]) -> list[int]:
    """Return labels as classes: whole numbers from 0 on, as floats and as [n, 1] too.

    Raises:
        InvalidInputs: names, fractions, negative numbers or vectors.
    """
    found = []
    for label in labels.tolist() if isinstance(labels, (Tensor, np.ndarray)) else labels:
        value = label.tolist() if isinstance(label, (Tensor, np.ndarray, np.generic)) else label
        value = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        if not isinstance(value, (int, float)) or value < 0 or value % 1 != 0:
            remedy = next(words for kind, words in _REMEDIES.items() if isinstance(value, kind))
            raise InvalidInputs(f"a label is {reprlib.repr(value)}; expected a class, a whole number from 0 on; {remedy}")
        found.append(int(value))
    return found

"""Shapes checked where foreign tensors enter, in words that name the axes."""

from torch import Tensor

from rt_core.errors import ShapeError

__all__ = ["check_shape"]


def check_shape(tensor: Tensor, axes: str, *, what: str, **sizes: int) -> None:
    """Raise unless ``tensor`` has the named axes, of the given sizes.

    >>> import torch
    >>> check_shape(torch.zeros(4, 8), "batch dim", what="clean", batch=4)

    Raises:
        ShapeError: another number of axes, or another size.
    """
    names = axes.split()
    expected = [sizes.get(name, name) for name in names]
    fits = tensor.ndim == len(names) and all(sizes.get(name, size) == size for name, size in zip(names, tensor.shape, strict=True))
    if not fits:
        raise ShapeError(f"{what} has shape {list(tensor.shape)}; expected [{', '.join(map(str, expected))}] ({axes})")

"""Other views of the same samples, for losses and measures that compare a sample with one."""

import functools

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from rt_core.randomness import SampleRandom

__all__ = ["crop_and_flip", "low_frequencies"]

_NOISE = 0.05  # deviation of the view of what is no picture, as a share of the sample's root mean square
_RATIO = 4 / 3  # the widest crop, relative to the picture's own shape; the narrowest is its inverse


def crop_and_flip(inputs: Tensor, random: SampleRandom, purpose: str, *, scale: tuple[float, float] = (0.2, 1.0)) -> Tensor:
    """Return another view of each picture: a random part of it, resized to the whole (bilinear), and in half of the cases mirrored.

    Differentiable in the inputs. The view belongs to the sample's stream of that purpose: the same one whatever the batch, and again at
    every call. The part has ``scale`` of the picture's area and 3/4 to 4/3 of its shape; a side that would be longer than the picture is
    as long. Inputs that are no pictures [batch, channel, height, width] get normal noise instead, its deviation 0.05 of the sample's
    root mean square (a constant to gradients); it may leave the encoder's bounds.

    inputs: [batch, *input] -> same shape

    Raises:
        ValueError: shares of the area that are not 0 < low <= high <= 1.
    """
    low, high = scale
    if not 0 < low <= high <= 1:
        raise ValueError(f"scale is {scale}; expected the least and the largest share of the area, 0 < low <= high <= 1")
    if inputs.ndim != 4:
        noise = random.normal(purpose, inputs.shape[1:]).to(inputs)
        size = inputs.detach().flatten(1).square().mean(1).sqrt()
        return inputs + _NOISE * size.reshape(-1, *[1] * (inputs.ndim - 1)) * noise
    area, ratio, left, top, mirrored = random.uniform(purpose, (5,)).to(inputs).T
    area, ratio = low + (high - low) * area, _RATIO ** (2 * ratio - 1)
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    # Places in [-1, 1], as grid_sample reads them: where each column and each row of the view is taken from.
    columns = _places(inputs, 3) * torch.where(mirrored < 0.5, -width, width)[:, None] + ((2 * left - 1) * (1 - width))[:, None]
    rows = _places(inputs, 2) * height[:, None] + ((2 * top - 1) * (1 - height))[:, None]
    grid = torch.stack([columns[:, None, :].expand(-1, rows.shape[1], -1), rows[:, :, None].expand(-1, -1, columns.shape[1])], dim=3)
    # Clamped to the outermost centers, which is what padding by the border does, and what every device has.
    edges = torch.tensor([1 - 1 / size for size in inputs.shape[:1:-1]], dtype=inputs.dtype, device=inputs.device)
    return grid_sample(inputs, grid.clamp(-edges, edges), padding_mode="zeros", align_corners=False)


@functools.lru_cache(maxsize=16)
def low_frequencies(height: int, width: int, radius: float) -> Tensor:
    """Return which of a picture's frequencies are strictly below a radius, in the order of ``fft2``: [height, width], bool.

    radius: in cycles per shorter side, which for square pictures are steps of the spectrum around its middle, size // 2; along the longer
    side of others the same frequency is as many more steps, so that both directions are filtered alike.
    """
    shorter = min(height, width)
    # The shorter side's factor is exactly 1, so that squares are compared as whole numbers.
    rows, columns = ((torch.arange(size) - size // 2).double() * (shorter / size) for size in (height, width))
    return torch.fft.ifftshift((rows[:, None].square() + columns.square()).sqrt() < radius)


def _places(inputs: Tensor, axis: int) -> Tensor:
    size = inputs.shape[axis]
    return (2 * torch.arange(size, dtype=inputs.dtype, device=inputs.device) + 1) / size - 1

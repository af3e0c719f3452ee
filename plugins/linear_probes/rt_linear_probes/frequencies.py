"""Pictures without their high frequencies, as the low-pass view of a probe sees them."""

from typing import Any

import torch
from torch import Tensor

from rt_core.encoders import round_inward
from rt_core.traces import check_number
from rt_core.views import low_frequencies

__all__ = ["lowpass"]

_SHARE = 50 / 112  # of half the shorter side: 50 at 224 pixels (paper, section 7)


def lowpass(inputs: Tensor, radius: float | None = None, *, bounds: tuple[Any, Any] = (0.0, 1.0), reference_abs: bool = False) -> Tensor:
    """Return pictures of whose frequencies those strictly below a radius are left, each channel by itself, clipped to the bounds.

    Differentiable in the inputs. What is cut off leaves ringing beside edges, also below 0, so the clip is a part of it.

    Source: Petrov & Kwiatkowska 2022, section 7, after Wang et al. 2020 (their ``frequencyHelper``): the real part, as theirs.

    Args:
        inputs: [batch, channel, height, width], floating -> same shape.
        radius: in cycles per shorter side, see ``rt_core.views.low_frequencies``. None takes 50/112 of half the shorter side.
        bounds: of the inputs.
        reference_abs: take the absolute value instead of the real part, as the paper's released script does: what is below 0 is mirrored.

    Raises:
        ValueError: inputs that are no pictures, or a radius that is not positive.
    """
    if inputs.ndim != 4 or not inputs.is_floating_point():
        name = str(inputs.dtype).removeprefix("torch.")
        raise ValueError(
            f"inputs are {name} of shape {list(inputs.shape)}; a low pass is of pictures, floating [batch, channel, height, width]"
        )
    height, width = inputs.shape[2:]
    if radius is None:
        radius = _SHARE * min(height, width) / 2
    check_number("radius", radius)
    if not radius > 0:
        raise ValueError(f"radius is {radius:g}; it must be positive: below it nothing is left")
    kept = low_frequencies(height, width, radius).to(inputs.device)
    exact = inputs if inputs.dtype == torch.float64 else inputs.float()  # of half precision there is no Fourier transform
    filtered = torch.fft.ifft2(torch.fft.fft2(exact) * kept)
    low, high = round_inward(bounds, inputs)
    return (filtered.abs() if reference_abs else filtered.real).to(inputs.dtype).clamp(low, high)

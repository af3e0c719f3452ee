"""Measures of what is near an input: how far benign views of it lie, and how steep the encoder is around it."""

import io
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rt_core import divergences
from rt_core.encoders import Encoder
from rt_core.neighbors import Bank
from rt_core.perturbing import measure, moved_to, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.traces import Context, Trace, check_number, check_whole
from rt_core.views import crop_and_flip
from rt_label_free_metrics.metrics import _Measured

__all__ = ["LocalSensitivity", "ViewQuantile", "benign_views"]

QUALITIES = (90, 70, 50, 30)
"""Of the JPEG views, in percent."""


def benign_views(encoder: Encoder, inputs: Tensor, random: SampleRandom, *, crops: int, scale: tuple[float, float]) -> list[Tensor]:
    """Return other views of each input that mean the same: crops, half of them mirrored, the mirror image, and JPEG at four qualities.

    Inputs that are no pictures [batch, channel, height, width] have noisy copies instead of crops, and no others; JPEG needs one or three
    channels. All lie inside the encoder's bounds.

    inputs: [batch, *input] -> [views] of the same shape
    """
    views = [encoder.clip(crop_and_flip(inputs, random, f"view/{view}", scale=scale)) for view in range(crops)]
    if inputs.ndim != 4:
        return views
    views.append(inputs.flip(-1))
    return views if inputs.shape[1] not in (1, 3) else [*views, *(_jpeg(encoder, inputs, quality) for quality in QUALITIES)]


@dataclass(frozen=True, kw_only=True)
class ViewQuantile(_Measured):
    """Share of benign views of the same sample that move the representation at least as far as the attack did.

    0: no view does, so the attack moved it further than any crop, mirror image or JPEG of the same picture; 1: all do. Costs a forward
    pass a view, once for all attacks on a sample. See ``benign_views``.

    Args:
        crops: how many of the views are crops.
        scale: the least and the largest share of the area that a crop keeps.
    """

    crops: int = 11
    scale: tuple[float, float] = (0.5, 1.0)
    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "mean"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("crops", self.crops)
        object.__setattr__(self, "scale", tuple(self.scale))  # a file gives a list
        low, high = self.scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"scale is {self.scale}; expected the least and the largest share of the area, 0 < low <= high <= 1")

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], in [0, 1]"""
        moved_by = self._measure(context)
        views = context.shared.get(("views", self))
        if views is None:
            inputs, encoder = context.inputs, context.encoder
            found = benign_views(encoder, inputs, context.random, crops=self.crops, scale=self.scale)
            views = torch.stack([measure(moved_by, trace.clean, represent_rows(encoder, view, context.batch)) for view in found])
            context.shared["views", self] = views
        return (views >= measure(moved_by, trace.clean, trace.adversarial)).double().mean(0)


@dataclass(frozen=True, kw_only=True)
class LocalSensitivity(_Measured):
    """How steep the encoder is around a clean input, in median distances of clean pairs for each unit of ``epsilon``; nearly free.

    ``gradient``: the l1 norm of the divergence's gradient beside the input, x + η with η uniform in ±``radius``: to first order, how fast a
    change of that l-infinity size can move the representation. ``noise``: how far the ``draws`` such η move it, on average, over
    ``radius``. An encoder that hides its gradient has little of the first for its second. One forward and backward pass and
    ``draws`` forward ones.

    Args:
        radius: half the width of the noise, in the bounds' units.
        draws: how many draws of it.
    """

    radius: float = 1 / 255
    draws: int = 4
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (0, math.inf)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("radius", self.radius)
        if not self.radius > 0:
            raise ValueError(f"radius is {self.radius:g}; it must be positive, since the gradient at the clean input is zero")
        check_whole("draws", self.draws)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> dict[str, Tensor]:
        """-> gradient, noise: [n]; NaN where all clean representations of the bank are the same"""
        moved_by, encoder, inputs = self._measure(context), context.encoder, context.inputs
        unit = bank.quantile_value(0.5, moved_by) or math.nan
        noisy = [
            encoder.clip(inputs + context.random.uniform(f"noise/{draw}", inputs.shape[1:], low=-self.radius, high=self.radius).to(inputs))
            for draw in range(self.draws)
        ]
        noise = torch.stack([measure(moved_by, trace.clean, represent_rows(encoder, one, context.batch)) for one in noisy]).mean(0)
        parts = zip(noisy[0].split(context.batch), trace.clean.split(context.batch), strict=True)
        steepness = torch.cat([_steepness(encoder, beside, clean, moved_by) for beside, clean in parts])
        return {"gradient": steepness / unit, "noise": noise / self.radius / unit}


def _steepness(encoder: Encoder, beside: Tensor, clean: Tensor, moved_by: divergences.Divergence) -> Tensor:
    device = encoder.where() or beside.device
    with torch.inference_mode(False), torch.enable_grad():
        at = moved_to(device, beside).clone().requires_grad_()
        value = moved_by(moved_to(device, clean), encoder(at))
        slope = torch.autograd.grad(value.sum(), at, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros(len(beside)).double() if slope is None else slope.flatten(1).cpu().double().abs().sum(1)


def _jpeg(encoder: Encoder, inputs: Tensor, quality: int) -> Tensor:
    """Return each picture as JPEG gives it back."""
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in encoder.bounds)
    shown = ((inputs.cpu().double() - low) / (high - low) * 255).round().to(torch.uint8)
    read = torch.stack([_through_jpeg(picture, quality) for picture in shown])
    return encoder.clip((low + read.double() / 255 * (high - low)).to(inputs))


def _through_jpeg(picture: Tensor, quality: int) -> Tensor:
    """[channel, height, width], uint8 -> same"""
    with io.BytesIO() as file:
        Image.fromarray(picture.permute(1, 2, 0).squeeze(2).numpy()).save(file, "JPEG", quality=quality)
        return torch.from_numpy(np.atleast_3d(np.array(Image.open(file)))).permute(2, 0, 1)

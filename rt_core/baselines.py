"""What an attack is compared with: leaving inputs as they are, and noise of the same size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom
from rt_core.traces import Ball, Batch, Divergence, FrozenTensor, check_radii

__all__ = ["Identity", "UniformNoise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Leave every input as it is: the row that shows what a measure says of clean inputs."""

    @property
    def ball(self) -> Ball:
        return Ball("linf", 0.0)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        return batch.inputs.clone()


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformNoise:
    """Move every value by at most ``epsilon`` in a random direction: what any attack of that size has to beat.

    Args:
        epsilon: the radius, or one for each entry of an input's first axis (a channel, or a feature of a vector).
        mask: bool, broadcasts over one input, True where the noise is; elsewhere an input stays as it is, bit for bit.

    Raises:
        ValueError: an epsilon that is no number, not finite or negative, or a mask that is not bool or nowhere True.
    """

    epsilon: float | Sequence[float] = 8 / 255
    mask: FrozenTensor | Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_radii("epsilon", self.epsilon))
        object.__setattr__(self, "mask", self.ball.mask)

    @property
    def ball(self) -> Ball:
        return Ball("linf", self.epsilon, self.mask)  # type: ignore[arg-type]  # a tuple since it was checked

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        most = self.ball.extent
        noise = random.uniform("noise", batch.inputs.shape[1:], low=-most, high=most).to(batch.inputs)
        if isinstance(self.epsilon, tuple):
            noise = noise / most * self.ball.radii(batch.inputs) if most else noise
        return self.ball.project(batch.inputs + noise, batch.inputs, encoder.bounds)

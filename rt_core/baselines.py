"""What an attack is compared with: leaving inputs as they are, and noise of the same size."""

from dataclasses import dataclass

from torch import Tensor

from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom
from rt_core.traces import Ball, Batch, Divergence, check_radius

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

    Raises:
        ValueError: an epsilon that is no number, not finite or negative.
    """

    epsilon: float = 8 / 255

    def __post_init__(self) -> None:
        check_radius("epsilon", self.epsilon)

    @property
    def ball(self) -> Ball:
        return Ball("linf", self.epsilon)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        noise = random.uniform("noise", batch.inputs.shape[1:], low=-self.epsilon, high=self.epsilon).to(batch.inputs)
        return self.ball.project(batch.inputs + noise, batch.inputs, encoder.bounds)

"""One perturbation for all samples: fitted on some, added to others."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rt_core.datasets import as_samples
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.randomness import SampleRandom, stream
from rt_core.traces import Ball, Batch, FrozenTensor, check_number, check_radius
from rt_unsupervised_attacks.gradient import _followed, _set_whole

__all__ = ["UniversalPerturbation"]


@dataclass(frozen=True, kw_only=True)
class UniversalPerturbation:
    """Add the same perturbation to every input: found by ascent on the mean divergence of training inputs (after Moosavi-Dezfooli et al.
    2017 and Shafahi et al. 2020), and measured on inputs that it has not seen.

    ``fit`` gives an attack that has its ``delta``; one without cannot be called. Fitting costs a forward pass a training input for its clean
    representation, and ``epochs`` forward and backward passes; an attack costs none.

    Args:
        epsilon: l-infinity radius, in the bounds' units; 0 returns the input bit for bit.
        epochs: how often the training inputs are gone through, each time in another order.
        batch: how many of them make one step. Fitted perturbations depend on it.
        step: size of the first sign step; None takes ``epsilon``. Steps shrink linearly to nothing.
        fitted: the perturbation as a value, set by ``fit``; ``delta`` is the tensor.

    Raises:
        ValueError: a parameter out of its range.
    """

    epsilon: float = 8 / 255
    epochs: int = 10
    batch: int = 64
    step: float | None = None
    fitted: FrozenTensor | Any = None
    aims: ClassVar[tuple[str, ...]] = ("away",)

    def __post_init__(self) -> None:
        check_radius("epsilon", self.epsilon)
        _set_whole(self, "epochs", "batch")
        if self.step is not None:
            check_number("step", self.step)
            if not self.step > 0:
                raise ValueError(f"step is {self.step:g}; it must be positive, or None for epsilon")
        if self.fitted is not None:
            object.__setattr__(self, "fitted", FrozenTensor.of(self.fitted))
            largest = self.delta.abs().max().item()
            if not largest <= self.epsilon:
                raise ValueError(f"fitted reaches {largest:g}, and epsilon is {self.epsilon:g}; a perturbation must lie in the ball")

    @property
    def ball(self) -> Ball:
        return Ball("linf", self.epsilon)

    @property
    def delta(self) -> Tensor:
        """Return the fitted perturbation before any clipping, [1, *input], of the training inputs' dtype, on the CPU.

        Raises:
            ValueError: the attack is not fitted.
        """
        if self.fitted is None:
            raise ValueError(
                "this universal perturbation is not fitted; call attack.fit(encoder, train, divergence, random=…) and take what it returns"
            )
        return self.fitted.on(torch.device("cpu"))

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape

        Raises:
            ValueError: the attack is not fitted, or fitted to inputs of another shape.
        """
        delta = self.delta
        if delta.shape[1:] != batch.inputs.shape[1:]:
            raise ValueError(
                f"delta has shape {list(delta.shape)}, and inputs {list(batch.inputs.shape)}; fit it to inputs of the shape that is attacked"
            )
        return self.ball.project(batch.inputs + delta.to(batch.inputs), batch.inputs, encoder.bounds)

    def fit(self, encoder: Encoder, train: Any, divergence: str | Divergence = "l2", *, random: SampleRandom) -> "UniversalPerturbation":
        """Return the attack with the perturbation that moves the training inputs furthest, on average.

        Sign steps on the mean divergence of batches from their clean representations, from uniform noise, since without any the gradient
        is zero. Inputs are clipped to the bounds, and pull nowhere where they are.

        train: inputs [n, *input], or any dataset; random: its seed gives the noise and the orders, whatever its ids.

        Raises:
            InvalidInputs: the inputs are not what the encoder can be asked about.
        """
        encoder, samples, moved_by = as_encoder(encoder), as_samples(train), find_divergence(divergence)
        rows, parts = range(len(samples)), math.ceil(len(samples) / self.batch)
        first = samples.inputs([0])
        check_inputs(first, encoder, what="train")
        noise = torch.from_numpy(stream(random.seed, "universal/start").uniform(-1, 1, first.shape))
        delta = _inward((self.epsilon * noise).to(first), self.epsilon)
        if self.epsilon == 0:
            return replace(self, fitted=delta)
        size = self.epsilon if self.step is None else self.step
        with torch.inference_mode(False), torch.enable_grad(), encoder.in_use():
            device = encoder.where() or first.device
            clean: dict[int, Tensor] = {}
            for epoch in range(self.epochs):
                order = stream(random.seed, f"universal/order/{epoch}").permutation(len(rows)).tolist()
                for part in range(parts):
                    chosen = order[part * self.batch : (part + 1) * self.batch]
                    inputs = samples.inputs(chosen)
                    if epoch == 0:
                        check_inputs(inputs, encoder, what="train", ids=[samples.ids[row] for row in chosen])
                        with torch.no_grad():
                            clean |= dict(zip(chosen, encoder(inputs.to(device)), strict=True))
                    left = 1 - (epoch * parts + part) / (self.epochs * parts)
                    slope = _slope(encoder, inputs.to(device), torch.stack([clean[row] for row in chosen]), moved_by, delta.to(device))
                    delta = _inward(delta + size * left * slope.sign().to(delta), self.epsilon)
        return replace(self, fitted=delta)


def _slope(encoder: Encoder, inputs: Tensor, clean: Tensor, divergence: Divergence, delta: Tensor) -> Tensor:
    """Return the gradient of the mean divergence: [1, *input]"""
    at = delta.repeat(len(inputs), *[1] * (delta.ndim - 1)).requires_grad_()  # each its own, so that one that is infinite is seen as one
    value = divergence(clean, encoder(encoder.clip(inputs + at)))
    return _followed(value.mean(), at, None).sum(0, keepdim=True)


def _inward(delta: Tensor, epsilon: float) -> Tensor:
    """Clip to ±epsilon, rounded inward."""
    return Ball("linf", epsilon).project(delta, torch.zeros_like(delta), (-math.inf, math.inf))

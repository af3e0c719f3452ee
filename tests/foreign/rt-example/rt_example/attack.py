"""The attack of rt-example."""

from dataclasses import dataclass

from rt_core import Ball


@dataclass(frozen=True, kw_only=True)
class Shade:
    """Add one number to a whole input, drawn from [-epsilon, epsilon)."""

    epsilon: float = 8 / 255

    @property
    def ball(self):
        return Ball("linf", self.epsilon)

    def __call__(self, encoder, batch, divergence, *, random):
        """[batch, *input] -> same shape, inside the encoder's bounds"""
        one = [1] * (batch.inputs.ndim - 1)
        shade = random.uniform("shade", one, low=-self.epsilon, high=self.epsilon).to(batch.inputs)
        return self.ball.project(batch.inputs + shade, batch.inputs, encoder.bounds)

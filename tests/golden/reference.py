"""The golden numbers, and the network that they were made with, in torch."""

import json
from pathlib import Path

import numpy as np
import torch

import recipe
from rt_core import Encoder

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


class GoldenNetwork(torch.nn.Module):
    """[batch, 3, 6, 6] -> [batch, 8]"""

    def __init__(self):
        super().__init__()
        for name, values in zip(("w1", "b1", "w2", "b2"), recipe.weights(), strict=True):
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, inputs):
        return torch.tanh(inputs.flatten(1) @ self.w1.T + self.b1) @ self.w2.T + self.b2


def golden_encoder(dtype=torch.float64):
    return Encoder(GoldenNetwork().to(dtype), name="golden", normalize="imagenet")


def golden_images(count, offset=0, dtype=torch.float64):
    return torch.from_numpy(recipe.images(count, offset)).to(dtype)


def golden_start(images, epsilon):
    """The first iterate: the same noise on every image, not clipped to the bounds."""
    return images + torch.from_numpy(recipe.start(epsilon)).to(images)


def numbers(values):
    return torch.from_numpy(np.asarray(values, dtype=np.float64))

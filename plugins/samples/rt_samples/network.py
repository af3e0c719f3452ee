"""The network of the shipped encoders, small enough to train in seconds, and the head that only training uses."""

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import normalize

__all__ = ["DigitNetwork", "ProjectionHead", "shipped_network", "untrained_network"]


class DigitNetwork(nn.Module):
    """Four convolutions with group normalization and max pooling, then 64 numbers a digit: 23,568 parameters at width 8.

    A digit's representation, and its gradient in the pixels, has the same bits whatever digits are beside it (on the CPU, float32
    and float64). Three choices make it so: the last layer is a convolution as large as its map, since the sums of a Linear layer
    depend on the number of rows; convolutions have stride 1 and pooling shrinks the maps, since the gradient of a strided one
    does; and a single digit is sent through beside a copy of itself, since torch has another convolution for batches of one.

    [batch, 1, 16, 16] -> [batch, 64]
    """

    def __init__(self, *, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(
            *_block(1, width),
            nn.MaxPool2d(2),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 4 * width),
            *_block(4 * width, 4 * width),
            nn.MaxPool2d(2),
        )
        self.last = nn.Conv2d(4 * width, 64, kernel_size=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, 1, 16, 16] -> [batch, 64]"""
        batch = len(inputs)
        beside = inputs.expand(2, -1, -1, -1) if batch == 1 else inputs
        return self.last(self.body(beside)).flatten(start_dim=1)[:batch]


class ProjectionHead(nn.Module):
    """From the representation to the unit sphere where contrastive learning compares views.

    [batch, 64] -> [batch, 32], of length 1
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, representations: Tensor) -> Tensor:
        """[batch, 64] -> [batch, 32]"""
        return normalize(self.layers(representations), dim=1)


def shipped_network(name: str) -> DigitNetwork:
    """Return the network with the shipped weights of that name: stored in float16, computed with in float32."""
    weights = load((files("rt_samples") / "weights" / f"{name}.safetensors").read_bytes())
    network = DigitNetwork()
    network.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return network


def untrained_network(*, seed: int = 0) -> DigitNetwork:
    """Return a network with torch's initial weights of that seed; the global generator is left as it was.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DigitNetwork()


def _block(incoming: int, outgoing: int) -> list[nn.Module]:
    return [nn.Conv2d(incoming, outgoing, kernel_size=3, padding=1), nn.GroupNorm(4, outgoing), nn.ReLU()]

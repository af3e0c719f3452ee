"""The networks of the embedded default: a generator of digits with named layers, and the classifier that is searched; no downloads."""

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import interpolate

__all__ = ["DigitClassifier", "DigitDecoder", "shipped_weights"]

CLASSES = 10
LATENT = 16  # how many numbers stand for a digit of a given class


class DigitDecoder(nn.Module):
    """The decoder of a conditional VAE as g_4 … g_1: a map of 4 x 4, a block at each of 4 x 4, 8 x 8 and 16 x 16, and the pixels.

    The latent and the class reach ``start`` and the scales and shifts (FiLM) of every block, as in BigGAN; no layer knows of the other
    digits of a batch. An image and its gradients have the same bits whatever digits are beside it (on the CPU): a layer sends a
    single digit through beside a copy of itself, since torch has another convolution for batches of one, and what the latent reaches
    are convolutions as large as what they read, since the sums of a Linear layer depend on the number of rows. 46,561 parameters.

    [batch, 16], [batch, 10] -> [batch, 1, 16, 16] in [0, 1]
    """

    def __init__(self, *, width: int = 32):
        super().__init__()
        self.start = Start(width)
        self.block4 = Block(width)
        self.block8 = Block(width, grow=2)
        self.block16 = Block(width, grow=2)
        self.pixels = Pixels(width)

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """latents: [batch, 16], standard normal; classes: [batch, 10], one 1 a row -> [batch, 1, 16, 16]"""
        condition = torch.cat([latents, classes.to(latents)], dim=1)
        maps = self.start(condition)
        for block in (self.block4, self.block8, self.block16):
            maps = block(maps, condition)
        return self.pixels(maps)


class Start(nn.Module):
    """From the latent and the class to the first map.

    [batch, 26] -> [batch, width, 4, 4]
    """

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.map = nn.Conv2d(1, width * 4 * 4, kernel_size=(1, LATENT + CLASSES))

    def forward(self, condition: Tensor) -> Tensor:
        """[batch, 26] -> [batch, width, 4, 4]"""
        return self.map(beside(condition)[:, None, None, :]).relu().view(-1, self.width, 4, 4)[: len(condition)]


class Block(nn.Module):
    """A convolution and group normalization, whose channels the latent and the class scale and shift (FiLM, Perez et al. 2018).

    [batch, width, side, side], [batch, 26] -> [batch, width, grow * side, grow * side]
    """

    def __init__(self, width: int, *, grow: int = 1):
        super().__init__()
        self.grow = grow
        self.convolution = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.normalization = nn.GroupNorm(4, width, affine=False)
        self.film = nn.Conv2d(1, 2 * width, kernel_size=(1, LATENT + CLASSES))

    def forward(self, maps: Tensor, condition: Tensor) -> Tensor:
        """[batch, width, side, side], [batch, 26] -> [batch, width, grow * side, grow * side]"""
        batch = len(maps)
        grown = interpolate(maps, scale_factor=self.grow) if self.grow > 1 else maps
        scale, shift = self.film(beside(condition)[:, None, None, :]).chunk(2, dim=1)
        return (self.normalization(self.convolution(beside(grown))) * (1 + scale) + shift).relu()[:batch]


class Pixels(nn.Module):
    """From the last map to gray values.

    [batch, width, 16, 16] -> [batch, 1, 16, 16] in [0, 1]
    """

    def __init__(self, width: int):
        super().__init__()
        self.convolution = nn.Conv2d(width, 1, kernel_size=3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """[batch, width, 16, 16] -> [batch, 1, 16, 16]"""
        return self.convolution(beside(maps)).sigmoid()[: len(maps)]


class DigitClassifier(nn.Module):
    """Four convolutions with group normalization and max pooling, then a logit a class: 16,602 parameters at width 8.

    The same bits for a digit whatever digits are beside it, by the same means as in the decoder.

    [batch, 1, 16, 16] -> [batch, 10]
    """

    def __init__(self, *, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(
            *_normalized(1, width),
            nn.MaxPool2d(2),
            *_normalized(width, 2 * width),
            nn.MaxPool2d(2),
            *_normalized(2 * width, 4 * width),
            *_normalized(4 * width, 4 * width),
            nn.MaxPool2d(2),
        )
        self.logits = nn.Conv2d(4 * width, CLASSES, kernel_size=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[batch, 1, 16, 16] -> [batch, 10]"""
        return self.logits(self.body(beside(inputs))).flatten(start_dim=1)[: len(inputs)]


def beside(rows: Tensor) -> Tensor:
    """Put a single row beside a copy of itself, and leave more than one as they are.

    [batch, *row] -> [max(batch, 2), *row]
    """
    return rows.expand(2, *rows.shape[1:]) if len(rows) == 1 else rows


def shipped_weights(name: str) -> dict[str, Tensor]:
    """Return the shipped weights of that name: stored in float16, computed with in float32."""
    weights = load((files("rt_generator_perturbations") / "weights" / f"{name}.safetensors").read_bytes())
    return {key: tensor.float() for key, tensor in weights.items()}


def _normalized(incoming: int, outgoing: int) -> list[nn.Module]:
    return [nn.Conv2d(incoming, outgoing, kernel_size=3, padding=1), nn.GroupNorm(4, outgoing), nn.ReLU()]

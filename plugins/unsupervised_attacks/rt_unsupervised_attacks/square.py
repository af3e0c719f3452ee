"""U-Square: random search on a divergence, for encoders whose gradient says nothing."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom
from rt_core.traces import Ball, Batch, FrozenTensor, check_number, check_radius, check_whole, per_sample

__all__ = ["USquare"]

# Up to which share of the queries a window keeps which share of its first area: halved again and again, sooner at the beginning.
_SCHEDULE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
_TILES = 5  # on a side, of the first l2 perturbation
_SMALLEST = {"linf": 1, "l2": 3}


@dataclass(frozen=True, kw_only=True)
class USquare:
    """Square Attack on the divergence: change a random square, keep what is better (Andriushchenko et al. 2020, algorithms 1 to 3).

    Uses no gradient, so where it moves a representation further than gradient attacks do, those are misled. For linf it starts from
    vertical stripes of ±``epsilon`` and gives whole squares the value ±``epsilon``, one sign a channel; a change that would change nothing is
    turned round. For l2 it starts from 5 x 5 tiles, each a pyramid of two halves of opposite sign, and moves what is in one window to a
    new pyramid in another. Squares shrink by the published schedule. What is no image [channel, height, width] is taken as one row of numbers:
    squares are then runs of consecutive features.

    A run costs ``queries`` forward passes and no backward pass; the first query looks at the start.

    Args:
        epsilon: radius of the ball, in the bounds' units; 0 returns the input bit for bit.
        queries: how many inputs are looked at.
        norm: ``"linf"`` or ``"l2"``.
        area: of the first squares, as a share of the image.
        divergence: what is climbed, by name or a function; None is the plan's.
        mask: bool, broadcasts over one input, True where the attack may move; elsewhere an input stays as it is, bit for bit.

    Raises:
        ValueError: a parameter out of its range.
    """

    epsilon: float = 8 / 255
    queries: int = 1000
    norm: str = "linf"
    area: float = 0.8
    divergence: str | Divergence | None = None
    mask: FrozenTensor | Any = None

    def __post_init__(self) -> None:
        check_radius("epsilon", self.epsilon)
        object.__setattr__(self, "mask", self.ball.mask)
        object.__setattr__(self, "queries", check_whole("queries", self.queries))
        check_number("area", self.area)
        if not 0 < self.area <= 1:
            raise ValueError(f"area is {self.area:g}; it is a share of the image, so it must be in (0, 1]")
        if self.divergence is not None:
            find_divergence(self.divergence)

    @property
    def ball(self) -> Ball:
        return Ball(self.norm, self.epsilon, self.mask)

    @property
    def passes(self) -> tuple[int, int]:
        """Return the forward and the backward passes of the attack on one sample."""
        return self.queries, 0

    @torch.no_grad()
    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        if self.epsilon == 0:
            return batch.inputs.clone()
        climbed = divergence if self.divergence is None else find_divergence(self.divergence)
        way, box = 1 if batch.aim == "away" else -1, self.ball.box(batch.inputs, encoder.bounds)
        center, edges = _as_images(batch.inputs), tuple(map(_as_images, box))
        draws, moved = _Draws(random, center, self.queries), batch.inputs
        best = batch.inputs.new_full((len(center),), -math.inf)
        for query in range(self.queries):
            if query:
                tried = _changed(self, center, edges, _as_images(moved), draws, query)
            else:
                tried = _edge(edges, draws.stripes) if self.norm == "linf" else center + _tiled(center, draws, self.epsilon)
            tried = self.ball.project(tried.reshape(batch.inputs.shape), batch.inputs, encoder.bounds, box=box)
            if query == 0 and batch.start is not None:
                tried = batch.start
            value = way * climbed(batch.anchor, encoder(tried))
            won = value > best
            best = torch.where(won, value, best)
            moved = torch.where(per_sample(won, tried), tried, moved)
        return moved


class _Draws:
    """What is random for every sample: signs and where windows are, for all queries."""

    def __init__(self, random: SampleRandom, images: Tensor, queries: int) -> None:
        _, channel, _, width = images.shape
        self._places = random.uniform("square/places", (queries, 5)).to(images)
        self._signs = _signs(random, "square/signs", (queries, channel), images)
        self.stripes = _signs(random, "square/stripes", (channel, 1, width), images)
        self.tiles = _signs(random, "square/tiles", (channel, _TILES, _TILES), images)

    def window(self, query: int, images: Tensor, sides: tuple[int, int], *, second: bool = False) -> tuple[Tensor, Tensor]:
        """Return how far each row, [batch, height], and each column, [batch, width], is below the window's first one; inside it is 0 to side - 1."""
        inside = []
        for axis, side in enumerate(sides):
            size = images.shape[2 + axis]
            first = (self._places[:, query, axis + 2 * second] * (size - side + 1)).floor().clamp(max=size - side)
            inside.append(torch.arange(size, device=images.device) - first[:, None])
        return inside[0], inside[1]

    def signs(self, query: int) -> Tensor:
        """-> [batch, channel, 1, 1]"""
        return self._signs[:, query, :, None, None]

    def turned(self, query: int) -> Tensor:
        """-> [batch], bool"""
        return self._places[:, query, 4] < 0.5


def _changed(attack: USquare, center: Tensor, edges: tuple[Tensor, ...], moved: Tensor, draws: _Draws, query: int) -> Tensor:
    """Return what is tried next, not yet projected: [batch, channel, height, width]"""
    height, width = center.shape[2:]
    area = attack.area / 2 ** sum(query / attack.queries > share for share in _SCHEDULE)
    if height == 1:
        sides = (1, min(max(round(area * width), _SMALLEST[attack.norm]), width))
    else:
        side = max(round(math.sqrt(area * height * width)), _SMALLEST[attack.norm])
        sides = (min(side, height), min(side, width))
    rows, columns = draws.window(query, center, sides)
    window = _in(rows, sides[0])[:, None, :, None] & _in(columns, sides[1])[:, None, None, :]
    if attack.norm == "linf":
        tried = torch.where(window, _edge(edges, draws.signs(query)), moved)
        same = (tried == moved).flatten(1).all(1)
        return torch.where(per_sample(same, tried) & window, _edge(edges, -draws.signs(query)), tried)
    return _moved_mass(attack, center, moved, draws, query, sides, window)


def _moved_mass(
    attack: USquare, center: Tensor, moved: Tensor, draws: _Draws, query: int, sides: tuple[int, int], window: Tensor
) -> Tensor:
    """Return the l2 change: what lies in a second window goes to the first one, with what the ball has left, as a pyramid added there."""
    delta = moved - center
    rows, columns = draws.window(query, center, sides, second=True)
    second = _in(rows, sides[0])[:, None, :, None] & _in(columns, sides[1])[:, None, None, :]
    left = (attack.epsilon**2 - delta.square().sum((1, 2, 3), keepdim=True)).clamp(min=0) / center.shape[1]
    mass = (left + (delta * (window | second)).square().sum((2, 3), keepdim=True)).sqrt()
    rows, columns = draws.window(query, center, sides)
    pyramid = _placed(_pyramid(sides, center), _pyramid(sides[::-1], center).T, draws.turned(query), rows, columns) * window
    here = delta * window
    fresh = draws.signs(query) * pyramid + here / _long(here, (2, 3))
    return center + torch.where(window, fresh / _long(fresh, (2, 3)) * mass, torch.where(second, 0, delta))


def _tiled(center: Tensor, draws: _Draws, epsilon: float) -> Tensor:
    """Return the first l2 perturbation: a pyramid in every tile, with a sign for each channel, as long as the ball is wide."""
    height, width = center.shape[2:]
    down, across = (1 if height == 1 else min(_TILES, height)), min(_TILES, width)
    sides = (height // down, width // across)
    pattern = _pyramid(sides, center).tile(down, across)
    signs = draws.tiles[:, :, :down, :across].repeat_interleave(sides[0], 2).repeat_interleave(sides[1], 3)
    delta = torch.zeros_like(center)
    top, start = (height - down * sides[0]) // 2, (width - across * sides[1]) // 2
    delta[:, :, top : top + down * sides[0], start : start + across * sides[1]] = pattern * signs
    return delta / _long(delta, (1, 2, 3)) * epsilon


def _pyramid(sides: tuple[int, int], like: Tensor) -> Tensor:
    """Return two halves of opposite sign, the second of them the lower one (of a single row: the right one); of length one.

    In a half, the ring at distance n around its middle has the sum of 1 / m² over all m > n, as far as the half reaches.

    -> [sides]
    """
    rows, columns = sides
    if rows == 1:
        return _pyramid((columns, 1), like).T if columns > 1 else like.new_ones(1, 1)
    halves = []
    for size, sign in ((rows // 2, 1), (rows - rows // 2, -1)):
        middle = (size // 2, columns // 2)
        down, across = (torch.arange(length, device=like.device) - at for length, at in zip((size, columns), middle, strict=True))
        ring = torch.maximum(down.abs()[:, None], across.abs()[None])
        heights = (1 / torch.arange(1, max(size, columns) + 1, device=like.device, dtype=like.dtype).square()).flip(0).cumsum(0).flip(0)
        half = heights[ring.clamp(max=len(heights) - 1)]
        halves.append(sign * half / half.square().sum().sqrt())
    return torch.cat(halves) / math.sqrt(2)


def _placed(upright: Tensor, turned: Tensor, which: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return for each sample one of two patterns, at its place: [batch, 1, height, width], of any value outside."""
    row, column = (at.clamp(0, side - 1).long() for at, side in zip((rows, columns), upright.shape, strict=True))
    at = (row[:, :, None], column[:, None, :])
    return torch.where(which[:, None, None], turned[at], upright[at])[:, None]


def _edge(edges: tuple[Tensor, ...], signs: Tensor) -> Tensor:
    """Return the least or the largest value that the ball and the bounds allow: [batch, channel, height, width]"""
    low, high = edges
    return torch.where(signs > 0, high, low)


def _in(offsets: Tensor, side: int) -> Tensor:
    return (offsets >= 0) & (offsets < side)


def _long(delta: Tensor, axes: tuple[int, ...]) -> Tensor:
    return delta.square().sum(axes, keepdim=True).sqrt().clamp(min=torch.finfo(delta.dtype).tiny ** 0.5)


def _as_images(inputs: Tensor) -> Tensor:
    """[batch, channel, height, width] as it is; anything else -> [batch, 1, 1, numbers]"""
    return inputs if inputs.ndim == 4 else inputs.reshape(len(inputs), 1, 1, -1)


def _signs(random: SampleRandom, purpose: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.where(random.uniform(purpose, shape) < 0.5, -1.0, 1.0).to(like)

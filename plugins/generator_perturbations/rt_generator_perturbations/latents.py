"""What a generator is given: latents and classes, drawn for each id by its own stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rt_core.randomness import SampleRandom
from rt_core.traces import FrozenTensor
from rt_generator_perturbations.layers import LATENT, add

__all__ = ["Latents", "Normal", "PickedLatents", "cast", "checked_latent", "draw_latents", "joined", "moved", "parts_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Latents:
    """What a generator is given for some images.

    Attributes:
        ids: one a row.
        latents: a tensor [batch, *latent], or a tuple or a dict of such, as the network takes them.
        classes: [batch], whole numbers; None for a generator without classes.
    """

    ids: tuple[str, ...]
    latents: Any
    classes: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(map(str, self.ids)))
        parts = [*parts_of(self.latents), *([] if self.classes is None else [self.classes])]
        sizes = [len(part) for part in parts]
        if any(size != len(self.ids) for size in sizes):
            raise ValueError(f"latents and classes have {sizes} rows for {len(self.ids)} ids; each needs one row an id")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int] | slice | Tensor) -> "Latents":
        """Return some rows. rows: positions, a slice, or a mask [batch]"""
        if isinstance(rows, Tensor):
            rows = (rows.nonzero().flatten() if rows.dtype == torch.bool else rows).tolist()
        chosen = list(range(len(self))[rows]) if isinstance(rows, slice) else [range(len(self))[row] for row in rows]
        return self._each(lambda part: part[chosen], tuple(self.ids[row] for row in chosen))

    def to(self, device: str | torch.device | None) -> "Latents":
        """Return the same on another device; None stays."""
        return self._each(lambda part: part.to(device), self.ids)

    def _each(self, function: Callable[[Tensor], Tensor], ids: tuple[str, ...]) -> "Latents":
        classes = None if self.classes is None else function(self.classes)
        return Latents(ids=ids, latents=_each_part(function, self.latents), classes=classes)


@dataclass(frozen=True)
class Normal:
    """Latents that are drawn from a normal distribution, each id from its own stream.

    shape: of one latent. mean, deviation: of the distribution. cut: how many deviations from the mean it is cut off; None does not. BigGAN's
    truncated latents (Brock et al. 2019, section 3.1) have their truncation as ``deviation``, and ``cut=2``.
    """

    shape: tuple[int, ...]
    mean: float = 0.0
    deviation: float = 1.0
    cut: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.deviation > 0 or (self.cut is not None and not self.cut > 0):
            raise ValueError(f"deviation is {self.deviation} and cut is {self.cut}; both must be positive (cut may be None)")

    def __call__(self, random: SampleRandom, ids: Sequence[str]) -> Tensor:
        """[batch, *shape], float32"""
        if self.cut is None:
            return random.normal("latent", self.shape) * self.deviation + self.mean
        low, high = torch.special.ndtr(torch.tensor([-self.cut, self.cut], dtype=torch.float64))
        shares = low + (high - low) * random.uniform("latent", self.shape).double()
        return (torch.special.ndtri(shares).clamp(-self.cut, self.cut) * self.deviation + self.mean).float()


@dataclass(frozen=True)
class PickedLatents:
    """Latents that are picked from given ones, such as an autoencoder's of real images, each id by its own stream.

    among: [n, *latent]
    """

    among: FrozenTensor | Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "among", FrozenTensor.of(self.among))

    def __call__(self, random: SampleRandom, ids: Sequence[str]) -> Tensor:
        """[batch, *latent]"""
        among = self.among.on(torch.device("cpu"))
        return among[(random.uniform("latent", ()) * len(among)).long().clamp(max=len(among) - 1)]


def checked_latent(latent: Any) -> Any:
    """Return how latents are drawn: a shape as a standard normal, tuples and dicts part by part."""
    if callable(latent):
        return latent
    if isinstance(latent, Mapping) and latent:
        return {str(name): checked_latent(part) for name, part in latent.items()}
    sizes = (latent,) if isinstance(latent, int) else latent
    if isinstance(sizes, (tuple, list)) and sizes:
        if not all(isinstance(size, int) for size in sizes):
            return tuple(map(checked_latent, sizes))
        if min(sizes) > 0:
            return Normal(tuple(sizes))
    raise ValueError(
        f"latent is {latent!r}; expected a shape such as (128,), a function (random, ids) -> tensor, or a tuple or dict of these"
    )


def draw_latents(latent: Any, random: SampleRandom, ids: Sequence[str]) -> Any:
    """Draw what ``checked_latent`` gave, one row an id."""
    if isinstance(latent, (tuple, dict)):
        parts = latent.items() if isinstance(latent, dict) else enumerate(latent)
        # Each part has streams of its own, whatever purposes its function names.
        drawn = {name: draw_latents(part, _renamed(random, str(name)), ids) for name, part in parts}
        return drawn if isinstance(latent, dict) else tuple(drawn.values())
    drawn = latent(random, ids)
    if not isinstance(drawn, Tensor) or drawn.ndim < 1 or len(drawn) != len(ids):
        shape = list(drawn.shape) if isinstance(drawn, Tensor) else type(drawn).__name__
        raise ValueError(f"latent drew {shape} for {len(ids)} ids; expected a tensor with one row an id")
    return drawn


def _renamed(random: SampleRandom, part: str) -> SampleRandom:
    return SampleRandom(random.seed, tuple(f"{identity}\0{part}" for identity in random.ids))


def parts_of(latents: Any) -> list[Tensor]:
    """Return latents as a list of tensors."""
    if isinstance(latents, Tensor):
        return [latents]
    return list(latents.values() if isinstance(latents, dict) else latents)


def _each_part(function: Callable[[Tensor], Tensor], latents: Any) -> Any:
    if isinstance(latents, Tensor):
        return function(latents)
    if isinstance(latents, dict):
        return {name: function(part) for name, part in latents.items()}
    return tuple(function(part) for part in latents)


def cast(latents: Any, dtype: torch.dtype | None) -> Any:
    """Return latents in another dtype; whole numbers stay what they are."""
    return _each_part(lambda part: part.to(dtype) if part.is_floating_point() else part, latents)


def joined(latents: Any) -> Tensor:
    """Return latents as one activation: a tensor as it is, several as their floating parts side by side, if there are any."""
    if isinstance(latents, Tensor):
        return latents
    parts = parts_of(latents)
    return torch.cat([part.flatten(1) for part in parts if part.is_floating_point()] or [parts[0].reshape(len(parts[0]), -1)[:, :0]], 1)


def moved(latents: Any, perturbation: Tensor) -> Any:
    """Return latents with a perturbation of ``joined``'s shape added to their floating parts."""
    moved = add(LATENT, joined(latents), perturbation)
    if isinstance(latents, Tensor):
        return moved
    sizes = [part[0].numel() if part.is_floating_point() else 0 for part in parts_of(latents)]
    pieces = iter(moved.split(sizes, 1))

    def replaced(part: Tensor) -> Tensor:
        piece = next(pieces)
        return piece.reshape(part.shape) if part.is_floating_point() else part

    return _each_part(replaced, latents)

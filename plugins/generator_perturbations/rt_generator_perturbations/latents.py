"""What a generator is given: latents and classes, drawn for each id by its own stream."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rt_core.randomness import SampleRandom, check_seed, names_of
from rt_core.traces import FrozenTensor
from rt_generator_perturbations.layers import LATENT, add

__all__ = [
    "Latents",
    "Normal",
    "PickedLatents",
    "beside",
    "cast",
    "check_is_latents",
    "checked_latent",
    "copied",
    "draw_latents",
    "joined",
    "moved",
    "parts_of",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Latents:
    """What a generator is given for some images.

    Attributes:
        ids: one a row.
        latents: a tensor [batch, *latent], or a tuple or a dict of such, as the network takes them.
        classes: [batch], whole numbers of any integer dtype, kept as int64; None for a generator without classes.
        seed: of the draw; with the ids it fixes the noise of a ``seeded`` generator.

    Raises:
        ValueError: latents that are no tensors, classes that are no tensor of whole numbers, or other rows than ids.
    """

    ids: tuple[str, ...]
    latents: Any
    classes: Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", names_of(self.ids))
        object.__setattr__(self, "seed", check_seed(self.seed))
        if not (isinstance(self.latents, (Tensor, tuple, list, dict)) and all(isinstance(part, Tensor) for part in parts_of(self.latents))):
            raise ValueError(f"latents is {_shown(self.latents)}; expected a tensor [batch, *latent], or a tuple or a dict of such")
        if self.classes is not None and not isinstance(self.classes, Tensor):
            raise ValueError(f"classes is {_shown(self.classes)}; expected a tensor [batch] of whole numbers, such as torch.tensor([0, 2])")
        parts = [*parts_of(self.latents), *([] if self.classes is None else [self.classes])]
        sizes = [part.shape[0] if part.ndim else None for part in parts]
        if any(size != len(self.ids) for size in sizes):
            raise ValueError(f"latents and classes have {sizes} rows for {len(self.ids)} ids; each needs one row an id")
        if self.classes is not None:
            kind = self.classes.dtype
            if self.classes.ndim != 1 or kind == torch.bool or kind.is_floating_point or kind.is_complex:
                raise ValueError(f"classes is {_shown(self.classes)}; expected whole numbers [batch], the index of a class for each id")
            object.__setattr__(self, "classes", self.classes.long())  # of fewer bits, an index would be read as a mask or not at all

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int] | Sequence[bool] | slice | Tensor) -> "Latents":
        """Return some rows.

        rows: positions, a slice, or a mask [batch], as a list of bools too

        Raises:
            ValueError: a mask of another length. IndexError: a position that is not there.
        """
        if isinstance(rows, slice):
            rows = range(len(self))[rows]
        given = rows if isinstance(rows, Tensor) else torch.as_tensor(rows if hasattr(rows, "dtype") else list(rows))
        if given.dtype == torch.bool:
            if given.shape != (len(self),):
                raise ValueError(f"rows is a mask of shape {list(given.shape)} for {len(self)} latents; expected one truth value each")
            given = given.nonzero().flatten()
        elif given.numel() and (given.is_floating_point() or given.ndim != 1):
            raise ValueError(f"rows is {_shown(given)}; expected positions (whole numbers), a slice or a mask")
        chosen = [range(len(self))[int(row)] for row in given.tolist()]
        return self._each(lambda part: part[chosen], tuple(self.ids[row] for row in chosen))

    def to(self, device: str | torch.device | None) -> "Latents":
        """Return the same on another device; None stays."""
        return self._each(lambda part: part.to(device), self.ids)

    def _each(self, function: Callable[[Tensor], Tensor], ids: tuple[str, ...]) -> "Latents":
        classes = None if self.classes is None else function(self.classes)
        return Latents(ids=ids, latents=_each_part(function, self.latents), classes=classes, seed=self.seed)


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
    """Latents that are picked from given ones, such as an autoencoder's of real images.

    Each id picks a row at random by its own stream, with equal chances and whatever the others picked: two ids may have the same row, which is
    seldom where rows are many, and sure where ids are more than rows. ``Latents(ids=…, latents=rows)`` takes each row once, in order.

    among: [n, *latent]
    """

    among: FrozenTensor | Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "among", FrozenTensor.of(self.among))

    def __call__(self, random: SampleRandom, ids: Sequence[str]) -> Tensor:
        """[batch, *latent]"""
        among = self.among.on(torch.device("cpu"))
        return among[(random.uniform("latent", ()) * len(among)).long().clamp(max=len(among) - 1)]


def check_is_latents(latents: Any, what: str = "latents") -> None:
    """Raise unless these are ``Latents``.

    Raises:
        ValueError: see above.
    """
    if isinstance(latents, Latents):
        return
    size = f"range({len(latents)})" if isinstance(latents, Tensor) and latents.ndim and len(latents) else "range(6)"
    raise ValueError(
        f"{what} is a {type(latents).__name__}; expected Latents, such as generator.draw({size}), or, to draw from rows of your own, those of "
        "Generator(…, latent=PickedLatents(tensor))"
    )


def checked_latent(latent: Any) -> Any:
    """Return how latents are drawn: a shape as a standard normal, tuples and dicts part by part.

    Raises:
        ValueError: something else, or a tuple or dict that is nested in another.
    """
    if callable(latent):
        return latent
    several: Any = None
    if isinstance(latent, Mapping) and latent:
        several = {str(name): checked_latent(part) for name, part in latent.items()}
    sizes = (latent,) if isinstance(latent, int) else latent
    if isinstance(sizes, (tuple, list)) and sizes:
        whole = [isinstance(size, int) and not isinstance(size, bool) for size in sizes]
        if all(whole) and min(sizes) > 0:
            return Normal(tuple(sizes))
        if not any(isinstance(size, bool) for size in sizes) and not all(whole):
            several = tuple(map(checked_latent, sizes))
    if several is not None:
        if any(isinstance(part, (tuple, dict)) for part in parts_of(several)):
            raise ValueError(
                f"latent is {latent!r}; its parts must be shapes or functions, not tuples or dicts of these: put all of them side by side"
            )
        return several
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


def copied(latents: Any) -> Any:
    """Return latents that may be overwritten."""
    return _each_part(torch.clone, latents)


def beside(latents: Latents, classes: int | None) -> Latents:
    """Return a latent, and another one of the same kind and another content beside it."""

    def other(part: Tensor) -> Tensor:
        if part.is_floating_point() or part.is_complex():
            return torch.cat([part, 1 - part])
        return torch.cat([part, part.flip(-1) if part.ndim > 1 else part])  # what else an index may be is not known

    labels = latents.classes
    if labels is not None:
        labels = torch.cat([labels, (labels + 1) % (classes or 1)])
    return Latents(ids=(*latents.ids, "beside"), latents=_each_part(other, latents.latents), classes=labels, seed=latents.seed)


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


def _shown(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if isinstance(value, Tensor) else reprlib.repr(value)

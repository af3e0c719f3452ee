"""Randomness that belongs to the sample: a stream per (seed, purpose, sample id), whatever the batch, the order or the shard."""

import contextlib
import hashlib
import operator
import random as python_random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

__all__ = ["SampleRandom", "check_seed", "names_of", "stream", "whole_of"]


def stream(seed: int, purpose: str, identity: str = "") -> np.random.Generator:
    """Return the generator of one (seed, purpose, identity); the same three always give the same numbers.

    Keys are hashed to 128 bits: torch's CPU generator keeps 32 of a seed's bits, so that two of 10,000 samples would share
    their noise in one run of a hundred.
    """
    digest = hashlib.blake2b(f"{seed}\0{purpose}\0{identity}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(int.from_bytes(digest, "little"))))


def whole_of(value: object) -> int | None:
    """Return a whole number, Python's or numpy's, as a plain one; None for anything else, a bool too."""
    return operator.index(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def check_seed(seed: object) -> int:
    """Return a seed as a plain whole number.

    Raises:
        ValueError: it is something else.
    """
    if (whole := whole_of(seed)) is None:
        raise ValueError(f"seed is {seed!r}; expected a whole number, such as 0")
    return whole


def names_of(ids: Iterable[object]) -> tuple[str, ...]:
    """Return ids as strings: a number is the same whether plain, numpy's or in a tensor."""
    return tuple(str(one.item() if isinstance(one, Tensor) and one.numel() == 1 else one) for one in ids)


@dataclass(frozen=True)
class SampleRandom:
    """The randomness of some samples. Stateless: the same purpose gives the same numbers again, so name each use.

    Draws are made on the CPU in float32, one stream a sample, and moved by whoever uses them.
    """

    seed: int
    ids: tuple[str, ...]

    @classmethod
    def of(cls, seed: int, ids: Sequence[object]) -> "SampleRandom":
        """Return the randomness of these ids, which may be of any type that ``str`` tells apart.

        Raises:
            ValueError: the seed is no whole number.
        """
        return cls(check_seed(seed), names_of(ids))

    def select(self, rows: Sequence[int] | slice) -> "SampleRandom":
        """Return the randomness of some of the samples."""
        ids = self.ids[rows] if isinstance(rows, slice) else tuple(self.ids[row] for row in rows)
        return SampleRandom(self.seed, ids)

    def uniform(self, purpose: str, shape: Sequence[int], *, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw from [low, high).

        shape: of one sample -> [batch, *shape], float32, on the CPU
        """
        return self._draw(purpose, shape, lambda rng, out: rng.random(out=out, dtype=np.float32)).mul_(high - low).add_(low)

    def normal(self, purpose: str, shape: Sequence[int]) -> Tensor:
        """Draw from the standard normal distribution.

        shape: of one sample -> [batch, *shape], float32, on the CPU
        """
        return self._draw(purpose, shape, lambda rng, out: rng.standard_normal(out=out, dtype=np.float32))

    def library_seed(self, purpose: str) -> int:
        """Return a 32-bit seed that depends on every id and their order, for a library that knows global generators only."""
        return int(stream(self.seed, purpose, "\0".join(self.ids)).integers(2**32))

    @contextlib.contextmanager
    def global_generators(self, purpose: str) -> Iterator[None]:
        """Seed Python's, numpy's and torch's global generators for a foreign library, and restore them afterwards, on error too.

        Such draws depend on the batch: a library with global generators cannot be asked for one stream a sample.
        """
        seed = self.library_seed(purpose)
        python_state, numpy_state = python_random.getstate(), np.random.get_state()
        mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        try:
            with torch.random.fork_rng(devices=_devices()):
                python_random.seed(seed)
                np.random.seed(seed)
                # Not torch.manual_seed, which leaves a seed behind for a CUDA that is not started yet.
                torch.default_generator.manual_seed(seed)
                if torch.cuda.is_initialized():
                    torch.cuda.manual_seed_all(seed)
                if mps_state is not None:
                    torch.mps.manual_seed(seed)
                yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)
            python_random.setstate(python_state)
            np.random.set_state(numpy_state)

    def _draw(self, purpose: str, shape: Sequence[int], fill: Callable[[np.random.Generator, np.ndarray], object]) -> Tensor:
        draws = np.empty((len(self.ids), *shape), dtype=np.float32)
        for row, identity in enumerate(self.ids):
            fill(stream(self.seed, purpose, identity), draws[row : row + 1].reshape(-1))
        return torch.from_numpy(draws)


def _devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []

"""A run's folder: who the run is, the clean representations of each encoder, and one file a block, written then renamed."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rt_core.errors import RobustnessWarning, StoreError

__all__ = ["Store", "kept_batch", "key_of", "write_then_rename"]

_MARKER = "identity.json"


class Store:
    """Blocks of a run by key; without a folder nothing is kept and nothing is found.

    identity: what all blocks of a folder share (dataset, seed, order, batch); a folder of another identity is refused.

    Raises:
        StoreError: the folder belongs to another run.
    """

    def __init__(self, folder: str | Path | None, identity: Mapping[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self._identity = identity
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"store is {str(self.folder)!r}, which is a file; give a folder, there already or not")
        marker = self.folder / _MARKER
        known = json.loads(marker.read_text(encoding="utf-8")) if marker.exists() else identity
        for what, value in identity.items():
            if known.get(what) != value:
                raise StoreError(
                    f"{self.folder} holds a run of another {what} ({known.get(what)!r}, now {value!r}); give another folder, or remove this one"
                )

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Return a block's arrays, or None if it is not there; a damaged one is reported and counts as not there."""
        path = None if self.folder is None else self.folder / "blocks" / f"{key}.npz"
        if path is None or not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as block:
                return {name: block[name] for name in block.files}
        except Exception as error:
            warnings.warn(f"block {path} is damaged ({type(error).__name__}: {error}) and is made again", RobustnessWarning, stacklevel=2)
            return None

    def has(self, key: str) -> bool:
        """Say whether a block is there, without reading it."""
        return self.folder is not None and (self.folder / "blocks" / f"{key}.npz").exists()

    def save(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a block's arrays: whole or not at all. The folder is made with its first block, so that a rehearsal leaves nothing."""
        if self.folder is None:
            return
        path = self.folder / "blocks" / f"{key}.npz"
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            write_then_rename(self.folder / _MARKER, json.dumps(self._identity, indent=1).encode())
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes any name for allow_pickle
        temporary.replace(path)

    def mapped(self, key: str, shape: tuple[int, ...], dtype: np.dtype, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return an array that is mapped from a file, which ``fill`` writes if it is not there: whole or not at all."""
        assert self.folder is not None, "an array is mapped from a folder"
        path = self.folder / f"{key}.npy"
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            array = np.lib.format.open_memmap(temporary, "w+", dtype, shape)
            fill(array)
            array.flush()
            temporary.replace(path)
        return np.load(path, mmap_mode="r")


def kept_batch(folder: str | Path | None) -> int | None:
    """Return the batch of a folder's first run, which a later run keeps, since last bits can depend on it."""
    marker = None if folder is None else Path(folder) / _MARKER
    return json.loads(marker.read_text(encoding="utf-8"))["batch"] if marker is not None and marker.exists() else None


def key_of(parts: Any) -> str:
    """Return the key of a block: a hash of everything that went into it, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def write_then_rename(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)

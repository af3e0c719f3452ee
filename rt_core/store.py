"""A run's folder: who the run is, the clean representations of each encoder, and one file a block, written then renamed."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from rt_core.errors import RobustnessWarning, StoreError

__all__ = ["Shelf", "Store", "alone_in", "kept_batch", "key_of", "written"]

_MARKER = "identity.json"
_HOST = platform.node()


class Store:
    """Blocks of a run by key; without a folder nothing is kept and nothing is found.

    Several runs may work in one folder at once: a block has the same content whoever makes it, and is there whole or not at all.

    identity: what all blocks of a folder share (dataset, seed, order, batch); a folder of another identity is refused.

    Raises:
        StoreError: the folder belongs to another run, cannot be written, or does not say whose it is.
    """

    def __init__(self, folder: str | Path | None, identity: Mapping[str, Any]) -> None:
        if folder == "":
            raise StoreError("store is ''; expected a folder, or None to keep nothing")
        self.folder = None if folder is None else Path(folder)
        self._identity, self._begun = identity, False
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"store is {str(self.folder)!r}, which is a file; give a folder, there already or not")
        self._check_identity(self.folder)
        with _reported(self.folder, self.folder):
            # Tried where the folder is or will be, by a file without a name, so that a rehearsal that fails leaves nothing.
            tempfile.TemporaryFile(dir=next(place for place in (self.folder, *self.folder.parents) if place.exists())).close()
            _remove_leftovers(self.folder)

    def load(self, key: str) -> dict[str, np.ndarray] | None:
        """Return a block's arrays, or None if it is not there; a damaged or foreign one is reported and counts as not there."""
        if self.folder is None or not self.has(key):
            return None
        path = self.folder / "blocks" / f"{key}.npz"
        try:
            with np.load(path, allow_pickle=False) as block:
                arrays = {name: block[name] for name in block.files}
            if arrays.pop("key", None) != key:
                raise ValueError("it holds something else")
            return arrays
        except FileNotFoundError:  # another run has cleared it since
            return None
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
        if not self._begun:
            with alone_in(self.folder):
                self._check_identity(self.folder)  # another run may have begun here since this one was opened
                with written(self.folder, _MARKER) as file:
                    file.write(json.dumps(self._identity, indent=1).encode())
            self._begun = True
        with written(self.folder, f"blocks/{key}.npz") as file:
            np.savez(file, key=np.array(key), **arrays)  # type: ignore[arg-type]  # its stub takes any name for allow_pickle

    def shelf(self, key: str) -> "Shelf":
        """Return a place for what is half done under a key."""
        return Shelf(self, key)

    def mapped(self, key: str, shape: tuple[int, ...], dtype: np.dtype, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Return an array that is mapped from a file, to which its parts are written one after the other if it is not there."""
        assert self.folder is not None, "an array is mapped from a folder"
        if not (self.folder / f"{key}.npy").exists():
            about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            with written(self.folder, f"{key}.npy") as file:  # not through a map: on a full disk that kills the process, without a word
                np.lib.format.write_array_header_1_0(file, about)
                file.writelines(part.tobytes() for part in parts)
        return np.load(self.folder / f"{key}.npy", mmap_mode="r")

    def _check_identity(self, folder: Path) -> None:
        known = _identity_in(folder) or self._identity
        for what, value in self._identity.items():
            if known[what] != value:
                remedy = f"give another folder, put the {what} back as it was, or remove the folder"
                raise StoreError(f"{folder} holds a run of another {what} ({known[what]!r}, now {value!r}); {remedy}")


@dataclass(frozen=True)
class Shelf:
    """A place in a store for what is half done; cleared when the whole is there."""

    store: Store
    key: str

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Return what was saved under a name, or None."""
        return self.store.load(self._part(name))

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a name, unless another run in the folder clears the shelf at the same time: then the whole is there."""
        try:
            self.store.save(self._part(name), arrays)
        except StoreError as error:
            if not isinstance(error.__cause__, (FileNotFoundError, FileExistsError)):
                raise

    def clear(self) -> None:
        """Remove everything."""
        if self.store.folder is not None:
            shutil.rmtree(self.store.folder / "blocks" / self.key, ignore_errors=True)

    def _part(self, name: str) -> str:
        return f"{self.key}/{key_of(name)}"


def kept_batch(folder: str | Path | None) -> int | None:
    """Return the batch of a folder's first run, which a later run keeps, since last bits can depend on it."""
    return None if folder is None else _identity_in(Path(folder)).get("batch")


def key_of(parts: Any) -> str:
    """Return the key of a block: a hash of everything that went into it, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


@contextlib.contextmanager
def written(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes its name when it is whole, or never.

    Raises:
        StoreError: it cannot be written; what was there before stays.
    """
    path = folder / name
    temporary = path.with_name(f"{path.name}.{os.getpid()}@{_HOST}.tmp")
    with _reported(folder, path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):  # what stopped the writing is what is told
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out while what is read in a folder and what is then written there must fit together."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):  # Windows and some network file systems have no such locks
            import fcntl

            folder.mkdir(parents=True, exist_ok=True)
            # The system opens it again when a process ends, however that ends.
            fcntl.flock(held.enter_context((folder / "lock").open("ab")), fcntl.LOCK_EX)
        yield


def _identity_in(folder: Path) -> dict[str, Any]:
    """Return what a folder says of its blocks, nothing where there are none."""
    marker = folder / _MARKER
    if not marker.exists() and not (folder / "blocks").exists():
        return {}
    try:
        known = json.loads(marker.read_text(encoding="utf-8"))
        return {what: known[what] for what in ("dataset", "seed", "pairing", "batch")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise StoreError(f"{marker} does not say whose blocks these are ({why}); give another folder, or remove {folder}") from error


@contextlib.contextmanager
def _reported(folder: Path, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kept = f"{len(list(folder.glob('blocks/*.npz')))} finished blocks are kept"
        remedy = f"make space or give leave to write, and the same call goes on ({kept})"
        raise StoreError(f"{path} cannot be written ({error.strerror or error}); {remedy}") from error


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine had half written when they were killed."""
    if os.name == "posix":  # elsewhere signal 0 does more than ask whether a process is there
        for path in folder.rglob(f"*@{_HOST}.tmp"):
            try:
                os.kill(int(path.stem.removesuffix(f"@{_HOST}").rpartition(".")[2]), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except PermissionError:  # somebody else's process, and it runs
                pass

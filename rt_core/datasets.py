"""Samples with stable ids, read by position, whatever they come from: tensors, arrays, folders of pictures, torch datasets."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rt_core.errors import InvalidInputs, ShapeError
from rt_core.fingerprints import content_of
from rt_core.weights import load_weights

__all__ = ["Samples", "as_samples", "folder", "tensor_file", "tensors", "torch_dataset"]

_INPUT_KEYS = ("pixel_values", "image", "img", "inputs", "input", "x")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")
_PICTURES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
_NAMED = 5  # broken pictures in a warning


@dataclass(frozen=True, eq=False)
class Samples:
    """A dataset as rt reads it: ids, and inputs by row.

    read: rows -> [rows, *input], floating; ids: one a sample, stable over runs (relative paths, or indices); find_labels: rows -> labels
    or, where there are none, None; groups: which samples belong together (scene, patient, video), or None; notes: what was left out, in words;
    content: a cheap hash of all of it, by which a stored run notices a change, or None.

    Raises:
        InvalidInputs: no sample at all, or two of one id.
    """

    name: str
    ids: tuple[str, ...]
    read: Callable[[Sequence[int]], Tensor]
    find_labels: Callable[[Sequence[int]], list[int]] | None = None
    groups: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    content: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        if not self.ids:
            raise InvalidInputs(f"dataset {self.name!r} is empty; at least one sample is needed")
        if len(set(self.ids)) != len(self.ids):
            raise InvalidInputs(
                f"dataset {self.name!r} has {len(self.ids) - len(set(self.ids))} repeated ids; randomness belongs to the id, so each must be unique"
            )
        if self.groups is not None and len(self.groups) != len(self.ids):
            raise InvalidInputs(f"dataset {self.name!r} has {len(self.ids)} samples and {len(self.groups)} groups; one a sample is needed")

    def __len__(self) -> int:
        return len(self.ids)

    def inputs(self, rows: Sequence[int]) -> Tensor:
        """Return the inputs of these rows, [rows, *input]."""
        return self.read(rows)

    def labels(self, rows: Sequence[int]) -> list[int] | None:
        """Return the labels of these rows, or None where the dataset has none."""
        return None if self.find_labels is None else self.find_labels(rows)

    def picked(self, rows: Sequence[int]) -> "Samples":
        """Return the samples of these rows, in this order, as a dataset.

        Raises:
            InvalidInputs: no row, or one twice.
        """
        chosen = tuple(rows)
        return replace(
            self,
            ids=tuple(self.ids[row] for row in chosen),
            read=_Of(self.read, chosen),
            find_labels=None if self.find_labels is None else _Of(self.find_labels, chosen),
            groups=None if self.groups is None else tuple(self.groups[row] for row in chosen),
        )


def tensors(
    inputs: Tensor | np.ndarray,
    *,
    ids: Sequence[object] | None = None,
    labels: Sequence[int] | Tensor | np.ndarray | None = None,
    groups: Sequence[object] | None = None,
    name: str = "tensor",
) -> Samples:
    """Make samples of a tensor or array [n, *input]; ids are 0 … n-1 unless given.

    Raises:
        InvalidInputs: no sample, or ids, labels or groups of another length.
    """
    values = torch.as_tensor(inputs)
    for what, given in (("ids", ids), ("labels", labels), ("groups", groups)):
        if given is not None and len(given) != len(values):
            raise InvalidInputs(f"{len(values)} inputs and {len(given)} {what}; one a sample is needed")
    known = None if labels is None else torch.as_tensor(labels).tolist()
    return Samples(
        name=name,
        ids=tuple(map(str, range(len(values)) if ids is None else ids)),
        read=_Rows(values),
        find_labels=None if known is None else _Picked(tuple(known)),
        groups=None if groups is None else tuple(map(str, groups)),
        content=_Content(values),
    )


def tensor_file(path: str) -> Samples:
    """Read samples from a file of ``inputs`` and, if there are any, ``labels`` and ``groups``: npz, npy, safetensors or torch's format.

    Raises:
        ValueError: there is no tensor of the name ``inputs`` in it.
    """
    source = Path(path)
    loaded = np.load(source, allow_pickle=False) if source.suffix in (".npz", ".npy") else load_weights(source)
    if isinstance(loaded, (Tensor, np.ndarray)):
        return tensors(loaded, name=source.stem)
    if "inputs" not in loaded:
        raise ValueError(
            f"{path} holds {', '.join(map(repr, loaded))}; expected 'inputs' [n, *input] (and, optionally, 'labels', 'groups')"
        )
    return tensors(
        loaded["inputs"],
        labels=loaded.get("labels"),
        groups=list(loaded["groups"]) if "groups" in loaded else None,
        name=source.stem,
    )


def torch_dataset(dataset: Any, *, input_key: str | int | None = None, name: str | None = None) -> Samples:
    """Read a map-style torch dataset whose items are x, (x,), (x, y, …), a named tuple or a dict.

    input_key: where in an item the input is, if not in the usual place. Ids are the indices, or relative paths where the dataset knows
    its files (``samples`` and ``root``, as torchvision's ImageFolder does).

    Raises:
        KeyError: a dict holds none of the usual keys; the message lists those that it has.
        ShapeError: inputs of different shapes.
    """
    length = len(dataset)
    paths, root = getattr(dataset, "samples", None), getattr(dataset, "root", None)
    ids = tuple(map(str, range(length)))
    if root is not None and isinstance(paths, list) and len(paths) == length and isinstance(paths[0], tuple):
        ids = tuple(Path(path).relative_to(root).as_posix() for path, *_ in paths)
    label = _label_of(dataset[0]) if length else None
    return Samples(
        name=name or type(dataset).__name__,
        ids=ids,
        read=_Items(dataset, input_key),
        find_labels=None if label is None else _ItemLabels(dataset, label),
    )


def folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] = 224,
    labels: str | None = None,
    groups: str | None = None,
    name: str | None = None,
) -> Samples:
    """Read every picture below a folder: RGB in [0, 1], turned as its EXIF says, shorter side resized, center cropped to ``size``.

    Grayscale and palettes become RGB, transparency is laid on white, of animations the first frame is taken. Ids are paths relative to
    the folder. Files that are no pictures, by their endings, are passed over and counted in ``notes``. Every picture is tried once;
    those that do not open are left out with a warning, and ``notes`` names all of them.

    size: of the square, or (height, width). labels="folders" takes the first folder level as class; groups="folders" takes it as group.

    Raises:
        InvalidInputs: there is no such folder, or no picture in it.
    """
    root = Path(path)
    if not root.is_dir():
        raise InvalidInputs(f"path is {str(path)!r}, which is no folder; give a folder of pictures")
    for option, value in (("labels", labels), ("groups", groups)):
        if value not in (None, "folders"):
            raise ValueError(f"{option} is {value!r}; expected None or 'folders'")
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    pictures = [file for file in files if file.suffix.lower() in _PICTURES]
    failures = {file.relative_to(root): _failure(file) for file in pictures}
    found = [file for file, failure in failures.items() if failure is None]
    broken = [f"{file.as_posix()} ({failure})" for file, failure in failures.items() if failure is not None]
    shown = "; ".join(broken[:_NAMED]) + (f"; and {len(broken) - _NAMED} more" if len(broken) > _NAMED else "")
    if not found:
        raise InvalidInputs(
            f"no picture that opens is in {str(path)!r} ({len(files) - len(pictures)} files of other kinds, {len(broken)} broken"
            f"{': ' * bool(broken)}{shown}); expected files such as {', '.join(sorted(_PICTURES)[:4])}"
        )
    notes = []
    if broken:
        left_out = f"{len(broken)} of {len(pictures)} pictures do not open and are left out: "
        notes.append(left_out + "; ".join(broken))
        warnings.warn(left_out + shown, UserWarning, stacklevel=2)
    if len(files) > len(pictures):
        notes.append(f"files that are no pictures by their endings, and are passed over: {len(files) - len(pictures)}")
    tops = tuple(file.parts[0] if len(file.parts) > 1 else "" for file in found)
    classes = sorted(set(tops))
    shape = (size, size) if isinstance(size, int) else (size[0], size[1])
    return Samples(
        name=name or root.name,
        ids=tuple(file.as_posix() for file in found),
        read=_Pictures(root, tuple(found), shape),
        find_labels=_Picked(tuple(map(classes.index, tops))) if labels else None,
        groups=tops if groups else None,
        notes=tuple(notes),
        content=_Bytes(root, tuple(found)),
    )


def as_samples(dataset: Any) -> Samples:
    """Return any dataset as samples.

    Raises:
        InvalidInputs: it is nothing that can be read by position.
    """
    if isinstance(dataset, Samples):
        return dataset
    if isinstance(dataset, (Tensor, np.ndarray)):
        return tensors(dataset)
    if isinstance(dataset, (str, Path)):
        return folder(dataset)
    if isinstance(dataset, DataLoader):
        # Its order and batches are of no use here: samples are known by id, and the run batches them itself.
        return as_samples(dataset.dataset)
    if isinstance(dataset, Dataset) or (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping)
    ):
        if not hasattr(dataset, "__len__"):
            raise InvalidInputs(
                f"dataset is an iterable {type(dataset).__name__} without a length; samples need stable positions, so give a map-style dataset"
            )
        return torch_dataset(dataset)
    raise InvalidInputs(
        f"dataset is of type {type(dataset).__name__}; give a tensor, an array, a folder's path or a map-style torch dataset"
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    values: Tensor

    def __call__(self, rows: Sequence[int]) -> Tensor:
        return self.values[torch.as_tensor(rows, dtype=torch.long)]


@dataclass(frozen=True, eq=False)
class _Of:
    """What is asked of some rows of a whole."""

    ask: Callable[[Sequence[int]], Any]
    chosen: tuple[int, ...]

    def __call__(self, rows: Sequence[int]) -> Any:
        return self.ask([self.chosen[row] for row in rows])


@dataclass(frozen=True, eq=False)
class _Content:
    values: Tensor

    def __call__(self) -> str:
        return hashlib.sha256(content_of(self.values)).hexdigest()


@dataclass(frozen=True)
class _Bytes:
    root: Path
    files: tuple[Path, ...]

    def __call__(self) -> str:
        whole = hashlib.sha256()
        for file in self.files:
            with (self.root / file).open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
        return whole.hexdigest()


@dataclass(frozen=True)
class _Picked:
    values: tuple[int, ...]

    def __call__(self, rows: Sequence[int]) -> list[int]:
        return [self.values[row] for row in rows]


@dataclass(frozen=True, eq=False)
class _Items:
    dataset: Any
    input_key: str | int | None

    def __call__(self, rows: Sequence[int]) -> Tensor:
        items = [_tensor_of(_input_of(self.dataset[row], self.input_key)) for row in rows]
        if len({item.shape for item in items}) > 1:
            raise ShapeError(
                f"inputs have different shapes ({', '.join(sorted({str(list(item.shape)) for item in items}))}); resize or crop them in the dataset's transform"
            )
        return torch.stack(items)


@dataclass(frozen=True, eq=False)
class _ItemLabels:
    dataset: Any
    first: int

    def __call__(self, rows: Sequence[int]) -> list[int]:
        known = getattr(self.dataset, "targets", None)
        as_they_are = getattr(self.dataset, "target_transform", None) is None  # torchvision keeps targets as they were before it
        if known is not None and as_they_are and len(known) == len(self.dataset) and _label_of((None, known[0])) == self.first:
            return [int(known[row]) for row in rows]
        return [self._known(row) for row in rows]

    def _known(self, row: int) -> int:
        label = _label_of(self.dataset[row])
        if label is None:
            raise InvalidInputs(f"item {row} of the dataset has no label, and its first one has; give every item one, or none")
        return label


@dataclass(frozen=True)
class _Pictures:
    root: Path
    files: tuple[Path, ...]
    shape: tuple[int, int]

    def __call__(self, rows: Sequence[int]) -> Tensor:
        return torch.stack([_picture(self.root / self.files[row], self.shape) for row in rows])


def _input_of(item: Any, key: str | int | None) -> Any:
    if isinstance(item, Mapping):
        known = next((name for name in ([key] if key is not None else _INPUT_KEYS) if name in item), None)
        if known is None:
            raise KeyError(
                f"an item is a dict with keys {', '.join(map(repr, item))}, none of them a known input; say torch_dataset(…, input_key='…')"
            )
        return item[known]
    if isinstance(item, (tuple, list)):
        return item[0 if key is None else int(key)]
    return item


def _label_of(item: Any) -> int | None:
    if isinstance(item, Mapping):
        found = next((item[name] for name in _LABEL_KEYS if name in item), None)
    else:
        found = item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None
    is_class = isinstance(found, (int, np.integer)) or (isinstance(found, Tensor) and found.ndim == 0 and not found.is_floating_point())
    return int(found) if is_class and found is not None else None


def _tensor_of(value: Any) -> Tensor:
    if isinstance(value, (Tensor, np.ndarray)):
        return torch.as_tensor(value)
    if hasattr(value, "convert") and hasattr(value, "size"):  # a PIL picture, when a dataset has no transform
        return _pixels(value.convert("RGB"))
    raise InvalidInputs(f"an item's input is of type {type(value).__name__}; give tensors, arrays or PIL pictures")


def _failure(file: Path) -> str | None:
    """Return why a picture does not open, or None: all of its bytes are read, and as few pixels made as the format allows."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            if opened.format == "PNG":
                opened.verify()  # checks the sum of each chunk, without decoding any
            else:
                opened.draft("L", (1, 1))  # a JPEG is decoded at an eighth of its size, and gray; others take no notice
                opened.load()
    except Exception as error:  # the library's decoders fail in many ways
        return f"{type(error).__name__}: {error}"
    return None


def _picture(file: Path, shape: tuple[int, int]) -> Tensor:
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            opened.seek(0)
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):  # 16 bits a pixel: PIL would clip instead of scaling
                upright = Image.fromarray((np.asarray(upright, dtype=np.float64) / 257).round().clip(0, 255).astype(np.uint8))
            if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
                solid = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", solid.size, "white"), solid)
            return _pixels(ImageOps.fit(upright.convert("RGB"), shape[::-1], method=Image.Resampling.BILINEAR))
    except Exception as error:
        raise InvalidInputs(
            f"picture {str(file)!r} cannot be read ({type(error).__name__}: {error}); repair it or take it out of the folder"
        ) from error


def _pixels(picture: Any) -> Tensor:
    return torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1).to(torch.float32) / 255

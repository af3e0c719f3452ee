"""Samples with stable ids, read by position, whatever they come from: tensors, arrays, folders of pictures, torch datasets."""

import hashlib
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, Subset, default_collate, default_convert

from rt_core.errors import InvalidInputs, ShapeError
from rt_core.fingerprints import content_of
from rt_core.labels import classes_of
from rt_core.randomness import names_of
from rt_core.weights import load_weights

__all__ = ["Samples", "as_samples", "folder", "tensor_file", "tensors", "torch_dataset"]

_INPUT_KEYS = ("pixel_values", "image", "img", "inputs", "input", "x")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")
# What torchvision's own ways of reading an item find its label in: it is known there without reading the item.
_STORED = {"DatasetFolder": "samples", "CIFAR10": "targets", "MNIST": "targets", "USPS": "targets", "SVHN": "labels", "STL10": "labels"}
_PICTURES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
_NAMED = 5  # broken pictures in a warning


@dataclass(frozen=True, eq=False)
class Samples:
    """A dataset as rt reads it: ids, and inputs by row.

    read: rows -> [rows, *input], floating; ids: one a sample, stable over runs (relative paths, or indices), in which bytes that are no
    text are escaped; find_labels: rows -> labels or, where there are none, None; groups: which samples belong together (scene, patient,
    video), or None; notes: what was left out, in words; content: a cheap hash of all of it, by which a stored run notices a change, or None.

    Raises:
        InvalidInputs: no sample at all, or two of one id.
    """

    name: str
    ids: tuple[str, ...]
    read: Callable[[Sequence[int]], Tensor]
    find_labels: Callable[[Sequence[int]], list[int] | None] | None = None
    groups: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    content: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _printable(self.name))
        for what in ("ids", "notes", *["groups"] * (self.groups is not None)):
            object.__setattr__(self, what, tuple(map(_printable, getattr(self, what))))
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
        """Return the labels of these rows, or None where the dataset has none, or none that are classes (with a warning that says why)."""
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
        InvalidInputs: no sample, ids, labels or groups of another length, or labels that are no classes (see `rt_core.labels.classes_of`).
    """
    values = torch.as_tensor(inputs)
    for what, given in (("ids", ids), ("labels", labels), ("groups", groups)):
        if given is not None and len(given) != len(values):
            raise InvalidInputs(f"{len(values)} inputs and {len(given)} {what}; one a sample is needed")
    known = None if labels is None else classes_of(labels)
    return Samples(
        name=name,
        ids=names_of(range(len(values)) if ids is None else ids),
        read=_Rows(values),
        find_labels=None if known is None else _Picked(tuple(known)),
        groups=None if groups is None else names_of(groups),
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
    its files (``samples`` and ``root``, as torchvision's ImageFolder does). Labels are what the items say; torchvision's own datasets and
    subsets of them are asked without reading an item. Labels that are no classes (see `rt_core.labels.classes_of`) count as none, with a warning.

    Raises:
        KeyError: a dict holds none of the usual keys; the message lists those that it has.
        ShapeError: inputs of different shapes.
    """
    length = len(dataset)
    paths, root = getattr(dataset, "samples", None), getattr(dataset, "root", None)
    ids = tuple(map(str, range(length)))
    if root is not None and isinstance(paths, list) and len(paths) == length and isinstance(paths[0], tuple):
        ids = tuple(Path(path).relative_to(root).as_posix() for path, *_ in paths)
    items, stored = _Items(dataset, input_key), _stored_labels(dataset)
    has_labels = length > 0 and (stored is not None or items.label(0) is not None)
    return Samples(name=name or type(dataset).__name__, ids=ids, read=items, find_labels=_ItemLabels(items, stored) if has_labels else None)


def folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] = 224,
    labels: str | None = None,
    groups: str | None = None,
    name: str | None = None,
) -> Samples:
    """Read every picture below a folder: RGB in [0, 1], turned as its EXIF says, shorter side resized, center cropped to ``size``.

    Grayscale and palettes become RGB, transparency is laid on white, of animations the first frame is taken; 16 bits are scaled to 8, and
    floats from [0, 1]. Ids are paths relative to the folder. Files that are no pictures, by their endings, are passed over and counted in
    ``notes``. Every picture is tried once; those that do not open are left out with a warning, and ``notes`` names all of them.

    size: of the square, or (height, width). labels="folders" takes the first folder level as class; groups="folders" takes it as group.

    Raises:
        InvalidInputs: there is no such folder, or no picture in it.
        ValueError: a size that is no whole number of pixels, or an unknown option.
    """
    root, shape = Path(path), _shape(size)
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
    """Return any dataset as samples; of a loader its dataset, or what its sampler's ``indices`` choose of it.

    Raises:
        InvalidInputs: it is nothing that can be read by position, or a loader whose sampler or collate_fn gives other samples than those.
    """
    if isinstance(dataset, Samples):
        return dataset
    if isinstance(dataset, (Tensor, np.ndarray)):
        return tensors(dataset)
    if isinstance(dataset, (str, Path)):
        return folder(dataset)
    if isinstance(dataset, DataLoader):
        return _of_loader(dataset)
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


def _of_loader(loader: DataLoader) -> Samples:
    """Its order and batches are of no matter: samples are known by id, and the run batches them itself. Which samples it gives is."""
    samples, batches = as_samples(loader.dataset), loader.batch_sampler
    if loader.collate_fn not in (default_collate, default_convert):
        raise InvalidInputs(
            "the loader's collate_fn is its own, and is not called; expected the default; do in the dataset what it does, or give loader.dataset"
        )
    sampler: Any = batches.sampler if type(batches) is BatchSampler else loader.sampler if batches is None else batches
    if type(sampler) in (SequentialSampler, RandomSampler) and len(sampler) == len(samples) and not getattr(sampler, "replacement", False):
        return samples
    indices = getattr(sampler, "indices", sampler if isinstance(sampler, Sequence) else None)
    if indices is None:
        raise InvalidInputs(
            f"the loader's sampler is a {type(sampler).__name__}, which does not say which samples it gives; expected all of them, in order or "
            "shuffled, or a SubsetRandomSampler; give the dataset, or torch.utils.data.Subset(dataset, indices)"
        )
    return samples.picked(list(map(operator.index, indices)))


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
    labels: dict[int, Any] = field(default_factory=dict, repr=False)  # of the items that were read, so that each is read once

    def __call__(self, rows: Sequence[int]) -> Tensor:
        inputs = [_tensor_of(_input_of(self.item(row), self.input_key)) for row in rows]
        if len({one.shape for one in inputs}) > 1:
            raise ShapeError(
                f"inputs have different shapes ({', '.join(sorted({str(list(one.shape)) for one in inputs}))}); resize or crop them in the dataset's transform"
            )
        return torch.stack(inputs)

    def item(self, row: int) -> Any:
        item = self.dataset[row]
        self.labels[row] = _label_of(item)
        return item

    def label(self, row: int) -> Any:
        if row not in self.labels:
            self.item(row)
        return self.labels[row]


@dataclass(frozen=True, eq=False)
class _ItemLabels:
    items: _Items
    stored: Sequence[Any] | None = field(repr=False)

    def __call__(self, rows: Sequence[int]) -> list[int] | None:
        try:
            return classes_of(self.items.label(row) if self.stored is None else self.stored[row] for row in rows)
        except InvalidInputs as error:  # no matter to what reads no labels; what does says that there are none
            warnings.warn(f"the labels of {type(self.items.dataset).__name__} count as none: {error}", UserWarning, stacklevel=3)
            return None


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


def _label_of(item: Any) -> Any:
    """Return what an item has for a label (a number, a name, a list of numbers), or None."""
    if isinstance(item, Mapping):
        found = next((item[name] for name in _LABEL_KEYS if name in item), None)
    else:
        found = item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None
    if isinstance(found, (Tensor, np.ndarray, np.generic)):
        found = found.tolist() if found.ndim < 2 else None  # what has more axes is another view, or a mask
    return found if all(isinstance(one, (int, float, str)) for one in (found if isinstance(found, list) else [found])) else None


def _stored_labels(dataset: Any) -> Sequence[Any] | None:
    """Return the labels that the items are sure to have, without reading one, or None where only the items can tell."""
    if type(dataset) is Subset:
        known = _stored_labels(dataset.dataset)
        return None if known is None else [known[row] for row in dataset.indices]
    reads = getattr(type(dataset), "__getitem__", None)
    place = _STORED.get(getattr(reads, "__qualname__", "").removesuffix(".__getitem__"))
    if not (getattr(reads, "__module__", None) or "").startswith("torchvision.datasets."):
        return None
    if place is None or dataset.target_transform is not None or getattr(dataset, place) is None:
        return None
    return [label for _, label in dataset.samples] if place == "samples" else getattr(dataset, place)


def _tensor_of(value: Any) -> Tensor:
    if isinstance(value, (Tensor, np.ndarray)):
        return torch.as_tensor(value)
    if hasattr(value, "convert") and hasattr(value, "size"):  # a PIL picture, when a dataset has no transform
        return _pixels(_rgb(value))
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
                _eight_bits(opened)
    except Exception as error:  # the library's decoders fail in many ways
        return f"{type(error).__name__}: {error}"
    return None


def _picture(file: Path, shape: tuple[int, int]) -> Tensor:
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            opened.seek(0)
            return _pixels(ImageOps.fit(_rgb(opened), shape[::-1], method=Image.Resampling.BILINEAR))
    except Exception as error:
        raise InvalidInputs(
            f"picture {str(file)!r} cannot be read ({type(error).__name__}: {error}); repair it or take it out of the folder"
        ) from error


def _rgb(picture: Any) -> Any:
    """Return a picture as a viewer shows it: upright, on white, 8 bits a channel."""
    from PIL import Image, ImageOps

    upright = _eight_bits(ImageOps.exif_transpose(picture))
    if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
        solid = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", solid.size, "white"), solid)
    return upright.convert("RGB")


def _eight_bits(picture: Any) -> Any:
    """Return a picture of 16 bits or of floats as one of 8 bits, any other as it is: PIL would clip instead of scaling."""
    from PIL import Image

    if picture.mode[0] not in "IF":
        return picture
    values, most = np.asarray(picture, dtype=np.float64), 1 if picture.mode == "F" else 65535
    if not ((values >= 0) & (values <= most)).all():
        raise InvalidInputs(
            f"a picture of mode {picture.mode!r} has values from {values.min():g} to {values.max():g}; expected [0, {most}]; scale it to that"
        )
    return Image.fromarray((values / (most / 255)).round().astype(np.uint8))


def _shape(size: Any) -> tuple[int, int]:
    try:
        height, width = map(operator.index, np.broadcast_to(size, 2).tolist())
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"size is {size!r}; expected a whole number of pixels from 1 on, or (height, width); write 224")
    return height, width


def _printable(text: object) -> str:
    return str(text).encode(errors="backslashreplace").decode()  # the bytes of a file's name need not be text


def _pixels(picture: Any) -> Tensor:
    return torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1).to(torch.float32) / 255

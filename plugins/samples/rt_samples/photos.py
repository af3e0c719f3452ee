"""The photos: crops of eight real photographs that scientific Python packages ship, grouped by photograph."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from rt_core.datasets import Samples
from rt_samples.packages import shipped_file

__all__ = ["photos"]

# By scene: the package, its distribution, and the file in it. Of the stereo pair only the left picture is taken: the right one shows
# the same things again, and near-duplicates would be each other's nearest neighbors whatever the encoder.
_SOURCES = {
    "astronaut": ("skimage", "scikit-image", "data/astronaut.png"),
    "chelsea": ("skimage", "scikit-image", "data/chelsea.png"),
    "china": ("sklearn", "scikit-learn", "datasets/images/china.jpg"),
    "coffee": ("skimage", "scikit-image", "data/coffee.png"),
    "flower": ("sklearn", "scikit-learn", "datasets/images/flower.jpg"),
    "grace_hopper": ("matplotlib", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    "motorcycle": ("skimage", "scikit-image", "data/motorcycle_left.png"),
    "rocket": ("skimage", "scikit-image", "data/rocket.jpg"),
}
_FLAT = 8  # of 255: a crop whose pixels deviate less than that from their mean color shows sky or a wall

Place = tuple[str, int, int]  # scene, row and column of the upper left pixel


def photos(*, size: int = 64, stride: int | None = None) -> Samples:
    """Return square crops of the photographs astronaut, chelsea (a cat), china, coffee, flower, grace_hopper, motorcycle and rocket.

    Crops are [3, size, size] float32 RGB in [0, 1], cut at every ``stride`` pixels (half the size unless given) and not resized; ids
    are "astronaut/r064c128" by the upper left pixel. Nearly flat ones (pixels deviate from the crop's mean color by less than 8/255)
    are left out and counted in the notes. The groups are the photographs. There are no labels.

    Crops of one photograph are alike, and there are only eight: intervals resample photographs, so expect them to be wide. The order
    is a fixed permutation, so that any prefix is a random sample and neighbours, which are each other's targets, are of one
    photograph as often as chance has it (the notes say how often) rather than always or never.

    Raises:
        ImportError: scikit-image or matplotlib is not installed.
        ValueError: the size or stride is not positive, or no photograph is as large as a crop.
    """
    for option, value in (("size", size), ("stride", 1 if stride is None else stride)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{option} is {value!r}; it is a number of pixels, 1 or more")
    step = max(size // 2, 1) if stride is None else stride
    pictures = {scene: _load(*source) for scene, source in _SOURCES.items()}
    largest = max(min(picture.shape[:2]) for picture in pictures.values())
    if size > largest:
        raise ValueError(f"size is {size}; no photograph is as large, and the largest crop that fits into one is {largest} x {largest}")
    found = [place for scene, picture in pictures.items() for place in _places(scene, picture, size, step)]
    kept = [place for place in found if not _is_flat(_cut(pictures, place, size))]
    order = np.random.RandomState(0).permutation(len(kept))  # RandomState never changes its stream; default_rng may
    places = tuple(kept[row] for row in order)
    return Samples(
        name="photos",
        ids=tuple(f"{scene}/r{row:03d}c{column:03d}" for scene, row, column in places),
        read=_Crops(pictures, places, size),
        groups=tuple(scene for scene, _, _ in places),
        notes=_notes(places, flat=len(found) - len(kept), size=size, stride=step),
    )


@dataclass(frozen=True, eq=False)
class _Crops:
    """Crops cut out when they are asked for: rows -> [rows, 3, size, size]."""

    pictures: dict[str, np.ndarray]
    places: tuple[Place, ...]
    size: int

    def __call__(self, rows: Sequence[int]) -> Tensor:
        crops = np.stack([_cut(self.pictures, self.places[row], self.size) for row in rows])
        return torch.from_numpy(crops.transpose(0, 3, 1, 2).astype(np.float32, order="C")) / 255


def _load(package: str, distribution: str, file: str) -> np.ndarray:
    """Return a photograph, [height, width, 3] uint8; the package is only the place where the file lies."""
    from PIL import Image

    with Image.open(shipped_file(package, *file.split("/"), entry="photos", distribution=distribution, extra="photos")) as picture:
        return np.array(picture.convert("RGB"))


def _places(scene: str, picture: np.ndarray, size: int, stride: int) -> list[Place]:
    height, width = picture.shape[:2]
    return [(scene, row, column) for row, column in product(range(0, height - size + 1, stride), range(0, width - size + 1, stride))]


def _cut(pictures: dict[str, np.ndarray], place: Place, size: int) -> np.ndarray:
    scene, row, column = place
    return pictures[scene][row : row + size, column : column + size]


def _is_flat(crop: np.ndarray) -> bool:
    return crop.reshape(-1, 3).var(axis=0).mean() < _FLAT**2


def _notes(places: Sequence[Place], *, flat: int, size: int, stride: int) -> tuple[str, ...]:
    scenes, counts = np.unique([scene for scene, _, _ in places], return_counts=True)
    total = len(places)
    together = (counts * (counts - 1)).sum() / max(total * (total - 1), 1)
    overlap = f", and neighbouring ones overlap (stride {stride})" if stride < size else ""
    notes = [
        f"{total} crops of {len(scenes)} photographs: crops of one are alike{overlap}; two random crops are of one photograph in {together:.0%} of cases"
    ]
    if flat:
        notes.append(
            f"{flat} of {total + flat} crops are nearly flat (they deviate from their mean color by less than {_FLAT}/255): left out"
        )
    if without := sorted(set(_SOURCES) - set(scenes.tolist())):
        notes.append(f"no crop of {size} x {size} is of {', '.join(without)}")
    return tuple(notes)

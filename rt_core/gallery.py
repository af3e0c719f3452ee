"""Adversarial inputs that a run keeps to be looked at: a few fixed samples, and those that each attack did most to."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

__all__ = ["Gallery", "Picture"]


@dataclass(frozen=True, eq=False)
class Picture:
    """One adversarial input: what the gallery says of it, its row in the plan's order, and the input itself."""

    about: dict[str, Any]
    row: int
    adversarial: np.ndarray


@dataclass(frozen=True, eq=False)
class Gallery:
    """Clean and adversarial inputs, side by side.

    about: a row a picture: encoder, attack, aim, sample, why (``"fixed"``: among the first of the order, the same for every attack, or
    ``"worst"``: moved furthest, under aim target nearest to it) and divergence; adversarial: [pictures, *input], as they were attacked,
    never rounded; originals: {sample: its clean input}.
    """

    COLUMNS: ClassVar = ("encoder", "attack", "aim", "sample", "why", "divergence")

    about: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=Gallery.COLUMNS))
    adversarial: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    originals: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.about)

    def __repr__(self) -> str:
        return f"Gallery({len(self)} pictures of {', '.join(dict.fromkeys(self.about['attack'])) or 'nothing'})"

    @property
    def clean(self) -> np.ndarray:
        """Return the clean input of each picture, [pictures, *input]."""
        return np.stack([self.originals[sample] for sample in self.about["sample"]]) if len(self) else self.adversarial

    @classmethod
    def of(cls, pictures: Sequence[Picture], read: Callable[[int], np.ndarray]) -> "Gallery":
        """Put pictures together; ``read`` gives the clean input of a row of the order."""
        if not pictures:
            return cls()
        rows = {picture.about["sample"]: picture.row for picture in pictures}
        about = pd.DataFrame([picture.about for picture in pictures], columns=cls.COLUMNS)
        return cls(about, np.stack([picture.adversarial for picture in pictures]), {sample: read(row) for sample, row in rows.items()})

    def where(self, chosen: Sequence[bool] | np.ndarray | pd.Series) -> "Gallery":
        """Return some of the pictures."""
        rows = np.flatnonzero(np.asarray(chosen))
        about = self.about.iloc[rows].reset_index(drop=True)
        return Gallery(about, self.adversarial[rows], {sample: self.originals[sample] for sample in dict.fromkeys(about["sample"])})

    def joined(self, other: "Gallery") -> "Gallery":
        """Return the pictures of both; of the same inputs, as results of one dataset have."""
        if not len(self) or not len(other):
            return self if len(self) else other
        about = pd.concat([self.about, other.about], ignore_index=True)
        whole = Gallery(about, np.concatenate([self.adversarial, other.adversarial]), {**other.originals, **self.originals})
        return whole.where(~about.duplicated(["encoder", "attack", "aim", "sample", "why"]))

    def to_bytes(self) -> bytes:
        """Return the gallery as an npz file, without pickles; the same bytes for the same gallery, which numpy's own would date."""
        about = json.dumps({"rows": self.about.to_dict("list"), "samples": [*self.originals]}, ensure_ascii=False)
        originals = np.stack([*self.originals.values()]) if self.originals else self.adversarial
        with io.BytesIO() as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in {"about": np.array(about), "adversarial": self.adversarial, "originals": originals}.items():
                    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Gallery":
        """Read what ``to_bytes`` gave."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            originals = dict(zip(about["samples"], arrays["originals"], strict=True))
            return cls(pd.DataFrame(about["rows"], columns=cls.COLUMNS), arrays["adversarial"], originals)

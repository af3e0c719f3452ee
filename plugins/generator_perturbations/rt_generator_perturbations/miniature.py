"""The paper's finding in miniature: a standard and an adversarially trained classifier of digits, perturbed at each granularity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rt_core.results import Results
from rt_core.store import written
from rt_generator_perturbations.embedded import digits_classifier, digits_generator
from rt_generator_perturbations.granularity import granularity_curve
from rt_generator_perturbations.readings import cumulative, curve_plot, picture_grid, ratios

__all__ = ["demo"]

STANDARD, ROBUST = "standard", "robust"


def demo(
    store: str | Path = "runs/generator", *, items: int = 100, seed: int = 0, progress: bool = True, **relaxation: Any
) -> tuple[Results, str]:
    """Run the protocol on the embedded digits, and return the results with what they say; pictures and curves are files in the folder.

    relaxation: the fields of ``Relaxation``

    Raises:
        StoreError: the folder holds another run, or cannot be written.
    """
    folder, threads = Path(store), torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small leave further threads waiting
    try:
        return _shown(folder, items, seed, progress, relaxation)
    finally:
        torch.set_num_threads(threads)


def _shown(folder: Path, items: int, seed: int, progress: bool, relaxation: Mapping[str, Any]) -> tuple[Results, str]:
    victims = {STANDARD: digits_classifier(), ROBUST: digits_classifier(robust=True)}
    results = granularity_curve(digits_generator(), victims, items=items, seed=seed, store=folder, progress=progress, **relaxation)
    curves, compared = cumulative(results), ratios(results, ROBUST, STANDARD)
    told = results.compare(ROBUST, STANDARD).set_index("attack")["better"]
    compared = compared.assign(better=compared["attack"].map(told).fillna("-"))
    with written(folder, "pictures.png") as file:
        picture_grid(results).save(file, format="png")
    with written(folder, "curves.png") as file:
        curve_plot(curves).save(file, format="png")
    with written(folder, "curves.csv") as file:
        file.write(curves.to_csv(index=False).encode())
    lines = [
        f"{items} digits were drawn; the activations of one group of layers at a time were perturbed until a classifier said a random other class.",
        f"Skipped, since the classifier was wrong to begin with: {_skipped(results)}.",
        "",
        "Magnitudes are root mean squares, in standard deviations of each layer.",
        "",
        "How many times as much the robust one needs, geometric mean over items [95% interval]; what is said of it is corrected for the number of groups:",
        *(f"  {row.attack:8} {row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]  {_reading(row)}" for row in compared.itertuples()),
        "",
        *_finding(compared),
        "",
        f"Pictures, clean beside perturbed: {folder / 'pictures.png'}; curves with bands: {folder / 'curves.png'} and curves.csv",
        "Whether a perturbed digit still shows its class is for people to say, and is not counted here: labelling_sheet, read_votes.",
    ]
    return results, "\n".join(lines)


def _skipped(results: Results) -> str:
    first = next(iter(results.manifest["plan"]["attacks"]))
    rows = results.frame[results.frame["attack"] == first]
    return ", ".join(f"{int(part['value'].isna().sum())} for {name}" for name, part in rows.groupby("encoder", sort=False))


def _reading(row: "pd.Series | object") -> str:
    better = getattr(row, "better")  # noqa: B009
    return {ROBUST: "it is more robust", STANDARD: "it is less robust"}.get(better, "no difference is seen")


def _finding(compared: pd.DataFrame) -> list[str]:
    """Say which parts of the paper's finding show here, and which do not."""
    coarse, fine = compared.iloc[0], compared.iloc[-1]
    apart, less = fine["low"] > coarse["high"], coarse["better"] == STANDARD
    return [
        "The paper: a classifier trained against perturbed pixels is more robust to fine perturbations and less robust to coarse ones. Here",
        f"- more robust at the finest granularity ({fine['attack']}): {'it shows' if fine['better'] == ROBUST else 'it does not show'};",
        f"- its advantage is smaller at the coarsest ({coarse['attack']}) than at the finest: {'it shows' if apart else 'it does not show'};",
        f"- less robust at the coarsest ({coarse['attack']}): {'it shows' if less else 'it does not show'}"
        + (", but one pair of networks cannot tell that from lower accuracy." if less else "."),
    ]

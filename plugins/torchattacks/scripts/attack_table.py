"""Run every attack of torchattacks on digits and write what came of it into docs/plugins/torchattacks.md.

    python plugins/torchattacks/scripts/attack_table.py [class …]

Without classes, the table in the page is replaced; with classes, their rows are printed. Needs rt-samples and rt-unsupervised-attacks.
"""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import rt_core
from rt_core.datasets import as_samples
from rt_torchattacks import CLASSES, Torchattack
from rt_torchattacks.bridge import _REFUSED as REFUSED

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "torchattacks.md"
MARK = "<!-- table -->"
EPS = {"unit": {"linf": 0.1, "l2": 1.0}, "instance": {"linf": 0.03}}
QUANTILE = 0.3
SAMPLES, BANK = 6, 300

# Where a class's defaults are too few steps, or too many, for its number to say something.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "CW": {"steps": 200},
    "SPSA": {"nb_iter": 20},
    "Square": {"n_queries": 500},
    "OnePixel": {"pixels": 3},
}
# The least that each can do: for a test of whether it runs at all.
TINY: Mapping[str, Mapping[str, Any]] = {
    "CW": {"steps": 3},
    "EADL1": {"max_iterations": 10, "binary_search_steps": 2},
    "EADEN": {"max_iterations": 10, "binary_search_steps": 2},
    "Square": {"n_queries": 10},
    "SPSA": {"nb_iter": 1, "nb_sample": 8},
    "SparseFool": {"steps": 1},
    "Pixle": {"restarts": 1},
    "JSMA": {"gamma": 0.01},
    "AutoAttack": {"version": "rand"},
    "APGDT": {"steps": 3, "n_classes": 3},
}


class Row(NamedTuple):
    """A class in the table."""

    name: str
    runs: str
    mode: str = "–"
    given: str = "–"
    aims: str = "–"
    options: str = "–"
    reached: str = "–"
    seconds: str = "–"

    @property
    def settled(self) -> tuple[str, ...]:
        """What does not depend on options and machine."""
        return self[:5]

    def line(self) -> str:
        return "| " + " | ".join([f"`{self.name}`", *self[1:]]) + " |"


HEAD = ("class", "runs", "mode", "given", "aims", "options", f"reached, of {SAMPLES} digits", "seconds")


class _Gray(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean(dim=1, keepdim=True)


class Data(NamedTuple):
    """What the attacks run on: digits in three equal channels, since some attacks know nothing else."""

    encoder: rt_core.Encoder
    inputs: torch.Tensor
    bank: rt_core.Bank

    @classmethod
    def digits(cls, samples: int = SAMPLES, bank: int = BANK) -> "Data":
        network, dataset = rt_core.encoder("digits_contrastive").module, as_samples(rt_core.dataset("digits"))
        encoder = rt_core.Encoder(torch.nn.Sequential(_Gray(), network), name="digits_contrastive")
        chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:bank].tolist()
        inputs = dataset.inputs(chosen).expand(-1, 3, -1, -1).contiguous()
        return cls(encoder, inputs[:samples], rt_core.Bank(rt_core.represent(encoder, inputs)))


def options_of(name: str) -> dict[str, Any]:
    """Return the options that the table's row of a class is made with."""
    traits, known = CLASSES[name], _known(name)
    ball = "l2" if traits.norm == "l2" else "linf"
    sized = {} if traits.mode == "threshold" else {radius: EPS[traits.mode][ball] for radius in ("eps", "max_epsilon") if radius in known}
    wanted = {"quantile": QUANTILE} if traits.mode == "threshold" else {}
    return {**wanted, **sized, **OPTIONS.get(name, {})}


def row_of(name: str, data: Data, options: Mapping[str, Any]) -> Row:
    """Run one class, away, and say what came of it."""
    if name in REFUSED:
        return Row(name, f"no: {REFUSED[name].replace('|', '/')}")
    attack = Torchattack(name, **options)
    settled = (name, "yes", attack.mode, {"batch": "batches", "single": "one by one"}[attack.route], ", ".join(attack.aims))
    begun = time.perf_counter()
    trace = rt_core.perturb(attack, data.encoder, data.inputs, bank=data.bank)
    seconds = time.perf_counter() - begun
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    return Row(*settled, shown or "–", _reached(attack, trace, data), f"{seconds:.1f}")


def write(rows: Sequence[Row], page: Path = PAGE) -> None:
    """Replace the table between the marks."""
    table = "\n".join(["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *(row.line() for row in rows)])
    before, _, after = page.read_text().split(MARK)
    page.write_text(f"{before}{MARK}\n{table}\n{MARK}{after}")


def read(page: Path = PAGE) -> dict[str, Row]:
    """Return the rows of the table that the page holds, by class."""
    _, table, _ = page.read_text().split(MARK)
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.strip().splitlines()[2:]]
    return {row.name: row for row in (Row(re.sub("`", "", name), *rest) for name, *rest in cells)}


def _reached(attack: Torchattack, trace: Any, data: Data) -> str:
    if attack.mode == "threshold":
        reached, sizes = trace.notes["reached"], trace.notes["magnitude_linf"]
        size = f", l-infinity {sizes.nanmedian():.3f}, l2 {trace.notes['magnitude_l2'].nanmedian():.2f}" if reached.any() else ""
        return f"quantile {QUANTILE:g}: {int(reached.sum())}{size}"
    ball = attack.ball
    if ball is None:
        return f"quantile {data.bank.pair_quantiles(trace.divergence).median():.2f}"
    u_pgd = rt_core.attack("u_pgd", epsilon=ball.radius, norm=ball.norm)
    reference = rt_core.perturb(u_pgd, data.encoder, data.inputs)
    said = f"{(trace.divergence / reference.divergence).median():.0%} of U-PGD's divergence"
    if attack.mode == "unit":
        return said
    own = torch.arange(len(trace))
    broken, usual = (int((data.bank.closer_counts(one.adversarial, one.clean, own) > 0).sum()) for one in (trace, reference))
    return f"breakaways: {broken}, U-PGD: {usual}; {said}"


def _known(name: str) -> Mapping[str, Any]:
    from rt_torchattacks.bridge import _parameters

    return _parameters(name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = sys.argv[1:] or [*CLASSES, *REFUSED]
    digits, made = Data.digits(), []
    for each in asked:
        made.append(row_of(each, digits, options_of(each) if each in CLASSES else {}))
        print(made[-1].line(), flush=True)
    if not sys.argv[1:]:
        write(made)

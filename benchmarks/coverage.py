"""Coverage of the intervals of whole runs: in how many of many small studies they hold what a large study finds.

Samples come from a known population and are pushed at random; measures, pairs, banks, blocks and summaries are those of ``rt_core.run``.
Nominal is 95 %; with 250 studies the last two percent are noise.
"""

import argparse
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from rt_core import Encoder, Evaluation, RobustnessWarning, run
from rt_core.datasets import tensors

METRICS = ("universal_quantile", "breakaway_risk", "nearest_neighbor_accuracy", "relative_quantile", "overlap_risk", "adversarial_margin")
# attacked, bank, scenes, push
STUDIES = ((60, 120, None, 0.3), (60, 60, None, 0.3), (60, 120, 40, 0.3), (40, 60, None, 0.1), (40, 400, None, 0.3))


@dataclass(frozen=True, kw_only=True)
class Push:
    """Move every sample at random, some ten times as far as others; toward a target, up to half of the way as well."""

    size: float

    def __call__(self, encoder, batch, divergence, *, random):
        """[batch, dim] -> same shape"""
        moved = batch.inputs + self.size * random.normal("push", batch.inputs.shape[1:]) * random.normal("scale", (1,)).exp()
        if batch.aim == "target":
            moved = moved + 0.7 * random.uniform("way", (1,)) * (batch.target_inputs - batch.inputs)
        return encoder.clip(moved)


def study(attacked: int, bank: int, scenes: int | None, push: float, seed: int):
    """Return the summary of one study, by metric."""
    random = torch.Generator().manual_seed(seed)
    inputs, groups = torch.randn(bank, 3, generator=random), None
    if scenes is not None:
        groups = (torch.arange(bank) % scenes).tolist()
        inputs = 0.5 * inputs + 1.5 * torch.randn(scenes, 3, generator=random)[groups]
    encoder = Encoder(lambda inputs: inputs, name="itself", bounds=(-1000, 1000))
    plan = Evaluation(
        [encoder], tensors(inputs, groups=groups), {"push": Push(size=push)}, METRICS, attacked=attacked, bank=bank, seed=seed
    )
    return run(plan, progress=False).summary().set_index("metric")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--studies", type=int, default=250)
    count = arguments.parse_args().studies
    warnings.simplefilter("ignore", RobustnessWarning)
    torch.set_num_threads(1)
    print(f"{'attacked':>8} {'bank':>5} {'scenes':>6} {'push':>5}  share of {count} studies whose interval holds the truth (mean width)")
    for attacked, bank, scenes, push in STUDIES:
        truth = study(3000, 5000, scenes and 2500, push, 10**6)["estimate"]
        found = [study(attacked, bank, scenes, push, seed) for seed in range(count)]
        # Its truth is that of banks of this size.
        truth["nearest_neighbor_accuracy"] = np.mean([one.loc["nearest_neighbor_accuracy", "estimate"] for one in found])
        print(f"{attacked:>8} {bank:>5} {scenes or '-':>6} {push:>5}")
        for metric in METRICS:
            rows = [one.loc[metric] for one in found]
            held = np.mean([row["low"] <= truth[metric] <= row["high"] for row in rows])
            print(f"{'':>28}{metric:<28}{held:.1%}  ({np.mean([row['high'] - row['low'] for row in rows]):.3f})")


if __name__ == "__main__":
    main()

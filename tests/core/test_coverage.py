"""Simulated coverage: in how many of many small studies an interval holds the truth, with the bank's own sampling error in it.

Samples are drawn from a known population, "attacked" by a random push, and ranked in a bank as small as the attacked themselves; the truth is
that of a large study. 95 % is the nominal level, and 93 % is asked for. `make coverage` does the same through whole runs, with more of them.
"""

import warnings

import numpy as np
import pytest
import torch

from rt_core import Bank, statistics
from rt_core.divergences import l2
from rt_core.errors import RobustnessWarning
from rt_label_free_metrics import adversarial_margin, breakaway_risk, nearest_neighbor_accuracy, overlap_risk, universal_quantile

READINGS = {"universal_quantile": "median", "breakaway_risk": "mean", "nearest_neighbor_accuracy": "rate"}
PAIRED = {"overlap_risk": "rate", "adversarial_margin": "median"}
STUDIES = 120
PARTS = 10


def draw(size, seed, scenes=None, push=0.3):
    """-> clean, attacked: [size, 3]; scene of each: [size] or None. Pushes differ tenfold from sample to sample."""
    random = torch.Generator().manual_seed(seed)
    clean, scene = torch.randn(size, 3, generator=random), None
    if scenes is not None:
        scene = torch.arange(size) % scenes
        clean = 0.5 * clean + 1.5 * torch.randn(scenes, 3, generator=random)[scene]
    scale = torch.randn(size, 1, generator=random).exp()
    return clean, clean + push * scale * torch.randn(size, 3, generator=random), scene


def measured(clean, attacked, bank, rows):
    """Every measure of the first samples of a bank."""
    own, clean, attacked = bank.rows(range(rows)), clean[:rows], attacked[:rows]
    return {
        "universal_quantile": universal_quantile(l2(clean.double(), attacked.double()), bank).numpy(),
        "breakaway_risk": breakaway_risk(attacked, clean, bank, own).numpy(),
        "nearest_neighbor_accuracy": nearest_neighbor_accuracy(attacked, clean, bank, own).numpy(),
    }


def study(attacked, size, seed, scenes, push):
    """-> {measure: (estimate, low, high)} of one small study, as `Results.summary` puts it together"""
    clean, moved, scene = draw(size, seed, scenes, push)
    parts = (torch.arange(size) // 2 if scene is None else scene) % PARTS
    bank = Bank(clean, parts=parts)
    values = measured(clean, moved, bank, attacked)
    without = [measured(clean, moved, bank.without(part), attacked) for part in range(PARTS)]
    groups = None if scene is None else scene[:attacked].numpy()
    found = {}
    for name, statistic in READINGS.items():
        one = statistics.interval(values[name], statistic=statistic, span=(0, 1), groups=groups, seed=seed)
        errors = statistics.jackknife_errors(
            one.estimate, np.stack([other[name] for other in without], axis=1), parts[:attacked], statistic=statistic
        )
        found[name] = (one.estimate, *statistics.widened(one.low, one.estimate, one.high, errors, PARTS))
    return found


@pytest.mark.parametrize(
    ("attacked", "size", "scenes", "push"),
    [(60, 60, None, 0.3), (60, 120, None, 0.3), (40, 80, None, 0.03), (60, 300, None, 0.3), (60, 120, 40, 0.3)],
    ids=["bank is the attacked", "twice the attacked", "sparse", "five times", "grouped crops"],
)
def test_intervals_of_ranks_in_a_small_bank_hold_the_truth(attacked, size, scenes, push):
    clean, moved, _ = draw(5000, 10**6, None if scenes is None else 2500, push)
    large = measured(clean, moved, Bank(clean, quantile_rows=3000), 4000)
    truth = {name: np.median(values) if READINGS[name] == "median" else values.mean() for name, values in large.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustnessWarning)
        studies = [study(attacked, size, seed, scenes, push) for seed in range(STUDIES)]
    # Whether a sample stays its own nearest depends on how many others there are: its truth is that of banks of this size.
    truth["nearest_neighbor_accuracy"] = np.mean([found["nearest_neighbor_accuracy"][0] for found in studies])
    for name in READINGS if push > 0.1 else ("breakaway_risk", "nearest_neighbor_accuracy"):  # a quantile below 1 / pairs is 0, and no more
        held = np.mean([low <= truth[name] <= high for _, low, high in (found[name] for found in studies)])
        assert held >= 0.93, f"{name}: {held:.1%} of the intervals hold {truth[name]:.4f}"


@pytest.mark.parametrize(("attacked", "scenes"), [(60, None), (120, 40)], ids=["pairs", "grouped crops"])
def test_intervals_of_pairs_hold_the_truth(attacked, scenes):
    def pairs(size, seed, scenes):
        clean, _, scene = draw(size, seed, scenes)
        random = torch.Generator().manual_seed(seed + 1)
        way = 0.7 * torch.rand(size, 1, generator=random)
        toward = clean + way * (clean[torch.arange(size) ^ 1] - clean) + 0.1 * torch.randn(size, 3, generator=random)
        sides = clean[::2], clean[1::2], toward[::2], toward[1::2]
        values = {"overlap_risk": overlap_risk(*sides).numpy(), "adversarial_margin": adversarial_margin(*sides).numpy()}
        return values, None if scene is None else scene[::2].numpy()

    large, _ = pairs(200_000, 10**6, None if scenes is None else 100_000)
    truth = {name: np.median(values) if PAIRED[name] == "median" else values.mean() for name, values in large.items()}
    held = dict.fromkeys(PAIRED, 0)
    for seed in range(4 * STUDIES):
        values, groups = pairs(attacked, seed, scenes)
        for name, statistic in PAIRED.items():
            span = (0, 1) if name == "overlap_risk" else None
            found = statistics.interval(values[name], statistic=statistic, span=span, groups=groups, seed=seed)
            held[name] += found.low <= truth[name] <= found.high
    assert all(count >= 0.93 * 4 * STUDIES for count in held.values()), held


def test_without_the_banks_error_an_interval_would_be_too_narrow():
    """What the widening is for: the same studies, without it, miss the truth too often."""
    clean, moved, _ = draw(4000, 10**6, push=1.0)
    truth = np.median(universal_quantile(l2(clean.double(), moved.double()), clean))
    plain = wide = 0
    for seed in range(STUDIES):
        clean, moved, _ = draw(440, seed, push=1.0)
        bank, clean, moved = Bank(clean[:40], parts=torch.arange(40) // 4), clean[40:], moved[40:]
        divergence = l2(clean.double(), moved.double())
        values = universal_quantile(divergence, bank)
        without = torch.stack([universal_quantile(divergence, bank.without(part)) for part in range(PARTS)], dim=1)
        one = statistics.interval(values, statistic="median", span=(0, 1))
        errors = statistics.jackknife_errors(one.estimate, without, np.full(400, -1), statistic="median")
        low, high = statistics.widened(one.low, one.estimate, one.high, errors, PARTS)
        plain, wide = plain + (one.low <= truth <= one.high), wide + (low <= truth <= high)
    assert plain < 0.8 * STUDIES
    assert wide >= 0.93 * STUDIES

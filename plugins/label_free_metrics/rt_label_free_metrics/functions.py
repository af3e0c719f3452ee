"""The measures as pure functions of tensors: one number a sample, or a pair."""

import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.neighbors import Bank
from rt_core.shapes import check_shape

__all__ = [
    "adversarial_margin",
    "breakaway_risk",
    "nearest_neighbor_accuracy",
    "overlap_risk",
    "relative_quantile",
    "universal_quantile",
]


def universal_quantile(values: Tensor, bank: Bank | Tensor, divergence: str | Divergence = "l2") -> Tensor:
    """Share of pairs of clean samples that are at most as far apart as a sample was moved (paper, section 5).

    0: the attack moved the representation less than any two samples differ; 1: at least as far as every pair. Exact and non-strict, over
    unordered pairs of distinct samples.

    values: [batch], how far each representation moved; bank: clean representations [bank, dim] -> [batch], in [0, 1]
    """
    check_shape(values, "batch", what="values")
    return _as_bank(bank).pair_quantiles(values, divergence)


def relative_quantile(adversarial: Tensor, clean: Tensor, targets: Tensor, divergence: str | Divergence = "l2") -> Tensor:
    """What is left of the distance to the target after the attack: d(f(x_j), f(x̂)) / d(f(x_j), f(x)) (paper, section 5).

    0: the target is reached; 1: no nearer than before. The denominator is the clean distance, as the paper defines it (its released
    scripts take the distance at the random start). NaN where input and target coincide already.

    adversarial, clean, targets: [batch, dim] -> [batch]
    """
    measure = find_divergence(divergence)
    reference, moved, start = targets.cpu().double(), adversarial.cpu().double(), clean.cpu().double()
    apart = measure(reference, start)
    return torch.where(apart > 0, measure(reference, moved) / apart, torch.nan)


def breakaway_risk(adversarial: Tensor, clean: Tensor, bank: Bank | Tensor, own: Tensor, divergence: str | Divergence = "l2") -> Tensor:
    """Share of other samples that are strictly nearer to a moved representation than its own clean one (paper, Eq. 1 and section C.6).

    0: none; 1: all of them. The sample's own row is left out by position, so a duplicate of it stays and, being no nearer, does not count.

    adversarial, clean: [batch, dim]; bank: [bank, dim]; own: [batch], each sample's row in the bank or -1 -> [batch], in [0, 1]
    """
    known = _as_bank(bank)
    others = len(known) - (own.cpu() >= 0).long()
    return known.closer_counts(adversarial, clean, own, divergence).double() / others


def nearest_neighbor_accuracy(
    adversarial: Tensor, clean: Tensor, bank: Bank | Tensor, own: Tensor, divergence: str | Divergence = "l2"
) -> Tensor:
    """Whether a moved representation's nearest clean neighbor is still its own: 1 if no other is strictly nearer, else 0 (paper, Eq. 4).

    Depends on how many others there are. adversarial, clean: [batch, dim]; bank: [bank, dim]; own: [batch], rows or -1 -> [batch]
    """
    return (_as_bank(bank).closer_counts(adversarial, clean, own, divergence) == 0).double()


def overlap_risk(
    first: Tensor, second: Tensor, first_to_second: Tensor, second_to_first: Tensor, divergence: str | Divergence = "l2"
) -> Tensor:
    """Whether the second, attacked toward the first, gets strictly nearer to it than the first remains: 1 or 0 (paper, Eq. 2).

    Equal to a negative adversarial margin; NaN for no pair, since no ratio is taken.

    first, second: clean representations; first_to_second, second_to_first: attacked ones; all [pairs, dim] -> [pairs]
    """
    kept, intruder = _from_first(first, first_to_second, second_to_first, divergence)
    return (intruder < kept).double()


def adversarial_margin(
    first: Tensor, second: Tensor, first_to_second: Tensor, second_to_first: Tensor, divergence: str | Divergence = "l2"
) -> Tensor:
    """How far the two attacked representations stay apart as seen from the first, in units of the clean distance (paper, section 5).

    [d(f(x_i), f(x̂_j→i)) − d(f(x_i), f(x̂_i→j))] / d(f(x_i), f(x_j)): 1 if nothing moved, negative if they overlap. NaN where the clean
    representations coincide.

    first, second: clean representations; first_to_second, second_to_first: attacked ones; all [pairs, dim] -> [pairs]
    """
    kept, intruder = _from_first(first, first_to_second, second_to_first, divergence)
    apart = find_divergence(divergence)(first.cpu().double(), second.cpu().double())
    return torch.where(apart > 0, (intruder - kept) / apart, torch.nan)


def _from_first(first: Tensor, first_to_second: Tensor, second_to_first: Tensor, divergence: str | Divergence) -> tuple[Tensor, Tensor]:
    measure = find_divergence(divergence)
    return measure(first.cpu().double(), first_to_second.cpu().double()), measure(first.cpu().double(), second_to_first.cpu().double())


def _as_bank(bank: Bank | Tensor) -> Bank:
    return bank if isinstance(bank, Bank) else Bank(bank)

"""The parameter-free ensemble: attacks that fail in different places, of which the worst counts for each sample and measure."""

from rt_core.traces import Suite, check_whole
from rt_unsupervised_attacks.apgd import UAPGD, MarginAPGD, NearestAPGD
from rt_unsupervised_attacks.square import USquare

__all__ = ["ensemble"]

QUERIES = 2
"""Queries of the random search for each gradient call: a forward pass costs 0.4 of one with its gradient, so it takes about as long."""


def ensemble(*, epsilon: float, norm: str = "linf", budget: int = 50, k: int = 3) -> Suite:
    """Return the attacks that belong together when only the ball and the budget are chosen.

    ``apgd`` climbs the plan's divergence from a random start, ``cosine`` the cosine divergence, whatever the plan's, from beside the input,
    ``margin`` the breakaway margin, ``nearest`` goes past the border to each of the ``k`` nearest others, and ``square`` searches without
    gradients. Away from the clean input all five run; toward a target ``apgd``, ``cosine`` and ``square``. A plan runs them as ordinary
    attacks, ``Results.worst`` reads the worst.

    Passes a sample, for each member in its ``passes``: away (3 + k) · budget forward and backward passes and 2 · budget more forward ones,
    toward a target 2 · budget and 2 · budget: 300 and 100, or 100 and 100, unless told otherwise.

    Args:
        epsilon, norm: the ball.
        budget: gradient calls for each thing that is climbed.
        k: how many of the nearest others are gone to.

    Raises:
        ValueError: a parameter out of its range.
    """
    budget = check_whole("budget", budget)
    return Suite(
        {
            "apgd": UAPGD(epsilon=epsilon, norm=norm, steps=budget),
            "margin": MarginAPGD(epsilon=epsilon, norm=norm, steps=budget),
            "nearest": NearestAPGD(epsilon=epsilon, norm=norm, steps=budget, k=k),
            "square": USquare(epsilon=epsilon, norm=norm, queries=QUERIES * budget),
            # From beside the input: where the ball is small, the two starts lead to different optima, and together they find more.
            "cosine": UAPGD(epsilon=epsilon, norm=norm, steps=budget, divergence="cosine", start="eta"),
        }
    )

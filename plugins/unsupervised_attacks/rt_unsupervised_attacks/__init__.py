"""Label-free attacks on representation encoders."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_unsupervised_attacks.apgd import UAPGD, MarginAPGD, NearestAPGD
    from rt_unsupervised_attacks.gradient import UBIM, UFGSM, UMIPGD, UPGD
    from rt_unsupervised_attacks.loss_based import LBIM, LFGSM, LPGD, BatchLBIM, BatchLFGSM, BatchLPGD
    from rt_unsupervised_attacks.radii import BreakawayRadius, QuantileRadius
    from rt_unsupervised_attacks.square import USquare
    from rt_unsupervised_attacks.suites import ensemble
    from rt_unsupervised_attacks.universal import UniversalPerturbation

__all__ = [
    "LBIM",
    "LFGSM",
    "LPGD",
    "UAPGD",
    "UBIM",
    "UFGSM",
    "UMIPGD",
    "UPGD",
    "BatchLBIM",
    "BatchLFGSM",
    "BatchLPGD",
    "BreakawayRadius",
    "MarginAPGD",
    "NearestAPGD",
    "QuantileRadius",
    "USquare",
    "UniversalPerturbation",
    "ensemble",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "apgd": ["UAPGD", "MarginAPGD", "NearestAPGD"],
        "gradient": ["UBIM", "UFGSM", "UMIPGD", "UPGD"],
        "loss_based": ["LBIM", "LFGSM", "LPGD", "BatchLBIM", "BatchLFGSM", "BatchLPGD"],
        "radii": ["BreakawayRadius", "QuantileRadius"],
        "square": ["USquare"],
        "suites": ["ensemble"],
        "universal": ["UniversalPerturbation"],
    },
)

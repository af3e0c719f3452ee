"""Label-free attacks on representation encoders."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_unsupervised_attacks.gradient import UBIM, UFGSM, UMIPGD, UPGD

__all__ = ["UBIM", "UFGSM", "UMIPGD", "UPGD"]
__getattr__, __dir__ = lazy(__name__, {"gradient": __all__})

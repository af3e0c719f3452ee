"""Evasion attacks of the Adversarial Robustness Toolbox made label-free."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_art.bridge import AnchorLoss, ARTAttack, Representations

__all__ = ["ARTAttack", "AnchorLoss", "Representations"]
__getattr__, __dir__ = lazy(__name__, {"bridge": __all__})

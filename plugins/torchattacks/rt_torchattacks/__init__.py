"""torchattacks' attacks made label-free."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_torchattacks.bridge import CLASSES, MODES, Torchattack, Traits

__all__ = ["CLASSES", "MODES", "Torchattack", "Traits"]
__getattr__, __dir__ = lazy(__name__, {"bridge": __all__})

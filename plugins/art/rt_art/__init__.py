"""Evasion attacks of the Adversarial Robustness Toolbox made label-free, and encoders with a probe as its classifiers."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_art.bridge import ARTAttack
    from rt_art.classifier import Classifier, art_classifier
    from rt_art.views import AnchorLoss, Representations

__all__ = ["ARTAttack", "AnchorLoss", "Classifier", "Representations", "art_classifier"]
__getattr__, __dir__ = lazy(
    __name__, {"bridge": ["ARTAttack"], "classifier": ["Classifier", "art_classifier"], "views": ["AnchorLoss", "Representations"]}
)

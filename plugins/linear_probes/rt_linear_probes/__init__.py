"""What an encoder is good for, on labelled samples."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_linear_probes.knn import KnnAccuracy, knn_predictions

__all__ = ["KnnAccuracy", "knn_predictions"]
__getattr__, __dir__ = lazy(__name__, {"knn": __all__})

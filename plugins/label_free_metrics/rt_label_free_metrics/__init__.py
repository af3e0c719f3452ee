"""Label-free robustness measures of representation encoders."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_label_free_metrics.functions import (
        adversarial_margin,
        breakaway_risk,
        nearest_neighbor_accuracy,
        overlap_risk,
        relative_quantile,
        universal_quantile,
    )
    from rt_label_free_metrics.local import LocalSensitivity, ViewQuantile, benign_views
    from rt_label_free_metrics.metrics import (
        AdversarialMargin,
        BreakawayRisk,
        CosineSimilarity,
        Divergence,
        NearestNeighborAccuracy,
        OverlapRisk,
        RelativeQuantile,
        TargetCosineSimilarity,
        TargetDivergence,
        UniversalQuantile,
    )

__all__ = [
    "AdversarialMargin",
    "BreakawayRisk",
    "CosineSimilarity",
    "Divergence",
    "LocalSensitivity",
    "NearestNeighborAccuracy",
    "OverlapRisk",
    "RelativeQuantile",
    "TargetCosineSimilarity",
    "TargetDivergence",
    "UniversalQuantile",
    "ViewQuantile",
    "adversarial_margin",
    "benign_views",
    "breakaway_risk",
    "nearest_neighbor_accuracy",
    "overlap_risk",
    "relative_quantile",
    "universal_quantile",
]
_LOCAL = ["LocalSensitivity", "ViewQuantile", "benign_views"]
_OTHERS = [name for name in __all__ if name not in _LOCAL]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "functions": [name for name in _OTHERS if name.islower()],
        "local": _LOCAL,
        "metrics": [name for name in _OTHERS if not name.islower()],
    },
)

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
    "NearestNeighborAccuracy",
    "OverlapRisk",
    "RelativeQuantile",
    "TargetCosineSimilarity",
    "TargetDivergence",
    "UniversalQuantile",
    "adversarial_margin",
    "breakaway_risk",
    "nearest_neighbor_accuracy",
    "overlap_risk",
    "relative_quantile",
    "universal_quantile",
]
__getattr__, __dir__ = lazy(
    __name__,
    {"functions": [name for name in __all__ if name.islower()], "metrics": [name for name in __all__ if not name.islower()]},
)

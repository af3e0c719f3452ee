"""What rt-label-free-metrics provides."""

from rt_core import MetricEntry, hookimpl

_HERE = "rt_label_free_metrics.metrics"


@hookimpl
def rt_metrics():
    return [
        MetricEntry(name="divergence", summary="how far the representation moved", factory=f"{_HERE}:Divergence"),
        MetricEntry(name="cosine_similarity", summary="cosine similarity to the clean representation", factory=f"{_HERE}:CosineSimilarity"),
        MetricEntry(
            name="target_divergence", summary="how far the representation still is from the target's", factory=f"{_HERE}:TargetDivergence"
        ),
        MetricEntry(
            name="target_cosine_similarity",
            summary="cosine similarity to the target's representation",
            factory=f"{_HERE}:TargetCosineSimilarity",
        ),
        MetricEntry(
            name="universal_quantile",
            summary="share of clean pairs at most as far apart as the sample moved",
            factory=f"{_HERE}:UniversalQuantile",
        ),
        MetricEntry(name="relative_quantile", summary="what is left of the distance to the target", factory=f"{_HERE}:RelativeQuantile"),
        MetricEntry(
            name="breakaway_risk", summary="share of other samples that got nearer than the sample itself", factory=f"{_HERE}:BreakawayRisk"
        ),
        MetricEntry(
            name="nearest_neighbor_accuracy",
            summary="whether the nearest clean neighbor is still the sample itself",
            factory=f"{_HERE}:NearestNeighborAccuracy",
        ),
        MetricEntry(
            name="overlap_risk", summary="whether two samples attacked toward each other change places", factory=f"{_HERE}:OverlapRisk"
        ),
        MetricEntry(
            name="adversarial_margin",
            summary="how far two samples attacked toward each other stay apart",
            factory=f"{_HERE}:AdversarialMargin",
        ),
        MetricEntry(
            name="view_quantile",
            summary="share of benign views of the same sample that move it at least as far",
            factory="rt_label_free_metrics.local:ViewQuantile",
        ),
        MetricEntry(
            name="local_sensitivity",
            summary="how steep the encoder is around a clean input",
            factory="rt_label_free_metrics.local:LocalSensitivity",
        ),
    ]

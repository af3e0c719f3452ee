"""What rt-linear-probes provides."""

from rt_core import MetricEntry, hookimpl


@hookimpl
def rt_metrics():
    return [
        MetricEntry(
            name="knn_accuracy",
            summary="whether the k nearest clean samples have the sample's label",
            factory="rt_linear_probes.knn:KnnAccuracy",
        )
    ]

"""What rt-center-smoothing provides."""

from rt_core import MetricEntry, hookimpl

_HERE = "rt_center_smoothing.metrics"


@hookimpl
def rt_metrics():
    return [
        MetricEntry(
            name="certified_output_radius",
            summary="how far the smoothed representation moves at most inside an l2 ball of inputs",
            factory=f"{_HERE}:CertifiedOutputRadius",
        ),
        MetricEntry(
            name="certified_quantile",
            summary="share of clean pairs at most as far apart as the smoothed representation can move",
            factory=f"{_HERE}:CertifiedQuantile",
        ),
        MetricEntry(
            name="certified_breakaway",
            summary="share of other samples that can become nearer to the smoothed representation",
            factory=f"{_HERE}:CertifiedBreakaway",
        ),
        MetricEntry(
            name="half_mass_radius",
            summary="radius that holds half of a sample's noisy representations",
            factory=f"{_HERE}:HalfMassRadius",
        ),
        MetricEntry(
            name="certified_half_mass_radius",
            summary="radius that holds half of the noisy representations of every input nearby",
            factory=f"{_HERE}:CertifiedHalfMassRadius",
        ),
        MetricEntry(
            name="certified_neighbor_radius",
            summary="input radius within which most noisy copies stay nearest to their own clean sample",
            factory=f"{_HERE}:CertifiedNeighborRadius",
        ),
    ]

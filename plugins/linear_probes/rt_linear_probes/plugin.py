"""What rt-linear-probes provides."""

from rt_core import DatasetEntry, MetricEntry, hookimpl

_HERE = "rt_linear_probes"


@hookimpl
def rt_metrics():
    return [
        MetricEntry(
            name="knn_accuracy", summary="whether the k nearest clean samples have the sample's label", factory=f"{_HERE}.knn:KnnAccuracy"
        ),
        MetricEntry(
            name="probe_top1", summary="whether a linear probe gives a clean sample its label", factory=f"{_HERE}.accuracy:ProbeTop1"
        ),
        MetricEntry(
            name="probe_top5",
            summary="whether the label is among the five classes that a linear probe finds likeliest",
            factory=f"{_HERE}.accuracy:ProbeTop5",
        ),
        MetricEntry(
            name="lowpass_gap",
            summary="accuracy that a linear probe loses on pictures without high frequencies",
            factory=f"{_HERE}.accuracy:LowpassGap",
        ),
        MetricEntry(
            name="robust_accuracy",
            summary="whether a linear probe gives a sample its label clean and attacked",
            factory=f"{_HERE}.accuracy:RobustAccuracy",
        ),
        MetricEntry(
            name="attack_success",
            summary="whether an attack breaks a sample that a linear probe gets right when it is clean",
            factory=f"{_HERE}.accuracy:AttackSuccess",
        ),
        MetricEntry(
            name="impersonation_rate",
            summary="whether a probe takes a sample attacked toward another group for one of that group",
            factory=f"{_HERE}.impersonation:ImpersonationRate",
        ),
        MetricEntry(
            name="neighbor_impersonation_rate",
            summary="whether the nearest clean neighbor of a sample attacked toward another group is of that group",
            factory=f"{_HERE}.impersonation:NeighborImpersonationRate",
        ),
        MetricEntry(
            name="verification_rate",
            summary="whether a sample attacked toward another passes for it at a false-accept rate",
            factory=f"{_HERE}.verification:VerificationRate",
        ),
        MetricEntry(
            name="dodging_rate",
            summary="whether an attacked sample is no longer accepted as itself at a false-accept rate",
            factory=f"{_HERE}.verification:DodgingRate",
        ),
        MetricEntry(
            name="verification_threshold",
            summary="the distance that a false-accept rate allows, and from how many impostor pairs",
            factory=f"{_HERE}.verification:VerificationThreshold",
        ),
        MetricEntry(
            name="certified_accuracy",
            summary="whether randomized smoothing certifies the label at each of some l2 radii",
            factory=f"{_HERE}.smoothing:CertifiedAccuracy",
        ),
        MetricEntry(
            name="certified_radius",
            summary="l2 radius in which randomized smoothing certifies the label, 0 where it is wrong",
            factory=f"{_HERE}.smoothing:CertifiedRadius",
        ),
    ]


@hookimpl
def rt_datasets():
    return [
        DatasetEntry(
            name="impersonation_pairs",
            summary="samples of two groups of classes as pairs, for attacks in both directions",
            factory=f"{_HERE}.impersonation:impersonation_pairs",
        )
    ]

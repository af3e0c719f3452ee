"""What an encoder is good for, on labelled samples: linear probes, their robustness, certificates for them, impersonation and verification."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_linear_probes.accuracy import AttackSuccess, LowpassGap, ProbeTop1, ProbeTop5, RobustAccuracy, probe_accuracy
    from rt_linear_probes.frequencies import lowpass
    from rt_linear_probes.impersonation import (
        ImpersonationRate,
        NeighborImpersonationRate,
        gallery_pairs,
        impersonation_grid,
        impersonation_pairs,
        impersonation_rate,
        impersonation_rates,
    )
    from rt_linear_probes.knn import KnnAccuracy, knn_predictions
    from rt_linear_probes.probes import LinearProbe, Probe, ProbeLoss, as_probe, fit_probe
    from rt_linear_probes.smoothing import (
        CertifiedAccuracy,
        CertifiedRadius,
        RandomizedSmoothing,
        SmoothedPrediction,
        average_certified_radius,
        certified_l2_radius,
        clopper_pearson_lower,
        draws_needed,
    )
    from rt_linear_probes.verification import (
        DodgingRate,
        VerificationRate,
        VerificationThreshold,
        impostor_distances,
        verification_threshold,
    )

__all__ = [
    "AttackSuccess",
    "CertifiedAccuracy",
    "CertifiedRadius",
    "DodgingRate",
    "ImpersonationRate",
    "KnnAccuracy",
    "LinearProbe",
    "LowpassGap",
    "NeighborImpersonationRate",
    "Probe",
    "ProbeLoss",
    "ProbeTop1",
    "ProbeTop5",
    "RandomizedSmoothing",
    "RobustAccuracy",
    "SmoothedPrediction",
    "VerificationRate",
    "VerificationThreshold",
    "as_probe",
    "average_certified_radius",
    "certified_l2_radius",
    "clopper_pearson_lower",
    "draws_needed",
    "fit_probe",
    "gallery_pairs",
    "impersonation_grid",
    "impersonation_pairs",
    "impersonation_rate",
    "impersonation_rates",
    "impostor_distances",
    "knn_predictions",
    "lowpass",
    "probe_accuracy",
    "verification_threshold",
]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "accuracy": ["AttackSuccess", "LowpassGap", "ProbeTop1", "ProbeTop5", "RobustAccuracy", "probe_accuracy"],
        "frequencies": ["lowpass"],
        "impersonation": [
            "ImpersonationRate",
            "NeighborImpersonationRate",
            "gallery_pairs",
            "impersonation_grid",
            "impersonation_pairs",
            "impersonation_rate",
            "impersonation_rates",
        ],
        "knn": ["KnnAccuracy", "knn_predictions"],
        "probes": ["LinearProbe", "Probe", "ProbeLoss", "as_probe", "fit_probe"],
        "smoothing": [
            "CertifiedAccuracy",
            "CertifiedRadius",
            "RandomizedSmoothing",
            "SmoothedPrediction",
            "average_certified_radius",
            "certified_l2_radius",
            "clopper_pearson_lower",
            "draws_needed",
        ],
        "verification": ["DodgingRate", "VerificationRate", "VerificationThreshold", "impostor_distances", "verification_threshold"],
    },
)

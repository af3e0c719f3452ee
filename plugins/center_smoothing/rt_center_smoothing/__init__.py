"""Certificates of representation encoders by center smoothing, without labels."""

from typing import TYPE_CHECKING

from rt_core.lazy import lazy

if TYPE_CHECKING:
    from rt_center_smoothing.functions import (
        abstains,
        center_draws_needed,
        certify_draws_needed,
        certify_rank,
        largest_input_radius,
        minimum_enclosing_center,
        quantile_level,
        vote_radius,
    )
    from rt_center_smoothing.metrics import (
        CertifiedBreakaway,
        CertifiedHalfMassRadius,
        CertifiedNeighborRadius,
        CertifiedOutputRadius,
        CertifiedQuantile,
        HalfMassRadius,
    )
    from rt_center_smoothing.smoothing import CenterSmoothing, Certificate

__all__ = [
    "CenterSmoothing",
    "Certificate",
    "CertifiedBreakaway",
    "CertifiedHalfMassRadius",
    "CertifiedNeighborRadius",
    "CertifiedOutputRadius",
    "CertifiedQuantile",
    "HalfMassRadius",
    "abstains",
    "center_draws_needed",
    "certify_draws_needed",
    "certify_rank",
    "largest_input_radius",
    "minimum_enclosing_center",
    "quantile_level",
    "vote_radius",
]
_SMOOTHING = ["CenterSmoothing", "Certificate"]
_OTHERS = [name for name in __all__ if name not in _SMOOTHING]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "functions": [name for name in _OTHERS if name.islower()],
        "metrics": [name for name in _OTHERS if not name.islower()],
        "smoothing": _SMOOTHING,
    },
)

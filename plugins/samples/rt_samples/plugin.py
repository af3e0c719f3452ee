"""What rt-samples provides."""

from rt_core import DatasetEntry, EncoderEntry, hookimpl

__all__ = ["rt_datasets", "rt_encoders"]

_HERE = "rt_samples"


@hookimpl
def rt_datasets():
    return [DatasetEntry(name="digits", summary="scikit-learn's 1,797 real digits, bilinear to 16 x 16", factory=f"{_HERE}.digits:digits")]


@hookimpl
def rt_encoders():
    return [
        EncoderEntry(
            name="digits_contrastive",
            summary="digits to 64 numbers, learned by contrast (MoCo) without labels",
            factory=f"{_HERE}.encoders:digits_contrastive",
        ),
        EncoderEntry(
            name="digits_robust",
            summary="digits_contrastive after adversarial fine-tuning without labels",
            factory=f"{_HERE}.encoders:digits_robust",
        ),
        EncoderEntry(
            name="digits_supervised",
            summary="digits to the last layer but one of a classifier",
            factory=f"{_HERE}.encoders:digits_supervised",
        ),
        EncoderEntry(
            name="digits_untrained",
            summary="the same network with random weights: the reference row",
            factory=f"{_HERE}.encoders:digits_untrained",
        ),
    ]

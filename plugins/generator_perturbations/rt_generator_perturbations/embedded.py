"""The embedded default: a generator of digits and two classifiers of them, with weights that come along."""

from rt_core.encoders import Encoder
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.network import CLASSES, LATENT, DigitClassifier, DigitDecoder, shipped_weights
from rt_generator_perturbations.victims import classifier

__all__ = ["digits_classifier", "digits_classifier_robust", "digits_generator"]


def digits_generator() -> Generator:
    """Return the decoder of a conditional VAE of scikit-learn's digits: classes 0 to 9, images [1, 16, 16].

    Its layers, from coarse to fine: ``latent`` (16 numbers), ``start`` and ``block4`` (32 maps of 4 x 4), ``block8`` (8 x 8), ``block16``
    (16 x 16), ``image``. The latent also scales and shifts the channels of every block, so its perturbation reaches them all.
    """
    decoder = DigitDecoder()
    decoder.load_state_dict(shipped_weights("digits_generator"))
    layers = ("start", "block4", "block8", "block16")
    return Generator(decoder, layers=layers, latent=(LATENT,), classes=CLASSES, values=(0.0, 1.0), name="digits_generator")


def digits_classifier(*, robust: bool = False) -> Encoder:
    """Return a classifier of digits [1, 16, 16] in [0, 1]; its output are the logits of the ten classes, for attacks on a decision.

    robust: trained on what an l2 attack makes of each batch (Madry et al. 2018) instead of on the digits; all else is equal.
    """
    name = "digits_classifier_robust" if robust else "digits_classifier"
    network = DigitClassifier()
    network.load_state_dict(shipped_weights(name))
    return classifier(network, name=name)


def digits_classifier_robust() -> Encoder:
    """Return ``digits_classifier(robust=True)``."""
    return digits_classifier(robust=True)

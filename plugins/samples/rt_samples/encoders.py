"""The encoders: the shipped weights, and the same network untrained, as ``rt_core`` encoders."""

from rt_core.encoders import Encoder
from rt_samples.network import shipped_network, untrained_network

__all__ = ["digits_contrastive", "digits_robust", "digits_supervised", "digits_untrained"]


def digits_contrastive() -> Encoder:
    """Return the encoder that learned by contrasting views of a digit with other digits (MoCo), without labels."""
    return _shipped("digits_contrastive")


def digits_robust() -> Encoder:
    """Return ``digits_contrastive`` after label-free adversarial fine-tuning (Petrov & Kwiatkowska 2022, Listing 1)."""
    return _shipped("digits_robust")


def digits_supervised() -> Encoder:
    """Return the last layer but one of a network that learned to tell the ten digits by their labels."""
    return _shipped("digits_supervised")


def digits_untrained(*, seed: int = 0) -> Encoder:
    """Return the same network with random weights: what a measure says of it, no training is needed for.

    Raises:
        ValueError: the seed is negative.
    """
    return Encoder(untrained_network(seed=seed), name="digits_untrained")


def _shipped(name: str) -> Encoder:
    return Encoder(shipped_network(name), name=name)

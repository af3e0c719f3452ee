"""U-Square moves representations about as far as ART's Square Attack does on the same loss with the same number of queries."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from rt_core import Encoder, perturb
from rt_core.divergences import l2
from rt_core.testing import tiny_inputs
from rt_unsupervised_attacks.square import USquare

QUERIES = 150


def conv_encoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 12, 3, stride=2), nn.Tanh(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
    return Encoder(network.eval(), name="conv")


def by_art(encoder, inputs, norm, epsilon, seed):
    """Run ART's attack with the divergence as its loss, and a criterion that no sample ever meets: -> the inputs that it found."""
    from art.attacks.evasion import SquareAttack
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        clean = encoder(inputs)
    classifier = PyTorchClassifier(
        encoder.module, nn.MSELoss(), input_shape=tuple(inputs.shape[1:]), nb_classes=clean.shape[1], clip_values=(0, 1), device_type="cpu"
    )

    def loss(moved, references):
        with torch.no_grad():
            return -l2(torch.from_numpy(references), encoder(torch.from_numpy(moved))).numpy()

    def never(outputs, references):
        return np.zeros(len(outputs), dtype=bool)

    # ART looks at the stripes first, and then at one change in each iteration.
    attack = SquareAttack(
        classifier, norm=norm, eps=epsilon, max_iter=QUERIES - 1, p_init=0.3, loss=loss, adv_criterion=never, batch_size=64, verbose=False
    )
    np.random.seed(seed)
    return torch.from_numpy(attack.generate(inputs.numpy(), y=clean.numpy()))


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered in divide:RuntimeWarning")
@pytest.mark.parametrize(("norm", "library", "epsilon"), [("linf", np.inf, 0.1), ("l2", 2, 1.0)])
def test_as_far_as_art_on_average_over_seeds(norm, library, epsilon):
    """Both are random searches, whose means over 16 samples scatter by a few percent from seed to seed: five seeds, and a fifth of leeway.

    ART draws one window for all samples of an iteration, and for linf wastes changes that change nothing.
    """
    logging.disable(logging.WARNING)
    try:
        encoder, inputs = conv_encoder(), tiny_inputs(16, (3, 20, 20))  # of fewer than 20 pixels ART's l2 tiles are NaN
        with torch.no_grad():
            clean = encoder(inputs)
            art = [l2(clean, encoder(by_art(encoder, inputs, library, epsilon, seed))).mean().item() for seed in range(5)]
        attack = USquare(epsilon=epsilon, norm=norm, queries=QUERIES, area=0.3)
        ours = [perturb(attack, encoder, inputs, seed=seed).divergence.mean().item() for seed in range(5)]
    finally:
        logging.disable(logging.NOTSET)

    assert np.mean(ours) == pytest.approx(np.mean(art), rel=0.2), (ours, art)
    assert np.std(ours) < 0.1 * np.mean(ours)

"""An encoder with a probe as a classifier of ART and as a plain network."""

import numpy as np
import pytest
import torch
from torch import nn

import rt_core
from rt_art import Classifier, art_classifier
from rt_core.traces import Ball

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def conv_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(3), nn.Flatten())
    return network.train()


def images(rows, low=0.0, high=1.0):
    return torch.rand(rows, 3, 10, 10, generator=torch.Generator().manual_seed(1)) * (high - low) + low


def probe(classes=4, dim=54):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(classes, dim, generator=generator), torch.randn(classes, generator=generator)


def linear():
    head = nn.Linear(54, 4)
    head.load_state_dict(dict(zip(("weight", "bias"), probe(), strict=True)))
    return head


def by_hand(network, inputs, weight, bias):
    """Normalized, through the network in eval mode, and the probe."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    modes = [module.training for module in network.modules()]
    network.eval()
    with torch.no_grad():
        logits = network((inputs - mean) / std) @ weight.T + bias
    for module, training in zip(network.modules(), modes, strict=True):
        module.training = training
    return logits


@pytest.mark.parametrize("module", [False, True])
def test_predictions_are_those_of_encoder_and_head(module):
    network, inputs, (weight, bias) = conv_net(), images(5), probe()
    encoder = rt_core.Encoder(network, name="conv", normalize=(MEAN, STD))
    head = (weight.numpy(), bias.numpy())
    if module:
        head = nn.Sequential(nn.Dropout(0.5), nn.Linear(54, 4))
        head[1].load_state_dict({"weight": weight, "bias": bias})
    estimator = art_classifier(encoder, head, classes=4, input_shape=(3, 10, 10))
    expected = by_hand(network, inputs, weight, bias)
    np.testing.assert_allclose(estimator.predict(inputs.numpy()), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(estimator.predict(inputs.numpy().astype(np.float64)), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(Classifier(encoder, head)(inputs), expected)
    assert estimator.nb_classes == 4
    assert estimator.input_shape == (3, 10, 10)


def test_attacks_of_art_run_on_it_and_leave_the_encoder_alone():
    from art.attacks.evasion import DeepFool, ProjectedGradientDescent

    network, inputs, head = conv_net(), images(6), linear()
    network[0].bias.requires_grad_(False)
    encoder = rt_core.Encoder(network, name="conv", normalize=(MEAN, STD))
    estimator = art_classifier(encoder, head, classes=4, input_shape=(3, 10, 10))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    flags = [weight.requires_grad for weight in network.parameters()]

    labels = estimator.predict(inputs.numpy()).argmax(1)
    backwards = encoder.passes.backwards
    moved = ProjectedGradientDescent(estimator, eps=0.3, eps_step=0.05, max_iter=8, verbose=False).generate(inputs.numpy())
    assert encoder.passes.backwards == backwards + 8 * 6
    before_it, after_it = (
        nn.functional.cross_entropy(*map(torch.as_tensor, (estimator.predict(one), labels)), reduction="none")
        for one in (inputs.numpy(), moved)
    )
    assert (after_it > before_it).all()
    assert Ball("linf", 0.3).distance(torch.as_tensor(moved), inputs).max() <= 0.3 + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1
    crossed = DeepFool(estimator, verbose=False).generate(inputs.numpy())
    assert (estimator.predict(crossed).argmax(1) != labels).any()

    assert all(module.training for module in network.modules())
    assert [weight.requires_grad for weight in network.parameters()] == flags
    assert all(weight.grad is None for weight in [*network.parameters(), *head.parameters()])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert head.training
    assert head.weight.requires_grad


def test_bounds_are_the_clip_values():
    network = conv_net()
    low, high = torch.tensor([-1.0, -2.0, 0.0]).reshape(3, 1, 1), torch.tensor([1.0, 3.0, 0.5]).reshape(3, 1, 1)
    for bounds in ((low, high), (-1.0, 2.0)):
        estimator = art_classifier(rt_core.Encoder(network, name="conv", bounds=bounds), probe(), classes=4, input_shape=(3, 10, 10))
        found = [np.broadcast_to(clip, (3, 10, 10)) for clip in estimator.clip_values]
        for clip, bound in zip(found, bounds, strict=True):
            np.testing.assert_array_equal(clip, torch.as_tensor(bound).expand(3, 10, 10))


def test_the_plain_network_has_a_gradient_to_its_input_and_to_nothing_else():
    network, inputs = conv_net(), images(3).requires_grad_()
    classifier = Classifier(rt_core.Encoder(network, name="conv"), linear())
    (slope,) = torch.autograd.grad(classifier.train()(inputs).logsumexp(1).sum(), inputs)
    assert (slope != 0).any()
    assert not classifier.training
    assert not any(weight.requires_grad for weight in classifier.parameters())
    assert next(classifier.parameters()).device == inputs.device
    assert not any(module is network for module in classifier.modules())


def test_float64_stays_and_is_served():
    encoder = rt_core.Encoder(conv_net().double(), name="double")
    weight, bias = probe()
    logits = Classifier(encoder, (weight.double(), bias.double()))(images(2).double())
    assert logits.dtype == torch.float64
    estimator = art_classifier(encoder, (weight, bias), classes=4, input_shape=(3, 10, 10))
    np.testing.assert_allclose(estimator.predict(images(2).numpy()), logits.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("head", "classes", "message"),
    [
        (3, 4, "head is of type int; expected a network, or"),
        ((torch.zeros(4, 54), torch.zeros(5)), 4, r"bias has shape \[5\]; expected \[4\]"),
        (probe(), 10, r"the head gives \[1, 4\] for one input; expected \[1, 10\]: classes is 10"),
        (probe(dim=7), 4, r"encoder 'conv' and the head do not fit inputs of shape \(3, 10, 10\)"),
    ],
)
def test_what_does_not_fit_is_said(head, classes, message):
    encoder = rt_core.Encoder(conv_net(), name="conv")
    with pytest.raises(ValueError, match=message):
        art_classifier(encoder, head, classes=classes, input_shape=(3, 10, 10))


def test_nothing_is_drawn_from_global_generators():
    encoder, state = rt_core.Encoder(conv_net(), name="conv"), torch.get_rng_state()
    art_classifier(encoder, probe(), classes=4, input_shape=(3, 10, 10))
    assert torch.equal(torch.get_rng_state(), state)

"""The universal perturbation: the same for all, fitted to some, effective on others."""

import json
import pickle

import numpy as np
import pytest
import torch

from rt_core import Encoder, perturb
from rt_core.evaluation import describe
from rt_core.fingerprints import fingerprint
from rt_core.randomness import SampleRandom
from rt_core.testing import linear_encoder, parametrize_attack_checks, tiny_encoder, tiny_inputs
from rt_unsupervised_attacks.universal import UniversalPerturbation

RANDOM = SampleRandom.of(0, [])


def waves(shape):
    return Encoder(lambda inputs: (3 * inputs.flatten(1)).sin(), name="waves"), tiny_inputs(20, shape, purpose="train")


FITTED = UniversalPerturbation(epsilon=0.1, epochs=2, batch=16).fit(tiny_encoder(), tiny_inputs(32, purpose="train"), random=RANDOM)


@parametrize_attack_checks(
    [FITTED],
    expected_failures={"takes_inputs_that_are_no_images": "it is fitted to inputs of one shape"},
)
def test_the_contract(attack, check):
    check(attack)


def test_one_delta_in_the_ball_moves_samples_that_it_has_not_seen():
    encoder, train, unseen = tiny_encoder(), tiny_inputs(64, purpose="train"), tiny_inputs(32)
    epsilon = 0.07
    attack = UniversalPerturbation(epsilon=epsilon).fit(encoder, train, "l2", random=RANDOM)

    assert attack.delta.shape == (1, 3, 8, 8)
    assert attack.delta.double().abs().max() <= epsilon
    moved = perturb(attack, encoder, unseen)
    free = ((unseen + attack.delta > 0) & (unseen + attack.delta < 1)).all(0)
    change = (moved.inputs - unseen)[:, free]
    torch.testing.assert_close(change, attack.delta[0, free].expand_as(change), rtol=0, atol=1e-7)
    noise = perturb(lambda encoder, batch, divergence, *, random: encoder.clip(batch.inputs + attack.delta.abs() * FLIPS), encoder, unseen)
    assert (moved.divergence > 1.5 * noise.divergence).all()


FLIPS = torch.where(torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_optimum_of_a_linear_encoder_is_one_corner_for_all(dtype):
    encoder, weight = linear_encoder(3, 4, 4, dtype=dtype)
    train = 0.3 + 0.4 * tiny_inputs(10, (3, 4, 4)).to(dtype)
    attack = UniversalPerturbation(epsilon=0.1, batch=4).fit(encoder, train, random=RANDOM)

    assert attack.delta.dtype == dtype
    signs = attack.delta.sign() * weight.sign()
    assert (signs == signs.flatten()[0]).all()
    trace = perturb(attack, encoder, train)
    torch.testing.assert_close(trace.divergence, (0.1 * weight.abs().sum()).double().expand(10), rtol=1e-5, atol=0)


def test_fitting_costs_the_clean_passes_and_one_each_epoch():
    encoder = tiny_encoder()
    UniversalPerturbation(epsilon=0.1, epochs=3, batch=8).fit(encoder, tiny_inputs(20), random=RANDOM)
    assert (encoder.passes.forwards, encoder.passes.backwards) == (20 * 4, 20 * 3)
    trace = perturb(FITTED, encoder, tiny_inputs(5))
    assert (trace.forwards, trace.backwards) == (5, 0)  # the one that measures


def test_a_fit_is_known_by_its_seed_alone_and_leaves_generators_alone():
    encoder, train = tiny_encoder(), tiny_inputs(20)
    state = torch.get_rng_state()
    attack = UniversalPerturbation(epsilon=0.1, epochs=2, batch=8)
    first, again = attack.fit(encoder, train, random=RANDOM), attack.fit(encoder, train, random=SampleRandom.of(0, ["other", "ids"]))
    other = attack.fit(encoder, train, random=SampleRandom.of(1, []))

    assert torch.equal(torch.get_rng_state(), state)
    assert first == again
    assert hash(first) == hash(again)
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)
    assert pickle.loads(pickle.dumps(first)) == first
    json.dumps(describe(first))
    with torch.no_grad():
        assert attack.fit(encoder, train, random=RANDOM) == first


@pytest.mark.parametrize("shape", [(5,), (2, 7)])
def test_inputs_that_are_no_images_are_fitted(shape):
    encoder, train = waves(shape)
    attack = UniversalPerturbation(epsilon=0.1, batch=7).fit(encoder, train, "cosine", random=RANDOM)
    assert attack.delta.shape == (1, *shape)
    assert perturb(attack, encoder, tiny_inputs(4, shape)).inputs.shape == (4, *shape)


def test_epsilon_0_returns_the_input_bit_for_bit():
    encoder, inputs = tiny_encoder(), tiny_inputs(4)
    attack = UniversalPerturbation(epsilon=0).fit(encoder, inputs, random=RANDOM)
    assert encoder.passes.forwards == 0
    assert torch.equal(perturb(attack, encoder, inputs).inputs, inputs)


def test_an_encoder_without_a_gradient_leaves_the_noise():
    encoder = Encoder(lambda inputs: inputs.flatten(1).round(), name="rounded")
    attack = UniversalPerturbation(epsilon=0.1, epochs=1).fit(encoder, tiny_inputs(4), random=RANDOM)
    assert 0.09 < attack.delta.abs().max() <= 0.1
    assert attack.delta.unique().numel() > 100


def test_an_unfitted_one_says_what_to_do():
    encoder = tiny_encoder()
    with pytest.raises(ValueError, match=r"not fitted; call attack.fit\(encoder, train, divergence, random=…\)"):
        perturb(UniversalPerturbation(), encoder, tiny_inputs(2))
    with pytest.raises(ValueError, match="not fitted"):
        _ = UniversalPerturbation().delta
    with pytest.raises(ValueError, match=r"delta has shape \[1, 3, 8, 8\], and inputs \[2, 3, 9, 9\]; fit it to inputs of the shape"):
        perturb(FITTED, Encoder(lambda inputs: inputs.flatten(1), name="pixels"), torch.rand(2, 3, 9, 9))
    with pytest.raises(ValueError, match=r"does not support aim 'target'"):
        perturb(FITTED, encoder, tiny_inputs(2), targets=tiny_inputs(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -1}, "epsilon is -1; a radius cannot be negative"),
        ({"epochs": 0}, "epochs is 0; at least one is needed"),
        ({"batch": 0}, "batch is 0; at least one is needed"),
        ({"step": 0}, "step is 0; it must be positive, or None for epsilon"),
        ({"epsilon": 0.1, "fitted": torch.full((1, 2), 0.2)}, "fitted reaches 0.2, and epsilon is 0.1"),
    ],
)
def test_parameters_out_of_range_are_refused_with_the_remedy(options, words):
    with pytest.raises(ValueError, match=words):
        UniversalPerturbation(**options)


def test_a_sample_whose_slope_is_not_a_number_does_not_hold_a_pixel_still():
    encoder = Encoder(lambda inputs: ((inputs - 0.5) * (inputs > 0.5)).flatten(1).sqrt(), name="root of what is bright")  # below it 0 · ∞
    train = tiny_inputs(16)
    assert (train > 0.6).any(0).float().mean() > 0.99  # of every pixel, a sample has a slope there
    attack = UniversalPerturbation(epsilon=0.1, epochs=2, batch=16).fit(encoder, train, random=RANDOM)
    start = UniversalPerturbation(epsilon=0.1, epochs=2, batch=16, step=1e-9).fit(encoder, train, random=RANDOM)
    assert (attack.delta.abs() > 0.099).float().mean() > 0.9
    assert (start.delta.abs() > 0.099).float().mean() < 0.1


def test_whole_numbers_of_numpy_are_plain_ones():
    assert type(UniversalPerturbation(epochs=np.int64(3), batch=np.int32(8)).batch) is int
    with pytest.raises(ValueError, match="epochs is True; expected a whole number, such as 10"):
        UniversalPerturbation(epochs=True)

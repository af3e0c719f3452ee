"""ART's other attacks through rt: searches, breakaways, samples one at a time and together."""

import dataclasses
import os
import random
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from support import Failing
from torch import nn

import rt_core
from rt_art import ARTAttack
from rt_art.bridge import _cosines
from rt_art.table import SERVED
from rt_core.adapting import AnchorLogits, UnitLogits
from rt_core.divergences import l2
from rt_core.errors import EncoderError
from rt_core.randomness import SampleRandom
from rt_core.testing import parametrize_attack_checks
from rt_core.traces import Ball

EPS = 0.1
APGD = {"eps": EPS, "eps_step": 2 * EPS, "max_iter": 8}


class Half(nn.Module):
    def forward(self, inputs):
        return inputs / 2 + 0.5


def conv_net(seed=0, first=None):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.Tanh()]
        return nn.Sequential(*([] if first is None else [first]), *layers, nn.AdaptiveAvgPool2d(3), nn.Flatten())


@pytest.fixture(scope="module")
def encoder():
    return rt_core.Encoder(conv_net(), name="conv")


def images(rows, seed=1, size=12):
    return torch.rand(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


BANK = images(20, seed=7)


def quantile_of(encoder, share):
    """The smallest divergence of two of the bank that this share of its pairs does not exceed, by brute force in float64."""
    found = rt_core.represent(encoder, BANK).double()
    pairs = torch.pdist(found).sort().values
    return pairs[int(np.ceil(share * len(pairs))) - 1].item()


def of_images_by_the_batch(attack):
    if attack.attack != "SquareAttack":
        return {}
    return {
        "gives_a_sample_the_same_result_in_any_batch_and_order": "the library draws for the batch",
        "takes_inputs_that_are_no_images": "the library takes images alone",
    }


@parametrize_attack_checks(
    [
        ARTAttack("AutoProjectedGradientDescent", eps=EPS, eps_step=EPS, max_iter=2),
        ARTAttack("SquareAttack", eps=EPS, max_iter=10),
        ARTAttack("ProjectedGradientDescent", mode="unit", eps=EPS, eps_step=0.02, max_iter=4, num_random_init=1, route="single"),
        ARTAttack("DeepFool", threshold=0.05, max_iter=3),
        ARTAttack("HopSkipJump", threshold=0.05, max_iter=1, max_eval=10, init_eval=5),
    ],
    expected_failures=of_images_by_the_batch,
)
def test_the_contract(attack, check):
    check(attack)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DeepFool", {}),
        ("CarliniL2Method", {"initial_const": 10.0, "binary_search_steps": 2}),
        ("SaliencyMapMethod", {}),
        ("HopSkipJump", {"max_iter": 2, "max_eval": 60, "init_eval": 20}),
        ("BoundaryAttack", {"max_iter": 8}),
        ("SignOPTAttack", {"max_iter": 1, "k": 8, "num_trial": 5}),
        ("NewtonFool", {"eta": 0.05, "max_iter": 30}),
    ],
)
@pytest.mark.parametrize("aim", ["away", "target"])
def test_a_search_ends_where_the_threshold_is_just_reached(encoder, name, options, aim):
    inputs = images(3)
    targets = images(3, seed=2) if aim == "target" else None
    threshold = quantile_of(encoder, 0.05)
    if aim == "target":  # half of the way to the farthest target, and beyond the nearest
        whole = l2(rt_core.represent(encoder, targets), rt_core.represent(encoder, inputs))
        threshold = (whole.min() * 0.9).item()
    attack = ARTAttack(name, **options, **({"quantile": 0.05} if aim == "away" else {"threshold": threshold}))

    trace = rt_core.perturb(attack, encoder, inputs, targets=targets, bank=BANK if aim == "away" else None)

    assert (trace.notes["reached"] == 1).all()
    low, high = (threshold, threshold * 1.01) if aim == "away" else (threshold / 1.01, threshold)
    assert (trace.divergence >= low * (1 - 1e-6)).all()
    assert (trace.divergence <= high * (1 + 1e-6)).all()
    moved = (trace.inputs - inputs).flatten(1)
    torch.testing.assert_close(trace.notes["magnitude_l2"], moved.norm(dim=1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(trace.notes["magnitude_linf"], moved.abs().amax(1), rtol=0, atol=0)


def test_what_was_not_reached_is_said_and_the_best_input_comes_back(encoder):
    inputs = images(3)
    far = {"threshold": 1e3}
    for attack in (ARTAttack("DeepFool", max_iter=2, **far), ARTAttack("HopSkipJump", max_iter=1, **far), ARTAttack("GeoDA", **far)):
        trace = rt_core.perturb(attack, encoder, inputs)
        assert (trace.notes["reached"] == 0).all()
        assert trace.notes["magnitude_l2"].isnan().all()
        assert trace.inputs.isfinite().all()
    # What this one hands back where it did not reach the class is a random start, whatever it is worth.
    inputs, targets = images(8), images(8, seed=2)
    automatic = ARTAttack("AutoProjectedGradientDescent", mode="threshold", threshold=1e-4, eps=0.5, eps_step=0.1, max_iter=1)
    toward = rt_core.perturb(automatic, encoder, inputs, targets=targets)
    assert (toward.notes["reached"] == 0).all()
    assert (toward.divergence <= l2(toward.targets, toward.clean) * (1 + 1e-6)).all()
    assert (toward.inputs == inputs).flatten(1).all(1).any()


def test_a_target_that_is_near_enough_needs_no_move(encoder):
    inputs, targets = images(3), images(3, seed=2)
    near = l2(rt_core.represent(encoder, targets), rt_core.represent(encoder, inputs)).max().item() * 1.1
    trace = rt_core.perturb(ARTAttack("BoundaryAttack", threshold=near, max_iter=1), encoder, inputs, targets=targets)
    assert torch.equal(trace.inputs, inputs)
    assert (trace.notes["magnitude_l2"] == 0).all()


def test_fast_gradient_method_looks_for_the_smallest_step(encoder):
    inputs = images(3)
    attack = ARTAttack("FastGradientMethod", mode="threshold", minimal=True, eps=0.5, eps_step=0.01, threshold=0.05)
    trace = rt_core.perturb(attack, encoder, inputs)
    assert (trace.notes["reached"] == 1).all()
    assert (trace.notes["magnitude_linf"] < 0.2).all()


@pytest.mark.parametrize("aim", ["away", "target"])
def test_unit_is_y_bit_for_bit(encoder, aim):
    inputs = images(5)
    targets = images(5, seed=2) if aim == "target" else None
    options = {"eps": EPS, "eps_step": 0.02, "max_iter": 5, "num_random_init": 1}
    unit, y = (
        rt_core.perturb(ARTAttack("ProjectedGradientDescent", mode=mode, **options), encoder, inputs, targets=targets)
        for mode in ("unit", "y")
    )
    assert torch.equal(unit.inputs, y.inputs)


@pytest.mark.parametrize("aim", ["away", "target"])
def test_automatic_steps_beat_fixed_ones_of_the_same_number(encoder, aim):
    inputs = images(4)
    targets = images(4, seed=2) if aim == "target" else None
    automatic = rt_core.perturb(
        ARTAttack("AutoProjectedGradientDescent", eps=EPS, eps_step=EPS, max_iter=10), encoder, inputs, targets=targets
    )
    fixed = ARTAttack("ProjectedGradientDescent", eps=EPS, eps_step=0.005, max_iter=10, num_random_init=1)
    fixed = rt_core.perturb(fixed, encoder, inputs, targets=targets)
    ahead = automatic.divergence - fixed.divergence
    assert ((ahead if aim == "away" else -ahead) > 0).all()
    assert ((automatic.inputs - inputs).abs() <= EPS).all()


def test_square_climbs_without_gradients_and_nears_targets(encoder):
    inputs, targets = images(4), images(4, seed=2)
    attack = ARTAttack("SquareAttack", eps=EPS, max_iter=40)
    away, toward = rt_core.perturb(attack, encoder, inputs), rt_core.perturb(attack, encoder, inputs, targets=targets)
    noise = rt_core.perturb(rt_core.attack("uniform_noise", epsilon=EPS), encoder, inputs)
    assert (away.divergence > noise.divergence).all()
    assert (toward.divergence < l2(toward.targets, toward.clean)).all()
    assert away.backwards == toward.backwards == 0


def test_feature_adversaries_are_steps_to_the_target(encoder):
    inputs, targets = images(4), images(4, seed=2)
    theirs = ARTAttack("FeatureAdversariesPyTorch", delta=EPS, step_size=0.02, max_iter=4)
    plain = ARTAttack("ProjectedGradientDescent", eps=EPS, eps_step=0.02, max_iter=4)
    assert theirs.aims == ("target",)
    assert theirs.ball == Ball("linf", EPS)
    first, second = (rt_core.perturb(attack, encoder, inputs, targets=targets) for attack in (theirs, plain))
    assert ((first.inputs - second.inputs).abs() <= 2**-22).double().mean() >= 0.99
    with pytest.raises(ValueError, match="descends the l2 distance, whatever the divergence"):
        rt_core.perturb(theirs, encoder, inputs, targets=targets, divergence="cosine")


def broken_batch(encoder, rows=7, broken=3):
    """A batch whose sample ``broken`` is nearer to another anchor than to what is said to be its own from the beginning."""
    inputs = images(rows)
    with torch.no_grad():
        clean = encoder(inputs)
    clean[broken] = clean[broken] + 40 * (clean[broken] - clean.mean(0))
    bank = rt_core.Bank(rt_core.represent(encoder, BANK))
    return rt_core.Batch(ids=tuple(map(str, range(rows))), inputs=inputs, clean=clean, aim="away", bank=bank, own=torch.full((rows,), -1))


@pytest.mark.parametrize(
    "attack",
    [
        ARTAttack("SquareAttack", mode="instance", eps=0.3, max_iter=60),
        ARTAttack("AutoProjectedGradientDescent", mode="instance", eps=0.3, eps_step=0.1, max_iter=8),
        *([ARTAttack("AutoAttack", eps=0.3)] if find_spec("multiprocess") else []),
    ],
    ids=lambda attack: attack.attack,
)
def test_attacks_that_drop_rows_are_right_with_one_sample_already_broken(encoder, attack):
    batch = broken_batch(encoder)
    moved = attack(encoder, batch, l2, random=SampleRandom.of(0, batch.ids))
    view = AnchorLogits(encoder, batch, l2, who="test")
    with torch.no_grad():
        assert int(view(batch.inputs).argmax(1)[3]) != view.labels[3]  # broken before the attack begins
        after = encoder(moved)
    others = torch.cat([batch.clean, rt_core.represent(encoder, BANK)])
    for row in range(7):
        if row != 3:
            far = l2(batch.clean[row : row + 1].expand_as(others), others)
            own = l2(batch.clean[row : row + 1], after[row : row + 1])
            assert own > 0.2 * far[far > 1e-5].min(), f"sample {row} stands where it was"
            nearest = l2(others.double(), after[row : row + 1].double().expand_as(others)).argmin()
            assert attack.attack == "SquareAttack" or nearest != row, f"sample {row} is still its own nearest"


def test_steps_of_a_batch_of_anchors_are_those_of_its_own_labels(encoder):
    """A universal perturbation is one for all, and breaks most of the samples away."""
    inputs = images(5)
    attack = ARTAttack("UniversalPerturbation", eps=0.5, max_iter=3, attacker_params={"max_iter": 20})
    assert attack.joint
    trace = rt_core.perturb(attack, encoder, inputs, bank=BANK)
    moved = trace.inputs - inputs
    inside = ((trace.inputs > 0) & (trace.inputs < 1)).all(0)
    assert inside.any()
    assert (moved.amax(0) - moved.amin(0))[inside].max() < 1e-6
    assert moved.abs().max() > 0
    everyone = torch.cat([trace.clean, rt_core.represent(encoder, BANK)]).double()
    nearest = torch.cdist(trace.adversarial.double(), everyone).argmin(1)
    assert (nearest != torch.arange(5)).double().mean() >= 0.6
    with pytest.raises(ValueError, match="does not support aim 'target'"):
        rt_core.perturb(attack, encoder, inputs, targets=images(5, seed=2), bank=BANK)


def test_a_targeted_success_is_an_impersonation(encoder):
    inputs, targets = images(4), images(4, seed=2)
    attack = ARTAttack("ProjectedGradientDescent", mode="instance", eps=0.5, eps_step=0.05, max_iter=40)
    trace = rt_core.perturb(attack, encoder, inputs, targets=targets, bank=BANK)
    everyone = torch.cat([trace.clean, trace.targets, rt_core.represent(encoder, BANK)]).double()
    assert torch.cdist(trace.adversarial.double(), everyone).argmin(1).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "attack",
    [
        ARTAttack("HopSkipJump", threshold=0.05, max_iter=1, max_eval=20, init_eval=10),
        ARTAttack("BoundaryAttack", threshold=0.05, max_iter=3),
        ARTAttack("SimBA", threshold=0.05, max_iter=20),
        ARTAttack("ProjectedGradientDescent", eps=EPS, eps_step=0.02, max_iter=3, num_random_init=1, route="single"),
    ],
    ids=lambda attack: attack.attack,
)
def test_one_at_a_time_a_sample_has_its_own_random_numbers(encoder, attack):
    inputs = images(4)
    whole = rt_core.perturb(attack, encoder, inputs)
    alone = rt_core.perturb(attack, encoder, inputs[2:3], ids=["2"])
    assert torch.equal(whole.inputs[2:3], alone.inputs)
    assert not torch.equal(rt_core.perturb(attack, encoder, inputs[2:3], ids=["2"], seed=1).inputs, alone.inputs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AutoProjectedGradientDescent", APGD),
        ("DeepFool", {"threshold": 0.1}),
        ("SimBA", {"threshold": 0.1, "max_iter": 40, "epsilon": 0.1}),
    ],
)
def test_other_bounds_are_other_units(encoder, name, options):
    centred = rt_core.Encoder(conv_net(first=Half()), name="centred", bounds=(-1, 1))
    doubled = {key: 2 * value if key in SERVED[name].lengths else value for key, value in options.items()}
    wide = rt_core.perturb(ARTAttack(name, **doubled), centred, 2 * images(3) - 1)
    plain = rt_core.perturb(ARTAttack(name, **options), encoder, images(3))
    torch.testing.assert_close(wide.divergence, plain.divergence, rtol=2e-2, atol=0)
    shift = rt_core.Encoder(conv_net(), name="shift", bounds=(torch.zeros(3, 1, 1), torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)))
    with pytest.raises(ValueError, match="one eps would mean several"):
        rt_core.perturb(ARTAttack(name, **options), shift, images(2))


def test_without_a_bank_the_remedy_is_said(encoder):
    with pytest.raises(ValueError, match=r"ART's DeepFool in mode 'threshold' needs a bank .* give threshold="):
        rt_core.perturb(ARTAttack("DeepFool"), encoder, images(2))
    with pytest.raises(ValueError, match=r"ART's UniversalPerturbation in mode 'instance' needs a bank"):
        rt_core.perturb(ARTAttack("UniversalPerturbation", eps=0.1), encoder, images(2))


def test_an_error_of_the_library_comes_with_what_to_do(encoder):
    with pytest.raises(ValueError, match="Overflow error") as raised:
        rt_core.perturb(ARTAttack("Wasserstein", threshold=1e-3, regularization=1e6, max_iter=1), encoder, images(1))
    assert "an overflow means that regularization" in raised.value.__notes__[0]


def test_a_factory_works_in_every_mode(encoder):
    from art.attacks.evasion import BasicIterativeMethod, DeepFool

    inputs, targets = images(3), images(3, seed=2)

    def steps(estimator):
        return BasicIterativeMethod(estimator, eps=EPS, eps_step=0.02, max_iter=4, verbose=False)

    for mode in ("y", "unit", "instance"):
        attack = ARTAttack(steps, mode=mode)
        away = rt_core.perturb(attack, encoder, inputs, bank=BANK)
        toward = rt_core.perturb(attack, encoder, inputs, targets=targets, bank=BANK)
        assert (away.divergence > 0.02).all()
        assert (toward.divergence < l2(toward.targets, toward.clean)).all()
    search = ARTAttack(lambda estimator: DeepFool(estimator, verbose=False), mode="threshold", threshold=0.05)
    assert (rt_core.perturb(search, encoder, inputs).notes["reached"] == 1).all()


def snapshot(network):
    return {
        "modes": [module.training for module in network.modules()],
        "flags": [weight.requires_grad for weight in network.parameters()],
        "gradients": [None if weight.grad is None else weight.grad.tolist() for weight in network.parameters()],
        "state": {name: tensor.tolist() for name, tensor in network.state_dict().items()},
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "torch": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "filters": list(warnings.filters),
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AutoProjectedGradientDescent", APGD),
        ("DeepFool", {"threshold": 0.05}),
        ("GeoDA", {"threshold": 0.05, "sub_dim": 3, "max_iter": 500}),
        ("SignOPTAttack", {"threshold": 0.05, "max_iter": 1, "k": 5, "num_trial": 3}),
        ("UniversalPerturbation", {"eps": 0.5, "max_iter": 1, "attacker_params": {"max_iter": 3}}),
        ("PixelAttack", {"threshold": 0.05, "th": 3, "max_iter": 1}),
    ],
)
def test_nothing_is_left_behind(name, options, fails, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = conv_net().train()
    network[0].bias.requires_grad_(False)
    network[0].weight.grad = torch.ones_like(network[0].weight)
    encoder = rt_core.Encoder(Failing(network) if fails else network, name="dressed")
    inputs = images(2)
    given = inputs.clone()
    attack = ARTAttack(name, **options)
    before = snapshot(network)
    if fails:
        with pytest.raises(EncoderError, match="out of order"):
            rt_core.perturb(attack, encoder, inputs, bank=BANK)
    else:
        rt_core.perturb(attack, encoder, inputs, bank=BANK)
    assert snapshot(network) == before
    assert torch.equal(inputs, given)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_the_cosines_of_geoda_are_its_own():
    import math

    few, size = 3, 5

    def weight(wave, place):
        return math.sqrt((1 if wave == 0 else 2) / size) * math.cos((2 * place + 1) * wave * math.pi / (2 * size))

    expected = [[weight(u, x) * weight(v, y) for u in range(few) for v in range(few)] for y in range(size) for x in range(size)]
    np.testing.assert_allclose(_cosines(few, size), np.array(expected), rtol=0, atol=1e-7)


def test_gated_attacks_begin_unbroken_and_any_progress_counts(encoder):
    from rt_art.views import FromClean

    inputs, targets = images(1), images(1, seed=2)
    for aim in ("away", "target"):
        clean, reached = rt_core.represent(encoder, inputs), rt_core.represent(encoder, targets)
        batch = rt_core.Batch(ids=("0",), inputs=inputs, clean=clean, aim=aim, targets=reached if aim == "target" else None)
        view = FromClean(UnitLogits(encoder, batch, l2, eta=None, who="test"))
        with torch.no_grad():
            begin, nearer = view(inputs), view(inputs + 0.05 * (targets - inputs))
        assert begin.argmax() == 0
        assert nearer.argmax() == 1
        assert view.train() is view
        assert not view.training


def test_modes_are_part_of_the_value():
    search = ARTAttack("DeepFool", quantile=0.1, max_iter=5)
    assert search != ARTAttack("DeepFool", max_iter=5)
    assert repr(search) == "ARTAttack('DeepFool', quantile=0.1, max_iter=5)"
    assert repr(ARTAttack("DeepFool", mode="instance", route="single")) == "ARTAttack('DeepFool', mode='instance', route='single')"
    assert dataclasses.asdict(search)["mode"] == "threshold"
    assert not search.batched
    assert not search.joint
    assert ARTAttack("DeepFool", mode="instance").joint
    assert not ARTAttack("DeepFool", mode="instance", route="single").joint
    assert ARTAttack("SaliencyMapMethod", mode="instance").aims == ("target",)
    assert ARTAttack("DeepFool", mode="instance").aims == ("away",)


@pytest.mark.skipif(find_spec("multiprocess") is not None, reason="multiprocess is installed")
def test_a_missing_package_is_said_with_the_remedy():
    with pytest.raises(
        ImportError, match="ART's AutoAttack needs the package multiprocess, which is not installed: pip install multiprocess"
    ):
        ARTAttack("AutoAttack")

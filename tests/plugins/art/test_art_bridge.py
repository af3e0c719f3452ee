"""ART through rt: the same steps as a plain loop, in both of its implementations, and nothing left behind."""

import dataclasses
import json
import logging
import math
import os
import pickle
import random
import sys

import numpy as np
import pytest
import torch
from support import Failing, run_python
from torch import nn

import rt_core
from rt_art import AnchorLoss, ARTAttack, library
from rt_art.table import SERVED
from rt_core.divergences import l2
from rt_core.errors import EncoderError, RobustnessWarning
from rt_core.evaluation import describe
from rt_core.randomness import SampleRandom
from rt_core.testing import parametrize_attack_checks
from rt_core.traces import Ball
from rt_unsupervised_attacks import UFGSM, UPGD

EPS, ALPHA, STEPS = 0.05, 0.01, 8
PGD = ("ProjectedGradientDescent", "ProjectedGradientDescentNumpy", "ProjectedGradientDescentPyTorch")
GRADIENT = [name for name, served in SERVED.items() if served.modes[0] == "y" and served.whole]


class Scaled(nn.Module):
    def __init__(self, module, factor=1.0, shift=0.0):
        super().__init__()
        self.module, self.factor, self.shift = module, factor, shift

    def forward(self, inputs):
        return self.module(inputs + self.shift) * self.factor


def conv_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )


def make_encoder(**settings):
    return rt_core.Encoder(conv_net(), name="conv", **settings)


def images(rows, seed=1, size=16):
    return torch.rand(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


def randomness(rows):
    return SampleRandom.of(0, range(rows))


def attack_of(name, **options):
    steps = {} if name == "FastGradientMethod" else {"max_iter": STEPS}
    return ARTAttack(name, **{"eps": EPS, "eps_step": ALPHA, **steps, **options})


def library_start(inputs):
    with randomness(len(inputs)).global_generators("global generators"):
        noise = np.random.uniform(-EPS, EPS, (len(inputs), inputs[0].numel()))
    return (inputs + torch.from_numpy(noise.astype(np.float32)).reshape(inputs.shape)).clamp(0, 1)


def beside(inputs):
    return (inputs + randomness(len(inputs)).uniform("eta", inputs.shape[1:], low=-1e-3, high=1e-3)).clamp(0, 1)


def plain_pgd(encoder, inputs, anchor, way, moved, first=None):
    """PGD as one writes it down, with ART's order of clamps; ``first`` is where the first gradient is taken."""
    for step in range(STEPS):
        at = (first if step == 0 and first is not None else moved).clone().requires_grad_()
        (slope,) = torch.autograd.grad(way * l2(anchor, encoder(at)).sum(), at)
        change = (moved + ALPHA * slope.sign()).clamp(0, 1) - inputs
        moved = inputs + change.sign() * change.abs().double().clamp(max=EPS).float()
    return Ball("linf", EPS).project(moved, inputs, encoder.bounds)


def where_it_starts(attack):
    """A start from a library's global generator cannot belong to the sample."""
    drawn = attack.options.get("num_random_init", 0) > 0
    reason = "the library draws its start from a global generator, seeded for the batch"
    return {"gives_a_sample_the_same_result_in_any_batch_and_order": reason} if drawn else {}


@parametrize_attack_checks(
    [attack_of(PGD[0], num_random_init=1), attack_of(PGD[1]), attack_of("FastGradientMethod")], expected_failures=where_it_starts
)
def test_the_contract(attack, check):
    check(attack)


@pytest.mark.parametrize("name", PGD)
@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize("aim", ["away", "target"])
def test_pgd_is_bit_equal_to_a_plain_loop(name, rows, random_start, aim):
    encoder, inputs = make_encoder(), images(rows)
    targets = images(rows, seed=2) if aim == "target" else None

    trace = rt_core.perturb(attack_of(name, num_random_init=int(random_start)), encoder, inputs, targets=targets)

    way, anchor = (1, trace.clean) if aim == "away" else (-1, trace.targets)
    start = library_start(inputs) if random_start else inputs
    first = beside(inputs) if aim == "away" and not random_start else None
    assert torch.equal(trace.inputs, plain_pgd(encoder, inputs, anchor, way, start, first))
    assert trace.step == STEPS
    assert trace.backwards == rows * STEPS
    assert trace.forwards == rows * (STEPS + 1 + 2)  # once by the engine, twice more by ART


@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("aim", ["away", "target"])
def test_u_pgd_at_the_same_start_takes_the_same_steps(rows, aim):
    encoder, inputs = make_encoder(), images(rows)
    targets = images(rows, seed=2) if aim == "target" else None
    theirs = rt_core.perturb(attack_of(PGD[0], num_random_init=1), encoder, inputs, targets=targets)
    ours = rt_core.perturb(UPGD(epsilon=EPS, step=ALPHA, steps=STEPS), encoder, inputs, targets=targets, start=library_start(inputs))

    assert ((theirs.inputs - ours.inputs).abs() <= 2**-23).double().mean() >= 0.999
    torch.testing.assert_close(theirs.divergence.mean(), ours.divergence.mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("aim", ["away", "target"])
def test_the_size_of_a_divergence_does_not_matter(aim):
    inputs = images(4)
    targets = images(4, seed=2) if aim == "target" else None
    attack = attack_of(PGD[0], num_random_init=1)
    plain = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net()), name="plain"), inputs, targets=targets)
    for factor in (2.0**-20, 2.0**10, 2.0**40):  # powers of two, so that every rounding is the same
        scaled = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net(), factor), name="scaled"), inputs, targets=targets)
        assert torch.equal(scaled.inputs, plain.inputs)
    thousand = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net(), 1000.0), name="thousand"), inputs, targets=targets)
    torch.testing.assert_close(thousand.divergence / 1000, plain.divergence, rtol=1e-3, atol=0)
    assert not thousand.stuck.any()


def test_fast_gradient_method_is_u_fgsm():
    # ART divides the labels that it is given by their sum here: anchors would not survive it, one-hot rows do.
    encoder, inputs = make_encoder(), images(7)
    for targets in (None, images(7, seed=2)):
        theirs = rt_core.perturb(attack_of("FastGradientMethod"), encoder, inputs, targets=targets)
        ours = rt_core.perturb(UFGSM(epsilon=EPS), encoder, inputs, targets=targets)
        assert ((theirs.inputs - ours.inputs).abs() <= 2**-23).double().mean() >= 0.999


@pytest.mark.parametrize(
    ("name", "norm"),
    [(name, norm) for name in GRADIENT for norm in (None, "inf", 2) if norm is None or name != "BasicIterativeMethod"],
)
def test_every_served_attack_moves_every_row_and_nears_targets(name, norm):
    options = {} if norm is None else {"norm": norm}
    if norm == 2:
        options |= {"eps": 1.0, "eps_step": 0.2}
    encoder, inputs, targets = make_encoder(), images(4), images(4, seed=2)
    attack = attack_of(name, **options)
    assert attack.ball == (Ball("l2", 1.0) if norm == 2 else Ball("linf", EPS))

    away = rt_core.perturb(attack, encoder, inputs)
    alone = rt_core.perturb(attack, encoder, inputs[:1])
    noise = rt_core.perturb(rt_core.attack("uniform_noise", epsilon=0.002), encoder, inputs)
    toward = rt_core.perturb(attack, encoder, inputs, targets=targets)
    assert (away.divergence > noise.divergence).all()
    torch.testing.assert_close(alone.divergence, away.divergence[:1], rtol=1e-3, atol=0)  # what begins at the clean input is its own
    assert (toward.divergence < l2(toward.targets, toward.clean)).all()


def test_labels_say_whose_anchor_a_row_wants():
    anchor = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([4, 0, 0])
    loss = AnchorLoss(anchor, l2, way=-1)
    moving = torch.zeros(3, 3)
    torch.testing.assert_close(loss(moving, torch.eye(5)[rows]), -l2(anchor[rows], moving).sum())


def test_smaller_batches_inside_the_library_and_dimension_one_are_right():
    inputs = images(5)
    encoder = make_encoder()
    whole, parts = (rt_core.perturb(attack_of("BasicIterativeMethod", **more), encoder, inputs) for more in ({}, {"batch_size": 2}))
    assert ((whole.inputs - parts.inputs).abs() <= 2**-23).double().mean() >= 0.99
    narrow = rt_core.Encoder(nn.Sequential(conv_net(), nn.AdaptiveAvgPool1d(1)), name="narrow")
    for name in GRADIENT:
        assert not rt_core.perturb(attack_of(name), narrow, inputs).stuck.any()


def test_bounds_reach_the_library():
    centred = rt_core.Encoder(nn.Sequential(Scaled(nn.Identity(), 0.5, 1.0), conv_net()), name="centred", bounds=(-1, 1))
    unit, inputs, targets = make_encoder(), images(4), images(4, seed=2)
    for name in (*PGD, "FastGradientMethod"):
        doubled = rt_core.perturb(attack_of(name, eps=2 * EPS, eps_step=2 * ALPHA), centred, 2 * inputs - 1, targets=2 * targets - 1)
        plain = rt_core.perturb(attack_of(name), unit, inputs, targets=targets)
        torch.testing.assert_close(doubled.divergence, plain.divergence, rtol=2e-2, atol=0)
        assert doubled.inputs.min() < -0.9


@pytest.mark.parametrize("name", PGD)
def test_bounds_given_as_float64_arrays_keep_float32(name):
    low = np.array([-2.0, -1 / 3, 0.0]).reshape(3, 1, 1)
    high = np.array([1.0, 2.5, 1 / 3]).reshape(3, 1, 1)
    encoder = rt_core.Encoder(conv_net(), name="shifted", bounds=(low, high))
    span = torch.as_tensor(high - low, dtype=torch.float32)
    inputs = encoder.clip(images(3) * span + torch.as_tensor(low, dtype=torch.float32))
    half = rt_core.Encoder(conv_net(), name="half", bounds=(low, 1 / 3 + 3.0))
    for narrowed in (encoder, half):
        trace = rt_core.perturb(attack_of(name, eps=np.float64(0.1), num_random_init=1), narrowed, inputs)
        assert trace.inputs.dtype == torch.float32
        assert not trace.stuck.any()


def test_float64_and_no_grad():
    encoder, inputs = rt_core.Encoder(conv_net().double(), name="double"), images(4).double()
    for name in (*PGD, "FastGradientMethod"):
        with torch.no_grad():
            trace = rt_core.perturb(attack_of(name), encoder, inputs)
        assert trace.inputs.dtype == trace.adversarial.dtype == torch.float64
        assert torch.equal(trace.inputs, rt_core.perturb(attack_of(name), encoder, inputs).inputs)
        assert not trace.stuck.any()


def test_epsilon_zero_returns_the_input_and_a_constant_encoder_is_stuck():
    inputs = images(3)
    constant = rt_core.Encoder(lambda inputs: torch.ones(len(inputs), 5), name="constant")
    for name in (*PGD, "FastGradientMethod"):
        assert torch.equal(rt_core.perturb(attack_of(name, eps=0), make_encoder(), inputs).inputs, inputs)
        assert rt_core.perturb(attack_of(name), constant, inputs).stuck.all()


def test_same_seed_same_result_and_the_random_start_belongs_to_the_batch():
    encoder, inputs, attack = make_encoder(), images(4), attack_of(PGD[0], num_random_init=1)
    first, again = rt_core.perturb(attack, encoder, inputs), rt_core.perturb(attack, encoder, inputs)
    other, parts = rt_core.perturb(attack, encoder, inputs, seed=1), rt_core.perturb(attack, encoder, inputs, batch=2)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.inputs, parts.inputs)


def snapshot(network):
    root = logging.getLogger()
    return {
        "modes": [module.training for module in network.modules()],
        "flags": [weight.requires_grad for weight in network.parameters()],
        "gradients": [None if weight.grad is None else weight.grad.tolist() for weight in network.parameters()],
        "state": {name: tensor.tolist() for name, tensor in network.state_dict().items()},
        "hooks": [
            [len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks)] for module in network.modules()
        ],
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "torch": torch.get_rng_state().tolist(),
        "logging": (root.level, list(root.handlers)),
        "environment": dict(os.environ),
        "grad": torch.is_grad_enabled(),
    }


def dressed(network):
    """A network in the middle of its training: some weights frozen, some with gradients, one module in eval mode, one hook."""
    network.train()
    network[1].eval()
    network[0].bias.requires_grad_(False)
    network[0].weight.grad = torch.ones_like(network[0].weight)
    network[2].register_forward_hook(lambda module, arguments, output: None)
    return network


@pytest.mark.parametrize(("name", "fails"), [*((name, fails) for name in PGD for fails in (False, True)), ("FastGradientMethod", False)])
@pytest.mark.parametrize("direct", [False, True])
def test_nothing_is_left_behind(name, fails, direct, capfd):
    network = dressed(conv_net())
    attack, inputs = attack_of(name, num_random_init=1), images(3)
    encoder = rt_core.Encoder(Failing(network) if fails else network, name="dressed")
    given = inputs.clone()

    def attacked():
        if not direct:
            return rt_core.perturb(attack, encoder, inputs)
        with torch.no_grad():
            clean = encoder(inputs)
        batch = rt_core.Batch(ids=("0", "1", "2"), inputs=inputs, clean=clean, aim="away")
        return attack(encoder, batch, l2, random=randomness(3))

    before = snapshot(network)
    if fails:
        with pytest.raises(EncoderError, match="out of order"):
            attacked()
    else:
        attacked()
    assert snapshot(network) == before
    assert torch.equal(inputs, given)
    assert capfd.readouterr() == ("", "")


def test_it_is_a_value():
    attack = ARTAttack(PGD[0], eps=np.float64(0.05), max_iter=np.int64(3))
    assert attack == ARTAttack(PGD[0], max_iter=3, eps=0.05)
    assert attack != ARTAttack(PGD[0], max_iter=4, eps=0.05)
    assert len({attack, ARTAttack(PGD[0], max_iter=3, eps=0.05)}) == 1
    assert pickle.loads(pickle.dumps(attack)) == attack
    recorded = json.loads(json.dumps(dataclasses.asdict(attack)))
    assert recorded == {
        "attack": PGD[0],
        "mode": "y",
        "threshold": None,
        "quantile": 0.5,
        "route": "auto",
        "options": {"eps": 0.05, "max_iter": 3},
        "library": f"adversarial-robustness-toolbox {sys.modules['art'].__version__}",
    }
    json.dumps(describe(ARTAttack(PGD[0], norm=math.inf)), allow_nan=False)
    assert repr(attack) == "ARTAttack('ProjectedGradientDescent', eps=0.05, max_iter=3)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.mode = "unit"
    assert ARTAttack(sys.modules["art.attacks.evasion"].ProjectedGradientDescent) == ARTAttack(PGD[0])
    assert rt_core.attack("art", attack=PGD[0], eps=0.05, max_iter=3) == attack


def test_ball_and_steps_are_those_of_the_class():
    assert ARTAttack("BasicIterativeMethod").ball == Ball("linf", 0.3)
    assert ARTAttack(PGD[0], norm="inf", eps=0.1).ball == Ball("linf", 0.1)
    assert ARTAttack(PGD[0], norm=2, eps=3).ball == Ball("l2", 3)
    assert ARTAttack(PGD[0], norm=1).ball is None
    assert [ARTAttack(PGD[0]).steps, ARTAttack(PGD[0], max_iter=4).steps, ARTAttack("FastGradientMethod").steps] == [100, 4, 0]


def by_factory(estimator, steps=2):
    return sys.modules["art.attacks.evasion"].ProjectedGradientDescent(estimator, max_iter=steps, eps=0.1, verbose=False)


def test_a_factory_makes_what_it_likes():
    attack = ARTAttack(by_factory, steps=3)
    assert attack.ball is None
    assert pickle.loads(pickle.dumps(attack)) == attack
    trace = rt_core.perturb(attack, make_encoder(), images(3))
    assert not trace.stuck.any()
    with pytest.raises(ValueError, match="returned NoneType; expected an evasion attack of ART"):
        rt_core.perturb(ARTAttack(lambda estimator: None), make_encoder(), images(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ARTAttack("PGD"), r"no attack 'PGD'; did you mean 'ProjectedGradientDescent'\?"),
        (lambda: ARTAttack("ProjectedGradientDecent"), r"did you mean 'ProjectedGradientDescent'\?"),
        (
            lambda: ARTAttack("BoundaryAttack", mode="y"),
            "BoundaryAttack does not work in mode 'y': it asks only .*; modes 'threshold' and 'in",
        ),
        (lambda: ARTAttack("UniversalPerturbation", mode="threshold"), "labels that travel with the rows; mode 'instance' does"),
        (lambda: ARTAttack("DPatch"), "ART's DPatch cannot attack encoders: it attacks object detectors"),
        (lambda: ARTAttack("BrendelBethgeAttack"), "where numba is missing"),
        (lambda: ARTAttack("DeepFool", threshold=0), "threshold is 0; expected a positive"),
        (lambda: ARTAttack(PGD[0], threshold=1.0), "threshold is 1.0, and mode 'y' has none"),
        (lambda: ARTAttack("DeepFool", quantile=0), r"quantile is 0; expected a number in \(0, 1\]"),
        (lambda: ARTAttack("DeepFool", route="rows"), "route is 'rows'; expected 'auto'"),
        (
            lambda: ARTAttack("DeepFool", route="batch"),
            "route is 'batch', and ART's DeepFool needs one sample at a time: in mode 'threshold'",
        ),
        (lambda: ARTAttack("ShadowAttack", route="batch"), "needs one sample at a time: it mixes"),
        (lambda: ARTAttack("FeatureAdversariesPyTorch"), "needs delta; the library has no default"),
        (lambda: ARTAttack("SquareAttack", loss=len), "loss is no option here"),
        (lambda: ARTAttack("AutoProjectedGradientDescent", nb_random_init=5), "nb_random_init is 5; expected 0 or 1"),
        (lambda: ARTAttack("DeepFool", epsilon=-1.0), "ART's DeepFool refuses these options: The overshoot"),
        (lambda: ARTAttack(3), "attack is 3; expected the name of a class of art.attacks.evasion, or a factory"),
        (lambda: ARTAttack(PGD[0], step=0.1), r"no option 'step'; did you mean 'eps_step'\? \(it takes norm, eps, eps_step"),
        (lambda: ARTAttack(PGD[0], estimator=None), "no option 'estimator'"),
        (lambda: ARTAttack(PGD[0], targeted=True), "targeted is no option here"),
        (lambda: ARTAttack(PGD[0], eps=-0.1), r"eps is -0\.1; .* it is a radius and cannot be negative"),
        (lambda: ARTAttack(PGD[0], eps=np.full(3, 0.1)), "expected a number"),
        (lambda: ARTAttack(PGD[0], eps_step=0), "eps_step is 0; a step must be positive"),
        (lambda: ARTAttack(PGD[0], norm="l2"), "norm is 'l2'; expected 'inf' or a number from 1 on"),
        (lambda: ARTAttack(PGD[0], max_iter=0), "max_iter is 0; at least one is needed"),
        (lambda: ARTAttack(PGD[0], max_iter=True), "max_iter is True; expected a number, such as 100, the library's default"),
        (lambda: ARTAttack(PGD[0], max_iter=2.5), "max_iter is 2.5; expected a whole number, such as 10"),
        (lambda: ARTAttack(PGD[0], num_random_init=True), "num_random_init is True; expected a number, such as 0"),
        (lambda: ARTAttack(PGD[0], num_random_init=5), "num_random_init is 5; expected 0 or 1: ART keeps the restart"),
        (lambda: ARTAttack("FastGradientMethod", minimal=True), "minimal is True; it looks for the step"),
        (lambda: ARTAttack(PGD[0], mode="logits"), "mode is 'logits'; expected 'y', 'unit', 'threshold', 'instance'"),
        (lambda: ARTAttack(lambda estimator: None, eps=0.1), "cannot be called with the estimator and eps"),
    ],
)
def test_what_is_wrong_is_said_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_can_only_be_seen_later_is_said_then():
    encoder, inputs = make_encoder(), images(3)
    with pytest.raises(ValueError, match=r"epsilon is 8; .* write 8/255, not 8"):
        rt_core.perturb(attack_of(PGD[0], eps=8), encoder, inputs)
    with pytest.raises(ValueError, match="takes no start: ART centers its ball"):
        rt_core.perturb(attack_of(PGD[0]), encoder, inputs, start=inputs)


def test_a_version_that_was_not_tested_warns_once(monkeypatch, recwarn):
    library.library()
    monkeypatch.setattr(sys.modules["art"], "__version__", "1.21.0")
    library.library.cache_clear()
    ARTAttack("FastGradientMethod")
    ARTAttack("BasicIterativeMethod")
    assert [str(warning.message) for warning in recwarn if warning.category is RobustnessWarning] == [
        "ART 1.21.0 is not among the versions that this bridge was tested with (1.20 up to, not including, 1.21); "
        "its attacks may mean something else"
    ]
    library.library.cache_clear()


def test_importing_art_leaves_the_process_and_the_home_as_they_were(tmp_path):
    log, home = tmp_path / "log.txt", tmp_path / "home"
    home.mkdir()
    run_python(
        f"""
        import logging, os, random, sys, warnings
        import numpy, torch
        from rt_art import ARTAttack

        assert "art" not in sys.modules, "ART is imported before anyone asks for it"
        logging.basicConfig(filename={str(log)!r}, filemode="w")
        configure = logging.config.dictConfig
        def state():
            root = logging.getLogger()
            return (list(warnings.filters), root.level, list(root.handlers), root.handlers[0].stream.closed, random.getstate(),
                    numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), os.environ["HOME"], "USERPROFILE" in os.environ,
                    logging.getLogger("tests").handlers, logging.config.dictConfig)
        before = state()
        attack = ARTAttack("FastGradientMethod")
        assert "art" in sys.modules
        assert state() == before
        logging.getLogger().warning("still written")
        import art.config
        assert art.config.ART_DATA_PATH == {str(home / ".art" / "data")!r}
        """,
        HOME=str(home),
    )
    assert not list(home.iterdir())
    assert "still written" in log.read_text()


def test_an_existing_configuration_of_art_is_read_and_kept(tmp_path):
    (tmp_path / ".art").mkdir()
    written = json.dumps({"ART_DATA_PATH": str(tmp_path / "mine")})
    (tmp_path / ".art" / "config.json").write_text(written)
    run_python(
        f"""
        from rt_art import ARTAttack
        ARTAttack("FastGradientMethod")
        import art.config
        assert art.config.ART_DATA_PATH == {str(tmp_path / "mine")!r}
        """,
        HOME=str(tmp_path),
    )
    assert (tmp_path / ".art" / "config.json").read_text() == written


WEIGHT = torch.ones(3 * 16 * 16, 4, requires_grad=True)
DEAF = {
    "no_grad": torch.no_grad()(lambda inputs: inputs.flatten(1)),
    "weights alone": lambda inputs: inputs.detach().flatten(1) @ WEIGHT,
}


@pytest.mark.parametrize("deaf", DEAF)
@pytest.mark.parametrize("name", [*GRADIENT, "AutoProjectedGradientDescent"])
def test_an_encoder_without_a_gradient_is_noted_as_stuck(name, deaf):
    options = {} if name == "FastGradientMethod" else {"max_iter": 3}
    trace = rt_core.perturb(ARTAttack(name, **options), rt_core.Encoder(DEAF[deaf], name="deaf"), images(2))
    assert trace.stuck.all()
    assert not rt_core.perturb(ARTAttack(name, **options), make_encoder(), images(2)).stuck.any()


@pytest.mark.parametrize("name", ["DeepFool", "NewtonFool", "CarliniL2Method"])
def test_a_search_without_a_gradient_reaches_nothing(name):
    attack = ARTAttack(name, threshold=0.5, max_iter=1)
    trace = rt_core.perturb(attack, rt_core.Encoder(DEAF["no_grad"], name="deaf"), images(2))
    assert trace.notes["reached"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "options"),
    [("MomentumIterativeMethod", {"eps": 0.05, "eps_step": 0.01}), (PGD[0], {"norm": 2, "eps": 0.5}), (PGD[2], {"norm": 2, "eps": 0.5})],
)
def test_an_infinite_slope_at_one_pixel_stops_no_attack(name, options):
    encoder, inputs = rt_core.Encoder(lambda inputs: inputs.sqrt().mean((2, 3)), name="root"), images(2) * 0.5 + 0.3
    attack = ARTAttack(name, max_iter=8, **options)
    usual = rt_core.perturb(attack, encoder, inputs).divergence
    inputs[:, :, 0, 0] = 0
    assert (rt_core.perturb(attack, encoder, inputs).divergence > 0.9 * usual).all()


@pytest.mark.parametrize("options", [{"max_iter": 20}, {"max_iter": 280}, {"lambda_param": 0.1}], ids=str)
def test_what_the_library_cannot_make_is_said_at_once(options):
    ((name, value),) = options.items()
    with pytest.raises(
        ValueError,
        match=rf"ART's GeoDA cannot be made with {name}={value} \(\w+Error in the library\): max_iter is a number of queries, .* give 500",
    ):
        ARTAttack("GeoDA", **options)
    assert ARTAttack("GeoDA", max_iter=500).steps == 500

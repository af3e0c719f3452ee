"""torchattacks through rt: the same steps as a plain loop, at every size of divergence, and nothing left behind."""

import dataclasses
import json
import logging
import os
import pickle
import random

import numpy as np
import pytest
import torch
import torchattacks
from support import Failing, run_python
from torch import nn

import rt_core
from rt_core.adapting import UnitLogits
from rt_core.divergences import l2
from rt_core.errors import EncoderError, RobustnessWarning, ShapeError
from rt_core.evaluation import describe
from rt_core.randomness import SampleRandom
from rt_core.testing import parametrize_attack_checks
from rt_core.traces import Ball
from rt_torchattacks import Torchattack, bridge
from rt_unsupervised_attacks import UFGSM, UPGD

EPS, ALPHA, STEPS = 0.05, 0.01, 8
SERVED = tuple(name for name, traits in bridge.CLASSES.items() if traits.mode == "unit" and name not in ("GN", "VANILA"))
TINY = {
    "CW": {"steps": 100},
    "EADL1": {"max_iterations": 10},
    "EADEN": {"max_iterations": 10},
    "Square": {"n_queries": 30},
    "SPSA": {"nb_iter": 3, "nb_sample": 16, "eps": 8 / 255},
    "SparseFool": {"steps": 3},
    "Pixle": {"restarts": 3},
    "JSMA": {"gamma": 0.02},
    "AutoAttack": {"version": "rand"},
}
FROM_CLEAN = ("FGSM", "BIM", "MIFGSM", "UPGD", "DIFGSM", "TIFGSM", "NIFGSM", "SINIFGSM", "VMIFGSM", "VNIFGSM", "PIFGSM", "PIFGSMPP")


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


def library_start(inputs):
    with randomness(len(inputs)).global_generators("global generators"):
        return (inputs + torch.empty_like(inputs).uniform_(-EPS, EPS)).clamp(0, 1)


def beside(inputs):
    return (inputs + randomness(len(inputs)).uniform("eta", inputs.shape[1:], low=-1e-3, high=1e-3)).clamp(0, 1)


def plain_pgd(encoder, inputs, anchor, way, moved, first=None):
    """PGD as one writes it down, with torchattacks' order of clamps; ``first`` is where the first gradient is taken."""
    for step in range(STEPS):
        at = (first if step == 0 and first is not None else moved).clone().requires_grad_()
        (slope,) = torch.autograd.grad(way * l2(anchor, encoder(at)).sum(), at)
        moved = moved + ALPHA * slope.sign()
        moved = (inputs + (moved - inputs).clamp(-EPS, EPS)).clamp(0, 1)
    return Ball("linf", EPS).project(moved, inputs, encoder.bounds)


def where_it_starts(attack):
    """A start from a library's global generator cannot belong to the sample, unless the library is given one sample at a time."""
    drawn = attack.attack in ("PGD", "APGD") and attack.route == "batch"
    reason = "the library draws its start from a global generator, seeded for the batch"
    return {"gives_a_sample_the_same_result_in_any_batch_and_order": reason} if drawn else {}


CONTRACTED = [
    Torchattack("PGD", steps=4),
    Torchattack("BIM", steps=4),
    Torchattack("PGD", steps=4, route="single"),
    Torchattack("APGD", steps=4),
    Torchattack("FAB", steps=5, threshold=0.2),
]


@parametrize_attack_checks(CONTRACTED, expected_failures=where_it_starts)
def test_the_contract(attack, check):
    check(attack)


def make_batch(rows, aim="away", encoder=None, bank=None):
    encoder, inputs = make_encoder() if encoder is None else encoder, images(rows)
    with torch.no_grad():
        clean, targets = encoder(inputs), encoder(images(rows, seed=2))
        known = None if bank is None else rt_core.Bank(encoder(bank))
    ids = tuple(map(str, range(rows)))
    return rt_core.Batch(ids=ids, inputs=inputs, clean=clean, aim=aim, targets=targets if aim == "target" else None, bank=known)


@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("random_start", [True, False])
@pytest.mark.parametrize("aim", ["away", "target"])
def test_pgd_is_bit_equal_to_a_plain_loop(rows, random_start, aim):
    encoder, inputs = make_encoder(), images(rows)
    targets = images(rows, seed=2) if aim == "target" else None

    trace = rt_core.perturb(
        Torchattack("PGD", eps=EPS, alpha=ALPHA, steps=STEPS, random_start=random_start), encoder, inputs, targets=targets
    )

    way, anchor = (1, trace.clean) if aim == "away" else (-1, trace.targets)
    start = library_start(inputs) if random_start else inputs
    first = beside(inputs) if aim == "away" and not random_start else None
    assert torch.equal(trace.inputs, plain_pgd(encoder, inputs, anchor, way, start, first))
    assert trace.step == STEPS
    assert trace.forwards == rows * (STEPS + 1)
    assert trace.backwards == rows * STEPS


@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("aim", ["away", "target"])
def test_u_pgd_at_the_same_start_takes_the_same_steps(rows, aim):
    encoder, inputs = make_encoder(), images(rows)
    targets = images(rows, seed=2) if aim == "target" else None
    theirs = rt_core.perturb(Torchattack("PGD", eps=EPS, alpha=ALPHA, steps=STEPS), encoder, inputs, targets=targets)
    ours = rt_core.perturb(UPGD(epsilon=EPS, step=ALPHA, steps=STEPS), encoder, inputs, targets=targets, start=library_start(inputs))

    assert ((theirs.inputs - ours.inputs).abs() <= 2**-23).double().mean() >= 0.999
    torch.testing.assert_close(theirs.divergence.mean(), ours.divergence.mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("aim", ["away", "target"])
def test_the_size_of_a_divergence_does_not_matter(aim):
    inputs = images(4)
    targets = images(4, seed=2) if aim == "target" else None
    attack = Torchattack("PGD", eps=EPS, alpha=ALPHA, steps=STEPS)
    plain = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net()), name="plain"), inputs, targets=targets)
    for factor in (2.0**-20, 2.0**10, 2.0**40):  # powers of two, so that every rounding is the same
        scaled = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net(), factor), name="scaled"), inputs, targets=targets)
        assert torch.equal(scaled.inputs, plain.inputs)
    thousand = rt_core.perturb(attack, rt_core.Encoder(Scaled(conv_net(), 1000.0), name="thousand"), inputs, targets=targets)
    torch.testing.assert_close(thousand.divergence / 1000, plain.divergence, rtol=1e-3, atol=0)
    assert not thousand.stuck.any()


def test_fgsm_is_u_fgsm():
    encoder, inputs = make_encoder(), images(7)
    for targets in (None, images(7, seed=2)):
        theirs = rt_core.perturb(Torchattack("FGSM", eps=EPS), encoder, inputs, targets=targets)
        ours = rt_core.perturb(UFGSM(epsilon=EPS), encoder, inputs, targets=targets)
        assert ((theirs.inputs - ours.inputs).abs() <= 2**-23).double().mean() >= 0.999


@pytest.mark.parametrize("name", SERVED)
def test_every_served_attack_moves_every_row_and_nears_targets(name):
    encoder, inputs, targets = make_encoder(), images(4), images(4, seed=2)
    attack = Torchattack(name, **TINY.get(name, {"steps": 3} if "steps" in bridge._parameters(name) else {}))

    away = rt_core.perturb(attack, encoder, inputs)
    random_move = rt_core.perturb(rt_core.attack("uniform_noise", epsilon=0.002), encoder, inputs)
    assert not away.stuck.any()
    assert (away.divergence > random_move.divergence).all()
    if name in FROM_CLEAN and name != "FGSM":
        alone = rt_core.perturb(attack, encoder, inputs[:1])
        assert alone.divergence.item() > random_move.divergence[0].item()
    if "target" in attack.aims:
        toward = rt_core.perturb(attack, encoder, inputs, targets=targets)
        assert (toward.divergence < l2(toward.targets, toward.clean)).all()
    else:
        with pytest.raises(ValueError, match="does not support aim 'target'"):
            rt_core.perturb(attack, encoder, inputs, targets=targets)


def test_every_class_of_the_library_is_served_or_refused_with_its_reason():
    classes = {name for name in torchattacks.__all__ if issubclass(getattr(torchattacks, name), torchattacks.attack.Attack)}
    assert set(bridge.CLASSES) | set(bridge._REFUSED) == classes
    for name, reason in bridge._REFUSED.items():
        with pytest.raises(ValueError, match=f"{name} is not served by its name") as caught:
            Torchattack(name)
        assert reason in str(caught.value)
    for name, traits in bridge.CLASSES.items():
        assert Torchattack(name).mode == traits.mode
        if traits.unfit:
            with pytest.raises(ValueError, match=f"{name} does not work in mode 'unit'.*mode '{traits.mode}' serves it") as caught:
                Torchattack(name, mode="unit")
            assert traits.unfit in str(caught.value)
        view = UnitLogits(make_encoder(), make_batch(1), l2, eta=None, who="test")
        assert ("targeted" in getattr(torchattacks, name)(view).supported_mode) == traits.targeted


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e15])
@pytest.mark.parametrize("aim", ["away", "target"])
def test_the_view_hands_on_the_gradient_of_the_divergence_itself(aim, factor):
    encoder = rt_core.Encoder(Scaled(conv_net(), factor), name="scaled")
    batch = make_batch(3, aim, encoder)
    inputs = batch.inputs
    view = UnitLogits(encoder, batch, l2, eta=torch.zeros_like(inputs), who="test")
    at = (inputs + 0.01).clamp(0, 1).requires_grad_()

    logits = view(at)
    loss = nn.functional.cross_entropy(logits, torch.zeros(3, dtype=torch.long))
    (at_logits, slope) = torch.autograd.grad(loss, (logits, at))

    way = 1 if aim == "away" else -1
    assert torch.equal(slope, torch.autograd.grad(way * l2(batch.anchor, encoder(at)).sum(), at)[0])
    assert (at_logits[:, 1] >= 0.49 / 3).all(), "the loss saturates on what the view shows"


def test_the_view_is_not_a_training_network():
    encoder, inputs = make_encoder(), images(3)
    seen = []

    def watching(model, **options):
        seen.append((model.training, model.train().training, [len(list(model.parameters())), len(list(model.modules()))]))
        return torchattacks.PGD(model, **options)

    rt_core.perturb(Torchattack(watching, eps=EPS), encoder, inputs)
    assert seen == [(False, False, [1, 1])]


@pytest.mark.parametrize("name", ["PGD", "PGDL2", "BIM"])
def test_memory_order_does_not_matter(name):
    inputs = images(4)
    attack = Torchattack(name, steps=3)
    plain = rt_core.perturb(attack, make_encoder(), inputs)
    ordered = rt_core.perturb(attack, make_encoder(channels_last=True), inputs.to(memory_format=torch.channels_last))
    strided = rt_core.perturb(attack, make_encoder(), inputs.transpose(2, 3).contiguous().transpose(2, 3))
    assert torch.equal(strided.inputs, plain.inputs)
    torch.testing.assert_close(ordered.divergence, plain.divergence, rtol=1e-2, atol=0)


def test_bounds_of_one_width_are_mapped():
    centred = rt_core.Encoder(nn.Sequential(Scaled(nn.Identity(), 0.5, 1.0), conv_net()), name="centred", bounds=(-1, 1))
    unit, inputs = make_encoder(), images(4)
    for name in ("PGD", "PGDL2", "FGSM"):
        more = {} if name == "FGSM" else {"alpha": 2 * ALPHA}
        half = {} if name == "FGSM" else {"alpha": ALPHA}
        doubled = rt_core.perturb(Torchattack(name, eps=2 * EPS, **more), centred, 2 * inputs - 1, targets=2 * images(4, seed=2) - 1)
        plain = rt_core.perturb(Torchattack(name, eps=EPS, **half), unit, inputs, targets=images(4, seed=2))
        torch.testing.assert_close(doubled.divergence, plain.divergence, rtol=2e-2, atol=0)
    away = rt_core.perturb(Torchattack("PGD", eps=0.2), centred, 2 * inputs - 1)
    assert (away.inputs - (2 * inputs - 1)).abs().max() > 0.06  # the default alpha too is in the bounds' units: 10 * 2/255
    assert (away.inputs - (2 * inputs - 1)).abs().max() <= 10 * 2 / 255 + 0.2


def test_bounds_given_as_float64_arrays_keep_float32():
    low = np.array([-2.0, -1.0, 0.0]).reshape(3, 1, 1)
    encoder = rt_core.Encoder(conv_net(), name="shifted", bounds=(low, low + 3.0))
    inputs = images(3) * 3 + torch.as_tensor(low, dtype=torch.float32)
    inputs = encoder.clip(inputs)
    trace = rt_core.perturb(Torchattack("PGD", eps=0.1, steps=3), encoder, inputs)
    assert trace.inputs.dtype == torch.float32
    assert not trace.stuck.any()

    uneven = rt_core.Encoder(conv_net(), name="uneven", bounds=(low, np.array([1.0, 2.5, 3.0]).reshape(3, 1, 1)))
    with pytest.raises(ValueError, match=r"3 wide in one place and 3\.5 in another"):
        rt_core.perturb(Torchattack("PGD"), uneven, inputs)


def test_float64_and_no_grad():
    encoder, inputs = rt_core.Encoder(conv_net().double(), name="double"), images(4).double()
    attack = Torchattack("PGD", eps=EPS, alpha=ALPHA, steps=3)
    with torch.no_grad():
        trace = rt_core.perturb(attack, encoder, inputs)
    assert trace.inputs.dtype == trace.adversarial.dtype == torch.float64
    assert torch.equal(trace.inputs, rt_core.perturb(attack, encoder, inputs).inputs)
    assert not trace.stuck.any()


def test_epsilon_zero_returns_the_input_and_a_constant_encoder_is_stuck():
    inputs = images(3)
    for name in ("PGD", "PGDL2", "FGSM"):
        assert torch.equal(rt_core.perturb(Torchattack(name, eps=0), make_encoder(), inputs).inputs, inputs)
    constant = rt_core.Encoder(lambda inputs: torch.ones(len(inputs), 5), name="constant")
    assert rt_core.perturb(Torchattack("FGSM"), constant, inputs).stuck.all()


def test_same_seed_same_result_and_the_random_start_belongs_to_the_batch():
    encoder, inputs, attack = make_encoder(), images(4), Torchattack("PGD", steps=2)
    first, again = rt_core.perturb(attack, encoder, inputs), rt_core.perturb(attack, encoder, inputs)
    other, parts = rt_core.perturb(attack, encoder, inputs, seed=1), rt_core.perturb(attack, encoder, inputs, batch=2)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.inputs, parts.inputs)


@pytest.mark.parametrize("aim", ["away", "target"])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_apgd_gives_back_its_best_and_never_the_clean_input(norm, aim):
    """The library's own call gives back the clean input or the last mistaken iterate; its best is never worse than a plain loop's."""
    encoder, inputs = make_encoder(), images(7)
    targets = images(7, seed=2) if aim == "target" else None
    eps = EPS if norm == "Linf" else 1.0
    way = 1 if aim == "away" else -1
    seen = []
    watched = rt_core.Encoder(encoder.module, name="watched", output=lambda returned: seen.append(returned.detach()) or returned)
    trace = rt_core.perturb(Torchattack("APGD", norm=norm, eps=eps, steps=10, n_restarts=2), watched, inputs, targets=targets)
    anchor = trace.clean if targets is None else trace.targets
    iterates = torch.stack([l2(anchor, one) for one in seen if len(one) == 7])[2 if targets is None else 3 : -1]
    assert len(iterates) == 22
    best = way * (way * iterates).amax(0)
    torch.testing.assert_close(trace.divergence.float(), best, rtol=1e-4, atol=1e-6)
    assert (way * trace.divergence > way * iterates[10]).any(), "the last iterate of a restart is not the best"


@pytest.mark.parametrize("aim", ["away", "target"])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_square_gives_back_its_best_query(norm, aim):
    encoder, inputs = make_encoder(), images(5)
    targets = images(5, seed=2) if aim == "target" else None
    way, eps = (1 if aim == "away" else -1), EPS if norm == "Linf" else 1.0
    few, more, twice = (
        rt_core.perturb(Torchattack("Square", norm=norm, eps=eps, **options), encoder, inputs, targets=targets)
        for options in ({"n_queries": 5}, {"n_queries": 120}, {"n_queries": 120, "n_restarts": 2})
    )
    assert (way * more.divergence).mean() > (way * few.divergence).mean()
    assert (way * twice.divergence >= way * more.divergence - 1e-6).all()
    if aim == "away":
        noise = rt_core.perturb(rt_core.attack("uniform_noise", epsilon=EPS), encoder, inputs)
        assert (few.inputs != inputs).flatten(1).any(1).all()
        assert norm == "L2" or (more.divergence > noise.divergence).all()


def sub_selecting():
    yield "APGD", Torchattack("APGD", mode="instance", eps=EPS, steps=5, n_restarts=3)
    yield "APGDT", Torchattack("APGDT", eps=EPS, steps=5, n_classes=4)
    yield "Square", Torchattack("Square", mode="instance", eps=EPS, n_queries=20, n_restarts=2)
    yield "FAB", Torchattack("FAB", mode="instance", eps=EPS, steps=3, route="batch", n_restarts=2)
    yield "AutoAttack", Torchattack("AutoAttack", eps=EPS, version="rand")
    yield (
        "MultiAttack",
        Torchattack(lambda model: torchattacks.MultiAttack([torchattacks.FGSM(model), torchattacks.PGD(model, eps=EPS)]), mode="instance"),
    )


@pytest.mark.parametrize(("name", "attack"), list(sub_selecting()))
def test_an_attack_that_drops_rows_returns_each_to_its_place(name, attack, monkeypatch):
    """Sample 3 is broken from the first step, since the bank holds its near double; what comes back must still lie around each sample."""
    encoder, inputs = make_encoder(), images(7)
    bank = torch.cat([inputs, images(20, seed=4), (inputs[3:4] + 1e-3).clamp(0, 1)])
    seen, asked = [], []
    returned = Torchattack._moved

    def watching(self, view, batch, random):
        moved = returned(self, view, batch, random)
        seen.append((moved - batch.inputs).abs().max().item())
        return moved

    monkeypatch.setattr(Torchattack, "_moved", watching)
    watched = rt_core.Encoder(encoder.module, name="watched", output=lambda returned: asked.append(len(returned)) or returned)
    trace = rt_core.perturb(attack, watched, inputs, bank=bank)
    assert seen[0] <= EPS + 1e-6, "before it is projected"
    known = rt_core.Bank(rt_core.represent(encoder, bank))
    closer = known.closer_counts(trace.adversarial, trace.clean, torch.arange(7))
    assert closer[3] > 0
    if name in ("APGDT", "Square", "FAB", "AutoAttack", "MultiAttack"):
        assert min(asked) < 7, "no row was dropped"
    if name in ("APGD", "APGDT", "AutoAttack"):
        assert not trace.stuck.any(), "a sample that is not broken is not given back as it was"
    assert attack.joint


def test_the_threshold_modes_are_given_one_sample_at_a_time_and_hold_for_it_alone():
    encoder, inputs = make_encoder(), images(7)
    for attack in (Torchattack("APGDT", mode="threshold", threshold=0.1, eps=EPS, steps=5), Torchattack("FAB", threshold=0.1, steps=5)):
        assert attack.route == "single"
        assert not attack.joint
        whole = rt_core.perturb(attack, encoder, inputs)
        part = rt_core.perturb(attack, encoder, inputs[2:4], ids=[2, 3])
        assert torch.equal(whole.inputs[2:4], part.inputs)


SMALLEST = ("CW", "DeepFool", "EADEN", "EADL1", "FAB", "JSMA", "SparseFool")


# Toward targets SparseFool, which extrapolates along a tangent, does not get there on noise.
@pytest.mark.parametrize(
    ("name", "aim"), [(name, aim) for aim in ("away", "target") for name in SMALLEST if (name, aim) != ("SparseFool", "target")]
)
def test_the_smallest_move_ends_at_the_threshold(name, aim):
    encoder, inputs = make_encoder(), images(2)
    targets = images(2, seed=2) if aim == "target" else None
    with torch.no_grad():
        apart = l2(encoder(inputs), encoder(images(2, seed=2))).min().item()
    threshold = 0.1 if aim == "away" else 0.7 * apart
    attack = Torchattack(name, threshold=threshold, **({**TINY, "JSMA": {}}.get(name, {})))
    trace = rt_core.perturb(attack, encoder, inputs, targets=targets)
    assert attack.ball is None
    assert trace.notes["reached"].tolist() == [1, 1]
    ratio = trace.divergence / threshold
    low, high = (1 - 1e-5, 1.01) if aim == "away" else (1 / 1.01, 1 + 1e-5)
    assert ((ratio >= low) & (ratio <= high)).all()
    moved = trace.inputs - inputs
    torch.testing.assert_close(trace.notes["magnitude_l2"], moved.flatten(1).norm(dim=1))
    torch.testing.assert_close(trace.notes["magnitude_linf"], moved.flatten(1).abs().amax(1))


def test_what_does_not_reach_the_threshold_says_so_and_keeps_its_effort():
    encoder, inputs = make_encoder(), images(2)
    for name in ("OnePixel", "PGD", "APGDT"):
        trace = rt_core.perturb(Torchattack(name, mode="threshold", threshold=1e3), encoder, inputs)
        assert trace.notes["reached"].tolist() == [0, 0]
        assert trace.notes["magnitude_l2"].isnan().all()
        assert trace.notes["magnitude_linf"].isnan().all()
        assert not trace.stuck.any()
    constant = rt_core.Encoder(lambda inputs: torch.ones(len(inputs), 5), name="constant")
    divided_by_zero = rt_core.perturb(Torchattack("DeepFool", threshold=1.0), constant, inputs)
    assert torch.equal(divided_by_zero.inputs, inputs)
    assert divided_by_zero.notes["reached"].tolist() == [0, 0]


def test_fab_needs_a_fifth_of_the_ball_of_u_pgd_and_no_more_than_u_pgd_at_its_best():
    encoder, inputs = make_encoder(), images(4)
    u_pgd = rt_core.perturb(UPGD(epsilon=EPS), encoder, inputs)
    threshold = 0.15 * u_pgd.divergence.min().item()
    fab = rt_core.perturb(Torchattack("FAB", threshold=threshold), encoder, inputs)
    needed = fab.notes["magnitude_linf"]
    assert (fab.notes["reached"] == 1).all()
    assert (needed <= EPS / 5).all()
    for row, one in enumerate(inputs):
        smaller = rt_core.perturb(UPGD(epsilon=0.85 * needed[row].item(), steps=30, keep="best"), encoder, one[None])
        assert smaller.divergence.item() < threshold, "U-PGD gets there with less"


def test_the_quantile_is_that_of_the_bank():
    encoder, inputs, bank = make_encoder(), images(3), images(30, seed=4)
    trace = rt_core.perturb(Torchattack("FAB", quantile=0.05), encoder, inputs, bank=bank)
    quantiles = rt_core.Bank(rt_core.represent(encoder, bank)).pair_quantiles(trace.divergence)
    assert (quantiles >= 0.05).all()
    assert trace.notes["reached"].tolist() == [1, 1, 1]
    assert ((trace.divergence / trace.divergence.min()) <= 1.0101).all()


@pytest.mark.parametrize("name", ["PGD", "APGD", "APGDT", "Jitter", "DeepFool"])
def test_mode_instance_breaks_away_and_impersonates(name):
    """At an epsilon at which moving away at random does not break any."""
    encoder = rt_core.Encoder(conv_net(), name="conv")
    base, spread = images(1), images(12, seed=5) - 0.5
    bank = (base + 0.15 * spread).clamp(0, 1)
    inputs = bank[:4]
    eps = {} if name == "DeepFool" else {"eps": EPS}
    attack = Torchattack(name, mode="instance", **eps)
    trace = rt_core.perturb(attack, encoder, inputs, bank=bank)
    known = rt_core.Bank(rt_core.represent(encoder, bank))
    own = torch.arange(4)
    noise = rt_core.perturb(rt_core.attack("uniform_noise", epsilon=EPS), encoder, inputs)
    assert (known.closer_counts(noise.adversarial, noise.clean, own) == 0).all()
    assert (known.closer_counts(trace.adversarial, trace.clean, own) > 0).all()
    if "target" in attack.aims:
        toward = rt_core.perturb(attack, encoder, inputs, targets=bank[4:8], bank=bank)
        near = known.nearest(toward.adversarial, 1, torch.full((4,), -1))[1].flatten()
        assert near.tolist() == [4, 5, 6, 7]


def test_lengths_follow_the_bounds_in_every_mode():
    centred = rt_core.Encoder(nn.Sequential(Scaled(nn.Identity(), 0.5, 1.0), conv_net()), name="centred", bounds=(-1, 1))
    unit, inputs = make_encoder(), images(3)
    for name, options in (("FAB", {"threshold": 0.1}), ("SPSA", {**TINY["SPSA"], "delta": 0.01, "lr": 0.01}), ("APGD", {"eps": EPS})):
        doubled = {key: 2 * value if key in ("eps", "delta", "lr") else value for key, value in options.items()}
        wide = rt_core.perturb(Torchattack(name, **doubled), centred, 2 * inputs - 1)
        plain = rt_core.perturb(Torchattack(name, **options), unit, inputs)
        torch.testing.assert_close(wide.divergence, plain.divergence, rtol=5e-2, atol=0)
        lengths = [(wide.inputs - (2 * inputs - 1)).flatten(1).norm(dim=1) / 2, (plain.inputs - inputs).flatten(1).norm(dim=1)]
        torch.testing.assert_close(*lengths, rtol=5e-2, atol=0)


def test_attacks_that_look_through_views_take_any_memory_order_and_double():
    inputs = images(2)
    for name, options in (("FAB", {}), ("JSMA", TINY["JSMA"]), ("SparseFool", TINY["SparseFool"]), ("DeepFool", {})):
        attack = Torchattack(name, threshold=0.05, **options)
        ordered = rt_core.perturb(attack, make_encoder(channels_last=True), inputs.to(memory_format=torch.channels_last))
        assert (ordered.notes["reached"] == 1).all()
        double = rt_core.perturb(attack, rt_core.Encoder(conv_net().double(), name="double"), inputs.double())
        assert double.inputs.dtype == torch.float64
        assert (double.notes["reached"] == 1).all()


def test_a_run_gives_every_mode_its_bank_and_whole_blocks(tmp_path):
    """In mode "instance" samples are each other's anchors, so a run's batch must not decide which."""
    attacks = {
        "unit": Torchattack("APGD", eps=EPS, steps=3),
        "threshold": Torchattack("FAB", quantile=0.1, steps=3),
        "instance": Torchattack("APGDT", eps=EPS, steps=3),
    }
    frames = []
    for batch in (4, 64):
        plan = rt_core.Evaluation(
            encoders=[make_encoder()],
            dataset=images(20),
            attacks=attacks,
            metrics=["universal_quantile", "breakaway_risk"],
            attacked=12,
            bank=20,
        )
        results = rt_core.run(plan, store=tmp_path / str(batch), batch=batch, progress=False)
        frames.append(results.frame.set_index(["attack", "metric", "sample"]).value.sort_index())
        notes = results.notes
        assert set(notes[notes.name == "reached"].attack) == {"threshold"}
        assert (notes[notes.name == "reached"].value == 1).all()
        quantiles = results.frame[(results.frame.attack == "threshold") & (results.frame.metric == "universal_quantile")].value
        assert (quantiles >= 0.1).all()
        assert (quantiles < 0.2).all()
    for label in ("instance", "threshold"):
        assert frames[0].loc[label].equals(frames[1].loc[label])


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


@pytest.mark.parametrize("name", ["PGD", "PIFGSM", "TPGD", "APGDT", "FAB", "Square", "OnePixel"])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(name, fails, capfd, recwarn):
    network = dressed(conv_net())
    encoder = rt_core.Encoder(Failing(network) if fails else network, name="dressed")
    traits = bridge.CLASSES[name]
    attack, inputs = Torchattack(name, **TINY.get(name, {}), **({"threshold": 0.1} if traits.mode == "threshold" else {})), images(3)
    bank = rt_core.Bank(rt_core.represent(conv_net(), images(9, seed=3)))
    before, given = snapshot(network), inputs.clone()
    if fails:
        with pytest.raises(EncoderError, match="out of order") as caught:
            rt_core.perturb(attack, encoder, inputs, bank=bank)
        assert "Torchattack" in "".join(caught.value.__notes__)
    else:
        rt_core.perturb(attack, encoder, inputs, bank=bank)
    assert snapshot(network) == before
    assert not recwarn.list
    assert torch.equal(inputs, given)
    assert capfd.readouterr() == ("", "")


def test_it_is_a_value():
    attack = Torchattack("PGD", eps=np.float64(0.05), steps=np.int64(3))
    assert attack == Torchattack("PGD", steps=3, eps=0.05)
    assert attack != Torchattack("PGD", steps=4, eps=0.05)
    assert len({attack, Torchattack("PGD", steps=3, eps=0.05)}) == 1
    assert pickle.loads(pickle.dumps(attack)) == attack
    recorded = json.loads(json.dumps(dataclasses.asdict(attack)))
    assert recorded == {
        "attack": "PGD",
        "mode": "unit",
        "threshold": None,
        "quantile": None,
        "anchors": None,
        "route": "batch",
        "options": {"eps": 0.05, "steps": 3},
        "library": f"torchattacks {torchattacks.__version__}",
    }
    assert describe(attack)["options"] == {"eps": 0.05, "steps": 3}
    assert repr(attack) == "Torchattack('PGD', eps=0.05, steps=3)"
    assert repr(Torchattack("FAB", steps=3)) == "Torchattack('FAB', quantile=0.5, steps=3)"
    assert repr(Torchattack("PGD", mode="threshold", threshold=2, route="single")) == (
        "Torchattack('PGD', mode='threshold', threshold=2, route='single')"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.mode = "y"
    assert Torchattack(torchattacks.PGD) == Torchattack("PGD")
    assert rt_core.attack("torchattacks", attack="PGD", eps=0.05, steps=3) == attack


def test_ball_and_steps_are_those_of_the_class():
    assert Torchattack("PGD").ball == Ball("linf", 8 / 255)
    assert Torchattack("PGD", eps=0.1).ball == Ball("linf", 0.1)
    assert Torchattack("PGDL2").ball == Ball("l2", 1.0)
    assert Torchattack("PIFGSM", max_epsilon=0.1, num_iter_set=4).ball == Ball("linf", 0.1)
    assert [Torchattack("PGD").steps, Torchattack("PIFGSM", num_iter_set=4).steps, Torchattack("FGSM").steps] == [10, 4, 0]
    assert Torchattack(lambda model: torchattacks.PGD(model)).ball is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Torchattack("pgd"), r"no attack 'pgd'; did you mean 'PGD'\? \(it has FGSM"),
        (lambda: Torchattack("Attack"), "no attack 'Attack'"),
        (lambda: Torchattack(3), "attack is 3; expected the name of a class of torchattacks, or a factory"),
        (
            lambda: Torchattack("PGD", epsilon=0.1),
            r"no option 'epsilon'; did you mean 'eps'\? \(it takes eps, alpha, steps, random_start\)",
        ),
        (lambda: Torchattack("PGD", model=None), "no option 'model'"),
        (lambda: Torchattack("PGD", eps=-0.1), r"eps is -0\.1; .* it is a radius and cannot be negative"),
        (lambda: Torchattack("PGD", eps="8/255"), "eps is '8/255'; expected a number"),
        (lambda: Torchattack("PGD", alpha=-1), "the aim decides the direction"),
        (lambda: Torchattack("BIM", steps=0), "steps is 0; at least one is needed"),
        (lambda: Torchattack("BIM", steps=True), "steps is True; expected a number, such as 10, the library's default"),
        (lambda: Torchattack("BIM", steps=2.5), "steps is 2.5; expected a whole number, such as 10"),
        (lambda: Torchattack("MIFGSM", decay=True), "decay is True; expected a number, such as 1.0"),
        (lambda: Torchattack("PGD", eps=True), "eps is True; expected a number"),
        (lambda: Torchattack("FAB", anchors=True), "anchors is True; expected a whole number, such as 10"),
        (lambda: Torchattack("UPGD", loss="margin"), "loss is 'margin'; mode 'unit' serves 'ce' alone"),
        (lambda: Torchattack("PGD", mode="y"), "mode is 'y'; expected 'unit', 'threshold', 'instance'"),
        (lambda: Torchattack("PGD", threshold=1.0), "threshold is 1, and mode is 'unit'; a threshold belongs to mode 'threshold'"),
        (lambda: Torchattack("FAB", threshold=0), "threshold is 0; expected a positive divergence"),
        (lambda: Torchattack("FAB", quantile=1.5), r"quantile is 1.5; expected a share of pairs in \(0, 1\]"),
        (lambda: Torchattack("FAB", anchors=0), "anchors is 0; at least one is needed"),
        (lambda: Torchattack("PGD", route="rows"), "route is 'rows'; expected 'auto', 'batch', 'single'"),
        (lambda: Torchattack("CW", route="batch"), "CW takes one sample at a time in mode 'threshold': it stops by a sum over the batch"),
        (lambda: Torchattack("SPSA", route="batch"), "SPSA takes one sample at a time in mode 'unit': it repeats rows"),
        (lambda: Torchattack("EADL1", max_iterations=9), "max_iterations is 9; .* needs at least 10: write 10, or abort_early=False"),
        (lambda: Torchattack("APGD", loss="dlr"), "loss is 'dlr'; mode 'unit' serves 'ce' alone"),
        (lambda: Torchattack("FAB", norm="L1"), "norm is 'L1'; expected 'Linf' or 'L2', which torchattacks' FAB can measure"),
        (lambda: Torchattack("AutoAttack", version="best"), "version is 'best'; expected one of 'standard', 'plus', 'rand'"),
        (lambda: Torchattack("APGD", seed=3), "seed is no option here: random numbers follow the seed of perturb or of the plan"),
        (lambda: Torchattack("Square", n_restarts=0), "n_restarts is 0"),
        (lambda: Torchattack(lambda model: None, eps=0.1), "cannot be called with the model and eps"),
    ],
)
def test_what_is_wrong_is_said_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_can_only_be_seen_later_is_said_then():
    encoder, inputs = make_encoder(), images(3)
    with pytest.raises(ValueError, match=r"epsilon is 8; .* write 8/255, not 8"):
        rt_core.perturb(Torchattack("PGD", eps=8), encoder, inputs)
    with pytest.raises(ValueError, match="takes no start: torchattacks centers its ball"):
        rt_core.perturb(Torchattack("PGD"), encoder, inputs, start=inputs)
    with pytest.raises(ShapeError, match="torchattacks' PGDRS asks for 15 rows of a batch of 3: it drops, repeats or reorders rows"):
        rt_core.perturb(Torchattack(torchattacks_pgdrs), encoder, inputs)
    with pytest.raises(ValueError, match=r"FAB in mode 'threshold' needs a bank for its threshold, .*perturb\(…, bank=inputs of others\)"):
        rt_core.perturb(Torchattack("FAB"), encoder, inputs)
    with pytest.raises(ValueError, match=r"APGDT in mode 'instance' needs a bank of others to break away to"):
        rt_core.perturb(Torchattack("APGDT"), encoder, inputs)
    with pytest.raises(ValueError, match="does not support aim 'target'"):
        rt_core.perturb(Torchattack("APGDT"), encoder, inputs, targets=images(3, seed=2))
    with pytest.raises(ValueError, match=r"JSMA compares all pairs of an input's 12,288 numbers, in ten tables of 1 GiB each"):
        rt_core.perturb(Torchattack("JSMA", threshold=1.0), encoder, images(1, size=64))
    with pytest.raises(ValueError, match="Pixle mixes up rows and columns, and these images are 16 by 8; give square ones"):
        rt_core.perturb(Torchattack("Pixle", threshold=1.0), encoder, inputs[..., :8])
    with pytest.raises(ValueError, match=r"Square moves parts of images, \[channel, height, width\], and these inputs are \[7\]"):
        rt_core.perturb(Torchattack("Square"), rt_core.Encoder(torch.sin, name="waves"), torch.rand(2, 7))
    with pytest.raises(ValueError, match=r"TIFGSM blurs images of three channels, and these inputs are \[1, 8, 8\]"):
        rt_core.perturb(Torchattack("TIFGSM"), rt_core.Encoder(nn.Flatten(), name="flat"), torch.rand(2, 1, 8, 8))
    with pytest.raises(ValueError, match="returned NoneType; expected an attack of torchattacks"):
        rt_core.perturb(Torchattack(lambda model: None), encoder, inputs)

    def normalized(model):
        attack = torchattacks.PGD(model)
        attack.set_normalization_used([0.5, 0.5, 0.5], [0.2, 0.2, 0.2])
        return attack

    with pytest.raises(ValueError, match=r"leave its mode and normalization alone: Encoder\(normalize=…\) normalizes"):
        rt_core.perturb(Torchattack(normalized), encoder, inputs)


def torchattacks_pgdrs(model):
    return torchattacks.PGDRS(model)


torchattacks_pgdrs.__name__ = "PGDRS"


def test_a_version_that_was_not_tested_warns_once(monkeypatch, recwarn):
    monkeypatch.setattr(torchattacks, "__version__", "3.6.0")
    bridge._library.cache_clear()
    Torchattack("PGD")
    Torchattack("BIM")
    assert [str(warning.message) for warning in recwarn if warning.category is RobustnessWarning] == [
        "torchattacks 3.6.0 is not among the versions that this bridge was tested with (3.5 up to, not including, 3.6); "
        "its attacks may mean something else"
    ]
    bridge._library.cache_clear()


def test_importing_torchattacks_leaves_the_process_as_it_was(tmp_path):
    run_python(
        """
        import logging, random, sys, warnings
        import numpy, torch
        from rt_torchattacks import Torchattack

        assert "torchattacks" not in sys.modules, "torchattacks is imported before anyone asks for it"
        logging.basicConfig(filename="log.txt", filemode="w")
        def state():
            root = logging.getLogger()
            return (list(warnings.filters), root.level, list(root.handlers), root.handlers[0].stream.closed, random.getstate(),
                    numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        before = state()
        attack = Torchattack("PGD")
        assert "torchattacks" in sys.modules
        assert state() == before
        """.replace('"log.txt"', repr(str(tmp_path / "log.txt"))),
        HOME=str(tmp_path),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


WEIGHT = torch.ones(3 * 16 * 16, 4, requires_grad=True)
DEAF = {
    "no_grad": torch.no_grad()(lambda inputs: inputs.flatten(1)),
    "weights alone": lambda inputs: inputs.detach().flatten(1) @ WEIGHT,
}


@pytest.mark.parametrize("deaf", DEAF)
@pytest.mark.parametrize("name", [name for name in SERVED if name not in ("Square", "SPSA")])
def test_an_encoder_without_a_gradient_is_noted_as_stuck(name, deaf):
    trace = rt_core.perturb(Torchattack(name), rt_core.Encoder(DEAF[deaf], name="deaf"), images(2))
    assert trace.stuck.all()
    assert not rt_core.perturb(Torchattack(name), make_encoder(), images(2)).stuck.any()


@pytest.mark.parametrize("name", ["DeepFool", "CW", "FAB", "EADL1"])
def test_a_search_without_a_gradient_reaches_nothing(name):
    attack = Torchattack(name, threshold=0.5, **TINY.get(name, {}))
    trace = rt_core.perturb(attack, rt_core.Encoder(DEAF["no_grad"], name="deaf"), images(2))
    assert trace.notes["reached"].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["MIFGSM", "PGDL2", "PGD", "APGD"])
def test_an_infinite_slope_at_one_pixel_stops_no_attack(name):
    encoder, inputs = rt_core.Encoder(lambda inputs: inputs.sqrt().mean((2, 3)), name="root"), images(2) * 0.5 + 0.3
    usual = rt_core.perturb(Torchattack(name), encoder, inputs).divergence
    inputs[:, :, 0, 0] = 0
    assert (rt_core.perturb(Torchattack(name), encoder, inputs).divergence > 0.9 * usual).all()


def test_whole_numbers_of_numpy_are_plain_ones():
    given = Torchattack("APGDT", steps=np.int64(4), n_restarts=np.uint8(2), anchors=np.int64(5))
    assert given == Torchattack("APGDT", steps=4, n_restarts=2, anchors=5)
    assert type(given.anchors) is int

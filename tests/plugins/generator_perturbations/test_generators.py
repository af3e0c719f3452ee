"""Generators: adding by hand, the network's own images bit for bit, hooks that go, layers that cannot be, and draws that belong to their ids."""

import copy
import gc
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from rt_core.errors import RobustnessWarning
from rt_core.fingerprints import fingerprint
from rt_generator_perturbations import (
    Generator,
    GeneratorError,
    Latents,
    LayerError,
    Normal,
    PickedLatents,
    classifier,
    find_layers,
    search,
)
from rt_generator_perturbations.layers import add

LAYERS = ["fc", "blocks.0", "blocks.1", "blocks.2"]


class Block(nn.Module):
    """Convolution, batch norm and a ReLU that works in place."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.checkpointed = checkpointed

    def body(self, features):
        return self.relu(self.norm(self.conv(features)))

    def forward(self, features):
        if self.checkpointed is None:
            return self.body(features)
        return checkpoint(self.body, features, use_reentrant=self.checkpointed == "reentrant")


class Net(nn.Module):
    """A latent of 6 and a class of 3 to 2 x 8 x 8, in (-1, 1)."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.fc = nn.Linear(9, 64)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(3))
        self.out = nn.Conv2d(4, 2, 3, padding=1)
        self.calls = []

    def forward(self, latent, label, *arguments, **keywords):
        self.calls.append((arguments, keywords))
        features = self.fc(torch.cat([latent, label], 1)).view(-1, 4, 4, 4)
        for block in self.blocks:
            features = block(features)
        return self.out(nn.functional.interpolate(features, scale_factor=2)).tanh()


def network(checkpointed=None, seed=0):
    torch.manual_seed(seed)
    net = Net(checkpointed)
    for _ in range(20):  # running statistics that are not those of a batch
        net(torch.randn(8, 6), torch.randn(8, 3))
    net.calls.clear()
    return net


def generator(net=None, **options):
    return Generator(network() if net is None else net, **{"layers": LAYERS, "latent": 6, "classes": 3, **options})


def perturbations(made, count, layers=None, seed=1, size=0.3):
    random = torch.Generator().manual_seed(seed)
    return {
        layer: size * torch.randn(count, *shape, generator=random)
        for layer, shape in made.shapes().items()
        if layers is None or layer in layers
    }


def by_hand(net, latents, moved):
    """Written out: the same network with every perturbation added where it belongs, from float64 weights to images in [0, 1]."""

    def plus(layer, activation):
        return activation + moved[layer].double() if layer in moved else activation

    weights = {name: weight.double() for name, weight in net.state_dict().items()}
    label = nn.functional.one_hot(latents.classes, 3).double()
    given = torch.cat([plus("latent", latents.latents.double()), label], 1)
    features = plus("fc", given @ weights["fc.weight"].T + weights["fc.bias"]).reshape(-1, 4, 4, 4)
    for place in range(3):
        name = f"blocks.{place}"
        features = nn.functional.conv2d(features, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], padding=1)
        mean, variance, scale, shift = (
            weights[f"{name}.norm.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        features = plus(name, ((features - mean) / (variance + 1e-5).sqrt() * scale + shift).relu())
    features = features.repeat_interleave(2, 2).repeat_interleave(2, 3)
    images = nn.functional.conv2d(features, weights["out.weight"], weights["out.bias"], padding=1).tanh()
    return plus("image", (images + 1) / 2).clamp(0, 1)


def hooks(net):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in net.modules())


# ── adding ──


@pytest.mark.parametrize("given", ["none", "empty", "zeros", "zeros with gradients"])
def test_without_a_perturbation_the_images_are_the_networks_own_bit_for_bit(given):
    net = network()
    made = generator(net)
    latents = made.draw(range(5), seed=3)
    zeros = {layer: torch.zeros(5, *shape, requires_grad="gradients" in given) for layer, shape in made.shapes().items()}
    images = made(latents, {"none": None, "empty": {}}.get(given, zeros))
    own = (net.eval()(latents.latents, nn.functional.one_hot(latents.classes, 3).float()) + 1) / 2
    assert torch.equal(images, own)
    assert images.dtype == torch.float32
    assert images.shape == (5, 2, 8, 8)


@pytest.mark.parametrize("layers", [["latent"], ["fc"], ["blocks.0"], ["blocks.1"], ["blocks.2"], ["image"], ["latent", "blocks.1"], None])
def test_a_perturbation_is_added_at_its_layers_output(layers):
    net = network()
    made = generator(net)
    latents = made.draw(range(4))
    moved = perturbations(made, 4, layers)
    assert list(moved) == (layers or list(made.layers))
    images = made(latents, moved)
    torch.testing.assert_close(images.double(), by_hand(net, latents, moved), rtol=0, atol=2e-6)
    assert (images - made(latents)).abs().max() > 1e-3


def test_gradients_are_those_of_adding_by_hand():
    net = network()
    made = generator(net)
    latents = made.draw(range(4))
    moved = {layer: part.requires_grad_() for layer, part in perturbations(made, 4).items()}
    weight = torch.randn(4, 2, 8, 8)
    found = torch.autograd.grad((made(latents, moved) * weight).sum(), list(moved.values()))
    right = torch.autograd.grad((by_hand(net, latents, moved) * weight).sum(), list(moved.values()))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


def test_passes_are_counted_in_images():
    made = generator()
    latents = made.draw(range(4))
    made.shapes()
    moved = {layer: part.requires_grad_() for layer, part in perturbations(made, 4).items()}
    with made.in_use():
        before = (made.passes.forwards, made.passes.backwards, len(made.module.calls))
        made(latents, moved).sum().backward()
        after = (made.passes.forwards, made.passes.backwards, len(made.module.calls))
    assert tuple(b - a for a, b in zip(before, after, strict=True)) == (4, 4, 1)


@pytest.mark.parametrize("values", [(0.0, 1.0), (-1.0, 1.0), (-2.0, 6.0)])
def test_values_are_mapped_linearly_to_0_and_1_and_clipped(values):
    made = Generator(nn.Unflatten(1, (1, 2, 2)), layers=[], latent=4, values=values)
    low, high = values
    latents = Latents(ids=["a"], latents=torch.tensor([[low, high, (low + high) / 2, high + 1]]))
    assert made(latents).flatten().tolist() == [0, 1, 0.5, 1]
    assert made(latents, {"image": torch.full((1, 1, 2, 2), 0.25)}).flatten().tolist() == [0.25, 1, 0.75, 1]
    assert Generator(made.module, layers=[], latent=4, values=None)(latents).flatten().tolist() == latents.latents.flatten().tolist()


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_norm_generator_gives_the_same_whatever_the_batch_and_keeps_its_statistics(batch):
    net = network().train()
    made = generator(net)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    latents, moved = made.draw(range(8)), perturbations(made, 8)
    whole = made(latents, moved)
    parts = [made(latents.select(slice(at, at + batch)), {k: v[at : at + batch] for k, v in moved.items()}) for at in range(0, 8, batch)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)
    assert all(part.training for part in net.modules())
    assert all(weight.requires_grad for weight in net.parameters())
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_a_latents_perturbation_can_be_kept_from_all_but_one_layer():
    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 4), nn.Linear(5, 4)

        def forward(self, latent, label):
            condition = torch.cat([latent, label], 1)
            return (self.first(condition) * self.second(condition)).view(-1, 1, 2, 2)

    net = Conditional()
    everywhere = Generator(net, layers=["first"], latent=3, classes=2, values=None)
    first = Generator(net, layers=["first"], latent=3, classes=2, values=None, latent_layer="first")
    latents, moved = everywhere.draw(range(3)), torch.randn(3, 3)
    condition = torch.cat([latents.latents, nn.functional.one_hot(latents.classes, 2)], 1)
    further = condition + nn.functional.pad(moved, (0, 2))
    assert torch.equal(first(latents), everywhere(latents))
    assert first.shapes() == everywhere.shapes()
    torch.testing.assert_close(everywhere(latents, {"latent": moved}).flatten(1), net.first(further) * net.second(further))
    torch.testing.assert_close(first(latents, {"latent": moved}).flatten(1), net.first(further) * net.second(condition))
    assert hooks(net) == 0
    net.forward = lambda latent, label: net.first(input=torch.cat([latent, label], 1)).view(-1, 1, 2, 2)
    with pytest.raises(LayerError, match="called with keywords only"):
        first(latents, {"latent": moved})


# ── what networks do ──


def test_activations_that_are_overwritten_in_place_are_right():
    """The convolution's output is what the ReLU after it overwrites; the ReLU's is its own input."""
    chain = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(2, 1, 1))
    made = Generator(chain, layers=["1", "2"], latent=4, values=None)
    latents, moved = made.draw(range(6)), {"1": torch.randn(6, 2, 2, 2), "2": torch.randn(6, 2, 2, 2)}
    given = latents.latents.view(-1, 1, 2, 2)
    right = chain[3]((chain[1](given) + moved["1"]).relu() + moved["2"])
    torch.testing.assert_close(made(latents, moved), right)
    drawn = made.draw([f"scale {place}" for place in range(64)]).latents.view(-1, 1, 2, 2)
    before = chain[1](drawn).detach().std(0)
    after = chain[1](drawn).relu().detach().std(0)
    scales = made.scales(per="neuron")
    torch.testing.assert_close(scales["1"], before, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scales["2"], after, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layers", [["blocks.0", "blocks.2"], ["blocks.0.conv", "blocks.0.relu", "blocks.1.norm"], ["fc"]])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_checkpointed_network_gives_the_gradients_of_the_plain_one(layers, mode):
    """What is checkpointed runs again in the backward pass: perturbed again, in eval mode again, and put back again."""
    plain, again = network(), network("not reentrant")
    found = []
    for net in (plain, again):
        getattr(net, mode)()
        made = generator(net, layers=layers)
        moved = {layer: part.requires_grad_() for layer, part in perturbations(made, 4).items()}
        images = made(made.draw(range(4)), moved)
        assert hooks(net) == 0
        found.append(torch.autograd.grad(images.square().sum(), list(moved.values())))
        assert hooks(net) == 0
        assert net.training == (mode == "train")
        assert all(weight.requires_grad for weight in net.parameters())
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert one.abs().max() > 0


def test_a_checkpointed_network_can_be_differentiated_twice_and_in_two_graphs_one_by_one():
    net = network("not reentrant")
    made = generator(net, layers=["blocks.1.conv"])
    latents = made.draw(range(2))
    one, other = (perturbations(made, 2, ["blocks.1.conv"], seed=seed)["blocks.1.conv"].requires_grad_() for seed in (1, 2))
    first, second = made(latents, {"blocks.1.conv": one}), made(latents, {"blocks.1.conv": other})
    (slope,) = torch.autograd.grad(first.square().sum(), one, retain_graph=True)
    (again,) = torch.autograd.grad(first.square().sum(), one)
    (apart,) = torch.autograd.grad(second.square().sum(), other)
    assert torch.equal(slope, again)
    assert not torch.equal(slope, apart)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("of", ["one generator", "two generators"])
def test_checkpointed_graphs_in_one_backward_pass_are_told_apart_and_nothing_stays(of, mode):
    """Case 15 of a review: two generators of one network moved each other's activations where these were made again."""
    layer, net = "blocks.1.conv", network("not reentrant")
    getattr(net, mode)()
    before = state_of(net)
    first = generator(net, layers=[layer])
    second = first if of == "one generator" else generator(net, layers=[layer])
    latents, weight = first.draw(range(2)), torch.randn(2, 2, 8, 8)
    parts = [perturbations(first, 2, [layer], seed=seed)[layer].requires_grad_() for seed in (1, 2)]
    images = [made(latents, {layer: part}) for made, part in zip((first, second), parts, strict=True)]
    right = [torch.autograd.grad((generator(layers=[layer])(latents, {layer: part}) * weight).sum(), part)[0] for part in parts]
    for order in (images, images[::-1]):
        together = (order[0] * weight).sum() + (order[1] * weight).sum()
        for found, wanted in zip(torch.autograd.grad(together, parts, retain_graph=True), right, strict=True):
            torch.testing.assert_close(found, wanted)
        assert state_of(net) == before  # each backward pass puts back what it found, the latest first
    assert not torch.allclose(*right)


def test_a_checkpointed_networks_own_call_in_one_backward_pass_is_not_moved():
    layer, net = "blocks.1.conv", network("not reentrant")
    made = generator(net, layers=[layer])
    latents, part = made.draw(range(2)), perturbations(made, 2, [layer])[layer].requires_grad_()
    label, weight = nn.functional.one_hot(latents.classes, 3).float(), torch.randn(2, 2, 8, 8)
    given = latents.latents.clone().requires_grad_()
    (right,) = torch.autograd.grad((network().eval()(given, label) * weight).sum(), given)
    with made.in_use():
        (moved,) = torch.autograd.grad((made(latents, {layer: part}) * weight).sum(), part)
        for first in (True, False):
            own = net(given, label) if first else None
            images = made(latents, {layer: part})
            own = net(given, label) if own is None else own
            found = torch.autograd.grad((images * weight).sum() + (own * weight).sum(), [part, given])
            torch.testing.assert_close(found[0], moved)
            torch.testing.assert_close(found[1], right)


def test_two_generators_of_one_network_in_one_backward_pass_leave_it_as_it_was():
    net = network().train()
    before = state_of(net)
    parts, images = [], []
    for made in (generator(net), generator(net)):
        parts.append(perturbations(made, 2, ["fc"])["fc"].requires_grad_())
        images.append(made(made.draw(range(2)), {"fc": parts[-1]}))
    sum(images).sum().backward()
    assert state_of(net) == before
    assert torch.equal(parts[0].grad, parts[1].grad)


@pytest.mark.parametrize("checkpointed", ["not reentrant", "reentrant"])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_inside_of_another_is_perturbed_once_or_refused(checkpointed):
    """A reentrant one inside of another runs a third time, in a backward pass of its own."""

    class Outer(nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.inner, self.checkpointed = nn.Linear(3, 4), nn.Linear(4, 4), checkpointed

        def forward(self, latent):
            def run(body, features):
                return checkpoint(body, features, use_reentrant=self.checkpointed == "reentrant") if self.checkpointed else body(features)

            nested = lambda features: run(lambda features: self.inner(features).tanh().square(), features.tanh()).exp()  # noqa: E731
            return run(nested, self.fc(latent)).view(-1, 1, 2, 2)

    slopes = []
    for kind in (None, checkpointed):
        made = Generator(Outer(kind), layers=["fc", "inner"], latent=3, values=None)
        parts = {"fc": torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).requires_grad_(), "inner": torch.ones(2, 4)}
        images = made(made.draw(range(2)), parts).square().sum()
        if kind == "reentrant":
            with pytest.raises(LayerError, match="'inner' runs without gradients, as inside a reentrant checkpoint"):
                images.backward()
            return
        slopes.append(torch.autograd.grad(images, parts["fc"])[0])
    assert torch.equal(*slopes)


class Breaks(torch.autograd.Function):
    """Does nothing, and fails on the way back while it is broken."""

    broken = False

    @staticmethod
    def forward(context, features):
        return features.clone()

    @staticmethod
    def backward(context, slope):
        if Breaks.broken:
            raise RuntimeError("broken on the way back")
        return slope


def fragile(checkpointed=None):
    net = network(checkpointed)
    net.blocks[0].register_forward_hook(lambda part, arguments, output: Breaks.apply(output))
    return net


def state_of(net):
    """Modes, flags, hooks and statistics."""
    flags = [part.training for part in net.modules()], [weight.requires_grad for weight in net.parameters()], hooks(net)
    return *flags, [part.flatten().tolist() for part in net.buffers()]


@pytest.mark.parametrize("where", ["in a search", "in use", "twice in use", "alone", "alone, then in use", "alone, and its graph dies"])
def test_a_backward_pass_that_fails_leaves_nothing_behind(where, monkeypatch):
    net = fragile()
    made = generator(net)
    latents, moved = made.draw(range(3)), perturbations(made, 3, ["fc"])["fc"].requires_grad_()
    clean, before = made(latents), state_of(net)
    images = made(latents, {"fc": moved})
    monkeypatch.setattr(Breaks, "broken", True)

    def fail():
        with pytest.raises(RuntimeError, match="broken"):
            images.sum().backward(retain_graph=True)

    if where == "in a search":
        victim = classifier(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)), name="victim")
        with pytest.raises(RuntimeError, match="broken") as caught:
            search(made, victim, latents, layers=["fc"], labels=victim(clean).argmax(1))  # of which none is reached at once
        assert caught.tb  # what failed is still there, its graph too
    elif where.endswith("in use"):
        if where == "alone, then in use":
            fail()
        with made.in_use():
            fail()
            if where == "twice in use":
                with made.in_use():
                    fail()
                assert not net.training  # the outer one goes on
                assert torch.equal(made(latents), clean)
    else:
        fail()
        if where == "alone":
            made(latents)
        else:
            del images
            gc.collect()
    assert state_of(net) == before
    monkeypatch.setattr(Breaks, "broken", False)
    inside = []
    watch = net.out.register_forward_hook(lambda part, arguments, output: inside.append((part.training, part.weight.requires_grad)))
    assert torch.equal(made(latents), clean)
    watch.remove()
    assert inside == [(False, False)]
    (slope,) = torch.autograd.grad(made(latents, {"fc": moved}).sum(), moved)
    (right,) = torch.autograd.grad(generator(fragile())(latents, {"fc": moved}).sum(), moved)
    assert torch.equal(slope, right)
    assert state_of(net) == before


def test_a_backward_pass_that_failed_can_be_tried_again(monkeypatch):
    net = fragile("not reentrant")
    made = generator(net, layers=["blocks.1.conv"])
    latents, moved = made.draw(range(2)), perturbations(made, 2, ["blocks.1.conv"])["blocks.1.conv"].requires_grad_()
    (right,) = torch.autograd.grad(made(latents, {"blocks.1.conv": moved}).square().sum(), moved)
    with monkeypatch.context() as broken:
        broken.setattr(Breaks, "broken", True)
        earlier = (2 * perturbations(made, 2, ["latent"])["latent"]).requires_grad_()
        images = made(latents, {"blocks.1.conv": moved, "latent": earlier})
        with pytest.raises(RuntimeError, match="broken"):
            images.square().sum().backward(retain_graph=True)
    (slope,) = torch.autograd.grad(images.square().sum(), moved)
    (once,) = torch.autograd.grad(made(latents, {"blocks.1.conv": moved, "latent": earlier}).square().sum(), moved)
    assert torch.equal(slope, once)
    assert not torch.equal(slope, right)
    assert hooks(net) == 1


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_layer_inside_a_reentrant_checkpoint_is_refused_and_one_around_it_is_right():
    net = network("reentrant")
    made = generator(net, layers=["blocks.1.conv"])
    moved = perturbations(made, 2)
    assert made(made.draw(range(2)), moved).isfinite().all()  # without gradients there is nothing to lose
    with pytest.raises(LayerError, match=r"'blocks\.1\.conv' runs without gradients.*use_reentrant=False"):
        made(made.draw(range(2)), {layer: part.requires_grad_() for layer, part in moved.items()})
    assert hooks(net) == 0
    around, plain = generator(net, layers=["blocks.0"]), generator(layers=["blocks.0"])
    slopes = []
    for one in (around, plain):
        part = perturbations(one, 2, ["blocks.0"])["blocks.0"].requires_grad_()
        one(one.draw(range(2)), {"blocks.0": part}).square().sum().backward()
        slopes.append(part.grad)
    assert torch.equal(*slopes)


@pytest.mark.parametrize("layers", [["a"], ["1", "2"]])
def test_a_generator_that_works_in_place_on_what_it_is_given_leaves_the_callers_latents(layers):
    class Sphere(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 4)

        def forward(self, latent, label):
            latent.div_(latent.detach().norm(dim=1, keepdim=True))
            label.mul_(0)
            return self.a(latent).view(-1, 1, 2, 2)

    torch.manual_seed(0)
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Tanh(), nn.Unflatten(1, (1, 2, 3)))
    options = {"layers": layers, "latent": 6, "values": None}
    made = Generator(Sphere(), classes=3, label="index", **options) if layers == ["a"] else Generator(first, **options)
    latents = made.draw(range(5))
    before = copy.deepcopy(latents)
    for moved in ({}, {"latent": torch.randn(5, 6, requires_grad=True)}):
        once, again = made(latents, moved), made(latents, moved)
        assert torch.equal(once, again)
        assert torch.equal(latents.latents, before.latents)
        assert made.classes is None or torch.equal(latents.classes, before.classes)
    drawn = made.draw([f"scale {place}" for place in range(64)]).latents
    torch.testing.assert_close(made.scales(per="neuron")["latent"], drawn.std(0), rtol=1e-4, atol=1e-6)
    given = Latents(ids=latents.ids, latents=latents.latents.clone().requires_grad_(), classes=latents.classes)
    assert torch.autograd.grad(made(given).sum(), given.latents)[0].abs().max() > 0


def test_several_latents_may_be_overwritten_too():
    class Two(nn.Module):
        def forward(self, one, other):
            return torch.cat([one.mul_(2), other.mul_(3)], 1).view(-1, 1, 1, 4)

    made = Generator(Two(), layers=[], latent=((2,), (2,)), values=None)
    latents, moved = made.draw(range(3)), torch.randn(3, 4, requires_grad=True)
    images = made(latents, {"latent": moved})
    factor = torch.tensor([2.0, 2.0, 3.0, 3.0])
    torch.testing.assert_close(images.flatten(1), (torch.cat(latents.latents, 1) + moved) * factor)
    assert torch.equal(torch.autograd.grad(images.sum(), moved)[0], factor.expand(3, 4))


class Batched(nn.Module):
    """Normalizes by the batch's own statistics, or by the item's."""

    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm, self.last = nn.Linear(6, 64), norm, nn.Conv2d(4, 1, 1)

    def forward(self, latent, *label):
        return self.last(self.norm(self.fc(latent).view(-1, 4, 4, 4)).relu()).tanh()


@pytest.mark.parametrize("given", ["by hand", "zeros", "drawn", "found by shapes"])
def test_a_generator_whose_images_depend_on_the_batch_is_refused_and_seeded_mends_it(given):
    """Case 7 of a review: one image alone cannot show it, nor can one beside a copy of itself."""
    net = Batched(nn.BatchNorm2d(4, track_running_stats=False))
    options = {"layers": ["fc", "norm"], "latent": 6}
    made, random = Generator(net, **options), torch.randn(1, 6)
    latents = {"by hand": Latents(ids=["a"], latents=random), "zeros": Latents(ids=["a"], latents=torch.zeros(1, 6))}
    with pytest.raises(
        GeneratorError, match=r"when others are drawn beside it \(apart by .*track_running_stats=True.*seeded=True.*each image alone"
    ):
        made.shapes() if given == "found by shapes" else made(latents.get(given, made.draw(range(3))))
    for fine in (nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)):
        assert Generator(Batched(fine), **options).shapes()["norm"] == (4, 4, 4)
    alone = Generator(net, seeded=True, **options)
    drawn, moved = alone.draw(range(4)), torch.randn(4, 4, 4, 4)
    torch.testing.assert_close(alone(drawn, {"norm": moved})[[2]], alone(drawn.select([2]), {"norm": moved[[2]]}), rtol=0, atol=1e-6)


def test_a_generator_that_draws_one_image_at_a_time_is_not_refused():
    class Single(nn.Module):
        def forward(self, latent):
            return latent.reshape(1, 1, 1, 3)

    made = Generator(Single(), layers=[], latent=3, values=None)
    latents = made.draw(range(2))
    assert torch.equal(made(latents.select([1])).flatten(), latents.latents[1])
    with pytest.raises(GeneratorError, match="failed on"):
        made(latents)


def test_other_content_is_found_for_a_code_too():
    class Codes(nn.Module):
        def __init__(self, norm):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.norm = nn.Embedding(5, 4), norm

        def forward(self, codes):
            return self.norm(self.table(codes)).flatten(1).view(-1, 1, 3, 4)

    latents = Latents(ids=["a"], latents=torch.tensor([[0, 3, 4]]))
    options = {"layers": ["table"], "latent": PickedLatents(torch.zeros(1, 3, dtype=torch.int64)), "values": None}
    with pytest.raises(GeneratorError, match="when others are drawn beside it"):
        Generator(Codes(nn.BatchNorm1d(3, track_running_stats=False)), **options)(latents)
    assert Generator(Codes(nn.LayerNorm(4)), **options)(latents).shape == (1, 1, 3, 4)


class Noisy(nn.Module):
    def __init__(self, strength=1.0):
        super().__init__()
        self.fc, self.strength = nn.Linear(3, 4), strength

    def forward(self, latent, noise=True):
        features = self.fc(latent)
        return (features + self.strength * torch.rand_like(features) if noise else features).view(-1, 1, 2, 2)


def test_a_generator_with_noise_of_its_own_is_refused_with_the_remedy():
    made = Generator(Noisy(), layers=["fc"], latent=3, values=None)
    with pytest.raises(GeneratorError, match=r"another image each time .*noise_mode.*seeded=True"):
        made(made.draw(range(2)))
    quiet = Generator(Noisy(), layers=["fc"], latent=3, values=None, keywords={"noise": False})
    assert torch.equal(quiet(quiet.draw(range(2))), quiet(quiet.draw(range(2))))


@pytest.mark.parametrize(("dtype", "strength"), [(torch.bfloat16, 0.4), (torch.float16, 0.05), (torch.float32, 1e-4)])
def test_noise_is_seen_in_half_precision_too(dtype, strength):
    torch.manual_seed(0)
    net = Noisy(strength).to(dtype)
    made = Generator(net, layers=["fc"], latent=3, values=None)
    with pytest.raises(GeneratorError, match="another image each time"):
        made(made.draw(range(2)))
    quiet = Generator(net, layers=["fc"], latent=3, values=None, keywords={"noise": False})
    assert quiet(quiet.draw(range(2))).isfinite().all()


def test_seeded_noise_belongs_to_the_id_whatever_the_batch_and_leaves_the_global_generator_alone():
    made = Generator(Noisy(), layers=["fc"], latent=3, values=None, seeded=True)
    latents, moved = made.draw(range(4)), torch.randn(4, 4)
    state = torch.get_rng_state()
    images = made(latents, {"fc": moved})
    torch.rand(7)
    turned = made(latents.select([3, 1]), {"fc": moved[[3, 1]]})
    assert torch.equal(turned, images[[3, 1]])
    torch.set_rng_state(state)
    made(latents)
    assert torch.equal(torch.get_rng_state(), state)
    noise = images.flatten(1) - made.module.fc(latents.latents) - moved
    assert len({tuple(row) for row in noise.mul(1e3).round().int().tolist()}) == 4


def test_seeded_noise_follows_the_seed_of_the_draw():
    made = Generator(Noisy(), layers=["fc"], latent=3, values=None, seeded=True)
    noise = []
    for seed in (0, 1, 0):
        latents = made.draw(range(3), seed=seed)
        noise.append(made(latents).flatten(1) - made.module.fc(latents.latents))
    torch.testing.assert_close(noise[0], noise[2])
    assert ((noise[0] - noise[1]).abs().amax(1) > 1e-2).all()


@pytest.mark.parametrize("batch", [1, 4])
def test_a_seeded_generator_may_be_checkpointed(batch):
    """Case 18 of a review: every image is a call of its own, and all of them are in one backward pass."""

    class Both(nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.checkpointed = nn.Linear(3, 4), nn.Linear(4, 4), checkpointed

        def body(self, latent):
            features = self.a(latent)
            return self.b((features + torch.randn_like(features)).tanh().square())

        def forward(self, latent):
            features = checkpoint(self.body, latent, use_reentrant=False) if self.checkpointed else self.body(latent)
            return (features + torch.randn_like(features)).tanh().view(-1, 1, 2, 2)

    weight, slopes, nets = torch.randn(4, 1, 2, 2), [], [Both(False), Both(True)]
    for net in nets:
        made = Generator(net, layers=["a"], latent=3, seeded=True)
        latents, moved = made.draw(range(4)), torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        for start in range(0, 4, batch):
            rows = slice(start, start + batch)
            (made(latents.select(rows), {"a": moved[rows]}) * weight[rows]).sum().backward()
        slopes.append(moved.grad)
        assert hooks(net) == 0
        assert all(part.requires_grad for part in net.parameters())
    torch.testing.assert_close(*slopes)
    assert slopes[0].abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_perturbations_stay_float32_and_are_cast_where_they_are_added(dtype):
    net = network().to(dtype)
    made = generator(net)
    latents = made.draw(range(4))
    moved = {layer: part.requires_grad_() for layer, part in perturbations(made, 4).items()}
    images = made(latents, moved)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert images.dtype == wanted
    torch.testing.assert_close(images.double(), by_hand(net, latents, moved), rtol=0, atol=64 * torch.finfo(dtype).eps)
    images.sum().backward()
    assert all(part.grad.dtype == torch.float32 and part.grad.abs().max() > 0 for part in moved.values())
    assert all(weight.dtype == dtype for weight in net.parameters())


# ── layers that cannot be ──


@pytest.mark.parametrize(("layer", "close"), [("blok.1", "blocks.1"), ("block.1", "blocks.1"), ("fcc", "fc")])
def test_a_layer_that_is_not_there_is_an_error_with_near_misses_and_the_list(layer, close):
    with pytest.raises(KeyError, match=rf"no layer is named '{layer}'; did you mean .*'{close}'") as caught:
        generator(layers=[layer])
    assert "blocks.2.norm" in str(caught.value)
    made = generator()
    with pytest.raises(LayerError, match=rf"did you mean .*'{close}'") as caught:
        made(made.draw([0]), {layer: torch.zeros(1)})
    assert "latent [6], fc [64], blocks.0 [4, 4, 4], blocks.1 [4, 4, 4], blocks.2 [4, 4, 4], image [2, 8, 8]" in str(caught.value)
    with pytest.raises(LayerError, match=f"'{close}'"):
        made.groups({"mine": [layer]})


def test_patterns_stand_for_one_part_of_a_name_and_keep_the_networks_order():
    assert generator(layers=["blocks.*"]).layers == ("latent", "blocks.0", "blocks.1", "blocks.2", "image")
    assert generator(layers=["fc", "blocks.[02].conv"]).layers == ("latent", "fc", "blocks.0.conv", "blocks.2.conv", "image")
    with pytest.raises(LayerError, match=r"no layer is named 'blocks\.\*\.nrm'"):
        generator(layers=["blocks.*.nrm"])
    with pytest.raises(LayerError, match=r"names 'blocks\.1' twice"):
        generator(layers=["blocks.*", "blocks.1"])
    with pytest.raises(ValueError, match="expected a list of names"):
        generator(layers="blocks.1")


def test_what_can_be_a_layer_is_listed_with_shapes():
    listed = generator(layers=[]).submodules()
    assert listed["blocks.1.norm"] == (4, 4, 4)
    assert listed["fc"] == (64,)
    assert "blocks" not in listed  # a list, which never runs


class Odd(nn.Module):
    """A layer that never runs, one that runs twice, one that returns a pair, one without rows."""

    def __init__(self):
        super().__init__()
        self.idle, self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.constant = nn.Sequential(nn.Identity())

        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, features):
                return self.inner(features), None

        self.pair = Pair()

    def forward(self, latent):
        features = self.pair(self.twice(self.twice(latent)))[0]
        return (self.last(features) + self.constant(self.last.bias)).view(-1, 1, 2, 2)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("idle", "'idle' is never reached"),
        ("twice", "'twice' runs 2 times in one pass"),
        ("pair", r"'pair' returns a tuple; .*name one of its parts \(inner\)"),
        ("constant", r"'constant' gives shape \[4\] for one image"),
    ],
)
def test_a_layer_that_cannot_be_perturbed_says_why(layer, message):
    net = Odd()
    made = Generator(net, layers=[layer], latent=4, values=None)
    for call in (lambda: made(made.draw([0]), {layer: torch.zeros(1, 4)}), made.shapes):
        with pytest.raises(LayerError, match=message):
            call()
    assert hooks(net) == 0
    assert Generator(net, layers=[], latent=4, values=None).submodules()["twice"] is None
    fine = Generator(net, layers=["pair.inner", "last"], latent=4, values=None)
    assert fine(fine.draw(range(3)), {"pair.inner": torch.ones(3, 4)}).shape == (3, 1, 2, 2)


def test_a_layer_that_is_reached_only_at_times_is_found_in_the_call():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra, self.skips = nn.Linear(4, 4), False

        def forward(self, latent):
            return (latent if self.skips else self.extra(latent)).view(-1, 1, 2, 2)

    made = Generator(Fickle(), layers=["extra"], latent=4, values=None)
    latents = made.draw(range(2))
    made(latents)
    made.module.skips = True
    with pytest.raises(LayerError, match="'extra' is never reached"):
        made(latents, {"extra": torch.zeros(2, 4)})


@pytest.mark.parametrize("name", ["latent", "image"])
@pytest.mark.parametrize("layers", [None, "named", ["*"]])
def test_a_submodule_of_the_name_of_an_end_is_refused_as_a_layer(name, layers):
    """Case 6 of a review: its perturbation went to the latent or the image, or both."""
    net = nn.Sequential()
    net.add_module("first", nn.Linear(4, 4))
    net.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    net.add_module("last", nn.Unflatten(1, (1, 2, 2)))
    message = (
        rf"a submodule is named '{name}', which stands for what the network .*rename the submodule, or name a part .*{name}\.0, {name}\.1"
    )
    with pytest.raises(LayerError, match=message):
        Generator(net, layers=[name] if layers == "named" else layers, latent=4)
    made = Generator(net, layers=["first", f"{name}.1"], latent=4)
    assert made.shapes()[f"{name}.1"] == (4,)
    setattr(net, name, net.get_submodule(name)[0])
    with pytest.raises(LayerError, match=r"instead \(it has none\)"):
        Generator(net, layers=[name], latent=4)
    assert Generator(net, layers=[], latent=4, latent_layer=name if name == "latent" else None).layers == ("latent", "image")


def test_two_names_of_one_module_are_refused():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.again = nn.Linear(4, 4)

        def forward(self, latent):
            return self.again(latent).view(-1, 1, 2, 2)

    with pytest.raises(LayerError, match="layers 'a' and 'again' are one module of two names; name it once"):
        Generator(Shared(), layers=["a", "again"], latent=4)
    made, moved = Generator(Shared(), layers=["again"], latent=4, values=None), torch.ones(2, 4)
    latents = made.draw(range(2))
    torch.testing.assert_close(made(latents, {"again": moved}) - made(latents), moved.view(2, 1, 2, 2))


@pytest.mark.filterwarnings("error:Casting complex values")
def test_layers_of_complex_numbers_are_refused_and_those_around_are_right():
    class Spectrum(nn.Module):
        def forward(self, features):
            return torch.fft.fft(features)

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.spectrum, self.last = nn.Linear(3, 4), Spectrum(), nn.Linear(4, 4)

        def forward(self, latent):
            return self.last(torch.fft.ifft(self.spectrum(self.fc(latent))).real).view(-1, 1, 2, 2)

    made = Generator(Spectral(), layers=["fc", "spectrum"], latent=3, values=None)
    for use in (made.shapes, made.scales, lambda: made(made.draw([0]), {"spectrum": torch.zeros(1, 4)})):
        with pytest.raises(LayerError, match="'spectrum' holds complex numbers, which cannot be perturbed: name a layer before or after"):
            use()
    with pytest.raises(LayerError, match="'x' holds complex numbers"):
        add("x", torch.zeros(1, 4, dtype=torch.complex64), torch.zeros(1, 4))
    around = Generator(made.module, layers=["fc", "last"], latent=3, values=None)
    assert around(around.draw(range(2)), {"fc": torch.ones(2, 4)}).shape == (2, 1, 2, 2)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Unflatten(1, (1, 2, 2)))


def compiled_in_place(net):
    net.compile(backend="eager")
    return net


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "compiled",
            r"compiled, so no hook is called in it: give the eager network, which is its _orig_mod, or .*latent and the image alone",
        ),
        ("compiled in place", r"compiled, .*: give the eager network, on which compile\(\) was not called, or "),
        ("traced", "traced or scripted, so no hook is called in it: give the network that it was made of, or "),
        ("scripted", "traced or scripted, so no hook is called in it: give the network that it was made of, or "),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_compiled_and_scripted_networks_are_refused_for_inner_layers_and_serve_without(how, message):
    made = {
        "compiled": lambda: torch.compile(small(), backend="eager"),
        "compiled in place": lambda: compiled_in_place(small()),
        "traced": lambda: torch.jit.trace(small().eval(), torch.zeros(2, 4)),
        "scripted": lambda: torch.jit.script(small()),
    }[how]
    names = ["_orig_mod.1"] if how == "compiled" else ["1"]
    net = made()
    for layers in (names, None):
        with pytest.raises(LayerError, match=message):
            Generator(net, layers=layers, latent=4)
    with pytest.raises(LayerError, match=message):
        Generator(net, layers=[], latent=4, latent_layer=names[0])
    ends, plain = Generator(net, layers=[], latent=4), Generator(small(), layers=[], latent=4)
    latents, moved = plain.draw(range(3)), {"latent": torch.ones(3, 4), "image": torch.full((3, 1, 2, 2), 0.1)}
    torch.testing.assert_close(ends(latents, moved), plain(latents, moved))


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_parts_that_are_compiled_or_scripted_are_refused_where_they_hold_a_layer_only():
    def whole(part):
        return nn.Sequential(part, nn.Tanh(), nn.Unflatten(1, (1, 2, 2)))

    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    scripted = whole(torch.jit.script(part))
    for layer in ("0", "0.1"):
        with pytest.raises(LayerError, match=r"traced or scripted, .*give that part of the network that it was made of"):
            Generator(scripted, layers=[layer], latent=4)
    compiled = whole(torch.compile(part, backend="eager"))
    with pytest.raises(LayerError, match="give that part of the eager network"):
        Generator(compiled, layers=["0._orig_mod.1"], latent=4)
    right = Generator(whole(part), layers=["0", "1"], latent=4)
    latents, moved = right.draw(range(2)), {"0": torch.ones(2, 4), "1": torch.ones(2, 4)}
    torch.testing.assert_close(Generator(compiled, layers=["0", "1"], latent=4)(latents, moved), right(latents, moved))
    moved.pop("0")
    torch.testing.assert_close(Generator(scripted, layers=["1"], latent=4)(latents, moved), right(latents, moved))


class Dropping(nn.Module):
    """Calls ``relu`` for what it does to its argument, and ``aside`` for nothing."""

    def __init__(self, inplace=True):
        super().__init__()
        self.fc, self.relu, self.aside, self.out = nn.Linear(3, 4), nn.ReLU(inplace), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, latent):
        features = self.fc(latent)
        self.relu(features)
        self.aside(features)
        return self.out(features).view(-1, 1, 2, 2)


@pytest.mark.parametrize("seeded", [False, True])
def test_a_layer_whose_output_is_dropped_is_refused(seeded):
    torch.manual_seed(0)
    for layers, lost in ((["fc", "relu"], "relu"), (["fc", "aside"], "aside")):
        made = Generator(Dropping(), layers=layers, latent=3, seeded=seeded)
        for use in (made.shapes, lambda made=made: made(made.draw(range(2)))):
            with pytest.raises(
                LayerError, match=rf"'{lost}' cannot be perturbed: .* moves no bit .*its return is dropped.*name the layer around"
            ):
                use()
    assert list(Generator(Dropping(), layers=["fc", "out"], latent=3).shapes()) == ["latent", "fc", "out", "image"]


def test_a_layer_that_moves_the_image_one_way_only_or_out_of_the_range_is_none_of_these():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, latent):
            return 2 + (-self.fc(latent)).relu().expand(-1, 4).reshape(-1, 1, 2, 2)  # white, whatever is added

    made = Generator(Gated(), layers=["fc"], latent=3)
    made.module.fc.weight.data.fill_(0.1)
    made.module.fc.bias.data.fill_(5.0)
    assert (made(made.draw(range(2))) == 1).all()


def test_the_check_of_what_moves_costs_a_pass_a_layer_once():
    net = network()
    made = generator(net)
    made(made.draw(range(2)))
    assert len(net.calls) == 2 + 2 + len(LAYERS) + 1  # shapes and again, beside a copy and beside another, layers, and the call
    made.shapes(made.draw(range(2)))
    made(made.draw(range(2)))
    assert len(net.calls) == 2 + 2 + len(LAYERS) + 1 + 2 + 1


def test_layers_in_another_order_than_they_run_are_refused():
    with pytest.raises(LayerError, match=r"run in the order \['fc', 'blocks\.0'\]"):
        generator(layers=["blocks.0", "fc"]).shapes()


def test_a_perturbation_of_another_shape_is_refused_and_hooks_are_gone():
    made = generator()
    latents = made.draw(range(2))
    for layer, shape in {"fc": (2, 63), "blocks.1": (1, 4, 4, 4), "image": (2, 1, 8, 8), "latent": (6,)}.items():
        with pytest.raises(LayerError, match=f"perturbation of layer '{layer}' has shape"):
            made(latents, {layer: torch.zeros(shape)})
    assert hooks(made.module) == 0


def test_hooks_are_gone_and_modes_are_back_when_the_network_fails():
    net = network().train()
    made = generator(net)
    latents, moved = made.draw(range(2)), perturbations(made, 2)

    def fail(part, arguments):
        raise RuntimeError("out of luck")

    handle = net.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(
        GeneratorError, match=r"generator 'generator' failed on float32 \[2, 6\], float32 \[2, 3\]: RuntimeError: out of luck"
    ):
        made(latents, moved)
    handle.remove()
    assert hooks(net) == 0
    assert all(part.training for part in net.modules())
    assert all(weight.requires_grad for weight in net.parameters())
    torch.testing.assert_close(made(latents, moved).double(), by_hand(net, latents, moved), rtol=0, atol=2e-6)


def test_what_gives_no_images_is_refused():
    made = Generator(nn.Linear(3, 4), layers=[], latent=3)
    with pytest.raises(GeneratorError, match=r"gave shape \[1, 4\]; expected \[1, channel, height, width\]"):
        made(made.draw([0]))

    class Two(nn.Module):
        def forward(self, latent):
            return {"sample": latent.view(-1, 1, 1, 3), "more": None}

    made = Generator(Two(), layers=[], latent=3, values=None)
    with pytest.raises(GeneratorError, match="returned a dict, and output=None selects no tensor"):
        made(made.draw([0]))
    picked = Generator(Two(), layers=[], latent=3, values=None, output="sample")
    assert torch.equal(picked(picked.draw([0])).flatten(), picked.draw([0]).latents.flatten())
    broken = Generator(nn.Sequential(nn.Unflatten(1, (1, 1, 3)), nn.Threshold(9.0, torch.nan)), layers=[], latent=3)
    with pytest.raises(GeneratorError, match="draws NaN or infinity"):
        broken(broken.draw([0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent": 0}, "latent is 0; expected a shape"),
        ({"latent": ()}, "expected a shape"),
        ({"latent": True}, "latent is True; expected a shape"),
        ({"latent": (True, 2)}, r"latent is \(True, 2\); expected a shape"),
        ({"latent": ((3,), ((1,), (2,)))}, "its parts must be shapes or functions.*side by side"),
        ({"latent": {"z": {"w": 3}}}, "its parts must be shapes or functions.*side by side"),
        ({"latent": ({"w": 3}, 2)}, "its parts must be shapes or functions.*side by side"),
        ({"latent": {"z": 6, "w": 3}, "keywords": {"z": 1}}, "keywords or label_keyword name 'z', which latent draws"),
        ({"latent": {"z": 6, "w": 3}, "label_keyword": "w"}, "keywords or label_keyword name 'w', which latent draws"),
        ({"label": "onehot"}, "label is 'onehot'"),
        ({"values": (1, -1)}, "lowest must be below"),
        ({"classes": 0}, "classes is 0"),
        ({"method": "decode"}, "Net has no such method"),
        ({"latent": ((3,), (3,)), "latent_layer": "fc"}, "the latents are several"),
        ({"latent_layer": "fcc"}, "did you mean 'fc'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises((ValueError, LayerError), match=message):
        generator(**options)
    with pytest.raises(ValueError, match="wraps a torch module"):
        Generator(len, latent=3)


# ── latents and classes ──


def test_tuple_and_dict_latents_are_arguments_and_keywords_and_one_activation():
    class Two(nn.Module):
        def forward(self, z, w):
            return torch.cat([z.flatten(1), 10 * w.flatten(1)], 1).view(-1, 1, 1, 7)

    listed = Generator(Two(), layers=[], latent=((3,), (2, 2)), values=None)
    named = Generator(Two(), layers=[], latent={"w": (2, 2), "z": 3}, values=None)
    one, other = listed.draw(range(4)), named.draw(range(4))
    assert [part.shape for part in one.latents] == [(4, 3), (4, 2, 2)]
    assert not torch.equal(one.latents[0][:, :2], one.latents[1].flatten(1)[:, :2])  # parts have streams of their own
    assert listed.shapes()["latent"] == named.shapes()["latent"] == (7,)
    moved = torch.randn(4, 7)
    difference = listed(one, {"latent": moved}) - listed(one)
    torch.testing.assert_close(difference.flatten(1), moved * torch.tensor([1.0] * 3 + [10.0] * 4), rtol=1e-4, atol=1e-5)
    difference = named(other, {"latent": moved}) - named(other)  # w comes first here
    torch.testing.assert_close(difference.flatten(1), torch.cat([moved[:, 4:], 10 * moved[:, :4]], 1), rtol=1e-4, atol=1e-5)
    known = {"a": [1.0] * 3, "b": [2.0] * 3}
    looked = Generator(Two(), layers=[], latent=(lambda random, ids: torch.tensor([known[name] for name in ids]), (2, 2)), values=None)
    assert looked.draw("ba").latents[0].tolist() == [known["b"], known["a"]]
    some = other.select([2, 0])
    assert some.ids == ("2", "0")
    assert torch.equal(named(some), named(other)[[2, 0]])


def test_whole_numbers_among_the_latents_are_left_alone():
    class Stepped(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4)

        def forward(self, step, z):
            return (self.table(step) + z).view(-1, 1, 2, 2)

    made = Generator(Stepped(), layers=["table"], latent=(PickedLatents(torch.arange(5)), (4,)), values=None)
    latents, moved = made.draw(range(6)), torch.randn(6, 4)
    assert latents.latents[0].dtype == torch.int64
    torch.testing.assert_close(made(latents, {"latent": moved}) - made(latents), moved.view(-1, 1, 2, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_latents_of_whole_numbers_alone_cannot_be_perturbed_and_other_layers_can(several):
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.codes, self.out = nn.Embedding(9, 4), nn.Identity(), nn.Linear(4, 4)

        def forward(self, first, second=0):
            return self.out(self.table(self.codes(first + second))).view(-1, 1, 2, 2)

    torch.manual_seed(0)
    codes = PickedLatents(torch.arange(5))
    options = {"latent": (codes, codes) if several else codes, "values": None}
    made = Generator(Coded(), layers=["table"], **options)
    latents = made.draw(range(6))
    with pytest.raises(LayerError, match=r"'latent' holds whole numbers.*what embeds them"):
        made(latents, {"latent": torch.zeros(6, *made.shapes()["latent"])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scales = made.scales()
        assert made.groups() == {"middle": ("table",), "pixels": ("image",)}
    assert made.groups({"asked": ["latent"]}) == {"asked": ("latent",)}  # and refused where it is perturbed
    assert scales["table"] > 0
    moved = torch.randn(6, 4)
    torch.testing.assert_close(made(latents, {"table": moved}) - made(latents), (moved @ made.module.out.weight.T).view(-1, 1, 2, 2))
    with pytest.raises(LayerError, match="'codes' holds whole numbers"):
        Generator(Coded(), layers=["codes"], **options).shapes()


@pytest.mark.parametrize("label", ["one_hot", "index", "own", "keyword"])
def test_classes_go_to_the_network_as_it_wants_them(label):
    class Labelled(nn.Module):
        def forward(self, latent, wanted=None):
            self.wanted = wanted
            return latent.view(-1, 1, 1, 3)

    options = {"own": {"label": lambda classes: classes[:, None] * 2.0}, "keyword": {"label": "index", "label_keyword": "wanted"}}
    made = Generator(Labelled(), layers=[], latent=3, classes=4, **options.get(label, {"label": label}))
    made(made.draw(range(3), classes=[2, 0, 3]))
    right = {"one_hot": torch.eye(4)[[2, 0, 3]], "own": torch.tensor([[4.0], [0.0], [6.0]])}.get(label, torch.tensor([2, 0, 3]))
    assert torch.equal(made.module.wanted, right)
    assert made.module.wanted.dtype == right.dtype


def test_latents_by_hand_that_are_none_are_refused():
    kept = {"ids": ["a", "b"], "latents": torch.zeros(2, 6)}
    made = generator()
    for kind in (torch.uint8, torch.int32, torch.int64):
        given = Latents(**kept, classes=torch.tensor([2, 0], dtype=kind))
        assert given.classes.dtype == torch.int64
        assert torch.equal(made(given), made(Latents(**kept, classes=torch.tensor([2, 0]))))
    for wrong in (torch.tensor([1.0, 2.0]), torch.tensor([True, False]), torch.zeros(2, 3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"classes is \w+ \[2.*\]; expected whole numbers \[batch\]"):
            Latents(**kept, classes=wrong)
    with pytest.raises(ValueError, match=r"classes is \[0, 1\]; expected a tensor \[batch\] of whole numbers, such as torch.tensor"):
        Latents(**kept, classes=[0, 1])
    for outside in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match=f"classes holds {3 if 3 in outside else -1}; generator 'generator' has classes 0 to 2"):
            made(Latents(**kept, classes=torch.tensor(outside)))
    for wrong in ([1.0, 2.0], 3, None, {"z": [1.0]}, [torch.zeros(2), 1]):
        with pytest.raises(ValueError, match=r"latents is .*; expected a tensor \[batch, \*latent\], or a tuple or a dict of such"):
            Latents(ids=["a", "b"], latents=wrong)
    with pytest.raises(ValueError, match=r"have \[None\] rows for 2 ids"):
        Latents(ids=["a", "b"], latents=torch.tensor(1.0))


def test_seeds_are_whole_numbers_and_latents_keep_theirs():
    made = generator()
    for wrong in (1.5, "1", True, None):
        with pytest.raises(ValueError, match=f"seed is {wrong!r}; expected a whole number"):
            made.draw([0], seed=wrong)
        with pytest.raises(ValueError, match="expected a whole number"):
            made.scales(seed=wrong)
    drawn = made.draw(range(3), seed=np.int64(7))
    assert torch.equal(drawn.latents, made.draw(range(3), seed=7).latents)
    assert drawn.seed == drawn.select([1]).seed == drawn.to("cpu").seed == 7
    assert generator(classes=None).draw([0], seed=3).seed == 3
    assert Latents(ids=["a"], latents=torch.zeros(1, 6)).seed == 0
    same = [Latents(ids=["a"], latents=torch.zeros(1, 6), seed=seed) for seed in (0, 0, 1)]
    assert fingerprint(same[0]) == fingerprint(same[1]) != fingerprint(same[2])


def test_classes_that_are_not_there_are_refused():
    made = generator()
    assert made.draw(range(3), classes=2).classes.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="classes holds 3; generator 'generator' has classes 0 to 2"):
        made.draw(range(2), classes=[0, 3])
    assert made.draw(range(2), classes=torch.tensor([2, 1], dtype=torch.uint8)).classes.tolist() == [2, 1]
    for wrong in (torch.tensor([1.9, 0.2]), [1.0, 2.0], 1.0, [True, False], True):
        with pytest.raises(ValueError, match="expected whole numbers, the indices of classes 0 to 2"):
            made.draw(range(2), classes=wrong)
    with pytest.raises(ValueError, match=r"classes has shape \[3\] for 4 ids; give one class an id, or one number for all"):
        made.draw(range(4), classes=[1, 2, 0])
    with pytest.raises(ValueError, match="needs them"):
        made(Latents(ids=["a"], latents=torch.zeros(1, 6)))
    with pytest.raises(ValueError, match="has none"):
        Generator(nn.Unflatten(1, (1, 1, 3)), layers=[], latent=3).draw([0], classes=1)
    with pytest.raises(ValueError, match=r"\[1, 2\] rows for 2 ids"):
        Latents(ids=["a", "b"], latents=torch.zeros(1, 6), classes=torch.zeros(2))


def test_extra_arguments_are_the_same_in_every_call_and_are_recorded():
    """Case 126: a truncation that is passed to some calls only makes other images."""
    net = network()
    made = generator(net, arguments=(0.4,), keywords={"mode": "const"}, latent=Normal((6,), deviation=0.4, cut=2.0))
    latents = made.draw(range(4))
    moved = {layer: part.requires_grad_() for layer, part in perturbations(made, 4).items()}
    made(latents)
    made(latents, moved).sum().backward()
    made.scales(draws=4)
    assert len(net.calls) >= 4
    assert all(call == ((0.4,), {"mode": "const"}) for call in net.calls)
    record = json.loads(json.dumps(made.describe()))
    assert record["arguments"] == [0.4]
    assert record["keywords"] == {"mode": "const"}
    assert record["latent"] == "Normal(shape=(6,), mean=0.0, deviation=0.4, cut=2.0)"
    assert record["layers"] == ["latent", *LAYERS, "image"]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), order=st.permutations(range(6)))
def test_a_draw_belongs_to_its_id_and_seed(seed, order):
    made = generator(latent={"latent": 6}, layers=[])
    whole, turned = made.draw(range(6), seed=seed), made.draw(order, seed=seed)
    assert torch.equal(turned.latents["latent"], whole.latents["latent"][list(order)])
    assert torch.equal(turned.classes, whole.classes[list(order)])
    assert not torch.equal(made.draw(range(6), seed=seed + 1).latents["latent"], whole.latents["latent"])


def test_draws_follow_their_distributions():
    ids = range(4000)
    made = generator(latent=Normal((2,), deviation=0.4, cut=2.0), layers=[])
    drawn = made.draw(ids)
    assert drawn.latents.abs().max() <= 0.8
    assert scipy.stats.kstest(drawn.latents.flatten().numpy(), scipy.stats.truncnorm(-2, 2, scale=0.4).cdf).pvalue > 1e-3
    assert scipy.stats.chisquare(torch.bincount(drawn.classes, minlength=3).numpy()).pvalue > 1e-3
    plain = generator(latent=2, layers=[]).draw(ids).latents
    assert scipy.stats.kstest(plain.flatten().numpy(), "norm").pvalue > 1e-3
    shifted = generator(latent=Normal((2,), mean=3.0, deviation=2.0), layers=[]).draw(ids).latents
    assert scipy.stats.kstest(shifted.flatten().numpy(), scipy.stats.norm(3, 2).cdf).pvalue > 1e-3
    picked = generator(latent=PickedLatents(torch.arange(5.0)[:, None].expand(5, 6)), layers=[]).draw(ids).latents
    assert scipy.stats.chisquare(torch.bincount(picked[:, 0].long(), minlength=5).numpy()).pvalue > 1e-3
    with pytest.raises(ValueError, match="both must be positive"):
        Normal((2,), deviation=0.0)
    with pytest.raises(ValueError, match=r"latent drew \[2\] for 3 ids"):
        generator(latent=lambda random, ids: torch.zeros(2), layers=[]).draw(range(3))


def test_values_can_be_pickled_and_a_generator_with_them():
    made = generator()
    latents = made.draw(range(3))
    again, other = pickle.loads(pickle.dumps((made, latents)))
    assert torch.equal(again(other), made(latents))
    assert again.layers == made.layers
    for value in (Normal((3,), cut=2.0), PickedLatents(torch.randn(4, 3))):
        assert pickle.loads(pickle.dumps(value)) == value
        assert hash(value) == hash(pickle.loads(pickle.dumps(value)))
    assert made.fingerprint == again.fingerprint
    assert made.fingerprint != generator(arguments=(1,)).fingerprint
    assert made.fingerprint != generator(network(seed=1)).fingerprint


def test_rows_of_latents_are_chosen_by_position_slice_or_mask():
    latents = generator().draw("abcd")
    mask = [False, True, False, True]
    for rows in (
        [1, 3],
        slice(1, None, 2),
        range(1, 4, 2),
        torch.tensor([1, 3]),
        torch.tensor(mask),
        [-3, -1],
        mask,
        np.array(mask),
        np.array([1, 3]),
    ):
        some = latents.select(rows)
        assert some.ids == ("b", "d")
        assert torch.equal(some.latents, latents.latents[[1, 3]])
        assert torch.equal(some.classes, latents.classes[[1, 3]])
    assert len(latents.select([])) == len(latents.select([False] * 4)) == 0
    for rows in ([True, False], torch.tensor([True] * 5)):
        with pytest.raises(ValueError, match=r"rows is a mask of shape \[.\] for 4 latents; expected one truth value each"):
            latents.select(rows)
    with pytest.raises(ValueError, match="expected positions"):
        latents.select([0.5, 1.0])
    with pytest.raises(IndexError):
        latents.select([4])


# ── scales and groups ──


def test_scales_are_the_deviations_of_all_draws_at_once():
    net = network()
    made = generator(net)
    draws = made.draw([f"scale {place}" for place in range(50)], seed=7)
    neurons, layers = made.scales(draws=50, seed=7, per="neuron"), made.scales(draws=50, seed=7)
    kept = {}
    handles = [
        net.get_submodule(layer).register_forward_hook(lambda *call, at=layer: kept.update({at: call[2].clone()})) for layer in LAYERS
    ]
    kept |= {"image": made(draws), "latent": draws.latents}
    for handle in handles:
        handle.remove()
    for layer in made.layers:
        deviation = kept[layer].double().std(0)
        torch.testing.assert_close(neurons[layer].double(), deviation, rtol=1e-5, atol=1e-7)
        assert layers[layer] == pytest.approx(deviation.square().mean().sqrt().item(), rel=1e-5)
    for layer, value in made.scales(draws=50, seed=7, batch=7).items():
        assert value == pytest.approx(layers[layer], rel=1e-5)
    assert hooks(net) == 0


def test_scales_of_some_layers_are_those_alone_without_warnings_of_others():
    made = generator()
    with pytest.warns(RobustnessWarning, match="of layer 'blocks") as said:
        whole = made.scales(draws=8, per="neuron")
    assert {Path(warning.filename).name for warning in said} == {"test_generators.py"}
    for layers, wanted in (
        (["image"], ["image"]),
        (["latent"], ["latent"]),
        (["blocks.1", "fc"], ["fc", "blocks.1"]),
        (["blocks.*", "image"], ["blocks.0", "blocks.1", "blocks.2", "image"]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if layers in (["image"], ["latent"]) else "ignore")
            some = made.scales(draws=8, per="neuron", layers=layers)
        assert list(some) == wanted
        assert all(torch.equal(some[layer], whole[layer]) for layer in wanted)
    with pytest.raises(LayerError, match="no layer is named 'blocks'"):
        made.scales(layers=["blocks"])
    with pytest.raises(ValueError, match="at least one"):
        made.scales(layers=[])
    made.module.calls.clear()
    made.scales(layers=["latent"])
    assert not made.module.calls


def test_what_never_varies_is_said():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.still = nn.Linear(3, 4), nn.Threshold(1e9, 0.0)

        def forward(self, latent):
            features = self.fc(latent)
            return (features + self.still(features)).view(-1, 1, 2, 2)

    made = Generator(Half(), layers=["fc", "still"], latent=3, values=None)
    made.module.fc.weight.data[1] = 0
    with pytest.warns(RobustnessWarning, match="layer 'still' never varies: its scale is set to 1") as said:
        assert made.scales()["still"] == 1.0
    assert len(said) == 1
    with pytest.warns(RobustnessWarning, match=r"1 of 4 neurons of layer '(fc|image)' never vary|'still' never varies.* set to 1") as said:
        scales = made.scales(per="neuron")
    assert len(said) == 3
    assert scales["still"].tolist() == [1, 1, 1, 1]
    assert (scales["fc"] == 0).tolist() == [False, True, False, False]
    for options, message in (({"draws": 1}, "at least two"), ({"per": "image"}, "per is 'image'"), ({"batch": 0}, "batch is 0")):
        with pytest.raises(ValueError, match=message):
            made.scales(**options)


@pytest.mark.parametrize(
    ("inner", "sizes"),
    [(0, (0, 0, 0)), (1, (0, 1, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (4, (1, 2, 1)), (5, (2, 1, 2)), (6, (2, 2, 2)), (16, (5, 6, 5))],
)
def test_groups_by_thirds_hold_every_layer_once_from_coarse_to_fine(inner, sizes):
    net = nn.Sequential(*[nn.Identity() for _ in range(inner)], nn.Unflatten(1, (1, 2, 2)))
    made = Generator(net, layers=[str(place) for place in range(inner)], latent=4)
    groups = made.groups()
    assert sum(groups.values(), ()) == made.layers
    assert tuple(len(groups.get(name, ())) for name in ("early", "middle", "late")) == sizes
    assert groups["latent"] == ("latent",)
    assert groups["pixels"] == ("image",)


def test_groups_of_ones_own_are_checked():
    made = generator()
    own = made.groups({"coarse": ["blocks.0", "latent"], "blocks": ["blocks.*"], "all": made.layers})
    assert own == {"coarse": ("latent", "blocks.0"), "blocks": ("blocks.0", "blocks.1", "blocks.2"), "all": made.layers}
    with pytest.raises(ValueError, match="at least one"):
        made.groups({"none": []})
    with pytest.raises(ValueError, match=r"groups is \{\}; expected at least one group"):
        made.groups({})


# ── finding blocks ──


def test_blocks_are_found_in_what_holds_the_weights():
    assert find_layers(network()) == ["blocks.0", "blocks.1", "blocks.2"]
    deconvolutions = nn.Sequential(
        nn.ConvTranspose2d(8, 8, 4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 1),
        nn.Tanh(),
    )
    assert find_layers(deconvolutions) == ["2", "5"]  # after each activation; the last unit draws the image
    assert find_layers(nn.Sequential(nn.Unflatten(1, (8, 1, 1)), *deconvolutions)) == ["3", "6"]  # a view of the latent is none
    wrapped = nn.Module()
    wrapped.main, wrapped.mapping = deconvolutions, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert find_layers(wrapped) == ["main.2", "main.5"]
    assert find_layers(wrapped, "mapping") == ["mapping.0"]
    whole = nn.Sequential(Block(), Block(), nn.Sequential(nn.Conv2d(4, 1, 1), nn.Tanh()))
    assert find_layers(whole) == ["0", "1"]
    wrapped.decoder = whole
    assert find_layers(wrapped, "decoder") == ["decoder.0", "decoder.1"]
    with pytest.raises(LayerError, match="no chain of blocks"):
        find_layers(nn.Linear(2, 2))
    made = Generator(deconvolutions, latent=(8, 1, 1))
    assert made.groups() == {"latent": ("latent",), "early": ("2",), "late": ("5",), "pixels": ("image",)}
    assert made(made.draw(range(2))).shape == (2, 3, 7, 7)


@pytest.mark.parametrize(
    "norm",
    [nn.utils.spectral_norm, nn.utils.weight_norm, nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.weight_norm, "both"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_blocks_are_the_same_however_a_norm_of_the_weights_is_written(norm):
    """Case 12 of a review: parametrized ones made every operation a layer."""

    def both(part):
        return nn.utils.parametrizations.spectral_norm(nn.utils.parametrizations.orthogonal(part))

    normed = both if norm == "both" else norm
    parts = nn.ConvTranspose2d(8, 8, 4), nn.ConvTranspose2d(8, 4, 4), nn.Conv2d(4, 1, 1)
    first, second, last = map(normed, parts)
    net = nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(4), nn.ReLU(), last, nn.Tanh())
    made = Generator(net, latent=(8, 1, 1))
    assert find_layers(net) == ["2", "5"]
    assert set(made.submodules()) == {str(place) for place in range(8)}
    assert made(made.draw(range(2)), {"2": torch.ones(2, 8, 4, 4)}).shape == (2, 1, 7, 7)
    with pytest.raises(LayerError, match="no layer is named"):
        Generator(net, layers=["0.parametrizations"], latent=(8, 1, 1))


# ── what a newcomer tries ──


def test_a_number_of_ids_stands_for_its_range():
    made = generator()

    for count in (4, np.int64(4)):
        drawn = made.draw(count, seed=3)
        assert drawn.ids == ("0", "1", "2", "3")
        assert torch.equal(drawn.latents, made.draw(range(4), seed=3).latents)
    with pytest.raises(ValueError, match="ids is 0; at least one is needed"):
        made.draw(0)


def test_a_tensor_is_no_latents():
    with pytest.raises(
        ValueError, match=r"latents is a Tensor; expected Latents, such as generator.draw\(range\(5\)\), or.*PickedLatents\("
    ):
        generator()(torch.randn(5, 6))


def test_groups_are_a_mapping():
    with pytest.raises(ValueError, match=r"groups is \['fc', 'image'\]; expected a mapping \{name: layers\}, such as \{'coarse': \[…\]\}"):
        generator().groups(["fc", "image"])


class Conditional(nn.Module):
    """Three ways in which networks take the index of a class."""

    def __init__(self, how):
        super().__init__()
        self.how, self.table = how, nn.Embedding(3, 64)

    def forward(self, latent, label):
        if self.how == "embeds":
            rows = self.table(label)
        elif self.how == "selects":
            rows = self.table.weight[label]
        else:
            rows = nn.functional.one_hot(label, 3) @ latent
        return rows.view(-1, 1, 8, 8)


@pytest.mark.parametrize("how", ["embeds", "selects", "makes one-hot"])
def test_networks_that_take_indices_are_told_of_them(how):
    with pytest.raises(GeneratorError, match=r"; if it takes the indices of classes, say label='index'$"):
        Generator(Conditional(how), latent=6, classes=3, layers=[]).shapes()


def test_a_network_that_lacks_its_classes_is_told_of_them():
    with pytest.raises(GeneratorError, match=r"missing 1 required positional argument: 'label'; if it is conditional, say .* classes=$"):
        generator(classes=None).shapes()
    failing = Generator(Failing(), latent=6, classes=3, layers=[])
    with pytest.raises(GeneratorError, match=r"Error: out of luck, not of index 7$"):
        failing.shapes()


class Failing(nn.Module):
    """Fails for another reason."""

    def forward(self, latent, label):
        raise RuntimeError("out of luck, not of index 7")

"""The smallest perturbation that reaches a goal: closed forms, the ball it stays in, and what it costs."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rt_core import Bank, Encoder, SampleRandom
from rt_generator_perturbations import searching
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.goals import (
    GOALS,
    Breakaway,
    TargetClass,
    TargetRepresentation,
    UniversalQuantile,
    Untargeted,
    find_goal,
    other_classes,
    print_of_goal,
    with_bank,
)
from rt_generator_perturbations.layers import LayerError
from rt_generator_perturbations.searching import NORMS, Coordinates, Found, Relaxation, perturbation_model, search
from rt_generator_perturbations.victims import classifier, victims_of

LAYERS = ("latent", "first", "second", "image")
SUBSETS = [("latent",), ("image",), ("first", "image"), LAYERS]


class Linear(nn.Module):
    def __init__(self, latent=6, inside=10):
        super().__init__()
        self.first = nn.Linear(latent, inside)
        self.second = nn.Linear(inside, 12)

    def forward(self, latents):
        return self.second(self.first(latents)).view(-1, 1, 3, 4)


class Convolutional(nn.Module):
    """Batch norm, a class, an in-place activation and values in (-1, 1): like a real one."""

    def __init__(self, classes=4):
        super().__init__()
        self.start = nn.Linear(5 + classes, 8 * 4 * 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=size), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
            for size in (1, 2)
        )
        self.end = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, latents, classes):
        maps = self.start(torch.cat([latents, classes], 1)).view(-1, 8, 4, 4)
        for block in self.blocks:
            maps = block(maps)
        return self.end(maps).tanh()


def seeded(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def linear_generator(seed=0):
    return Generator(seeded(Linear, seed), latent=(6,), layers=["first", "second"], values=None, name="linear")


def conv_generator():
    return Generator(seeded(Convolutional), latent=(5,), classes=4, layers=["start", "blocks.*"], name="conv")


def linear_victim(outputs=2, seed=1):
    return classifier(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, outputs)), seed), name="linear")


def conv_victim(seed=2):
    def network():
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 4))

    return Encoder(seeded(network, seed), name="conv")


def pixels():
    """An encoder that is the image itself."""
    return Encoder(nn.Flatten(), name="pixels")


def shifted_victim():
    return Encoder(nn.Flatten(), name="shifted", bounds=(-1, 1))


def coordinates_of(generator, layers, norm="rms"):
    shapes = generator.shapes()
    return Coordinates({layer: shapes[layer] for layer in layers}, generator.scales(), norm)


def smallest(generator, victim, latents, coordinates, norm, labels):
    """The closed form: the margin of two classes falls along the dual norm of its gradient, in float64."""
    rows = torch.zeros(len(latents), coordinates.size, requires_grad=True)
    logits = victim(generator(latents, coordinates.perturbations(coordinates.parts(rows)))).double()
    margin = logits.gather(1, labels[:, None]) - logits.gather(1, 1 - labels[:, None])
    slope = torch.autograd.grad(margin.sum(), rows)[0].double()
    parts = [slope] if norm != "layer_max" else slope.split(coordinates.sizes, dim=1)
    weights = [1 if norm == "l2" else part.shape[1] for part in parts]
    steepest = sum(math.sqrt(weight) * torch.linalg.vector_norm(part, dim=1) for part, weight in zip(parts, weights, strict=True))
    return margin.detach()[:, 0] / steepest


@pytest.mark.parametrize("layers", SUBSETS, ids="+".join)
@pytest.mark.parametrize("norm", NORMS)
def test_a_linear_victim_of_a_linear_generator_is_met_at_its_closed_form(norm, layers):
    generator, victim = linear_generator(), linear_victim()
    latents = generator.draw(range(12), seed=1)
    labels = victim(generator(latents)).argmax(1)

    found = search(generator, victim, latents, layers=layers, norm=norm, limit=200, growth=1.2)

    best = smallest(generator, victim, latents, coordinates_of(generator, layers, norm), norm, labels)
    assert found.reached.all()
    assert (found.magnitude >= best * (1 - 1e-4)).all()  # nothing smaller exists
    assert (found.magnitude <= best * 1.03).all()
    assert torch.equal(found.targets, 1 - labels)


@pytest.mark.parametrize("growth", [1.05, 1.3])
def test_without_bisection_what_is_first_reached_lies_within_one_growth_of_the_smallest(growth):
    generator, victim = linear_generator(), linear_victim()
    latents = generator.draw(range(20), seed=3)
    labels = victim(generator(latents)).argmax(1)

    found = search(generator, victim, latents, layers=["first"], growth=growth, start=1e-3, refine=0, step=1.0)

    best = smallest(generator, victim, latents, coordinates_of(generator, ["first"]), "rms", labels)
    far = best > 1e-3
    assert far.sum() > 15
    assert torch.equal(found.first, found.magnitude)
    assert (found.magnitude <= best * growth * 1.01)[far].all()


def test_bisection_is_within_its_share_of_the_smallest_multiple():
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(6))
    labels = victim(generator(latents)).argmax(1)

    coarse, fine = (
        search(generator, victim, latents, layers=["blocks.0"], labels=labels, growth=1.3, limit=50, refine=refine) for refine in (0, 8)
    )

    assert coarse.reached.all()
    torch.testing.assert_close(fine.first, coarse.magnitude)
    assert (fine.magnitude <= coarse.magnitude).all()
    assert (fine.magnitude < coarse.magnitude).any()
    for layer in fine.perturbations:  # a multiple of the same direction, and 1/256 less does not do
        shorter = fine.perturbations[layer] - coarse.perturbations[layer] * (1.01 / 256)
        outputs = victim(generator(latents, {layer: shorter}))
        assert not TargetClass().reached(outputs, targets=fine.targets).any()


@pytest.mark.parametrize("layers", SUBSETS, ids="+".join)
def test_what_is_found_equals_adding_by_hand(layers):
    generator, victim = linear_generator(), linear_victim(outputs=3)
    latents = generator.draw(range(4))

    found = search(generator, victim, latents, layers=layers, limit=50)

    added = {layer: found.perturbations.get(layer, 0) for layer in LAYERS}
    network = generator.module
    inside = network.first(latents.latents + added["latent"]) + added["first"]
    images = (network.second(inside) + added["second"]).view(-1, 1, 3, 4) + added["image"]
    torch.testing.assert_close(found.images, images.detach())
    torch.testing.assert_close(found.outputs, victim.module(images).detach())
    assert torch.equal(found.outputs.argmax(1), found.targets)
    assert tuple(found.perturbations) == layers


def test_magnitude_is_that_of_the_perturbations_in_units_of_the_scales():
    generator, victim = linear_generator(), linear_victim()
    scales = generator.scales()

    found = search(generator, victim, generator.draw(range(5)), layers=["first", "image"], limit=50)

    squares = sum((found.perturbations[layer].double() / scales[layer]).flatten(1).square().sum(1) for layer in ("first", "image"))
    torch.testing.assert_close(found.magnitude, (squares / (10 + 12)).sqrt(), rtol=1e-5, atol=0)


def test_a_limit_that_is_too_low_is_said_and_the_last_attempt_lies_on_it():
    generator, victim = linear_generator(), linear_victim()
    latents = generator.draw(range(8), seed=1)
    best = smallest(generator, victim, latents, coordinates_of(generator, ["first"]), "rms", victim(generator(latents)).argmax(1))
    limit = best.sort().values[3:5].mean().item()

    found = search(generator, victim, latents, layers=["first"], limit=limit)

    assert torch.equal(found.reached, best < limit)
    assert found.status.count("reached") == 4
    assert torch.equal(found.magnitude.isinf(), ~found.reached)
    reach = coordinates_of(generator, ["first"]).magnitude([found.perturbations["first"]])[~found.reached]
    torch.testing.assert_close(reach, torch.full_like(reach, limit), rtol=2e-6, atol=0)
    assert (reach <= limit).all()


def test_an_image_that_is_perturbed_at_the_pixels_stays_in_range():
    generator, victim = conv_generator(), conv_victim()

    found = search(generator, victim, generator.draw(range(6)), layers=["image"], limit=50)

    assert found.images.min() >= 0
    assert found.images.max() <= 1
    assert found.reached.any()


@pytest.mark.parametrize("batch", [1, 4])
def test_batch_and_order_do_not_matter(batch):
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(7), seed=4)
    labels = victim(generator(latents)).argmax(1)
    order = torch.tensor([3, 6, 0, 5, 1, 4, 2])

    options = {"layers": ["latent", "blocks.0"], "seed": 9, "growth": 1.25}
    whole = search(generator, victim, latents, labels=labels, **options)
    parts = search(generator, victim, latents.select(order), labels=labels[order], batch=batch, **options)

    assert len({*whole.steps.tolist()}) > 1  # they finish at different radii
    assert torch.equal(whole.targets[order], parts.targets)
    assert torch.equal(whole.reached[order], parts.reached)
    torch.testing.assert_close(whole.magnitude[order], parts.magnitude, rtol=1e-3, atol=0)
    torch.testing.assert_close(whole.images[order], parts.images, rtol=0, atol=1e-3)


def test_a_step_is_one_pass_and_one_gradient_of_each_and_nothing_else():
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(5))
    scales, labels = generator.scales(), victim(generator(latents)).argmax(1)
    generator.shapes(latents)
    before = {who: (who.passes.forwards, who.passes.backwards) for who in (generator, victim)}
    schedule = {"start": 0.05, "limit": 0.4, "growth": 2.0, "steps_per_radius": 3, "refine": 4}

    found = search(generator, victim, latents.select([0]), layers=["blocks.0"], scales=scales, labels=labels[:1], **schedule)

    taken = 3 * math.ceil((int(found.steps) + int(bool(found.reached))) / 3)  # the radius at which it was reached is finished
    assert 0 < found.steps <= taken <= 3 * len(Relaxation(**schedule).radii(1))
    for who, looks in ((generator, 1), (victim, 3)):  # the looks: of the one item there is
        spent = who.passes.forwards - before[who][0], who.passes.backwards - before[who][1]
        assert spent == (looks + 1 + taken + (1 + 4) + 1, taken), who


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_generators_of_half_precision_are_searched_in_float32(dtype):
    module = seeded(Convolutional).to(dtype)
    generator = Generator(module, latent=(5,), classes=4, layers=["start", "blocks.*"])
    victim = conv_victim()
    latents = generator.draw(range(4))

    found = search(generator, victim, latents, layers=["blocks.0", "image"], labels=victim(generator(latents)).argmax(1))

    assert found.reached.all()
    assert {values.dtype for values in found.perturbations.values()} == {torch.float32}
    assert torch.equal(victim(generator(latents, found.perturbations)).argmax(1), found.targets)


def test_a_victim_without_a_gradient_is_reported_as_stuck_not_as_robust():
    generator = conv_generator()
    logits = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    rounded = Encoder(lambda images: logits(images.round()), name="rounded")
    latents = generator.draw(range(3))
    labels = rounded(generator(latents)).argmax(1)

    found = search(generator, rounded, latents, layers=["blocks.0"], labels=labels, limit=0.1)

    assert found.stuck.all()
    assert not found.reached.any()


def test_an_item_that_stands_in_the_bank_is_no_other_to_itself():
    generator, encoder = conv_generator(), Encoder(lambda images: images.flatten(1), name="pixels")
    latents = generator.draw(range(6), seed=0)
    images = generator(latents).detach()

    alone = search(generator, encoder, latents, Breakaway(bank=images), layers=["image"], limit=20.0)
    assert alone.reached.all()
    assert not alone.stuck.any()
    assert alone.magnitude.min() > 0
    nearest = torch.cdist(alone.outputs.double(), alone.clean.double()).argmin(1)
    assert (nearest != torch.arange(6)).all()


def test_an_item_is_itself_in_the_bank_whatever_the_last_bits_of_its_batch():
    generator = conv_generator()
    encoder = Encoder(lambda images: images.flatten(1) * (1 + 3e-7 * len(images)), name="pixels of a batch")
    latents = generator.draw(range(6), seed=0)
    others = Encoder(lambda images: images.flatten(1), name="pixels")(generator(latents))
    goal = Breakaway(bank=generator(latents).detach())

    found = search(generator, encoder, latents, goal, layers=["image"], limit=20.0, batch=2)

    nearest = torch.cdist(others.double(), others.double()).fill_diagonal_(math.inf).min(1).values
    least = nearest / 2 / generator.scales()["image"] / math.sqrt(64)
    assert found.reached.all()
    assert (found.magnitude >= least * 0.999).all()
    with pytest.raises(ValueError, match="all 1 rows of the bank are an item's own"):
        search(generator, encoder, latents, Breakaway(bank=goal.bank[:1]), layers=["image"])


@pytest.mark.parametrize("shape", [(8,), (1,), (16, 1, 1)])
def test_scales_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"the scale of layer 'a' has shape .*; expected one number, or one for each neuron, \[16, 4, 4\]"):
        Coordinates({"a": (16, 4, 4)}, {"a": torch.ones(shape)})


def test_a_norm_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="norm is 'linf'; expected one of 'rms', 'l2', 'layer_max'"):
        Coordinates({"a": (3,)}, {"a": 1.0}, "linf")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("exact", [False, True])
def test_what_lies_in_the_ball_in_float32_lies_in_it_in_float64(norm, exact):
    sizes = {"a": (100,), "b": (300_000 if exact else 300,)}
    coordinates = Coordinates(sizes, {"a": 0.7, "b": 1.3}, norm)
    parts = coordinates.parts(torch.randn(20, coordinates.size, generator=torch.Generator().manual_seed(0)))

    coordinates.project(parts, 0.2, exact=exact)

    measured = coordinates.magnitude(parts)
    assert (measured <= 0.2).all()
    torch.testing.assert_close(measured, torch.full_like(measured, 0.2), rtol=2e-6, atol=0)


def test_nothing_is_reached_beyond_the_limit():
    generator, victim = linear_generator(), linear_victim()
    latents = generator.draw(range(40), seed=1)
    best = smallest(generator, victim, latents, coordinates_of(generator, ["image"]), "rms", victim(generator(latents)).argmax(1))

    for share in (0.3, 0.5, 0.7):
        limit = best.quantile(share).item() * 1.02
        found = search(generator, victim, latents, layers=["image"], start=limit / 2, growth=2, limit=limit, refine=0)

        assert (found.magnitude[found.reached] > limit * 0.999).any()
        assert (found.magnitude[found.reached] <= limit).all()


class Shaky(nn.Module):
    """Two classes, and a pass that says the other class of the first image when it is told to."""

    def __init__(self):
        super().__init__()
        self.logits = linear_victim().module
        self.shaken = False

    def forward(self, images):
        logits = self.logits(images)
        return torch.cat([logits[:1].flip(1), logits[1:]]) if self.shaken else logits


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_lost_in_the_last_measurement_falls_back_to_what_was_first_reached(times, monkeypatch):
    generator, shaky = linear_generator(), Shaky()
    victim = classifier(shaky, name="shaky")
    latents = generator.draw(range(5), seed=1)
    options = {"layers": ["first"], "limit": 200, "growth": 1.5}
    steady = search(generator, victim, latents, **options)
    left = []

    def watched(*given):
        found = shortened(*given)
        left.extend([True] * times)
        return found

    def forward(images, plain=shaky.forward):
        shaky.shaken = bool(left and left.pop())
        return plain(images)

    shortened = searching._shortened
    monkeypatch.setattr(searching, "_shortened", watched)
    monkeypatch.setattr(shaky, "forward", forward)
    found = search(generator, victim, latents, **options)

    assert steady.reached.all()
    assert found.reached.tolist() == [times == 1, True, True, True, True]
    for name in ("magnitude", "first", "images", "outputs"):
        assert torch.equal(getattr(found, name)[1:], getattr(steady, name)[1:])
    if times == 1:
        assert found.magnitude[0] == found.first[0] == steady.first[0] > steady.magnitude[0]
        torch.testing.assert_close(victim(generator(latents, found.perturbations))[0], found.outputs[0])
    else:
        assert found.magnitude[0] == found.first[0] == math.inf


def test_slopes_that_are_not_finite_end_an_item_and_no_other():
    class Broken(nn.Module):
        """Finite, and where the second number is negative, of a slope that is not: a root of zero."""

        def forward(self, images):
            numbers = images.flatten(1)
            sound = (numbers[:, 1] > 0).float()
            return torch.stack([numbers[:, 0] + (numbers[:, 0] * 0 + sound).sqrt() - sound, numbers[:, 2]], dim=1)

    generator, victim = linear_generator(), Encoder(Broken(), name="broken")
    latents = generator.draw(range(8))
    sound = generator(latents).flatten(1)[:, 1] > 0
    labels = victim(generator(latents)).argmax(1)

    found = search(generator, victim, latents, layers=["latent"], labels=labels)

    assert 0 < sound.sum() < 8
    assert not found.reached[~sound].any()
    assert found.lost[~sound].all()
    assert found.stuck[~sound].all()
    assert found.magnitude[~sound].isnan().all()
    assert found.reached[sound].any()
    assert all(values.isfinite().all() for values in found.perturbations.values())
    assert torch.equal(found.images[~sound], found.clean_images[~sound])


def test_slopes_too_small_to_square_are_followed():
    generator = linear_generator()
    latents = generator.draw(range(5))
    weight = seeded(lambda: torch.randn(12, 2), 1)
    plain, faint = (Encoder(lambda images, size=size: images.flatten(1) @ weight * size, name="faint") for size in (1.0, 1e-32))
    labels = plain(generator(latents)).argmax(1)

    strong, weak = (search(generator, victim, latents, layers=["first"], labels=labels, start=1e-4) for victim in (plain, faint))

    assert not weak.stuck.any()
    torch.testing.assert_close(weak.magnitude, strong.magnitude, rtol=0.02, atol=0)


# ── the norms, as properties ──


blocks = st.lists(st.integers(1, 6), min_size=1, max_size=3)


def drawn(sizes, norm, seed, batch=3):
    """Coordinates with a scale a layer and, for every second one, a scale a neuron; and random rows of them, in float64."""
    random = torch.Generator().manual_seed(seed)
    shapes = {f"layer {place}": (size,) for place, size in enumerate(sizes)}
    scales = {layer: torch.rand(shape if place % 2 else (), generator=random) + 0.1 for place, (layer, shape) in enumerate(shapes.items())}
    return Coordinates(shapes, scales, norm), lambda rows=batch: torch.randn(rows, sum(sizes), generator=random).double()


def magnitude(coordinates, rows):
    return coordinates.magnitude(coordinates.parts(rows))


@settings(deadline=None)
@given(sizes=blocks, norm=st.sampled_from(NORMS), seed=st.integers(0, 10**6), radius=st.floats(0.05, 5))
def test_projection_goes_into_the_ball_and_once_there_changes_nothing(sizes, norm, seed, radius):
    coordinates, rows = drawn(sizes, norm, seed)
    before = rows()
    parts = coordinates.parts(before)

    told = coordinates.project(parts, radius)

    placed = coordinates.rows(parts)
    torch.testing.assert_close(told, magnitude(coordinates, before))
    assert (coordinates.magnitude(parts) <= radius * (1 + 1e-12)).all()
    again = [part.clone() for part in parts]
    coordinates.project(again, radius)
    torch.testing.assert_close(coordinates.rows(again), placed)
    inside = told <= radius * (1 - 1e-6)
    assert all(torch.equal(part[inside], old[inside]) for part, old in zip(parts, coordinates.parts(before), strict=True))
    assert (placed * before >= 0).all()


@settings(deadline=None)
@given(sizes=blocks, norm=st.sampled_from(NORMS), seed=st.integers(0, 10**6), size=st.floats(0.05, 5))
def test_a_step_is_as_long_as_asked_and_no_step_of_that_length_descends_further(sizes, norm, seed, size):
    coordinates, rows = drawn(sizes, norm, seed)
    start, slope = rows(), rows()
    leaves = [part.requires_grad_() for part in coordinates.parts(start)]
    slopes = torch.autograd.grad((coordinates.rows(leaves) * slope).sum(), leaves)
    parts = coordinates.parts(start)

    flat = coordinates.step(parts, slopes, size, still=torch.tensor([False, False, True]))

    step = coordinates.rows(parts) - start
    assert not flat.any()
    assert all(torch.equal(part[2], old[2]) for part, old in zip(parts, coordinates.parts(start), strict=True))
    torch.testing.assert_close(magnitude(coordinates, step)[:2], torch.full((2,), size, dtype=torch.float64))
    others = rows(200)
    others *= (size / magnitude(coordinates, others))[:, None]
    assert ((step * slope).sum(1)[:2] <= (others @ slope[:2].T).min(0).values + 1e-9).all()


@settings(deadline=None)
@given(sizes=blocks, norm=st.sampled_from(NORMS), seed=st.integers(0, 10**6), factor=st.floats(0, 10))
def test_magnitudes_are_those_of_a_norm(sizes, norm, seed, factor):
    coordinates, rows = drawn(sizes, norm, seed)
    values, others = rows(), rows()

    torch.testing.assert_close(magnitude(coordinates, values * factor), magnitude(coordinates, values) * factor)
    assert (magnitude(coordinates, values + others) <= magnitude(coordinates, values) + magnitude(coordinates, others) + 1e-12).all()
    torch.testing.assert_close(coordinates.rows(coordinates.parts(values)), values)


def test_norms_and_scales_by_hand():
    shapes, scales, values = {"a": (2,), "b": (1, 2)}, {"a": 2.0, "b": torch.tensor([[1.0, 4.0]])}, torch.tensor([[3.0, 4.0, 0.0, 12.0]])
    found = {norm: magnitude(Coordinates(shapes, scales, norm), values).item() for norm in NORMS}

    assert found == pytest.approx({"rms": 13 / 2, "l2": 13, "layer_max": 12 / math.sqrt(2)})
    coordinates = Coordinates(shapes, scales)
    perturbations = coordinates.perturbations(coordinates.parts(values))
    assert perturbations["a"].tolist() == [[6, 8]]
    assert perturbations["b"].tolist() == [[[0, 48]]]


def test_scales_of_neurons_are_followed():
    generator, victim = linear_generator(), linear_victim()
    latents, scales = generator.draw(range(6)), generator.scales(per="neuron")
    labels = victim(generator(latents)).argmax(1)

    found = search(generator, victim, latents, layers=["first", "second"], scales=scales, labels=labels, limit=50)

    shapes = generator.shapes()
    coordinates = Coordinates({layer: shapes[layer] for layer in ("first", "second")}, scales)
    best = smallest(generator, victim, latents, coordinates, "rms", labels)
    assert (found.magnitude >= best * (1 - 1e-4)).all()
    assert (found.magnitude <= best * 1.03).all()


@settings(deadline=None)
@given(start=st.floats(1e-3, 1), times=st.floats(1, 1e3), growth=st.floats(1.01, 3), size=st.integers(1, 10**6))
def test_radii_grow_from_the_start_to_the_limit_by_no_more_than_the_factor(start, times, growth, size):
    radii = Relaxation(start=start, limit=start * times, growth=growth).radii(size)

    assert radii[0] == pytest.approx(start)
    assert radii[-1] == start * times
    assert all(low < high <= low * growth * (1 + 1e-9) for low, high in itertools.pairwise(radii))


def test_default_radii_are_the_same_perturbations_in_every_norm():
    rms, l2 = (Relaxation(norm=norm).radii(400) for norm in ("rms", "l2"))

    assert l2 == pytest.approx([20 * radius for radius in rms])


# ── goals ──


def test_random_targets_are_other_classes_uniform_and_an_items_own():
    ids, labels = range(4000), torch.arange(4000) % 5

    targets = other_classes(labels, 5, SampleRandom.of(0, ids))

    assert (targets != labels).all()
    shares = torch.stack([torch.bincount(targets[labels == label], minlength=5) for label in range(5)]) / 800
    assert (shares[~torch.eye(5, dtype=torch.bool)] - 0.25).abs().max() < 0.06
    assert torch.equal(targets[7:9], other_classes(labels[7:9], 5, SampleRandom.of(0, [7, 8])))


def test_two_labels_of_one_item_have_one_target_unless_it_is_one_of_them():
    random, classes = SampleRandom.of(0, range(4000)), 5
    first, second = torch.arange(4000) % classes, (torch.arange(4000) + 1 + torch.arange(4000) // classes % 4) % classes

    one, two = (other_classes(labels, classes, random) for labels in (first, second))

    assert (first != second).all()
    differ = one != two
    assert ((one == second) | (two == first))[differ].all()
    assert differ.double().mean() == pytest.approx(2 / classes, abs=0.03)


def test_given_targets_are_kept():
    generator, victim = linear_generator(), linear_victim(outputs=4)
    latents = generator.draw(range(5))
    targets = (victim(generator(latents)).argmax(1) + 1) % 4

    found = search(generator, victim, latents, layers=["second"], targets=targets, limit=50)

    assert torch.equal(found.targets, targets)
    assert torch.equal(found.outputs.argmax(1)[found.reached], targets[found.reached])
    assert found.reached.any()


def test_a_class_counts_as_said_where_its_logit_is_strictly_the_largest():
    outputs = torch.tensor([[1.0, 2.0, 0.0], [2.0, 2.0, 0.0], [3.0, 2.0, 0.0]])

    assert TargetClass().reached(outputs, targets=torch.tensor([1, 1, 1])).tolist() == [True, False, False]
    assert Untargeted().reached(outputs, labels=torch.tensor([1, 1, 1])).tolist() == [False, False, True]


def test_untargeted_is_never_harder_than_targeted():
    generator, victim = linear_generator(), linear_victim(outputs=4)
    latents = generator.draw(range(10))
    labels = victim(generator(latents)).argmax(1)

    targeted, untargeted = (
        search(generator, victim, latents, goal, layers=["first"], labels=labels, limit=50, growth=1.05)
        for goal in ("target", "untargeted")
    )

    assert (untargeted.outputs.argmax(1) != labels)[untargeted.reached].all()
    assert (untargeted.magnitude <= targeted.magnitude * 1.06).all()
    assert (untargeted.magnitude < targeted.magnitude * 0.99).any()


def test_a_representation_is_reached_at_the_share_of_the_way():
    generator, victim = linear_generator(), pixels()
    latents = generator.draw(range(6))
    clean = generator(latents).flatten(1)
    targets, share = clean.roll(1, 0), 0.3

    found = search(generator, victim, latents, TargetRepresentation(share=share), layers=["image"], targets=targets)

    scale, way = generator.scales()["image"], torch.linalg.vector_norm(targets - clean, dim=1)
    torch.testing.assert_close(found.magnitude, ((1 - share) * way / scale / math.sqrt(12)).double(), rtol=0.03, atol=0)
    assert (torch.linalg.vector_norm(found.outputs - targets, dim=1) < share * way).all()


def test_a_universal_quantile_is_exceeded_at_its_threshold():
    generator, victim = linear_generator(), pixels()
    latents, others = generator.draw(range(6)), generator(generator.draw(range(100, 140)))
    bank = Bank(others.flatten(1))

    found = search(generator, victim, latents, UniversalQuantile(quantile=0.25, bank=bank), layers=["image"])

    threshold = torch.pdist(others.flatten(1).double()).quantile(0.25).item()
    expected = torch.full((6,), threshold / generator.scales()["image"] / math.sqrt(12)).double()
    torch.testing.assert_close(found.magnitude, expected, rtol=0.03, atol=0)
    moved = torch.linalg.vector_norm(found.outputs - found.clean, dim=1)
    assert (bank.pair_quantiles(moved.double()) >= 0.25).all()


def test_a_breakaway_happens_half_way_to_the_nearest_other():
    generator, victim = linear_generator(), pixels()
    latents, others = generator.draw(range(6)), generator(generator.draw(range(100, 140)))
    bank = Bank(others.flatten(1))

    found = search(generator, victim, latents, Breakaway(bank=bank), layers=["image"], growth=1.05)

    nearest = torch.cdist(found.clean.double(), others.flatten(1).double()).min(1).values
    torch.testing.assert_close(found.magnitude, nearest / 2 / generator.scales()["image"] / math.sqrt(12), rtol=0.05, atol=0)
    assert (bank.closer_counts(found.outputs, found.clean, torch.full((6,), -1)) >= 1).all()


@pytest.mark.parametrize("goal", ["representation", "quantile", "breakaway"])
def test_goals_without_labels_move_an_encoder(goal):
    generator = conv_generator()
    encoder = Encoder(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), 5), name="encoder")
    latents = generator.draw(range(6))
    targets = encoder(generator(latents)).roll(1, 0) if goal == "representation" else None

    found = search(generator, encoder, latents, goal, layers=["blocks.1"], targets=targets)

    assert found.reached.all()
    assert (found.magnitude > 0).all()
    assert found.labels is None


def test_a_bank_of_draws_is_the_generators_own_and_none_of_the_items():
    generator, victim = conv_generator(), pixels()
    asked = []

    def draws(count):
        asked.append(count)
        return generator(generator.draw(range(count)))

    goal = with_bank(Breakaway(bank=9), victim, draws)

    assert asked == [9]
    torch.testing.assert_close(goal.bank.take(range(9)), generator(generator.draw(range(9))).flatten(1))
    assert with_bank(goal, victim, draws) is goal
    assert with_bank(TargetClass(), victim, draws) == TargetClass()
    images = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(with_bank(Breakaway(bank=images), victim, draws).bank.take(range(4)), images.flatten(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TargetRepresentation(share=1.0), "share is 1; expected a share in"),
        (lambda: UniversalQuantile(quantile=0.0), "quantile is 0; a share of pairs"),
        (lambda: UniversalQuantile(bank=1), "bank is 1; at least 2"),
        (lambda: find_goal("brekaway"), "did you mean 'breakaway'"),
        (lambda: TargetRepresentation().objective(torch.zeros(2, 3)), "targets are not given; give the representations"),
        (lambda: Untargeted().objective(torch.zeros(2, 3)), "labels are not given"),
        (lambda: TargetClass().objective(torch.zeros(2, 1)), "has 1 output; a goal of classes needs at least 2"),
        (lambda: TargetClass().objective(torch.zeros(2, 3), targets=torch.tensor([0, 3])), "each must be a class in 0 to 2"),
        (lambda: Breakaway().objective(torch.zeros(2, 3)), "with_bank"),
        (lambda: Relaxation(norm="linf"), "norm is 'linf'; expected one of"),
        (lambda: Relaxation(growth=1.0), "growth is 1; a radius grows by a factor above 1"),
        (lambda: Relaxation(start=2.0, limit=1.0), "the radius grows from start to limit"),
        (lambda: Relaxation(limit=-1), "limit is -1; it must be positive"),
        (lambda: Relaxation(refine=-1), "refine is -1"),
        (lambda: Coordinates({}, {}), "no layer is chosen"),
        (lambda: Coordinates({"a": (1,)}, {"b": 1.0}), "scales lack 'a'"),
        (lambda: Coordinates({"a": (1,)}, {"a": 0.0}), "scale of layer 'a'"),
        (lambda: victims_of([]), "no victim is given"),
        (lambda: victims_of([pixels(), pixels()]), "two victims are called 'pixels'"),
        (lambda: victims_of([5]), "a victim is 5; give an encoder"),
        (lambda: search(conv_generator(), conv_victim(), conv_generator().draw([]), layers=["latent"]), "latents hold no items"),
        (
            lambda: search(
                conv_generator(), conv_victim(), conv_generator().draw([0]), "untargeted", layers=["latent"], targets=torch.ones(1)
            ),
            "targets are given, and goal Untargeted leads away",
        ),
        (
            lambda: search(conv_generator(), shifted_victim(), conv_generator().draw([0]), layers=["latent"]),
            r"victim 'shifted' takes inputs in \[-1, 1\], and generator 'conv' draws images in \[0, 1\]; make the victim one of bounds=\(0, 1\)",
        ),
        (
            lambda: perturbation_model(conv_generator(), shifted_victim(), conv_generator().draw([0]), layers=["latent"]),
            "victim 'shifted' takes inputs in",
        ),
        (
            lambda: perturbation_model(linear_generator(), linear_victim(), linear_generator().draw([0]), layers=["latent"], norm="linf"),
            "norm is 'linf'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_layers_are_found_by_name_and_misses_are_explained():
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(2))

    with pytest.raises(LayerError, match=r"blocks\.0"):
        search(generator, victim, latents, layers=["blok.0"])
    with pytest.raises(ValueError, match=r"targets has shape \[3\] for 2 items; give one an item"):
        search(generator, victim, latents, layers=["latent"], targets=torch.tensor([0, 1, 2]))


def test_classifiers_are_victims_without_a_warning(recwarn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, inputs):
            return self.fc(inputs.flatten(1))

    one, two = victims_of({"a": Net(), "b": classifier(Net(), name="inside")}).values()

    assert not recwarn.list
    assert (one.name, two.name) == ("a", "inside")
    assert two(torch.rand(2, 1, 2, 2)).shape == (2, 3)


# ── other toolboxes ──


def test_the_model_of_perturbations_is_the_generator_and_the_victim():
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(3))
    model = perturbation_model(generator, victim, latents, layers=["latent", "blocks.0"], limit=2.0)
    scales, inputs = generator.scales(), torch.rand(3, model.size)

    assert torch.equal(model(model.start()), victim(generator(latents)))
    added = {
        "latent": (inputs[:, :5] - 0.5) * 4 * scales["latent"],
        "blocks.0": ((inputs[:, 5:] - 0.5) * 4 * scales["blocks.0"]).view(3, 8, 4, 4),
    }
    torch.testing.assert_close(model(inputs), victim(generator(latents, added)))
    one = perturbation_model(generator, victim, latents.select([1]), layers=["latent", "blocks.0"], limit=2.0)
    torch.testing.assert_close(one(inputs)[1], model(inputs)[1])
    torch.testing.assert_close(model(inputs[:, None, None]), model(inputs))  # as a picture
    with pytest.raises(ValueError, match="2 rows for 3 items"):
        model(inputs[:2])
    with pytest.raises(ValueError, match=rf"expected {model.size} numbers a row"):
        model(inputs[:, 1:])


@pytest.mark.parametrize("name", ["PGDL2", "Square", "MIFGSM", "CW", "FAB"])
def test_attacks_of_pictures_take_perturbations_for_pictures(name):
    torchattacks = pytest.importorskip("torchattacks")
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(4), seed=2)
    model = perturbation_model(generator, victim, latents, layers=["blocks.0"], limit=4.0)
    labels = model(model.start()).argmax(1)
    options = {"n_classes": 4} if name == "FAB" else {"steps": 2} if name in ("PGDL2", "CW") else {}

    moved = getattr(torchattacks, name)(model, **options)(model.start(), labels)

    assert moved.shape == model.start().shape == (4, 1, 1, model.size)
    assert model.magnitude(moved).isfinite().all()


def test_pgd_of_torchattacks_searches_perturbations():
    torchattacks = pytest.importorskip("torchattacks")
    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(5), seed=2)
    labels = victim(generator(latents)).argmax(1)
    model = perturbation_model(generator, victim, latents, layers=["blocks.0"], limit=4.0)

    moved = torchattacks.PGD(model, eps=0.25, alpha=0.03, steps=30, random_start=False)(model.start(), labels)

    assert (moved - 0.5).abs().max() <= 0.25 + 1e-6
    assert (model(moved).argmax(1) != labels).all()
    found = search(generator, victim, latents, "untargeted", layers=["blocks.0"], labels=labels)
    assert (found.magnitude <= model.magnitude(moved)).all()  # the smallest, which a fixed ball is not


def test_an_attack_of_art_searches_perturbations():
    attacks = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import PyTorchClassifier

    generator, victim = conv_generator(), conv_victim()
    latents = generator.draw(range(4), seed=2)
    labels = victim(generator(latents)).argmax(1)
    model = perturbation_model(generator, victim, latents, layers=["blocks.0"], limit=4.0)
    estimator = PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=(1, 1, model.size), nb_classes=4, clip_values=(0, 1), device_type="cpu"
    )
    attack = attacks.ProjectedGradientDescent(estimator, norm=2, eps=3.0, eps_step=0.4, max_iter=20, batch_size=4, verbose=False)

    moved = torch.from_numpy(attack.generate(model.start().numpy(), y=nn.functional.one_hot(labels, 4).numpy()))

    assert (model(moved).argmax(1) != labels).all()
    assert (torch.linalg.vector_norm(moved - 0.5, dim=(1, 2, 3)) <= 3.0 + 1e-4).all()


@pytest.mark.parametrize("goal", [Breakaway, UniversalQuantile])
def test_a_goal_with_a_bank_is_the_same_after_it_was_used(goal):
    rows = torch.randn(20, 12, generator=torch.Generator().manual_seed(0))
    used, other = goal(bank=Bank(rows)), goal(bank=Bank(rows + 1e-3))
    before = print_of_goal(used)

    search(linear_generator(), pixels(), linear_generator().draw([0]), used, layers=["first"])

    assert print_of_goal(used) == before == print_of_goal(goal(bank=Bank(rows.clone())))
    assert len({before, print_of_goal(other), print_of_goal(goal(bank=rows)), print_of_goal(goal(bank=20))}) == 4
    if goal is UniversalQuantile:
        assert print_of_goal(goal(bank=Bank(rows, quantile_rows=10))) != before


def test_a_limit_below_the_usual_start_has_radii_below_it():
    assert Relaxation(limit=0.001).radii(10)[0] == pytest.approx(0.0001)
    assert Relaxation(limit=0.05).radii(10)[0] == pytest.approx(0.005)
    assert Relaxation(limit=3.0).radii(10)[0] == 0.01


def test_own_classes_are_no_targets_though_they_are_what_the_victim_says():
    generator, victim = linear_generator(), linear_victim()
    latents = generator.draw(range(4), seed=2)
    own = victim(generator(latents)).argmax(1)

    with pytest.raises(ValueError, match="the target of 4 of 4 items is the class that they are of"):
        search(generator, victim, latents, layers=["first"], targets=own)
    others = search(generator, victim, latents, layers=["first"], targets=(1 - own).tolist())
    assert others.reached.any()
    for targets in (3, [1, 2]):
        with pytest.raises(ValueError, match="for 4 items; give one an item"):
            search(generator, victim, latents, layers=["first"], targets=targets)
    with pytest.raises(ValueError, match="expected a list of layers"):
        search(generator, victim, latents, layers="image")


def test_a_plain_network_is_a_classifier_for_search_too():
    generator, network = linear_generator(), nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    found = search(generator, network, generator.draw(range(3)), layers=["image"])
    assert torch.equal(
        found.magnitude, search(generator, classifier(network, name="x"), generator.draw(range(3)), layers=["image"]).magnitude
    )


def test_a_plain_function_is_a_victim():
    (victim,) = victims_of(lambda images: images.flatten(1)).values()

    assert torch.equal(victim(torch.ones(2, 1, 1, 3)), torch.ones(2, 3))


def test_every_goal_has_a_name():
    assert {type(find_goal(name)) for name in GOALS} == {*GOALS.values()}
    assert isinstance(search(linear_generator(), linear_victim(), linear_generator().draw([0]), layers=["first"]), Found)

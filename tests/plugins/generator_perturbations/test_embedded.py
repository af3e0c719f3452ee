"""The shipped generator and classifiers of digits are what their descriptions say, and their script makes the same bits again."""

import importlib.util
import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import cross_entropy

import rt_core
from rt_generator_perturbations import digits_classifier, digits_classifier_robust, digits_generator, granularity_curve, ratios
from rt_generator_perturbations.network import DigitClassifier, DigitDecoder

WEIGHTS = files("rt_generator_perturbations") / "weights"
SHIPPED = ["digits_classifier", "digits_classifier_robust", "digits_generator"]
SCRIPT = Path(__file__).parents[3] / "plugins/generator_perturbations/scripts/train_digits_generator.py"
LAYERS = {
    "latent": (16,), "start": (32, 4, 4), "block4": (32, 4, 4), "block8": (32, 8, 8), "block16": (32, 16, 16), "image": (1, 16, 16),
}  # fmt: skip


@pytest.fixture(scope="module")
def held_out():
    test = rt_core.dataset("digits", split="test")
    return test.inputs(range(len(test))), torch.tensor(test.labels(range(len(test))))


@pytest.fixture(scope="module")
def drawn():
    """One latent a row, in equal numbers of each class, and the images: [500, 1, 16, 16]."""
    generator = digits_generator()
    latents = generator.draw(range(500), seed=0, classes=torch.arange(500) % 10)
    with torch.no_grad():
        return latents, generator(latents)


def right(victim, images, labels):
    return (victim(images).argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_half_precision_and_say_where_they_come_from(name):
    with safe_open(str(WEIGHTS / f"{name}.safetensors"), framework="pt") as file:
        dtypes = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
        made = json.loads(file.metadata()["made"])

    assert dtypes == {torch.float16}
    assert set(made) == {"command", "seed", "split", "method", "threads", "versions"}
    assert made["split"].startswith("train")


def test_all_weights_together_stay_below_300_kilobytes():
    files_there = list(Path(str(WEIGHTS)).iterdir())

    assert sorted(file.name for file in files_there) == [f"{name}.safetensors" for name in SHIPPED]
    assert sum(file.stat().st_size for file in files_there) < 300_000


def test_layers_go_from_coarse_to_fine():
    generator = digits_generator()

    assert generator.shapes() == LAYERS
    assert list(generator.shapes()) == list(LAYERS)
    assert list(generator.groups()) == ["latent", "early", "middle", "late", "pixels"]
    assert sum(weight.numel() for weight in generator.module.parameters()) == 47_041


def test_images_show_their_class(drawn):
    latents, images = drawn
    both = [victim(images).argmax(1) == latents.classes for victim in (digits_classifier(), digits_classifier_robust())]

    assert images.shape == (500, 1, 16, 16)
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.stack(both).all(dim=0).double().mean() >= 0.97


def test_images_of_a_class_differ_nearly_as_much_as_real_ones(drawn, held_out):
    """A generator whose latents say nothing, the usual failure of a VAE, draws one image a class."""
    latents, images = drawn
    real, labels = held_out

    for label in range(10):
        own, test = images[latents.classes == label], real[labels == label]
        share = torch.pdist(own.flatten(1)).mean() / torch.pdist(test.flatten(1)).mean()
        assert 0.45 < share < 1.1, f"class {label}: {share:.2f}"


def test_every_perturbable_layer_moves_the_image(drawn):
    generator = digits_generator()
    latents, images = drawn[0].select(slice(3)), drawn[1][:3]

    for layer, shape in LAYERS.items():
        moved = generator(latents, {layer: torch.full((3, *shape), 0.3)})
        assert ((moved - images).flatten(1).abs().amax(1) > 0.01).all(), layer


@pytest.mark.parametrize("robust", [False, True])
def test_classifiers_read_digits_that_they_have_not_seen(robust, held_out):
    assert right(digits_classifier(robust=robust), *held_out) >= 0.98


def test_only_the_robust_one_withstands_a_small_l2_step(held_out):
    """One normalized gradient step of length 0.5, without an iterated attack."""
    inputs, labels = held_out
    shares = {}
    for victim in (digits_classifier(), digits_classifier_robust()):
        moved = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(victim(moved), labels, reduction="sum"), moved)
        step = 0.5 * slope / slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        shares[victim.name] = right(victim, (inputs + step).clamp(0, 1), labels)

    assert shares["digits_classifier_robust"] >= 0.85
    assert shares["digits_classifier"] <= shares["digits_classifier_robust"] - 0.2


@pytest.mark.parametrize("name", ["digits_classifier", "digits_classifier_robust"])
def test_classifiers_are_found_by_name_and_give_logits_without_a_warning(name, held_out, recwarn):
    victim = rt_core.encoder(name)

    assert victim.name == name
    assert victim(held_out[0][:5]).shape == (5, 10)
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_and_slopes_do_not_depend_on_what_is_beside(dtype):
    """Whatever the batch: so a search finds the same whoever else is still searched for."""
    generator, victim = digits_generator(), digits_classifier_robust()
    generator.module.to(dtype)
    victim.module.to(dtype)
    latents = generator.draw(range(33), seed=1)
    random = torch.Generator().manual_seed(0)
    perturbations = {layer: 0.1 * torch.randn(33, *shape, generator=random) for layer, shape in LAYERS.items()}
    if dtype == torch.float64:
        perturbations = {layer: perturbation.double() for layer, perturbation in perturbations.items()}

    def pieces(size):
        found = []
        for rows in torch.arange(33).split(size):
            own = {layer: perturbation[rows].clone().requires_grad_() for layer, perturbation in perturbations.items()}
            logits = victim(generator(latents.select(rows), own))
            slopes = torch.autograd.grad(logits[:, 3].sum(), list(own.values()))
            found.append(torch.cat([logits.detach(), *(slope.flatten(1) for slope in slopes)], dim=1))
        return torch.cat(found)

    whole = pieces(33)
    assert whole.dtype == dtype
    for size in (1, 2, 5, 16, 32):  # 32 leaves a last batch of one
        assert torch.equal(pieces(size), whole), size


def test_training_on_pixels_helps_at_the_pixels_and_least_at_the_latent():
    """What the paper finds, as far as it is established here: at the latent the two do not differ, with accuracy on digits alike."""
    results = granularity_curve(
        digits_generator(), [digits_classifier(), digits_classifier_robust()], groups={"latent": ["latent"], "late": ["block16"], "pixels": ["image"]},
        items=16, growth=1.5, progress=False, pictures=0,
    )  # fmt: skip
    found = ratios(results, "digits_classifier_robust", "digits_classifier").set_index("attack")

    assert found.loc["pixels", "low"] > 1.5
    assert found.loc["late", "low"] > 1.2
    assert found.loc["latent", "high"] < found.loc["late", "low"] < found.loc["pixels", "low"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_digits_generator", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("what", ["decoder", "classifier", "robust classifier"])
def test_the_script_makes_the_same_bits_again(script, what, held_out, monkeypatch):
    """One epoch of a few digits: the seed alone decides."""
    for settings in (script.GENERATOR, script.CLASSIFIER):
        monkeypatch.setitem(settings, "epochs", 1)
        monkeypatch.setitem(settings, "batch", 16)
    inputs, labels = held_out[0][:32], held_out[1][:32]
    train = {
        "decoder": lambda seed: script.autoencode(inputs, labels, seed=seed),
        "classifier": lambda seed: script.classify(inputs, labels, radius=0.0, seed=seed),
        "robust classifier": lambda seed: script.classify(inputs, labels, radius=0.5, seed=seed),
    }[what]
    first, again, other = (train(seed).state_dict() for seed in (0, 0, 1))

    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_the_attack_of_the_script_climbs_and_stays_inside(script, held_out):
    inputs, labels = held_out[0][:64], held_out[1][:64]
    victim = digits_classifier()
    moved = script.attack(victim.module.eval(), inputs, labels, torch.Generator().manual_seed(0), radius=0.5, steps=7)
    losses = [cross_entropy(victim(images), labels, reduction="none") for images in (inputs, moved)]

    assert moved.min() >= 0
    assert moved.max() <= 1
    assert (moved - inputs).flatten(1).norm(dim=1).max() <= 0.5 + 1e-5
    assert (losses[1] >= losses[0]).double().mean() >= 0.95
    assert losses[1].mean() > 5 * losses[0].mean()


def test_what_is_saved_is_what_is_measured(script, tmp_path):
    network = DigitDecoder()
    script.save(network, tmp_path / "some.safetensors", seed=3)
    with safe_open(str(tmp_path / "some.safetensors"), framework="pt") as file:
        stored = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118
        made = json.loads(file.metadata()["made"])

    assert made["seed"] == 3
    assert all(torch.equal(weight, stored[key]) for key, weight in network.state_dict().items())
    assert sum(weight.numel() for weight in DigitClassifier().parameters()) == 16_602

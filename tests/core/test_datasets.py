"""Datasets of every form become samples: pictures as a viewer shows them, items of any shape, ids that stay, labels where there are any."""

import os
import pickle
import re
import sys
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from rt_core import Encoder, Evaluation, InvalidInputs, Results, ShapeError, attack, metric, represent, run
from rt_core.datasets import Samples, as_samples, folder, tensor_file, tensors, torch_dataset
from rt_core.labels import classes_of

INPUTS = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = [2, 0, 1, 0, 2]


def all_of(samples):
    return samples.inputs(range(len(samples)))


# Tensors and arrays


@pytest.mark.parametrize("form", [INPUTS, INPUTS.numpy()], ids=["tensor", "array"])
def test_tensors_and_arrays_are_samples(form):
    samples = as_samples(form)

    assert samples.ids == ("0", "1", "2", "3", "4")
    assert torch.equal(all_of(samples), INPUTS)
    assert torch.equal(samples.inputs([3, 1]), INPUTS[[3, 1]])
    assert samples.labels([0]) is None
    assert samples.groups is None


@pytest.mark.parametrize("labels", [LABELS, torch.tensor(LABELS), np.array(LABELS)])
def test_labels_ids_and_groups_may_be_given(labels):
    samples = tensors(INPUTS, ids="abcde", labels=labels, groups=[1, 1, 2, 2, 3], name="mine")

    assert samples.ids == ("a", "b", "c", "d", "e")
    assert samples.labels([4, 1]) == [2, 0]
    assert samples.groups == ("1", "1", "2", "2", "3")
    assert samples.name == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ids": "abc"}, "5 inputs and 3 ids"),
        ({"labels": [1]}, "5 inputs and 1 labels"),
        ({"groups": [1] * 6}, "5 inputs and 6 groups"),
        ({"ids": "abbcc"}, "2 repeated ids; randomness belongs to the id"),
    ],
)
def test_one_a_sample_is_needed(options, words):
    with pytest.raises(InvalidInputs, match=words):
        tensors(INPUTS, **options)


def test_an_empty_dataset_is_refused():
    with pytest.raises(InvalidInputs, match="is empty; at least one sample"):
        as_samples(INPUTS[:0])


@pytest.mark.parametrize("form", ["npz", "npy", "pt", "safetensors"])
def test_files_of_tensors_are_samples(tmp_path, form):
    path = tmp_path / f"mine.{form}"
    if form == "npz":
        np.savez(path, inputs=INPUTS.numpy(), labels=LABELS, groups=np.array(list("aabbc")))
    elif form == "npy":
        np.save(path, INPUTS.numpy())
    elif form == "pt":
        torch.save({"inputs": INPUTS, "labels": torch.tensor(LABELS)}, path)
    else:
        pytest.importorskip("safetensors.torch").save_file({"inputs": INPUTS, "labels": torch.tensor(LABELS)}, path)
    samples = tensor_file(str(path))

    assert torch.equal(all_of(samples), INPUTS)
    assert samples.name == "mine"
    assert samples.labels([0, 1]) == (None if form == "npy" else [2, 0])
    assert samples.groups == (("a", "a", "b", "b", "c") if form == "npz" else None)


def test_a_file_without_inputs_says_what_it_has(tmp_path):
    np.savez(tmp_path / "mine.npz", images=INPUTS.numpy())
    with pytest.raises(ValueError, match="holds 'images'; expected 'inputs'"):
        tensor_file(str(tmp_path / "mine.npz"))


# Torch datasets


class Items(Dataset):
    """A dataset of the items that it is given."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


Named = namedtuple("Named", ["image", "label"])
FORMS = {
    "x": lambda x, y: x,
    "(x,)": lambda x, y: (x,),
    "(x, y)": lambda x, y: (x, y),
    "(x, tensor y)": lambda x, y: (x, torch.tensor(y)),
    "[x, y, path]": lambda x, y: [x, y, f"photos/{y}.png"],
    "dict": lambda x, y: {"pixel_values": x, "label": y},
    "dict of others": lambda x, y: {"id": 7, "image": x, "target": y},
    "named tuple": Named,
    "array": lambda x, y: (x.numpy(), y),
}


@pytest.mark.parametrize("form", FORMS)
def test_items_of_every_form_are_read(form):
    dataset = Items([FORMS[form](*pair) for pair in zip(INPUTS, LABELS, strict=True)])
    samples = as_samples(dataset)

    assert torch.equal(all_of(samples), INPUTS)
    assert samples.labels([0, 1, 2]) == (None if form in ("x", "(x,)") else [2, 0, 1])
    assert represent(lambda inputs: inputs.flatten(1), dataset, batch=2).shape == (5, 48)


def test_a_dict_without_a_known_key_lists_those_that_it_has():
    dataset = Items([{"scan": one, "age": 3} for one in INPUTS])
    with pytest.raises(KeyError, match=r"keys 'scan', 'age', none of them a known input; say torch_dataset\(…, input_key='…'\)"):
        all_of(as_samples(dataset))
    assert torch.equal(all_of(torch_dataset(dataset, input_key="scan")), INPUTS)


def test_the_input_may_stand_elsewhere_in_a_tuple():
    dataset = Items([("meta", one) for one in INPUTS])
    assert torch.equal(all_of(torch_dataset(dataset, input_key=1)), INPUTS)


@pytest.mark.parametrize(
    "form",
    [
        float,
        np.float32,
        np.uint8,
        torch.tensor,
        lambda label: torch.tensor([label]),
        lambda label: np.array([label]),
        lambda label: [label],
    ],
    ids=["float", "numpy float", "numpy byte", "tensor", "tensor [1]", "array [1]", "list of one"],
)
def test_whole_numbers_are_labels_in_whatever_form(form):
    samples = as_samples(Items([(one, form(label)) for one, label in zip(INPUTS, LABELS, strict=True)]))
    assert samples.labels(range(5)) == LABELS
    assert all(type(label) is int for label in samples.labels(range(5)))
    assert as_samples(Items([{"image": INPUTS[0], "label": form(1)}])).labels([0]) == [1]


NO_CLASSES = {
    "fraction": (0.5, r"a label is 0.5; expected a class, a whole number from 0 on; .*labels that measure something"),
    "NaN": (float("nan"), "a label is nan; expected a class"),
    "infinite": (float("inf"), "a label is inf; expected a class"),
    "unlabeled": (-1, r"a label is -1; expected a class.*leave out samples without a label \(torch.utils.data.Subset\)"),
    "name": ("cat", r"a label is 'cat'; .*number the classes: \[sorted\(set\(labels\)\).index\(one\) for one in labels\]"),
    "one-hot": (torch.eye(3)[1], r"a label is \[0.0, 1.0, 0.0\]; .*of one-hot labels take argmax\(1\)"),
}


@pytest.mark.parametrize("kind", NO_CLASSES)
@pytest.mark.parametrize("place", [0, 3])
def test_labels_that_are_no_classes_count_as_none_and_a_warning_says_why(kind, place):
    strange, words = NO_CLASSES[kind]
    samples = as_samples(Items([(one, strange if row == place else LABELS[row]) for row, one in enumerate(INPUTS)]))
    assert torch.equal(all_of(samples), INPUTS)
    with pytest.warns(UserWarning, match=f"the labels of Items count as none: {words}"):
        assert samples.labels(range(5)) is None
    others = [row for row in range(5) if row != place]
    assert samples.picked(others).labels(range(4)) == [LABELS[row] for row in others]


@pytest.mark.parametrize("kind", NO_CLASSES)
def test_labels_that_are_given_and_are_no_classes_are_refused(kind):
    strange, words = NO_CLASSES[kind]
    given = [strange] * 5 if not isinstance(strange, torch.Tensor) else torch.stack([strange] * 5)
    with pytest.raises(InvalidInputs, match=words):
        tensors(INPUTS, labels=given)


def test_given_labels_may_be_floats_or_a_column():
    for given in (
        torch.tensor(LABELS).float(),
        np.array(LABELS)[:, None],
        [float(label) for label in LABELS],
        [True, False, True, True, False],
    ):
        found = tensors(INPUTS, labels=given).labels(range(5))
        assert found == [int(label) for label in torch.as_tensor(given).flatten().tolist()]
        assert all(type(label) is int for label in found)
    assert classes_of(torch.tensor([3, 0], dtype=torch.uint8)) == [3, 0]


@pytest.mark.filterwarnings("error")
def test_what_stands_beside_an_input_and_is_no_label_is_passed_over():
    for beside in (torch.rand(3, 4, 4), Image.new("L", (4, 4)), {"boxes": [1, 2]}, None, [{"id": 1}]):
        assert as_samples(Items([(one, beside) for one in INPUTS])).labels([0]) is None
    assert as_samples(TensorDataset(INPUTS, torch.tensor(LABELS))).labels([0, 1]) == [2, 0]


class Counted(Items):
    """Labels that are mapped when an item is read; `targets` holds them as they were."""

    targets = LABELS
    read = 0

    def __getitem__(self, row):
        Counted.read += 1
        return self.items[row], self.targets[row] // 2


def test_labels_are_what_the_items_say_whatever_the_dataset_has_besides():
    Counted.read = 0
    samples = as_samples(Counted(INPUTS))
    assert samples.labels(range(5)) == [1, 0, 0, 0, 1]

    class Permuted(Counted):
        def __getitem__(self, row):
            return self.items[row], self.targets[-row]

    assert as_samples(Permuted(INPUTS)).labels(range(5)) == [2, 2, 0, 1, 0]
    assert as_samples(Subset(Counted(INPUTS), [4, 1])).labels([0, 1]) == [1, 0]
    assert as_samples(ConcatDataset([Counted(INPUTS)] * 2)).labels([5, 6]) == [1, 0]


def test_an_item_is_read_once_for_its_input_and_its_label():
    samples = as_samples(Counted(INPUTS))
    Counted.read = 0
    all_of(samples)
    assert samples.labels(range(5)) == samples.labels(range(5)) == [1, 0, 0, 0, 1]
    assert Counted.read == 5


def torchvisions_own(tmp_path):
    """Its datasets as they are after loading; downloading is not for tests."""
    datasets = pytest.importorskip("torchvision.datasets")
    for name, stored in (
        ("CIFAR10", LABELS),
        ("CIFAR100", LABELS),
        ("USPS", LABELS),
        ("MNIST", torch.tensor(LABELS)),
        ("EMNIST", torch.tensor(LABELS)),
    ):
        made = object.__new__(getattr(datasets, name))
        pixels = np.zeros((5, 4, 4) + (3,) * name.startswith("CIFAR"), np.uint8)
        vars(made).update(data=torch.from_numpy(pixels) if torch.is_tensor(stored) else pixels, targets=stored)
        yield made
    for name in ("SVHN", "STL10"):
        made = object.__new__(getattr(datasets, name))
        vars(made).update(data=np.zeros((5, 3, 4, 4), np.uint8), labels=np.array(LABELS))
        yield made
    for row, label in enumerate(LABELS):
        (tmp_path / f"{label}").mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / f"{label}" / f"{row}.png")
    yield datasets.ImageFolder(tmp_path)


def test_torchvisions_own_datasets_are_asked_for_labels_without_reading_an_item(tmp_path, monkeypatch):
    for made in torchvisions_own(tmp_path):
        vars(made).update(transform=None, target_transform=None)
        told = [made[row][1] for row in range(5)]
        with monkeypatch.context() as patch:
            patch.setattr("PIL.Image.fromarray", None)  # so that no item can be read
            patch.setattr("torchvision.datasets.mnist._Image_fromarray", None, raising=False)
            made.loader = None
            assert as_samples(made).labels(range(5)) == told
            assert as_samples(Subset(Subset(made, [4, 2, 0]), [2, 0])).labels([0, 1]) == [told[0], told[4]]
        made.loader = Image.open
        made.target_transform = lambda label: label + 1
        assert as_samples(made).labels(range(5)) == [label + 1 for label in told]
        assert as_samples(Subset(made, [3])).labels([0]) == [told[3] + 1]
        own = type("Own", (type(made),), {"__getitem__": lambda self, row: (INPUTS[row], 7), "__len__": lambda self: 5})
        changed = object.__new__(own)
        vars(changed).update(vars(made), target_transform=None)
        assert as_samples(changed).labels(range(5)) == [7] * 5


def test_the_folder_that_was_sorted_into_other_classes_is_read_as_its_items_are(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    made = datasets.ImageFolder(tmp_path)
    made.samples = [(path, 5) for path, _ in made.samples]  # `targets` stays as it was
    assert as_samples(made).labels([0, 1]) == [made[0][1], made[1][1]] == [5, 5]


def test_unlabeled_samples_of_stl10_are_no_class():
    datasets = pytest.importorskip("torchvision.datasets")
    made = object.__new__(datasets.STL10)
    vars(made).update(data=np.zeros((3, 3, 4, 4), np.uint8), labels=np.array([4, -1, -1]), transform=None, target_transform=None)
    samples = as_samples(made)
    with pytest.warns(UserWarning, match="the labels of STL10 count as none: a label is -1"):
        assert samples.labels(range(3)) is None
    assert all_of(samples).shape == (3, 3, 4, 4)
    assert as_samples(Subset(made, [0])).labels([0]) == [4]


def test_pictures_without_a_transform_become_tensors():
    picture = Image.new("L", (6, 4), 51)
    samples = as_samples(Items([(picture, 1), (picture, 0)]))
    assert all_of(samples).shape == (2, 3, 4, 6)
    assert all_of(samples).unique().tolist() == [torch.tensor(0.2).item()]


def test_inputs_of_different_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"different shapes \(\[3, 4, 4\], \[3, 5, 4\]\); resize or crop"):
        all_of(as_samples(Items([torch.zeros(3, 4, 4), torch.zeros(3, 5, 4)])))


def test_a_loader_lends_its_dataset_and_its_order_is_of_no_matter():
    loader = DataLoader(TensorDataset(INPUTS), batch_size=2, shuffle=True, drop_last=True)
    samples = as_samples(loader)
    assert torch.equal(all_of(samples), INPUTS)
    assert len(samples) == 5


@pytest.mark.parametrize(
    "sampler",
    [SubsetRandomSampler([3, 1]), SubsetRandomSampler(torch.tensor([3, 1])), [3, 1], range(3, 0, -2)],
    ids=["subset", "subset of a tensor", "list", "range"],
)
def test_a_loader_of_some_samples_gives_those(sampler):
    dataset = TensorDataset(INPUTS, torch.tensor(LABELS))
    for loader in (DataLoader(dataset, sampler=sampler), DataLoader(dataset, batch_sampler=BatchSampler(sampler, 2, drop_last=False))):
        samples = as_samples(loader)
        assert samples.ids == ("3", "1")
        assert torch.equal(all_of(samples), INPUTS[[3, 1]])
        assert samples.labels([0, 1]) == [LABELS[3], LABELS[1]]


def test_a_loader_of_all_samples_is_its_dataset():
    dataset = TensorDataset(INPUTS)
    for options in ({}, {"shuffle": True}, {"batch_size": None}, {"sampler": RandomSampler(dataset)}, {"collate_fn": default_collate}):
        assert as_samples(DataLoader(dataset, **options)).ids == ("0", "1", "2", "3", "4")


def test_a_loader_that_does_not_say_which_samples_it_gives_is_refused():
    dataset = TensorDataset(INPUTS)

    class Batches(BatchSampler):
        pass

    for options, name in (
        ({"sampler": WeightedRandomSampler([1.0] * 5, 5)}, "WeightedRandomSampler"),
        ({"sampler": DistributedSampler(dataset, num_replicas=2, rank=0)}, "DistributedSampler"),
        ({"sampler": RandomSampler(dataset, num_samples=3)}, "RandomSampler"),
        ({"sampler": RandomSampler(dataset, replacement=True)}, "RandomSampler"),
        ({"sampler": SequentialSampler(INPUTS[:2])}, "SequentialSampler"),
        ({"batch_sampler": Batches(SequentialSampler(dataset), 2, False)}, "Batches"),
    ):
        words = f"the loader's sampler is a {name}, which does not say which samples.*give the dataset, or torch.utils.data.Subset"
        with pytest.raises(InvalidInputs, match=words):
            as_samples(DataLoader(dataset, **options))


def test_a_loader_that_puts_batches_together_itself_is_refused():
    loader = DataLoader(TensorDataset(INPUTS), collate_fn=lambda items: torch.stack([one for (one,) in items]) * 2)
    with pytest.raises(
        InvalidInputs, match=r"collate_fn is its own, and is not called; .*do in the dataset what it does, or give loader.dataset"
    ):
        as_samples(loader)
    with pytest.raises(InvalidInputs, match="without a length"):  # which is told first
        as_samples(DataLoader(type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(INPUTS)})()))


def test_what_cannot_be_read_by_position_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(INPUTS)

    for dataset, words in [
        (Stream(), "without a length"),
        (3, "of type int"),
        ({"inputs": INPUTS}, "of type dict"),
        (iter(INPUTS), "type"),
    ]:
        with pytest.raises(InvalidInputs, match=words):
            as_samples(dataset)


def test_a_list_of_tensors_is_a_dataset():
    assert torch.equal(all_of(as_samples(list(INPUTS))), INPUTS)


def test_a_torchvision_folder_has_its_paths_as_ids(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    for name in ("cat/1.png", "dog/2.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (4, 4), "white").save(tmp_path / name)
    samples = as_samples(datasets.ImageFolder(tmp_path))
    assert samples.ids == ("cat/1.png", "dog/2.png")
    assert samples.labels([0, 1]) == [0, 1]
    assert torch.equal(all_of(samples), torch.ones(2, 3, 4, 4))


def test_a_short_last_batch_is_kept_and_counts_each_sample_once():
    seen = []

    def encode(inputs):
        seen.append(len(inputs))
        return inputs.flatten(1)

    found = represent(encode, TensorDataset(INPUTS), batch=2)
    assert seen == [2, 2, 1]
    assert torch.equal(found, INPUTS.flatten(1))


# Folders


@pytest.fixture
def pictures(tmp_path):
    """Save a picture below a folder by relative path."""

    def save(name, picture, **options):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, **options)
        return tmp_path / "photos"

    return save


def corner(mode="RGB", size=(8, 8), color="red"):
    """White but for the upper left quarter."""
    picture = Image.new("RGB", size, "white")
    picture.paste(color, (0, 0, size[0] // 2, size[1] // 2))
    return picture.convert(mode)


def read_one(root, **options):
    (sample,) = all_of(folder(root, **{"size": 8} | options))
    return sample


def quarters(sample):
    """The colors of the four quarters, upper left first: the mean of each channel."""
    half = sample.shape[1] // 2
    parts = sample[:, :half, :half], sample[:, :half, half:], sample[:, half:, :half], sample[:, half:, half:]
    return [tuple(part.mean((1, 2)).mul(255).round().int().tolist()) for part in parts]


RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def test_a_folder_is_read_in_order_with_relative_paths_as_ids(pictures):
    for name in ("b/2.png", "a/10.PNG", "a/1.jpg", "top.webp"):
        root = pictures(name, corner())
    samples = folder(root, size=8)

    assert samples.ids == ("a/1.jpg", "a/10.PNG", "b/2.png", "top.webp")
    assert samples.name == "photos"
    assert all_of(samples).shape == (4, 3, 8, 8)
    assert all_of(samples).dtype == torch.float32
    assert (all_of(samples) >= 0).all()
    assert (all_of(samples) <= 1).all()
    assert as_samples(str(root)).ids == as_samples(root).ids == samples.ids
    assert torch.equal(samples.inputs([2, 0])[0], all_of(samples)[2])


def test_first_folders_may_be_labels_and_groups(pictures):
    for name in ("dog/1.png", "cat/deep/2.png", "dog/3.png"):
        root = pictures(name, corner())
    samples = folder(root, size=8, labels="folders", groups="folders")

    assert samples.ids == ("cat/deep/2.png", "dog/1.png", "dog/3.png")
    assert samples.labels(range(3)) == [0, 1, 1]
    assert samples.groups == ("cat", "dog", "dog")
    assert folder(root, size=8).labels([0]) is None
    with pytest.raises(ValueError, match="labels is 'names'; expected None or 'folders'"):
        folder(root, labels="names")


@pytest.mark.parametrize(
    ("orientation", "place"), [(1, 0), (2, 1), (3, 3), (4, 2), (5, 0), (6, 1), (7, 3), (8, 2)], ids=lambda value: str(value)
)
def test_pictures_are_turned_as_their_exif_says(pictures, orientation, place):
    exif = Image.Exif()
    exif[0x0112] = orientation
    sample = read_one(pictures("one.png", corner(), exif=exif))
    assert [color == RED for color in quarters(sample)] == [number == place for number in range(4)]


def test_grayscale_becomes_three_equal_channels(pictures):
    sample = read_one(pictures("one.png", corner("L", color="black")))
    assert quarters(sample) == [BLACK, WHITE, WHITE, WHITE]


def test_a_picture_of_one_bit_is_black_and_white(pictures):
    assert quarters(read_one(pictures("one.png", corner("1", color="black")))) == [BLACK, WHITE, WHITE, WHITE]


def test_palettes_become_their_colors(pictures):
    assert quarters(read_one(pictures("one.png", corner("P")))) == [RED, WHITE, WHITE, WHITE]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_laid_on_white(pictures, mode):
    if mode == "PA":
        picture = corner("P")
        root = pictures("one.png", picture, transparency=picture.getpixel((0, 0)))
    else:
        picture = Image.new(mode, (8, 8), (*WHITE, 255) if mode == "RGBA" else (255, 255))
        picture.paste((0, 0, 0, 0) if mode == "RGBA" else (0, 0), (0, 0, 4, 4))
        picture.paste((0, 0, 0, 255) if mode == "RGBA" else (0, 255), (4, 4, 8, 8))
        root = pictures("one.png", picture)
    assert quarters(read_one(root)) == [WHITE, WHITE, WHITE, WHITE if mode == "PA" else BLACK]


def test_half_transparent_black_is_gray(pictures):
    root = pictures("one.png", Image.new("RGBA", (8, 8), (0, 0, 0, 128)))
    assert read_one(root).unique().mul(255).round().tolist() == [127]


def test_16_bits_are_scaled_and_not_clipped(pictures):
    values = np.zeros((8, 8), dtype=np.uint16)
    values[:4, :4], values[:4, 4:], values[4:, :4] = 65535, 257 * 200, 257
    sample = read_one(pictures("one.png", Image.fromarray(values)))
    assert quarters(sample) == [(255,) * 3, (200,) * 3, (1,) * 3, (0,) * 3]


def test_cmyk_becomes_rgb(pictures):
    sample = read_one(pictures("one.jpg", corner("CMYK", size=(32, 32)), quality=100), size=32)
    for found, expected in zip(quarters(sample), [RED, WHITE, WHITE, WHITE], strict=True):
        assert np.abs(np.subtract(found, expected)).max() <= 8


def test_of_an_animation_the_first_frame_is_taken(pictures):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "white", "black")]
    root = pictures("one.gif", frames[0], save_all=True, append_images=frames[1:])
    assert quarters(read_one(root)) == [RED] * 4


@pytest.mark.parametrize(("width", "height"), [(17, 9), (9, 17), (1, 1), (1, 40), (8, 8)])
def test_odd_sizes_are_resized_and_cropped_in_the_middle(pictures, width, height):
    picture = Image.new("RGB", (width, height), "red")
    assert quarters(read_one(pictures("one.png", picture))) == [RED] * 4
    assert read_one(pictures("one.png", picture), size=(6, 10)).shape == (3, 6, 10)


def test_the_middle_is_what_is_kept(pictures):
    picture = Image.new("RGB", (24, 8), "red")
    picture.paste("white", (8, 0, 16, 8))
    sample = read_one(pictures("one.png", picture))
    assert quarters(sample) == [WHITE] * 4


def test_what_does_not_open_is_left_out_and_named_and_what_is_no_picture_is_passed_over(pictures):
    root = pictures("good.png", corner())
    whole = (root / "good.png").read_bytes()
    (root / "bad.png").write_bytes(b"this is no picture")
    (root / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "readme.txt").write_text("not a picture")
    (root / "folder.png").mkdir()
    with pytest.warns(UserWarning, match=r"of 3 pictures do not open and are left out: bad.png \(UnidentifiedImageError"):
        samples = folder(root, size=8)

    assert "good.png" in samples.ids
    assert "bad.png" not in samples.ids
    assert "folder.png" not in samples.ids
    assert "readme.txt" not in samples.ids
    assert "bad.png" in samples.notes[0]
    assert "cut.png" in samples.notes[0]
    assert samples.notes[1] == "files that are no pictures by their endings, and are passed over: 1"


FORMATS = {
    "jpg": {},
    "progressive.jpg": {"progressive": True},
    "cmyk.jpg": {},
    "png": {},
    "webp": {},
    "gif": {},
    "tif": {"compression": "tiff_lzw"},
    "bmp": {},
    "ppm": {},
}


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Corrupt EXIF data")
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.99])
def test_a_picture_that_is_cut_short_is_left_out_when_the_folder_is_listed(pictures, ending, kept):
    pictures("good.png", corner())
    picture = Image.effect_noise((64, 48), 50).convert("CMYK" if "cmyk" in ending else "RGB")
    root = pictures(f"cut.{ending}", picture, **FORMATS[ending])
    assert len(folder(root, size=8)) == 2
    whole = (root / f"cut.{ending}").read_bytes()
    (root / f"cut.{ending}").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.warns(UserWarning, match=f"1 of 2 pictures do not open and are left out: cut.{ending} "):
        samples = folder(root, size=8)
    assert samples.ids == ("good.png",)
    assert all_of(samples).shape == (1, 3, 8, 8)


def test_a_picture_with_a_changed_byte_is_left_out(pictures):
    pictures("good.png", corner())
    root = pictures("spoilt.png", Image.effect_noise((64, 48), 50))
    data = bytearray((root / "spoilt.png").read_bytes())
    data[len(data) // 2] ^= 1
    (root / "spoilt.png").write_bytes(data)
    with pytest.warns(UserWarning, match="are left out: spoilt.png"):
        assert folder(root, size=8).ids == ("good.png",)


def test_five_broken_pictures_are_named_in_the_warning_and_all_in_the_notes(pictures):
    root = pictures("good.png", corner())
    for number in range(7):
        (root / f"bad{number}.jpg").write_bytes(b"this is no picture")
    with pytest.warns(UserWarning, match=r"7 of 8 pictures.*bad4.jpg.*; and 2 more$") as warned:
        (note,) = folder(root, size=8).notes
    assert len(warned) == 1
    assert "bad5.jpg" not in str(warned[0].message)
    assert all(f"bad{number}.jpg (UnidentifiedImageError" in note for number in range(7))


def test_a_picture_that_breaks_after_it_was_listed_is_named_when_it_is_read(pictures):
    root = pictures("cut.jpg", Image.effect_noise((64, 64), 50))
    samples = folder(root, size=8)
    whole = (root / "cut.jpg").read_bytes()
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputs, match=r"cut.jpg"):
        all_of(samples)
    with pytest.raises(InvalidInputs, match=r"no picture that opens is in .* \(0 files of other kinds, 1 broken: cut.jpg"):
        folder(root, size=8)


def test_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(InvalidInputs, match="no picture that opens is in"):
        folder(tmp_path)
    with pytest.raises(InvalidInputs, match="which is no folder; give a folder of pictures"):
        folder(tmp_path / "absent")


@pytest.mark.parametrize("size", [np.int64(8), np.int32(8), torch.tensor(8), (8, 8), [np.int64(8), 8], np.array([8, 8])], ids=repr)
def test_a_size_is_a_whole_number_of_any_kind(pictures, size):
    root = pictures("one.png", corner())
    assert torch.equal(read_one(root, size=size), read_one(root, size=8))


@pytest.mark.parametrize("size", [0, -3, 8.0, "8", (8, 0), (8, 8, 8), None], ids=repr)
def test_a_size_that_is_none_is_refused(pictures, size):
    root = pictures("one.png", corner())
    with pytest.raises(
        ValueError, match=rf"size is {re.escape(repr(size))}; expected a whole number of pixels from 1 on, or \(height, width\)"
    ):
        folder(root, size=size)


RAMP = np.tile(np.linspace(0, 1, 8), (8, 1))


def of_every_kind():
    turned = Image.Exif()
    turned[0x0112] = 6
    glass = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    glass.paste((0, 0, 255, 128), (0, 0, 4, 8))
    palette = corner("P")
    return {
        "16 bits.png": (Image.fromarray((RAMP * 65535).astype(np.uint16)), {}),
        "16 bits.tiff": (Image.fromarray((RAMP * 65535).astype(np.uint16)), {}),
        "32 bits.tiff": (Image.fromarray((RAMP * 65535).astype(np.int32)), {}),
        "16 bits.pgm": (Image.fromarray((RAMP * 65535).astype(np.uint16)), {}),
        "floats.tiff": (Image.fromarray(RAMP.astype(np.float32)), {}),
        "glass.png": (glass, {}),
        "gray glass.png": (glass.convert("LA"), {}),
        "a color of glass.png": (palette, {"transparency": palette.getpixel((0, 0))}),
        "turned.png": (corner(), {"exif": turned}),
        "bits.png": (corner("1", color="black"), {}),
        "inks.jpg": (corner("CMYK"), {}),
    }


@pytest.mark.parametrize("name", of_every_kind())
def test_a_dataset_of_pictures_is_read_as_a_folder_of_them(pictures, name):
    picture, options = of_every_kind()[name]
    root = pictures(name, picture, **options)
    from_dataset = all_of(as_samples(Items([Image.open(root / name)])))[0]
    assert torch.equal(from_dataset, read_one(root))
    if name.startswith(("16", "32", "floats")):
        assert torch.allclose(from_dataset, torch.from_numpy(RAMP).float().expand(3, 8, 8), atol=1 / 255)
    if name == "turned.png":
        assert [color == RED for color in quarters(from_dataset)] == [False, True, False, False]
    if name == "glass.png":
        assert quarters(from_dataset) == [(127, 127, 255), WHITE, (127, 127, 255), WHITE]
    if name == "a color of glass.png":
        assert quarters(from_dataset) == [WHITE] * 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((RAMP * 255).astype(np.float32), r"mode 'F' has values from 0 to 255; expected \[0, 1\]; scale it to that"),
        ((RAMP - 0.5).astype(np.float32), r"mode 'F' has values from -0.5 to 0.5; expected \[0, 1\]"),
        (np.full((8, 8), np.nan, np.float32), "mode 'F' has values from nan"),
        ((RAMP * 70000).astype(np.int32), r"mode 'I' has values from 0 to 70000; expected \[0, 65535\]"),
    ],
    ids=["255", "negative", "NaN", "beyond 16 bits"],
)
def test_a_picture_of_an_unknown_scale_is_refused(pictures, values, words):
    picture = Image.fromarray(values)
    with pytest.raises(InvalidInputs, match=words):
        all_of(as_samples(Items([picture])))
    pictures("good.png", corner())
    root = pictures("strange.tiff", picture)
    with pytest.warns(UserWarning, match=f"1 of 2 pictures do not open and are left out: strange.tiff .*{words}"):
        assert folder(root, size=8).ids == ("good.png",)


# Names of every kind

STRANGE = (
    "a\rb",
    "a\r\nb",
    "a\nb",
    "\r",
    "\0",
    "a\0b",
    "\t",
    " lead",
    "trail ",
    "",
    " ",
    "NA",
    "nan",
    "007",
    'q"u"o',
    '"',
    "a,b",
    "\\",
    "漢",
    "\u2028",
)


def found_on(samples, **options):
    encoder, noise = Encoder(lambda inputs: inputs.flatten(1), name="flat"), attack("uniform_noise", epsilon=0.1)
    plan = Evaluation({"flat": encoder}, samples, {"noise": noise}, [metric("divergence")], attacked=len(samples))
    return run(plan, progress=False, diagnose=False, **options)


def test_results_of_samples_of_any_name_are_saved_and_read(tmp_path):
    inputs = torch.rand(len(STRANGE), 3, generator=torch.Generator().manual_seed(0))
    found = found_on(tensors(inputs, ids=STRANGE), store=tmp_path / "store")
    assert {*found.frame["sample"]} == {*STRANGE}
    loaded = Results.load(tmp_path / "store")
    pd.testing.assert_frame_equal(loaded.frame, found.frame)
    pd.testing.assert_frame_equal(loaded.notes, found.notes)
    plainly = pd.read_csv(tmp_path / "store" / "frame.csv.gz", keep_default_na=False)  # as others would read it
    assert plainly["sample"].tolist() == found.frame["sample"].tolist()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_escaped(pictures, tmp_path):
    pictures("good.png", corner())
    root = pictures("top/second.png", corner())
    try:
        (root / "good.png").rename(os.fsdecode(os.fsencode(root) + b"/caf\xe9.png"))
        (root / "top").rename(os.fsdecode(os.fsencode(root) + b"/d\xe9ep"))
    except OSError:
        pytest.skip("this file system has no such names")
    samples = folder(root, size=8, labels="folders", groups="folders")
    assert samples.ids == (r"caf\udce9.png", r"d\udce9ep/second.png")
    assert samples.groups == ("", r"d\udce9ep")
    assert samples.labels([0, 1]) == [0, 1]
    assert all_of(samples).shape == (2, 3, 8, 8)
    assert samples.picked([1]).ids == (r"d\udce9ep/second.png",)

    found = found_on(samples, store=tmp_path / "store")
    loaded = Results.load(tmp_path / "store")
    pd.testing.assert_frame_equal(loaded.frame, found.frame)
    assert loaded.manifest == found.manifest


def test_ids_and_groups_may_be_tensors_or_arrays():
    for ids in (torch.arange(5), np.arange(5), list(torch.arange(5)), list(np.arange(5)), range(5)):
        samples = tensors(INPUTS, ids=ids, groups=ids)
        assert samples.ids == samples.groups == ("0", "1", "2", "3", "4")


# Values that travel


@dataclass(frozen=True)
class Doubled(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, row):
        return torch.full((2,), row / 4)


def test_samples_can_be_pickled_for_workers_that_are_spawned(pictures):
    root = pictures("one.png", corner())
    for samples in (tensors(INPUTS, labels=LABELS), as_samples(Doubled()), folder(root, size=8, labels="folders")):
        copy = pickle.loads(pickle.dumps(samples))
        assert isinstance(copy, Samples)
        assert copy.ids == samples.ids
        assert torch.equal(all_of(copy), all_of(samples))
        assert copy.labels([0]) == samples.labels([0])


def test_what_is_read_is_the_same_each_time(pictures):
    root = pictures("one.jpg", Image.effect_noise((64, 48), 50))
    first, second = read_one(root, size=33), read_one(root, size=33)
    assert torch.equal(first, second)
    assert torch.equal(represent(Encoder(lambda inputs: inputs.flatten(1), name="flat"), root), all_of(as_samples(root)).flatten(1))


def test_some_rows_are_a_dataset_of_their_own():
    whole = tensors(torch.arange(12.0).reshape(6, 2), ids="abcdef", labels=[0, 1, 2, 3, 4, 5], groups="uuvvww", name="letters")
    some = whole.picked([4, 1, 5])
    assert (some.name, some.ids, some.groups, len(some)) == ("letters", ("e", "b", "f"), ("w", "u", "w"), 3)
    assert some.inputs([2, 0]).tolist() == [[10.0, 11.0], [8.0, 9.0]]
    assert some.labels([1, 2]) == [1, 5]
    assert some.picked([2]).inputs([0]).tolist() == [[10.0, 11.0]]
    assert pickle.loads(pickle.dumps(some)).inputs([0]).tolist() == [[8.0, 9.0]]
    assert tensors(torch.zeros(3, 2)).picked([1]).labels([0]) is None
    for rows, words in (([], "is empty"), ([1, 1], "1 repeated ids")):
        with pytest.raises(InvalidInputs, match=words):
            whole.picked(rows)

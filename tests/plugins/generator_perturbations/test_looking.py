"""What is said before a long search: victims that are none, images of another range or size, draws that hardly differ, wrong words."""

import contextlib
import functools
import warnings

import pytest
import torch
from torch import nn

from rt_core import Encoder
from rt_core.errors import RobustnessWarning
from rt_generator_perturbations import granularity
from rt_generator_perturbations.embedded import digits_classifier, digits_generator
from rt_generator_perturbations.generators import Generator
from rt_generator_perturbations.granularity import granularity_curve
from rt_generator_perturbations.latents import Latents, PickedLatents
from rt_generator_perturbations.network import DigitDecoder
from rt_generator_perturbations.victims import check_classifier, classifier

GROUPS = {"fine": ["image"]}
QUICK = {"growth": 2.0, "start": 0.05, "limit": 0.2, "refine": 0, "steps_per_radius": 1}


@functools.cache
def digits():
    return digits_generator()


class Decoder(nn.Module):
    """The decoder of digits, whose images go through a function."""

    def __init__(self, change):
        super().__init__()
        self.digits, self.change = digits().module, change

    def forward(self, latents, classes=None):
        if classes is None:
            classes = nn.functional.one_hot((latents[:, 0] * 1000).long() % 10, 10)  # a generator that knows no classes
        return self.change(self.digits(latents, classes))


def changed(change=lambda images: images, **options):
    options = {"classes": 10, "values": (0.0, 1.0), **options}
    return Generator(Decoder(change), latent=(16,), layers=["digits.start", "digits.block8"], name="mine", **options)


def encoder(dim=64, name="encoder"):
    weight = torch.randn(256, dim, generator=torch.Generator().manual_seed(0))
    return Encoder(lambda images: images.flatten(1) @ weight, name=name)


def told(generator, victims, goal="untargeted", items=12, **options):
    """Return what was warned of; but for what is only known at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        granularity_curve(generator, victims, groups=GROUPS, goal=goal, items=items, progress=False, **{**QUICK, **options})
    said = [one for one in caught if issubclass(one.category, RobustnessWarning)]
    assert all(one.filename == __file__ for one in said)
    return [text for one in said if "is right about" not in (text := str(one.message)) and "for no item" not in text]


@contextlib.contextmanager
def refused(words, monkeypatch):
    """Expect an error with these words before anything long: before scales, banks and searches."""

    def long(*given, **named):
        raise AssertionError("something long began")

    monkeypatch.setattr(granularity, "searched", long)
    monkeypatch.setattr(granularity, "further_draws", long)
    monkeypatch.setattr(Generator, "scales", long)
    with pytest.raises(ValueError, match=words):
        yield


def test_of_what_is_as_it_should_be_nothing_is_said():
    assert told(digits(), [digits_classifier(), digits_classifier(robust=True)], items=64) == []
    assert told(digits(), digits_classifier(), items=20, classes=3) == []  # it should say one class for everything
    assert told(digits(), digits_classifier(), items=1) == []
    assert told(digits(), encoder(), goal="quantile", limit=3.0) == []
    assert told(changed(classes=None), digits_classifier()) == []
    assert told(changed(classes=None), "digits_classifier") == []
    assert told(changed(classes=None), {"any": lambda images: digits_classifier()(images)}) == []


# ── victims ──


def test_what_has_other_outputs_than_the_generator_has_classes_is_warned_of_as_no_classifier():
    (said,) = told(digits(), {"a": digits_classifier(), "b": encoder(64)})

    assert said.startswith(
        "victim 'encoder' has 64 outputs, and generator 'digits_generator' draws 10 classes; this goal takes the largest"
    )
    assert said.endswith("if it gives representations, take a goal that reads those: 'representation', 'quantile' or 'breakaway'")


def test_classes_that_a_victim_has_no_output_for_are_refused(monkeypatch):
    with refused(
        "victim 'few' has 5 outputs, and there are items of class 9; expected a logit for each of the generator's classes", monkeypatch
    ):
        told(digits(), encoder(5, "few"), items=100)


def test_of_fewer_classes_items_may_be_given():
    (said,) = told(digits(), encoder(5, "few"), classes=2)

    assert "victim 'few' has 5 outputs, and generator 'digits_generator' draws 10 classes" in said


@pytest.mark.parametrize("goal", ["target", "untargeted"])
def test_without_classes_an_encoder_that_nobody_called_a_classifier_is_warned_of(goal):
    (said,) = told(changed(classes=None), encoder(), goal=goal)

    assert said.startswith("victim 'encoder' was not made as a classifier; this goal takes the largest output for what it says")
    assert "classifier(network, name='encoder')" in said
    assert "'representation', 'quantile' or 'breakaway'" in said


def test_the_check_is_one_function_for_searches_too():
    with pytest.warns(RobustnessWarning, match="has 64 outputs"):
        check_classifier(encoder(), digits(), 64, torch.tensor([3]))
    with pytest.raises(ValueError, match="there are items of class 7"):
        check_classifier(encoder(), digits(), 7, torch.tensor([3, 7]))


def test_a_victim_that_says_one_class_for_nearly_everything_is_warned_of():
    def one_class(images):
        return images.flatten(1)[:, :10] + 5 * torch.eye(10)[4]

    (said,) = told(digits(), {"stubborn": one_class}, items=30)

    assert said.startswith("victim 'stubborn' says class 4 of 30 of 30 clean images; look whether its trained weights are loaded")


def test_victims_of_another_size_are_refused_before_anything_long(monkeypatch):
    network = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 10))
    larger = classifier(nn.Sequential(nn.Upsample(size=(32, 32), mode="bilinear"), network), name="large")

    with (
        monkeypatch.context() as patch,
        refused(
            r"victim 'large' cannot take the images of generator 'digits_generator', \[channel, height, width\] = \[1, 16, 16\] \(mat1 .*"
            r"let it resize or repeat them by itself: classifier\(nn.Sequential\(nn.Upsample\(",
            patch,
        ),
    ):
        told(digits(), [digits_classifier(), classifier(network, name="large")])
    assert told(digits(), larger) == []


# ── what draws ──


def _as_dcgan(layer):
    if isinstance(layer, nn.ConvTranspose2d):
        nn.init.normal_(layer.weight, 0.0, 0.02)


def test_draws_that_hardly_differ_are_warned_of():
    always = digits()(digits().draw(["one"]))
    collapsed = changed(lambda images: 0.99 * always + 0.01 * images)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 4), nn.Tanh()]
        untrained = nn.Sequential(nn.Unflatten(1, (8, 1, 1)), *(layer.apply(_as_dcgan) for layer in layers))

    for generator, values in ((collapsed, "(0.0, 1.0)"), (Generator(untrained, latent=8, layers=["3"]), "(-1.0, 1.0)")):
        (said,) = told(generator, encoder(), goal="quantile")
        assert "hardly differ: half of 12 are at most 0.00" in said
        assert f"look whether its trained weights are loaded and values={values} the range of its images" in said


def test_one_image_for_each_class_is_as_good_as_collapsed():
    def averages(latents, classes):
        return classes.float() @ torch.rand(10, 256, generator=torch.Generator().manual_seed(0))

    class Averages(nn.Module):
        def __init__(self):
            super().__init__()
            self.through = nn.Identity()

        def forward(self, latents, classes):
            return self.through(averages(latents, classes) + 1e-4 * latents[:, :1]).view(-1, 1, 16, 16)

    generator = Generator(Averages(), latent=4, classes=10, layers=["through"], values=(0.0, 1.0))

    assert any("hardly differ" in said for said in told(generator, digits_classifier(), items=64))


@pytest.mark.parametrize(
    ("change", "values", "words"),
    [
        (lambda images: 2 * images - 1, (0.0, 1.0), r"lie far outside and are clipped; say the range that it was trained for"),
        (
            lambda images: images,
            (-1.0, 1.0),
            r"draws images in \[0.*\], and was said to draw in values=\(-1.0, 1.0\): they fill no more than a half",
        ),
        (lambda images: 255 * images, (0.0, 1.0), "are clipped"),
        (
            lambda images: images,
            (0.0, 255.0),
            r"hardly differ.*values=\(0.0, 255.0\) the range of its images, which the network draws in \[0.00",
        ),
    ],
    ids=["tanh as sigmoid", "sigmoid as tanh", "bytes as sigmoid", "sigmoid as bytes"],
)
def test_another_range_than_the_networks_is_warned_of(change, values, words):
    said = told(changed(change, values=values), digits_classifier())

    assert [one for one in said if "mine" in one] == [said[0]]
    with pytest.warns(RobustnessWarning, match=words):
        warnings.warn(said[0], RobustnessWarning, stacklevel=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda images: (images - 0.5) * 1.15 + 0.5,  # a decoder without a last activation overshoots
        lambda images: images.round(),  # black and white alone
        lambda images: 1 - images,  # on white
        lambda images: images.where(images > 0.5, 0.0),
    ],
    ids=["overshoot", "binary", "on white", "black background"],
)
def test_black_and_white_backgrounds_raise_no_alarm(change):
    assert [said for said in told(changed(change), digits_classifier()) if "mine" in said] == []


def test_images_outside_a_victims_bounds_are_refused(monkeypatch):
    tanh = changed(lambda images: 2 * images - 1, values=None)
    wide = classifier(lambda images: digits_classifier()((images + 1) / 2), name="wide", bounds=(-1, 1))

    assert told(tanh, wide) == []
    with refused(
        r"generator 'mine' draws images in \[-0.99\d, 0.\d+\], \d+% of their numbers far outside the bounds of victim 'digits_classifier', \[0, 1\]; "
        r"say what range they are in, Generator\(…, values=\(-1, 1\)\)",
        monkeypatch,
    ):
        told(tanh, [wide, digits_classifier()])


# ── words ──


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"generator": DigitDecoder()},
            r"generator is a DigitDecoder; expected a Generator: wrap a network, Generator\(module, latent=…\)",
        ),
        ({"generator": None}, "generator is a NoneType"),
        ({"grow": 1.1}, r"there is no option 'grow'; did you mean 'growth'\?; how the search goes is said by norm, start, limit, growth"),
        ({"item": 3}, r"there is no option 'item'; did you mean 'items'\?"),
        ({"zzz": 3}, r"there is no option 'zzz'; how the search goes"),
        ({"victims": 5}, "a victim is 5; give an encoder, a classifier"),
        ({"victims": None}, "a victim is None; give an encoder"),
        ({"victims": torch.zeros(2, 3)}, r"a victim is tensor\(\[0., 0., 0.\]\); give an encoder"),
        ({"victims": {"a": 5}}, "a victim is 5; give an encoder"),
        ({"scales": {"start": 1.0}}, "scales lack 'image'"),
    ],
)
def test_what_is_not_what_is_asked_for_is_refused_in_words(options, words, monkeypatch):
    given = {"generator": digits(), "victims": digits_classifier(), **options}

    with refused(words, monkeypatch):
        granularity_curve(given.pop("generator"), given.pop("victims"), groups={"early": ["start"], "fine": ["image"]}, items=4, **given)


# ── what a newcomer tries ──


def test_latents_that_repeat_are_told_from_weights_that_are_not_loaded():
    rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    few = changed(classes=None)
    few.latent = PickedLatents(rows)

    (said,) = (one for one in told(few, digits_classifier(), items=20) if "says class" not in one)
    assert said.startswith("rows of the latents repeat: 20 items hold 3 different ones, so they are hardly more than 3 items; give each")
    assert "weights" not in said

    always = digits()(digits().draw(["one"]))
    few.module.change = lambda images: 0.99 * always + 0.01 * images  # repeated and collapsed
    assert any("hardly differ: half of 3 are" in one for one in told(few, digits_classifier(), items=20))


def test_a_few_rows_that_repeat_are_no_matter():
    twice = digits().draw(range(12))
    latents = Latents(ids=[*twice.ids[:-1], "again"], latents=twice.latents[[*range(11), 0]], classes=twice.classes[[*range(11), 0]])

    assert told(digits(), digits_classifier(), items=latents) == []


def test_a_victim_of_three_channels_is_told_to_repeat_one():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

    with pytest.raises(
        ValueError, match=r"wants another size or number of channels, let it .*Upsample\(.*network\(images.expand\(-1, 3, -1, -1\)\)"
    ):
        told(digits(), classifier(network, name="colored"))
    told(digits(), classifier(lambda images: network(images.expand(-1, 3, -1, -1)), name="colored"))  # as is said


def test_outputs_of_a_sigmoid_are_warned_of_once():
    sigmoid = classifier(lambda images: digits_classifier()(images).sigmoid(), name="sigmoid")

    (said,) = told(digits(), sigmoid)
    assert said.startswith("all outputs of victim 'sigmoid' on 12 clean images lie in [0, 1], as those of a sigmoid do; a search")
    almost = classifier(lambda images: digits_classifier()(images).tanh(), name="almost")
    assert told(digits(), almost) == []
    unit = Encoder(lambda images: encoder()(images).sigmoid(), name="unit")
    assert told(digits(), unit, goal="quantile", limit=3.0) == []  # representations may lie where they will


def test_a_tensor_of_latents_is_not_printed():
    with pytest.raises(
        ValueError, match=r"^items is a Tensor; expected Latents, such as generator.draw\(range\(4\)\), or.*PickedLatents"
    ) as error:
        told(digits(), digits_classifier(), items=torch.randn(4, 16))
    assert len(str(error.value)) < 200

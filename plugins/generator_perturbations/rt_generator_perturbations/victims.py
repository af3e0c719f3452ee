"""Who is asked about perturbed images: classifiers and encoders, both as encoders of the core."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.encoders import Encoder
from rt_core.errors import EncoderError, RobustnessWarning
from rt_core.registry import Use, use
from rt_generator_perturbations.generators import Generator

__all__ = ["check_bounds", "check_classifier", "check_finite", "check_generator", "check_logits", "classifier", "victim_of", "victims_of"]

_ROUNDED = 5e-3  # by which probabilities of half precision may miss a sum of 1


class _Classifier(Encoder):
    """An encoder that is known to give logits."""


def classifier(module: nn.Module | Callable[[Tensor], Any], *, name: str, **settings: Any) -> Encoder:
    """Return a classifier as a victim: an ``Encoder`` whose output are logits, [batch, classes].

    It sees images in [0, 1]. settings: of ``Encoder``, such as ``normalize="imagenet"``. The warning that logits would be taken for
    representations is left out: here they are what is asked for.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* seems to end in a classifier", category=RobustnessWarning)
        return _Classifier(module, name=name, **settings)


def check_generator(generator: Any) -> None:
    """Raise for what is no ``Generator``.

    Raises:
        ValueError: see above.
    """
    if not isinstance(generator, Generator):
        raise ValueError(f"generator is a {type(generator).__name__}; expected a Generator: wrap a network, Generator(module, latent=…)")


def check_bounds(victim: Encoder, generator: Generator) -> None:
    """Raise where a victim takes inputs in another range than the one in which the generator draws.

    Raises:
        ValueError: see above.
    """
    low, high = (torch.as_tensor(bound) for bound in victim.bounds)
    if generator.values is not None and not bool((low == 0).all() and (high == 1).all()):
        raise ValueError(
            f"victim {victim.name!r} takes inputs in [{low.min():g}, {high.max():g}], and generator {generator.name!r} draws images in [0, 1]; make "
            "the victim one of bounds=(0, 1) that normalizes by itself: normalize=(mean, deviation), such as (0.5, 0.5) for inputs in [-1, 1]"
        )


def check_classifier(victim: Encoder, generator: Generator, outputs: int, labels: Tensor | None = None) -> None:
    """Raise or warn where a goal of classes would take a victim for a classifier that is none, or none of what the generator draws.

    outputs: how many the victim has; labels: the classes that the items were drawn of, if they were drawn of classes

    Raises:
        ValueError: a class of the items has no output.
    """
    remedy = "if it gives representations, take a goal that reads those: 'representation', 'quantile' or 'breakaway'"
    if labels is not None and len(labels) and (last := int(labels.max())) >= outputs:
        raise ValueError(
            f"victim {victim.name!r} has {outputs} outputs, and there are items of class {last}; expected a logit for each of the generator's "
            f"classes, in its order: give a classifier of these, or other classes=; {remedy}"
        )
    if generator.classes is not None and outputs != generator.classes:
        said = f"has {outputs} outputs, and generator {generator.name!r} draws {generator.classes} classes"
        remedy = f"look whether both number the classes alike; {remedy}"
    elif generator.classes is None and not isinstance(victim, _Classifier):
        said = "was not made as a classifier"
        remedy = f"if it is one, say so: classifier(network, name={victim.name!r}); {remedy}"
    else:
        return
    taken = "this goal takes the largest output for what it says, and any output for a class"
    warnings.warn(f"victim {victim.name!r} {said}; {taken}: {remedy}", RobustnessWarning, stacklevel=4)


def check_logits(victim: Encoder, outputs: Tensor) -> None:
    """Raise where a victim gives probabilities to a goal that reads logits: decisions are the same, and magnitudes are not.

    A search follows the normalized slope of a margin, and the margin of probabilities has another slope than that of their logits. Logarithms of
    probabilities are as good as logits: they differ from them by one number an image, which no margin sees.

    outputs: [items, classes], of clean images

    Raises:
        ValueError: no output is negative, and those of each image sum to 1.
    """
    if outputs.shape[1] > 1 and bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < _ROUNDED).all()):
        raise ValueError(
            f"victim {victim.name!r} gives probabilities (no output on {len(outputs)} clean images is negative, and those of each sum to 1); expected "
            "logits, since a search that follows probabilities finds other magnitudes for the same decisions: leave out its last softmax, or take "
            f"logarithms, classifier(lambda images: network(images).log(), name={victim.name!r})"
        )


def check_finite(victim: Encoder, outputs: Tensor) -> None:
    """Raise where a victim gave something for clean images that is no number.

    outputs: [items, dim]

    Raises:
        EncoderError: with how many.
    """
    if broken := int((~outputs.isfinite()).any(1).sum()):
        raise EncoderError(
            f"victim {victim.name!r} gave NaN or infinity for {broken} of {len(outputs)} clean images; no magnitude can be read from such outputs: "
            "look what it does with these images, or leave them out"
        )


def victims_of(given: Any) -> dict[str, Encoder]:
    """Return victims by label: of one, several or a mapping of encoders, registered names, descriptions (``use``) or plain classifiers.

    Raises:
        ValueError: none is given, or two have one label.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [(None, one) for one in _listed(given)]
    labelled: dict[str, Encoder] = {}
    for label, one in pairs:
        victim = victim_of(one, label)
        key = label or victim.name
        if key in labelled:
            raise ValueError(f"two victims are called {key!r}; give a mapping {{label: victim}}")
        labelled[key] = victim
    if not labelled:
        raise ValueError("no victim is given; give an encoder, or a classifier: classifier(network, name='mine')")
    return labelled


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not (isinstance(given, (str, Use)) or callable(given)) else [given]


def victim_of(given: Any, label: str | None = None) -> Encoder:
    """Return a victim as an encoder; of an encoder, a registered name, a description or a plain classifier.

    Raises:
        ValueError: it is none of these.
    """
    described = use(given) if isinstance(given, str) else given
    made = described.make("encoder") if isinstance(described, Use) else described
    if isinstance(made, Encoder):
        return made
    if not callable(made):
        raise ValueError(f"a victim is {made!r:.60}; give an encoder, a classifier, or any function from images to logits")
    return classifier(made, name=label or str(getattr(made, "__name__", type(made).__name__)))

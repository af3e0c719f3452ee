"""Who is asked about perturbed images: classifiers and encoders, both as encoders of the core."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.encoders import Encoder
from rt_core.errors import RobustnessWarning
from rt_core.registry import Use, use
from rt_generator_perturbations.generators import Generator

__all__ = ["check_bounds", "classifier", "victims_of"]


def classifier(module: nn.Module | Callable[[Tensor], Any], *, name: str, **settings: Any) -> Encoder:
    """Return a classifier as a victim: an ``Encoder`` whose output are logits, [batch, classes].

    It sees images in [0, 1]. settings: of ``Encoder``, such as ``normalize="imagenet"``. The warning that logits would be taken for
    representations is left out: here they are what is asked for.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* seems to end in a classifier", category=RobustnessWarning)
        return Encoder(module, name=name, **settings)


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


def victims_of(given: Any) -> dict[str, Encoder]:
    """Return victims by label: of one, several or a mapping of encoders, registered names, descriptions (``use``) or plain classifiers.

    Raises:
        ValueError: none is given, or two have one label.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [(None, one) for one in _listed(given)]
    labelled: dict[str, Encoder] = {}
    for label, one in pairs:
        victim = _made(one, label)
        key = label or victim.name
        if key in labelled:
            raise ValueError(f"two victims are called {key!r}; give a mapping {{label: victim}}")
        labelled[key] = victim
    if not labelled:
        raise ValueError("no victim is given; give an encoder, or a classifier: classifier(network, name='mine')")
    return labelled


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, Use)) or callable(given) else list(given)


def _made(given: Any, label: str | None) -> Encoder:
    described = use(given) if isinstance(given, str) else given
    made = described.make("encoder") if isinstance(described, Use) else described
    if isinstance(made, Encoder):
        return made
    if not callable(made):
        raise ValueError(f"a victim is {made!r}; give an encoder, a classifier, or any function from images to logits")
    return classifier(made, name=label or str(getattr(made, "__name__", type(made).__name__)))

"""ART itself, imported when it is first needed, so that the process and the user's home stay as they were."""

import contextlib
import inspect
import logging.config
import os
import random as python_random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rt_core.adapting import warn_untested

__all__ = ["Library", "evasions", "library", "options_of", "quiet"]

TESTED = ((1, 20), (1, 21))


class Library(NamedTuple):
    """What is used of ART."""

    evasion: ModuleType
    EvasionAttack: type
    PyTorchClassifier: type
    version: str


@cache
def library() -> Library:
    """Import ART; the first time takes seconds, and warns of a version that was not tested.

    Raises:
        ImportError: it is not installed, or cannot be imported.
    """
    try:
        with _contained():
            evasion, attacks, classifiers = (
                import_module(f"art.{name}") for name in ("attacks.evasion", "attacks", "estimators.classification")
            )
        found = Library(evasion, attacks.EvasionAttack, classifiers.PyTorchClassifier, sys.modules["art"].__version__)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"ART cannot be imported ({error}); to install it: pip install adversarial-robustness-toolbox") from error
    warn_untested("ART", found.version, TESTED)
    return found


@cache
def evasions() -> Mapping[str, type]:
    """Return the classes of ``art.attacks.evasion`` that are evasion attacks, by name."""
    found = library()
    return {name: one for name, one in vars(found.evasion).items() if isinstance(one, type) and issubclass(one, found.EvasionAttack)}


@cache
def options_of(attack: str) -> Mapping[str, Any]:
    """Return the options of a class of ART with their defaults; ``inspect.Parameter.empty`` where there is none."""
    _, *options = inspect.signature(evasions()[attack]).parameters.values()
    return {option.name: option.default for option in options if option.name != "targeted"}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what is warned of inside ART, such as a division by a gradient of zero."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(art|cma)\.")
        yield


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Keep what importing ART does beside importing to itself.

    ART writes ~/.art/config.json, unless there is one; configures logging, upon which Python closes every handler that the process has
    (a log file opened for writing takes no more lines); and brings scipy and scikit-learn, which add warnings filters and draw from Python's
    global generator.
    """
    if "art" in sys.modules:
        yield
        return
    state, configure = python_random.getstate(), logging.config.dictConfig
    with warnings.catch_warnings(), _home_elsewhere():
        logging.config.dictConfig = lambda config: None
        try:
            yield
        finally:
            logging.config.dictConfig = configure
            python_random.setstate(state)
    logging.getLogger("art").addHandler(logging.NullHandler())  # as ART's own configuration does


@contextlib.contextmanager
def _home_elsewhere() -> Iterator[None]:
    """Point the home directory to a temporary one, unless ART has a configuration in the real one already."""
    real = Path(os.path.expanduser("~")) / ".art"
    if (real / "config.json").exists():
        yield
        return
    before = {name: os.environ.get(name) for name in ("HOME", "USERPROFILE")}
    with tempfile.TemporaryDirectory(prefix="rt-art-") as elsewhere:
        os.environ.update(dict.fromkeys(before, elsewhere))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            if "art.config" in sys.modules:
                sys.modules["art.config"].ART_DATA_PATH = str(real / "data")

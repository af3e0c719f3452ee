"""The bridge to the Adversarial Robustness Toolbox: an encoder as one of its classifiers, and its attacks as attacks of rt."""

import contextlib
import inspect
import logging.config
import math
import os
import random as python_random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rt_core.divergences import Divergence
from rt_core.encoders import Encoder, round_inward
from rt_core.errors import RobustnessWarning
from rt_core.randomness import SampleRandom
from rt_core.traces import Ball, Batch, per_sample

__all__ = ["ETA", "ARTAttack", "AnchorLoss", "Representations"]

ETA = 1e-3
"""Half the width of the perturbation beside the clean input at which its gradient is taken, in the bounds' units, as in U-FGSM."""

TESTED = ((1, 20), (1, 21))

# The attacks that read nothing but the gradient of the loss.
_SERVED = (
    "FastGradientMethod",
    "BasicIterativeMethod",
    "MomentumIterativeMethod",
    "ProjectedGradientDescent",
    "ProjectedGradientDescentNumpy",
    "ProjectedGradientDescentPyTorch",
)
_SHORT = {
    "fgsm": "FastGradientMethod",
    "fgm": "FastGradientMethod",
    "bim": "BasicIterativeMethod",
    "mim": "MomentumIterativeMethod",
    "mifgsm": "MomentumIterativeMethod",
    "pgd": "ProjectedGradientDescent",
    "apgd": "AutoProjectedGradientDescent",
}
_LATER = "modes 'threshold' and 'instance' come later"


@dataclass(frozen=True, init=False, repr=False)
class ARTAttack:
    """An evasion attack of ART that climbs the divergence instead of a classifier's loss, or descends it to a target.

    The library sees a ``PyTorchClassifier`` whose logits are the representations and whose loss is the divergence from each row's anchor;
    the labels ``y`` say which anchor is a row's own. So ART's gradient attacks become siblings of U-PGD:
    ``ARTAttack("ProjectedGradientDescent", num_random_init=1)`` takes U-PGD's very steps from the library's own start.
    What it returns is projected to the exact ball and the bounds, and otherwise left as it is, also where it is no better than its start.

    *Random starts* come from numpy's global generator, which is seeded for the batch and put back: they are reproducible and depend on the
    batch, unlike those of ``UPGD``. A start cannot be given: ART centers its ball on what it is given.

    *At the clean input* the gradient of the divergence from itself is zero, and ART begins there unless ``num_random_init=1``. Aiming away,
    the view therefore looks at x + η wherever a gradient is asked for at exactly x, η uniform in ±``ETA`` (0.001) and drawn per sample, as
    U-FGSM does; every other iterate is seen as it is, and the ball stays around x.

    *Costs.* ART computes in float32 whatever it is given, and looks at the clean and the adversarial batch once more at the end: two forward
    passes that rt does not need. It is imported when the first attack is made, which takes seconds; for so long the variable HOME points to a
    temporary directory, unless ART has left its configuration in the real one.

    Args:
        attack: a class of ``art.attacks.evasion`` by name, such as ``"ProjectedGradientDescent"``, or a factory
            ``(estimator, **options) -> ART attack``, of which nothing is known: it has no ball, so its results are checked against the
            bounds alone.
        mode: ``"y"``; ``"threshold"`` and ``"instance"`` come later, for attacks that ask which class a classifier finds.
        options: of the library's class, under its own names and with its own defaults (``eps``, ``eps_step``, ``max_iter``, …); eps and
            eps_step are in the bounds' units. ``batch_size`` is the whole batch and ``verbose`` is off unless given.

    Attributes:
        library: the library and its version, since its defaults and its algorithms are part of what is recorded.

    Raises:
        ImportError: ART is not installed.
        ValueError: no such attack, mode or option, an attack that the mode cannot serve, or a number out of its range.
    """

    attack: str | Callable[..., Any]
    mode: str
    options: Mapping[str, Any] = field(hash=False)
    library: str

    def __init__(self, attack: str | Callable[..., Any], *, mode: str = "y", **options: Any) -> None:
        if mode != "y":
            raise ValueError(f"mode is {mode!r}; expected 'y' ({_LATER})")
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        named = _named(attack)
        _check_options(named, plain)
        library = f"adversarial-robustness-toolbox {sys.modules['art'].__version__}"
        for name, value in {"attack": named, "mode": mode, "options": plain, "library": library}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"ARTAttack({', '.join([repr(self.attack), *(f'{name}={value!r}' for name, value in self.options.items())])})"

    @property
    def ball(self) -> Ball | None:
        """The ball of ``norm`` and ``eps``, given or default; None for a factory, and for norms other than infinity and 2."""
        if not isinstance(self.attack, str):
            return None
        # BasicIterativeMethod has no norm to choose: it is infinity.
        known = {"norm": math.inf, **_parameters(self.attack), **self.options}
        norm = {math.inf: "linf", 2: "l2"}.get(float(known["norm"]))
        return None if norm is None else Ball(norm, known["eps"])

    @property
    def steps(self) -> int:
        """How many steps the library's attack takes, given or by default; 0 where it has no ``max_iter``."""
        known = _parameters(self.attack) if isinstance(self.attack, str) else {}
        return {**known, **self.options}.get("max_iter", 0)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        if batch.start is not None:
            raise ValueError(
                f"{self!r} takes no start: ART centers its ball on the inputs that it is given, so a start would move the ball; "
                "leave start out, or take an attack of rt, such as UPGD"
            )
        ball = self.ball
        if ball is not None and ball.radius == 0:
            return batch.inputs.clone()
        inputs = batch.inputs.float().contiguous()
        labels = np.eye(max(len(inputs), 2), dtype=np.float32)[: len(inputs)]
        with _current(inputs.device), torch.enable_grad(), random.global_generators("global generators"):
            attack = self._made(_estimator(encoder, batch, divergence, random, labels.shape[1]), len(inputs))
            moved = attack.generate(x=inputs.cpu().numpy(), y=labels)
        moved = torch.as_tensor(moved).to(batch.inputs)
        return encoder.clip(moved) if ball is None else ball.project(moved, batch.inputs, encoder.bounds)

    def _made(self, estimator: Any, rows: int) -> Any:
        if isinstance(self.attack, str):
            wanted = {"batch_size": rows, "verbose": False}
            silent = {name: value for name, value in wanted.items() if name in _parameters(self.attack)}
            return getattr(_library().evasion, self.attack)(estimator, **{**silent, **self.options})
        made = self.attack(estimator, **self.options)
        if not isinstance(made, _library().EvasionAttack):
            raise ValueError(f"factory {self.attack!r} returned {type(made).__name__}; expected an evasion attack of ART")
        if made.targeted:
            raise ValueError(f"the attack of factory {self.attack!r} is targeted; leave that out, since the batch's aim decides it")
        return made


class Representations(nn.Module):
    """An encoder as the network of an ART estimator: representations where logits would be.

    It has no training mode, and neither shows the encoder's modules and weights to the library nor changes them.

    Args:
        eta: [batch, *input], what is added where a gradient is asked for at exactly a clean input, aiming away.
    """

    def __init__(self, encoder: Encoder, batch: Batch, *, eta: Tensor) -> None:
        super().__init__()
        self.training = False
        self.__dict__["encoder"] = encoder  # not as a submodule: ART clears gradients and sets modes of what it finds
        self.home, self.dtype = batch.inputs.device, batch.inputs.dtype
        self.clean = batch.inputs.float()
        self.beside = encoder.clip(batch.inputs + eta.to(batch.inputs)) if batch.aim == "away" else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Represent a batch, where the batch is and on the device that it came from.

        inputs: [rows, *input] -> [rows, dim]
        """
        seen = inputs.to(self.home, self.dtype).contiguous()
        if self.beside is not None and inputs.requires_grad:
            fresh, own = _fresh(inputs.detach().to(self.clean), self.clean)
            seen = torch.where(per_sample(fresh, seen), self.beside[own] + (seen - seen.detach()), seen)
        representations = self.encoder(seen)
        if inputs.requires_grad and not representations.requires_grad:
            # A constant output has no graph, which means the same as a gradient of zero.
            representations = representations + (seen * 0).flatten(1).sum(1, keepdim=True)
        return representations.to(inputs.device)

    def train(self, mode: bool = True) -> "Representations":
        """Do nothing: a view measures, so it is always in eval mode."""
        return self


class AnchorLoss(nn.Module):
    """The divergence from each row's anchor, summed; toward targets, minus that: climbing it is what the aim asks for.

    The labels are one-hot over the batch's anchors. The anchors themselves would not do as labels: FastGradientMethod divides labels by
    their sum, every attack casts them to float32, and where a representation has one dimension it is taken for a class index.
    """

    def __init__(self, anchor: Tensor, divergence: Divergence, *, way: int) -> None:
        super().__init__()
        self.anchor, self.divergence, self.way = anchor, divergence, way

    def forward(self, representations: Tensor, labels: Tensor) -> Tensor:
        """representations: [rows, dim]; labels: [rows, batch] -> scalar"""
        own = labels.argmax(dim=1).to(self.anchor.device)
        return self.way * self.divergence(self.anchor[own], representations.to(self.anchor.device)).sum()


def _estimator(encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom, classes: int) -> Any:
    eta = random.uniform("eta", batch.inputs.shape[1:], low=-ETA, high=ETA)
    low, high = (bound.cpu().numpy() for bound in round_inward(encoder.bounds, batch.inputs.float()))
    if low.shape != high.shape:
        low, high = np.broadcast_arrays(low, high)
    return _library().PyTorchClassifier(
        model=Representations(encoder, batch, eta=eta),
        loss=AnchorLoss(batch.anchor, divergence, way=1 if batch.aim == "away" else -1),
        input_shape=tuple(batch.inputs.shape[1:]),
        nb_classes=classes,
        clip_values=(low, high),
        device_type="gpu" if batch.inputs.device.type == "cuda" else "cpu",
    )


def _fresh(inputs: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    """Say which rows are still exactly clean inputs, and of which sample; an attack may send fewer or more of them, in any order.

    inputs: [rows, *input]; clean: [batch, *input] -> two of [rows]
    """
    if len(inputs) == len(clean):
        return (inputs == clean).flatten(1).all(1), torch.arange(len(clean), device=clean.device)
    equal = torch.stack([(row == clean).flatten(1).all(1) for row in inputs])
    return equal.any(1), equal.float().argmax(1)


def _current(device: torch.device) -> contextlib.AbstractContextManager:
    # ART takes the current device of its kind.
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _named(attack: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the name of a class of the library, which mode "y" serves, or the factory."""
    library = _library()
    classes = {
        name: found for name, found in vars(library.evasion).items() if isinstance(found, type) and issubclass(found, library.EvasionAttack)
    }
    if not isinstance(attack, str):
        name = getattr(attack, "__name__", "")
        if not callable(attack):
            raise ValueError(
                f"attack is {attack!r}; expected the name of a class of art.attacks.evasion, or a factory (estimator) -> attack"
            )
        if classes.get(name) is not attack:
            return attack
        attack = name
    if attack not in classes:
        meant = f"; did you mean {_SHORT[attack.lower()]!r}?" if attack.lower() in _SHORT else _did_you_mean(attack, classes)
        raise ValueError(f"art.attacks.evasion has no attack {attack!r}{meant} (mode 'y' serves {', '.join(_SERVED)})")
    if attack not in _SERVED:
        raise ValueError(
            f"ART's {attack} does not work in mode 'y': it asks which class a classifier finds, and representations are no classes ({_LATER}; "
            f"mode 'y' serves {', '.join(_SERVED)})"
        )
    return attack


def _check_options(attack: str | Callable[..., Any], options: Mapping[str, Any]) -> None:
    if not isinstance(attack, str):
        try:
            inspect.signature(attack).bind(None, **options)
        except TypeError as error:
            raise ValueError(
                f"factory {attack!r} cannot be called with the estimator and {', '.join(options) or 'nothing else'}: {error}"
            ) from None
        return
    known = _parameters(attack)
    for name, value in options.items():
        if name == "targeted":
            raise ValueError("targeted is no option here: targets are given to perturb, or by the metrics of a plan, and the aim follows")
        if name not in known:
            raise ValueError(f"ART's {attack} has no option {name!r}{_did_you_mean(name, known)} (it takes {', '.join(known)})")
        if name in ("eps", "eps_step") and not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            reason = "it is a radius and cannot be negative" if name == "eps" else "it is a step; the aim decides the direction"
            raise ValueError(f"{name} is {value!r}; expected a number from 0 on, in the units of the encoder's bounds: {reason}")
    if not _is_norm(options.get("norm", math.inf)):
        raise ValueError(f"norm is {options['norm']!r}; expected 'inf' or a number from 1 on")
    if options.get("eps_step", 1) == 0:
        raise ValueError("eps_step is 0; a step must be positive")
    steps = options.get("max_iter", 1)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"max_iter is {steps!r}; at least one step is needed")
    starts = options.get("num_random_init", 0)
    if starts not in (0, 1):
        raise ValueError(
            f"num_random_init is {starts!r}; expected 0 or 1: ART keeps the restart at which the class changed, and representations have none "
            "(UPGD of rt-unsupervised-attacks keeps the best of its restarts)"
        )
    if options.get("minimal"):
        raise ValueError("minimal is True; it looks for the step at which the class changes, and representations have none")


def _is_norm(norm: Any) -> bool:
    return norm == "inf" or (isinstance(norm, (int, float)) and norm >= 1)


def _parameters(attack: str) -> dict[str, Any]:
    """Return the options of a class of the library with their defaults."""
    _, *options = inspect.signature(getattr(_library().evasion, attack)).parameters.values()
    return {option.name: option.default for option in options if option.name != "targeted"}


class _Library(NamedTuple):
    evasion: ModuleType
    EvasionAttack: type
    PyTorchClassifier: type


@cache
def _library() -> _Library:
    """Import what is used of ART, so that the process and the user's home stay as they were."""
    try:
        with _contained():
            evasion, attacks, classifiers = (
                import_module(f"art.{name}") for name in ("attacks.evasion", "attacks", "estimators.classification")
            )
        library = _Library(evasion, attacks.EvasionAttack, classifiers.PyTorchClassifier)
        found = sys.modules["art"].__version__
    except (ImportError, AttributeError) as error:
        raise ImportError(f"ART cannot be imported ({error}); to install it: pip install adversarial-robustness-toolbox") from error
    if not TESTED[0] <= tuple(map(int, re.findall(r"\d+", found)[:2])) < TESTED[1]:
        warnings.warn(
            f"ART {found} is not among the versions that this bridge was tested with "
            f"({'.'.join(map(str, TESTED[0]))} up to, not including, {'.'.join(map(str, TESTED[1]))}); its attacks may mean something else",
            RobustnessWarning,
            stacklevel=2,
        )
    return library


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


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    spelled = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""

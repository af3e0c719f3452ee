"""The bridge to torchattacks: an encoder shown as a classifier of two classes, and its attacks as attacks of rt."""

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rt_core.divergences import Divergence
from rt_core.encoders import Bound, Encoder
from rt_core.errors import RobustnessWarning, ShapeError
from rt_core.randomness import SampleRandom
from rt_core.traces import AIMS, Ball, Batch, per_sample

__all__ = ["ETA", "Torchattack", "UnitLogits"]

ETA = 1e-3
"""Half the width of the perturbation beside the clean input at which its gradient is taken, in the bounds' units, as in U-FGSM."""

TESTED = ((3, 5), (3, 6))

# What one number a row is enough for: attacks that read the gradient alone and keep every row in its place.
_NORMS = {
    **dict.fromkeys(("FGSM", "BIM", "RFGSM", "PGD", "EOTPGD", "FFGSM", "TPGD", "MIFGSM", "UPGD", "DIFGSM", "TIFGSM"), "linf"),
    **dict.fromkeys(("NIFGSM", "SINIFGSM", "VMIFGSM", "VNIFGSM", "PIFGSM", "PIFGSMPP"), "linf"),
    "PGDL2": "l2",
}
_BY_MISTAKE = "it stops or chooses by the mistakes of a classifier, and mode 'unit' shows one that is always mistaken"
_BY_ROWS = "it drops, repeats or reorders rows, and mode 'unit' holds one anchor a row"
_UNSUITED = {
    **dict.fromkeys(("APGD", "APGDT", "AutoAttack", "CW", "DeepFool", "EADEN", "EADL1", "FAB", "JSMA", "OnePixel", "Pixle"), _BY_MISTAKE),
    **dict.fromkeys(("SparseFool", "Square"), _BY_MISTAKE),
    **dict.fromkeys(("PGDRS", "PGDRSL2", "SPSA"), _BY_ROWS),
    "Jitter": "it divides the logits by the largest, which leaves nothing of the one number that mode 'unit' shows",
    "GN": "it adds noise without looking at the encoder; rt has 'uniform_noise' for that",
    "VANILA": "it returns its input; rt has 'identity' for that",
    "MultiAttack": "it takes other attacks, not options; run them as attacks of their own",
    "LGV": "it trains further models on labels",
}
_LATER = "modes 'threshold' and 'instance' come later"
_RADII = ("eps", "max_epsilon")
_LENGTHS = (*_RADII, "alpha")
_STEPS = ("steps", "num_iter_set")


@dataclass(frozen=True, init=False, repr=False)
class Torchattack:
    """An attack of torchattacks that climbs the divergence instead of a classifier's loss, or descends it to a target.

    The library sees ``UnitLogits``: two logits a row, of which the second rises with the divergence, and a gradient of exactly one. So its
    attacks by gradient become siblings of U-PGD: ``Torchattack("PGD")`` takes U-PGD's very steps from the library's own start.
    What it returns is projected to the exact ball and the bounds, and otherwise left as it is, also where it is no better than its start.

    *Random starts* come from torch's global generator, which is seeded for the batch and put back: they are reproducible and depend on the
    batch, unlike those of ``UPGD``. A start cannot be given: torchattacks centers its ball on what it is given.

    *At the clean input* the gradient of the divergence from itself is zero, and FGSM, BIM and others begin there. Aiming away, the view
    therefore looks at x + η wherever a gradient is asked for at exactly x, η uniform in ±``ETA`` (0.001) and drawn per sample, as U-FGSM
    does; every other iterate is seen as it is, and the ball stays around x.

    *Units.* The library knows inputs in [0, 1] alone. With other bounds of one width, such as (-1, 1), it sees inputs and the options
    ``eps``, ``alpha`` and ``max_epsilon`` rescaled: they are in the bounds' units, the class's defaults too. Not so inside a factory.

    Args:
        attack: a class of torchattacks by name, such as ``"PGD"``, or a factory ``(model, **options) -> torchattacks attack``, of which
            nothing is known: it has no ball, so its results are checked against the bounds alone.
        mode: ``"unit"``; ``"threshold"`` and ``"instance"`` come later, for attacks that stop by a classifier's mistakes or move rows.
        options: of the library's class, under its own names and with its own defaults (``eps``, ``alpha``, ``steps``, …).

    Attributes:
        library: the library and its version, since its defaults and its algorithms are part of what is recorded.

    Raises:
        ImportError: torchattacks is not installed.
        ValueError: no such attack, mode or option, an attack that the mode cannot serve, or a number out of its range.
    """

    attack: str | Callable[..., Any]
    mode: str
    options: Mapping[str, Any] = field(hash=False)
    library: str

    def __init__(self, attack: str | Callable[..., Any], *, mode: str = "unit", **options: Any) -> None:
        if mode != "unit":
            raise ValueError(f"mode is {mode!r}; expected 'unit' ({_LATER})")
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        named = _named(attack)
        _check_options(named, plain)
        library = f"torchattacks {_library().__version__}"
        for name, value in {"attack": named, "mode": mode, "options": plain, "library": library}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Torchattack({', '.join([repr(self.attack), *(f'{name}={value!r}' for name, value in self.options.items())])})"

    @property
    def ball(self) -> Ball | None:
        """The ball of the class's norm and its ``eps``, given or default; None for a factory."""
        radius = next((value for name in _RADII if (value := self._option(name)) is not None), None)
        return Ball(_NORMS[self.attack], radius) if self.attack in _NORMS and radius is not None else None

    @property
    def aims(self) -> tuple[str, ...]:
        # TPGD takes no label: it climbs away from what the model says of the clean input.
        return ("away",) if self.attack == "TPGD" else AIMS

    @property
    def steps(self) -> int:
        """How many steps the library's attack takes, given or by default; 0 where it has no such option."""
        return next((value for name in _STEPS if (value := self._option(name)) is not None), 0)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        if batch.start is not None:
            raise ValueError(
                f"{self!r} takes no start: torchattacks centers its ball on the inputs that it is given, so a start would move the ball; "
                "leave start out, or take an attack of rt, such as UPGD"
            )
        ball = self.ball
        if ball is not None and ball.radius == 0:
            return batch.inputs.clone()
        scale = _scale(encoder.bounds, batch.inputs)
        view = UnitLogits(encoder, batch, divergence, eta=random.uniform("eta", batch.inputs.shape[1:], low=-ETA, high=ETA), who=self.label)
        attack = self._made(view, scale)
        with torch.enable_grad(), random.global_generators("global generators"):
            moved = attack(view.clean, torch.zeros(len(batch.inputs), dtype=torch.long, device=batch.inputs.device))
        moved = _back(moved.detach().to(batch.inputs), scale)
        return encoder.clip(moved) if ball is None else ball.project(moved, batch.inputs, encoder.bounds)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"torchattacks' {self.attack if isinstance(self.attack, str) else getattr(self.attack, '__name__', self.attack)}"

    def _option(self, name: str) -> Any:
        """Return an option as given or as the class defaults it; None where it has none of that name."""
        known = _parameters(self.attack) if isinstance(self.attack, str) else {}
        return self.options.get(name, known.get(name))

    def _made(self, view: "UnitLogits", scale: "_Scale | None") -> Any:
        library = _library()
        if not isinstance(self.attack, str):
            made = self.attack(view, **self.options)
            if not isinstance(made, library.attack.Attack):
                raise ValueError(f"factory {self.attack!r} returned {type(made).__name__}; expected an attack of torchattacks")
            if made.targeted or made.normalization_used is not None:
                what = "the batch's aim decides about targets" if made.targeted else "Encoder(normalize=…) normalizes"
                raise ValueError(
                    f"the attack of factory {self.attack!r} is set to {made!r}; leave its mode and normalization alone: {what}"
                )
            return made
        lengths = {} if scale is None else {name: self._option(name) for name in _LENGTHS}
        rescaled = {name: value / scale.width for name, value in lengths.items() if value is not None}
        return getattr(library, self.attack)(view, **{**self.options, **rescaled})


class UnitLogits(nn.Module):
    """An encoder as a classifier whose gradient is that of the divergence: logits [0, d], of which class 0 is every row's label.

    Climbing the cross-entropy climbs the divergence from the batch's anchor, or, toward targets, descends it. Two things are not as in a
    classifier. The gradient of each row's d is exactly one, whatever factor a loss puts on it: the factor of cross-entropy, sigmoid(d) / n,
    would flip signs by rounding and underflow. And the d that is shown is asinh(d), which is d near 0 and below 60 always, toward targets
    64 - asinh(d): no loss that is computed from it saturates.

    It holds the batch's anchors by position, so an attack must send whole batches in their order. It has no training mode, and neither
    shows the encoder's modules and weights to the library nor changes them.

    Args:
        eta: [batch, *input], what is added where a gradient is asked for at exactly the clean input, aiming away.
        who: the attack's name, for messages.

    Attributes:
        clean: [batch, *input], the clean inputs as the library is to see them, in [0, 1].
    """

    def __init__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, eta: Tensor, who: str) -> None:
        super().__init__()
        self.training = False
        self.device_marker = nn.Parameter(torch.empty(0, device=batch.inputs.device), requires_grad=False)
        self.__dict__["encoder"] = encoder  # not as a submodule: the library has no business with its modes, weights and gradients
        self.divergence, self.anchor, self.who = divergence, batch.anchor, who
        self.way = 1 if batch.aim == "away" else -1
        self.scale = _scale(encoder.bounds, batch.inputs)
        self.clean = _forth(batch.inputs, self.scale).contiguous()
        self.beside = encoder.clip(batch.inputs + eta.to(batch.inputs)) if batch.aim == "away" else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Show the divergence of each row.

        inputs: [batch, *input], in [0, 1] -> [batch, 2]

        Raises:
            ShapeError: another number of rows than the batch has.
        """
        if len(inputs) != len(self.clean):
            raise ShapeError(f"{self.who} asks for {len(inputs)} rows of a batch of {len(self.clean)}: {_BY_ROWS} ({_LATER})")
        inputs = _Contiguous.apply(inputs.to(self.clean.dtype))
        seen = _back(inputs, self.scale)
        if self.beside is not None and inputs.requires_grad:
            fresh = per_sample((inputs.detach() == self.clean).flatten(1).all(1), seen)
            seen = torch.where(fresh, self.beside + (seen - seen.detach()), seen)
        value = self.divergence(self.anchor, self.encoder(seen))
        if inputs.requires_grad and not value.requires_grad:
            value = value + (inputs * 0).flatten(1).sum(1)  # a constant output has no graph, which means the same as a gradient of zero
        return torch.stack([torch.zeros_like(value), _UnitGate.apply(value, self.way)], dim=1)

    def train(self, mode: bool = True) -> "UnitLogits":
        """Do nothing: a view measures, so it is always in eval mode."""
        return self


class _UnitGate(torch.autograd.Function):
    """Forward a squashed number that no loss saturates on; backward one, or minus one toward targets, for any positive slope."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, way: int) -> Tensor:
        ctx.way = way
        shown = value.asinh().clamp(max=60)
        return shown if way > 0 else 64 - shown

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope.sign() * ctx.way, None


class _Contiguous(torch.autograd.Function):
    """The same values in plain memory order, in both directions: the library looks at inputs and gradients through ``view``."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.contiguous()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope.contiguous()


class _Scale(NamedTuple):
    """How inputs lie in [0, 1]: inputs = low + width * shown."""

    low: Tensor
    width: float


def _scale(bounds: tuple[Bound, Bound], inputs: Tensor) -> _Scale | None:
    """Return the scale of these bounds; None for [0, 1], where nothing is to be done.

    Raises:
        ValueError: the width differs between elements, so that one eps would mean several.
    """
    low, high = (torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in bounds)
    if (low == 0).all() and (high == 1).all():
        return None
    width = high - low
    least, largest = width.min().item(), width.max().item()
    if largest - least > 1e-6 * largest:
        raise ValueError(
            f"torchattacks moves inputs in [0, 1], and the encoder's bounds are {least:g} wide in one place and {largest:g} in another, where one eps "
            "would mean several; give unnormalized inputs and let the encoder normalize (Encoder(…, normalize=…))"
        )
    return _Scale(low.to(inputs), largest)


def _forth(inputs: Tensor, scale: _Scale | None) -> Tensor:
    return inputs if scale is None else ((inputs - scale.low) / scale.width).clamp(0, 1)


def _back(shown: Tensor, scale: _Scale | None) -> Tensor:
    return shown if scale is None else scale.low + shown * scale.width


def _named(attack: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the name of a class of the library, which mode "unit" serves, or the factory."""
    library = _library()
    classes = {
        name: found
        for name, found in vars(library).items()
        if isinstance(found, type) and issubclass(found, library.attack.Attack) and name in library.__all__
    }
    if not isinstance(attack, str):
        name = getattr(attack, "__name__", "")
        if not callable(attack):
            raise ValueError(f"attack is {attack!r}; expected the name of a class of torchattacks, or a factory (model) -> attack")
        if classes.get(name) is not attack:
            return attack
        attack = name
    if attack not in classes:
        served = ", ".join(name for name in classes if name in _NORMS)
        raise ValueError(f"torchattacks has no attack {attack!r}{_did_you_mean(attack, classes)} (mode 'unit' serves {served})")
    if attack in _UNSUITED:
        raise ValueError(f"torchattacks' {attack} does not work in mode 'unit': {_UNSUITED[attack]} ({_LATER})")
    return attack


def _check_options(attack: str | Callable[..., Any], options: Mapping[str, Any]) -> None:
    if not isinstance(attack, str):
        try:
            inspect.signature(attack).bind(None, **options)
        except TypeError as error:
            raise ValueError(
                f"factory {attack!r} cannot be called with the model and {', '.join(options) or 'nothing else'}: {error}"
            ) from None
        return
    known = _parameters(attack)
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"torchattacks' {attack} has no option {name!r}{_did_you_mean(name, known)} (it takes {', '.join(known)})")
        if name in _LENGTHS and not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            reason = "it is a radius and cannot be negative" if name in _RADII else "it is a step; the aim decides the direction"
            raise ValueError(f"{name} is {value!r}; expected a number from 0 on, in the units of the encoder's bounds: {reason}")
        if name in _STEPS and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is {value!r}; at least one step is needed")
    if attack == "UPGD" and options.get("loss", "ce") != "ce":
        raise ValueError(
            f"loss is {options['loss']!r}; mode 'unit' serves 'ce' alone, since the others read more logits or stop at a mistake"
        )


def _parameters(attack: str) -> dict[str, Any]:
    """Return the options of a class of the library with their defaults."""
    _, *options = inspect.signature(getattr(_library(), attack)).parameters.values()
    return {option.name: option.default for option in options}


@cache
def _library() -> ModuleType:
    try:
        # scipy, which comes along, adds filters of its own.
        with warnings.catch_warnings():
            import torchattacks
    except ImportError as error:
        raise ImportError(f"torchattacks cannot be imported ({error}); to install it: pip install torchattacks") from error
    version = tuple(map(int, re.findall(r"\d+", torchattacks.__version__)[:2]))
    if not TESTED[0] <= version < TESTED[1]:
        warnings.warn(
            f"torchattacks {torchattacks.__version__} is not among the versions that this bridge was tested with "
            f"({'.'.join(map(str, TESTED[0]))} up to, not including, {'.'.join(map(str, TESTED[1]))}); its attacks may mean something else",
            RobustnessWarning,
            stacklevel=2,
        )
    return torchattacks


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    spelled = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""

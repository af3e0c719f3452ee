"""The bridge to torchattacks: an encoder shown as a classifier, and the library's attacks as attacks of rt."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rt_core.adapting import (
    ETA,
    AnchorLogits,
    ThresholdLogits,
    UnitLogits,
    bisected,
    check_given,
    check_route,
    magnitudes,
    one_by_one,
    threshold_of,
    unmoved,
    warn_untested,
)
from rt_core.divergences import Divergence
from rt_core.encoders import Encoder
from rt_core.naming import did_you_mean
from rt_core.randomness import SampleRandom
from rt_core.traces import AIMS, Attempt, Ball, Batch, check_number, check_whole, per_sample

__all__ = ["CLASSES", "MODES", "Torchattack", "Traits"]

TESTED = ((3, 5), (3, 6))
MODES = ("unit", "threshold", "instance")

_BY_MISTAKE = "it stops or chooses by the mistakes of a classifier, and mode 'unit' shows one that is always mistaken"
_LOOPS = "it goes through the samples one by one anyway"
_SUMS = "it stops by a sum over the batch"
_DROPS = "it drops rows that are done"
_REPEATS = "it repeats rows"


class Traits(NamedTuple):
    """What is known of a class of the library.

    mode: its default mode; norm: of its ball, ``"option"`` where its option ``norm`` says it, None where it has none; batched: the modes in
    which it is given whole batches, in the others one sample at a time, and why; unfit: why mode "unit" does not serve it, or nothing;
    columns: how many logits its loss needs at least; targeted: whether it can aim at a label, which mode "instance" needs toward targets.
    """

    mode: str
    norm: str | None = None
    batched: tuple[str, ...] = MODES
    why: str = ""
    unfit: str = ""
    columns: int = 2
    targeted: bool = True


_SMALLEST = Traits("threshold", None, (), _LOOPS, _BY_MISTAKE)  # looks for the smallest change of class

CLASSES: Mapping[str, Traits] = {
    **dict.fromkeys(("FGSM", "BIM", "RFGSM", "PGD", "EOTPGD", "FFGSM", "MIFGSM", "UPGD", "DIFGSM", "TIFGSM"), Traits("unit", "linf")),
    **dict.fromkeys(("NIFGSM", "SINIFGSM", "VMIFGSM", "VNIFGSM", "PIFGSMPP"), Traits("unit", "linf")),
    **dict.fromkeys(("TPGD", "PIFGSM"), Traits("unit", "linf", targeted=False)),
    "PGDL2": Traits("unit", "l2"),
    "PGDRS": Traits("unit", "linf", ("instance",), _REPEATS),
    "PGDRSL2": Traits("unit", "l2", ("instance",), _REPEATS),
    "SPSA": Traits("unit", "linf", ("instance",), _REPEATS),
    "APGD": Traits("unit", "option", columns=3, targeted=False),
    "Square": Traits("unit", "option", ("unit", "instance"), _DROPS),
    "Jitter": Traits(
        "instance", "linf", unfit="it divides the logits by the largest, which leaves nothing of the one number that mode 'unit' shows"
    ),
    "APGDT": Traits("instance", "option", ("instance",), _DROPS, _BY_MISTAKE, columns=4, targeted=False),
    "AutoAttack": Traits("instance", "option", ("instance",), _DROPS, _BY_MISTAKE, columns=4, targeted=False),
    "FAB": _SMALLEST._replace(norm="option", why="it takes a gradient of every logit, and drops rows that are done"),
    "CW": _SMALLEST._replace(why=_SUMS),
    "EADL1": _SMALLEST._replace(why=_SUMS),
    "EADEN": _SMALLEST._replace(why=_SUMS),
    "DeepFool": _SMALLEST._replace(targeted=False),
    "SparseFool": _SMALLEST._replace(targeted=False),
    "JSMA": _SMALLEST,
    "OnePixel": _SMALLEST,
    "Pixle": _SMALLEST,
    "GN": Traits("unit", targeted=False),
    "VANILA": Traits("unit", targeted=False),
}
_REFUSED = {
    "MultiAttack": "it takes other attacks, not options: give a factory, such as lambda model: torchattacks.MultiAttack([…])",
    "LGV": "it trains further models on labels",
}

_RADII = ("eps", "max_epsilon")
_LENGTHS = (*_RADII, "alpha", "noise_sd")
# Lengths by one class's name that are something else in another.
_OWN_LENGTHS = {"SPSA": ("delta", "lr"), "EADL1": ("beta",), "EADEN": ("beta",), "GN": ("std",), "JSMA": ("theta",)}
_STEPS = ("steps", "num_iter_set", "max_iterations", "n_queries", "nb_iter")
_WHOLE = (*_STEPS, "n_restarts", "restarts", "eot_iter", "popsize")
_NORMS = {"Linf": "linf", "L2": "l2"}
_VERSIONS = ("standard", "plus", "rand")
# These compute in float32 whatever they are given, or mix the two.
_DOUBLE = frozenset(name for name, traits in CLASSES.items() if traits.mode == "unit" and traits.batched == MODES) - {"APGD"}
# These know images alone; other inputs are shown to them as images of one row, but to the last, which move squares about.
_IMAGES = frozenset({"APGD", "APGDT", "AutoAttack", "Square", "Jitter", "OnePixel", "Pixle", "PGDRS", "PGDRSL2"})
_SPATIAL = frozenset({"AutoAttack", "Square", "Pixle"})
_COLORED = frozenset({"TIFGSM", "PIFGSM", "PIFGSMPP"})
_JSMA_LARGEST = 10_000


@dataclass(frozen=True, init=False, repr=False)
class Torchattack:
    """An attack of torchattacks that moves representations instead of a classifier's decision, without labels.

    The library sees the encoder as a classifier, in one of three ways:

    - ``"unit"``: one number a row rises with the divergence, toward targets it falls, and its gradient is exactly the divergence's. So attacks
      that climb a loss by gradient become siblings of U-PGD: ``Torchattack("PGD")`` takes U-PGD's very steps from the library's own start.
    - ``"threshold"``: a row is misclassified where its divergence is above ``threshold``, toward targets below. So attacks that look for the
      smallest change of class find the smallest change that moves a representation so far. They have no ball; the move is shortened until it
      just reaches the threshold (``rt_core.adapting.bisected``), and noted: ``reached`` (0 or 1), ``magnitude_l2`` and ``magnitude_linf`` (NaN
      where it was not reached, and the library's best effort is kept).
    - ``"instance"``: a row is misclassified where another sample of the bank is nearer than its own clean representation: a breakaway. Toward
      targets, it is classified as its target: an impersonation. All samples of a batch share the anchors, so a result belongs to its batch.

    ``CLASSES`` holds for every class its default mode and how it is called. What the library returns is projected to the exact ball and the
    bounds, and otherwise left as it is, also where it is no better than its start. Its own idea of success is used for nothing: APGD gives its
    best iterate, Square its best query, and where APGDT and AutoAttack give a sample back as it was, the best of one run of APGD is taken.

    *Random numbers* come from global generators, which are seeded for what the library is given and put back. Given one sample at a time,
    a result is the sample's own; given batches, it is reproducible and depends on the batch, unlike that of ``UPGD``. A start cannot be given:
    torchattacks centers its ball on what it is given.

    *At the clean input* the gradient of the divergence from itself is zero, and FGSM, BIM and others begin there. Aiming away, the view
    therefore looks at x + η wherever a gradient is asked for at x, η uniform in ±``ETA`` (0.001) and drawn per sample, as U-FGSM does; every
    other iterate is seen as it is, and the ball stays around x. CW begins within ``ETA`` of the bounds, at which its tanh cannot move, and SPSA,
    aiming away, within its ``delta`` of x, where its differences see more than rounding.

    *Units.* The library knows inputs in [0, 1] alone. With other bounds of one width, such as (-1, 1), it sees inputs and lengths (``eps``,
    ``alpha`` and the like, the class's defaults too) rescaled: they are in the bounds' units. Not so inside a factory.

    Args:
        attack: a class of torchattacks by name, such as ``"PGD"``, or a factory ``(model, **options) -> torchattacks attack``, of which
            nothing is known: it has no ball, so its results are checked against the bounds alone.
        mode: ``"unit"``, ``"threshold"`` or ``"instance"``; None takes the class's own in ``CLASSES``, and ``"unit"`` for a factory.
        threshold: the divergence to reach in mode "threshold"; None takes that of ``quantile``.
        quantile: the universal quantile to reach, of the pairs of the bank. Toward targets a small one is wanted, such as 0.01.
        anchors: how many nearest others of each sample are told apart in mode "instance".
        route: ``"batch"`` gives the library whole batches, ``"single"`` one sample at a time; ``"auto"`` takes the class's own in ``CLASSES``.
        options: of the library's class, under its own names and with its own defaults (``eps``, ``alpha``, ``steps``, …), but for three: seed
            is none, n_classes is never more than there are anchors, and in mode "threshold" FAB's eps is no limit unless given.

    Attributes:
        library: the library and its version, since its defaults and its algorithms are part of what is recorded.

    Raises:
        ImportError: torchattacks is not installed.
        ValueError: no such attack, mode or option, an attack that the mode cannot serve, or a number out of its range.
    """

    attack: str | Callable[..., Any]
    mode: str
    threshold: float | None
    quantile: float | None
    anchors: int | None
    route: str
    options: Mapping[str, Any] = field(hash=False)
    library: str

    def __init__(
        self,
        attack: str | Callable[..., Any],
        *,
        mode: str | None = None,
        threshold: float | None = None,
        quantile: float = 0.5,
        anchors: int = 9,
        route: str = "auto",
        **options: Any,
    ) -> None:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        named = _named(attack)
        traits = _traits(named)
        chosen, anchors = traits.mode if mode is None else mode, check_whole("anchors", anchors)
        _check_mode(named, chosen, threshold, quantile)
        _check_options(named, chosen, plain)
        values = {
            "attack": named,
            "mode": chosen,
            "threshold": threshold,
            "quantile": quantile if chosen == "threshold" and threshold is None else None,
            "anchors": anchors if chosen == "instance" else None,
            "route": _route(named, chosen, route),
            "options": plain,
            "library": f"torchattacks {_library().__version__}",
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        traits = _traits(self.attack)
        said = {} if self.mode == traits.mode else {"mode": self.mode}
        said |= {name: value for name in ("threshold", "quantile", "anchors") if (value := getattr(self, name)) is not None}
        said |= {} if self.route == _route(self.attack, self.mode, "auto") else {"route": self.route}
        return (
            f"Torchattack({', '.join([repr(self.attack), *(f'{name}={value!r}' for name, value in (said | dict(self.options)).items())])})"
        )

    @property
    def ball(self) -> Ball | None:
        """The ball of the class's norm and its ``eps``, given or default; None for a factory, in mode "threshold" and where there is none."""
        norm, radius = _traits(self.attack).norm, next((value for name in _RADII if (value := self._option(name)) is not None), None)
        if norm is None or radius is None or self.mode == "threshold":
            return None
        return Ball(_NORMS[self._option("norm")] if norm == "option" else norm, radius)

    @property
    def aims(self) -> tuple[str, ...]:
        # TPGD takes no label: it climbs away from what the model says of the clean input.
        awayward = self.attack == "TPGD" or (self.mode == "instance" and not _traits(self.attack).targeted)
        return ("away",) if awayward else AIMS

    @property
    def joint(self) -> bool:
        """Whether the samples of a batch depend on each other: in mode "instance" they are each other's anchors."""
        return self.mode == "instance" and self.route == "batch"

    @property
    def steps(self) -> int:
        """How many steps the library's attack takes, given or by default; 0 where it has no such option."""
        return next((value for name in _STEPS if (value := self._option(name)) is not None), 0)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"torchattacks' {self.attack if isinstance(self.attack, str) else getattr(self.attack, '__name__', self.attack)}"

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """[batch, *input] -> same shape"""
        if batch.start is not None:
            raise ValueError(
                f"{self!r} takes no start: torchattacks centers its ball on the inputs that it is given, so a start would move the ball; "
                "leave start out, or take an attack of rt, such as UPGD"
            )
        ball, threshold = self.ball, self.threshold
        if ball is not None and ball.radius == 0:
            return batch.inputs.clone()
        _check_shape(self.attack, batch.inputs, self.label)
        if self.mode == "threshold" and threshold is None:
            assert self.quantile is not None
            threshold = threshold_of(batch.bank, self.quantile, divergence, who=f"{self.label} in mode 'threshold'")
        parts = [(slice(None), batch)] if self.route == "batch" else [(slice(row, row + 1), one) for row, one in one_by_one(batch)]
        views = [self._view(encoder, part, divergence, threshold, random.select(rows)) for rows, part in parts]
        moved = torch.cat([self._moved(view, part, random.select(rows)) for view, (rows, part) in zip(views, parts, strict=True)])
        # What divides by a gradient of zero ends in NaN, where it should have stayed.
        moved = torch.where(per_sample(moved.isfinite().flatten(1).all(1), moved), moved, batch.inputs)
        moved = encoder.clip(moved) if ball is None else ball.project(moved, batch.inputs, encoder.bounds)
        if threshold is None:
            known = self.mode == "unit" and isinstance(self.attack, str)  # a factory's attack may ask for gradients now and then
            return Attempt(inputs=moved, notes=unmoved(view.passage for view in views) if known else {})
        moved, reached = bisected(encoder, batch, divergence, moved, threshold)
        return Attempt(inputs=moved, notes=magnitudes(batch, moved, reached))

    def _moved(self, view: UnitLogits | ThresholdLogits | AnchorLogits, batch: Batch, random: SampleRandom) -> Tensor:
        """Return what the library makes of a batch, in the bounds' units."""
        with warnings.catch_warnings(), torch.enable_grad(), random.global_generators("global generators"):
            warnings.filterwarnings("ignore", module="torchattacks")
            attack = self._made(view, random)
            shown = _start(attack, view, random, keeps=not isinstance(self.attack, str) or self.attack in _DOUBLE)
            if self.attack in _IMAGES and shown.ndim != 4:
                shown = shown.reshape(len(shown), 1, 1, -1)
            labels = torch.zeros(len(shown), dtype=torch.long, device=shown.device)
            if isinstance(view, AnchorLogits):
                labels = view.labels
                if batch.aim == "target":
                    _aim(attack, view, self.label)
            moved = _run(attack, view, shown, labels)
        moved = moved.detach().to(batch.inputs).reshape(batch.inputs.shape)
        return moved if view.scale is None else view.scale.back(moved)

    def _view(
        self, encoder: Encoder, batch: Batch, divergence: Divergence, threshold: float | None, random: SampleRandom
    ) -> UnitLogits | ThresholdLogits | AnchorLogits:
        columns = _traits(self.attack).columns
        if self.mode == "instance":
            assert self.anchors is not None
            return AnchorLogits(encoder, batch, divergence, anchors=self.anchors, columns=columns, who=self.label)
        eta = random.uniform("eta", batch.inputs.shape[1:], low=-ETA, high=ETA)
        if threshold is None:
            return UnitLogits(encoder, batch, divergence, eta=eta, who=self.label)
        return ThresholdLogits(encoder, batch, divergence, threshold=threshold, columns=columns, eta=eta, who=self.label)

    def _option(self, name: str) -> Any:
        """Return an option as given or as the class defaults it; None where it has none of that name."""
        known = _parameters(self.attack) if isinstance(self.attack, str) else {}
        return self.options.get(name, known.get(name))

    def _made(self, view: UnitLogits | ThresholdLogits | AnchorLogits, random: SampleRandom) -> Any:
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
        wanted = dict(self.options)
        if self.attack == "FAB" and self.mode == "threshold" and "eps" not in wanted:
            wanted["eps"] = _unlimited(self._option("norm"), view)
        elif view.scale is not None:
            lengths = {name: self._option(name) for name in _lengths(self.attack)}
            wanted |= {name: value / view.scale.width for name, value in lengths.items() if value is not None}
        known = _parameters(self.attack)
        if "seed" in known:
            wanted["seed"] = random.library_seed("seed of the library")
        if "n_classes" in known:
            told = len(view.anchors) if isinstance(view, AnchorLogits) else 2
            wanted["n_classes"] = max(min(self._option("n_classes"), told), 2)
        return getattr(library, self.attack)(view, **wanted)


def _run(attack: Any, view: UnitLogits | ThresholdLogits | AnchorLogits, inputs: Tensor, labels: Tensor) -> Tensor:
    """Call an attack, so that it gives its best also where it does not call that a success."""
    library = _library()
    if isinstance(attack, library.APGD):
        return attack.perturb(inputs, labels, best_loss=True)[1]
    if isinstance(attack, library.Square):
        return _square(attack, view, inputs, labels)
    moved = attack(inputs, labels)
    if isinstance(attack, (library.APGDT, library.AutoAttack)):
        same = (moved == inputs).flatten(1).all(1)
        if same.any():
            instead = library.APGD(view, norm=attack.norm, eps=attack.eps, steps=getattr(attack, "steps", 10))
            moved[same] = instead.perturb(inputs[same], labels[same], best_loss=True)[1]
    return moved


@torch.no_grad()
def _square(attack: Any, view: UnitLogits | ThresholdLogits | AnchorLogits, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the best of Square's restarts; its own loop gives back the clean input where a restart made no mistake."""
    if isinstance(view, UnitLogits):
        view.mistaken = False  # a row that is mistaken is done
    attack.init_hyperparam(inputs)
    best, margin = inputs, attack.margin_and_loss(inputs, labels)[0]
    for _ in range(attack.n_restarts):
        _, found = attack.attack_single_run(inputs, labels)
        reached = attack.margin_and_loss(found, labels)[0]
        best = torch.where(per_sample(reached < margin, best), found, best)
        margin = torch.minimum(margin, reached)
    return best


def _start(attack: Any, view: UnitLogits | ThresholdLogits | AnchorLogits, random: SampleRandom, *, keeps: bool) -> Tensor:
    """Return what the library is given for the clean inputs, in float32 unless it keeps float64."""
    library = _library()
    shown = view.clean if keeps else view.clean.float()
    if isinstance(attack, library.CW):
        return shown.clamp(ETA, 1 - ETA)
    if isinstance(attack, library.SPSA) and view.away and not isinstance(view, AnchorLogits):
        draws = random.uniform("start", shown.shape[1:], low=-attack.delta, high=attack.delta)
        return (shown + draws.to(shown)).clamp(0, 1)
    return shown


def _aim(attack: Any, view: AnchorLogits, label: str) -> None:
    """Aim an attack at the targets' anchors."""
    if "targeted" not in attack.supported_mode:
        raise ValueError(f"{label} cannot aim at a label, as mode 'instance' does toward targets; leave targets out, or take another mode")
    if isinstance(attack, _library().FAB):
        attack.set_mode_targeted_by_function(lambda inputs, labels: view.labels, quiet=True)  # it wants both labels
        return
    attack.set_mode_targeted_by_label(quiet=True)


def _unlimited(norm: str, view: UnitLogits | ThresholdLogits | AnchorLogits) -> float:
    return 1.0 if norm == "Linf" else math.sqrt(view.clean[0].numel())


def _named(attack: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the name of a class of the library, or the factory."""
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
        raise ValueError(f"torchattacks has no attack {attack!r}{did_you_mean(attack, classes)} (it has {', '.join(CLASSES)})")
    if attack not in CLASSES:
        reason = _REFUSED.get(attack, "this bridge does not know it: give a factory, such as lambda model: torchattacks.…(model)")
        raise ValueError(f"torchattacks' {attack} is not served by its name: {reason}")
    return attack


def _traits(attack: str | Callable[..., Any]) -> Traits:
    # A factory's attack may do anything: only the mode that holds nothing by row can give it batches without knowing.
    return CLASSES[attack] if isinstance(attack, str) else Traits("unit", columns=4, batched=("unit", "instance"))


def _route(attack: str | Callable[..., Any], mode: str, route: str) -> str:
    check_route(route)
    traits = _traits(attack)
    if route == "auto":
        return "batch" if mode in traits.batched else "single"
    if route == "batch" and isinstance(attack, str) and mode not in traits.batched and mode != "instance":
        raise ValueError(f"route is 'batch'; torchattacks' {attack} takes one sample at a time in mode {mode!r}: {traits.why}")
    return route


def _check_mode(attack: str | Callable[..., Any], mode: str, threshold: Any, quantile: Any) -> None:
    traits = _traits(attack)
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; expected {', '.join(map(repr, MODES))}, or None for the class's own")
    if mode == "unit" and traits.unfit:
        raise ValueError(
            f"torchattacks' {attack} does not work in mode 'unit': {traits.unfit} (mode {traits.mode!r} serves it, and is its default)"
        )
    check_number("quantile", quantile)
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile is {quantile:g}; expected a share of pairs in (0, 1], such as 0.5")
    if threshold is None:
        return
    check_number("threshold", threshold)
    if threshold <= 0:
        raise ValueError(f"threshold is {threshold:g}; expected a positive divergence")
    if mode != "threshold":
        raise ValueError(
            f"threshold is {threshold:g}, and mode is {mode!r}; a threshold belongs to mode 'threshold': leave one of them out"
        )


def _check_options(attack: str | Callable[..., Any], mode: str, options: Mapping[str, Any]) -> None:
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
            raise ValueError(f"torchattacks' {attack} has no option {name!r}{did_you_mean(name, known)} (it takes {', '.join(known)})")
        if name == "seed":
            raise ValueError("seed is no option here: random numbers follow the seed of perturb or of the plan")
        if name in _LENGTHS and not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
            reason = "it is a radius and cannot be negative" if name in _RADII else "it is a step; the aim decides the direction"
            raise ValueError(f"{name} is {value!r}; expected a number from 0 on, in the units of the encoder's bounds: {reason}")
        check_given(name, value, known[name])
        if name in _WHOLE:
            check_whole(name, value)
    loss = {"UPGD": "ce", "APGD": "ce", "Square": "margin"}.get(attack)
    if mode == "unit" and loss is not None and options.get("loss", loss) != loss:
        raise ValueError(
            f"loss is {options['loss']!r}; mode 'unit' serves {loss!r} alone, since the others read more logits, stop at a mistake or saturate"
        )
    norms = _NORMS if _traits(attack).norm == "option" else {}
    if norms and options.get("norm", "Linf") not in norms:
        raise ValueError(f"norm is {options['norm']!r}; expected 'Linf' or 'L2', which torchattacks' {attack} can measure")
    if attack == "AutoAttack" and options.get("version", _VERSIONS[0]) not in _VERSIONS:
        raise ValueError(f"version is {options['version']!r}; expected one of {', '.join(map(repr, _VERSIONS))}")
    if "abort_early" in known and options.get("abort_early", True) and options.get("max_iterations", 100) < 10:
        raise ValueError(
            f"max_iterations is {options['max_iterations']}; torchattacks' {attack} looks ten times whether to stop and needs at least 10: "
            "write 10, or abort_early=False"
        )


def _check_shape(attack: str | Callable[..., Any], inputs: Tensor, label: str) -> None:
    shape = list(inputs.shape[1:])
    if attack in _SPATIAL and len(shape) != 3:
        raise ValueError(f"{label} moves parts of images, [channel, height, width], and these inputs are {shape}; take another attack")
    if attack in _COLORED and (len(shape) != 3 or shape[0] != 3):
        raise ValueError(f"{label} blurs images of three channels, and these inputs are {shape}; take another attack")
    if attack == "Pixle" and shape[1] != shape[2]:
        raise ValueError(f"{label} mixes up rows and columns, and these images are {shape[1]} by {shape[2]}; give square ones")
    numbers = inputs[0].numel()
    if attack == "JSMA" and numbers > _JSMA_LARGEST:
        raise ValueError(
            f"{label} compares all pairs of an input's {numbers:,} numbers, in ten tables of {numbers**2 * 4 / 2**30:.0f} GiB each; "
            f"give inputs of at most {_JSMA_LARGEST:,}"
        )


def _lengths(attack: str) -> tuple[str, ...]:
    return (*_LENGTHS, *_OWN_LENGTHS.get(attack, ()))


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
    warn_untested("torchattacks", torchattacks.__version__, TESTED)
    return torchattacks

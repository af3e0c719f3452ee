"""The bridge to the Adversarial Robustness Toolbox: its evasion attacks as attacks of rt."""

import contextlib
import inspect
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rt_art.library import evasions, library, options_of, quiet
from rt_art.table import MODES, NEEDED, REFUSED, SERVED, SHORT, Served
from rt_art.views import AnchorLoss, FromClean, Probabilities, Representations, clip_values, square_hooks
from rt_core.adapting import (
    ETA,
    AnchorLogits,
    Passage,
    ThresholdLogits,
    UnitLogits,
    better_of,
    bisected,
    check_given,
    check_route,
    magnitudes,
    one_by_one,
    threshold_of,
    unmoved,
)
from rt_core.divergences import Divergence, l2
from rt_core.encoders import Encoder
from rt_core.naming import did_you_mean
from rt_core.randomness import SampleRandom
from rt_core.traces import Attempt, Ball, Batch, check_whole, per_sample

__all__ = ["ETA", "ARTAttack"]

_FACTORY = Served(why="nothing is known of it", modes=MODES, whole=True)
_BEGINNINGS = 24  # noise inputs that a decision attack may begin at, half of them at the bounds alone


@dataclass(frozen=True, init=False, repr=False)
class ARTAttack:
    """An evasion attack of ART without labels: it climbs the divergence, or looks for the smallest change that reaches one.

    The library sees the encoder as a ``PyTorchClassifier``, in one of four ways; ``rt_art.table.SERVED`` says which serve a class:

    - ``"y"``: the logits are the representations, the loss is the divergence from each row's anchor, and the labels say which anchor is a
      row's own. Gradient attacks become siblings of U-PGD: ``ARTAttack("ProjectedGradientDescent", num_random_init=1)`` takes U-PGD's very
      steps from the library's own start.
    - ``"unit"``: two logits, of which one rises with the divergence, with a gradient of exactly one.
    - ``"threshold"``: the class changes where the divergence passes ``threshold``: attacks that look for the smallest change of class find
      the smallest that moves a representation so far (toward targets: that brings it so near). What they find is shortened to where it just
      reaches the threshold. Notes: ``reached`` (0 or 1), ``magnitude_l2`` and ``magnitude_linf`` (NaN where it was not reached: the input
      is then the best that was found).
    - ``"instance"``: the classes are the samples of the batch and the nine nearest others of each in the bank: an untargeted success is a breakaway
      (Petrov & Kwiatkowska 2022, Eq. 4), a targeted one an impersonation.

    What comes back is projected to the exact ball, where the attack has one, and the bounds. In modes y and unit it is otherwise left as it
    is, also where it is no better than its start; in the others the clean input stands where it is.

    *Random numbers* come from the global generators, which are seeded and put back: for the batch where the library is given whole batches
    (route "batch"), so that they depend on it, and for the sample where it is given one at a time (route "single"). A start cannot be
    given: ART centers its ball on what it is given. Decision attacks begin at noise of the sample's own, toward targets at its target.

    *At the clean input* the gradient of the divergence from itself is zero, and ART begins there unless ``num_random_init=1``. Aiming away,
    the view therefore looks at x + η wherever a gradient is asked for at x, η uniform in ±``ETA`` (0.001) and drawn per sample, as U-FGSM
    does; every other iterate is seen as it is, and the ball stays around x.

    *Costs.* ART computes in float32 whatever it is given, and looks at the clean and the adversarial batch once more at the end: two forward
    passes that rt does not need. It is imported when the first attack is made, which takes seconds; for so long the variable HOME points to a
    temporary directory, unless ART has left its configuration in the real one.

    Args:
        attack: a class of ``art.attacks.evasion`` by name, such as ``"ProjectedGradientDescent"``, or a factory
            ``(estimator, **options) -> ART attack``, of which nothing is known: it has no ball, so its results are checked against the
            bounds alone.
        mode: ``"y"``, ``"unit"``, ``"threshold"`` or ``"instance"``; None takes that of the class (``"y"`` for a factory).
        threshold: of mode "threshold", a divergence; None takes the ``quantile`` of the bank's pairs.
        quantile: of the divergences of pairs of the bank, in (0, 1].
        route: ``"batch"`` hands over whole batches, ``"single"`` one sample at a time; ``"auto"`` whole batches where that is right.
        options: of the library's class, under its own names and with its own defaults (``eps``, ``eps_step``, ``max_iter``, …); lengths are
            in the bounds' units. ``batch_size`` is the whole batch where that is all it means, and ``verbose`` is off unless given.

    Attributes:
        library: the library and its version, since its defaults and its algorithms are part of what is recorded.

    Raises:
        ImportError: ART, or a package that this attack needs, is not installed.
        ValueError: no such attack, mode or option, an attack that the mode cannot serve, or a number out of its range.
    """

    attack: str | Callable[..., Any]
    mode: str
    threshold: float | None
    quantile: float
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
        route: str = "auto",
        **options: Any,
    ) -> None:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
        named = _named(attack)
        served = _FACTORY if not isinstance(named, str) else SERVED[named]
        mode = served.modes[0] if mode is None else mode
        _check_mode(named, mode, served)
        _check_threshold(mode, threshold, quantile)
        check_route(route)
        settings = {
            "attack": named,
            "mode": mode,
            "threshold": threshold,
            "quantile": quantile,
            "route": route,
            "options": plain,
            "library": f"adversarial-robustness-toolbox {library().version}",
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        if route == "batch" and not _by_batch(served, mode):
            reason = (
                "it mixes the samples that it is given" if served.alone else f"in mode {mode!r} there is one anchor for all rows of a call"
            )
            raise ValueError(f"route is 'batch', and {self.label} needs one sample at a time: {reason}; leave route out")
        _check_options(self)

    def __repr__(self) -> str:
        told = {"mode": self._served.modes[0], "threshold": None, "quantile": 0.5, "route": "auto"}
        chosen = {name: value for name, default in told.items() if (value := getattr(self, name)) != default}
        return (
            f"ARTAttack({', '.join([repr(self.attack), *(f'{name}={value!r}' for name, value in (chosen | dict(self.options)).items())])})"
        )

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"ART's {self.attack if isinstance(self.attack, str) else getattr(self.attack, '__name__', self.attack)}"

    @property
    def ball(self) -> Ball | None:
        """The ball of its norm and radius, given or default; None for a factory, for norms other than infinity and 2, and for searches."""
        if self._served.norm is None:
            return None
        known = self._known
        norm = {"linf": math.inf, "l2": 2}.get(self._served.norm, known.get("norm"))
        name = {math.inf: "linf", 2: "l2"}.get(float(norm))
        return None if name is None else Ball(name, known[self._served.radius])

    @property
    def aims(self) -> tuple[str, ...]:
        """``"away"``, ``"target"`` or both, by the class and the mode."""
        served = self._served
        if self.mode != "instance":
            return served.aims
        if served.goal:
            return ("target",)
        return served.aims if served.impersonates else tuple(aim for aim in served.aims if aim == "away")

    @property
    def joint(self) -> bool:
        """Whether the samples of a batch depend on each other: their anchors are each other's classes."""
        return self.mode == "instance" and self.batched

    @property
    def batched(self) -> bool:
        """Whether the library is given whole batches, and not one sample at a time."""
        return self.route != "single" and _by_batch(self._served, self.mode)

    @property
    def steps(self) -> int:
        """How many steps the library's attack takes, given or by default; 0 where it has no such option."""
        steps = self._known.get("max_iter", self._known.get("nb_steps", 0))
        return steps if isinstance(steps, int) else 0

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor | Attempt:
        """[batch, *input] -> same shape; an ``Attempt`` with notes in mode "threshold" """
        if batch.start is not None:
            raise ValueError(
                f"{self!r} takes no start: ART centers its ball on the inputs that it is given, so a start would move the ball; "
                "leave start out, or take an attack of rt, such as UPGD"
            )
        ball = self.ball
        if ball is not None and ball.radius == 0:
            return batch.inputs.clone()
        threshold = self._threshold(batch, divergence)
        parts = [(slice(None), batch)] if self.batched else [(slice(row, row + 1), one) for row, one in one_by_one(batch)]
        passages: list[Passage] = []
        moved = torch.cat([self._found(encoder, part, divergence, random.select(rows), threshold, passages) for rows, part in parts])
        moved = encoder.clip(moved) if ball is None else ball.project(moved, batch.inputs, encoder.bounds)
        if self.mode in ("y", "unit"):
            # A factory's attack may ask for gradients now and then.
            return Attempt(inputs=moved, notes=unmoved(passages) if isinstance(self.attack, str) else {})
        moved = better_of(encoder, batch, divergence, batch.inputs, moved)
        if threshold is None:
            return moved
        return self._measured(encoder, batch, divergence, moved, threshold)

    @property
    def _served(self) -> Served:
        return SERVED[self.attack] if isinstance(self.attack, str) else _FACTORY

    @property
    def _known(self) -> dict[str, Any]:
        return {**(options_of(self.attack) if isinstance(self.attack, str) else {}), **self.options}

    def _threshold(self, batch: Batch, divergence: Divergence) -> float | None:
        if self.mode != "threshold" or self.threshold is not None:
            return self.threshold
        return threshold_of(batch.bank, self.quantile, divergence, who=f"{self.label} in mode 'threshold'")

    def _measured(self, encoder: Encoder, batch: Batch, divergence: Divergence, moved: Tensor, threshold: float) -> Attempt:
        """Shorten what reached the threshold, and say what did."""
        shortened, reached = bisected(encoder, batch, divergence, moved, threshold)
        if not self._served.bisects:
            shortened = moved
        elif self.ball is not None:
            shortened = self.ball.project(shortened, batch.inputs, encoder.bounds)
        return Attempt(inputs=shortened, notes=magnitudes(batch, shortened, reached))

    def _found(
        self,
        encoder: Encoder,
        batch: Batch,
        divergence: Divergence,
        random: SampleRandom,
        threshold: float | None,
        passages: list[Passage],
    ) -> Tensor:
        """Return what the library makes of some samples, in their dtype; what is not finite is the clean input. Adds how they went."""
        served, device = self._served, batch.inputs.device
        if threshold is not None and _is_there(batch, divergence, threshold):
            return batch.inputs.clone()
        with _current(device), torch.enable_grad(), random.global_generators("global generators"), quiet(), _elsewhere(self, batch):
            shown = _shown(self, encoder, batch, divergence, random, threshold)
            passages.append(shown.passage)
            given = {}
            if served.begins:
                begin = _beginning(self, batch, shown, random)
                if begin is None:
                    return batch.inputs.clone()
                if served.begins == "input":
                    given = {served.begin_as: begin.cpu().numpy()}
            made = _made(self, shown, batch.aim)
            try:
                returned = made.generate(x=shown.inputs.cpu().numpy(), y=shown.labels, **given)
            except ValueError as error:
                if served.hint:
                    error.add_note(served.hint)
                raise
        found = torch.as_tensor(np.asarray(returned)).to(batch.inputs)
        found = found if shown.scale is None else shown.scale.back(found)
        return torch.where(per_sample(found.isfinite().flatten(1).all(1), found), found, batch.inputs)


class _Shown(NamedTuple):
    """What the library is given: an estimator, inputs in its units, labels [batch, classes] or guide inputs, and what turns units back."""

    estimator: Any
    inputs: Tensor
    labels: np.ndarray
    scale: Any
    model: nn.Module
    passage: Passage
    hooks: Mapping[str, Any] = {}


def _shown(
    attack: ARTAttack, encoder: Encoder, batch: Batch, divergence: Divergence, random: SampleRandom, threshold: float | None
) -> _Shown:
    served, who = attack._served, attack.label
    eta = random.uniform("eta", batch.inputs.shape[1:], low=-ETA, high=ETA)
    if attack.mode == "y":
        return _shown_y(attack, encoder, batch, divergence, eta)
    if attack.mode == "unit":
        view: Any = UnitLogits(encoder, batch, divergence, eta=eta, who=who)
        labels, classes = torch.zeros(len(batch.inputs), dtype=torch.long), 4 if served.gated else 2
    elif attack.mode == "threshold":
        assert threshold is not None
        view = ThresholdLogits(encoder, batch, divergence, threshold=threshold, columns=served.columns, who=who, eta=eta)
        labels, classes = torch.full((len(batch.inputs),), int(served.goal or _begins_targeted(attack, batch.aim))), served.columns
    else:
        view = AnchorLogits(encoder, batch, divergence, columns=served.columns, who=who)
        labels, classes = view.labels.cpu(), max(len(view.anchors), served.columns)
    model = FromClean(view) if attack.mode == "unit" and served.gated else Probabilities(view) if served.probabilities else view
    one_hot = np.eye(classes, dtype=np.float32)[labels.numpy()]
    estimator = _estimator(model, nn.CrossEntropyLoss(), batch.inputs, classes, (0.0, 1.0))
    return _Shown(estimator, view.clean.float(), one_hot, view.scale, model, view.passage)


def _shown_y(attack: ARTAttack, encoder: Encoder, batch: Batch, divergence: Divergence, eta: Tensor) -> _Shown:
    inputs = batch.inputs.float().contiguous()
    labels = np.eye(max(len(inputs), 2), dtype=np.float32)[: len(inputs)]
    way = 1 if batch.aim == "away" else -1
    if attack.attack == "ShadowAttack":
        way = -way  # given labels, it takes them for targets and descends
    loss = AnchorLoss(batch.anchor, divergence, way=way)
    model = Representations(encoder, batch, eta=eta)
    estimator = _estimator(model, loss, inputs, labels.shape[1], clip_values(encoder, inputs))
    hooks: Mapping[str, Any] = {}
    if attack.attack == "SquareAttack":
        hooks = square_hooks(estimator, loss)
    if attack.attack == "FeatureAdversariesPyTorch":
        if divergence is not l2:
            raise ValueError(
                f"{attack.label} descends the l2 distance, whatever the divergence; leave divergence out, or take another attack"
            )
        assert batch.target_inputs is not None
        labels = batch.target_inputs.float().cpu().numpy()
    return _Shown(estimator, inputs, labels, None, model, model.passage, hooks)


def _estimator(model: nn.Module, loss: nn.Module, inputs: Tensor, classes: int, clip: tuple[Any, Any]) -> Any:
    return library().PyTorchClassifier(
        model=model,
        loss=loss,
        input_shape=tuple(inputs.shape[1:]),
        nb_classes=classes,
        clip_values=clip,
        device_type="gpu" if inputs.device.type == "cuda" else "cpu",
    )


def _made(attack: ARTAttack, shown: _Shown, aim: str) -> Any:
    """Return the library's attack on what it is shown."""
    rows = len(shown.inputs)
    if not isinstance(attack.attack, str):
        made = attack.attack(shown.estimator, **attack.options)
        if not isinstance(made, library().EvasionAttack):
            raise ValueError(f"factory {attack.attack!r} returned {type(made).__name__}; expected an evasion attack of ART")
        if made.targeted:
            raise ValueError(f"the attack of factory {attack.attack!r} is targeted; leave that out, since the batch's aim decides it")
        if attack.mode == "instance" and aim == "target":
            made.set_params(targeted=True)
        return made
    made = _constructed(attack, shown.estimator, rows, aim, shown.scale, shown.hooks)
    for part in getattr(made, "attacks", ()):
        if "verbose" in part.attack_params:
            part.set_params(verbose=False)
    return made


def _constructed(attack: ARTAttack, estimator: Any, rows: int, aim: str, scale: Any, hooks: Mapping[str, Any]) -> Any:
    served, known = attack._served, attack._known
    options: dict[str, Any] = {"verbose": False} if "verbose" in known else {}
    if served.sized:
        options["batch_size"] = rows
    options |= attack.options
    for name, value in served.defaults.items():
        options[name] = {**value, **(attack.options.get(name) or {})}
    if scale is not None:
        options |= {name: known[name] / scale.width for name in served.lengths}
    kind = evasions()[attack.attack]
    if "targeted" in inspect.signature(kind).parameters:
        options["targeted"] = _begins_targeted(attack, aim) or (attack.mode == "instance" and aim == "target")
    return kind(estimator, **options, **hooks)


def _begins_targeted(attack: ARTAttack, aim: str) -> bool:
    """Say whether an attack must be told the class to reach in order to begin at an input of it."""
    return attack.mode == "threshold" and aim == "target" and attack._served.begin_as == "x_init"


def _beginning(attack: ARTAttack, batch: Batch, shown: _Shown, random: SampleRandom) -> Tensor | None:
    """Return an input that is of another class than the clean one, [1, *input] in the library's units; None if none was found.

    ART would draw one from a generator of its own that nothing seeds, or search for ever.
    """
    if batch.aim == "away":
        noise = random.uniform("beginning", (_BEGINNINGS, *batch.inputs.shape[1:]))[0].to(shown.inputs)
        first, last = noise.chunk(2)
        tried = last.round() if attack._served.begins == "noise" else torch.cat([first, last.round()])
    else:
        assert batch.target_inputs is not None
        tried = batch.target_inputs if shown.scale is None else shown.scale.forth(batch.target_inputs)
    with torch.no_grad():
        clean, *found = shown.model(torch.cat([shown.inputs, tried.to(shown.inputs)])).argmax(1).tolist()
    label = int(shown.labels.argmax())
    reaches = attack.mode == "instance" and batch.aim == "target"
    return next((tried[row : row + 1] for row, one in enumerate(found) if (one == label if reaches else one != clean)), None)


def _is_there(batch: Batch, divergence: Divergence, threshold: float) -> bool:
    """Say whether a sample needs no attack to be within the threshold of its target."""
    return batch.aim == "target" and bool((divergence(batch.anchor, batch.clean) <= threshold).all())


def _current(device: torch.device) -> contextlib.AbstractContextManager:
    # ART takes the current device of its kind.
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def _elsewhere(attack: ARTAttack, batch: Batch) -> Iterator[None]:
    """Work in a temporary directory where an attack leaves files in the current one.

    GeoDA looks for its basis there, and makes it with a function that NumPy 2 has not: it finds the basis made.
    """
    if not attack._served.litters:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rt-art-") as place, contextlib.chdir(place):
        if attack.attack == "GeoDA":
            size, few = batch.inputs.shape[-1], attack._known["sub_dim"]
            np.save(Path(place) / f"2d_dct_basis_{few}_{size}.npy", _cosines(few, size))
        yield


def _cosines(few: int, size: int) -> np.ndarray:
    """Return the first ``few`` x ``few`` two-dimensional cosines: [size * size, few * few], float32"""
    length, place = max(size, few), np.arange(size)
    waves = np.stack([np.cos((2 * place + 1) * wave * math.pi / (2 * length)) for wave in range(few)])
    waves *= np.where(np.arange(few) == 0, math.sqrt(1 / length), math.sqrt(2 / length))[:, None]
    # Down an image run the waves of the outer index in ART's own order of rows and columns.
    return np.einsum("ux,vy->uvyx", waves, waves).reshape(few * few, size * size).T.astype(np.float32)


def _by_batch(served: Served, mode: str) -> bool:
    if served.alone or mode == "threshold":
        return False
    return served.whole if mode == "unit" else True


def _named(attack: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the name of a class of the library that is served, or the factory."""
    classes = evasions()
    if not isinstance(attack, str):
        name = getattr(attack, "__name__", "")
        if not callable(attack):
            raise ValueError(
                f"attack is {attack!r}; expected the name of a class of art.attacks.evasion, or a factory (estimator) -> attack"
            )
        if classes.get(name) is not attack:
            return attack
        attack = name
    if attack in REFUSED:
        raise ValueError(f"ART's {attack} cannot attack encoders: {REFUSED[attack]}")
    if attack in SERVED and attack in classes:
        return attack
    if attack in classes:
        raise ValueError(f"ART's {attack} is not known here; give a factory of it, (estimator) -> attack, and a mode")
    meant = f"; did you mean {SHORT[attack.lower()]!r}?" if attack.lower() in SHORT else did_you_mean(attack, SERVED)
    raise ValueError(f"art.attacks.evasion has no attack {attack!r}{meant} (it has {', '.join(SERVED)})")


def _check_mode(attack: str | Callable[..., Any], mode: str, served: Served) -> None:
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; expected {', '.join(map(repr, MODES))}")
    if mode not in served.modes:
        others = " and ".join(map(repr, served.modes))
        can = f"mode {others} does" if len(served.modes) == 1 else f"modes {others} do"
        raise ValueError(f"ART's {attack} does not work in mode {mode!r}: {served.why}; {can}")


def _check_threshold(mode: str, threshold: Any, quantile: Any) -> None:
    if threshold is not None:
        if mode != "threshold":
            raise ValueError(f"threshold is {threshold!r}, and mode {mode!r} has none; leave it out, or take mode 'threshold'")
        if not _is_number(threshold) or not 0 < threshold < math.inf:
            raise ValueError(f"threshold is {threshold!r}; expected a positive, finite divergence")
    if not _is_number(quantile) or not 0 < quantile <= 1:
        raise ValueError(f"quantile is {quantile!r}; expected a number in (0, 1]: the share of the bank's pairs that are nearer")


def _check_options(attack: ARTAttack) -> None:
    options = attack.options
    if not isinstance(attack.attack, str):
        try:
            inspect.signature(attack.attack).bind(None, **options)
        except TypeError as error:
            raise ValueError(
                f"factory {attack.attack!r} cannot be called with the estimator and {', '.join(options) or 'nothing else'}: {error}"
            ) from None
        return
    served, known = attack._served, options_of(attack.attack)
    for name, value in options.items():
        if name == "targeted":
            raise ValueError("targeted is no option here: targets are given to perturb, or by the metrics of a plan, and the aim follows")
        if name in ("adv_criterion", "loss") and attack.attack == "SquareAttack":
            raise ValueError(f"{name} is no option here: the mode decides what SquareAttack reads")
        if name not in known:
            raise ValueError(f"{attack.label} has no option {name!r}{did_you_mean(name, known)} (it takes {', '.join(known)})")
        check_given(name, value, known[name])
        if name in ("eps", "eps_step", served.radius) and not (_is_number(value) and math.isfinite(value) and value >= 0):
            reason = "it is a step; the aim decides the direction" if name == "eps_step" else "it is a radius and cannot be negative"
            raise ValueError(f"{name} is {value!r}; expected a number from 0 on, in the units of the encoder's bounds: {reason}")
    missing = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in options]
    if missing:
        raise ValueError(f"{attack.label} needs {' and '.join(missing)}; the library has no default")
    if served.norm == "norm" and not _is_norm(options.get("norm", math.inf)):
        raise ValueError(f"norm is {options['norm']!r}; expected 'inf' or a number from 1 on")
    if options.get("eps_step", 1) == 0:
        raise ValueError("eps_step is 0; a step must be positive")
    check_whole("max_iter", options.get("max_iter", 1))
    _check_classless(attack)
    also = [package for (one, name, value), package in NEEDED.items() if one == attack.attack and attack._known[name] == value]
    for package in (*served.needs, *also):
        if find_spec(package) is None:
            raise ImportError(f"{attack.label} needs the package {package}, which is not installed: pip install {package}")
    if attack.ball is None or attack.ball.radius > 0:
        _check_by_library(attack)


def _check_classless(attack: ARTAttack) -> None:
    """Raise ValueError for options that choose by the class where the mode shows none that means anything."""
    if attack.mode not in ("y", "unit"):
        return
    for name in ("num_random_init", "nb_random_init"):
        starts = attack.options.get(name, 0)
        if starts not in (0, 1):
            raise ValueError(
                f"{name} is {starts!r}; expected 0 or 1: ART keeps the restart at which the class changed, and representations have none "
                "(UPGD of rt-unsupervised-attacks keeps the best of its restarts)"
            )
    if attack.options.get("minimal"):
        raise ValueError(
            "minimal is True; it looks for the step at which the class changes, and representations have none: mode='threshold' looks for "
            "the step at which a divergence is reached"
        )


def _check_by_library(attack: ARTAttack) -> None:
    """Make the attack once on a network of nothing, so that what the library refuses is said now."""
    estimator = _estimator(nn.Sequential(nn.Flatten()), nn.CrossEntropyLoss(), torch.zeros(1, 3, 4, 4), 48, (0.0, 1.0))
    try:
        with quiet():
            _constructed(attack, estimator, 1, attack.aims[0], None, {})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{attack.label} refuses these options: {error}") from None
    except (ArithmeticError, LookupError, RecursionError) as error:
        chosen = ", ".join(f"{name}={value!r}" for name, value in attack.options.items())
        remedy = attack._served.remedy or "leave out what is not needed, or give values nearer to the library's defaults"
        raise ValueError(f"{attack.label} cannot be made with {chosen} ({type(error).__name__} in the library): {remedy}") from None


def _is_norm(norm: Any) -> bool:
    return norm == "inf" or (_is_number(norm) and norm >= 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""A linear probe: the class that a frozen encoder's representation is read as, learned on labelled samples that are not measured."""

import inspect
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rt_core.datasets import Samples, as_samples
from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.errors import MissingLabels, RobustnessWarning
from rt_core.fingerprints import fingerprint
from rt_core.labels import classes_of
from rt_core.naming import did_you_mean
from rt_core.perturbing import check_batch, progress_bar, represent_rows
from rt_core.randomness import SampleRandom, stream
from rt_core.shapes import check_shape
from rt_core.smoothing import check_sigma
from rt_core.traces import AIMS, Batch, FrozenTensor, check_number, check_whole
from rt_core.views import crop_and_flip
from rt_linear_probes.frequencies import lowpass
from rt_linear_probes.regression import descend, logistic_regression

__all__ = ["LinearProbe", "Probe", "ProbeLoss", "as_probe", "check_flag", "check_labels", "check_told", "encoder_print", "fit_probe"]

_VIEWS = ("plain", "lowpass", "noise")
_RECIPES = ("regression", "paper")
_PENALTIES = tuple(10.0**power for power in range(0, -7, -1))  # the strongest first: each search begins where the last ended
_UNCHOSEN = 1e-3
_CONSTANT = 1e-6  # deviation relative to the mean: what float32 makes of a number that does not vary
_CROP = (0.08, 1.0)
_ROUGHLY = 1e-5  # the slope to which the penalties are compared
_PATIENCE = 2  # penalties in a row that may do worse before the weaker ones are left out
_READ = 256  # samples that are read and cropped together, whatever the batch, on which the last bits of a crop may depend
_FEW = 5  # classes that are named
_TENSORS = ("weight", "bias", "classes")
_FOUND = (*_TENSORS, "encoder_name", "encoder_fingerprint", "chosen", "selection_accuracy", "about")  # what a fit sets
_NOISE, _LOWPASS, _PAPER = {"view": "noise"}, {"view": "lowpass"}, {"recipe": "paper"}
# Options that not every probe reads: which one does, and what it takes unless given.
_READ_BY: dict[str, tuple[dict[str, str], Any]] = {
    "sigma": (_NOISE, 0.25),
    "clip": (_NOISE, False),
    "radius": (_LOWPASS, None),
    "draws": (_NOISE | {"recipe": "regression"}, 4),
    "epochs": (_PAPER, 25),
    "minibatch": (_PAPER, 128),
    "rate": (_PAPER, 30.0),
    "drops": (_PAPER, (15, 20)),
    "augment": (_PAPER, True),
}
_MARK = "rt_probe"
_COMPILED = "_orig_mod"
_CPU = torch.device("cpu")
_PRINTS: WeakKeyDictionary[Encoder, tuple[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A linear classifier of a frozen encoder's representations: a recipe, and once it is fitted, what came out.

    ``fit`` (or ``fit_probe``, or a run with the plan's ``train``) returns the probe with weight, bias and classes. A tenth of the training
    samples, of every class and of whole groups where the dataset has them, is kept apart to choose by: nothing is ever chosen on samples
    that are reported.

    The recipe ``"regression"`` needs no tuning: representations of the training samples are made once and held in memory (13 bytes a
    number while they are made, then 8), standardized; the minimum of cross-entropy with weight decay is found on nine tenths for decays
    of 1 to 1e-6, that with the least cross-entropy on the last tenth is taken, and the minimum found again on all. ``"paper"`` is that of
    Petrov & Kwiatkowska 2022 (section 7): SGD, momentum 0.9, no weight decay, weights from N(0, 0.01), random crops and mirroring of
    pictures, the epoch that is best on the last tenth.

    An option that a probe of this view and recipe does not read is None, and refused where it is given.

    Args:
        view: how the probe sees inputs, when it is fitted and whenever it is used: ``"plain"``, as they are; ``"lowpass"``, see
            ``lowpass``; ``"noise"``, with Gaussian noise.
        recipe: ``"regression"`` or ``"paper"``.
        sigma: standard deviation of the noise, in the units of the encoder's bounds (0.25); clip: whether noisy inputs are clipped to the bounds.
        radius: of the low pass; None takes 50/112 of half the shorter side.
        draws: of noise, for each training sample (4; regression alone: the paper's recipe draws anew in each epoch).
        share: of the training samples, to choose by.
        epochs, minibatch, rate, drops: of the paper's recipe (25, 128, 30, (15, 20)); ``rate`` falls to a tenth at each of ``drops``.
        augment: crop and mirror pictures (paper's recipe, True). Without, plain and low-pass representations are made once.
        weight, bias, classes: once fitted, [classes, dim], [classes] and the labels that they stand for, as the dataset has them.
        encoder_name, encoder_fingerprint: which encoder it was fitted on, see ``encoder_print``.
        chosen: the weight decay or the epoch that was chosen; selection_accuracy: with it on the samples to choose by; about: the rest in words.

    Raises:
        ValueError: an option out of its range, or one that such a probe does not read.
    """

    view: str = "plain"
    recipe: str = "regression"
    sigma: float | Any = None
    clip: bool | Any = None
    radius: float | None = None
    draws: int | Any = None
    share: float = 0.1
    epochs: int | Any = None
    minibatch: int | Any = None
    rate: float | Any = None
    drops: Sequence[int] | Any = None
    augment: bool | Any = None
    weight: FrozenTensor | Any = None
    bias: FrozenTensor | Any = None
    classes: FrozenTensor | Any = None
    encoder_name: str | None = None
    encoder_fingerprint: str | None = None
    chosen: float | None = None
    selection_accuracy: float | None = None
    about: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("view", _VIEWS), ("recipe", _RECIPES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(map(repr, allowed))}")
        for name, (readers, default) in _READ_BY.items():
            if all(getattr(self, switch) == value for switch, value in readers.items()):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, default)
            elif getattr(self, name) is not None:
                read_by = " and ".join(f"{switch}={value!r}" for switch, value in readers.items())
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, and a probe of view {self.view!r} and recipe {self.recipe!r} does not read it; "
                    f"say {read_by}, or leave it out"
                )
        given = {name: getattr(self, name) for name in _READ_BY if getattr(self, name) is not None}
        for name in ("sigma", "rate", "radius"):
            if name in given:
                check_number(name, given[name])
                if not given[name] > 0:
                    raise ValueError(f"{name} is {given[name]:g}; it must be positive")
        for name in ("draws", "epochs", "minibatch"):
            if name in given:
                check_whole(name, given[name])
        check_number("share", self.share)
        if not 0 < self.share <= 0.5:
            raise ValueError(f"share is {self.share:g}; expected a share of the training samples to choose by, in (0, 0.5], such as 0.1")
        for name in ("clip", "augment"):
            if name in given:
                check_flag(name, given[name])
        if (drops := given.get("drops")) is not None:
            if not isinstance(drops, (tuple, list)) or not all(isinstance(one, int) and not isinstance(one, bool) for one in drops):
                raise ValueError(
                    f"drops is {drops!r}; expected the epochs from which on the rate is a tenth, whole numbers such as (15, 20)"
                )
            object.__setattr__(self, "drops", tuple(drops))
        found = [getattr(self, name) for name in ("weight", "bias", "classes")]
        if any(part is None for part in found):
            if found != [None] * 3:
                raise ValueError("weight, bias and classes stand for one another; give all three, or none: fit_probe sets them")
            return
        for name, part in zip(("weight", "bias", "classes"), found, strict=True):
            object.__setattr__(self, name, FrozenTensor.of(part))
        rows = len(self._tensor("classes", _CPU))
        check_shape(self._tensor("weight", _CPU), "classes dim", what="weight", classes=rows)
        check_shape(self._tensor("bias", _CPU), "classes", what="bias", classes=rows)

    @property
    def fitted(self) -> bool:
        """Return whether there is anything to classify by."""
        return self.weight is not None

    @property
    def head(self) -> nn.Linear:
        """Return weight and bias as a frozen layer, for toolboxes that attack classifiers: ``rt_art.art_classifier(encoder, probe.head, …)``."""
        weight, bias = self.on(_CPU)
        layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], dtype=weight.dtype)
        layer.load_state_dict({"weight": weight, "bias": bias})
        return layer.eval().requires_grad_(False)

    def on(self, device: torch.device, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Return weight [classes, dim] and bias [classes] on a device.

        Raises:
            ValueError: the probe is not fitted.
        """
        return self._tensor("weight", device).to(dtype=dtype), self._tensor("bias", device).to(dtype=dtype)

    def logits(self, representations: Tensor) -> Tensor:
        """[n, dim] -> [n, classes], in the order of ``classes``: in the probe's dtype, or in a wider one of the representations.

        Raises:
            ValueError: the probe is not fitted, or to representations of another width.
        """
        device = representations.device
        weight, bias = self.on(device)
        if representations.shape[1:] != weight.shape[1:]:
            raise ValueError(
                f"representations have shape {list(representations.shape)}, and the probe was fitted on encoder {self.encoder_name!r} with "
                f"{weight.shape[1]} numbers each: [n, {weight.shape[1]}]; give such, or fit one on this encoder"
            )
        wide = torch.promote_types(representations.dtype, weight.dtype)  # integers would round the weights
        with torch.autocast(device.type, enabled=False):
            return representations.to(wide) @ weight.to(wide).T + bias.to(wide)

    def predict(self, representations: Tensor) -> Tensor:
        """[n, dim] -> the labels, as the dataset has them, [n]

        Raises:
            ValueError: as ``logits``, and to representations that are not finite.
        """
        return self._tensor("classes", representations.device)[check_told(self.logits(representations)).argmax(1)]

    def viewed(self, inputs: Tensor, random: SampleRandom, encoder: Encoder, *, purpose: str = "probe") -> Tensor:
        """Return inputs as the probe sees them; the noise is that of the samples' streams of that purpose.

        Noisy inputs leave the bounds unless ``clip``, as those of randomized smoothing do.

        inputs: [batch, *input] -> same shape
        """
        if self.view == "lowpass":
            return lowpass(inputs, self.radius, bounds=encoder.bounds)
        if self.view == "noise":
            noisy = inputs + self.sigma * random.normal(f"{purpose}/noise", inputs.shape[1:]).to(inputs)
            return encoder.clip(noisy) if self.clip else noisy
        return inputs

    def check(self, encoder: Encoder) -> None:
        """Raise ValueError unless the probe is fitted, and on this encoder, on whatever device: see ``encoder_print``."""
        self._tensor("weight", _CPU)
        theirs = encoder_print(encoder)
        if self.encoder_fingerprint != theirs:
            raise ValueError(
                f"this probe was fitted on encoder {self.encoder_name!r} (fingerprint {self.encoder_fingerprint}), and encoder "
                f"{encoder.name!r} has fingerprint {theirs}; a probe reads the representations of its own encoder alone: fit one on this encoder"
            )

    def fit(self, encoder: Any, train: Any, *, random: SampleRandom, batch: int | None = None, progress: bool = False) -> "Probe":
        """Return the probe fitted on the training samples; the encoder is left as it was, bit for bit. A fitted probe is itself.

        train: any dataset with labels; random: its seed gives every draw, each from the stream of the training sample that it is for, whatever
        its own ids; batch: how many inputs go through the encoder together.

        Raises:
            MissingLabels: the dataset has none.
            InvalidInputs: labels that are no whole numbers, or inputs that the encoder cannot be asked about.
            ValueError: noise wider than the bounds, or the probe was fitted on another encoder.
        """
        encoder, samples = as_encoder(encoder), as_samples(train)
        if self.fitted:
            self.check(encoder)
            return self
        if self.view == "noise":
            check_sigma(self.sigma, encoder)
        classes, targets = _labels(samples).unique(return_inverse=True)
        if len(classes) < 2:
            warnings.warn(
                f"the {len(samples)} training samples ({samples.name!r}) are all of class {classes.item()}, so the probe can say nothing else",
                RobustnessWarning,
                stacklevel=2,
            )
        apart = _apart(targets.tolist(), samples, random.seed, self.share)
        crop = self.recipe == "paper" and self.augment and samples.inputs([0]).ndim == 4
        passes = self._passes(crop=crop)
        with torch.inference_mode(False), encoder.in_use(), progress_bar(progress, passes * len(samples)) as bar:
            source = _Source(self, encoder, samples, SampleRandom.of(random.seed, samples.ids), check_batch(batch), bar.update, crop)
            found = (_regressed if self.recipe == "regression" else _descended)(source, targets, len(classes), apart, passes)
            return replace(
                self,
                weight=found.solution[:, :-1].clone(memory_format=torch.contiguous_format),
                bias=found.solution[:, -1].clone(memory_format=torch.contiguous_format),
                classes=classes,
                encoder_name=encoder.name,
                encoder_fingerprint=encoder_print(encoder),
                chosen=found.chosen,
                selection_accuracy=found.accuracy,
                about=f"{found.about}; {_told(targets, classes, apart)}",
            )

    def save(self, path: str | Path) -> None:
        """Write the probe as safetensors: its three tensors, and all else as text in the file's metadata.

        Raises:
            ValueError: the probe is not fitted.
            FileNotFoundError: there is no such folder.
        """
        from safetensors.torch import save_file

        tensors = {name: self._tensor(name, _CPU).contiguous() for name in _TENSORS}
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"path is {str(path)!r}, and its folder is not there; make it, or give another path")
        others = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _TENSORS}
        save_file(tensors, path, metadata={_MARK: json.dumps(others)})

    @classmethod
    def load(cls, path: str | Path, encoder: Any) -> "Probe":
        """Read a probe that was fitted on this encoder.

        Raises:
            ValueError: it was fitted on another encoder, or the file holds no probe.
            FileNotFoundError: there is no such file.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise FileNotFoundError(f"path is {str(path)!r}, and no such file is there; give one that probe.save has written")
        try:
            with safe_open(path, framework="pt") as file:
                about, names = (file.metadata() or {}).get(_MARK), set(file.keys())
                tensors = {name: file.get_tensor(name) for name in _TENSORS if name in names}
        except SafetensorError as error:
            raise ValueError(
                f"{path} is no whole file of tensors ({error}); give one that probe.save has written, or fit the probe anew"
            ) from None
        if about is None or len(tensors) < len(_TENSORS):
            raise ValueError(f"{path} holds {', '.join(map(repr, sorted(names)))} and no probe; give a file that probe.save has written")
        others = json.loads(about)
        if strange := sorted(others.keys() - {field.name for field in fields(cls)}):
            raise ValueError(
                f"{path} holds a probe with {', '.join(map(repr, strange))}, which this version does not know; take the version that wrote it, "
                "or fit the probe anew"
            )
        probe = cls(**others, **tensors)
        probe.check(as_encoder(encoder))
        return probe

    def _passes(self, *, crop: bool) -> int:
        if self.view != "noise" and not crop:
            return 1
        return self.draws if self.recipe == "regression" else self.epochs

    def _tensor(self, name: str, device: torch.device) -> Tensor:
        kept = getattr(self, name)
        if kept is None:
            raise ValueError(
                f"the probe (view {self.view!r}) is not fitted; give the plan train=… (labelled samples that are not measured), "
                "or take what fit_probe(encoder, dataset) returns"
            )
        return kept.on(device)


LinearProbe = Probe  # what fit_probe returns: one that is fitted


def fit_probe(
    encoder: Any, dataset: Any, *, view: str = "plain", seed: int = 0, batch: int | None = None, progress: bool = False, **options: Any
) -> LinearProbe:
    """Fit a linear probe on a dataset with labels, and return it; nothing of the encoder changes.

    encoder: an ``Encoder``, or a network with default settings; dataset: any with labels; batch: how many inputs go through the encoder
    together; options: those of ``Probe``. Raises as ``Probe`` and ``Probe.fit`` do.
    """
    return as_probe({"view": view, **options}).fit(encoder, dataset, random=SampleRandom.of(seed, []), batch=batch, progress=progress)


def encoder_print(encoder: Encoder) -> str:
    """Return a hash of what the numbers of a probe rest on, by which it knows its encoder again.

    Weights, buffers, the classes of modules and how they describe themselves, functions, bounds, normalization and output. Neither the
    device, ``torch.compile``, nor plain numbers that hang on a module, such as a counter of its calls: they may change while the network
    stays the same. (So two networks that differ in such a number alone are not told apart.)
    """
    whole = encoder.fingerprint  # taken once while the encoder is held in use: then so is this
    known = _PRINTS.get(encoder)
    if known is None or known[0] != whole:
        known = _PRINTS[encoder] = (whole, fingerprint([*_computing(encoder.module), encoder.bounds, encoder.normalize, encoder.output]))
    return known[1]


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is True or False: ``"no"`` would be taken for True."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected True or False")


def check_labels(labels: Any, count: int, *, what: str = "labels") -> Tensor:
    """Return labels as a tensor, [count] int64, on the CPU.

    Raises:
        InvalidInputs: they are no classes; see ``rt_core.labels.classes_of``.
        ShapeError: another number of them.
    """
    found = torch.tensor(classes_of(labels), dtype=torch.long)
    check_shape(found, "n", what=what, n=count)
    return found


def check_told(logits: Tensor) -> Tensor:
    """Return logits, [n, classes], after checking that they tell a class: of NaN the largest is the first.

    Raises:
        ValueError: some are NaN or infinite.
    """
    if broken := int((~logits.isfinite()).any(1).sum()):
        raise ValueError(
            f"{broken} of {len(logits)} representations are not finite, or too large for the probe's logits to be, and belong to no class; leave them out"
        )
    return logits


def as_probe(given: Any, **defaults: Any) -> Probe:
    """Return a probe from what a metric's option ``probe`` may be: a ``Probe``, a mapping of its options (from a study file), or None.

    defaults: options of the probe, where the mapping does not say.

    Raises:
        ValueError: it is something else, or has options that a probe has not.
    """
    if isinstance(given, Probe):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(
            f"probe is {given!r}; expected a Probe (of a file: Probe.load(path, encoder)), or a table of its options, such as {{view = 'noise'}}"
        )
    options = {**defaults, **(given or {})}
    known = [field.name for field in fields(Probe) if field.name not in _FOUND]
    for name in options:
        if name not in known:
            raise ValueError(f"a probe has no option {name!r}{did_you_mean(str(name), known)} (it takes {', '.join(known)})")
    return Probe(**options)


@dataclass(frozen=True, kw_only=True)
class ProbeLoss:
    """A loss for loss-based attacks (``LPGD(loss=ProbeLoss())``): away from the class that the probe gives the clean input, by
    cross-entropy, or to the class that it gives the target. No label is read; where the probe is right, this is the supervised attack.

    Args:
        probe: sees inputs plain, whatever its view; fitted on the plan's ``train``.
        margin: raise the largest other logit minus the class's own instead, whose gradient does not vanish where the probe is certain.

    Raises:
        ValueError: the probe is none; in use, it is not fitted on the attacked encoder.
    """

    probe: Probe | Any = Probe()
    margin: bool = False
    joint: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    aims: ClassVar[tuple[str, ...]] = AIMS

    def __post_init__(self) -> None:
        object.__setattr__(self, "probe", as_probe(self.probe))
        check_flag("margin", self.margin)

    def __call__(self, encoder: Encoder, batch: Batch, moved: Tensor, random: SampleRandom) -> Tensor:
        """Moved: [batch, *input], with a gradient -> [batch]"""
        return self.prepare(encoder, batch, random)(moved)

    def prepare(self, encoder: Encoder, batch: Batch, random: SampleRandom) -> Callable[[Tensor], Tensor]:
        """Return the loss as a function of the moved inputs alone."""
        self.probe.check(encoder)
        wanted = self.probe.logits(batch.anchor).argmax(1)
        weight, bias = self.probe.on(batch.anchor.device, batch.anchor.dtype)
        sign = 1 if batch.aim == "away" else -1

        def value(moved: Tensor) -> Tensor:
            logits = encoder(moved) @ weight.T + bias
            if not self.margin:
                return sign * cross_entropy(logits, wanted, reduction="none")
            others = logits.scatter(1, wanted[:, None], -torch.inf)
            return sign * (others.amax(1) - logits.gather(1, wanted[:, None]).squeeze(1))

        return value


def _computing(network: nn.Module) -> Iterator[Any]:
    """Yield what a network computes by."""
    for name, module in network.named_modules():
        if hasattr(module, _COMPILED):  # torch.compile's wrapper, which computes what the module inside it does
            continue
        yield _plain(name), type(module), module.extra_repr()
        yield [(name, value) for name, value in sorted(vars(module).items()) if not name.startswith("_") and _is_function(value)]
    for name, weight in [*network.named_parameters(), *network.named_buffers()]:
        yield _plain(name), weight.detach()


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def _is_function(value: Any) -> bool:
    return callable(value) and not inspect.isclass(value)


class _Source(NamedTuple):
    """Where representations of training samples come from, as the probe sees them."""

    probe: Probe
    encoder: Encoder
    samples: Samples
    random: SampleRandom
    size: int
    tick: Callable[[int], Any]
    crop: bool

    def rows(self, chosen: Sequence[int], name: str, *, whole: bool = False) -> Tensor:
        """Return the representations of some samples, in a draw of that name, uncropped if ``whole``: [n, dim], on the CPU"""
        parts = []
        for first in range(0, len(chosen), _READ):
            some = chosen[first : first + _READ]
            inputs, random = self.samples.inputs(some), self.random.select(some)
            check_inputs(inputs, self.encoder, what="train", ids=[self.samples.ids[row] for row in some])
            if self.crop and not whole:
                inputs = self.encoder.clip(crop_and_flip(inputs, random, f"probe/{name}/crop", scale=_CROP))
            viewed = self.probe.viewed(inputs, random, self.encoder, purpose=f"probe/{name}")
            parts.append(represent_rows(self.encoder, viewed, self.size))
            self.tick(len(some))
        return torch.cat(parts)

    def place(self, *, exact: bool) -> torch.device:
        """Return where to compute: where the encoder is, but for float64 on what has none."""
        home = self.encoder.where() or _CPU
        return _CPU if exact and home.type == "mps" else home


class _Found(NamedTuple):
    """What a recipe found: weight and bias [classes, dim + 1] for representations as they are, and how it was chosen."""

    solution: Tensor
    chosen: float | None
    accuracy: float | None
    about: str


def _regressed(source: _Source, targets: Tensor, classes: int, apart: Tensor, draws: int) -> _Found:
    every = range(len(source.samples))
    given = torch.cat([source.rows(every, f"draw/{draw}") for draw in range(draws)])
    place, dtype, out = source.place(exact=True), given.dtype, apart.repeat(draws)
    # Those to choose by last: then both parts are views, and the rows are there once.
    order, kept = out.long().argsort(stable=True), len(out) - int(out.sum())
    wanted = targets.repeat(draws)[order].to(place)
    rows = torch.empty(given.shape, dtype=torch.float64, device=place)
    for into, some in zip(rows.split(_READ), order.split(_READ), strict=True):
        into.copy_(given[some])
    del given
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation[deviation <= _CONSTANT * mean.abs()] = 1  # a number that is the same for all samples tells nothing
    rows.sub_(mean).div_(deviation)
    penalty, accuracy, best = _UNCHOSEN, None, None
    if kept < len(rows):
        solution, least, worse = None, torch.inf, 0
        for one in _PENALTIES:
            solution = logistic_regression(rows[:kept], wanted[:kept], classes, penalty=one, start=solution, slope=_ROUGHLY)
            logits = rows[kept:] @ solution[:, :-1].T + solution[:, -1]
            if (loss := cross_entropy(logits, wanted[kept:]).item()) < least:
                penalty, least, best, accuracy, worse = one, loss, solution, _accuracy(logits, wanted[kept:]), 0
            elif (worse := worse + 1) == _PATIENCE:
                break
    solution = logistic_regression(rows, wanted, classes, penalty=penalty, start=best)
    weight = solution[:, :-1] / deviation
    raw = torch.cat([weight, (solution[:, -1] - weight @ mean)[:, None]], dim=1).to(_CPU, dtype)
    told = f"weight decay {penalty:g} (of standardized representations)" + (f", {draws} draws of noise" * (draws > 1))
    return _Found(raw, penalty, accuracy, f"{told}; representations made once")


def _descended(source: _Source, targets: Tensor, classes: int, apart: Tensor, passes: int) -> _Found:
    probe, place = source.probe, source.place(exact=False)
    kept, out = (~apart).nonzero().flatten().tolist(), apart.nonzero().flatten().tolist()
    judged = source.rows(out, "selection", whole=True).to(place) if out else None
    known = source.rows(kept, "fixed").to(place) if passes == 1 else None
    like = known if known is not None else source.rows(kept[:1], "first").to(place)

    def given(epoch: int, chosen: Sequence[int]) -> Tensor:
        return known[chosen] if known is not None else source.rows([kept[row] for row in chosen], f"epoch/{epoch}").to(place)

    drawn = stream(source.random.seed, "probe/weights").standard_normal((classes, like.shape[1]))
    start = torch.cat([0.01 * torch.from_numpy(drawn), torch.zeros(classes, 1)], dim=1).to(like)
    orders = [stream(source.random.seed, f"probe/order/{epoch}").permutation(len(kept)) for epoch in range(probe.epochs)]
    best, chosen, accuracy = start, None, None
    descent = descend(given, targets[kept].to(place), start, orders, batch=probe.minibatch, rate=probe.rate, drops=probe.drops)
    for epoch, solution in enumerate(descent):
        score = None if judged is None else _accuracy(judged @ solution[:, :-1].T + solution[:, -1], targets[out].to(place))
        if score is None or accuracy is None or score > accuracy:
            best, chosen, accuracy = solution, epoch, score
    if not best.isfinite().all():
        raise ValueError(
            f"rate is {probe.rate:g}, and with it the probe's weights went to infinity; give a smaller one, or recipe='regression'"
        )
    told = "made once" if known is not None else "made anew in each epoch"
    return _Found(best.to(_CPU), chosen, accuracy, f"epoch {chosen} of 0 to {probe.epochs - 1}; representations {told}")


def _accuracy(logits: Tensor, targets: Tensor) -> float:
    return (logits.argmax(1) == targets).double().mean().item()


def _labels(samples: Samples) -> Tensor:
    """Return the labels of all samples, [n] int64.

    Raises:
        MissingLabels: there are none.
        InvalidInputs: they are no whole numbers.
    """
    labels = samples.labels(range(len(samples)))
    if labels is None:
        raise MissingLabels(
            f"a probe learns from labels, and the training samples ({samples.name!r}) have none; give train= a dataset with labels"
        )
    return torch.tensor(classes_of(labels))  # False and True are classes 0 and 1


def _apart(targets: Sequence[int], samples: Samples, seed: int, share: float) -> Tensor:
    """Choose the samples to choose by: of every class that share, at least one and at most half, and of whole groups: [n] bool

    In an order that belongs to the seed and the ids (or the groups), whatever the order of the dataset. A class of one sample, or of one
    group, has none.
    """
    names = samples.ids if samples.groups is None else samples.groups
    members: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(row)
    units = [*members]
    order = SampleRandom.of(seed, units).uniform("probe/apart", ()).argsort(stable=True).tolist()
    whole, taken = Counter(targets), Counter[int]()
    goal = {one: max(1, round(share * count)) for one, count in whole.items()}
    apart = torch.zeros(len(targets), dtype=torch.bool)
    for unit in order:
        rows = members[units[unit]]
        new = Counter(targets[row] for row in rows)
        wanted = any(taken[one] < goal[one] for one in new)
        if wanted and all(2 * (taken[one] + count) <= whole[one] for one, count in new.items()):
            taken += new
            apart[rows] = True
    return apart


def _told(targets: Tensor, classes: Tensor, apart: Tensor) -> str:
    """Return in words what was chosen by."""
    if not apart.any():
        return f"nothing was chosen, since no class has two samples (of two groups): all {len(targets)} samples are fitted"
    without = classes[~torch.isin(torch.arange(len(classes)), targets[apart])].tolist()
    named = ", ".join(map(str, without[:_FEW])) + (", …" if len(without) > _FEW else "")
    told = f"chosen on {int(apart.sum())} of {len(targets)} samples"
    return told + (f", among which {len(without)} of {len(classes)} classes have none ({named})" if without else "")

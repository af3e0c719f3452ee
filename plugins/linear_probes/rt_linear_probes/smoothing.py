"""Randomized smoothing: the class that most noisy copies of an input get, and how far from the input it is sure to stay the same."""

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.errors import RobustnessWarning, ShapeError
from rt_core.neighbors import Bank
from rt_core.perturbing import check_batch, progress_bar
from rt_core.randomness import SampleRandom
from rt_core.smoothing import Draws, check_sigma, say_once
from rt_core.traces import Context, Rows, Trace, check_number, check_radii, check_whole
from rt_linear_probes.probes import Probe, as_probe, check_flag, check_labels

__all__ = [
    "CertifiedAccuracy",
    "CertifiedRadius",
    "RandomizedSmoothing",
    "SmoothedPrediction",
    "average_certified_radius",
    "certified_l2_radius",
    "clopper_pearson_lower",
    "draws_needed",
]

ABSTAINED = -1
_REHEARSED = (8, 24)  # selection and certify draws of a rehearsal
_REHEARSAL_ALPHA = 1e-3


def clopper_pearson_lower(successes: Any, n: Any, alpha: float) -> Tensor:
    """Return the one-sided lower confidence bound of a probability (Clopper & Pearson 1934): it is above the truth with probability alpha at most.

    The p at which ``successes`` of n or more have probability alpha; 0 for no success, alpha^(1/n), below 1, where all n succeed.

    successes, n: whole numbers, or tensors of them that broadcast -> the same shape, float64

    Raises:
        ValueError: counts that are not whole or not in 0 … n, n below 1, or an alpha outside (0, 1).
    """
    from scipy.special import betaincinv

    _check_alpha(alpha)
    successes, n = map(_double, (successes, n))
    if not (n >= 1).all() or (n != n.round()).any():
        raise ValueError(f"n is {_shown(n)}; expected whole numbers of at least 1")
    if not ((successes >= 0) & (successes <= n)).all() or (successes != successes.round()).any():
        raise ValueError(f"successes is {_shown(successes)}; expected whole numbers between 0 and n = {_shown(n)}")
    some = successes.clamp(min=1)
    bound = torch.as_tensor(betaincinv(some.numpy(), (n - some + 1).numpy(), alpha), dtype=torch.float64)
    return torch.where(successes > 0, bound, 0.0)


def certified_l2_radius(lower: Any, sigma: float) -> Tensor:
    """Return the l2 radius in which a class keeps the majority whose probability under the noise is at least ``lower``: sigma·Φ⁻¹(lower).

    0 at 1/2, and below it, where nothing is certified and the caller abstains; infinite at 1, which no bound from draws reaches. In the
    units of sigma (Cohen et al. 2019, theorem 1, with 1 - lower for the runner-up).

    lower: a probability, or a tensor of them -> the same shape, float64

    Raises:
        ValueError: probabilities outside [0, 1], or a sigma that is not positive.
    """
    from scipy.special import ndtri

    _check_sigma(sigma)
    lower = _double(lower)
    if not ((lower >= 0) & (lower <= 1)).all():
        raise ValueError(f"lower is {_shown(lower)}; expected probabilities, in [0, 1]")
    return sigma * torch.as_tensor(ndtri(lower.clamp(min=0.5).numpy()), dtype=torch.float64)


def average_certified_radius(radius: Any, correct: Any, *, over: str = "all") -> float:
    """Return the average certified radius over all samples, 0 for those that are wrong (Zhai et al. 2020), or over the correct ones alone.

    The second convention favors a classifier that gets few right, and its numbers cannot be set beside the first's. An abstained sample
    is not correct.

    radius: [n]; correct: [n], bool; over: ``"all"`` or ``"correct"`` (NaN where none is).

    Raises:
        ValueError: another ``over``, no sample, shapes that differ, or a radius of a correct sample that is negative or NaN.
    """
    radius, correct = _double(radius), torch.as_tensor(correct).cpu().bool()
    if over not in ("all", "correct"):
        raise ValueError(f"over is {over!r}; expected 'all' or 'correct'")
    if radius.shape != correct.shape or radius.ndim != 1 or len(radius) == 0:
        raise ValueError(f"radius has shape {list(radius.shape)} and correct {list(correct.shape)}; expected [n] both, n at least 1")
    counted = radius[correct]
    if not (counted >= 0).all():
        raise ValueError("radius is negative or NaN for a correct sample; give 0 where nothing is certified")
    total = len(radius) if over == "all" else len(counted)
    return counted.sum().item() / total if total else float("nan")


def draws_needed(alpha: float, *, two_sided: bool = False) -> int:
    """Return the least number of draws that can certify a radius above 0 at alpha, all of them agreeing: 10 at 0.001.

    two_sided: for a prediction, whose test has two sides: 11 at 0.001.

    Raises:
        ValueError: an alpha outside (0, 1).
    """
    _check_alpha(alpha)
    # Powers of 1/2 are exact.
    return next(n for n in itertools.count(1) if (2 * 0.5**n <= alpha if two_sided else 0.5**n < alpha))


@dataclass(frozen=True, kw_only=True, eq=False)
class SmoothedPrediction:
    """What a smoothed classifier says of some inputs; every tensor is whole, on the CPU, also where it abstained.

    Args:
        predicted: [n], the class, -1 where it abstained.
        top: [n], the class that was selected, also where it abstained.
        abstained: [n], bool.
        radius: [n], float64: the certified l2 radius, in the units of the encoder's bounds; 0 where it abstained.
        lower: [n], float64: the lower bound of the probability of ``top``.
        votes: [n, classes], how many of the draws that were counted got each class, classes in the order of the logits; a draw whose
            logits or representation are not numbers (NaN) is counted for none.
    """

    predicted: Tensor
    top: Tensor
    abstained: Tensor
    radius: Tensor
    lower: Tensor
    votes: Tensor

    def correct(self, labels: Any) -> Tensor:
        """Return which classes are the samples' labels, [n], bool; False where it abstained.

        Raises:
            InvalidInputs, ShapeError: not one class a sample.
        """
        return (self.top == check_labels(labels, len(self))) & ~self.abstained

    def __len__(self) -> int:
        return len(self.predicted)

    def __repr__(self) -> str:
        return f"SmoothedPrediction({len(self)} inputs, {int(self.abstained.sum())} abstained, median radius {self.radius.median():.3g})"


@dataclass(frozen=True, kw_only=True)
class RandomizedSmoothing:
    """The classifier that gives an input the class most of its noisy copies get, and the l2 radius in which that cannot change.

    Cohen, Rosenfeld & Kolter (2019), section 3. ``selection_draws`` select a class, ``certify_draws`` of their own count it; its
    probability is above the Clopper-Pearson bound at 1 - alpha, and the radius is sigma·Φ⁻¹(bound). Where the bound is below 1/2, it
    abstains. It holds for each input with probability 1 - alpha over the draws: every input nearer than the radius has that class, in the limit
    of infinitely many draws. It says nothing of the classifier without noise, nor of several inputs at once (of 1,000 at alpha 0.001, one
    radius may be too large), and an adversary who knows the seed can look for inputs on which the draws are wrong.

    Args:
        sigma: standard deviation of the noise, in the units of the encoder's bounds; so is the radius.
        selection_draws, certify_draws: passes of the network an input. No radius is above sigma·Φ⁻¹(alpha^(1/certify_draws)).
        alpha: the probability of a wrong certificate, an input.
        clip: whether noisy inputs are clipped to the bounds, which is then a part of what is certified.

    Raises:
        ValueError: a parameter out of its range, or too few draws to certify anything at alpha.
    """

    sigma: float
    selection_draws: int = 100
    certify_draws: int = 100_000
    alpha: float = 0.001
    clip: bool = False

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        for name in ("selection_draws", "certify_draws"):
            check_whole(name, getattr(self, name))
        check_flag("clip", self.clip)
        if (needed := draws_needed(self.alpha)) > self.certify_draws:
            raise ValueError(
                f"certify_draws is {self.certify_draws}; at alpha {self.alpha:g} not even as many votes for one class certify anything: "
                f"at least {needed} are needed"
            )

    @property
    def passes(self) -> tuple[int, int]:
        """Forward and backward passes an input that a certificate takes."""
        return self.selection_draws + self.certify_draws, 0

    @property
    def largest_radius(self) -> float:
        """The radius where all draws agree; no other is larger."""
        return certified_l2_radius(clopper_pearson_lower(self.certify_draws, self.certify_draws, self.alpha), self.sigma).item()

    def certify(
        self,
        model: Any,
        inputs: Tensor,
        *,
        probe: Probe | None = None,
        logits: bool = False,
        seed: int = 0,
        ids: Sequence[object] | None = None,
        batch: int | None = None,
        progress: bool = False,
    ) -> SmoothedPrediction:
        """Certify some inputs, [n, *input], one after the other: ``passes`` of the network each.

        Args:
            model: a classifier, which gives logits [batch, classes], as a network or a function (their bounds are 0..1), or an ``Encoder``.
            probe: a fitted probe; the model is then the encoder below it, and classes are the probe's labels.
            logits: whether what an ``Encoder`` gives are logits; unless said so it gives representations, and needs a probe.
            seed, ids: of the draws, which belong to (seed, id, the input itself); ids are 0 … n-1 unless given.
            batch: how many noisy inputs at a time, as many as 2^20 values hold, in 64 to 1,024, unless given; the result is the same, but
                for last bits of a network.

        Raises:
            InvalidInputs, ShapeError, ValueError: with the remedy.
        """

        def certified(draws: Draws, tick: Callable[[int], Any]) -> SmoothedPrediction:
            return _certified(self, draws, probe, tick)

        encoder = self._classifier(model, probe, logits)
        return self._each(certified, self.passes[0], encoder, inputs, seed, ids, batch, progress)

    def predict(
        self,
        model: Any,
        inputs: Tensor,
        *,
        draws: int | None = None,
        probe: Probe | None = None,
        logits: bool = False,
        seed: int = 0,
        ids: Sequence[object] | None = None,
        batch: int | None = None,
        progress: bool = False,
    ) -> SmoothedPrediction:
        """Predict the class that most noisy copies of an input get, and abstain unless it is told from the second by a two-sided test at alpha.

        Radius and lower bound are 0: a prediction certifies nothing. With probability 1 - alpha an input's class is the smoothed
        classifier's, or it abstained (Cohen et al. 2019, proposition 1).

        draws: how many an input, ``certify_draws`` unless given; a stream of their own. Further options as for ``certify``.

        Raises:
            ValueError: fewer draws than can decide anything at alpha.
        """
        count = self.certify_draws if draws is None else draws
        check_whole("draws", count)
        if (needed := draws_needed(self.alpha, two_sided=True)) > count:
            raise ValueError(
                f"draws is {count}; at alpha {self.alpha:g} not even as many votes for one class decide a prediction: at least {needed} are needed"
            )

        def predicted(one: Draws, tick: Callable[[int], Any]) -> SmoothedPrediction:
            return _predicted(self, one, probe, count, tick)

        return self._each(predicted, count, self._classifier(model, probe, logits), inputs, seed, ids, batch, progress)

    def _each(
        self,
        ask: Callable[[Draws, Callable[[int], Any]], SmoothedPrediction],
        passes: int,
        encoder: Encoder,
        inputs: Tensor,
        seed: int,
        ids: Sequence[object] | None,
        batch: int | None,
        progress: bool,
    ) -> SmoothedPrediction:
        """Ask about each input by itself, and put the answers together."""
        size = check_batch(batch)
        check_inputs(inputs, encoder)
        random = SampleRandom.of(seed, range(len(inputs)) if ids is None else ids)
        if len(random.ids) != len(inputs) or len(set(random.ids)) != len(inputs):
            raise ValueError(f"ids has {len(set(random.ids))} different names for {len(inputs)} inputs; give each input one of its own")
        with torch.inference_mode(False), encoder.in_use(), progress_bar(progress, passes * len(inputs)) as bar:
            return _joined([ask(one, bar.update) for one in self._drawn(encoder, inputs, random, size)])

    def _drawn(self, encoder: Encoder, inputs: Tensor, random: SampleRandom, size: int) -> Iterator[Draws]:
        for row in range(len(inputs)):
            yield Draws(encoder, inputs[row], random.select([row]), sigma=self.sigma, clip=self.clip, batch=size)

    def _classifier(self, model: Any, probe: Probe | None, logits: bool) -> Encoder:
        """Return what gives the logits, or with a probe the representations, after checking that it does."""
        check_flag("logits", logits)
        if probe is not None and logits:
            raise ValueError("logits is True and a probe is given, which reads representations; leave one of them out")
        if probe is None and isinstance(model, Encoder) and not logits:
            raise ValueError(
                f"encoder {model.name!r} gives representations, whose largest number is no class; give probe=fit_probe(encoder, train, "
                f"view='noise', sigma={self.sigma:g}), or say logits=True if it is a classifier"
            )
        with warnings.catch_warnings():
            if probe is None:  # then a network that ends in a classifier is what is asked for
                warnings.simplefilter("ignore", RobustnessWarning)
            encoder = as_encoder(model)
        check_sigma(self.sigma, encoder)
        if probe is not None:
            given = as_probe(probe)
            given.check(encoder)
            self._warn_if_weak(given, encoder)
        return encoder

    def _warn_if_weak(self, probe: Probe, encoder: Encoder) -> None:
        """Warn of a probe that was fitted on other inputs than those that are certified."""
        wanted = Probe(view="noise", sigma=self.sigma, clip=self.clip)
        if (fitted_on := _seen_by(probe)) != (certified := _seen_by(wanted)):
            say_once(
                encoder,
                ("weak", fitted_on, certified),
                f"the probe of encoder {encoder.name!r} was fitted on {fitted_on}, and {certified} are certified: the radii are valid, and smaller "
                f"than they could be; fit it with view='noise', sigma={self.sigma:g}{', clip=True' * self.clip}",
                stacklevel=5,
            )


@dataclass(frozen=True, kw_only=True)
class _Certified(RandomizedSmoothing, ABC):
    """A smoothed probe as a metric. Abstract: use CertifiedAccuracy or CertifiedRadius.

    ``passes`` forward passes a sample, which metrics of the same sigma and clip in one plan share, center smoothing's too. Abstained samples
    are noted, and summaries read them as the worst value.
    """

    probe: Probe | Mapping[str, Any] | None = None
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "higher"
    per: ClassVar[str] = "sample"
    alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        noisy = not isinstance(self.probe, Mapping) or self.probe.get("view", "noise") == "noise"
        defaults = {"view": "noise", "sigma": self.sigma, "clip": self.clip} if noisy else {}
        object.__setattr__(self, "probe", as_probe(self.probe, **defaults))

    def rehearsal(self) -> Self:
        """Return the same metric with a few draws, for a run's rehearsal."""
        selection, certify = (min(few, all_) for few, all_ in zip(_REHEARSED, (self.selection_draws, self.certify_draws), strict=True))
        return replace(self, selection_draws=selection, certify_draws=certify, alpha=max(self.alpha, _REHEARSAL_ALPHA))

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> dict[str, Rows]:
        """-> [n] each

        Raises:
            MissingLabels: the dataset has none.
            ValueError: the probe is not fitted.
        """
        labels, found = context.labels, self._of(context)
        correct, notes = found.correct(labels), ["abstained" if one else "" for one in found.abstained.tolist()]
        return self.read(found, correct, notes)

    @abstractmethod
    def read(self, found: SmoothedPrediction, correct: Tensor, notes: Sequence[str]) -> dict[str, Rows]:
        """Return the rows. correct: [n], bool; notes: of the abstained, whose rows are to be NaN."""

    def _of(self, context: Context) -> SmoothedPrediction:
        """Return the certificates of the context's samples, which metrics of the same configuration share."""
        assert isinstance(self.probe, Probe), "made one when the metric was"
        key = ("randomized smoothing", self.sigma, self.selection_draws, self.certify_draws, self.alpha, self.clip, self.probe)
        if key not in context.shared:
            self.probe.check(context.encoder)
            check_sigma(self.sigma, context.encoder)
            if self.certify_draws > _REHEARSED[1]:
                self._warn_if_weak(self.probe, context.encoder)
            if len(context.random.ids) == 1:
                drawn: Any = [Draws.of(context, sigma=self.sigma, clip=self.clip)]
            else:
                drawn = self._drawn(context.encoder, context.inputs, context.random, context.batch)
            context.shared[key] = _joined([_certified(self, draws, self.probe) for draws in drawn])
        return context.shared[key]


@dataclass(frozen=True, kw_only=True)
class CertifiedAccuracy(_Certified):
    """Whether a sample's label is certified at a radius: the smoothed probe gives it, with a certified radius strictly above (Cohen et al. 2019).

    One part a radius, named by it, over all samples; the mean is the certified accuracy. Abstained counts as wrong.

    Args:
        probe: a recipe or its options, fitted on the plan's ``train``. None: one on noisy inputs, of the same sigma and clip.
        radii: l2 radii, in the units of the bounds. From ``largest_radius`` on nothing can be certified, whatever the encoder.

    Further options as for ``RandomizedSmoothing``.
    """

    radii: float | Sequence[float] = (0.0, 0.25, 0.5, 0.75)
    statistic: ClassVar[str] = "rate"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        radii = check_radii("radii", self.radii)
        radii = radii if isinstance(radii, tuple) else (radii,)
        object.__setattr__(self, "radii", radii)
        if len({*map(_named, radii)}) < len(radii):
            raise ValueError(f"radii is {radii}; they name the rows, so each must be another number")

    def read(self, found: SmoothedPrediction, correct: Tensor, notes: Sequence[str]) -> dict[str, Rows]:
        assert isinstance(self.radii, tuple), "made one when the metric was"
        values = {_named(radius): (correct & (found.radius > radius)).double() for radius in self.radii}
        return {name: Rows(values=rows.masked_fill(found.abstained, torch.nan), notes=notes) for name, rows in values.items()}


@dataclass(frozen=True, kw_only=True)
class CertifiedRadius(_Certified):
    """The certified radius of a sample that the smoothed probe gets right, 0 where it is wrong: the mean is the ACR of Zhai et al. (2020).

    The part ``over_correct`` has the same radii, and nothing for samples that are wrong or abstained: its mean is the one of Petrov &
    Kwiatkowska (2022), which favors a probe that gets few right.

    Args:
        probe: a recipe or its options, fitted on the plan's ``train``. None: one on noisy inputs, of the same sigma and clip.

    Further options as for ``RandomizedSmoothing``.
    """

    statistic: ClassVar[str] = "mean"

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, self.largest_radius

    def read(self, found: SmoothedPrediction, correct: Tensor, notes: Sequence[str]) -> dict[str, Rows]:
        radius = found.radius * correct
        return {
            "": Rows(values=radius.masked_fill(found.abstained, torch.nan), notes=notes),
            "over_correct": Rows(values=radius.masked_fill(~correct, torch.nan), notes=[""] * len(radius)),
        }


def _certified(
    smoothing: RandomizedSmoothing, draws: Draws, probe: Probe | None, tick: Callable[[int], Any] = lambda draws: None
) -> SmoothedPrediction:
    """Return the certificate of the one input of some draws (CERTIFY)."""
    top = _votes(draws, "selection", smoothing.selection_draws, probe, tick).argmax()  # of equals the first
    votes = _votes(draws, "certify", smoothing.certify_draws, probe, tick)
    lower = clopper_pearson_lower(votes[top], smoothing.certify_draws, smoothing.alpha)
    return _answer(top, lower < 0.5, votes, probe, lower=lower, radius=certified_l2_radius(lower, smoothing.sigma))


def _predicted(
    smoothing: RandomizedSmoothing, draws: Draws, probe: Probe | None, count: int, tick: Callable[[int], Any]
) -> SmoothedPrediction:
    """Return the prediction for the one input of some draws (PREDICT)."""
    from scipy.stats import binomtest

    votes = _votes(draws, "predict", count, probe, tick)
    nobody = count - int(votes.sum())  # an answer as any other, but none to predict
    first, *others = votes.sort(descending=True).values.tolist()
    second = max(others[0], nobody)
    unclear = torch.tensor(second >= first or binomtest(first, first + second).pvalue > smoothing.alpha)
    return _answer(votes.argmax(), unclear, votes, probe, lower=torch.tensor(0.0).double(), radius=torch.tensor(0.0).double())


def _votes(draws: Draws, purpose: str, count: int, probe: Probe | None, tick: Callable[[int], Any]) -> Tensor:
    """Count the classes of draws, of those that get none no one: [classes], int64."""
    if probe is not None and probe.classes is not None and len(classes := probe.classes.on(torch.device("cpu"))) < 2:
        raise ValueError(
            f"the probe has one class, {classes.item()}, and a class is one of two at least; fit it on samples of two classes or more"
        )
    votes = torch.zeros((), dtype=torch.long)
    for representations in draws.chunks(purpose, count):
        logits = representations if probe is None else probe.logits(representations)
        if logits.shape[1] < 2:
            raise ShapeError(
                "the model gives 1 logit, and a class is one of two at least; give two logits, such as torch.cat([-logit, logit], 1)"
            )
        told = ~logits.isnan().any(1) & (True if probe is None else representations.isfinite().all(1))
        votes = votes + logits[told].argmax(1).bincount(minlength=logits.shape[1])
        tick(len(representations))
    return votes


def _answer(top: Tensor, abstained: Tensor, votes: Tensor, probe: Probe | None, *, lower: Tensor, radius: Tensor) -> SmoothedPrediction:
    """Return what was found of one input, in the probe's labels where there is one."""
    named = top if probe is None else probe.classes.on(top.device)[top]
    predicted = torch.where(abstained, ABSTAINED, named)
    one = {"predicted": predicted, "top": named, "abstained": abstained, "radius": radius, "lower": lower, "votes": votes}
    return SmoothedPrediction(**{name: value[None] for name, value in one.items()})


def _joined(parts: Sequence[SmoothedPrediction]) -> SmoothedPrediction:
    return SmoothedPrediction(**{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def _double(values: Any) -> Tensor:
    # Not as_tensor alone, which makes float32 of Python's numbers.
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()


def _seen_by(probe: Probe) -> str:
    """Return in words which inputs a probe was fitted on."""
    if probe.view != "noise":
        return f"{probe.view} inputs"
    return f"{'clipped ' * probe.clip}inputs with noise of sigma {probe.sigma:g}"


def _named(radius: float) -> str:
    return f"{radius:.12g}"


def _shown(values: Tensor) -> str:
    shown = [f"{value:g}" for value in values.flatten()[:5].tolist()]
    return shown[0] if values.ndim == 0 else f"[{', '.join(shown)}{', …' if values.numel() > 5 else ''}]"


def _check_alpha(alpha: Any) -> None:
    check_number("alpha", alpha)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha:g}; it is the probability of being wrong, so it must be in (0, 1), such as 0.001")


def _check_sigma(sigma: Any) -> None:
    check_number("sigma", sigma)
    if sigma <= 0:
        raise ValueError(f"sigma is {sigma:g}; it is a standard deviation and must be positive")

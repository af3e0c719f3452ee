"""An encoder shown as a classifier, so that attacks on classifiers attack it without labels: the views that bridges to other libraries share."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rt_core.divergences import Divergence, cosine, l2
from rt_core.encoders import Bound, Encoder
from rt_core.errors import RobustnessWarning, ShapeError
from rt_core.neighbors import Bank, pairwise
from rt_core.traces import Batch, lengths, per_sample

__all__ = [
    "ETA",
    "ROUTES",
    "AnchorLogits",
    "Passage",
    "Scale",
    "ThresholdLogits",
    "UnitLogits",
    "better_of",
    "bisected",
    "check_given",
    "check_route",
    "finite_slope",
    "magnitudes",
    "one_by_one",
    "threshold_of",
    "unmoved",
    "warn_untested",
]

ETA = 1e-3
"""Half the width of the perturbation beside the clean input at which its gradient is taken, in the bounds' units, as in U-FGSM."""

ROUTES = ("auto", "batch", "single")

# Closer than this (of the bounds' width) to the clean input, the gradient of the divergence from it is rounding.
_AT_CLEAN = 2e-6
# A logit that never wins, yet leaves sums and quotients with the others finite and exact enough.
_NEVER = -1e4
# How far apart two anchors may be, of their length, and still be the same representation, computed in another batch.
_SAME = 1e-5
# How many logits lie between a clean input and the threshold: as many as classifiers show, for which libraries chose their constants.
_PER_THRESHOLD = 10.0
# How much further than asked for a view says that the threshold lies: what is beyond it by a last bit in one batch is not in another.
_BEYOND = 1.002
# Added to every logit that matters, to be above the zero that a loss which masks by multiplying puts beside it (Carlini and Wagner's).
_RAISED = 8.0
# The largest number that UnitLogits shows: exp(-40) is still far from where losses clamp or round probabilities to nothing.
_SHOWN = 40.0


class Scale(NamedTuple):
    """How inputs lie in [0, 1], for a library that knows nothing else: inputs = low + width * shown."""

    low: Tensor
    width: float

    @classmethod
    def of(cls, bounds: tuple[Bound, Bound], inputs: Tensor, who: str) -> "Scale | None":
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
                f"{who} moves inputs in [0, 1], and the encoder's bounds are {least:g} wide in one place and {largest:g} in another, where one eps "
                "would mean several; give unnormalized inputs and let the encoder normalize (Encoder(…, normalize=…))"
            )
        return cls(low.to(inputs), largest)

    def forth(self, inputs: Tensor) -> Tensor:
        """[batch, *input] inside the bounds -> same shape, in [0, 1]"""
        return ((inputs - self.low) / self.width).clamp(0, 1)

    def back(self, shown: Tensor) -> Tensor:
        """[batch, *input] in [0, 1] -> same shape, inside the bounds"""
        return self.low + shown * self.width


def finite_slope(slope: Tensor) -> Tensor:
    """Return a gradient that steps can follow: where it is infinite, as that of a root at 0, it is as large as its sample's largest finite
    one (1 where all others are 0), and where it is NaN it is 0.

    Finite ones stay as they are, bit for bit, up to the largest number over those of a sample, so that their mean is finite too.

    slope: [batch, *input] -> same shape
    """
    numbers = tuple(range(1, slope.ndim))
    size = slope.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs_().amax(numbers, keepdim=True)
    size = torch.where(size == 0, 1, size).clamp(max=torch.finfo(slope.dtype).max / slope.shape[1:].numel())
    return slope.clamp(-size, size).nan_to_num_(nan=0.0)


class Passage:
    """The way of one batch from a library to an encoder and of the gradients back, which a library would not take as they come.

    rows: how many samples the batch has.

    Attributes:
        zero_gradient: at what share of the gradients a sample's was exactly zero, [batch]; None until a library has asked for one in rows
            that are known: the batch's in their order, or any number of its only one.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._asked, self._zero = rows, 0, torch.zeros(rows)

    @property
    def zero_gradient(self) -> Tensor | None:
        return self._zero / self._asked if self._asked else None

    def enter(self, inputs: Tensor) -> Tensor:
        """Return what a library sends, [rows, *input], in plain memory order: libraries look at inputs and gradients through ``view``."""
        return _Enter.apply(inputs, self)

    def leave(self, representations: Tensor, inputs: Tensor) -> Tensor:
        """Return representations of the inputs whose gradient exists, and is zero, also where the encoder gives none."""
        return representations + inputs.flatten(1)[:, :1] * 0 if inputs.requires_grad else representations

    def back(self, slope: Tensor) -> Tensor:
        """Return a gradient that came out of the encoder as a library is to have it, after a look at it."""
        slope = finite_slope(slope).contiguous()
        if self._rows in (1, len(slope)):
            zero = (slope == 0).flatten(1).all(1).float()
            self._zero = self._zero.to(zero) + (zero if len(slope) == self._rows else zero.amin(0, keepdim=True))
            self._asked += 1
        return slope


def unmoved(passages: Iterable[Passage]) -> dict[str, Tensor]:
    """Return the note ``zero_gradient`` of samples that were handed over in parts, by which rt knows who is stuck; none where it is not known."""
    shares = [share for passage in passages if (share := passage.zero_gradient) is not None]
    return {"zero_gradient": torch.cat(shares)} if shares else {}


class _View(nn.Module):
    """What the views share: they are in eval mode for good, keep the encoder to themselves, and take what a library sends.

    clean: [batch, *input], the clean inputs as the library is to see them.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, eta: Tensor | None, who: str, rescale: bool) -> None:
        super().__init__()
        self.training = False
        self.device_marker = nn.Parameter(torch.empty(0, device=batch.inputs.device), requires_grad=False)
        self.__dict__["encoder"] = encoder  # not as a submodule: the library has no business with its modes, weights and gradients
        self.divergence, self.anchor, self.who = divergence, batch.anchor, who
        self.away = batch.aim == "away"
        self.scale = Scale.of(encoder.bounds, batch.inputs, who) if rescale else None
        self.clean = (batch.inputs if self.scale is None else self.scale.forth(batch.inputs)).contiguous()
        self.beside = encoder.clip(batch.inputs + eta.to(batch.inputs)) if self.away and eta is not None else None
        self.width = 1.0 if self.scale is not None else max(torch.as_tensor(bound).abs().max().item() for bound in encoder.bounds)
        self.passage = Passage(len(batch.inputs))

    def train(self, mode: bool = True) -> "_View":
        """Do nothing: a view measures, so it is always in eval mode."""
        return self

    def _represented(self, inputs: Tensor) -> Tensor:
        """Return the representations of what a library sends; where a gradient is asked for at a clean input, of what lies beside it.

        A sample's numbers may come in another shape, such as an image's for a library that knows nothing else.
        """
        inputs = self.passage.enter(inputs.to(self.clean)).reshape(-1, *self.clean.shape[1:])
        seen = inputs if self.scale is None else self.scale.back(inputs)
        if self.beside is not None and inputs.requires_grad:
            fresh = ((inputs.detach() - self.clean).abs() <= _AT_CLEAN * self.width).flatten(1).all(1)
            seen = torch.where(per_sample(fresh, seen), self.beside + (seen - seen.detach()), seen)
        return self.passage.leave(self.encoder(seen), inputs)

    def _moved(self, inputs: Tensor) -> Tensor:
        """Return the divergence of each row: of the batch's samples in their order, or of any number of rows of its only one.

        Raises:
            ShapeError: another number of rows than the batch has.
        """
        if len(inputs) != len(self.clean) != 1:
            raise ShapeError(
                f"{self.who} asks for {len(inputs)} rows of a batch of {len(self.clean)}: it drops, repeats or reorders rows, and this view "
                "holds one anchor a row; give it one sample at a time (route='single')"
            )
        return self.divergence(self.anchor.expand(len(inputs), -1), self._represented(inputs))


class UnitLogits(_View):
    """An encoder as a classifier whose gradient is that of the divergence: logits [0, d], of which class 0 is every row's label.

    Climbing the cross-entropy climbs the divergence from the batch's anchor, or, toward targets, descends it. Two things are not as in a
    classifier. The gradient of each row's d is exactly one, whatever factor a loss puts on it: the factor of cross-entropy, sigmoid(d) / n,
    would flip signs by rounding and underflow. And the d that is shown is asinh(d), which is d near 0 and at most 40 always, toward targets
    40 - asinh(d): no loss that is computed from it saturates.

    It holds the batch's anchors by position, so an attack must send whole batches in their order, or rows of a single sample.

    Args:
        eta: [batch, *input], what is added where a gradient is asked for at the clean input, aiming away; None for nothing.
        who: the attack's name, for messages.
        mistaken: whether each row is classified wrongly from the start, or else never: some attacks end at the first mistake.
        rescale: show inputs in [0, 1] whatever the bounds.

    Attributes:
        clean: [batch, *input], the clean inputs as the library is to see them.
    """

    def __init__(
        self,
        encoder: Encoder,
        batch: Batch,
        divergence: Divergence,
        *,
        eta: Tensor | None,
        who: str,
        mistaken: bool = True,
        rescale: bool = True,
    ) -> None:
        super().__init__(encoder, batch, divergence, eta=eta, who=who, rescale=rescale)
        self.mistaken = mistaken

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: [batch, *input] -> [batch, 2]"""
        value = self._moved(inputs)
        label = torch.full_like(value, 0 if self.mistaken else _SHOWN + 1)
        return torch.stack([label, _UnitGate.apply(value, 1 if self.away else -1)], dim=1).to(inputs)


class ThresholdLogits(_View):
    """An encoder as a classifier of how far its representations have moved: class 0, every row's label, is "not beyond the threshold".

    The logit of class 1 is above that of class 0 by 10 (d / threshold - 1), toward targets by 10 (1 - d / threshold). So a row is
    misclassified where its divergence from the batch's anchor is above the threshold, toward targets below, and attacks that look for the
    smallest change of class find the smallest change that moves a representation so far. In units of the threshold, losses saturate for no
    encoder, and constants that were chosen for classifiers fit: clean inputs lead by 10, as there. Both logits carry half of the gradient,
    since some attacks need a class that loses what the other one wins. The threshold that is shown lies 0.2 % beyond the one that is asked
    for, so that a result on the very edge has reached it in whatever batch it is measured.

    It holds the batch's anchors by position, so an attack must send whole batches in their order, or rows of a single sample.

    Args:
        threshold: a positive divergence.
        columns: how many logits; those beyond two never win, for losses that need more.
        eta, who, rescale: as for ``UnitLogits``.
    """

    def __init__(
        self,
        encoder: Encoder,
        batch: Batch,
        divergence: Divergence,
        *,
        threshold: float,
        columns: int = 4,
        who: str,
        eta: Tensor | None = None,
        rescale: bool = True,
    ) -> None:
        super().__init__(encoder, batch, divergence, eta=eta, who=who, rescale=rescale)
        _check_threshold(threshold)
        self.threshold, self.columns = threshold * _BEYOND if self.away else threshold / _BEYOND, columns

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: [batch, *input] -> [batch, columns]"""
        value = self._moved(inputs) / self.threshold
        half = _PER_THRESHOLD / 2
        lead = (value - 1 if self.away else 1 - value) * half
        logits = torch.stack([half - lead, half + lead], dim=1)
        return nn.functional.pad(logits, (0, self.columns - 2), value=_NEVER).to(inputs)


class AnchorLogits(_View):
    """An encoder as a classifier of who it is: logit k is minus the divergence from anchor k, and a sample's label is its own anchor.

    A misclassified sample is nearer to another anchor than to its own clean representation: a breakaway (Petrov & Kwiatkowska 2022, Eq. 4).
    One that is classified as its target is an impersonation of it. Anchors are the batch's own clean representations and those of the bank
    that are nearest to them, toward targets also the targets; one that stands twice counts once. Nothing is held by row, so an attack may
    drop, repeat and reorder rows. For l2 and cosine a step costs one matrix product more, for other divergences every
    pair by itself, which is slow.

    Args:
        anchors: how many nearest others of each sample are taken from the bank.
        scale: the divergence that counts as one logit; None takes the median divergence of the batch from what is nearest in the bank, or
            from its targets where there is no bank.
        columns: how many logits at least; those beyond the anchors never win, for losses that need more.
        who, rescale: as for ``UnitLogits``.

    Attributes:
        anchors: [anchors, dim].
        own: [batch], the anchor of each sample.
        labels: [batch], the label that a library is to be given: the sample's own, or toward targets, the target's.

    Raises:
        ValueError: there is no bank, aiming away.
    """

    def __init__(
        self,
        encoder: Encoder,
        batch: Batch,
        divergence: Divergence,
        *,
        anchors: int = 9,
        scale: float | None = None,
        columns: int = 4,
        who: str,
        rescale: bool = True,
    ) -> None:
        super().__init__(encoder, batch, divergence, eta=None, who=who, rescale=rescale)
        if self.away and batch.bank is None:
            raise ValueError(f"{who} in mode 'instance' needs a bank of others to break away to; give perturb(…, bank=inputs of others)")
        others, apart = _nearest(batch, divergence, anchors)
        self.anchors, place = _distinct(torch.cat([batch.clean, *([] if batch.targets is None else [batch.targets]), others]))
        rows = len(batch.clean)
        self.own, self.labels = place[:rows], place[:rows] if self.away else place[rows : 2 * rows]
        self.columns = columns
        self.center = self.anchors.mean(dim=0, keepdim=True)
        self.unit = (apart.median().item() or 1.0) if scale is None else float(scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: [rows, *input] -> [rows, columns or anchors]"""
        away = self._divergences(self._represented(inputs)) / self.unit
        missing = max(self.columns - away.shape[1], 0)
        return nn.functional.pad(_RAISED - away, (0, missing), value=_NEVER).to(inputs)

    def _divergences(self, representations: Tensor) -> Tensor:
        """[rows, dim] -> [rows, anchors]"""
        anchors = self.anchors.to(representations)
        if self.divergence is cosine:
            return 1 - _unit(representations) @ _unit(anchors).T
        if self.divergence is not l2:
            return pairwise(self.divergence, anchors, representations).T
        # Centered, since the square of a small difference is the difference of large ones.
        center = self.center.to(representations)
        moved, fixed = representations - center, anchors - center
        squares = moved.square().sum(1, keepdim=True) + fixed.square().sum(1) - 2 * moved @ fixed.T
        return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()


def threshold_of(bank: Bank | None, quantile: float, divergence: Divergence, *, who: str = "mode 'threshold'") -> float:
    """Return the smallest divergence of a pair of the bank whose universal quantile is at least ``quantile``.

    Raises:
        ValueError: there is no bank.
    """
    if bank is None:
        raise ValueError(
            f"{who} needs a bank for its threshold, the quantile {quantile:g} of the divergences of its pairs; give threshold=, an absolute "
            "divergence, or perturb(…, bank=inputs of others)"
        )
    return bank.quantile_value(quantile, divergence)


@torch.no_grad()
def bisected(
    encoder: Encoder, batch: Batch, divergence: Divergence, moved: Tensor, threshold: float, *, steps: int = 12
) -> tuple[Tensor, Tensor]:
    """Shorten moves to where they just reach a threshold, by bisection between the clean input and the result; ``steps`` forward passes.

    Of a row that reached it, the divergence is afterwards in [threshold, 1.01 threshold] (toward targets in [threshold / 1.01, threshold])
    where that many steps suffice, and never on the other side of it. A row that did not stays as it is.

    moved: [batch, *input] -> inputs [batch, *input], reached [batch] bool
    """
    clean, step = batch.inputs, moved - batch.inputs
    band = threshold * 1.01 if batch.aim == "away" else threshold / 1.01

    def within(value: Tensor, limit: float) -> Tensor:
        return value >= limit if batch.aim == "away" else value <= limit

    value = divergence(batch.anchor, encoder(moved))
    at_once = within(divergence(batch.anchor, batch.clean), threshold)
    reached = within(value, threshold) | at_once
    best = torch.where(per_sample(at_once, moved), clean, moved)
    settled = at_once | ~reached | ~within(value, band)
    low, high = torch.zeros_like(value), torch.ones_like(value)
    for _ in range(steps - 1):
        share = (low + high) / 2
        tried = encoder.clip(clean + per_sample(share, step) * step)
        value = divergence(batch.anchor, encoder(tried))
        there = within(value, threshold)
        best = torch.where(per_sample(there & ~settled, best), tried, best)
        high, low = torch.where(there, share, high), torch.where(there, low, share)
        settled = settled | (there & ~within(value, band))
    return best, reached


@torch.no_grad()
def better_of(encoder: Encoder, batch: Batch, divergence: Divergence, start: Tensor, moved: Tensor) -> Tensor:
    """Return of each row that of two inputs whose divergence is better for the aim, measured on the encoder itself; ties: ``moved``.

    start, moved: [batch, *input] -> same shape
    """
    first, second = (divergence(batch.anchor, encoder(inputs)) for inputs in (start, moved))
    lost = first > second if batch.aim == "away" else first < second
    return torch.where(per_sample(lost, moved), start, moved)


def magnitudes(batch: Batch, moved: Tensor, reached: Tensor) -> dict[str, Tensor]:
    """Return the notes of a search for the smallest move: ``reached`` (0 or 1), ``magnitude_l2`` and ``magnitude_linf``, NaN where it was not.

    moved: [batch, *input]; reached: [batch] -> {name: [batch]}
    """
    way = moved - batch.inputs
    sizes = {"magnitude_l2": lengths(way), "magnitude_linf": way.flatten(1).abs().amax(1)}
    return {"reached": reached.to(way.dtype)} | {name: size.masked_fill(~reached, torch.nan) for name, size in sizes.items()}


def one_by_one(batch: Batch) -> Iterator[tuple[int, Batch]]:
    """Yield (row, the batch of that sample alone) for each sample."""
    per_row = ("inputs", "clean", "targets", "target_inputs", "own", "start")
    for row, identity in enumerate(batch.ids):
        one: Mapping[str, Any] = {name: value[row : row + 1] for name in per_row if (value := getattr(batch, name)) is not None}
        yield row, replace(batch, ids=(identity,), **one)


def check_given(name: str, value: Any, default: Any) -> None:
    """Raise ValueError if an option of a library is a bool where its default is a number, which libraries count with."""
    if isinstance(value, bool) and isinstance(default, (int, float)) and not isinstance(default, bool):
        raise ValueError(f"{name} is {value}; expected a number, such as {default}, the library's default")


def check_route(route: Any) -> None:
    """Raise ValueError unless this says how many samples a library is given at a time."""
    if route not in ROUTES:
        raise ValueError(f"route is {route!r}; expected {', '.join(map(repr, ROUTES))}: whole batches, or one sample at a time")


def warn_untested(library: str, version: str, tested: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Warn if a library's version is not in [tested[0], tested[1]); call it once, when the library is imported."""
    numbers = tuple(int(part) for part in version.replace("-", ".").split(".")[: len(tested[0])] if part.isdigit())
    if not tested[0] <= numbers < tested[1]:
        least, end = (".".join(map(str, bound)) for bound in tested)
        warnings.warn(
            f"{library} {version} is not among the versions that this bridge was tested with ({least} up to, not including, {end}); "
            "its attacks may mean something else",
            RobustnessWarning,
            stacklevel=3,
        )


class _UnitGate(torch.autograd.Function):
    """Forward a squashed number that no loss saturates on; backward one, or minus one toward targets, for any positive slope."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, way: int) -> Tensor:
        ctx.way = way
        shown = value.asinh().clamp(max=_SHOWN)
        return shown if way > 0 else _SHOWN - shown

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope.sign() * ctx.way, None


class _Enter(torch.autograd.Function):
    """The same values in plain memory order; backward, what the passage gives back."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, passage: Passage) -> Tensor:
        ctx.passage = passage
        return inputs.contiguous()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return ctx.passage.back(slope), None


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold < float("inf"):
        raise ValueError(
            f"threshold is {threshold}; expected a positive, finite divergence: a quantile of 0 is one of equal representations"
        )


def _nearest(batch: Batch, divergence: Divergence, anchors: int) -> tuple[Tensor, Tensor]:
    """Return the bank's representations nearest to the clean ones, each once, the very nearest first, and how far those are off.

    -> [found, dim], [batch]
    """
    if batch.bank is None:
        return batch.clean[:0], divergence(batch.anchor, batch.clean)
    own = torch.full((len(batch.clean),), -1) if batch.own is None else batch.own.cpu()
    count = min(anchors, len(batch.bank) - bool((own >= 0).any()))
    apart, rows = batch.bank.nearest(batch.clean.cpu(), count, own, divergence)
    return batch.bank.take(list(dict.fromkeys(rows.T.flatten().tolist()))).to(batch.clean), apart[:, 0]


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows without those that repeat an earlier one, and the place of each: [distinct, dim], [rows]"""
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    first = (apart <= _SAME * torch.linalg.vector_norm(rows, dim=1)).float().argmax(1)
    while (first[first] != first).any():  # what repeats a row that itself repeats one stands for that one
        first = first[first]
    kept = first == torch.arange(len(rows), device=rows.device)
    return rows[kept], (kept.cumsum(0) - 1)[first]


def _unit(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows, dim=1)

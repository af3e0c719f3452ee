"""Accuracy of a linear probe on clean and on attacked samples, and what it loses without high frequencies."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rt_core.errors import MissingLabels, RobustnessWarning
from rt_core.neighbors import Bank
from rt_core.perturbing import represent_rows
from rt_core.traces import Context, Trace, check_whole
from rt_linear_probes.probes import Probe, as_probe, check_labels, check_told

__all__ = ["AttackSuccess", "LowpassGap", "ProbeTop1", "ProbeTop5", "RobustAccuracy", "probe_accuracy"]

_FEW = 5  # labels that are named


def probe_accuracy(probe: Probe, representations: Tensor, labels: Tensor | Sequence[int], *, k: int = 1) -> Tensor:
    """Return whether each label is among the k classes that a probe gives the largest logits; of equal ones the first.

    A label that the probe was not fitted on is never right; there is a warning about such.

    representations: [n, dim]; labels: [n], as the dataset has them, a tensor or numbers -> [n] float64, 0 or 1

    Raises:
        InvalidInputs, ShapeError: labels that are not one class a representation.
        ValueError: representations that are not finite, a probe that is not fitted, or has no more than k classes, so that it would always be
            right.
    """
    logits = check_told(probe.logits(representations.double()))
    if check_whole("k", k) > 1 and logits.shape[1] <= k:
        raise ValueError(
            f"k is {k}, and the probe has {logits.shape[1]} classes, so that top-{k} says nothing; give more classes, or take top-1"
        )
    classes, wanted = probe.classes.on(logits.device), check_labels(labels, len(logits)).to(logits.device)
    strange = wanted[~torch.isin(wanted, classes)].unique().tolist()
    if strange:
        named = ", ".join(map(str, strange[:_FEW])) + (", …" if len(strange) > _FEW else "")
        warnings.warn(
            f"samples have labels that the probe was not fitted on ({named}), and count as wrong; give a train with all classes, numbered alike",
            RobustnessWarning,
            stacklevel=2,
        )
    highest = logits.argsort(dim=1, descending=True, stable=True)[:, :k]
    return (classes[highest] == wanted[:, None]).any(1).double()


@dataclass(frozen=True, kw_only=True)
class _OfProbe:
    """A metric that asks a probe, which sees samples one at a time: what is the same for all of them."""

    probe: Probe | Any = None
    better: ClassVar[str] = "higher"
    statistic: ClassVar[str] = "rate"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "probe", as_probe(self.probe))


@dataclass(frozen=True, kw_only=True)
class ProbeTop1(_OfProbe):
    """Whether a linear probe gives a clean sample its label.

    A probe of filtered or noisy inputs gets the clean inputs as it sees them, for a forward pass a sample that metrics of the same view share.

    probe: a ``Probe`` or its options, fitted on the plan's ``train`` where it is not yet.

    Raises:
        MissingLabels: the dataset has none.
        ValueError: the probe is not fitted, or on another encoder.
    """

    aim: ClassVar[str] = "clean"
    k: ClassVar[int] = 1

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1"""
        labels = _labels(context)
        self.probe.check(context.encoder)
        return probe_accuracy(self.probe, _seen(self.probe, trace, context), labels, k=self.k)


@dataclass(frozen=True, kw_only=True)
class ProbeTop5(ProbeTop1):
    """Whether a clean sample's label is among the five classes that a linear probe finds likeliest; otherwise as ``ProbeTop1``.

    Raises:
        ValueError: the probe has fewer than 6 classes.
    """

    k: ClassVar[int] = 5


@dataclass(frozen=True, kw_only=True)
class LowpassGap:
    """What the probe loses on pictures without their high frequencies (paper, section 7): of each clean sample, whether the plain probe is
    right, minus whether the low-pass probe is.

    The low-pass probe is fitted on filtered pictures, as the paper's. The part ``transfer`` is the same for the plain probe on filtered pictures.

    probe, lowpass: a plain and a low-pass ``Probe``, or their options, fitted on the plan's ``train`` where they are not yet.

    Raises:
        MissingLabels: the dataset has none.
        ValueError: a probe of another view, one that is not fitted, or on another encoder; inputs that are no pictures.
    """

    probe: Probe | Any = None
    lowpass: Probe | Any = None
    aim: ClassVar[str] = "clean"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "mean"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (-1, 1)

    def __post_init__(self) -> None:
        for name, view in (("probe", "plain"), ("lowpass", "lowpass")):
            made = as_probe(getattr(self, name), view=view)
            if made.view != view:
                raise ValueError(f"the view of {name} is {made.view!r}; expected {view!r}: the gap is from plain to filtered pictures")
            object.__setattr__(self, name, made)

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> dict[str, Tensor]:
        """-> [n] each, -1, 0 or 1"""
        labels, filtered = _labels(context), _seen(self.lowpass, trace, context)
        for probe in (self.probe, self.lowpass):
            probe.check(context.encoder)
        plain = probe_accuracy(self.probe, trace.adversarial, labels)
        return {
            "": plain - probe_accuracy(self.lowpass, filtered, labels),
            "transfer": plain - probe_accuracy(self.probe, filtered, labels),
        }


@dataclass(frozen=True, kw_only=True)
class RobustAccuracy(_OfProbe):
    """Whether a linear probe gives a sample its label both clean and attacked: accuracy of encoder and probe under the attack.

    A sample that is wrong when clean counts as wrong, whatever the attack makes of it. ``AttackSuccess`` leaves it out instead.

    probe: a plain ``Probe`` or its options, fitted on the plan's ``train`` where it is not yet.

    Raises:
        MissingLabels: the dataset has none.
        ValueError: a probe of filtered or noisy inputs, one that is not fitted, or on another encoder.
    """

    aim: ClassVar[str] = "away"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probe.view != "plain":
            raise ValueError(f"the probe's view is {self.probe.view!r}; this reads what was attacked itself: take view='plain'")

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1"""
        clean, attacked = self._right(trace, context)
        return clean * attacked

    def _right(self, trace: Trace, context: Context) -> tuple[Tensor, Tensor]:
        labels = _labels(context)
        self.probe.check(context.encoder)
        clean, attacked = (probe_accuracy(self.probe, rows, labels) for rows in (trace.clean, trace.adversarial))
        return clean, attacked


@dataclass(frozen=True, kw_only=True)
class AttackSuccess(RobustAccuracy):
    """Whether an attack breaks a sample that a linear probe gets right when it is clean: not defined (NaN) for the others, which are counted apart.

    Options and errors as for ``RobustAccuracy``, which takes all samples.
    """

    better: ClassVar[str] = "lower"

    def __call__(self, trace: Trace, bank: Bank, context: Context) -> Tensor:
        """-> [n], 0 or 1, or NaN"""
        clean, attacked = self._right(trace, context)
        return torch.where(clean == 1, 1 - attacked, torch.nan)


def _labels(context: Context) -> Tensor:
    if context.known_labels is None:
        raise MissingLabels("a probe's accuracy reads labels and the dataset has none; give a dataset with labels, or leave the metric out")
    return context.labels


def _seen(probe: Probe, trace: Trace, context: Context) -> Tensor:
    """Return the representations of the clean samples as the probe sees them: [n, dim]"""
    if probe.view == "plain":
        return trace.adversarial
    key = ("probe view", probe.view, probe.radius, probe.sigma, probe.clip)
    if key not in context.shared:
        inputs = context.inputs
        context.shared[key] = represent_rows(context.encoder, probe.viewed(inputs, context.random, context.encoder), context.batch)
    return context.shared[key]

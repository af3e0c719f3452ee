"""What a perturbed image is to reach: another class, another representation, a universal quantile, a break away from its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder, check_inputs
from rt_core.fingerprints import fingerprint
from rt_core.naming import did_you_mean
from rt_core.neighbors import Bank, pairwise
from rt_core.perturbing import represent_rows
from rt_core.randomness import SampleRandom
from rt_core.shapes import check_shape
from rt_core.traces import check_number, check_whole

__all__ = [
    "GOALS",
    "Breakaway",
    "Goal",
    "Objective",
    "TargetClass",
    "TargetRepresentation",
    "UniversalQuantile",
    "Untargeted",
    "check_inputs_of",
    "check_target_classes",
    "check_targets",
    "find_goal",
    "other_classes",
    "print_of_goal",
    "with_bank",
]

# What float32 makes of one input in batches of different sizes: of a coordinate's own size, and of the largest, where it is a small difference of large ones.
_ROUNDING, _CANCELLED = 1e-5, 2e-7


@dataclass(frozen=True, eq=False)
class Objective:
    """A goal as some items have it: one number an item, which is lowered, and reached where it is below zero.

    loss: the goal's own, of outputs and ``rows``; rows: what each item needs for it, ``[batch, …]`` each
    """

    loss: Callable[..., Tensor]
    rows: Mapping[str, Tensor]

    def __call__(self, outputs: Tensor) -> Tensor:
        """outputs: [batch, dim], of a victim -> [batch]"""
        return self.loss(outputs, **self.rows)

    def select(self, rows: Tensor) -> "Objective":
        """Return the objective of some of the items."""
        return Objective(self.loss, {name: values[rows] for name, values in self.rows.items()})


class Goal:
    """What an image is to reach. Abstract: use one of its kinds, or write another with these four.

    aim: ``"target"`` (something given) or ``"away"``; reads: what the victim's outputs are, ``"logits"`` or ``"representations"``; start:
    where a search begins, ``"clean"``, or ``"random"`` where there is no gradient at the clean image; ``objective`` and ``loss``.
    """

    aim: ClassVar[str]
    reads: ClassVar[str]
    start: ClassVar[str] = "clean"

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """Return the goal of some items.

        clean: [batch, dim], the victim's outputs on the clean images; labels: [batch], their classes; targets: [batch] classes, or
        [batch, dim] representations, to reach; random: the items' streams

        Raises:
            ValueError: what the goal needs is not there.
        """
        raise NotImplementedError

    def reached(self, outputs: Tensor, **rows: Tensor) -> Tensor:
        """Say of each item whether its outputs are what the goal asks for: where the loss is below zero.

        outputs: [batch, dim] -> [batch], bool
        """
        return getattr(self, "loss")(outputs, **rows) < 0  # noqa: B009 - each kind's loss has arguments of its own


@dataclass(frozen=True)
class TargetClass(Goal):
    """The victim says the target class: its logit is strictly the largest (the paper's goal).

    Lowered is the largest other logit minus the target's. Targets that are not given are drawn at random from the other classes, each
    from its item's stream.
    """

    aim = "target"
    reads = "logits"

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """See ``Goal.objective``."""
        _check_logits(clean)
        if targets is None:
            if labels is None or random is None:
                raise ValueError("targets are drawn from the classes that an item is not of; give labels and random, or targets")
            targets = other_classes(_of_classes(labels, clean, "labels"), clean.shape[1], random)
        return Objective(self.loss, {"targets": _of_classes(targets, clean, "targets")})

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs: [batch, classes], targets: [batch] -> [batch]"""
        return _lead_of_others(outputs, targets)


@dataclass(frozen=True)
class Untargeted(Goal):
    """The victim says another class than the label: some other logit is strictly larger.

    Lowered is the label's logit minus the largest other one.
    """

    aim = "away"
    reads = "logits"

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """See ``Goal.objective``."""
        _check_logits(clean)
        if labels is None:
            raise ValueError("labels are not given, and this goal leaves them; give the classes, or the victim's own outputs' argmax")
        return Objective(self.loss, {"labels": _of_classes(labels, clean, "labels")})

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """outputs: [batch, classes], labels: [batch] -> [batch]"""
        return -_lead_of_others(outputs, labels)


@dataclass(frozen=True, kw_only=True)
class TargetRepresentation(Goal):
    """The representation comes within a share of the way to its target: d(target, x̂) < share · d(target, clean). Label-free.

    For a metric divergence, at a share of one half or less it is then nearer to its target than to its own clean representation.

    Args:
        share: of the divergence at the beginning, in (0, 1).
        divergence: a name or a function, as everywhere.
    """

    share: float = 0.5
    divergence: str | Divergence = "l2"

    aim = "target"
    reads = "representations"

    def __post_init__(self) -> None:
        check_number("share", self.share)
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share:g}; expected a share in (0, 1) of the divergence at the beginning: write 0.5 for half")
        find_divergence(self.divergence)

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """See ``Goal.objective``."""
        if targets is None:
            raise ValueError("targets are not given; give the representations to reach, [batch, dim], such as other items' clean ones")
        check_shape(targets, "batch dim", what="targets", batch=len(clean), dim=clean.shape[1])
        if broken := int((~targets.isfinite()).any(1).sum()):
            raise ValueError(f"targets hold NaN or infinity in {broken} of {len(targets)} rows; give finite representations to reach")
        reference = targets.to(clean)
        return Objective(self.loss, {"targets": reference, "within": self.share * find_divergence(self.divergence)(reference, clean)})

    def loss(self, outputs: Tensor, targets: Tensor, within: Tensor) -> Tensor:
        """outputs, targets: [batch, dim], within: [batch] -> [batch]"""
        return find_divergence(self.divergence)(targets, outputs) - within


@dataclass(frozen=True, kw_only=True)
class UniversalQuantile(Goal):
    """The representation moves further than a share of all pairs of clean ones are apart: its universal quantile. Label-free.

    Args:
        quantile: the share of pairs, in (0, 1).
        bank: clean representations of others: a ``Bank`` of the very victim's, inputs [n, *input] that each victim represents, or how many
            further draws of the generator take their place.
        divergence: a name or a function.
    """

    quantile: float = 0.5
    bank: Bank | Tensor | int = 500
    divergence: str | Divergence = "l2"

    aim = "away"
    reads = "representations"
    start = "random"

    def __post_init__(self) -> None:
        check_number("quantile", self.quantile)
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile:g}; a share of pairs lies in (0, 1): write 0.5 for the median")
        _check_bank(self.bank, least=2)
        find_divergence(self.divergence)

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """See ``Goal.objective``."""
        threshold = _bank_of(self).quantile_value(self.quantile, self.divergence)
        return Objective(self.loss, {"clean": clean, "threshold": clean.new_full((len(clean),), threshold)})

    def loss(self, outputs: Tensor, clean: Tensor, threshold: Tensor) -> Tensor:
        """outputs, clean: [batch, dim], threshold: [batch] -> [batch]"""
        return threshold - find_divergence(self.divergence)(clean, outputs)


@dataclass(frozen=True, kw_only=True)
class Breakaway(Goal):
    """The representation is strictly nearer to some other sample's than to its own clean one. Label-free.

    Lowered is the divergence from the nearest other minus that from its own. Rows of the bank that equal the item's own clean representation
    in every coordinate, each up to float32's rounding of numbers of its size, do not count: its own row where the bank holds the items, and copies.
    Options as for ``UniversalQuantile``.
    """

    bank: Bank | Tensor | int = 500
    divergence: str | Divergence = "l2"

    aim = "away"
    reads = "representations"

    def __post_init__(self) -> None:
        _check_bank(self.bank, least=1)
        find_divergence(self.divergence)

    def objective(
        self, clean: Tensor, *, labels: Tensor | None = None, targets: Tensor | None = None, random: SampleRandom | None = None
    ) -> Objective:
        """See ``Goal.objective``."""
        bank = _bank_of(self)
        others = bank.take(range(len(bank))).to(clean)
        sizes = others.square().mean(0).sqrt()  # a coordinate that is near 0 by chance is rounded as its others are
        apart = pairwise(lambda first, second: ((first - second).abs() / _rounded(first, sizes)).amax(-1), clean, others)
        own = apart <= 1  # an item that is in the bank itself, or a copy, is no other
        if bool(own.all(1).any()):
            raise ValueError(
                f"all {len(bank)} rows of the bank are an item's own clean representation; give a bank of others, such as bank=500 further draws"
            )
        return Objective(lambda outputs, clean, own: self.loss(outputs, clean, others, own), {"clean": clean, "own": own})

    def loss(self, outputs: Tensor, clean: Tensor, others: Tensor, own: Tensor) -> Tensor:
        """outputs, clean: [batch, dim], others: [bank, dim], own: [batch, bank], which are the item itself -> [batch]"""
        divergence = find_divergence(self.divergence)
        with torch.no_grad():  # the gradient of a minimum is that of the least
            nearest = pairwise(divergence, others, outputs).masked_fill(own.T, torch.inf).argmin(0)
        return divergence(others[nearest], outputs) - divergence(clean, outputs)


def _rounded(rows: Tensor, sizes: Tensor) -> Tensor:
    """Return by how much each coordinate may be off, [rows, dim]; sizes: [dim]."""
    return (_ROUNDING * sizes + _CANCELLED * rows.abs().amax(-1, keepdim=True)).clamp(min=torch.finfo(rows.dtype).tiny)


GOALS: Mapping[str, type[Goal]] = {
    "target": TargetClass,
    "untargeted": Untargeted,
    "representation": TargetRepresentation,
    "quantile": UniversalQuantile,
    "breakaway": Breakaway,
}


def find_goal(goal: str | Goal | type[Goal]) -> Goal:
    """Return the goal of that name or kind with its default options, or the goal itself.

    Raises:
        ValueError: no goal has that name, or it is none.
    """
    if isinstance(goal, type) and issubclass(goal, Goal):
        return goal()
    if isinstance(goal, Goal):
        return goal
    if not isinstance(goal, str):
        raise ValueError(f"goal is {goal!r:.60}; expected a name ({', '.join(GOALS)}) or a Goal, such as TargetRepresentation(share=0.3)")
    if goal not in GOALS:
        raise ValueError(
            f"no goal is named {goal!r}{did_you_mean(goal, GOALS)} (there are {', '.join(GOALS)}, or give one, such as TargetRepresentation(share=0.3))"
        )
    return GOALS[goal]()


def with_bank(goal: Goal, victim: Encoder, draws: Callable[[int], Tensor], *, batch: int = 64, seed: int = 0) -> Goal:
    """Return the goal with the bank of one victim in it, if it has one: inputs, or draws of a generator, are represented.

    draws: how many -> images [n, channel, height, width]

    Raises:
        InvalidInputs: given inputs that are none of this victim's: of another type, outside its bounds, not finite.
    """
    given: Any = getattr(goal, "bank", None)
    if given is None or isinstance(given, Bank):
        return goal
    check_inputs_of(goal, victim)
    with SampleRandom.of(seed, ["bank"]).global_generators("bank"):
        inputs = given if isinstance(given, Tensor) else draws(given)
        return replace(goal, bank=Bank(represent_rows(victim, inputs, batch), seed=seed))  # type: ignore[type-var]


def check_inputs_of(goal: Goal, victim: Encoder, targets: Tensor | None = None) -> None:
    """Raise where inputs that stand in a goal's bank, or images that are to be imitated, are none that this victim can be asked about.

    Raises:
        InvalidInputs: see above.
    """
    for what, given in (("bank", getattr(goal, "bank", None)), ("targets", targets if isinstance(goal, TargetRepresentation) else None)):
        if isinstance(given, Tensor):
            check_inputs(given, victim, what=what)


def check_targets(goal: Goal, targets: Any) -> None:
    """Raise where targets are given to a goal that has none.

    Raises:
        ValueError: see above.
    """
    if targets is not None and goal.aim != "target":
        raise ValueError(f"targets are given, and goal {type(goal).__name__} leads away, to none; leave them out, or take another goal")


def check_target_classes(targets: Tensor, outputs: int, classes: Tensor | None = None, ids: Sequence[str] = ()) -> None:
    """Raise unless all targets are classes that a victim has an output for, and others than the items', where these are given.

    targets, classes: [items]; ids: of the items

    Raises:
        ValueError: with the first that is none.
    """
    _check_classes(targets, len(targets), outputs, "targets")
    if classes is not None and len(same := (targets.cpu() == classes.cpu()).nonzero().flatten().tolist()):
        raise ValueError(
            f"the target of {len(same)} of {len(targets)} items is the class that they are of, such as {int(targets[same[0]])} of item {ids[same[0]]!r}; "
            "give each another class, or goal='untargeted' to leave its own"
        )


def print_of_goal(goal: Goal) -> str:
    """Return the fingerprint of a goal: the same before and after its bank was looked at, which a ``Bank`` keeps record of."""
    bank = getattr(goal, "bank", None)
    if not isinstance(bank, Bank):
        return fingerprint(goal)
    rows = bank.take(range(len(bank)))
    # Of very many pairs a quantile is of some, which the bank chooses.
    threshold = bank.quantile_value(goal.quantile, goal.divergence) if isinstance(goal, UniversalQuantile) else None
    return fingerprint([replace(goal, bank=rows), "bank", bank.quantile_rows, threshold])  # type: ignore[type-var]


def other_classes(labels: Tensor, classes: int, random: SampleRandom) -> Tensor:
    """Draw a class for each item, uniformly from those that it is not of; from its own stream.

    An ordered pair of different classes is drawn, of which the first that is not the label is taken: so two labels of one item have the
    same target, unless the pair's first class is one of them.

    labels: [batch] -> [batch], long
    """
    shares = random.uniform("target", (2,)).double().to(labels.device)
    first = (shares[:, 0] * classes).long().clamp(max=classes - 1)
    second = (shares[:, 1] * (classes - 1)).long().clamp(max=classes - 2)
    return torch.where(first == labels, second + (second >= first), first)


def _lead_of_others(logits: Tensor, classes: Tensor) -> Tensor:
    own = classes[:, None]
    return logits.scatter(1, own, -torch.inf).max(1).values - logits.gather(1, own)[:, 0]


def _check_logits(clean: Tensor) -> None:
    if clean.shape[1] < 2:
        raise ValueError(f"the victim has {clean.shape[1]} output; a goal of classes needs at least 2 logits")


def _of_classes(values: Tensor, clean: Tensor, what: str) -> Tensor:
    _check_classes(values, len(clean), clean.shape[1], what)
    return values.to(clean.device).long()


def _check_classes(values: Tensor, items: int, outputs: int, what: str) -> None:
    check_shape(values, "batch", what=what, batch=items)
    if values.is_floating_point() or values.dtype == torch.bool or bool(((values < 0) | (values >= outputs)).any()):
        raise ValueError(
            f"{what} are {values.dtype} in {values.min():g} to {values.max():g}; the victim has {outputs} logits, so each must be a class "
            f"in 0 to {outputs - 1}"
        )


def _check_bank(bank: Any, *, least: int) -> None:
    if isinstance(bank, (Bank, Tensor)):
        if len(bank) < least:
            raise ValueError(f"bank has {len(bank)} rows; at least {least} are needed")
        return
    check_whole("bank", bank)
    if bank < least:
        raise ValueError(f"bank is {bank}; at least {least} draws are needed")


def _bank_of(goal: Any) -> Bank:
    if not isinstance(goal.bank, Bank):
        raise ValueError(
            f"bank is {type(goal.bank).__name__}; the representations of the victim stand in it: with_bank(goal, victim, …) puts them there"
        )
    return goal.bank

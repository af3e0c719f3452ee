"""Attacks and metrics that are fitted on the plan's ``train`` before they are used: once for each encoder, and kept in the store."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rt_core.blocks import Work, core_versions
from rt_core.datasets import Samples
from rt_core.encoders import Encoder
from rt_core.errors import PlanError
from rt_core.fingerprints import fingerprint
from rt_core.perturbing import passes_of
from rt_core.randomness import SampleRandom
from rt_core.store import Store, key_of
from rt_core.traces import FrozenTensor, needs_fit, parts_of

__all__ = ["Fitting"]

_FEW = 64


@dataclass(frozen=True, eq=False)
class Fitting:
    """What a plan fits on: its ``train``, and where that is kept.

    ``attack.fit(encoder, train, divergence, random=…)`` and ``metric.fit(encoder, train, random=…)`` return what they are called on with some
    fields set: tensors (``FrozenTensor``), numbers or strings, which is what a store can keep. What stands in a field of an attack or a
    metric is fitted like a metric; equal ones, in however many metrics, once. A ``fit`` that takes ``batch`` is given the run's.

    inputs: the fingerprint of the samples without their labels and groups; passes: what a rehearsal says that all fits will take.
    """

    train: Samples | None
    inputs: str
    store: Store
    made: dict[str, Any] = field(default_factory=dict)
    passes: Counter[str] = field(default_factory=Counter)

    @cached_property
    def labels(self) -> list[int] | None:
        return None if self.train is None else self.train.labels(range(len(self.train)))

    @cached_property
    def key(self) -> str:
        """The fingerprint of the samples with labels and groups; empty where there are none."""
        return "" if self.train is None else key_of([self.inputs, self.labels, self.train.groups])

    @cached_property
    def few(self) -> Samples:
        """Some of the samples, two of each class while there is room, for a rehearsal."""
        assert self.train is not None, "there is something to rehearse with"
        spread = {round(row) for row in np.linspace(0, len(self.train) - 1, _FEW)}
        places: dict[int, list[int]] = {}
        for row, label in enumerate(self.labels or ()):
            places.setdefault(label, []).append(row)
        of_each = [found[turn] for turn in range(2) for found in places.values() if len(found) > turn]
        return self.train.picked(sorted([*dict.fromkeys([*of_each, *sorted(spread)])][:_FEW]))

    def fitted(
        self,
        work: Work,
        encoder: Encoder,
        encoder_fingerprint: str,
        *,
        rehearsal: bool = False,
        failed: Callable[..., None] | None = None,
    ) -> Work:
        """Return the work with everything that has a ``fit`` fitted to this encoder; from the store where it is there.

        rehearsal: what is not in the store is fitted on a few samples, and not kept. failed: is told the error of a fit, and whose it is
        (``attack=label`` or ``metric=label``), which the work is then without; unless given, the error is raised.
        """
        if self.train is None or not any(map(needs_fit, (*work.attacks.values(), *work.metrics.values()))):
            return work
        train = self.few if rehearsal else self.train
        random = SampleRandom.of(work.plan.seed, ["fit"])

        def of(thing: Any, *moved_by: Any) -> Any:
            if not needs_fit(thing):
                return thing
            parts = {name: of(part) for name, part in parts_of(thing).items() if needs_fit(part)}
            whole = replace(thing, **parts) if parts else thing
            if not needs_fit(whole):
                return whole
            about = [
                work.print_of(whole),
                encoder_fingerprint,
                self.key,
                fingerprint(moved_by),
                work.plan.seed,
                work.batch,
                str(work.device),
            ]
            key = key_of(["fit", *about, core_versions()])
            if (found := self.store.load(key)) is not None:
                return replace(whole, **_from_arrays(found))
            known = f"{key}{rehearsal}"
            if known not in self.made:
                before = passes_of(encoder)
                batch = {"batch": work.batch} if "batch" in inspect.signature(whole.fit).parameters else {}
                try:
                    self.made[known] = whole.fit(encoder, train, *moved_by, random=random, **batch)
                except Exception as error:
                    self.made[known] = error  # whoever else asks for it is told the same
                    raise
                after, arrays = passes_of(encoder), _to_arrays(whole, self.made[known])
                if not rehearsal:
                    self.store.save(key, arrays)
                else:
                    spent = after.forwards + after.backwards - before.forwards - before.backwards
                    self.passes[encoder_fingerprint] += spent * len(self.train or ()) // len(train)
            if isinstance(self.made[known], Exception):
                raise self.made[known]
            return self.made[known]

        def each(kind: str, things: Mapping[str, Any], *moved_by: Any) -> dict[str, Any]:
            made = {}
            for label, thing in things.items():
                try:
                    made[label] = of(thing, *moved_by)
                except Exception as error:
                    if failed is None or all(error is not one for one in self.made.values()):  # no fit's: a full disk, say
                        raise
                    failed(error, **{kind: label})
            return made

        return work.fitted(each("attack", work.attacks, work.divergence), each("metric", work.metrics))


def _to_arrays(before: Any, after: Any) -> dict[str, np.ndarray]:
    """Return the fields that fitting has set, as arrays.

    Raises:
        PlanError: a field that a store cannot keep.
    """
    if type(before) is not type(after) or not is_dataclass(after):
        raise PlanError(
            f"fit of {type(before).__name__} returned {type(after).__name__}; it must return itself, a dataclass, with fields set"
        )
    arrays = {}
    for name in (one.name for one in fields(after)):
        value = getattr(after, name)
        if value == getattr(before, name):
            continue
        if isinstance(value, FrozenTensor):
            arrays[f"tensor/{name}"] = value.on(torch.device("cpu")).numpy()
        elif isinstance(value, (int, float, str)):
            arrays[f"value/{name}"] = np.array(value)
        else:
            what = f"fit of {type(after).__name__} set {name} to a {type(value).__name__}"
            raise PlanError(f"{what}, which a store cannot keep; set tensors (FrozenTensor.of(…)), numbers or strings")
    return arrays


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        name.partition("/")[2]: FrozenTensor.of(torch.from_numpy(value)) if name.startswith("tensor/") else value.item()
        for name, value in arrays.items()
    }

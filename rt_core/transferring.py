"""Transfer: inputs that were made against one encoder, measured on others."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from rt_core.blocks import Work, version_of
from rt_core.divergences import Divergence
from rt_core.encoders import Encoder
from rt_core.errors import PlanError
from rt_core.evaluation import Evaluation
from rt_core.execution import clean_of, evaluated, find_device, fingerprint_of, made_encoder, samples_of, store_of
from rt_core.fitting import Fitting
from rt_core.neighbors import Bank
from rt_core.perturbing import BLOCK, check_batch, moved_to, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.results import Results
from rt_core.store import kept_batch
from rt_core.traces import Attack, Attempt, Ball, Batch, Suite, aims_of, ball_of, steps_of

__all__ = ["transfer"]

_REMEMBERED = 2 * BLOCK  # samples: two aims of a block


def transfer(
    sources: Any,
    victims: Any,
    dataset: Any,
    attacks: Mapping[str, Any],
    metrics: Any,
    *,
    store: str | Path | None = None,
    device: str = "auto",
    batch: int | None = None,
    progress: bool = True,
    **options: Any,
) -> Results:
    """Attack each source, and measure what comes of it on every victim: the paper's threat, a public encoder that attacks its fine-tuned form.

    Inputs are made once for each source, whatever the number of victims, and every victim sees them through its own preprocessing. All
    encoders are in memory at once. A victim that is a source as well has its white-box rows among the others.

    Args:
        sources, victims, dataset, attacks, metrics, options: as ``Evaluation`` takes encoders, dataset, attacks, metrics and its options.
        store, device, batch, progress: as ``run`` takes them.

    Returns:
        Results whose encoder is the victim and whose attack is ``<attack>/<source>``; ``worst(attack)`` reads the worst source.

    Raises:
        PlanError: no attack, or as for ``Evaluation``; what else ``run`` raises.
    """
    if not attacks:
        raise PlanError("no attack is given; a transfer needs one, such as {'u-pgd': UPGD(epsilon=0.05)}")
    samples = samples_of(dataset)
    named = Evaluation(sources, samples, attacks, metrics, **options)  # for its checks and its labels
    if named.suites():
        raise PlanError(f"{', '.join(map(repr, named.suites()))} is a suite; a transfer takes single attacks")
    work = Work.of(named, samples, min(check_batch(batch if batch is not None else kept_batch(store)), BLOCK), find_device(device))
    kept, train = store_of(work, store), None if named.train is None else samples_of(named.train)
    fitting = Fitting(train, "" if train is None else fingerprint_of(train), kept)
    made: dict[str, dict[str, Attack]] = {label: {} for label in work.attacks}
    with contextlib.ExitStack() as held, torch.inference_mode(False):
        for source, given in named.encoders.items():
            encoder = held.enter_context(made_encoder(given, source).in_use(work.device))
            print_of_it = encoder.fingerprint
            bank = work.bank(clean_of(work, encoder, print_of_it, kept))
            for label, attack in fitting.fitted(work.fitted(work.attacks, {}), encoder, print_of_it).attacks.items():
                made[label][source] = _Transferred.of(source, encoder, print_of_it, attack, bank)
        plan = replace(named, encoders=victims, attacks={label: Suite(members) for label, members in made.items()})
        return evaluated(plan, store=store, device=device, batch=batch, progress=progress, diagnose=False, together=True)


@dataclass(frozen=True, kw_only=True)
class _Transferred:
    """An attack on another encoder than the one that is asked about; what it made last is remembered, for the next victim."""

    source: str
    fingerprint: str
    attack: Attack
    version: str | None
    fitted: ClassVar[bool] = True  # the attack was, to its own encoder

    @classmethod
    def of(cls, source: str, encoder: Encoder, fingerprint: str, attack: Attack, bank: Bank) -> "_Transferred":
        made = cls(source=source, fingerprint=fingerprint, attack=attack, version=version_of(attack))
        # No fields: the fingerprint stands for them.
        vars(made).update(encoder=encoder, bank=bank, remembered={})
        return made

    @property
    def ball(self) -> Ball | None:
        return ball_of(self.attack)

    @property
    def aims(self) -> tuple[str, ...]:
        return aims_of(self.attack)

    @property
    def steps(self) -> int:
        return steps_of(self.attack)

    @property
    def joint(self) -> bool:
        return getattr(self.attack, "joint", False)

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Attempt:
        """[batch, *input] -> same shape; inside the victim's bounds, the note ``clipped`` says how much that took

        Raises:
            ValueError: there is no bank, which a run gives.
        """
        if batch.bank is None:
            raise ValueError("a transferred attack runs in a plan alone: rt_core.transfer")
        remembered: dict[Any, tuple[Attempt, int]] = vars(self)["remembered"]
        key = batch.aim, batch.ids
        if key not in remembered:
            while sum(len(ids) for _, ids in remembered) > _REMEMBERED - len(batch.ids):
                del remembered[next(iter(remembered))]
            remembered[key] = self._made(batch, divergence, random)
        attempt, reads = remembered[key]
        batch.bank.reads += reads  # who looks at the source's bank does another thing in another bank
        inputs = encoder.clip(attempt.inputs)
        marks = {step: encoder.clip(moved) for step, moved in attempt.marks.items()}
        clipped = (inputs != attempt.inputs).flatten(1).float().mean(1)
        return Attempt(inputs=inputs, marks=marks, notes={**attempt.notes, "clipped": clipped})

    def _made(self, batch: Batch, divergence: Divergence, random: SampleRandom) -> tuple[Attempt, int]:
        """Return what the attack makes against its source, and how often it looked at the source's bank."""
        source, bank = vars(self)["encoder"], vars(self)["bank"]
        reads, size, device = bank.reads, len(batch.ids), source.where() or batch.inputs.device
        inputs = moved_to(device, batch.inputs)
        clean = represent_rows(source, inputs, size).to(device)
        toward = None if batch.target_inputs is None else moved_to(device, batch.target_inputs)
        targets = None if toward is None else represent_rows(source, toward, size).to(device)
        seen = replace(batch, inputs=inputs, clean=clean, target_inputs=toward, targets=targets, bank=bank)
        found = self.attack(source, seen, divergence, random=random)
        attempt = found if isinstance(found, Attempt) else Attempt(inputs=found)
        marks = {step: moved.to(batch.inputs) for step, moved in attempt.marks.items()}
        kept = Attempt(inputs=attempt.inputs.detach().to(batch.inputs), marks=marks, notes=attempt.notes)  # its history is of the source
        return kept, bank.reads - reads

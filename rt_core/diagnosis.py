"""Whether to believe an attack's numbers: the signs of a gradient that leads nowhere, looked for on a few samples of the run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rt_core.baselines import UniformNoise
from rt_core.blocks import Block, Subject, Work, core_versions
from rt_core.errors import UnknownName
from rt_core.fingerprints import fingerprint
from rt_core.perturbing import attack_batch, measure, passes_of, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.registry import make
from rt_core.store import key_of
from rt_core.traces import Attack, Batch, Trace, aims_of, ball_of

__all__ = ["LIMITS", "Diagnosis", "diagnose"]

SAMPLES, FEWEST = 32, 8
SHARE = 0.1
"""The share of a run's passes that its diagnosis may cost."""


@dataclass(frozen=True)
class Sign:
    """One thing that is looked for: what its number is, from where on it is a warning, and what the warning says."""

    limit: float
    words: str
    below: bool = False

    def raised(self, value: float) -> bool:
        return value < self.limit if self.below else value > self.limit


LIMITS: Mapping[str, Sign] = {
    "zero_gradient": Sign(
        0.1, "the gradient is exactly zero at {value:.0%} of its steps: it is masked (rounded inputs, saturated outputs)"
    ),
    "not_deterministic": Sign(
        0.0, "{value:.0%} of the samples come out otherwise when they are attacked again: the encoder or the attack is random"
    ),
    "falls_back": Sign(0.25, "{value:.0%} of the samples end more than a tenth below the best of their own way: the step is too large"),
    "noise": Sign(0.9, "noise of the same size moves {value:.2f} times as far: the gradient leads nowhere"),
    "doubled_steps": Sign(1.5, "twice the steps move {value:.2f} times as far: it has not converged, so give it more"),
    "restarts": Sign(1.25, "the better of two starts moves {value:.2f} times as far: it depends on the start, so give it restarts"),
    "gradient_free": Sign(
        1.0,
        "a search without gradients moves {value:.2f} times as far in as many passes: its gradient is masked, or its steps are too small",
    ),
    "large_epsilon": Sign(
        0.5,
        "at half of the input range it moves half of the samples no further than {value:.0%} of all pairs are apart: it is held up",
        below=True,
    ),
    "transfer": Sign(1.0, "inputs made against encoder {source!r} move it {value:.2f} times as far as its own: its gradient is masked"),
}


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found of one encoder: numbers by sign, and the inputs that moved it, for the next encoder's check of transfer."""

    encoder: str
    attack: str
    samples: int
    passes: int
    values: Mapping[str, float]
    sources: Mapping[str, str]
    inputs: Tensor

    def described(self) -> dict[str, Any]:
        """Return what the manifest says: every number, and the warnings in words."""
        numbers = {name: value if math.isfinite(value) else None for name, value in self.values.items()}
        return {
            "encoder": self.encoder,
            "attack": self.attack,
            "samples": self.samples,
            "passes": self.passes,
            "values": numbers,
            "warnings": list(self.warnings()),
        }

    def warnings(self) -> Iterator[str]:
        for name, value in self.values.items():
            sign = LIMITS[name]
            if sign.raised(value):
                said = sign.words.format(value=value, source=self.sources.get(name, ""))
                yield f"attack {self.attack!r} on encoder {self.encoder!r}: {said}"


def diagnose(work: Work, subject: Subject, others: Mapping[str, Diagnosis]) -> Diagnosis | None:
    """Look for the signs on up to 32 of the run's first samples: fewer where they would cost more than a tenth of the run's passes.

    The attack is the plan's one with the most steps among those that have ``epsilon`` and ``steps``, aiming away. None where there is no such
    attack, or the run is too small: a tenth of its passes is not enough for 8 samples.

    others: the diagnoses of the encoders before this one, whose inputs are tried on it.
    """
    label, attack = _strongest(work)
    if attack is None:
        return None
    samples = _affordable(work, attack)
    if samples < FEWEST:
        return None
    block = Block(work, range(samples))
    foreign = {name: fingerprint(other.inputs) for name, other in others.items()}
    about = [
        subject.fingerprint,
        fingerprint(attack),
        fingerprint(work.divergence),
        work.plan.seed,
        block.ids,
        work.batch,
        len(work.order),
        foreign,
    ]
    key = key_of(["diagnosis", *about, core_versions()])
    found = subject.store.load(key)
    if found is None:
        before = passes_of(subject.encoder)
        values, sources, inputs = _signs(work, subject, block, label, attack, others)
        after = passes_of(subject.encoder)
        passes = after.forwards + after.backwards - before.forwards - before.backwards
        found = {f"value/{name}": np.array(value) for name, value in values.items()}
        found |= {f"source/{name}": np.array(source) for name, source in sources.items()}
        found |= {"passes": np.array(passes), "inputs": inputs.cpu().numpy()}
        subject.store.save(key, found)
    return Diagnosis(
        encoder=subject.label,
        attack=label,
        samples=samples,
        passes=int(found["passes"]),
        values={name.removeprefix("value/"): float(value) for name, value in found.items() if name.startswith("value/")},
        sources={name.removeprefix("source/"): str(value) for name, value in found.items() if name.startswith("source/")},
        inputs=torch.from_numpy(found["inputs"]),
    )


def _signs(
    work: Work, subject: Subject, block: Block, label: str, attack: Any, others: Mapping[str, Diagnosis]
) -> tuple[dict[str, float], dict[str, str], Tensor]:
    inputs, rows = block.inputs_for(subject.encoder), torch.tensor(block.rows)
    clean = subject.bank.take(rows)
    batch = Batch(ids=block.ids, inputs=inputs, clean=clean, aim="away", bank=subject.bank, own=rows)

    def tried(chosen: Attack) -> Trace:
        random = SampleRandom.of(work.plan.seed, block.ids)
        return attack_batch(subject.encoder, chosen, batch, work.divergence, random, work.batch, label=label)

    plain = tried(_changed(attack, marks=()))
    reached, sources = plain.divergence.median().item(), {}
    assert plain.inputs is not None, "a trace of attack_batch holds its inputs"

    def ratio(values: Tensor) -> float:
        moved = values.median().item()
        return moved / reached if reached > 0 else (math.inf if moved > 0 else 0.0)

    values = {"not_deterministic": (tried(_changed(attack, marks=())).divergence != plain.divergence).double().mean().item()}
    if "zero_gradient" in plain.notes:
        values["zero_gradient"] = plain.notes["zero_gradient"].double().mean().item()
    if plain.history is not None:
        values["falls_back"] = (plain.divergence < 0.9 * plain.history.max(1).values).double().mean().item()
    values["noise"] = ratio(tried(UniformNoise(epsilon=attack.epsilon)).divergence) if _is_linf(attack) else 0.0
    values["doubled_steps"] = ratio(tried(_changed(attack, marks=(), steps=2 * attack.steps)).divergence)
    if _has(attack, "restarts") and getattr(attack, "start", "random") != "clean":
        values["restarts"] = ratio(tried(_changed(attack, marks=(), restarts=2 * attack.restarts)).divergence)
    if (square := _gradient_free(attack)) is not None:
        values["gradient_free"] = ratio(tried(square).divergence)
    low, high = (torch.as_tensor(bound) for bound in subject.encoder.bounds)
    half = (high - low).max().item() / 2
    if _is_linf(attack) and attack.epsilon < half:
        far = tried(_changed(attack, marks=(), epsilon=half, step=None)).divergence
        values["large_epsilon"] = subject.bank.pair_quantiles(far, work.divergence).median().item()
    if others:
        transferred = {
            name: ratio(
                measure(work.divergence, clean, represent_rows(subject.encoder, other.inputs[: len(inputs)].to(inputs), work.batch))
            )
            for name, other in others.items()
        }
        source = max(transferred, key=lambda name: transferred[name])
        values["transfer"], sources["transfer"] = transferred[source], source
    return values, sources, plain.inputs


def _strongest(work: Work) -> tuple[str, Any]:
    suited: list[tuple[str, Any]] = [
        (label, attack)
        for label, attack, aim in work.jobs()
        if attack is not None and aim == "away" and _has(attack, "epsilon") and _has(attack, "steps") and _positive(attack)
    ]
    return max(suited, key=lambda one: one[1].steps * getattr(one[1], "restarts", 1)) if suited else ("", None)


def _affordable(work: Work, attack: Any) -> int:
    """Return how many samples a tenth of the run's passes is enough for, as far as they can be told beforehand."""
    planned = work.attacked * sum(2 * getattr(one, "steps", 0) + 1 for _, one, _ in work.jobs() if one is not None) + len(work.order)
    steps = attack.steps * getattr(attack, "restarts", 1)
    # Twice as it is, once with twice the steps, once with twice the starts, once far, a search of as many passes, noise and transfer.
    each = 2 * (2 + 2 + 2 + 1 + 1) * steps + 16
    return min(SAMPLES, work.attacked, int(SHARE * planned / each)) // 2 * 2


def _gradient_free(attack: Any) -> Attack | None:
    """Return a search of as many passes in the same ball, if one is installed."""
    ball = ball_of(attack)
    try:
        options = {"epsilon": attack.epsilon, "norm": ball.norm, "queries": 2 * attack.steps} if ball is not None else {}
        return make("attack", "u_square", options) if options else None
    except UnknownName:
        return None


def _is_linf(attack: Any) -> bool:
    ball = ball_of(attack)
    return ball is not None and ball.norm == "linf" and isinstance(ball.radius, (int, float))


def _positive(attack: Any) -> bool:
    return isinstance(attack.epsilon, (int, float)) and attack.epsilon > 0 and "away" in aims_of(attack)


def _has(thing: Any, name: str) -> bool:
    return is_dataclass(thing) and any(field.name == name for field in fields(thing))


def _changed(attack: Any, **options: Any) -> Any:
    return replace(attack, **{name: value for name, value in options.items() if _has(attack, name)})

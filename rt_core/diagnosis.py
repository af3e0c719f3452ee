"""Whether to believe an attack's numbers: the signs of a gradient that leads nowhere, looked for on a few samples of the run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rt_core.blocks import Block, Subject, Work, batch_of, core_versions, version_of
from rt_core.divergences import Divergence, find_divergence
from rt_core.encoders import Encoder
from rt_core.errors import AttackViolation, PluginError, UnknownName
from rt_core.fingerprints import fingerprint
from rt_core.perturbing import attack_batch, measure, passes_of, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.registry import make
from rt_core.store import key_of
from rt_core.traces import Attack, Ball, Batch, Trace, ball_of, passes_of_attack, steps_of

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
        1.2,
        "a search without gradients moves {value:.2f} times as far in as many passes: its gradient is masked, or its steps are too small",
    ),
    "large_epsilon": Sign(
        0.5,
        "at half of the input range it moves half of the samples no further than {value:.0%} of all pairs are apart: it is held up",
        below=True,
    ),
    "transfer": Sign(1.2, "inputs made against encoder {source!r} move it {value:.2f} times as far as its own: its gradient is masked"),
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

    The attack is the plan's one with the most passes among those that have ``epsilon`` and ``steps``, aim away and climb the plan's divergence.
    None where there is no such attack, where it raises (the run has recorded that), or where the run is too small: a tenth of its passes
    is not enough for 8 samples. A sign whose own attack raises is left out.

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
    made_by = [work.print_of(attack), work.print_of(work.divergence), work.plan.seed, work.batch, str(work.device)]
    bank = [len(work.order), subject.bank.quantile_rows]
    key = key_of(
        [
            "diagnosis",
            subject.fingerprint,
            *made_by,
            block.ids,
            *bank,
            foreign,
            [version_of(one) for one in _searches(attack)],
            core_versions(),
        ]
    )
    found = subject.store.load(key)
    if found is None:
        before = passes_of(subject.encoder)
        signs = _signs(work, subject, block, label, attack, others)
        if signs is None:
            return None
        values, sources, inputs = signs
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
) -> tuple[dict[str, float], dict[str, str], Tensor] | None:
    inputs, rows = block.inputs_for(subject.encoder), torch.tensor(block.rows)
    clean = subject.bank.take(rows)
    batch = Batch(ids=block.ids, inputs=inputs, clean=clean, aim="away", bank=subject.bank, own=rows)

    def tried(chosen: Attack | None, **options: Any) -> Trace | None:
        random = SampleRandom.of(work.plan.seed, block.ids)
        try:
            chosen = _changed(attack, marks=(), **options) if chosen is None else chosen
            size = batch_of(work, chosen)
            return attack_batch(subject.encoder, chosen, batch, work.divergence, random, size, label=label, represented=work.batch)
        except Exception as error:  # a diagnosis never costs the run that it is of
            if isinstance(error, (AttackViolation, torch.OutOfMemoryError, MemoryError)):
                raise
            return None

    plain = tried(None)
    if plain is None or plain.inputs is None:
        return None
    reached = plain.divergence.median().item()

    def ratio(divergence: Tensor) -> float:
        moved = divergence.median().item()
        return moved / reached if reached > 0 else (math.inf if moved > 0 else 0.0)

    values, sources = {}, {}
    if "zero_gradient" in plain.notes:
        values["zero_gradient"] = plain.notes["zero_gradient"].double().mean().item()
    if plain.history is not None:
        values["falls_back"] = (plain.divergence < 0.9 * plain.history.max(1).values).double().mean().item()
    again = tried(None)
    if again is not None:
        values["not_deterministic"] = (again.divergence != plain.divergence).double().mean().item()
    compared = {"doubled_steps": tried(None, steps=2 * attack.steps)}
    if _has(attack, "restarts") and getattr(attack, "start", "random") != "clean":
        compared["restarts"] = tried(None, restarts=2 * attack.restarts)
    for search in _searches(attack):
        compared["gradient_free"] = tried(search)
    ball = ball_of(attack)
    boxed = ball is not None and ball.norm == "linf"  # in an l2 ball noise is far less than an attack, whatever the gradient
    if ball is not None and boxed:
        compared["noise"] = tried(_Noise(ball))
    values |= {name: ratio(trace.divergence) for name, trace in compared.items() if trace is not None}
    low, high = (torch.as_tensor(bound) for bound in subject.encoder.bounds)
    half = (high - low).max().item() / 2
    if boxed and attack.epsilon < half and getattr(attack, "mask", None) is None:
        far = tried(None, epsilon=half, **_free_step(attack))
        if far is not None:
            values["large_epsilon"] = subject.bank.pair_quantiles(far.divergence, work.divergence).median().item()
    if others:
        transferred = {}
        for name, other in others.items():
            foreign = subject.encoder.clip(other.inputs[: len(inputs)].to(inputs))
            transferred[name] = ratio(measure(work.divergence, clean, represent_rows(subject.encoder, foreign, work.batch)))
        source = max(transferred, key=lambda name: transferred[name])
        values["transfer"], sources["transfer"] = transferred[source], source
    return values, sources, plain.inputs


@dataclass(frozen=True)
class _Noise:
    """Uniform noise in the ball of another attack."""

    ball: Ball

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Divergence, *, random: SampleRandom) -> Tensor:
        """[batch, *input] -> same shape"""
        noise = random.uniform("noise", batch.inputs.shape[1:], low=-1, high=1).to(batch.inputs)
        return self.ball.project(batch.inputs + self.ball.radii(batch.inputs) * noise, batch.inputs, encoder.bounds)


def _strongest(work: Work) -> tuple[str, Any]:
    suited: list[tuple[str, Any]] = [(label, attack) for label, attack, aim in work.jobs() if aim == "away" and _is_suited(work, attack)]
    return max(suited, key=lambda one: sum(_passes(one[1]))) if suited else ("", None)


def _is_suited(work: Work, attack: Any) -> bool:
    if not (_has(attack, "epsilon") and _has(attack, "steps") and ball_of(attack) is not None and steps_of(attack)):
        return False
    own = getattr(attack, "divergence", None)
    climbs = getattr(attack, "climbs", "divergence") == "divergence" and (own is None or find_divergence(own) is work.divergence)
    return climbs and isinstance(attack.epsilon, (int, float)) and attack.epsilon > 0


def _affordable(work: Work, attack: Any) -> int:
    """Return how many samples a tenth of the run's passes is enough for, as far as they can be told beforehand."""
    planned = work.attacked * sum(sum(_passes(one)) + 1 for _, one, _ in work.jobs() if one is not None) + len(work.order)
    # Twice as it is, once with twice the steps, once with twice the starts, once far, a search of as many passes, noise and transfer.
    each = (2 + 2 + 2 + 1 + 1) * sum(_passes(attack)) + 16
    return min(SAMPLES, work.attacked, int(SHARE * planned / each)) // 2 * 2


def _passes(attack: Any) -> tuple[int, int]:
    steps = steps_of(attack) * getattr(attack, "restarts", 1)
    return passes_of_attack(attack) or (steps, steps)


def _searches(attack: Any) -> list[Attack]:
    """Return a search of as many passes in the same ball, if one is installed."""
    ball = ball_of(attack)
    assert ball is not None, "an attack that is diagnosed has a ball"
    options = {"epsilon": attack.epsilon, "norm": ball.norm, "queries": sum(_passes(attack)), "mask": ball.mask}
    try:
        return [make("attack", "u_square", options)]
    except (UnknownName, PluginError, ValueError):  # there is none, or one of that name that is another
        return []


def _has(thing: Any, name: str) -> bool:
    return is_dataclass(thing) and any(field.name == name for field in fields(thing))


def _free_step(attack: Any) -> dict[str, None]:
    """Return the option that lets the attack choose its step, if it has one: in a larger ball a given one may be too short."""
    free = is_dataclass(attack) and any(field.name == "step" and field.default is None for field in fields(attack))
    return {"step": None} if free else {}


def _changed(attack: Any, **options: Any) -> Any:
    return replace(attack, **{name: value for name, value in options.items() if _has(attack, name)})

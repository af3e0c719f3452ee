"""The one-call answer: one's own encoder on one's own pictures, beside what it has to be read against."""

import copy
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rt_core.datasets import Samples
from rt_core.encoders import Encoder, as_encoder, check_inputs
from rt_core.errors import PlanError, RobustnessWarning
from rt_core.evaluation import Evaluation
from rt_core.execution import find_device, run, samples_of
from rt_core.perturbing import moved_to, represent_rows
from rt_core.randomness import SampleRandom
from rt_core.registry import use
from rt_core.results import Results

__all__ = ["check", "findings", "untrained_twin"]

_STEPS = 20
_MOST = 1000
_METRICS = ("universal_quantile", "breakaway_risk", "nearest_neighbor_accuracy", "relative_quantile", "overlap_risk", "adversarial_margin")


def check(
    encoder: Any,
    inputs_or_folder: Any,
    *,
    epsilon: float | None = None,
    minutes: float = 5,
    store: str | Path | None = None,
    progress: bool = True,
) -> Results:
    """Say how robust an encoder is on some inputs: sensible attacks and measures, as many samples as the time allows.

    Two references stand in the same table. ``noise`` of the same size says what any movement does; the encoder's untrained twin (the same
    network with fresh weights) says what the architecture does without having learned anything, and may well look robust.

    Args:
        encoder: an ``Encoder``, or a network with inputs in 0..1.
        inputs_or_folder: a tensor, a folder of pictures, or any dataset.
        epsilon: radius of the l-infinity ball, in the bounds' units; 4/255 of their width unless given.
        minutes: how long it may take, roughly; decides how many samples are attacked, 16 at least and 1,000 at most.
        store: a folder to keep the run in, so that it can go on; a finished run's number of samples is kept, whatever the minutes.

    Raises:
        PlanError: fewer than 16 samples.
        UnknownName: the plugins with attacks and measures (rt-unsupervised-attacks, rt-label-free-metrics) are not installed.
    """
    encoder, samples = as_encoder(encoder), samples_of(inputs_or_folder)
    if not minutes > 0:
        raise ValueError(f"minutes is {minutes:g}; give how long it may take, more than 0 (16 samples are attacked whatever it is)")
    if len(samples) < 16:
        raise PlanError(f"dataset {samples.name!r} has {len(samples)} samples; at least 16 are needed to say anything")
    low, high = (torch.as_tensor(bound) for bound in encoder.bounds)
    radius = epsilon if epsilon is not None else 4 / 255 * (high - low).max().item()
    encoders = {encoder.name: encoder}
    twin = untrained_twin(encoder)
    useless = _uselessness(twin, encoder, samples)
    if useless is None:
        encoders[twin.name] = twin
    else:
        warnings.warn(f"the untrained twin of {encoder.name!r} {useless} and is left out", RobustnessWarning, stacklevel=2)
    attacked = _kept_attacked(store) or _affordable(encoder, samples, 60 * minutes / len(encoders))
    plan = Evaluation(
        encoders=encoders,
        dataset=samples,
        attacks={"u-pgd": use("u_pgd", epsilon=radius, steps=_STEPS), "noise": use("uniform_noise", epsilon=radius)},
        metrics=_METRICS,
        attacked=attacked,
        bank=max(attacked, min(10 * attacked, len(samples))),
    )
    return run(plan, store=store, progress=progress)


def findings(results: Results) -> list[str]:
    """Return what a check found, in sentences; the first encoder is the one that was checked."""
    summary = results.summary().set_index(["encoder", "attack", "metric"])
    name, *twins = results.manifest["encoders"]

    def shown(metric: str, encoder: str = name, attack: str = "u-pgd") -> float:
        return summary.loc[(encoder, attack, metric), "estimate"]

    said = [
        f"half of the attacked samples moved further than {shown('universal_quantile'):.1%} of all pairs of samples are apart "
        f"(noise of the same size: {shown('universal_quantile', attack='noise'):.1%})",
        f"{shown('nearest_neighbor_accuracy'):.0%} of them are still nearest to themselves (noise: {shown('nearest_neighbor_accuracy', attack='noise'):.0%})",
        f"in {shown('overlap_risk'):.0%} of pairs, two samples attacked toward each other change places",
    ]
    for twin in twins:
        said.append(
            f"the same network untrained (each layer at its own default initialization): {shown('universal_quantile', twin):.1%}, "
            f"{shown('nearest_neighbor_accuracy', twin):.0%} and {shown('overlap_risk', twin):.0%}; where it looks better, the measure does not speak "
            "of what was learned"
        )
    said += [f"do not believe these numbers: {words}" for words in results.unbelievable(name).values()]
    return said + [warning for found in results.manifest["diagnosis"] if found["encoder"] == name for warning in found["warnings"]]


def untrained_twin(encoder: Encoder, *, seed: int = 0) -> Encoder:
    """Return the same network with fresh weights: each layer initialized as it initializes itself, from ``seed``.

    What a constructor does beyond that (torchvision scales the convolutions of a ResNet, say) is not done again, so another untrained network
    may be steeper or flatter. A parameter that no layer initializes (one that belongs to a module without ``reset_parameters``) keeps its
    values in a random order.
    """
    network = copy.deepcopy(encoder.module)
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    with SampleRandom.of(seed, ["untrained twin"]).global_generators("weights"), torch.no_grad():
        for module in network.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        for name, weight in network.named_parameters():
            if torch.equal(weight, before[name]) and not _is_initial(weight):
                weight.copy_(weight.flatten()[torch.randperm(weight.numel())].view_as(weight))
    settings: dict[str, Any] = {
        "bounds": encoder.bounds,
        "normalize": encoder.normalize,
        "output": encoder.output,
        "channels_last": encoder.channels_last,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustnessWarning)  # said once, of the encoder itself
        return Encoder(network, name=f"{encoder.name} (untrained)", device=encoder.device, **settings)


def _is_initial(weight: nn.Parameter) -> bool:
    """Say whether a parameter has one value throughout, as scales and shifts have before training: its order says nothing."""
    return bool((weight == weight.flatten()[0]).all())


def _uselessness(twin: Encoder, encoder: Encoder, samples: Samples) -> str | None:
    """Return, in words, why an untrained twin says nothing, or None."""
    weights = zip(twin.module.parameters(), encoder.module.parameters(), strict=True)
    if all(torch.equal(fresh, trained) for fresh, trained in weights):
        return "is the network itself, since no parameter of it can be initialized anew,"
    inputs = samples.inputs(range(2))
    check_inputs(inputs, encoder, what=f"inputs of dataset {samples.name!r}", ids=samples.ids)
    with torch.no_grad():
        first, second = twin(moved_to(twin.where() or inputs.device, inputs))
    varies = first.isfinite().all() and second.isfinite().all() and (first != second).any()
    return None if varies else "gives the same for all inputs"


def _kept_attacked(store: str | Path | None) -> int | None:
    """Return how many samples the finished run in a folder attacked, if there is one."""
    try:
        return None if store is None else json.loads((Path(store) / "manifest.json").read_text(encoding="utf-8"))["attacked"]
    except (OSError, ValueError, KeyError):
        return None  # none yet, or a damaged one, which the run reports


def _affordable(encoder: Encoder, samples: Samples, seconds: float) -> int:
    """Return how many samples can be attacked in that time where a run would put them, with ten times as many in the bank.

    Time allows a power of two, so that a repeated check mostly attacks the same samples and finds its blocks again.
    """
    inputs = samples.inputs(range(min(16, len(samples))))
    with encoder.in_use(find_device("auto")):
        represent_rows(encoder, inputs[:2], 2)
        began = time.monotonic()
        represent_rows(encoder, inputs, len(inputs))  # ends on the CPU, when the device is done
        forward = (time.monotonic() - began) / len(inputs)
    # Two aims, each of steps that cost about three forward passes, a final pass, noise, and ten clean passes for the bank.
    cost = forward * (2 * (3 * _STEPS + 2) + 10)
    in_time = 1 << max(16, int(seconds / cost)).bit_length() - 1
    return min(_MOST, in_time, len(samples)) // 2 * 2

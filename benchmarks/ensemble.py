"""Whether the parameter-free ensemble loses to no single attack of its package, measure by measure, at the same gradient calls per objective.

For each encoder and epsilon: the mean damage that each attack does (for measures that are better high: how far below their best value), of the
ensemble the worst member for each sample; the ratio of the ensemble to the best single attack, with a 95 % bootstrap interval over pairs of
samples (over photographs there are too few). Then how far the automatic step moves the representation, next to U-PGD with the paper's step.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import rt_core as rt
from rt_core.divergences import l2
from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom, stream
from rt_core.traces import AIMS, Attack, Context, Trace, aims_of

# By name: whether its worst is the largest value, and what it is subtracted from if not.
MEASURES = {
    "divergence": ("divergence", {}, None),
    "universal_quantile": ("universal_quantile", {}, None),
    "universal_quantile[cosine]": ("universal_quantile", {"divergence": "cosine"}, None),
    "1 - cosine_similarity": ("cosine_similarity", {}, 1),
    "breakaway_risk": ("breakaway_risk", {}, None),
    "1 - nearest_neighbor_accuracy": ("nearest_neighbor_accuracy", {}, 1),
    "1 - relative_quantile": ("relative_quantile", {}, 1),
    "1 + target_cosine_similarity": ("target_cosine_similarity", {}, -1),
    "overlap_risk": ("overlap_risk", {}, None),
    "1 - adversarial_margin": ("adversarial_margin", {}, 1),
}
PAIRS = ("overlap_risk", "1 - adversarial_margin")


@dataclass(frozen=True)
class Setting:
    name: str
    encoder: Encoder
    inputs: Tensor  # the attacked first
    epsilon: float


def settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    digits = rt.dataset("digits", split="test").inputs(range(500)).roll(-arguments.first, 0)
    for name in ("digits_contrastive", "digits_robust", "digits_supervised", "digits_untrained"):
        yield from (Setting(name, rt.encoder(name), digits, epsilon) for epsilon in (0.02, 0.1))
    photos = rt.dataset("photos", size=arguments.size)
    inputs = photos.inputs(range(min(len(photos), max(300, arguments.attacked)))).roll(-arguments.first, 0)
    yield from (Setting("efficientnet_lite0", rt.encoder("efficientnet_lite0"), inputs, epsilon) for epsilon in (1 / 255, 0.05))


def singles(epsilon: float, budget: int) -> dict[str, tuple[Attack, str]]:
    """Return what the ensemble is compared with: each attack, and the divergence that it is given."""
    iterated = {"epsilon": epsilon, "steps": budget}
    return {
        "u_fgsm": (rt.attack("u_fgsm", epsilon=epsilon), "l2"),
        "u_bim": (rt.attack("u_bim", **iterated), "l2"),
        "u_pgd, step 0.001": (rt.attack("u_pgd", step=0.001, **iterated), "l2"),
        "u_pgd": (rt.attack("u_pgd", **iterated), "l2"),
        "u_mi_pgd": (rt.attack("u_mi_pgd", **iterated), "l2"),
        "u_mi_pgd on cosine": (rt.attack("u_mi_pgd", **iterated), "cosine"),
    }


def damage(traces: Sequence[Trace], name: str, bank: rt.Bank, context: Context) -> Tensor:
    """Return the damage of the worst of some traces, [pairs] or [samples]."""
    entry, options, best = MEASURES[name]
    metric = rt.metric(entry, **options)
    if name in PAIRS:  # the measure is made of the traces that come nearest to their targets
        nearest = torch.stack([trace.divergence for trace in traces]).argmin(0)
        adversarial = torch.stack([trace.adversarial for trace in traces])[nearest, torch.arange(len(nearest))]
        traces = [replace(traces[0], adversarial=adversarial)]
    values = torch.stack([metric(trace, bank, context).double() for trace in traces])
    harm = values if best is None else 1 - values if best == 1 else 1 + values
    return harm.amax(0)


def attacked(
    setting: Setting, attacks: Mapping[str, tuple[Attack, str]], aim: str, bank: rt.Bank, count: int, batch: int
) -> dict[str, Trace]:
    inputs = setting.inputs[:count]
    partner = torch.arange(count) ^ 1
    traces = {}
    for name, (attack, divergence) in attacks.items():
        if aim not in aims_of(attack):
            continue
        began = time.process_time()
        trace = rt.perturb(
            attack,
            setting.encoder,
            inputs,
            targets=inputs[partner] if aim == "target" else None,
            divergence=divergence,
            ids=range(count),
            bank=bank,
            batch=batch,
        )
        anchor = trace.clean if aim == "away" else trace.targets
        traces[name] = replace(
            trace, partner=partner if aim == "target" else None, divergence=l2(anchor.double(), trace.adversarial.double())
        )
        print(
            f"  {aim:6} {name:20} mean l2 {traces[name].divergence.mean():8.3f}   {trace.forwards // count} forward, {trace.backwards // count} "
            f"backward passes a sample, {time.process_time() - began:.0f} s",
            flush=True,
        )
    return traces


def interval(above: Tensor, below: Tensor) -> tuple[float, float, float]:
    """Return the ratio of two means and its 95 % interval: pairs of samples are drawn again, 2,000 times."""
    first, second = above.numpy(), below.numpy()
    unit = first.reshape(-1, 2) if len(first) % 2 == 0 else first[:, None]
    other = second.reshape(unit.shape)
    rows = stream(0, "bootstrap").integers(len(unit), size=(2000, len(unit)))
    drawn = unit[rows].mean((1, 2)) / np.maximum(other[rows].mean((1, 2)), 1e-12)
    if not second.any():  # nothing was done by either, or something by the first alone
        return (np.inf,) * 3 if first.any() else (1.0,) * 3
    return first.mean() / second.mean(), *np.quantile(drawn, [0.025, 0.975])


def compare(setting: Setting, arguments: argparse.Namespace) -> None:
    count, budget = arguments.attacked, arguments.budget
    print(
        f"\n{setting.name}, epsilon {setting.epsilon:.4g}, {count} samples of {list(setting.inputs.shape[1:])}, bank {len(setting.inputs)}, budget {budget}"
    )
    bank = rt.Bank(rt.represent(setting.encoder, setting.inputs))
    context = Context(encoder=setting.encoder, divergence=l2, random=SampleRandom.of(0, range(count)))
    suite = rt.attack("ensemble", epsilon=setting.epsilon, budget=budget)
    members = {f"ensemble/{name}": (attack, "l2") for name, attack in suite.members.items()}
    alone = singles(setting.epsilon, budget)
    for aim in arguments.aims:
        traces = attacked(setting, alone | members, aim, bank, count, arguments.batch)
        mine = [trace for name, trace in traces.items() if name in members]
        for name, (entry, _, _) in MEASURES.items():
            if rt.metric(entry).aim != aim:
                continue
            worst = damage(mine, name, bank, context)
            each = {label: damage([trace], name, bank, context) for label, trace in traces.items()}
            best = max(each, key=lambda label: each[label].mean())
            rival = max(alone, key=lambda label: each[label].mean())
            ratio, low, high = interval(worst, each[best])
            print(
                f"    {name:30} ensemble {worst.mean():9.4f}   best of all {each[best].mean():9.4f} ({best}), of single attacks "
                f"{each[rival].mean():9.4f} ({rival})   ratio {ratio:.3f} [{low:.3f}, {high:.3f}] {'ok' if ratio >= 0.98 else 'MISSED'}",
                flush=True,
            )
        if aim == "away":
            step = traces["ensemble/apgd"].divergence
            for name, target in (("u_pgd, step 0.001", 1.5), ("u_pgd", 1.1), ("u_mi_pgd", 0)):
                ratio, low, high = interval(step, traces[name].divergence)
                aimed = f" (target on efficientnet_lite0 at epsilon 0.05: {target})" if target else ""
                print(f"    u_apgd moves {ratio:.3f} [{low:.3f}, {high:.3f}] times as far as {name}{aimed}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=50, help="gradient calls for each thing that is climbed")
    parser.add_argument("--attacked", type=int, default=64, help="an even number of samples")
    parser.add_argument("--first", type=int, default=0, help="the first sample that is attacked")
    parser.add_argument("--size", type=int, default=224, help="of the photos' crops")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--setting", default="", help="only encoders whose name holds this")
    parser.add_argument("--aims", nargs="+", choices=AIMS, default=AIMS)
    parser.add_argument("--epsilon", type=float, help="only this one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for setting in settings(arguments):
        if arguments.setting in setting.name and (arguments.epsilon is None or abs(setting.epsilon - arguments.epsilon) < 1e-4):
            compare(setting, arguments)


if __name__ == "__main__":
    main()

"""What a run of each PGD costs, as a ratio to the bare passes that it cannot do without.

Bare: the clean pass, one forward and one input-gradient pass a step, the final pass; weights frozen; no sign, no projection, no checks. Its
passes are run one by one just before those of the attack, so that both see the same machine: a ratio is one run of both in lockstep, in CPU
seconds. Foolbox is compared where it is installed (pip install foolbox==3.3.4) and is no dependency of anything.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import rt_core as rt
from rt_core.encoders import Encoder
from rt_core.randomness import SampleRandom
from rt_core.traces import Batch

EPSILON = 0.05


@dataclass(frozen=True)
class Setting:
    """An encoder with inputs, and how often its attacks run; ``prepare`` is what the encoder does before its network, by hand."""

    name: str
    encoder: Encoder
    inputs: Tensor
    prepare: Callable[[Tensor], Tensor]
    own_runs: int
    peer_runs: int


@dataclass(frozen=True)
class FoolboxPGD:
    """Foolbox's LinfPGD, whose loss is replaced by the divergence: it has a hook for that, and none for the pass that looks for success."""

    epsilon: float
    step: float
    steps: int

    def __call__(self, encoder: Encoder, batch: Batch, divergence: Any, *, random: SampleRandom) -> Tensor:
        import eagerpy
        import foolbox

        class Climb(foolbox.attacks.LinfPGD):
            def get_loss_fn(self, model: Any, labels: Any) -> Callable[[Any], Any]:
                return lambda inputs: eagerpy.astensor(divergence(batch.anchor, model(inputs.raw)).sum())

        climb = Climb(abs_stepsize=self.step, steps=self.steps)
        _, moved, _ = climb(
            foolbox.PyTorchModel(encoder, bounds=(0, 1)),
            batch.inputs,
            torch.zeros(len(batch.inputs), dtype=torch.long),
            epsilons=self.epsilon,
        )
        return moved


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def settings() -> Iterator[Setting]:
    inputs = torch.rand(256, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    yield Setting("small CNN", Encoder(small_cnn(), name="small"), inputs, prepare=lambda inputs: inputs, own_runs=3, peer_runs=2)
    yield Setting(
        "efficientnet_lite0",
        rt.encoder("efficientnet_lite0"),
        rt.dataset("photos", size=224).inputs(range(16)),
        prepare=lambda inputs: ((inputs - 127 / 255) / (128 / 255)).contiguous(memory_format=torch.channels_last),
        own_runs=2,
        peer_runs=1,
    )


def bare_passes(setting: Setting, steps: int) -> Iterator[None]:
    """Do the passes one by one, one each time that the iterator is advanced."""
    network, inputs = setting.encoder.module, setting.inputs
    with torch.no_grad():
        clean = network(setting.prepare(inputs))
    yield
    moved = inputs + (torch.rand_like(inputs) * 2 - 1) * EPSILON
    for _ in range(steps):
        with torch.enable_grad():
            moved.requires_grad_()
            torch.autograd.grad(torch.linalg.vector_norm(network(setting.prepare(moved)) - clean, dim=1).sum(), moved)
        moved = moved.detach()
        yield
    with torch.no_grad():
        network(setting.prepare(moved))
    yield


def in_lockstep(setting: Setting, attack: Any, steps: int) -> tuple[float, tuple[int, int]]:
    """Run an attack with a bare pass before each of its own; return its CPU time over theirs, and its forward and backward passes."""
    bare, spent, inside = bare_passes(setting, steps), 0.0, False

    def advance(module: nn.Module, arguments: Any) -> None:
        nonlocal spent, inside
        if inside:  # a bare pass itself
            return
        inside, began = True, time.process_time()
        next(bare, None)
        inside, spent = False, spent + time.process_time() - began

    with setting.encoder.in_use():
        handle = setting.encoder.module.register_forward_pre_hook(advance)
        try:
            began = time.process_time()
            trace = rt.perturb(attack, setting.encoder, setting.inputs, batch=len(setting.inputs))
            total = time.process_time() - began
        finally:
            handle.remove()
    if next(bare, "none left") != "none left":
        raise RuntimeError("the attack made fewer passes than the bare ones, so nothing is compared")
    return (total - spent) / spent, (trace.forwards // len(setting.inputs), trace.backwards // len(setting.inputs))


def pgds(steps: int) -> dict[str, Callable[[], Any]]:
    step = 2.5 * EPSILON / steps
    return {
        "u_pgd": lambda: rt.attack("u_pgd", epsilon=EPSILON, step=step, steps=steps),
        "torchattacks PGD": lambda: rt.attack("torchattacks", attack="PGD", eps=EPSILON, alpha=step, steps=steps),
        "ART PGD": lambda: rt.attack(
            "art", attack="ProjectedGradientDescentPyTorch", eps=EPSILON, eps_step=step, max_iter=steps, num_random_init=1
        ),
        "foolbox LinfPGD": lambda: FoolboxPGD(EPSILON, step, steps),
    }


def row(setting: Setting, name: str, steps: int) -> str:
    """Measure one attack, or say why it cannot be."""
    try:
        in_lockstep(replace(setting, inputs=setting.inputs[:2]), pgds(1)[name](), 1)  # imports, and the first pass of a process, are slow
        runs = [in_lockstep(setting, pgds(steps)[name](), steps) for _ in range(setting.own_runs if name == "u_pgd" else setting.peer_runs)]
    except ImportError as error:
        return f"{name:18} not installed ({error}); foolbox: pip install foolbox==3.3.4"
    except Exception as error:
        return f"{name:18} does not run under torch {torch.__version__}: {type(error).__name__}: {error}"
    ratios = [ratio for ratio, _ in runs]
    return f"{name:18} {statistics.median(ratios):7.3f} {min(ratios):7.3f} {max(ratios):7.3f} {len(runs):5} {runs[0][1]!s:>20}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--setting", help="only the one whose name holds this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for setting in settings():
        if arguments.setting and arguments.setting not in setting.name:
            continue
        print(
            f"\n{setting.name}, {' x '.join(map(str, setting.inputs.shape))}, {arguments.steps} steps, torch {torch.__version__}, 1 thread"
        )
        print(
            f"{'attack':18} {'of bare':>7} {'lowest':>7} {'highest':>7} {'runs':>5} {'forwards, backwards':>20}   (target for u_pgd: 1.05)"
        )
        print(f"{'bare passes':18} {1:7.3f} {'':21} {(arguments.steps + 1, arguments.steps)!s:>20}   (and the clean pass, in all rows)")
        for name in pgds(arguments.steps):
            print(row(setting, name, arguments.steps), flush=True)


if __name__ == "__main__":
    main()

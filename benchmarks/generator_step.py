"""What a search through a generator costs, as a ratio to the bare passes that it cannot do without.

Bare: the clean pass, one forward pass of generator and victim and one gradient back to the first layer that is perturbed a step, and two last
passes; weights frozen; nothing added to any activation, no scales, no projection, no checks. By hand: the same, and a perturbation is added
to every activation of the group and has its gradient taken, which no search can do without, and nothing else. Their passes are run one by one
just before those of the search, so that both see the same machine: a ratio is one run of both in lockstep, in CPU seconds. The goal is one that
is never reached, so that every step is one of the whole batch. A row is a group of layers, or all layers at once.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rt_core.encoders import Encoder
from rt_generator_perturbations import Generator, TargetClass, classifier, search


@dataclass(frozen=True)
class Never(TargetClass):
    """A target that stays out of reach."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) + 1e6


class Convolutions(nn.Module):
    """A generator like a small Progressive GAN: 32 x 32, without classes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.start = nn.Linear(32, width * 16)
        grown = [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2, inplace=True)]
        self.blocks = nn.ModuleList(nn.Sequential(*grown) for _ in range(3))
        self.end = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        maps = self.start(latents).unflatten(1, (-1, 4, 4))
        for block in self.blocks:
            maps = block(maps)
        return self.end(maps).tanh()


@dataclass(frozen=True)
class Setting:
    """A generator with a victim, how many images at a time, and how the generator's output becomes an image in [0, 1]."""

    name: str
    generator: Generator
    victim: Encoder
    batch: int


def settings() -> Iterator[Setting]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.ReLU()]
    victim = classifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), name="small CNN")
    yield Setting("convolutions 32 x 32", Generator(Convolutions(), latent=(32,), layers=["start", "blocks.*"]), victim, batch=32)
    from rt_generator_perturbations import digits_classifier, digits_generator

    yield Setting("digits 16 x 16", digits_generator(), digits_classifier(), batch=64)


def bare_passes(
    setting: Setting, copies: tuple[nn.Module, nn.Module], layers: Sequence[str], steps: int, *, by_hand: bool
) -> Iterator[None]:
    """Do the passes one by one, one each time that the iterator is advanced."""
    generator, victim = copies
    drawn, shapes = setting.generator.draw(range(setting.batch)), setting.generator.shapes()
    given = [] if drawn.classes is None else [nn.functional.one_hot(drawn.classes, setting.generator.classes).float()]
    low, high = setting.generator.values or (0.0, 1.0)
    wanted = layers if by_hand else layers[:1]
    leaves: dict[str, Tensor] = {}

    def begin(layer: str, activation: Tensor) -> Tensor:
        """Return the activation with the leaf added, or as a leaf itself."""
        if not torch.is_grad_enabled():
            return activation
        if by_hand:
            return activation + leaves[layer]
        leaves[layer] = activation.detach().requires_grad_()
        return leaves[layer]

    for layer in wanted:
        if layer not in ("latent", "image"):
            generator.get_submodule(layer).register_forward_hook(lambda module, arguments, output, layer=layer: begin(layer, output))

    def logits() -> Tensor:
        images = generator(begin("latent", drawn.latents) if "latent" in wanted else drawn.latents, *given)
        images = (images - low) / (high - low)
        return victim(begin("image", images) if "image" in wanted else images)

    with torch.no_grad():
        logits()
    yield
    for _ in range(steps):
        with torch.enable_grad():
            if by_hand:
                leaves = {layer: torch.zeros(setting.batch, *shapes[layer], requires_grad=True) for layer in wanted}
            loss = logits().sum()
            torch.autograd.grad(loss, [leaves[layer] for layer in wanted])
        yield
    for _ in range(2):
        with torch.no_grad():
            logits()
        yield


def in_lockstep(setting: Setting, layers: Sequence[str], radii: int, *, by_hand: bool = False) -> float:
    """Run a search with a bare pass before each of its own; return its CPU time over theirs."""
    # Copies: what is hooked into the search's own networks must not see these passes.
    copies = tuple(copy.deepcopy(who.module).eval().requires_grad_(False) for who in (setting.generator, setting.victim))
    bare, spent, inside = bare_passes(setting, copies, layers, 3 * radii, by_hand=by_hand), 0.0, False

    def advance(module: nn.Module, arguments: Any) -> None:
        nonlocal spent, inside
        if inside:  # a bare pass itself
            return
        inside, began = True, time.process_time()
        next(bare, None)
        inside, spent = False, spent + time.process_time() - began

    generator, latents = setting.generator, setting.generator.draw(range(setting.batch))
    generator(latents)  # its first call looks at itself
    scales, labels = generator.scales(), torch.zeros(setting.batch, dtype=torch.long)
    limit = 0.01 * 1.1 ** (radii - 1) * (1 - 1e-9) if radii > 1 else 0.01
    schedule = {"start": 0.01, "limit": limit, "growth": 1.1, "steps_per_radius": 3, "refine": 0}
    with generator.in_use(), setting.victim.in_use():
        handle = generator.module.register_forward_pre_hook(advance)
        try:
            began = time.process_time()
            search(
                generator, setting.victim, latents, Never(), layers=layers, scales=scales, labels=labels, batch=setting.batch, **schedule
            )
            total = time.process_time() - began
        finally:
            handle.remove()
    if next(bare, "none left") != "none left":
        raise RuntimeError("the search made fewer passes than the bare ones, so nothing is compared")
    return (total - spent) / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--radii", type=int, default=6, help="three steps each (default: 6)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"a search costs, of ({arguments.repeats} runs; torch {torch.__version__}, 1 thread; target: 1.10)")
    print(f"{'':40} {'bare passes':^22} {'by hand':^22}\n{'':40}" + 2 * f" {'median':>7} {'lowest':>7} {'highest':>7}")
    for setting in settings():
        for name, layers in {**setting.generator.groups(), "all layers": setting.generator.layers}.items():
            figures = ""
            for by_hand in (False, True):
                in_lockstep(setting, layers, 1, by_hand=by_hand)  # the first passes of a process are slow
                ratios = [in_lockstep(setting, layers, arguments.radii, by_hand=by_hand) for _ in range(arguments.repeats)]
                figures += f" {statistics.median(ratios):7.3f} {min(ratios):7.3f} {max(ratios):7.3f}"
            print(f"{setting.name + ', ' + name:40}{figures}", flush=True)


if __name__ == "__main__":
    main()

"""What a step of each PGD costs, as a ratio to the bare passes, interleaved in one run.

Bare: the clean pass, one forward and one input-gradient pass a step, the final pass; weights frozen; no sign, no projection, no checks.
``make bench`` prints the median of the pairs' ratios and their spread; CPU seconds, since wall time on a shared machine says little.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

import rt_core as rt
from rt_core.encoders import Encoder


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def bare(encoder: Encoder, inputs: Tensor, epsilon: float, steps: int) -> None:
    network = encoder.module
    with torch.no_grad():
        clean = network(inputs)
    moved = inputs + (torch.rand_like(inputs) * 2 - 1) * epsilon
    for _ in range(steps):
        moved.requires_grad_()
        torch.autograd.grad(torch.linalg.vector_norm(network(moved) - clean, dim=1).sum(), moved)
        moved = moved.detach()
    with torch.no_grad():
        network(moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    epsilon, steps = 0.05, arguments.steps
    step = 2.5 * epsilon / steps
    encoder = Encoder(small_cnn(), name="small")
    inputs = torch.rand(arguments.batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    attacks = {
        "u_pgd": rt.attack("u_pgd", epsilon=epsilon, step=step, steps=steps),
        "torchattacks PGD": rt.attack("torchattacks", attack="PGD", eps=epsilon, alpha=step, steps=steps),
        "ART PGD": rt.attack(
            "art", attack="ProjectedGradientDescentPyTorch", eps=epsilon, eps_step=step, max_iter=steps, num_random_init=1
        ),
    }
    ratios: dict[str, list[float]] = {name: [] for name in attacks}
    passes = {}
    for pair in range(arguments.pairs + 1):
        for name, attack in attacks.items():
            with encoder.in_use():
                began = time.process_time()
                bare(encoder, inputs, epsilon, steps)
                between = time.process_time()
                trace = rt.perturb(attack, encoder, inputs, batch=len(inputs))
                ended = time.process_time()
            passes[name] = (trace.forwards // len(inputs), trace.backwards // len(inputs))
            if pair:  # the first pair warms up
                ratios[name].append((ended - between) / (between - began))
    print(f"small CNN, {arguments.batch} x 3 x 32 x 32, {steps} steps, {arguments.pairs} pairs, 1 thread\n")
    print(f"{'attack':18} {'of bare':>8} {'lowest':>8} {'highest':>8}   forwards, backwards (final pass counted, clean pass not)")
    for name, found in ratios.items():
        print(f"{name:18} {statistics.median(found):8.3f} {min(found):8.3f} {max(found):8.3f}   {passes[name]}")


if __name__ == "__main__":
    main()

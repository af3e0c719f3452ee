"""What a certificate costs over the bare passes of its draws, beside ART's on the same network: CPU seconds and ratios of one run.

The bare pass sends as many inputs through encoder and probe, in the faster of batches of 64 and 1,024, noisy already: the least that
any implementation takes. Noise is what drawing it takes alone. Every number is the best of ``--repeats``.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

import rt_core as rt
from rt_core import SampleRandom
from rt_linear_probes.smoothing import RandomizedSmoothing

_SIGMA = 0.25


def best(repeats: int, call: Callable[[], Any]) -> float:
    """Return the least CPU seconds of a call, which other processes do not lengthen."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds)


def bare(network: nn.Module, one: Tensor, draws: int, size: int) -> None:
    inputs = one + _SIGMA * torch.randn(size, *one.shape)  # constant ones would be faster: pooling guesses right
    with torch.inference_mode():
        for first in range(0, draws, size):
            network(inputs[: draws - first]).argmax(1)


def noise(shape: tuple[int, ...], draws: int) -> None:
    random = SampleRandom.of(0, ["one"])
    for first in range(0, draws, 64):
        random.normal(f"noise/{first}", (min(64, draws - first), *shape))


def art(network: nn.Module, inputs: Tensor, classes: int, draws: int) -> Callable[[], Any]:
    """Return a call of ART's certify but for its last line, the bound, for which it needs statsmodels."""
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    smoothed = PyTorchRandomizedSmoothing(network, nn.CrossEntropyLoss(), tuple(inputs.shape), classes, device_type="cpu", scale=_SIGMA)
    one = inputs.numpy()
    return lambda: (smoothed._prediction_counts(one, n=100, batch_size=64), smoothed._prediction_counts(one, n=draws - 100, batch_size=64))


def row(name: str, network: nn.Module, inputs: Tensor, classes: int, draws: int, repeats: int) -> str:
    smoothing, seeds = RandomizedSmoothing(sigma=_SIGMA, certify_draws=draws - 100), count()
    network.eval()
    least = min(best(repeats, partial(bare, network, inputs, draws, size)) for size in (64, 1024))
    drawn = best(repeats, lambda: noise(tuple(inputs.shape), draws))
    ours = best(repeats, lambda: smoothing.certify(network, inputs[None], seed=next(seeds)))
    theirs = best(repeats, art(network, inputs, classes, draws))
    seconds = "".join(f"{value:>9.2f}" for value in (least, drawn, ours, theirs))
    return f"{name:<36}{draws:>7}{seconds}{ours / least:>9.2f}{ours / (least + drawn):>14.2f}{theirs / least:>9.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="of the digits encoder; a twentieth of them of the ResNet")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digits = rt.encoder("digits_contrastive")
    picture = torch.full((1, 16, 16), 0.5)
    probe = nn.Linear(digits(picture[None]).shape[1], 10)
    resnet = resnet18(num_classes=10)
    heads = (
        f"{'network':<36}{'draws':>7}{'bare s':>9}{'noise s':>9}{'rt s':>9}{'ART s':>9}{'rt/bare':>9}{'rt/bare+noise':>14}{'ART/bare':>9}"
    )
    print(heads)
    print(row("digits_contrastive 1x16x16, probe", nn.Sequential(digits, probe), picture, 10, arguments.draws, arguments.repeats))
    print(row("ResNet-18 3x96x96", resnet, torch.full((3, 96, 96), 0.5), 10, max(arguments.draws // 20, 200), arguments.repeats))


if __name__ == "__main__":
    main()

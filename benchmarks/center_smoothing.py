"""What center smoothing costs beside the passes that it cannot do without, and the memory that the search for the center takes.

``certify`` at reduced draws alternates with as many bare forward passes in batches of the same size, and with the passes on noisy copies alone, whose noise is
no part of this plugin. Each way of the search runs in a process of its own, so that its peak is its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CENTER, CERTIFY, INPUTS = 5_000, 10_000, 2
SEARCHES = ((10_000, 64, None), (10_000, 2_048, None), (10_000, 2_048, 30))  # points, dim, candidates
CEILING = 600  # MiB above the points


def certify() -> None:
    """Print the seconds of certificates, of noisy and of bare passes, round by round."""
    import torch

    import rt_core as rt
    from rt_center_smoothing import CenterSmoothing
    from rt_core.randomness import SampleRandom
    from rt_core.smoothing import Draws

    torch.set_num_threads(1)
    encoder, inputs = rt.encoder("digits_contrastive"), rt.dataset("digits").inputs(range(INPUTS))
    smoothing = CenterSmoothing(sigma=0.25, input_radius=0.25, center_draws=CENTER, certify_draws=CERTIFY)

    def bare() -> None:
        with encoder.in_use(), torch.no_grad():
            for one in inputs:
                many = one + 0.25 * torch.randn(1024, *one.shape)  # equal inputs are cheaper to pool
                for start in range(0, smoothing.passes[0], 1024):
                    encoder(many[: smoothing.passes[0] - start])

    def noisy() -> None:
        for row, one in enumerate(inputs):
            draws = Draws(encoder, one, SampleRandom.of(0, [row]), sigma=0.25)
            for purpose, count in (("center", CENTER), ("check", CENTER), ("certify", CERTIFY)):
                for _ in draws.chunks(purpose, count):
                    pass

    bare()
    seconds = {"bare": timed(bare), "noisy": timed(noisy), "certify": timed(lambda: smoothing.certify(encoder, inputs))}
    print(json.dumps(seconds))


def search(points: int, dim: int, candidates: int | None) -> None:
    """Print the seconds of one search for the center, of the product it rests on, and the memory above the points in MiB."""
    import torch

    from rt_center_smoothing import minimum_enclosing_center

    torch.set_num_threads(1)
    rows = torch.randn(points, dim, generator=torch.Generator().manual_seed(0)).add_(5)
    minimum_enclosing_center(rows[:500], candidates=candidates)
    before = held()
    seconds = timed(lambda: minimum_enclosing_center(rows, candidates=candidates))
    above = (peak() - before) / 1024

    def product() -> None:
        exact = rows.double()
        for block in exact[:candidates].split(256):
            block @ exact.T

    print(json.dumps({"seconds": seconds, "above": above, "product": timed(product)}))


def timed(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def peak() -> int:
    """Return the most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def held() -> int:
    """Return the memory that this process has now, in KiB; where only the peak is to be had, that."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmRSS:")[1].split()[0]) if status.exists() else peak()


def in_process(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way == ["certify"]:
        certify()
        return
    if arguments.way:
        search(*(None if one == "None" else int(one) for one in arguments.way))
        return
    rounds = [in_process("--way", "certify") for _ in range(arguments.rounds)]
    print(f"{INPUTS} inputs of digits_contrastive, {2 * CENTER + CERTIFY:,} passes each, {len(rounds)} rounds, 1 thread")
    print(f"{'way':24} {'CPU s':>7} {'of bare':>8} {'lowest':>7} {'highest':>7}")
    for way, name in (("bare", "bare passes"), ("noisy", "the same on noisy copies"), ("certify", "CenterSmoothing.certify")):
        ratios = [found[way] / found["bare"] for found in rounds]
        spread = f"{statistics.median(ratios):8.2f} {min(ratios):7.2f} {max(ratios):7.2f}"
        print(f"{name:24} {statistics.median(found[way] for found in rounds):7.2f} {spread}")
    print(f"\nthe search for the center, 1 thread   (ceiling: {CEILING} MiB above the points)")
    print(f"{'points x dim':24} {'CPU s':>7} {'of product':>10} {'MiB above':>9}")
    for points, dim, candidates in SEARCHES:
        found = in_process("--way", points, dim, candidates)
        name = f"{points:,} x {dim:,}" + (f", {candidates} candidates" if candidates else "")
        print(f"{name:24} {found['seconds']:7.2f} {found['seconds'] / found['product']:10.2f} {found['above']:9.0f}")


if __name__ == "__main__":
    main()

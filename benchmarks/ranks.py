"""Exact ranks and pair quantiles on a bank of 10,000 x 2,048: time against the bare matrix product, peak memory above the bank.

The product form cannot do without one float64 product of the queries (or of all pairs, once each) with the bank: that is the limit. Each way
runs in a process of its own, so that its peak is its own; the first process imports nothing large, since a child inherits a peak.
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

BANK, DIM, QUERIES = 10_000, 2_048, 1_000
CEILING = 1.0  # GiB above the bank

# name: (task, what it is)
WAYS = {
    "matmul float64": ("breakaway", "the limit: the product alone"),
    "rt closer_counts": ("breakaway", "exact"),
    "torch.cdist float64": ("breakaway", "product form, nothing decided again"),
    "torch.cdist float32": ("breakaway", "product form, nothing decided again"),
    "scipy cdist float64": ("breakaway", "direct form, a tenth of the queries, taken ten times"),
    "matmul of pairs": ("quantiles", "the limit: the products alone, each pair once"),
    "sort of pairs": ("quantiles", "the products, kept and sorted, nothing decided again"),
    "rt pair_quantiles": ("quantiles", "exact"),
}


def measure(way: str) -> dict[str, Any]:
    """Do one way of one task, in this process."""
    import numpy as np
    import torch

    import rt_core as rt

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    # Representations with a mean far from zero, as those behind a ReLU have.
    rows = torch.randn(BANK, DIM, generator=random).add_(5)
    own, exclude = rows[:QUERIES], torch.arange(QUERIES)
    queries = torch.randn(QUERIES, DIM, generator=random).add_(5)  # no nearer to their own than to others, so that counts are of any size
    values = torch.linspace(55, 75, 1_000, dtype=torch.float64)
    torch.randn(256, 256).double() @ torch.randn(256, 256).double()  # the first product is slow
    bank = rt.Bank(rows)
    before, began, answer = _held(), time.process_time(), None
    if way == "matmul float64":
        moving = queries.double()
        for block in rows.split(1024):
            moving @ block.double().T
    elif way == "rt closer_counts":
        answer = bank.closer_counts(queries, own, exclude)
    elif way.startswith("torch.cdist"):
        wanted = torch.float64 if way.endswith("64") else torch.float32
        limit = torch.linalg.vector_norm(queries.to(wanted) - own.to(wanted), dim=1, keepdim=True)
        closer = torch.cdist(queries.to(wanted), rows.to(wanted), compute_mode="use_mm_for_euclid_dist") < limit
        closer[exclude, exclude] = False
        answer = closer.sum(1)
    elif way == "scipy cdist float64":
        from scipy.spatial.distance import cdist

        began = time.process_time()
        cdist(queries[: QUERIES // 10].double().numpy(), rows.double().numpy())
    elif way in ("matmul of pairs", "sort of pairs"):
        pairs, filled = np.empty(BANK * (BANK - 1) // 2 if way == "sort of pairs" else 0), 0
        for first in range(0, BANK, 1024):
            block = rows[first : first + 1024].double()
            for second in range(first, BANK, 1024):
                product = block @ rows[second : second + 1024].double().T
                if len(pairs):
                    part = product[torch.ones_like(product, dtype=torch.bool).triu_(1)] if first == second else product.flatten()
                    pairs[filled : filled + len(part)] = part.numpy()
                    filled += len(part)
        pairs.sort()
    else:
        bank.pair_quantiles(values)
    seconds, above = time.process_time() - began, (_peak() - before) / 2**20
    scale = 10 if way == "scipy cdist float64" else 1
    return {"seconds": seconds * scale, "above": above, "answer": None if answer is None else answer.tolist()}


def _peak() -> int:
    """Return the most memory that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def _held() -> int:
    """Return the memory that this process has now, in KiB; where only the peak is to be had, that."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmRSS:")[1].split()[0]) if status.exists() else _peak()


def _in_process(way: str) -> dict[str, Any]:
    found = subprocess.run([sys.executable, __file__, "--way", way], check=True, capture_output=True, text=True).stdout
    return json.loads(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="each goes through all ways")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.way)))
        return
    rounds = [{way: _in_process(way) for way in WAYS} for _ in range(arguments.rounds)]
    right = rounds[0]["rt closer_counts"]["answer"]
    for task, limit, what in (
        ("breakaway", "matmul float64", f"breakaway of {QUERIES:,} queries"),
        ("quantiles", "matmul of pairs", f"all {BANK * (BANK - 1) // 2:,} pair quantiles"),
    ):
        print(f"\n{what} on a bank of {BANK:,} x {DIM:,}, {len(rounds)} rounds, 1 thread")
        print(f"{'way':20} {'CPU s':>7} {'of limit':>8} {'lowest':>7} {'highest':>7} {'GiB above':>9}  note   (ceiling: {CEILING:g} GiB)")
        for way in (way for way, (of, _) in WAYS.items() if of == task):
            ratios = [found[way]["seconds"] / found[limit]["seconds"] for found in rounds]
            seconds = statistics.median(found[way]["seconds"] for found in rounds)
            above, answer = max(found[way]["above"] for found in rounds), rounds[0][way]["answer"]
            wrong = (
                "" if answer is None else f"; {sum(one != other for one, other in zip(answer, right, strict=True))} counts differ from rt's"
            )
            spread = f"{statistics.median(ratios):8.2f} {min(ratios):7.2f} {max(ratios):7.2f}"
            print(f"{way:20} {seconds:7.2f} {spread} {above:9.2f}  {WAYS[way][1]}{wrong}")


if __name__ == "__main__":
    main()

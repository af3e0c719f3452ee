"""What ``rt_core.run`` costs beside the encoders and the attacks: the digits demo with more steps, in CPU seconds, and where they go.

Each named function is timed from the outside, without what other named ones take inside it; what nothing names is the loop itself. The
rehearsal, in which libraries are imported, is shown apart. The demo's 20 steps an attack are made more, and nothing else is changed.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import rt_core as rt
from rt_core import blocks, demos, diagnosis, execution, perturbing, registry, store
from rt_core.datasets import Samples
from rt_core.encoders import Encoder
from rt_core.results import Results

TARGET = 0.05
_EPSILON = 0.1  # the demo's
_PAID_FOR = ("encoder", "attack")  # what a run is for; the rest is overhead
_APART = "rehearsal"


class Clock:
    """CPU seconds by section: at any moment they go to the innermost one, but all of the encoder, an attack and the rehearsal is theirs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open = ["loop and frames"]
        self._since = time.process_time()

    def timed(self, section: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self._open[-1] in (*_PAID_FOR, _APART):
                return function(*arguments, **options)
            self._turn()
            self._open.append(section)
            try:
                return function(*arguments, **options)
            finally:
                self._turn()
                self._open.pop()

        return call

    def stop(self) -> dict[str, float]:
        self._turn()
        return dict(self.seconds)

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


def named(plan: rt.Evaluation) -> list[tuple[str, Any, str]]:
    """Return (section, owner, name) of all that is timed by itself."""
    attacks = {type(attack) for attack in plan.made_attacks().values()}
    metrics = {type(metric) for metric in plan.made_metrics().values()}
    return [
        (_APART, execution, "_rehearse"),
        ("encoder", Encoder, "forward"),
        *[("attack", kind, "__call__") for kind in attacks],
        *[("metrics", kind, "__call__") for kind in metrics],
        ("reading", Samples, "inputs"),
        *[("checks", module, "check_inputs") for module in (blocks, execution, perturbing)],
        ("checks", perturbing, "_checked"),
        ("checks", execution, "_near_duplicates"),
        ("making encoders, fingerprints", registry.Use, "make"),
        ("making encoders, fingerprints", execution, "_about"),
        ("measuring, traces", perturbing, "_trace"),
        ("randomness", perturbing.SampleRandom, "select"),
        ("keys", blocks, "attack_key"),
        ("keys", blocks, "metric_key"),
        ("keys", execution, "attack_key"),
        ("keys", execution, "metric_key"),
        ("keys", execution, "fingerprint_of"),
        ("diagnosis", diagnosis, "diagnose"),
        ("notes", execution, "note_frame"),
        ("store: blocks", store.Store, "load"),
        ("store: blocks", store.Store, "save"),
        ("store: results", Results, "added_to"),
        ("store: results", Results, "save"),
        ("statistics", Results, "table"),
    ]


def scaled(steps: int) -> rt.Evaluation:
    """Return the demo's plan with that many steps an attack."""
    plan = demos.digits_plan()
    attacks = {}
    for label, used in plan.attacks.items():
        options = dict(used.options)
        options |= {name: steps for name in ("steps", "max_iter") if name in options}
        options |= {name: 2.5 * _EPSILON / steps for name in ("step", "alpha", "eps_step") if name in options}
        attacks[label] = rt.use(used.name, **options)
    return replace(plan, attacks=attacks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = scaled(arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        patches = [mock.patch.object(owner, name, clock.timed(section, getattr(owner, name))) for section, owner, name in named(plan)]
        for patch in patches:
            patch.start()
        try:
            began = time.monotonic()
            results = rt.run(plan, store=Path(folder) / "run", device="cpu", progress=False)
            results.table()
            wall = time.monotonic() - began
        finally:
            for patch in reversed(patches):
                patch.stop()
        seconds = clock.stop()
    apart = seconds.pop(_APART, 0.0)
    total = sum(seconds.values())
    overhead = {section: spent for section, spent in seconds.items() if section not in _PAID_FOR}
    print(
        f"digits demo at {arguments.steps} steps an attack: {wall:.0f} s, of CPU {total:.1f} s and {apart:.1f} s of rehearsal, 1 thread\n"
    )
    for section in (*_PAID_FOR, *sorted(overhead, key=lambda section: -overhead[section])):
        print(f"{section:32} {seconds[section]:8.2f} s {seconds[section] / total:7.2%}")
    without = total - seconds.get("statistics", 0.0)
    of_run = without - sum(seconds.get(section, 0.0) for section in _PAID_FOR)
    print(f"\n{'overhead of run':32} {of_run:8.2f} s {of_run / without:7.2%}   (target: {TARGET:.0%})")
    print(f"{'overhead with the table':32} {sum(overhead.values()):8.2f} s {sum(overhead.values()) / total:7.2%}")


if __name__ == "__main__":
    main()

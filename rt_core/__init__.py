"""The robustness toolkit for representation encoders; every public name is imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rt_core import divergences, statistics
    from rt_core.encoders import Encoder
    from rt_core.entries import AttackEntry, DatasetEntry, EncoderEntry, MetricEntry
    from rt_core.errors import (
        AmbiguousName,
        AttackViolation,
        EncoderError,
        IntegerInputs,
        InvalidInputs,
        MissingLabels,
        OutputError,
        PlanError,
        PluginError,
        PluginWarning,
        RobustnessWarning,
        RtError,
        ShapeError,
        StoreError,
        UnknownName,
    )
    from rt_core.evaluation import Evaluation
    from rt_core.execution import run
    from rt_core.hookspecs import hookimpl
    from rt_core.neighbors import Bank
    from rt_core.perturbing import perturb, represent
    from rt_core.randomness import SampleRandom
    from rt_core.registry import attack, dataset, encoder, installed, metric, register, use
    from rt_core.results import Results
    from rt_core.traces import Attempt, Ball, Batch, Suite, Trace

    __version__: str

# Type checkers and readers want these literally, here and above; tests/core/test_seam.py keeps the lists equal.
__all__ = [
    "AmbiguousName",
    "AttackEntry",
    "AttackViolation",
    "Attempt",
    "Ball",
    "Bank",
    "Batch",
    "DatasetEntry",
    "Encoder",
    "EncoderEntry",
    "EncoderError",
    "Evaluation",
    "IntegerInputs",
    "InvalidInputs",
    "MetricEntry",
    "MissingLabels",
    "OutputError",
    "PlanError",
    "PluginError",
    "PluginWarning",
    "Results",
    "RobustnessWarning",
    "RtError",
    "SampleRandom",
    "ShapeError",
    "StoreError",
    "Suite",
    "Trace",
    "UnknownName",
    "__version__",
    "attack",
    "dataset",
    "divergences",
    "encoder",
    "hookimpl",
    "installed",
    "metric",
    "perturb",
    "register",
    "represent",
    "run",
    "statistics",
    "use",
]

_SUBMODULES = {"divergences", "statistics"}
_HOMES = {
    "encoders": ["Encoder"],
    "entries": ["AttackEntry", "DatasetEntry", "EncoderEntry", "MetricEntry"],
    "evaluation": ["Evaluation"],
    "execution": ["run"],
    "hookspecs": ["hookimpl"],
    "neighbors": ["Bank"],
    "perturbing": ["perturb", "represent"],
    "randomness": ["SampleRandom"],
    "registry": ["attack", "dataset", "encoder", "installed", "metric", "register", "use"],
    "results": ["Results"],
    "traces": ["Attempt", "Ball", "Batch", "Suite", "Trace"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"rt_core.{name}")
    if name == "__version__":
        value = import_module("rt_core.loading").core_version()
    elif name in __all__:  # what has no other home is an error or a warning
        value = getattr(import_module(f"rt_core.{_HOME.get(name, 'errors')}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next time is a plain look-up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

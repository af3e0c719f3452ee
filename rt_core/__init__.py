"""The robustness toolkit for representation encoders; every public name is imported when it is first asked for.

``__init__.pyi`` says the same to type checkers, and tests/core/test_seam.py keeps the two equal.
"""

from importlib import import_module
from typing import Any

_SUBMODULES = {"divergences", "statistics"}
_HOMES = {
    "checking": ["check"],
    "encoders": ["Encoder"],
    "entries": ["AttackEntry", "DatasetEntry", "DemoEntry", "EncoderEntry", "MetricEntry"],
    "evaluation": ["Evaluation"],
    "execution": ["run"],
    "hookspecs": ["hookimpl"],
    "neighbors": ["Bank"],
    "perturbing": ["perturb", "represent"],
    "randomness": ["SampleRandom"],
    "registry": ["attack", "dataset", "demo", "encoder", "installed", "metric", "register", "use"],
    "results": ["Results"],
    "traces": ["Attempt", "Ball", "Batch", "Suite", "Trace"],
    "transferring": ["transfer"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"rt_core.{name}")
    if name == "__all__":
        value: Any = sorted({*_HOME, *_SUBMODULES, *import_module("rt_core.errors").__all__, "__version__"})
    elif name == "__version__":
        value = import_module("rt_core.loading").core_version()
    elif name in _HOME:
        value = getattr(import_module(f"rt_core.{_HOME[name]}"), name)
    elif name in import_module("rt_core.errors").__all__:
        value = getattr(import_module("rt_core.errors"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next time is a plain look-up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})

"""For authors of plugins, and for our own tests: the contracts as named checks, and small encoders with known answers.

A whole test file of an attack:

    from rt_core.testing import parametrize_attack_checks
    from rt_noise import Noise

    @parametrize_attack_checks([Noise(epsilon=0.1)])
    def test_the_contract(attack, check):
        check(attack)
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rt_core.errors import PlanError, PluginError
from rt_core.loading import BY_HAND, GROUP, Item, normalize
from rt_core.registry import installed, make
from rt_core.testing.checks import ATTACK_CHECKS, ENCODER_CHECKS, METRIC_CHECKS
from rt_core.testing.examples import linear_encoder, read_example, tiny_encoder, tiny_inputs
from rt_core.traces import check_metric

__all__ = [
    "ATTACK_CHECKS",
    "ENCODER_CHECKS",
    "METRIC_CHECKS",
    "check_plugin",
    "linear_encoder",
    "parametrize_attack_checks",
    "parametrize_encoder_checks",
    "parametrize_metric_checks",
    "read_example",
    "tiny_encoder",
    "tiny_inputs",
]

Failures = Mapping[str, str] | Callable[[Any], Mapping[str, str]]

_NONE: Mapping[str, str] = {}
_HEAVY = ("torch", "pandas", "scipy", "matplotlib")
_LONGEST_SUMMARY = 100


def parametrize_attack_checks(attacks: Iterable[Any] | Mapping[str, Any], *, expected_failures: Failures = _NONE) -> Any:
    """Decorate ``def test(attack, check): check(attack)``, so that it runs once for each attack and check.

    attacks: a sequence, or a mapping from the label that test ids show. expected_failures: {name of a check: why it cannot hold}, or a
    function that gives it for an attack. A failure foreseen is strict: once the check passes, the test fails and the reason can go.

    Raises:
        ValueError: a name that no check has.
    """
    return _parametrized("attack", attacks, ATTACK_CHECKS, expected_failures)


def parametrize_metric_checks(metrics: Iterable[Any] | Mapping[str, Any], *, expected_failures: Failures = _NONE) -> Any:
    """Decorate ``def test(metric, check): check(metric)``; see ``parametrize_attack_checks``."""
    return _parametrized("metric", metrics, METRIC_CHECKS, expected_failures)


def parametrize_encoder_checks(
    encoders: Iterable[Any] | Mapping[str, Any],
    *,
    shape: Sequence[int] | Callable[[Any], Sequence[int]] = (3, 32, 32),
    expected_failures: Failures = _NONE,
) -> Any:
    """Decorate ``def test(encoder, check): check(encoder)``; see ``parametrize_attack_checks``.

    shape: of one input, or a function that gives it for an encoder.
    """
    return _parametrized("encoder", encoders, ENCODER_CHECKS, expected_failures, shape=shape)


def check_plugin(distribution: str, *, docs: str | Path | None = None) -> list[str]:
    """Return what is wrong with an installed plugin, a sentence each; none is none.

    Its entry points load without torch or pandas, its hooks answer, each factory can be imported, no other installed distribution gives
    an entry of the same name, metrics that can be made without options say how their numbers are read, summaries fit on a line, and,
    where ``docs`` names a file, each entry is mentioned there.

    Raises:
        PluginError: no distribution of that name is installed, or it has no entry point in ``rt_core.plugins``.
    """
    try:
        points = metadata.distribution(distribution).entry_points.select(group=GROUP)
    except metadata.PackageNotFoundError:
        raise PluginError(f"no distribution is named {distribution!r}; install it first (pip install -e .)") from None
    if not points:
        raise PluginError(
            f'{distribution} has no entry point in the group {GROUP!r}; add [project.entry-points."{GROUP}"] to pyproject.toml'
        )
    problems = [problem for point in points for problem in _check_import(point)]
    mine = [plugin for plugin in installed().plugins if normalize(plugin.distribution) == normalize(distribution)]
    problems += [plugin.explain() for plugin in mine if plugin.error is not None]
    clashes = installed().clashes()
    text = None if docs is None else Path(docs).read_text(encoding="utf-8")
    for item in installed().items:
        if normalize(item.plugin.distribution) != normalize(distribution):
            continue
        what, summary = f"{item.kind} {item.entry.name!r}", item.entry.summary
        try:
            item.entry.resolve()
        except Exception as error:  # a module may fail in any way while it is imported
            problems.append(f"{what} cannot be imported from {item.entry.factory!r}: {type(error).__name__}: {error}")
        else:
            problems += _check_reading(item) if item.kind == "metric" else []
        others = [
            name for name in clashes.get((item.kind, item.entry.name), ()) if name not in (item.full_name, f"{BY_HAND}/{item.entry.name}")
        ]
        if others:
            problems.append(f"{what} has the name of {', '.join(others)}, so that the bare name finds neither; give it another")
        if len(summary) > _LONGEST_SUMMARY or summary.endswith("."):
            problems.append(f"the summary of {what} is {summary!r}; at most {_LONGEST_SUMMARY} characters and no full stop fit into a list")
        if text is not None and item.entry.name not in text:
            problems.append(f"{what} is not mentioned in {docs}")
    return problems


def _check_import(point: metadata.EntryPoint) -> list[str]:
    code = f"import sys\nfrom importlib.metadata import EntryPoint\n{point!r}.load()\nprint(*sorted(set({_HEAVY!r}) & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"entry point {point.name!r} ({point.value}) does not load: {done.stderr.strip().splitlines()[-1]}"]
    heavy = done.stdout.split()
    return [f"entry point {point.name!r} imports {', '.join(heavy)}; give factories as strings, so that `rt list` stays quick"] * bool(
        heavy
    )


def _check_reading(item: Item) -> list[str]:
    try:
        check_metric(make("metric", item.full_name, {}), item.entry.name)
    except PlanError as error:
        return [str(error)]
    except ValueError:  # it needs an option, and cannot be known without
        return []
    except Exception as error:  # a factory may fail in any way
        return [f"metric {item.entry.name!r} cannot be made: {type(error).__name__}: {error}"]
    return []


def _parametrized(what: str, given: Any, checks: Sequence[Callable[..., None]], expected: Failures, **options: Any) -> Any:
    import pytest  # here, so that a plugin's own code may use the encoders without it

    labelled = given.items() if isinstance(given, Mapping) else [(getattr(one, "name", type(one).__name__), one) for one in given]
    known, cases = {check.__name__ for check in checks}, []
    for label, one in labelled:
        failures = expected(one) if callable(expected) else expected
        if unknown := set(failures) - known:
            raise ValueError(f"expected_failures names {', '.join(sorted(unknown))}; the checks are {', '.join(sorted(known))}")
        for check in checks:
            reason = failures.get(check.__name__)
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
            chosen = {name: option(one) if callable(option) else option for name, option in options.items()}
            cases.append(pytest.param(one, partial(check, **chosen), id=f"{label}-{check.__name__}", marks=marks))
    return pytest.mark.parametrize((what, "check"), cases)

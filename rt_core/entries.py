"""The records that plugins answer with: a name, one line of summary, and where the thing itself is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

__all__ = ["AttackEntry", "DatasetEntry", "DemoEntry", "EncoderEntry", "Entry", "MetricEntry"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a plugin provides, as a value.

    name: lower_snake_case; summary: one line; factory: ``"package.module:name"``, imported when someone asks for it, or the callable itself.

    Raises:
        ValueError: a name, summary or factory that is not of this form.
    """

    name: str
    summary: str
    factory: str | Callable[..., Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; an entry's name is lower_snake_case, such as 'u_pgd'")
        if not isinstance(self.summary, str) or not self.summary.strip() or "\n" in self.summary:
            raise ValueError(f"the summary of {self.name!r} is {self.summary!r}; it must be one line that says what {self.name} does")
        if not callable(self.factory) and not (isinstance(self.factory, str) and _PATH.fullmatch(self.factory)):
            raise ValueError(f"the factory of {self.name!r} is {self.factory!r}; write 'package.module:name' or give a callable")

    def resolve(self) -> Callable[..., Any]:
        """Return the factory, imported if need be.

        Raises:
            ImportError: the module cannot be imported.
            AttributeError: the module has no such name.
        """
        if callable(self.factory):
            return self.factory
        module, _, name = self.factory.partition(":")
        return getattr(import_module(module), name)


class AttackEntry(Entry):
    """An attack: ``factory(**options)`` is called as ``attack(encoder, batch, divergence, random=…)``."""

    __slots__ = ()


class MetricEntry(Entry):
    """A metric: ``factory(**options)`` is called as ``metric(trace, bank, context)`` and gives one number a row.

    What it says of its numbers: ``rt_core.traces.Metric``. A complete one: docs/first-plugin.md, "A metric".
    """

    __slots__ = ()


class EncoderEntry(Entry):
    """An encoder: ``factory(**options)`` returns an ``rt_core.Encoder``."""

    __slots__ = ()


class DatasetEntry(Entry):
    """A dataset: ``factory(**options)`` returns anything that ``rt_core`` reads samples from."""

    __slots__ = ()


class DemoEntry(Entry):
    """What ``rt demo NAME`` runs: ``factory(store=…)`` returns ``Results``, and what is to be said beside their table, or ``""``."""

    __slots__ = ()

"""Entry points become plugins: each is loaded, registered and read alone, and a broken one is kept apart with its error."""

import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import pluggy

from rt_core import builtin, hookspecs
from rt_core.entries import AttackEntry, DatasetEntry, DemoEntry, EncoderEntry, Entry, MetricEntry
from rt_core.errors import PluginError, PluginWarning

__all__ = ["BY_HAND", "GROUP", "KINDS", "Item", "PluginInfo", "Plugins", "core_version", "normalize"]

GROUP = "rt_core.plugins"
KINDS: dict[str, type[Entry]] = {
    "attack": AttackEntry,
    "metric": MetricEntry,
    "encoder": EncoderEntry,
    "dataset": DatasetEntry,
    "demo": DemoEntry,
}
BY_HAND = "registered here"


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """A plugin that was found: where it came from, and the (kind, name) pairs it adds or the error that kept it out."""

    distribution: str
    version: str
    entry_point: str
    adds: tuple[tuple[str, str], ...] = ()
    error: Exception | None = None

    @property
    def key(self) -> str:
        """Return the name that the plugin is registered under."""
        return f"{self.distribution}:{self.entry_point}"

    @property
    def label(self) -> str:
        """Return distribution and version, as lists and messages write them."""
        return f"{self.distribution} {self.version}".strip()

    def explain(self) -> str:
        """Return a line that says who was left out and why."""
        reason = " ".join(str(self.error).split())
        return f"plugin {self.label} ({self.entry_point}) was left out: {type(self.error).__name__}: {reason}"


@dataclass(frozen=True, kw_only=True)
class Item:
    """An entry together with its kind and the plugin that it came from."""

    kind: str
    entry: Entry
    plugin: PluginInfo

    @property
    def full_name(self) -> str:
        """Return ``distribution/name``, which always finds this item."""
        return f"{self.plugin.distribution}/{self.entry.name}"


class Plugins:
    """Every installed plugin, in the one plugin manager: the core's own first, then the entry points by distribution and name.

    ``RT_PLUGINS=rt-noise,rt-core`` loads only these distributions; ``RT_STRICT_PLUGINS=1`` makes a broken plugin an error.

    plugins: all that were found, the broken ones too; items: what the others provide; selected: what RT_PLUGINS asks for, or None.

    Warns:
        PluginWarning: a plugin is broken, or RT_PLUGINS names one that is not installed.

    Raises:
        PluginError: the same, where RT_STRICT_PLUGINS is set.
    """

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self.plugins: list[PluginInfo] = []
        self.items: list[Item] = []
        self.selected = _selected(os.environ.get("RT_PLUGINS", ""))

        core = PluginInfo(distribution="rt-core", version=core_version(), entry_point="builtin")
        candidates = [(core, lambda: builtin), *_entry_points()]
        for info, load in candidates:
            if self.selected is None or normalize(info.distribution) in self.selected:
                self._admit_or_leave_out(info, load)
        for name in sorted(set(self.selected or ()) - {normalize(info.distribution) for info, _ in candidates}):
            _complain(f"RT_PLUGINS names {name}, and no installed distribution of that name has a plugin", None)

    def register(self, plugin: object) -> None:
        """Add a module or an object by hand; one that is there already, by hand or by its entry point, stays as it is.

        It replaces what was added by hand before and has an entry of the same name, so that a notebook's cell can be run again.

        Raises:
            PluginError: it is broken.
        """
        name = getattr(plugin, "__name__", type(plugin).__name__)
        info = PluginInfo(distribution=BY_HAND, version="", entry_point=f"{name} at {id(plugin):#x}")
        try:
            self._admit(plugin, info)
        except Exception as error:
            raise PluginError(f"{name} cannot be registered: {type(error).__name__}: {error}") from error

    def _admit_or_leave_out(self, info: PluginInfo, load: Callable[[], Any]) -> None:
        try:
            self._admit(load(), info)
        except Exception as error:
            broken = replace(info, error=error)
            self.plugins.append(broken)
            _complain(broken.explain(), error)

    def _admit(self, plugin: object, info: PluginInfo) -> None:
        """Register, read and keep one plugin, or leave no trace of it."""
        if plugin is None:
            raise PluginError("the plugin is None; it must be a module or an object with hooks")
        if self._manager.is_registered(plugin):
            return
        try:
            self._manager.register(plugin, info.key)
            self._manager.check_pending()
            found = self._read(plugin)
            earlier = self._same_owner(info, found)
        except Exception:
            # Some releases of pluggy record the name before they check the hooks, so a failed register() may need undoing too.
            if self._manager.get_plugin(info.key) is plugin:
                self._manager.unregister(name=info.key)
            raise
        for other in earlier:
            self._manager.unregister(name=other.key)
            self.plugins.remove(other)
            self.items = [item for item in self.items if item.plugin != other]
        kept = replace(info, adds=tuple((kind, entry.name) for kind, entry in found))
        self.plugins.append(kept)
        self.items += [Item(kind=kind, entry=entry, plugin=kept) for kind, entry in found]

    def _read(self, plugin: object) -> list[tuple[str, Entry]]:
        """Ask one plugin for its entries, and check every answer."""
        if not self._manager.get_hookcallers(plugin):
            hooks = ", ".join(f"rt_{kind}s" for kind in KINDS)
            raise PluginError(f"it has no hook; write at least one of {hooks} and decorate it with @rt_core.hookimpl")
        found: dict[tuple[str, str], Entry] = {}
        for kind, expected in KINDS.items():
            hook = f"rt_{kind}s"
            for implementation in getattr(self._manager.hook, hook).get_hookimpls():
                if implementation.plugin is not plugin:
                    continue
                answer = implementation.function()
                if not isinstance(answer, Iterable):
                    raise PluginError(f"{hook} returned {answer!r}; it must return a list of {expected.__name__} (or yield them)")
                for entry in answer:
                    if not isinstance(entry, expected):
                        raise PluginError(f"{hook} returned {entry!r} among its entries; each must be of type {expected.__name__}")
                    if (kind, entry.name) in found:
                        raise PluginError(f"{hook} returned two entries named {entry.name!r}; within a plugin a name stands for one {kind}")
                    found[kind, entry.name] = entry
        return [(kind, entry) for (kind, _), entry in found.items()]

    def _same_owner(self, info: PluginInfo, found: list[tuple[str, Entry]]) -> list[PluginInfo]:
        """Return what was added by hand before under these names; an installed distribution may give a name only once."""
        names = {(kind, entry.name) for kind, entry in found}
        earlier = [
            other for other in self.plugins if normalize(other.distribution) == normalize(info.distribution) and names & {*other.adds}
        ]
        if earlier and info.distribution != BY_HAND:
            kind, name = min(names & {*earlier[0].adds})
            raise PluginError(f"{kind} {name!r} comes already from the entry point {earlier[0].entry_point!r} of {info.distribution}")
        return earlier


def normalize(distribution: str) -> str:
    """Return a distribution's name as comparisons want it: case, ``-``, ``_`` and ``.`` make no difference."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def core_version() -> str:
    """Return the version of rt-core, or "0" where it is used without being installed."""
    try:
        return metadata.version("rt-core")
    except metadata.PackageNotFoundError:
        return "0"


def _entry_points() -> list[tuple[PluginInfo, Callable[[], Any]]]:
    # pluggy's own loader stops at the first failure and skips a second entry point of the same name.
    found = []
    for point in metadata.entry_points(group=GROUP):
        owner = point.dist
        assert owner is not None, "an installed entry point has a distribution"
        found.append((PluginInfo(distribution=owner.name, version=owner.version, entry_point=point.name), point.load))
    return sorted(found, key=lambda pair: (normalize(pair[0].distribution), pair[0].entry_point))


def _selected(wanted: str) -> tuple[str, ...] | None:
    return tuple(normalize(name) for name in wanted.split(",") if name.strip()) or None


def _complain(message: str, error: Exception | None) -> None:
    if os.environ.get("RT_STRICT_PLUGINS", "0") not in ("", "0"):
        raise PluginError(f"{message} (RT_STRICT_PLUGINS is set)") from error
    warnings.warn(message, PluginWarning, stacklevel=2)

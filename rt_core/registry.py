"""Names become things: look an entry up, explain a miss, and make an attack, a metric, an encoder or a dataset by its name, or run a demo."""

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from textwrap import indent
from typing import Any

from rt_core.errors import AmbiguousName, PluginError, UnknownName
from rt_core.loading import KINDS, Item, PluginInfo, Plugins, normalize
from rt_core.naming import did_you_mean

__all__ = ["Registry", "Use", "attack", "dataset", "demo", "encoder", "explain", "installed", "make", "metric", "register", "use"]


class Registry:
    """What is installed, by kind and name. Making one loads every plugin, so ask ``installed()`` for the one that is there."""

    def __init__(self) -> None:
        self._plugins = Plugins()

    @property
    def items(self) -> tuple[Item, ...]:
        """Return every entry with its kind and plugin."""
        return tuple(self._plugins.items)

    @property
    def plugins(self) -> tuple[PluginInfo, ...]:
        """Return every plugin that was found; a broken one carries its error."""
        return tuple(self._plugins.plugins)

    def register(self, plugin: object) -> None:
        """Add a module or an object with hooks; see ``rt_core.register``."""
        self._plugins.register(plugin)

    def find(self, kind: str, name: str) -> Item:
        """Return the one item of that kind and name; ``name`` is bare, or ``distribution/name``.

        Raises:
            UnknownName: there is none; the message says what there is, and which plugins were left out.
            AmbiguousName: a bare name has several owners.
            ValueError: there is no such kind.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
        if not isinstance(name, str):
            raise ValueError(f"the name of the {kind} is {name!r}; write the name that `rt list {kind}` shows")
        found = self.matches(kind, name)
        if not found:
            raise UnknownName(self._explain_miss(kind, name))
        if len(found) > 1:
            owners = ", ".join(f"{item.full_name!r} ({item.plugin.version or 'no version'})" for item in found)
            raise AmbiguousName(f"{name!r} is the name of {len(found)} {kind}s; write one of {owners}")
        return found[0]

    def clashes(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return {(kind, bare name): full names} of the names that more than one plugin gives: only the full ones find something."""
        owners: dict[tuple[str, str], tuple[str, ...]] = {}
        for item in self.items:
            key = item.kind, item.entry.name
            owners[key] = (*owners.get(key, ()), item.full_name)
        return {key: names for key, names in owners.items() if len(names) > 1}

    def matches(self, kind: str, name: str) -> list[Item]:
        """Return the items of that kind and name: of a bare name there may be several."""
        distribution, _, bare = name.rpartition("/")
        return [
            item
            for item in self.items
            if item.kind == kind
            and item.entry.name == bare
            and (not distribution or normalize(distribution) == normalize(item.plugin.distribution))
        ]

    def _explain_miss(self, kind: str, name: str) -> str:
        known = [item for item in self.items if item.kind == kind]
        names = sorted({item.full_name if "/" in name else item.entry.name for item in known})
        lines = [f"no {kind} is named {name!r}{did_you_mean(name, names)}"]
        lines += [f"there is {_a(other)} of that name: rt_core.{other}({name!r})" for other in KINDS if self.matches(other, name)]
        lines.append(f"installed {kind}s: {', '.join(names) or 'none'}")
        if self._plugins.selected is not None:
            lines.append(f"RT_PLUGINS is set, so only these distributions were asked: {', '.join(self._plugins.selected)}")
        lines += [plugin.explain() for plugin in self.plugins if plugin.error is not None]
        return "\n  ".join(lines)


@cache
def installed() -> Registry:
    """Return the registry of this process; the plugins are loaded when it is first needed."""
    return Registry()


def register(plugin: object) -> None:
    """Add a module or an object with hooks at run time, for a notebook or a script; it is listed as "registered here".

    Doing it twice is doing it once, and a plugin replaces one that was added by hand before with an entry of the same name: a
    notebook's cell can be run again.

    Raises:
        PluginError: the plugin is broken; nothing of it stays.
    """
    installed().register(plugin)


@dataclass(frozen=True)
class Use:
    """A registered thing and its options, described and not yet made: what plans, files and clusters hold.

    Raises:
        ValueError: the name is not a string with something in it.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name is {self.name!r}; write a registered name, such as 'folder' or 'rt-core/folder'")
        object.__setattr__(self, "options", dict(self.options))

    def __repr__(self) -> str:
        return f"use({', '.join([repr(self.name), *(f'{key}={value!r}' for key, value in self.options.items())])})"

    @property
    def label(self) -> str:
        """Return what rows call it unless told otherwise: the option ``model`` where it is a string, else the name."""
        model = self.options.get("model")
        return model if isinstance(model, str) else self.name

    def make(self, kind: str) -> Any:
        """Make it now; ``kind`` is "attack", "metric", "encoder", "dataset" or "demo"."""
        return make(kind, self.name, self.options)


def use(name: str, /, **options: Any) -> Use:
    """Describe something registered, to be made when it is needed."""
    return Use(name, options)


def attack(name: str, /, **options: Any) -> Any:
    """Make the attack of that name; see ``make`` for what can go wrong."""
    return make("attack", name, options)


def metric(name: str, /, **options: Any) -> Any:
    """Make the metric of that name; see ``make`` for what can go wrong."""
    return make("metric", name, options)


def encoder(name: str, /, **options: Any) -> Any:
    """Make the encoder of that name; see ``make`` for what can go wrong."""
    return make("encoder", name, options)


def dataset(name: str, /, **options: Any) -> Any:
    """Make the dataset of that name; see ``make`` for what can go wrong."""
    return make("dataset", name, options)


def demo(name: str, /, **options: Any) -> Any:
    """Run the demo of that name; see ``make`` for what can go wrong."""
    return make("demo", name, options)


def make(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """Find an entry, import its factory and call it.

    Raises:
        UnknownName, AmbiguousName: the name does not say which one.
        PluginError: the plugin's code, or a package that it needs, cannot be imported.
        ValueError: an option that does not exist, one that is missing, or one that the factory refuses.
    """
    item = installed().find(kind, name)
    factory = _factory(item)
    _check_options(item, factory, options)
    try:
        return factory(**options)
    except ImportError as error:
        raise PluginError(_explain_failure(item, error)) from error


def explain(name: str) -> str:
    """Return what stands under a name, of every kind: the options that it takes with their defaults, and what its author says of it.

    Raises:
        UnknownName: nothing has that name.
        PluginError: the plugin's code cannot be imported.
    """
    found = [item for kind in KINDS for item in installed().matches(kind, name)]
    if not found:
        names = sorted({item.entry.name for item in installed().items})
        raise UnknownName(f"nothing is named {name!r}{did_you_mean(name, names)} (`rt list` shows all)")
    return "\n\n".join(map(_explained, found))


def _explained(item: Item) -> str:
    factory = _factory(item)
    try:
        taken = [str(one.replace(annotation=one.empty)) for one in inspect.signature(factory).parameters.values()]
    except (TypeError, ValueError):  # a callable in C tells no signature
        taken = []
    told = "\n\n".join(filter(None, ["\n".join(taken), inspect.getdoc(factory)]))
    return f"{item.kind} {item.entry.name} of {item.plugin.label}: {item.entry.summary}\n\n{indent(told, '  ')}".rstrip()


def _factory(item: Item) -> Any:
    try:
        return item.entry.resolve()
    except Exception as error:  # a module may fail in any way while it is imported
        raise PluginError(_explain_failure(item, error)) from error


def _check_options(item: Item, factory: Any, options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return  # a callable in C tells no signature
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    takes = f"it takes {', '.join(names) or 'none'}"
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for option in options:
            if option not in names:
                raise ValueError(f"{item.kind} {item.entry.name!r} has no option {option!r}{did_you_mean(option, names)} ({takes})")
    missing = [one.name for one in named if one.default is one.empty and one.name not in options]
    if missing:
        raise ValueError(
            f"{item.kind} {item.entry.name!r} needs the option{'s' * (len(missing) > 1)} {' and '.join(map(repr, missing))} ({takes})"
        )


def _explain_failure(item: Item, error: Exception) -> str:
    who = f"{item.kind} {item.entry.name!r} of {item.plugin.label}"
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    if not module:
        return f"{who} ({item.entry.factory}) cannot be imported: {type(error).__name__}: {error}"
    said = f"{who} ({item.entry.factory}) needs the module {module!r}, which cannot be found"
    own = str(item.entry.factory).partition(":")[0].partition(".")[0]
    # A dotted name is missing from a package that is there: installing something does not help.
    if "." in module or module == own or module in sys.stdlib_module_names:
        return said
    return f"{said}; to install it: pip install {_package(module, item.plugin.distribution)}"


def _package(module: str, distribution: str) -> str:
    """Return what to install: the plugin again where something that it declares is missing, since modules and packages differ in name."""
    try:
        declared = [normalize(re.split(r"[^\w.-]", line)[0]) for line in metadata.requires(distribution) or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        declared = []
    absent = [name for name in declared if not any(metadata.Distribution.discover(name=name))]
    return distribution if absent and normalize(module) not in absent else module


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "ae" else f"a {kind}"

"""The command line: a command is one function over the public API, and one line in the parser."""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from rt_core.errors import PluginWarning, RtError
from rt_core.loading import KINDS, core_version

__all__ = ["main"]

DONE, FOUND_WRONG, USED_WRONG, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 found wrong, 2 used wrong, 130 interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return USED_WRONG
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return arguments.command(arguments)
        except KeyboardInterrupt:
            print("rt: interrupted", file=sys.stderr)
            return INTERRUPTED
        except (RtError, ValueError) as error:
            print(f"rt: {error}", file=sys.stderr)
            return USED_WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rt", description="Attack, measure and compare representation encoders, without labels.")
    parser.add_argument("--version", action="version", version=f"rt-core {core_version()}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add(commands, "list", _list).add_argument("kind", nargs="?", choices=KINDS, help="one kind only")
    _add(commands, "plugins", _plugins)
    return parser


def _add(commands: Any, name: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Add a command whose help is the first line of its function's docstring; give the result its arguments."""
    summary = (command.__doc__ or "").partition("\n")[0]
    parser = commands.add_parser(name, help=summary.rstrip("."), description=summary)
    parser.set_defaults(command=command)
    return parser


# Commands import what is heavy inside themselves, so that `rt --help` and `rt list` stay quick.


def _list(arguments: argparse.Namespace) -> int:
    """List the attacks, metrics, encoders and datasets that are installed."""
    from rt_core.registry import installed

    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    items = [item for kind in kinds for item in installed().items if item.kind == kind]
    _print_columns((item.kind, item.entry.name, item.plugin.label, item.entry.summary) for item in items)
    return DONE


def _plugins(arguments: argparse.Namespace) -> int:
    """List the plugins, and what each adds or why it was left out; exits 1 if one is broken."""
    from rt_core.registry import installed

    warnings.simplefilter("ignore", PluginWarning)  # the table says the same
    plugins = installed().plugins
    _print_columns((plugin.distribution, plugin.version, _outcome(plugin)) for plugin in plugins)
    return FOUND_WRONG if any(plugin.error is not None for plugin in plugins) else DONE


def _outcome(plugin: Any) -> str:
    if plugin.error is not None:
        return f"broken ({plugin.entry_point}): {type(plugin.error).__name__}: {' '.join(str(plugin.error).split())}"
    adds = [(kind, [name for other, name in plugin.adds if other == kind]) for kind in KINDS]
    return "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in adds if names) or "adds nothing"


def _print_columns(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    print(f"rt: {category.__name__}: {message}", file=file or sys.stderr)

"""The command line: a command is one function over the public API, and one line in the parser."""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rt_core.errors import PluginError, PluginWarning, RtError
from rt_core.loading import KINDS, core_version

__all__ = ["main"]

DONE, FOUND_WRONG, USED_WRONG, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 found wrong, 2 used wrong, 130 interrupted."""
    getattr(sys.stdout, "reconfigure", lambda **_: None)(errors="replace")  # a console that lacks a character shows a "?"
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return USED_WRONG
    with warnings.catch_warnings():
        said: set[str] = set()
        warnings.showwarning = lambda message, category, *where: _show_warning(said, f"{category.__name__}: {message}")
        try:
            return arguments.command(arguments)
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - `rt … | head` has what it wanted; nothing more is to be flushed
            return DONE
        except KeyboardInterrupt:
            kept = arguments.command is not _check or arguments.store is not None  # all others have a folder of their own
            print(
                f"rt: interrupted; {'the same command goes on where it was' if kept else 'nothing is kept without --store'}",
                file=sys.stderr,
            )
            return INTERRUPTED
        except (RtError, ValueError, OSError) as error:
            print("\n  ".join([f"rt: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
            return USED_WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rt", description="Attack, measure and compare representation encoders, without labels.")
    parser.add_argument("--version", action="version", version=f"rt-core {core_version()}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listed = _add(commands, "list", _list)
    listed.add_argument("what", nargs="?", help=f"one kind only ({', '.join(KINDS)}), or a name: its options, and what it does")
    _add(commands, "plugins", _plugins)
    demo = _add(commands, "demo", _demo)
    demo.add_argument("name", nargs="?", default="digits", help="of a demo that `rt list demo` shows (default: digits)")
    for name in ("photos", "certificates", "generator"):
        demo.add_argument(f"--{name}", dest="flagged", action="store_const", const=name, help=f"the same as `rt demo {name}`")
    demo.add_argument("--store", help="folder of the run (default: runs/demo, or runs/<name>)")
    check = _add(commands, "check", _check)
    check.add_argument("encoder", help="a registered encoder, or an importable network as package.module:name")
    check.add_argument("folder", help="a folder of pictures")
    check.add_argument("--weights", help="a file of weights for an importable network (safetensors, or torch's format)")
    check.add_argument("--output", help="the submodule, or the part of what the network returns, that is the representation")
    check.add_argument("--normalize", choices=["imagenet"], help="what the network expects of its inputs")
    check.add_argument("--size", type=int, default=224, help="pictures are resized and cropped to this (default: 224)")
    check.add_argument("--epsilon", type=_fraction, help="radius of the ball, such as 0.02 or 8/255 (default: 4/255)")
    check.add_argument(
        "--minutes", type=float, default=5, help="how long it may take, roughly; 16 samples are attacked at least (default: 5)"
    )
    check.add_argument("--store", help="folder of the run (default: none is kept)")
    run = _add(commands, "run", _run)
    run.add_argument("study", help="a study file (TOML)")
    run.add_argument("--store", help="folder of the run (default: the study's own, else runs/<name of the study>)")
    run.add_argument("--device", default="auto", help="where encoders run (default: an accelerator if there is one)")
    run.add_argument("--batch", type=int, help="samples at a time, at most 64")
    run.add_argument("--no-diagnosis", action="store_true", help="do not ask whether the numbers can be believed")
    show = _add(commands, "show", _show)
    show.add_argument("store", nargs="+", help="folder of a run")
    compare = _add(commands, "compare", _compare)
    compare.add_argument("store", help="folder of a run")
    compare.add_argument("first", help="an encoder of it")
    compare.add_argument("second", help="another")
    compare.add_argument("--fail-if", choices=["worse"], help="exit 1 if the second is worse on any measure after correction")
    compare.add_argument("--level", type=float, default=0.95, help="of the intervals, and one minus it for --fail-if (default: 0.95)")
    _add(commands, "test-plugin", _test_plugin).add_argument("distribution", help="an installed distribution, such as rt-my-noise")
    _add(commands, "new-plugin", _new_plugin).add_argument("name", help="such as my_noise")
    return parser


def _add(commands: Any, name: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Add a command whose help is the first line of its function's docstring; give the result its arguments."""
    summary = (command.__doc__ or "").partition("\n")[0]
    parser = commands.add_parser(name, help=summary.rstrip("."), description=summary)
    parser.set_defaults(command=command)
    return parser


# Commands import what is heavy inside themselves, so that `rt --help` and `rt list` stay quick.


def _list(arguments: argparse.Namespace) -> int:
    """List the attacks, metrics, encoders, datasets and demos that are installed, or the options of one."""
    from rt_core.registry import explain, installed

    if arguments.what and arguments.what not in KINDS:
        print(explain(arguments.what))
        return DONE
    kinds = [arguments.what] if arguments.what else list(KINDS)
    items = [item for kind in kinds for item in installed().items if item.kind == kind]
    _print_columns((item.kind, item.entry.name, item.plugin.label, item.entry.summary) for item in items)
    return DONE


def _plugins(arguments: argparse.Namespace) -> int:
    """List the plugins, and what each adds or why it was left out; exits 1 if one is broken."""
    from rt_core.registry import installed

    warnings.simplefilter("ignore", PluginWarning)  # the table says the same
    plugins = installed().plugins
    _print_columns((plugin.distribution, plugin.version, _outcome(plugin)) for plugin in plugins)
    for (kind, name), owners in installed().clashes().items():
        print(f"{kind} {name!r} has {len(owners)} owners; write {' or '.join(map(repr, owners))}")
    return FOUND_WRONG if any(plugin.error is not None for plugin in plugins) else DONE


def _demo(arguments: argparse.Namespace) -> int:
    """Run a demo that needs no download: four small encoders of real digits, in under two minutes, or another one by name."""
    from rt_core.registry import demo
    from rt_core.results import Results

    name = arguments.flagged or arguments.name
    store = arguments.store or ("runs/demo" if name == "digits" else f"runs/{name}")
    match demo(name, store=store):
        case (Results() as results, str() as said):
            print("\n\n".join(filter(None, [_table(results), said, f"The run is in {store}: rt show {store}"])))
            return _outcome_of(results)
        case other:
            kinds = f"({', '.join(type(one).__name__ for one in other)})" if isinstance(other, tuple) else type(other).__name__
            raise PluginError(f"demo {name!r} returned {kinds}; expected (Results, str): the run, and what is said below its table")


def _check(arguments: argparse.Namespace) -> int:
    """Say how robust one encoder is on a folder of pictures, in a few minutes, beside noise and its untrained twin."""
    from rt_core.checking import check, findings
    from rt_core.datasets import folder
    from rt_core.registry import encoder

    given = {name: getattr(arguments, name) for name in ("weights", "output", "normalize") if getattr(arguments, name) is not None}
    if ":" in arguments.encoder:
        sys.path[:0] = [os.getcwd()]
        subject = encoder("module", path=arguments.encoder, **given)
    else:
        subject = encoder(arguments.encoder, **given)
    pictures = folder(arguments.folder, size=arguments.size)
    results = check(subject, pictures, epsilon=arguments.epsilon, minutes=arguments.minutes, store=arguments.store)
    print("\n".join([_table(results), "", *(f"- {finding}" for finding in findings(results))]))
    return _outcome_of(results)


def _run(arguments: argparse.Namespace) -> int:
    """Run a study file; a run that was interrupted goes on where it was."""
    import tomllib
    from pathlib import Path

    from rt_core.evaluation import Evaluation
    from rt_core.execution import run

    path = Path(arguments.study)
    if not path.is_file():
        raise ValueError(f"study is {arguments.study!r}, which is no file; give a TOML file")
    sys.path[:0] = [str(path.resolve().parent)]  # a study may name networks in a module that lies beside it
    plan = Evaluation.from_toml(path)
    store = arguments.store or tomllib.loads(path.read_text(encoding="utf-8-sig")).get("store") or f"runs/{path.stem}"
    results = run(plan, store=store, device=arguments.device, batch=arguments.batch, diagnose=not arguments.no_diagnosis)
    print(_table(results))
    print(f"\nThe run is in {store}")
    return _outcome_of(results)


def _show(arguments: argparse.Namespace) -> int:
    """Show the table of one run, or of several on the same samples."""
    from rt_core.results import Results

    print(_table(Results.load(*arguments.store)))
    return DONE


def _compare(arguments: argparse.Namespace) -> int:
    """Compare two encoders of a run: paired, corrected for the number of comparisons."""
    from rt_core.results import Results

    results = Results.load(arguments.store)
    print(results.comparison(arguments.first, arguments.second, level=arguments.level))
    better = results.compare(arguments.first, arguments.second, level=arguments.level)["better"]
    return FOUND_WRONG if arguments.fail_if == "worse" and (better == arguments.first).any() else DONE


def _test_plugin(arguments: argparse.Namespace) -> int:
    """Say what is wrong with an installed plugin; exits 1 if anything is."""
    from rt_core.testing import check_plugin

    problems = check_plugin(arguments.distribution)
    for problem in problems or [f"{arguments.distribution} is sound"]:
        print(problem)
    return FOUND_WRONG if problems else DONE


def _new_plugin(arguments: argparse.Namespace) -> int:
    """Write a new plugin with one attack and its test into a folder of its own."""
    from rt_core.testing.scaffold import new_plugin

    files = new_plugin(arguments.name)
    print("\n".join(map(str, files)))
    print(
        f"\nInstall it with `pip install -e {files[0].parent}`, then `rt test-plugin {files[0].parent.name}` and `pytest {files[0].parent}`"
    )
    return DONE


def _table(results: Any) -> str:
    return f"{results.caption()}\n\n{results.table().to_string()}"


def _outcome_of(results: Any) -> int:
    """Return the exit code of a run: errors in it were warned about, and are listed in its manifest."""
    return FOUND_WRONG if results.manifest["errors"] else DONE


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


def _fraction(text: str) -> float:
    """Read a number, or a fraction such as 8/255."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 0.03 or 8/255") from None


def _show_warning(said: set[str], message: str) -> None:
    if message not in said:  # once a command, however many rows it is about
        said.add(message)
        print(f"rt: {message}", file=sys.stderr)

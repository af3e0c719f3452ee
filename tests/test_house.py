"""The house rules that a machine can read: layers, size, style, and what no file may name."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_SEAM = ("entries", "hookspecs", "loading", "registry", "builtin", "lazy")
_CODE = [*_ROOT.glob("rt_core/**/*.py"), *_ROOT.glob("plugins/*/rt_*/**/*.py")]


def _lines_of_code(path: Path) -> int:
    """Count lines that are neither blank, nor comment, nor docstring."""
    source = path.read_text(encoding="utf-8")
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and number not in documented for number, line in lines)


def test_the_core_stays_small():
    core = list(_ROOT.glob("rt_core/*.py"))  # what plugin authors test with, rt_core/testing, is counted apart
    assert sum(_lines_of_code(_ROOT / "rt_core" / f"{name}.py") for name in _SEAM) <= 600
    assert sum(map(_lines_of_code, core)) <= 5_850


@pytest.mark.parametrize("command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]], ids=" ".join)
def test_the_linters_agree(command):
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([tool, *command[1:]], cwd=_ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", _CODE, ids=lambda path: path.relative_to(_ROOT).as_posix())
def test_every_module_says_what_it_is_for_and_what_is_public(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    names = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    assert (
        "__all__" in names
        or len(tree.body) == 1
        or path.with_suffix(".pyi").exists()
        or path.stem in ("plugin", "__main__", "hookspecs", "builtin")
    )


def test_no_file_names_a_registry_or_a_place_of_one_machine():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    hosts = ("pypi" + ".org", "python" + "hosted.org", "registry." + "npmjs", "deb." + "debian.org", "/" + "work/main")
    for name in filter(None, tracked):
        path = _ROOT / name
        if path.is_file() and path.suffix not in (".safetensors", ".png"):
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search("|".join(map(re.escape, hosts)), text), name

"""Every python block of the README, the docs and the plugins' pages runs, page by page, where a reader would run it."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rt_core
from rt_core.registry import installed

_ROOT = Path(__file__).parents[2]
_PAGES = sorted([_ROOT / "README.md", *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("plugins/*/README.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _name(page: Path) -> str:
    return page.relative_to(_ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in _PAGES if _BLOCK.search(page.read_text(encoding="utf-8"))], ids=_name)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write_photos(tmp_path / "photos")
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for block in _BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(page), "exec"), names)


def test_every_hook_has_its_row_with_its_arguments():
    from rt_core import hookspecs

    page = (_ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    hooks = [name for name, value in vars(hookspecs).items() if name.startswith("rt_") and callable(value)]
    assert hooks
    for name in hooks:
        assert f"| `{name}()` |" in page


@pytest.mark.parametrize(
    "item", [item for item in installed().items if item.plugin.distribution.startswith("rt-")], ids=lambda item: item.full_name
)
def test_every_entry_is_written_about(item):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in _PAGES)
    assert f"`{item.entry.name}`" in pages


def test_every_relative_link_leads_somewhere():
    for page in _PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{_name(page)} links to {target}"


def test_the_version_is_one():
    versions = {plugin.version for plugin in installed().plugins if plugin.distribution.startswith("rt-")}
    assert versions == {rt_core.__version__}


def _write_photos(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (80, 96, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")

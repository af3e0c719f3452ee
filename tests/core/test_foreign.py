"""A distribution that this repository does not know, installed by pip as anyone's would be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python where rt-example is installed; it is built from a copy, so that the tree stays clean."""
    source, target = tmp_path_factory.mktemp("source") / "rt-example", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "tests" / "foreign" / "rt-example", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{target}", "RT_PLUGINS": "rt-core,rt-example", "RT_STRICT_PLUGINS": "1"}

    def run(*arguments):
        return subprocess.run([sys.executable, *arguments], env=environment, cwd=target, capture_output=True, text=True, check=True).stdout

    return run


def test_rt_lists_a_foreign_distribution(python):
    mine = [line.split(maxsplit=4) for line in python("-m", "rt_core", "list").splitlines() if "rt-example" in line]

    assert [line[:4] for line in mine] == [
        ["attack", "shade", "rt-example", "0.1"],
        ["metric", "relative_shift", "rt-example", "0.1"],
        ["encoder", "thumbnail", "rt-example", "0.1"],
    ]
    assert "attacks: shade; metrics: relative_shift; encoders: thumbnail" in python("-m", "rt_core", "plugins")


def test_what_it_provides_is_made_by_name(python):
    code = """
import torch, rt_core as rt
encoder = rt.encoder("thumbnail", size=2)
print(list(encoder(torch.rand(3, 1, 8, 8)).shape), rt.attack("shade", epsilon=0.1), rt.metric("relative_shift"))
"""
    assert python("-c", code).strip() == "[3, 4] Shade(epsilon=0.1) RelativeShift()"

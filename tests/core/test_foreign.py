"""A distribution that this repository does not know, installed by pip as anyone's would be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rt_core.testing import ATTACK_CHECKS, ENCODER_CHECKS, METRIC_CHECKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Run Python where rt-example is installed; it is built from a copy, so that the tree stays clean."""
    source, target = tmp_path_factory.mktemp("source") / "rt-example", tmp_path_factory.mktemp("target")
    shutil.copytree(ROOT / "tests" / "foreign" / "rt-example", source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{target}", "RT_PLUGINS": "rt-core,rt-example", "RT_STRICT_PLUGINS": "1"}
    environment["OMP_NUM_THREADS"] = "1"

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


CHECKS = """
from rt_core import testing
from rt_example.attack import Shade
from rt_example.encoder import thumbnail
from rt_example.metric import RelativeShift

@testing.parametrize_attack_checks([Shade()], expected_failures={"comes_nearer_to_its_target": "shading does not aim"})
def test_attack(attack, check):
    check(attack)

@testing.parametrize_metric_checks([RelativeShift()])
def test_metric(metric, check):
    check(metric)

@testing.parametrize_encoder_checks([thumbnail()])
def test_encoder(encoder, check):
    check(encoder)

def test_plugin():
    assert testing.check_plugin("rt-example") == []
"""


def test_its_author_tests_it_by_the_named_checks(python, tmp_path):
    (tmp_path / "test_example.py").write_text(CHECKS)
    checks = len(ATTACK_CHECKS) + len(METRIC_CHECKS) + len(ENCODER_CHECKS)
    printed = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::pytest.PytestUnknownMarkWarning", str(tmp_path))

    assert f"{checks} passed, 1 xfailed" in printed  # one check is foreseen to fail, and the plugin's own passes

"""Who installs three distributions gets three distributions."""

import re
from importlib import metadata

import pytest

_MAIN_JOB = ("rt-core", "rt-unsupervised-attacks", "rt-label-free-metrics")
_EXTRA = re.compile(r";.*\bextra\s*==")


def _needed(distribution: str, known: set[str] | None = None) -> set[str]:
    """Return the names of everything that installing a distribution pulls in, as far as it is installed here."""
    known = set() if known is None else known
    name = re.sub(r"[-_.]+", "-", distribution).lower()
    if name in known:
        return known
    known.add(name)
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:  # a marker that does not hold on this machine
        return known
    for requirement in requirements:
        if not _EXTRA.search(requirement):
            _needed(re.match(r"[\w.-]+", requirement)[0], known)
    return known


def test_the_main_job_pulls_in_neither_bridge_nor_its_pins():
    needed = set().union(*map(_needed, _MAIN_JOB))
    assert "torch" in needed
    assert not needed & {"adversarial-robustness-toolbox", "torchattacks", "scikit-learn", "requests"}


def test_the_core_needs_what_it_says_and_no_more():
    assert {re.match(r"[\w-]+", one)[0] for one in metadata.requires("rt-core")} == {
        "torch",
        "torchvision",
        "pluggy",
        "pandas",
        "scipy",
        "tqdm",
    }


@pytest.mark.parametrize("distribution", _MAIN_JOB[1:])
def test_plugins_of_the_main_job_need_the_core_alone(distribution):
    assert [re.match(r"[\w-]+", one)[0] for one in metadata.requires(distribution)] == ["rt-core"]

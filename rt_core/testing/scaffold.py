"""A new plugin as files: one attack that works, and a test that passes, to be changed into one's own."""

import re
from pathlib import Path

__all__ = ["new_plugin"]

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "rt-{dashed}"
version = "0.1.0"
description = "A plugin of rt, the robustness toolkit for representation encoders"
dependencies = ["rt-core"]

[project.entry-points."rt_core.plugins"]
{name} = "rt_{name}.plugin"

[tool.setuptools]
packages = ["rt_{name}"]
"""

_PLUGIN = '''\
"""What rt-{dashed} provides; imports nothing heavy."""

from rt_core import AttackEntry, hookimpl


@hookimpl
def rt_attacks():
    return [AttackEntry(name="{name}", summary="one sign step from a random start", factory="rt_{name}.attack:{camel}")]
'''

_ATTACK = '''\
"""The attack itself."""

from dataclasses import dataclass

import torch

from rt_core import Ball


@dataclass(frozen=True, kw_only=True)
class {camel}:
    """Step once along the sign of the divergence's gradient, from a random start."""

    epsilon: float = 8 / 255

    def __post_init__(self):
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon is {{self.epsilon:g}}; it is a radius and cannot be negative")

    @property
    def ball(self):
        return Ball("linf", self.epsilon)

    def __call__(self, encoder, batch, divergence, *, random):
        """[batch, *input] -> same shape"""
        noise = random.uniform("start", batch.inputs.shape[1:], low=-self.epsilon, high=self.epsilon).to(batch.inputs)
        start = encoder.clip(batch.inputs + noise).requires_grad_()
        (slope,) = torch.autograd.grad(divergence(batch.anchor, encoder(start)).sum(), start)
        way = 1 if batch.aim == "away" else -1
        return self.ball.project(start.detach() + way * self.epsilon * slope.sign(), batch.inputs, encoder.bounds)
'''

_TEST = '''\
"""The contract that every attack keeps."""

from rt_core.testing import check_plugin, parametrize_attack_checks
from rt_{name}.attack import {camel}


@parametrize_attack_checks([{camel}(epsilon=0.1)])
def test_the_contract(attack, check):
    check(attack)


def test_the_plugin_is_sound():
    assert check_plugin("rt-{dashed}") == []
'''


def new_plugin(name: str, folder: str | Path = ".") -> list[Path]:
    """Write the files of a plugin ``rt-<name>`` into a new folder of that name, and return them.

    Raises:
        ValueError: a name that is not lower_snake_case.
        FileExistsError: the folder is there already.
    """
    name = name.removeprefix("rt-").replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"name is {name!r}; a plugin's name is lower_snake_case, such as 'my_noise'")
    words = {"name": name, "dashed": name.replace("_", "-"), "camel": name.title().replace("_", "")}
    root = Path(folder) / f"rt-{words['dashed']}"
    files = {
        root / "pyproject.toml": _PYPROJECT,
        root / f"rt_{name}" / "__init__.py": '"""A plugin of rt."""\n',
        root / f"rt_{name}" / "plugin.py": _PLUGIN,
        root / f"rt_{name}" / "attack.py": _ATTACK,
        root / f"test_rt_{name}.py": _TEST,
    }
    if root.exists():
        raise FileExistsError(f"{root} is there already; give another name, or take it away")
    root.mkdir(parents=True)
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(**words) if "{" in text else text, encoding="utf-8")
    return list(files)

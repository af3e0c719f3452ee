"""Helpers of tests in several folders."""

import os
import subprocess
import sys
from textwrap import dedent

from torch import nn


def run_python(script, **environment):
    """Run a script in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Failing(nn.Module):
    """Fails at its fifth call."""

    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 5:
            raise RuntimeError("out of order")
        return self.module(inputs)

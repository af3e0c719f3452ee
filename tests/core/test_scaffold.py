"""A plugin that ``rt new-plugin`` writes can be installed, is found, and passes the test that it is born with."""

import os
import subprocess
import sys

import pytest

from rt_core.testing.scaffold import new_plugin


def test_a_new_plugin_is_born_with_a_passing_test(tmp_path):
    files = new_plugin("my_noise", tmp_path)
    place = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--target", place, files[0].parent], check=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    listed = subprocess.run(
        [sys.executable, "-m", "rt_core", "test-plugin", "rt-my-noise"], env=environment, capture_output=True, text=True, check=False
    )
    assert (listed.returncode, listed.stdout) == (0, "rt-my-noise is sound\n"), listed.stderr
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", files[-1]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout


def test_a_name_that_is_no_name_is_refused_and_nothing_is_written_over(tmp_path):
    with pytest.raises(ValueError, match="lower_snake_case"):
        new_plugin("My Noise", tmp_path)
    new_plugin("noise", tmp_path)
    with pytest.raises(FileExistsError):
        new_plugin("noise", tmp_path)

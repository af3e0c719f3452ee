"""Bad situations, tried: what changes, fails, fills up or is killed in the middle of a run, and data that leave nothing to measure."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import rt_core as rt
from rt_core import Ball, Encoder, Evaluation, InvalidInputs, PlanError, Results, RobustnessWarning, StoreError, run
from rt_core.baselines import UniformNoise
from rt_core.cli import main
from rt_core.datasets import folder, tensors
from rt_core.registry import installed
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_unsupervised_attacks import UPGD

ROOT = Path(__file__).parents[2]
ALL = [
    "divergence",
    "universal_quantile",
    "cosine_similarity",
    "breakaway_risk",
    "nearest_neighbor_accuracy",
    "target_divergence",
    "relative_quantile",
    "target_cosine_similarity",
    "overlap_risk",
    "adversarial_margin",
]


def plan(**changed):
    """Three blocks of an attack away and toward targets."""
    parts = {
        "encoders": [tiny_encoder()],
        "dataset": tiny_inputs(150),
        "attacks": {"pgd": UPGD(epsilon=0.1, steps=1)},
        "metrics": ["divergence", "relative_quantile"],
        "attacked": 150,
        "bank": 150,
        "pairing": "given",
    }
    return Evaluation(**parts | changed)


def go(folder=None, **changed):
    return run(plan(**changed), store=folder, progress=False)


def same(first, second):
    for name in ("frame", "notes"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name), check_exact=True)


def kept(store):
    return {path.name: path.read_bytes() for path in sorted((Path(store) / "blocks").glob("*.npz"))}


def files(store):
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in sorted(Path(store).rglob("*")) if path.is_file()}


def child(code, *arguments, folder=None):
    """Start a process of its own that may import what this module holds."""
    paths = [str(path) for path in (folder, ROOT, Path(__file__).parent) if path is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(["-c", code] if code else []), *map(str, arguments)]
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would their children
    try:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Doing:
    """An attack, or a metric, that first does what the test says."""

    aims = ("away",)
    aim, better, statistic, per, span = "away", "lower", "median", "sample", (0.0, 1.0)
    do = staticmethod(lambda ids: None)

    def __call__(self, first, batch, divergence, *, random=None):
        """As an attack: (encoder, batch, divergence, random); as a metric: (trace, bank, context)."""
        if random is None:
            self.do(first.ids)
            return torch.zeros(len(first))
        self.do(batch.ids)
        return (batch.inputs * 0.9).clone()


# A dataset that changes


def test_a_tensor_that_changed_is_refused(tmp_path):
    inputs = tiny_inputs(150)
    go(tmp_path, dataset=inputs)
    before = files(tmp_path)
    inputs[77, 0, 0, 0] = 1 - inputs[77, 0, 0, 0]
    with pytest.raises(StoreError, match=r"holds a run of another dataset .*give another folder, put the dataset back") as raised:
        go(tmp_path, dataset=inputs)
    assert str(tmp_path) in str(raised.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("change", ["replaced", "added", "removed"])
def test_a_folder_that_changed_is_refused(tmp_path, change):
    from PIL import Image

    def draw(name, seed):
        pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)

    (tmp_path / "photos").mkdir()
    for number in range(40):
        draw(f"{number:02}.jpg", number)

    def again():
        return go(tmp_path / "run", dataset=folder(tmp_path / "photos", size=8))

    first = again()
    same(first, again())
    if change == "removed":
        (tmp_path / "photos" / "17.jpg").unlink()
    else:
        draw("17.jpg" if change == "replaced" else "40.jpg", 99)
    with pytest.raises(StoreError, match=r"holds a run of another dataset .*give another folder, put the dataset back") as raised:
        again()
    assert str(tmp_path / "run") in str(raised.value)


# Disks


def full(store, name):
    """Let what is written under that name of a store arrive on a device that is full."""
    from rt_core.store import _HOST

    (Path(store) / f"{name}.{os.getpid()}@{_HOST}.tmp").symlink_to("/dev/full")


on_linux = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@on_linux
@pytest.mark.parametrize("which", [0, -1])
def test_a_full_disk_stops_with_what_is_kept_and_the_next_run_goes_on(tmp_path, which):
    whole = go(tmp_path)
    blocks = kept(tmp_path)
    lost = sorted(blocks)[which]
    (tmp_path / "blocks" / lost).unlink()
    full(tmp_path, f"blocks/{lost}")
    with pytest.raises(
        StoreError, match=rf"{lost} cannot be written \(No space left on device\); make space .* the same call goes on"
    ) as raised:
        go(tmp_path)
    assert f"({len(blocks) - 1} finished blocks are kept)" in str(raised.value)
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]
    assert len(kept(tmp_path)) == len(blocks) - 1
    same(go(tmp_path), whole)
    assert kept(tmp_path).keys() == blocks.keys()


@on_linux
@pytest.mark.parametrize("name", ["manifest.json", "frame.csv.gz", "notes.csv.gz"])
def test_a_disk_that_fills_up_with_the_results_leaves_the_earlier_ones_whole(tmp_path, name):
    go(tmp_path)
    before = files(tmp_path)
    full(tmp_path, name)
    with pytest.raises(StoreError, match=rf"{name} cannot be written \(No space left on device\); .*finished blocks are kept"):
        go(tmp_path, metrics=["divergence", "cosine_similarity"])
    assert {path: content for path, content in files(tmp_path).items() if path in before} == before
    assert not [path for path in files(tmp_path) if path.endswith(".tmp")]
    encoder = tiny_encoder()
    assert set(go(tmp_path, encoders=[encoder], metrics=["divergence", "cosine_similarity"]).frame["metric"]) == {
        "divergence",
        "cosine_similarity",
    }
    assert encoder.passes.backwards == 0


@on_linux
def test_a_disk_that_fills_up_with_a_bank_is_an_error_and_not_the_end_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr("rt_core.execution._MAPPED", 100)
    whole = go(tmp_path)
    (bank,) = tmp_path.glob("*.npy")
    bank.unlink()
    full(tmp_path, bank.name)
    with pytest.raises(StoreError, match=rf"{bank.name} cannot be written \(No space left on device\)"):
        go(tmp_path)
    assert not list(tmp_path.glob("*.npy*"))
    same(go(tmp_path), whole)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("there", [True, False])
def test_a_store_that_cannot_be_written_is_refused_before_any_attack(tmp_path, monkeypatch, number, there):
    store = tmp_path / "runs" / "one"
    if there:
        store.mkdir(parents=True)
    asked, opened = [], os.open

    def refuse(path, flags, *arguments, **options):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, whom no permission stops
    monkeypatch.setattr(Doing, "do", staticmethod(asked.append))
    with pytest.raises(StoreError, match=rf"{store} cannot be written \({os.strerror(number)}\); make space or give leave to write"):
        go(store, attacks={"slow": Doing()}, metrics=["divergence"])
    assert not asked
    assert there or not store.parent.exists()


def test_a_store_that_becomes_read_only_is_told_too(tmp_path, monkeypatch):
    opened = Path.open

    def refuse(path, mode="r", *arguments, **options):
        if "w" in mode and path.parent.name == "blocks":
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StoreError, match=r"npz cannot be written \(Read-only file system\).*\(0 finished blocks are kept\)"):
        go(tmp_path)


# Two runs at once

BESIDE = """
import sys, time
from pathlib import Path
from rt_core import Results
from test_bad_situations import go, Doing, UniformNoise
store, mine, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
waited = []

def meet(what):
    if what not in waited:
        waited.append(what)
        (store.parent / f"{what}-{mine}").touch()
        until = time.monotonic() + 60
        while not (store.parent / f"{what}-{other}").exists():
            assert time.monotonic() < until
            time.sleep(0.01)

save = Results.save

def slow(results, path):
    time.sleep(0.5)  # long enough for the other to have read what was there before
    save(results, path)

Results.save = slow
Doing.do = staticmethod(lambda ids: meet("attack"))
attacks = {"both": Doing()} | ({mine: UniformNoise(epsilon=0.1)} if sys.argv[4] == "other attacks" else {})
seed = int(mine) if sys.argv[4] == "other seeds" else 0
go(store, attacks=attacks, metrics=["divergence"], seed=seed)
"""


def beside(tmp_path, what):
    children = [child(BESIDE, tmp_path / "run", *names, what) for names in (("1", "2"), ("2", "1"))]
    said = [one.communicate(timeout=120)[1] for one in children]
    return [one.returncode for one in children], said


def test_two_runs_in_one_folder_at_once_do_each_other_no_harm(tmp_path):
    codes, said = beside(tmp_path, "other attacks")
    assert codes == [0, 0], said
    attacks = {"both": Doing(), "1": UniformNoise(epsilon=0.1), "2": UniformNoise(epsilon=0.1)}
    alone, found = go(tmp_path / "alone", attacks=attacks, metrics=["divergence"]), Results.load(tmp_path / "run")
    for name in ("frame", "notes"):
        ordered = [getattr(one, name).sort_values(["attack", "sample"], ignore_index=True) for one in (alone, found)]
        pd.testing.assert_frame_equal(*ordered, check_exact=True)
    assert kept(tmp_path / "run").keys() == kept(tmp_path / "alone").keys()
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]


def test_of_two_runs_at_once_on_other_data_one_is_refused(tmp_path):
    codes, said = beside(tmp_path, "other seeds")
    assert sorted(codes) == [0, 1]
    assert "holds a run of another seed" in "".join(said)
    identity = json.loads((tmp_path / "run" / "identity.json").read_text())
    same(Results.load(tmp_path / "run"), go(attacks={"both": Doing()}, metrics=["divergence"], seed=identity["seed"]))


# Ends

HALF = """
import sys, time
import numpy as np
from test_bad_situations import go
whole, seen = np.savez, []

def half(file, **arrays):
    seen.append("adversarial" in arrays)
    if sum(seen) == 3:
        file.write(b"half")
        file.flush()
        print("half", flush=True)
        time.sleep(60)
    whole(file, **arrays)

np.savez = half
go(sys.argv[1])
"""


def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path):
    killed = child(HALF, tmp_path)
    assert killed.stdout.readline() == "half\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len([name for name in files(tmp_path) if name.endswith(".tmp")]) == 1
    assert len(kept(tmp_path)) >= 5  # three of the clean pass, two of the attack
    mine, (theirs,) = tmp_path / f"mine.{os.getpid()}@elsewhere.tmp", tmp_path.rglob("*.tmp")
    mine.touch()  # of a process that may well run, on another machine
    encoder, before = tiny_encoder(), kept(tmp_path)
    again = go(tmp_path, encoders=[encoder])

    same(again, go())
    assert encoder.passes.backwards == 2 * 2 + 2 * 150 - 2 * 64  # the rehearsal, and what was not there
    assert kept(tmp_path).items() >= before.items()
    assert mine.exists()
    assert not theirs.exists()


PLUGIN = """
import atexit, time, torch, rt_core
from rt_core.testing import tiny_encoder

network = tiny_encoder().module.train()
atexit.register(lambda: print("training", all(part.training for part in network.modules()), flush=True))

class Slow:
    aims = ("away",)
    calls = 0

    def __call__(self, encoder, batch, divergence, *, random):
        Slow.calls += 1
        if {slow} and Slow.calls == 3:  # after the rehearsal and a block
            print("here", flush=True)
            time.sleep(60)
        return (batch.inputs * 0.9).clone()

@rt_core.hookimpl
def rt_attacks():
    return [rt_core.AttackEntry(name="slow", summary="a slow attack", factory=Slow)]
"""
STUDY = """
attacked = 150
bank = 150
[dataset]
use = "tensor"
path = "inputs.npy"
[encoders.mine]
use = "module"
path = "slow_attack:network"
[attacks.slow]
[metrics.divergence]
"""


def test_an_interrupt_ends_with_130_and_the_same_command_goes_on(tmp_path):
    np.save(tmp_path / "inputs.npy", tiny_inputs(150).numpy())
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "slow_attack-1.dist-info").mkdir()
    (tmp_path / "slow_attack-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-attack\nVersion: 1\n")
    (tmp_path / "slow_attack-1.dist-info" / "entry_points.txt").write_text("[rt_core.plugins]\nplugin = slow_attack\n")

    def command(slow):
        (tmp_path / "slow_attack.py").write_text(PLUGIN.format(slow=slow))
        return child(None, "-m", "rt_core", "run", "study.toml", folder=tmp_path)

    interrupted = command(slow=True)
    assert interrupted.stdout.readline() == "here\n", interrupted.stderr.read()
    interrupted.send_signal(signal.SIGINT)
    out, said = interrupted.communicate(timeout=60)
    assert (interrupted.returncode, out) == (130, "training True\n")
    assert said == "rt: interrupted; the same command goes on where it was\n"
    before = kept(tmp_path / "runs" / "study")
    assert len(before) == 3 + 2  # the clean pass; a block of the attack, and of the metric
    assert not list(tmp_path.rglob("*.tmp"))

    resumed = command(slow=False)
    out, said = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, said
    assert kept(tmp_path / "runs" / "study").items() > before.items()
    assert len(Results.load(tmp_path / "runs" / "study").frame) == 150


# What raises in the middle


class Breaking:
    """A dataset of which one sample cannot be read."""

    def __init__(self, error=None):
        self.inputs, self.error = tiny_inputs(150), error

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, row):
        if row == 100 and self.error is not None:
            raise self.error
        return self.inputs[row]


@pytest.mark.parametrize("raised_by_it", [OSError, KeyError, ZeroDivisionError])
def test_a_dataset_that_raises_in_the_middle_is_told_by_sample_and_keeps_the_blocks(tmp_path, raised_by_it):
    error = raised_by_it("odd")  # made here: an error that is kept keeps the tensors of the frames that it went through
    named = rf"dataset 'Breaking' raised {type(error).__name__} for sample '100': .*mend it and make the same call again"
    with pytest.raises(InvalidInputs, match=named) as raised:
        go(tmp_path, dataset=Breaking(error))
    assert raised.value.__cause__ is error
    assert len(kept(tmp_path)) == 1  # the clean representations of samples 0 to 63
    whole = go(tmp_path, dataset=Breaking())
    same(whole, go(dataset=Breaking()))

    for path in (tmp_path / "blocks").glob("*.npz"):
        if "adversarial" in np.load(path):
            path.unlink()
    before = kept(tmp_path)
    with pytest.raises(InvalidInputs, match=named):  # in the attacks' second block
        go(tmp_path, dataset=Breaking(error))
    assert kept(tmp_path).items() > before.items()
    same(whole, go(tmp_path, dataset=Breaking()))


def failing(where):
    """Let an attack or a metric fail on the second block, and on no rehearsal."""

    def do(ids):
        if where in ids:
            raise ZeroDivisionError("no such number")

    return staticmethod(do)


@pytest.mark.parametrize("kind", ["attack", "metric"])
def test_what_raises_for_a_block_is_recorded_and_tried_again(tmp_path, monkeypatch, kind):
    changed = {"attacks": {"own": Doing()}} if kind == "attack" else {"metrics": {"divergence": rt.use("divergence"), "own": Doing()}}
    changed = {"metrics": ["divergence"]} | changed
    whole = go(**changed)
    with monkeypatch.context() as patch:
        patch.setattr(Doing, "do", failing("70"))
        with pytest.warns(RobustnessWarning, match="1 blocks or fits failed .*ZeroDivisionError: no such number"):
            part = go(tmp_path, **changed)
    (error,) = part.manifest["errors"]
    assert {"encoder", "attack", "aim", "samples", "error", "at"} <= error.keys()
    assert (error["samples"], error.get("metric")) == ("64 to 127", "own" if kind == "metric" else None)
    assert len(part.frame) == len(whole.frame) - 64
    assert Results.load(tmp_path).manifest["errors"] == [error]

    encoder = tiny_encoder()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = go(tmp_path, encoders=[encoder], **changed)
    same(again, whole)
    assert again.manifest["errors"] == Results.load(tmp_path).manifest["errors"] == []
    assert encoder.passes.backwards == (2 if kind == "metric" else 0)  # pgd is rehearsed, and no block of it made again


def test_a_failed_block_is_not_forgotten_by_a_run_that_does_not_try_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Doing, "do", failing("70"))
    with pytest.warns(RobustnessWarning, match="1 blocks or fits failed"):
        first = go(tmp_path, attacks={"own": Doing()}, metrics=["divergence"])
    other = go(tmp_path, attacks={"noise": UniformNoise()}, metrics=["divergence"])
    assert other.manifest["errors"] == []
    assert Results.load(tmp_path).manifest["errors"] == first.manifest["errors"]


@pytest.fixture
def own_attack():
    class Hooks:
        @staticmethod
        @rt.hookimpl
        def rt_attacks():
            return [rt.AttackEntry(name="own", summary="mine", factory=Doing)]

    installed.cache_clear()
    rt.register(Hooks())
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("own_attack")
def test_rt_run_exits_1_where_a_block_failed_and_0_once_it_did_not(tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "inputs.npy", tiny_inputs(150).numpy())
    study = STUDY.replace("slow_attack:network", "bad_situation_network:network").replace("attacks.slow", "attacks.own")
    (tmp_path / "study.toml").write_text(study.replace("inputs.npy", str(tmp_path / "inputs.npy")))
    (tmp_path / "bad_situation_network.py").write_text("from rt_core.testing import tiny_encoder\nnetwork = tiny_encoder().module\n")
    command = ["run", str(tmp_path / "study.toml"), "--store", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "path", [*sys.path])
    with monkeypatch.context() as patch:
        patch.setattr(Doing, "do", staticmethod(lambda ids: 1 / (len(ids) == 2)))  # all blocks, not the rehearsal
        assert main(command) == 1
    captured = capsys.readouterr()
    assert "3 blocks or fits failed and their rows are missing" in captured.err
    assert main(command) == 0
    assert "failed" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_machine_that_is_too_small_says_what_a_smaller_batch_needs(tmp_path, monkeypatch, error):
    def do(ids):
        if "70" in ids:
            raise error("no more")

    monkeypatch.setattr(Doing, "do", staticmethod(do))
    with pytest.raises(error) as raised:
        go(tmp_path, attacks={"own": Doing()}, metrics=["divergence"])
    assert "give a batch below 64, and with it another store: blocks that are stored keep theirs" in raised.value.__notes__
    before = kept(tmp_path)
    assert len(before) == 3 + 2  # the first block is there
    with pytest.raises(StoreError, match="another batch"):
        run(plan(attacks={"own": Doing()}, metrics=["divergence"]), store=tmp_path, batch=8, progress=False)
    assert kept(tmp_path) == before


# Files that are not what they should be


@pytest.mark.parametrize("content", [b"a text", b"", "truncated", "foreign", "another"])
def test_a_foreign_file_among_the_blocks_is_reported_and_made_again(tmp_path, content):
    whole = go(tmp_path)
    blocks = kept(tmp_path)
    for what in ("representations", "adversarial"):
        path, other = [tmp_path / "blocks" / name for name, block in blocks.items() if what in np.load(io.BytesIO(block))][:2]
        if content == "truncated":
            path.write_bytes(blocks[path.name][:-100])
        elif content == "foreign":
            np.savez(path, somebody=np.zeros(3))
        elif content == "another":  # a copy under another name
            path.write_bytes(blocks[other.name])
        else:
            path.write_bytes(content)
    (tmp_path / "blocks" / "notes.txt").write_text("mine")
    with pytest.warns(RobustnessWarning, match=r"block .*\.npz is damaged .* and is made again") as warned:
        again = go(tmp_path)
    assert sum("is damaged" in str(warning.message) for warning in warned) == 2
    same(again, whole)
    same(go(tmp_path), whole)
    for name, before in blocks.items():
        made = np.load(io.BytesIO(before))
        assert all(np.array_equal(values, made[part]) for part, values in np.load(tmp_path / "blocks" / name).items())
    assert (tmp_path / "blocks" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ('{"dataset": "x", "seed": 0, "pairing": "given"}', "KeyError: 'batch'"),
        ('{"dataset": "x", "batch": 64, "pairing": "given"}', "KeyError: 'seed'"),
        (None, "FileNotFoundError"),
    ],
)
@pytest.mark.parametrize("batch", [None, 64])
def test_an_identity_that_cannot_be_read_is_refused_with_a_remedy(tmp_path, content, words, batch):
    go(tmp_path)
    if content is None:
        (tmp_path / "identity.json").unlink()
    else:
        (tmp_path / "identity.json").write_text(content)
    before = files(tmp_path)
    with pytest.raises(StoreError, match=rf"identity.json does not say whose blocks these are \({words}.*give another folder, or remove"):
        run(plan(), store=tmp_path, batch=batch, progress=False)
    assert files(tmp_path) == before


def test_results_of_another_version_are_refused_in_words(tmp_path):
    run(plan(), store=tmp_path, progress=False)
    about = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({what: value for what, value in about.items() if what != "suites"}))
    with pytest.raises(StoreError, match=r"the manifest of another version of rt lacks suites.*run the plan with store="):
        Results.load(tmp_path)
    with pytest.warns(RobustnessWarning, match="damaged"):
        run(plan(), store=tmp_path, progress=False)
    assert Results.load(tmp_path).manifest.keys() >= about.keys()


@pytest.mark.parametrize("name", ["manifest.json", "frame.csv.gz", "notes.csv.gz", "gallery.npz"])
@pytest.mark.parametrize("left", [0.5, 0, None])
def test_results_that_are_damaged_are_refused_and_made_again_from_the_blocks(tmp_path, name, left):
    whole = go(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    if left is not None:
        path.write_bytes(content[: int(len(content) * left)])
    elif name != "manifest.json":  # without it, there are no results
        path.unlink()
    else:
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=r"the results in .* are damaged .*; run the plan with store=.* again") as raised:
        Results.load(tmp_path)
    assert str(tmp_path) in str(raised.value)
    encoder = tiny_encoder()
    with pytest.warns(RobustnessWarning, match=r"the results in .* are damaged .*, so they are replaced"):
        go(tmp_path, encoders=[encoder])
    same(Results.load(tmp_path), whole)
    assert encoder.passes.backwards == 0


# Little data, and encoders that say nothing


class Restless(nn.Module):
    """Dropout whatever the mode."""

    def forward(self, inputs):
        return nn.functional.dropout(inputs.flatten(1), 0.5, training=True)


def test_an_encoder_that_is_not_deterministic_is_warned_about_once_and_goes_through(tmp_path):
    changed = {"encoders": {"restless": Restless()}, "metrics": ALL}
    with pytest.warns(RobustnessWarning) as warned:
        results = go(tmp_path, **changed)
    assert sum("encoder 'restless' is not deterministic" in str(warning.message) for warning in warned) == 1
    assert results.manifest["errors"] == []
    assert len(results.frame) == 150 * 8 + 75 * 2
    assert results.frame["value"].notna().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = go(tmp_path, **changed)
    same(again, results)  # what is kept is not drawn again


class Whitened(nn.Module):
    """Whitening over the batch, in evaluation too."""

    def forward(self, inputs):
        rows = inputs.flatten(1)
        return (rows - rows.mean(0)) / (rows.std(0, correction=0) + 1e-3)


class Rescaled(nn.Module):
    """A little of a statistic of the batch, as quantization of activations adds."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, inputs):
        return inputs.flatten(1) * (1 + self.share * inputs.mean())


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize(
    "network",
    [Whitened(), nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()), Rescaled(1.0)],
    ids=["whitened", "batch norm", "rescaled"],
)
def test_an_encoder_that_depends_on_the_batch_is_warned_about_once(network, batch):
    with pytest.warns(RobustnessWarning) as warned:
        run(plan(encoders={"joined": network}, metrics=["divergence"]), progress=False, diagnose=False, batch=batch)
    said = [str(warning.message) for warning in warned if "depends on the batch" in str(warning.message)]
    assert len(said) == 1
    assert said[0].startswith("encoder 'joined' depends on the batch: a sample's representation beside another differs from that alone by ")
    assert "measures depend on the batch size" in said[0]


@pytest.mark.parametrize("network", [tiny_encoder().module, tiny_encoder().module.to(torch.bfloat16), Rescaled(1e-4), nn.Flatten()])
def test_rounding_is_not_taken_for_dependence_on_the_batch(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(plan(encoders=[Encoder(network, name="one")], metrics=["divergence"]), progress=False, diagnose=False)


def test_autocast_around_a_run_changes_nothing_and_does_not_get_into_a_store(tmp_path):
    expected = go(metrics=ALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(go(tmp_path, metrics=ALL), expected)
    same(go(tmp_path, metrics=ALL), expected)


def test_an_empty_name_is_no_folder():
    with pytest.raises(StoreError, match="store is ''; expected a folder, or None to keep nothing"):
        go("")


def test_a_console_that_lacks_a_character_shows_the_table_all_the_same(tmp_path, monkeypatch):
    go(tmp_path)
    for encoding in ("cp1252", "cp437", "ascii"):
        console = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", console)
        assert main(["show", str(tmp_path)]) == 0
        console.flush()
        assert b"relative_quantile ?" in console.buffer.getvalue()


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda results: results, "Results"),
        (lambda results: None, "NoneType"),
        (lambda results: (results, None), "(Results, NoneType)"),
        (lambda results: (results, "a", 1), "(Results, str, int)"),
        (lambda results: ("a", "b"), "(str, str)"),
    ],
)
def test_a_demo_that_returns_something_else_is_refused_in_words(monkeypatch, capsys, give, words):
    results = go()
    monkeypatch.setattr("rt_core.registry.demo", lambda name, store: give(results))
    assert main(["demo", "mine"]) == 2
    expected = f"rt: demo 'mine' returned {words}; expected (Results, str): the run, and what is said below its table\n"
    assert capsys.readouterr().err.endswith(expected)


def test_one_sample_is_refused_and_two_go_through(tmp_path):
    with pytest.raises(PlanError, match="dataset 'tensor' has 1 sample; at least 2 are needed"):
        go(tmp_path / "one", dataset=tiny_inputs(1))
    assert not (tmp_path / "one").exists()
    encoders = {"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)}
    results = go(tmp_path / "two", dataset=tensors(tiny_inputs(2), labels=[0, 1]), metrics=ALL, encoders=encoders)
    assert results.manifest["attacked"] == results.manifest["bank"] == 2
    assert results.manifest["errors"] == []
    assert len(results.frame) == 2 * (2 * 8 + 2)
    assert results.frame["value"].notna().all()
    summary = results.summary()
    assert (summary["low"] <= summary["estimate"]).all()
    assert (summary["estimate"] <= summary["high"]).all()
    assert set(results.compare("a", "b")["better"]) <= {"-", "not comparable"}  # of two samples nothing can be told
    assert results.table().shape == (10, 2)
    same(Results.load(tmp_path / "two"), results)


def constant(value):
    return Encoder(lambda inputs: 0 * inputs.flatten(1)[:, :4] + value, name="constant")


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("divergence", ["l2", "cosine"])
def test_a_constant_encoder_has_defined_measures_and_is_called_stuck(value, divergence):
    encoders = {"constant": constant(value), "tiny": tiny_encoder()}
    with pytest.warns(RobustnessWarning) as warned:
        results = go(encoders=encoders, metrics=ALL, divergence=divergence, dataset=tiny_inputs(12), attacked=12, bank=12)
    said = [str(warning.message) for warning in warned]
    assert sum("attack 'pgd' found no gradient at all for 100% of the samples on encoder 'constant'" in one for one in said) == 1
    assert any("12 of 12 attacked samples have a near-duplicate in the bank for encoder 'constant'" in one for one in said)
    assert results.manifest["errors"] == []

    apart = 1.0 if value == 0 and divergence == "cosine" else 0.0  # by convention, a vector without direction is at distance 1
    similar = 0.0 if value == 0 else 1.0
    expected = {
        "divergence": apart,
        "universal_quantile": 1.0,  # all pairs are as close as it was moved
        "cosine_similarity": similar,
        "breakaway_risk": 0.0,  # no other is strictly nearer
        "nearest_neighbor_accuracy": 1.0,
        "target_divergence": apart,
        "relative_quantile": 1.0 if apart else np.nan,  # of no distance nothing is left
        "target_cosine_similarity": similar,
        "overlap_risk": 0.0,
        "adversarial_margin": 0.0 if apart else np.nan,
    }
    frame = results.frame[results.frame["encoder"] == "constant"]
    assert {metric: set(part["value"].fillna(-9)) for metric, part in frame.groupby("metric")} == {
        metric: {-9.0 if np.isnan(number) else number} for metric, number in expected.items()
    }
    summary = results.summary().set_index(["encoder", "metric"]).loc["constant"]
    assert (summary.loc["relative_quantile", "undefined"] == 12) == (not apart)
    assert (results.table().loc[("pgd", "relative_quantile ↑"), "constant"] == "undefined") == (not apart)
    compared = results.compare("constant", "tiny")
    assert ("relative_quantile" in set(compared["metric"])) == bool(apart)
    assert results.manifest["encoders"]["constant"]["zero_representations"] == (12 if value == 0 else 0)


def test_a_zero_representation_is_at_cosine_distance_1_and_is_counted():
    network = tiny_encoder().module

    def encode(inputs):
        dark = (inputs.flatten(1).mean(1, keepdim=True) < 0.02).float()
        return network(inputs) * (1 - dark)

    inputs = tiny_inputs(12)
    inputs[3] = 0
    results = go(
        encoders=[Encoder(encode, name="dead")], dataset=inputs, attacks={"still": rt.attack("identity")}, divergence="cosine", attacked=12
    )
    values = results.frame[results.frame["metric"] == "divergence"].set_index("sample")["value"]
    assert values["3"] == 1
    assert values.drop("3").abs().max() == 0
    relative = results.frame[results.frame["metric"] == "relative_quantile"].set_index("sample")["value"]
    assert relative["2"] == relative["3"] == 1  # its pair: it came no nearer
    assert results.manifest["encoders"]["dead"]["zero_representations"] == 1


def test_an_interrupt_in_an_attack_puts_the_encoder_back(monkeypatch):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def do(ids):
        if "70" in ids:
            raise KeyboardInterrupt

    monkeypatch.setattr(Doing, "do", staticmethod(do))
    with pytest.raises(KeyboardInterrupt):
        go(encoders=[network], attacks={"own": Doing()}, metrics=["divergence"])
    assert all(part.training for part in network.modules())
    assert all(weight.requires_grad for weight in network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


# What must not cost a run that is done


@dataclass(frozen=True, kw_only=True)
class Fussy:
    """An attack with a step of its own kind, passes that are one number, and steps that it does not tell; it may fail on some samples."""

    epsilon: float = 0.1
    steps: Any = 10
    step: float = 0.01
    fails: bool = False

    def __post_init__(self):
        if self.epsilon > 0.2:
            raise ValueError("epsilon is above 0.2")

    @property
    def ball(self):
        return Ball("linf", self.epsilon)

    @property
    def passes(self):
        return 5

    def __call__(self, encoder, batch, divergence, *, random):
        if self.fails and 2 < len(batch.ids) < 50:  # the last block, and a diagnosis
            raise RuntimeError("boom")
        noise = random.uniform("noise", batch.inputs.shape[1:], low=-self.epsilon, high=self.epsilon)
        return self.ball.project(batch.inputs + noise * (1 if self.step > 0 else 2), batch.inputs, encoder.bounds)


@pytest.mark.parametrize("attack", [Fussy(), Fussy(steps=None), Fussy(fails=True), Fussy(steps=200)], ids=repr)
def test_a_diagnosis_that_fails_and_odd_attributes_do_not_cost_the_run(attack):
    made = plan(attacks={"fussy": attack}, dataset=tiny_inputs(300), attacked=300, bank=300)
    results = run(made, progress=False)
    plain = run(made, progress=False, diagnose=False)
    assert results.frame.equals(plain.frame)
    assert len(results.frame)
    assert results.manifest["passes_a_sample"] == {}
    assert "RuntimeError" in str(results.manifest["errors"]) or not attack.fails


def test_a_joint_attack_is_diagnosed_in_whole_blocks_whatever_the_batch():
    made = plan(
        attacks={"joint": rt.attack("batch_l_pgd", loss="info_nce", epsilon=0.1, steps=3)}, dataset=tiny_inputs(40), attacked=40, bank=40
    )
    whole, single = (run(made, progress=False, batch=batch) for batch in (64, 1))
    assert whole.frame.equals(single.frame)


def test_inputs_that_carry_a_graph_are_no_trouble():
    dataset = [one.requires_grad_() for one in tiny_inputs(20)]

    class Graph(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, row):
            return dataset[row]

    results = run(plan(dataset=Graph(), attacked=20, bank=20), progress=False)
    assert len(results.gallery) > 0

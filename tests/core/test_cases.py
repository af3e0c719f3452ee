"""Trouble that users of other tools ran into: one short test each, named after what went wrong there."""

import argparse
import gc
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import rt_core as rt
from rt_core import Encoder, Evaluation, divergences, perturb, represent, run
from rt_core.baselines import Identity, UniformNoise
from rt_core.datasets import as_samples, tensors
from rt_core.encoders import check_inputs
from rt_core.registry import Registry, installed
from rt_core.testing import read_example, tiny_encoder, tiny_inputs
from rt_core.weights import load_weights
from rt_label_free_metrics import UniversalQuantile, universal_quantile
from rt_linear_probes import knn_predictions
from rt_unsupervised_attacks import UBIM, UFGSM, UMIPGD, UPGD

ROOT = Path(__file__).parents[2]
ATTACKS = [UFGSM(epsilon=0.05), *(cls(epsilon=0.05, steps=3) for cls in (UBIM, UPGD, UMIPGD))]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)


def plan(**changed):
    parts = {
        "encoders": [tiny_encoder()],
        "dataset": tiny_inputs(20),
        "attacks": {"pgd": UPGD(epsilon=0.1, steps=2)},
        "metrics": ["divergence", "universal_quantile", "breakaway_risk", "nearest_neighbor_accuracy"],
        "attacked": 10,
    }
    return Evaluation(**parts | changed)


# Range and normalization


def test_clipping_was_applied_to_normalized_inputs():
    """Case 1."""
    encoder = Encoder(nn.Flatten(), name="flat", normalize="imagenet")
    inputs = 0.1 + 0.8 * torch.rand(1, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    trace = perturb(UPGD(epsilon=8 / 255, steps=20), encoder, inputs)

    assert (trace.inputs - inputs).abs().max() <= 8 / 255 + 1e-6
    assert 0 <= trace.inputs.min() <= trace.inputs.max() <= 1
    best = 2 * math.sqrt(sum((8 / 255 / std) ** 2 for std in (0.229, 0.224, 0.225)))
    assert best == pytest.approx(0.48094, abs=1e-5)
    assert trace.divergence.item() == pytest.approx(best, rel=1e-3)


@every_attack
def test_no_other_range_could_be_declared(attack):
    """Case 4."""
    inputs = 2 * torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
    moved = perturb(UPGD(epsilon=16 / 255), Encoder(nn.Flatten(), name="flat", bounds=(-1, 1)), inputs).inputs
    assert -1 <= moved.min() < 0
    assert moved.max() <= 1
    assert 8 / 255 < (moved - inputs).abs().max() <= 16 / 255 + 1e-6


# dtypes and numbers


@every_attack
def test_bounds_in_float64_promoted_the_inputs(attack):
    """Case 6."""
    for low, high in ((np.float64(0), np.float64(1)), (0.0, 1.0), (np.zeros((3, 1, 1)), np.ones((3, 1, 1)))):
        encoder = Encoder(tiny_encoder().module, name="tiny", bounds=(low, high))
        assert perturb(attack, encoder, tiny_inputs(2)).inputs.dtype == torch.float32


def test_bfloat16_could_not_become_numpy_after_all_the_compute():
    """Case 8."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).bfloat16()
    representations = represent(network, tiny_inputs(64))
    assert representations.dtype == torch.float32
    results = run(plan(encoders={"half": network}, dataset=tiny_inputs(64)), progress=False)
    assert np.isfinite(results.frame["value"]).all()
    assert results.manifest["encoders"]["half"]["dtype"] == "bfloat16"


def test_nan_in_some_inputs_went_through():
    """Case 10."""
    inputs = tiny_inputs(4)
    inputs[2, 0, 0, 0] = math.nan
    encoder = tiny_encoder()
    for ask in (lambda: perturb(UPGD(), encoder, inputs), lambda: run(plan(dataset=inputs, attacked=4), progress=False)):
        with pytest.raises(ValueError, match=r"NaN or infinity in 1 of 4 samples .(rows 2|samples '2')"):
            ask()
    assert encoder.passes.forwards == 0


def test_the_gradient_of_a_distance_was_nan_between_identical_vectors():
    """Case 11."""
    for divergence in divergences.DIVERGENCES:
        trace = perturb(UPGD(epsilon=0.05, steps=3), tiny_encoder(), tiny_inputs(2), divergence=divergence, start=tiny_inputs(2))
        assert trace.inputs.isfinite().all()
        assert trace.history.isfinite().all()


# Epsilon


@every_attack
def test_epsilon_0_changed_something(attack):
    """Case 14."""
    still = type(attack)(epsilon=0)
    assert torch.equal(perturb(still, tiny_encoder(), tiny_inputs(4)).inputs, tiny_inputs(4))
    values = run(plan(attacks={"still": still}), progress=False).frame.groupby("metric")["value"].agg(["min", "max"])
    assert (values.loc[["divergence", "universal_quantile", "breakaway_risk"]] == 0).all(axis=None)
    assert (values.loc["nearest_neighbor_accuracy"] == 1).all()


@every_attack
def test_an_epsilon_in_255ths_meant_anything_goes(attack):
    """Case 15."""
    with pytest.raises(ValueError, match=r"epsilon is 8; inputs span a range of 1.*write 8/255"):
        perturb(type(attack)(epsilon=8), tiny_encoder(), tiny_inputs(2))


def test_bounds_of_another_number_type_crashed():
    """Case 19."""
    inputs = tiny_inputs(2)
    kinds = (int, float, np.float32, torch.tensor, lambda bound: torch.full((3, 1, 1), float(bound)))
    found = [
        perturb(UPGD(epsilon=0.1, steps=2), Encoder(tiny_encoder().module, name="one", bounds=(kind(0), kind(1))), inputs) for kind in kinds
    ]
    assert all(torch.equal(trace.inputs, found[0].inputs) for trace in found)


# What the attack pursues


@pytest.mark.parametrize("divergence", ["cosine", "l2"])
@every_attack
def test_a_missing_minus_made_representations_more_similar(attack, divergence):
    """Case 20."""
    encoder, inputs, targets = tiny_encoder(), tiny_inputs(), tiny_inputs().flip(-1)
    away = perturb(attack, encoder, inputs, divergence=divergence)
    toward = perturb(attack, encoder, inputs, targets=targets, divergence=divergence)
    cosine = torch.cosine_similarity

    assert (cosine(away.adversarial, away.clean) < 1 - 1e-4).all()
    if divergence == "cosine":
        assert (cosine(toward.adversarial, toward.targets) > cosine(toward.clean, toward.targets)).all()
    assert (toward.divergence < divergences.DIVERGENCES[divergence](toward.targets.double(), toward.clean.double())).all()
    assert (away.divergence > 0).all()


def test_a_useless_gradient_was_reported_as_robustness():
    """Case 22."""
    rounding = Encoder(lambda inputs: (inputs * 4).round().flatten(1) / 4, name="rounding")
    with pytest.warns(rt.RobustnessWarning, match="its gradients may be masked"):
        results = run(plan(encoders=[rounding]), progress=False)
    assert (results.notes.query("name == 'zero_gradient'")["value"] == 1).all()
    assert (results.notes.query("name == 'stuck'")["value"] == 1).all()


# The network afterwards, and in which mode it is measured


@every_attack
def test_the_mode_was_restored_from_when_the_attack_was_made(attack):
    """Case 25."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).train()
    encoder = Encoder(network, name="one")
    network.eval()
    network[1].train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    perturb(attack, encoder, tiny_inputs(2))

    assert [part.training for part in network.modules()] == [False, False, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_dropout_made_measures_meaningless():
    """Case 28."""
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5)).train()
    assert torch.equal(represent(network, tiny_inputs(4)), represent(network, tiny_inputs(4)))
    assert network.training

    def random(inputs):
        return nn.functional.dropout(inputs.flatten(1), 0.5, training=True)

    with pytest.warns(rt.RobustnessWarning, match="is not deterministic"):
        run(plan(encoders=[random]), progress=False)


def test_it_was_unclear_whether_an_attack_sees_updated_weights():
    """Case 31."""
    encoder, attack = tiny_encoder(), UPGD(epsilon=0.1, steps=2)
    first, hashed = perturb(attack, encoder, tiny_inputs(2)), encoder.fingerprint
    with torch.no_grad():
        encoder.module.last.weight.add_(0.1 * tiny_encoder(seed=1).module.last.weight)
    assert not torch.equal(perturb(attack, encoder, tiny_inputs(2)).adversarial, first.adversarial)
    assert encoder.fingerprint != hashed


@every_attack
def test_no_grad_around_an_attack_was_an_obscure_error(attack):
    """Case 32."""
    plain = perturb(attack, tiny_encoder(), tiny_inputs(2)).inputs
    with torch.no_grad():
        moved = perturb(attack, tiny_encoder(), tiny_inputs(2)).inputs
    assert torch.equal(moved, plain)
    assert not moved.requires_grad


# What networks return


def test_a_network_that_returns_a_dict_needed_a_wrapper():
    """Case 34."""

    def network(inputs):
        return {"embedding": inputs.flatten(1)[:, :16], "logits": inputs.flatten(1)[:, :5]}

    assert perturb(UPGD(), Encoder(network, name="one", output="embedding"), tiny_inputs(2)).adversarial.shape == (2, 16)
    with pytest.raises(TypeError, match="'embedding', 'logits'"):
        perturb(UPGD(), network, tiny_inputs(2))


def test_logits_were_taken_for_embeddings():
    """Case 37."""
    network = nn.Sequential()
    network.add_module("body", nn.Flatten())
    network.add_module("head", nn.Linear(192, 1000))
    with pytest.warns(rt.RobustnessWarning, match="classifier"):
        Encoder(network, name="one")
    assert run(plan(), progress=False).manifest["encoders"]["tiny"]["dim"] == 16


def test_a_size_that_the_network_was_not_built_for_failed_deep_inside():
    """Case 39."""
    calls = []

    def vit(inputs):
        calls.append(len(inputs))
        assert inputs.shape[-2:] == (224, 224), f"height {inputs.shape[-2]} is not 224"
        return inputs.flatten(1)

    with pytest.raises(ValueError, match=r"inputs of shape \[\d, 3, 96, 96\].*height 96 is not 224"):
        run(plan(encoders=[vit], dataset=torch.zeros(20, 3, 96, 96)), progress=False)
    assert len(calls) == 1


@every_attack
def test_a_network_without_parameters_was_a_stop_iteration(attack):
    """Case 40."""
    for network in (nn.Flatten(), lambda inputs: inputs.flatten(1)):
        assert perturb(attack, network, tiny_inputs(2)).inputs.shape == (2, 3, 8, 8)


def test_a_checkpoint_with_settings_in_it_could_not_be_loaded(tmp_path):
    """Case 42: a list of allowed names instead of a switch that would run a pickle."""
    torch.save({"state_dict": {"weight": torch.ones(1)}, "args": argparse.Namespace(epochs=3)}, tmp_path / "one.pt")
    with pytest.raises(ValueError, match=r"trust.*allow="):
        load_weights(tmp_path / "one.pt")
    assert load_weights(tmp_path / "one.pt", allow=["argparse.Namespace"])["args"].epochs == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
@every_attack
def test_helper_tensors_were_made_on_another_device(attack):
    """Case 43."""
    encoder = tiny_encoder()
    encoder.module.cuda()
    for inputs in (tiny_inputs(2), tiny_inputs(2).cuda()):
        assert perturb(attack, encoder, inputs).inputs.device == inputs.device


# Batches


def test_a_last_batch_of_one_broke_batch_normalization():
    """Case 47, its part about evaluation."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).train()
    assert len(represent(network, tiny_inputs(33), batch=32)) == 33
    assert len(perturb(UPGD(steps=2), network, tiny_inputs(33), batch=32)) == 33


def test_results_changed_with_the_batch():
    """Case 48."""
    found = [run(plan(dataset=tiny_inputs(33), attacked=32), batch=batch, progress=False).frame for batch in (1, 7, 32)]
    assert all(found[0].equals(other) for other in found[1:])


def test_pairs_were_taken_inside_a_batch_only():
    """Case 52."""
    found = []
    for batch in (8, 64):
        bank = rt.Bank(represent(tiny_encoder(), tiny_inputs(64), batch=batch))
        assert bank.pair_count == 64 * 63 // 2
        found.append(universal_quantile(torch.linspace(0, 1, 20), bank))
    assert torch.equal(*found)
    assert 0 < found[0].unique().numel() > 3


# Shapes and kinds of inputs


def test_means_by_channel_were_laid_on_the_last_axis():
    """Case 53."""
    encoder = Encoder(nn.Flatten(), name="one", normalize=((0.5, 0.25, 0.0), (1.0, 1.0, 1.0)))
    with pytest.raises(ValueError, match="mean has 3 values, input has 1 channel"):
        encoder(torch.rand(2, 1, 4, 4))
    found = encoder(torch.full((2, 3, 3, 3), 0.5)).view(2, 3, 3, 3)
    assert [channel.unique().tolist() for channel in found.transpose(0, 1)] == [[0.0], [0.25], [0.5]]


def test_token_ids_carry_no_gradient():
    """Case 55."""
    with pytest.raises(TypeError, match="attack the output of the embedding layer"):
        perturb(UPGD(), nn.Embedding(10, 4), torch.arange(8).view(2, 4))
    embedded = torch.rand(2, 5, 4)
    assert perturb(UPGD(), lambda inputs: inputs.mean(1), embedded).inputs.shape == embedded.shape


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: (x,),
        lambda x, y: (x, y),
        lambda x, y: [x, y, "path"],
        lambda x, y: {"pixel_values": x, "label": y},
        argparse.Namespace,
    ],
    ids=["x", "one", "two", "three", "dict", "object"],
)
def test_items_of_another_form_could_not_be_unpacked(form):
    """Case 58."""
    if form is argparse.Namespace:
        with pytest.raises(KeyError, match=r"keys 'scan'.*input_key"):
            represent(nn.Flatten(), [{"scan": one} for one in tiny_inputs(3)])
    else:
        assert represent(nn.Flatten(), [form(one, 1) for one in tiny_inputs(3)]).shape == (3, 192)


# Memory


class Made(Dataset):
    """Pictures that are made when they are read."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return torch.full((3, 8, 8), row / self.length)


def live(test):
    return sum(one.numel() for one in gc.get_objects() if isinstance(one, torch.Tensor) and test(one))


def test_a_large_dataset_was_held_as_one_array():
    """Case 60."""

    def pictures():
        return live(lambda one: one.shape[-3:] == (3, 8, 8))

    def peak(length):
        gc.collect()
        counts, calls, before = [], itertools.count(), pictures()  # other tests may have left some

        def encode(inputs):
            if next(calls) % 3 == 0:
                counts.append(pictures() - before)
            return inputs.flatten(1)

        attacks = {"noise": UniformNoise()}
        run(
            plan(encoders=[encode], dataset=Made(length), attacked=length, bank=length, attacks=attacks, metrics=["divergence"]),
            progress=False,
        )
        return max(counts)

    assert peak(192) == peak(768) < 768 * 192  # some batches, and never all of the inputs


def test_memory_grew_with_each_call():
    """Case 62."""
    encoder, counts = tiny_encoder(), []
    for call in range(40):
        perturb(UPGD(epsilon=0.1, steps=5), encoder, tiny_inputs(2))
        if call in (9, 39):
            gc.collect()
            counts.append(live(lambda one: True))
    assert counts[0] == counts[1]


def test_quantiles_of_many_distances_were_refused():
    """Case 64."""
    values = torch.rand(5832, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bank = rt.Bank(values)
    assert bank.pair_count > 17_000_000
    assert universal_quantile(torch.tensor([0.5]), bank).item() == pytest.approx(0.75, abs=0.02)  # of two uniform numbers
    with pytest.raises(ValueError, match="at least 2 rows"):
        universal_quantile(torch.tensor([0.5]), rt.Bank(values[:1]))


# Measures


def test_a_query_was_its_own_neighbor():
    """Case 67."""
    rows = torch.arange(6.0)[:, None]
    bank = rt.Bank(rows, labels=[0] * 6)
    _, neighbors = bank.nearest(rows, 5, torch.arange(6))
    assert all(sorted(found) == sorted(set(range(6)) - {own}) for own, found in enumerate(neighbors.tolist()))
    with pytest.raises(ValueError, match="k is 6"):
        knn_predictions(rows, bank, torch.arange(6), k=6)


def test_distances_of_encoders_of_another_scale_were_compared():
    """Case 69."""
    reading = read_example("away")
    scaled = reading.trace.__class__(
        **vars(reading.trace) | {name: 1000 * getattr(reading.trace, name) for name in ("clean", "adversarial")}
    )
    bank = rt.Bank(1000 * reading.bank.take(range(40)))
    torch.testing.assert_close(UniversalQuantile()(scaled, bank, reading.context), UniversalQuantile()(*reading), rtol=0, atol=1e-6)
    assert "comparable between encoders" in UniversalQuantile.__doc__


@every_attack
def test_what_was_reported_differed_from_a_second_look(attack):
    """Case 72."""
    encoder, inputs = tiny_encoder(), tiny_inputs()
    trace = perturb(attack, encoder, inputs)
    again = divergences.l2(represent(encoder, inputs).double(), represent(encoder, trace.inputs).double())
    torch.testing.assert_close(trace.divergence, again, rtol=0, atol=0)


@dataclass(frozen=True)
class ById:
    """One row of 12, others 0."""

    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "mean"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, 12)

    def __call__(self, trace, bank, context):
        return torch.tensor([12.0 * (identity == "5") for identity in trace.ids])


def test_a_short_last_batch_weighed_as_much_as_a_full_one():
    """Case 73."""
    for batch in (4, 64):
        results = run(plan(dataset=tiny_inputs(6), metrics={"mine": ById()}, attacked=6), batch=batch, progress=False)
        assert results.summary()["estimate"].tolist() == [2.0]


def test_a_function_that_scipy_removed_was_used():
    """Case 80."""
    for path in [*ROOT.glob("rt_core/**/*.py"), *ROOT.glob("plugins/*/rt_*/**/*.py")]:
        assert not re.search(r"\bbinom_test\b", path.read_text(encoding="utf-8")), path


# Making results again


def test_a_result_did_not_say_its_seed():
    """Case 84."""
    first, again, other = (run(plan(seed=seed), progress=False) for seed in (0, 0, 1))
    assert first.frame.equals(again.frame)
    assert not first.frame["value"].equals(other.frame["value"])
    manifest = json.loads(json.dumps(first.manifest))
    assert manifest["seed"] == 0
    assert {"torch", "rt-core"} <= manifest["versions"].keys()
    assert manifest["plan"]["attacks"]["pgd"]["epsilon"] == 0.1
    assert manifest["encoders"]["tiny"]["fingerprint"] == tiny_encoder().fingerprint


def test_a_job_that_was_stopped_started_over(tmp_path, monkeypatch):
    """Case 91."""
    sizes = {"dataset": tiny_inputs(200), "attacked": 200, "bank": 200}
    whole, saved = run(plan(**sizes), progress=False), []
    from rt_core.store import Store

    original = Store.save

    def dies(self, key, arrays):
        if self.folder is None:
            return  # the rehearsal
        if sum("adversarial" in names for names in saved) == 2 and "adversarial" in arrays:  # two attacked blocks are there
            raise KeyboardInterrupt
        saved.append(set(arrays))
        original(self, key, arrays)

    monkeypatch.setattr(Store, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        run(plan(**sizes), store=tmp_path, progress=False)
    monkeypatch.setattr(Store, "save", original)
    encoder = tiny_encoder()
    resumed = run(plan(encoders=[encoder], **sizes), store=tmp_path, progress=False)

    assert resumed.frame.equals(whole.frame)
    assert encoder.passes.backwards == 2 * (2 + 200 - 2 * 64)  # the rehearsal, and the two blocks that were missing


def test_bars_flooded_the_log(capfd):
    """Case 93."""
    run(plan(), progress=False)
    run(plan(), progress=True)  # no terminal here
    assert capfd.readouterr() == ("", "")


def test_the_loss_in_the_history_was_one_step_off():
    """Case 96."""
    encoder, inputs = tiny_encoder(), tiny_inputs(2)
    trace = perturb(UPGD(epsilon=0.1, steps=3), encoder, inputs)
    assert trace.history.shape == (2, 4)
    again = divergences.l2(represent(encoder, inputs).double(), represent(encoder, trace.inputs).double())
    assert torch.equal(trace.history[:, -1], again)


# Installing and importing


BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout


def test_the_core_needed_what_only_a_bridge_uses():
    """Case 97."""
    code = """
import torch, rt_core as rt
trace = rt.perturb(rt.attack("u_pgd", steps=2), torch.nn.Flatten(), torch.rand(2, 3, 4, 4))
print(trace.inputs.shape[0])
for name, attack in {"art": "FastGradientMethod", "torchattacks": "FGSM"}.items():
    if any(item.entry.name == name for item in rt.installed().items):
        try:
            rt.attack(name, attack=attack)
        except Exception as error:
            print("pip install" in str(error) and name in str(error))
"""
    lines = python(BLOCKED.format(absent={"art", "torchattacks"}) + code).split()
    assert lines[0] == "2"
    assert set(lines[1:]) <= {"True"}


def test_one_import_pulled_everything():
    """Case 98."""
    code = "import sys, rt_core\nprint(*sorted({'art', 'torchattacks', 'sklearn', 'scipy', 'matplotlib', 'pandas', 'torch'} & set(sys.modules)))"
    assert python(code).split() == []
    used = "import sys, torch, rt_core as rt\nrt.perturb(rt.attack('u_pgd', steps=1), torch.nn.Flatten(), torch.rand(2, 3, 4, 4))\n"
    heavy = python(used + "print(*sorted({'art', 'torchattacks', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)))")
    assert heavy.split() == []


# Plugins


@pytest.fixture
def fresh_registry():
    installed.cache_clear()
    yield
    installed.cache_clear()


def adding(name):
    class Hooks:
        @staticmethod
        @rt.hookimpl
        def rt_metrics():
            return [rt.MetricEntry(name=name, summary="mine", factory=dict)]

    return Hooks()


@pytest.mark.usefixtures("fresh_registry")
def test_a_plugin_that_was_registered_twice_crashed():
    """Case 102."""
    mine = adding("breakaway_risk")
    for _ in range(2):
        rt.register(mine)
    assert sum(item.entry.name == "breakaway_risk" for item in installed().items) == 2  # that of the distribution, and this one
    with pytest.raises(rt.AmbiguousName, match=r"rt-label-free-metrics/breakaway_risk.*registered here/breakaway_risk"):
        rt.metric("breakaway_risk")


@pytest.mark.usefixtures("fresh_registry")
def test_a_plugin_that_fails_to_import_stopped_the_others(tmp_path, monkeypatch):
    """Case 103."""
    for name, source in (("bad", "import absent_thing"), ("good", "import rt_core\n@rt_core.hookimpl\ndef rt_metrics():\n    return []")):
        (tmp_path / f"case_103_{name}.py").write_text(source)
        (tmp_path / f"case_{name}-1.dist-info").mkdir()
        (tmp_path / f"case_{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: case-{name}\nVersion: 1\n")
        (tmp_path / f"case_{name}-1.dist-info" / "entry_points.txt").write_text(f"[rt_core.plugins]\nplugin = case_103_{name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RT_PLUGINS", "case-bad,case-good")
    monkeypatch.delenv("RT_STRICT_PLUGINS", raising=False)
    with pytest.warns(rt.PluginWarning, match="case-bad 1 .*ModuleNotFoundError"):
        errors = {plugin.distribution: plugin.error for plugin in Registry().plugins}
    assert errors.keys() == {"case-bad", "case-good"}
    assert isinstance(errors["case-bad"], ModuleNotFoundError)
    assert errors["case-good"] is None
    monkeypatch.setenv("RT_STRICT_PLUGINS", "1")
    with pytest.raises(rt.PluginError, match="case-bad"):
        Registry()


# Processes


def test_what_workers_need_could_not_be_pickled():
    """Case 107."""
    samples = tensors(tiny_inputs(4), labels=[0, 1, 0, 1])
    described = Evaluation(
        [rt.use("module", path="torch.nn:Flatten")], rt.use("tensor", path="x.npz"), {"noise": rt.use("identity")}, ["divergence"]
    )
    for value in (
        *ATTACKS,
        Identity(),
        UniversalQuantile(),
        tiny_encoder(),
        described,
        samples,
        read_example("away").bank,
        rt.SampleRandom.of(0, "ab"),
    ):
        pickle.loads(pickle.dumps(value))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert torch.equal(torch.from_numpy(pool.apply(as_array, (samples, [2, 0]))), tiny_inputs(4)[[2, 0]])


def as_array(samples, rows):
    """For another process: a tensor's memory would be shared, and is gone when the process ends."""
    return samples.inputs(rows).numpy()


def test_padded_shards_counted_samples_twice(tmp_path):
    """Case 109."""
    whole = run(plan(dataset=tiny_inputs(5), attacked=4), store=tmp_path, progress=False)
    merged = rt.Results.load(tmp_path, tmp_path)
    assert merged.summary().equals(whole.summary())
    assert set(merged.summary()["n"]) == {4}


# Targets


@dataclass(frozen=True)
class OnlyAway:
    aims: ClassVar[tuple[str, ...]] = ("away",)

    def __call__(self, encoder, batch, divergence, *, random):
        return batch.inputs.clone()


def test_an_attack_that_cannot_aim_returned_its_inputs_as_adversarial():
    """Case 111."""
    with pytest.raises(ValueError, match=r"does not support aim 'target'.*does not support targets"):
        perturb(OnlyAway(), tiny_encoder(), tiny_inputs(2), targets=tiny_inputs(2))
    with pytest.raises(TypeError, match="not labels"):
        perturb(UPGD(), tiny_encoder(), tiny_inputs(2), targets=torch.tensor([1, 2]))
    with pytest.raises(rt.PlanError, match="attack 'one' supports aim away, and the metrics need target"):
        plan(attacks={"one": OnlyAway()}, metrics=["overlap_risk"])


# Reports


def test_differences_within_noise_were_reported_as_a_ranking():
    """Case 117."""
    results = run(
        plan(encoders={"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)}, dataset=tiny_inputs(50), attacked=50), progress=False
    )
    compared = results.compare("a", "b")
    assert {"difference", "low", "high", "p", "p_corrected", "n"} <= set(compared.columns)
    assert set(compared["n"]) == {50}
    assert set(results.compare("a", "a").query("metric != 'divergence'")["p"]) == {1.0}
    assert {"estimate", "low", "high", "n"} <= set(results.summary().columns)


@every_attack
def test_an_attack_that_failed_for_some_gave_none(attack):
    """Case 119: a whole tensor, always, and a flag for what was stuck."""
    partly = Encoder(lambda inputs: inputs.flatten(1) * (inputs.flatten(1).mean(1, keepdim=True) > 0.5), name="partly")
    inputs = torch.cat([torch.full((3, 3, 4, 4), 0.9), torch.full((1, 3, 4, 4), 0.1)])
    trace = perturb(attack, partly, inputs)
    assert trace.inputs.shape == inputs.shape
    assert trace.inputs.isfinite().all()
    assert trace.stuck.dtype == torch.bool
    assert trace.stuck.tolist() == [False, False, False, True]


def test_inputs_were_normalized_twice():
    """Case 123, its part about normalization."""

    class Normalize(nn.Module):
        def forward(self, inputs):
            return inputs - 0.5

    with pytest.warns(rt.RobustnessWarning, match="normalized twice"):
        Encoder(nn.Sequential(Normalize(), nn.Flatten()), name="one", normalize=((0.5,), (0.5,)))


def test_the_cases_of_one_kind_of_input_are_checked_before_any_pass():
    """Cases 10, 55: what every entrance refuses, `represent` too."""
    for entrance in (lambda inputs: represent(nn.Flatten(), inputs), lambda inputs: check_inputs(inputs, tiny_encoder())):
        with pytest.raises(ValueError, match="finite"):
            entrance(torch.full((1, 3, 8, 8), math.nan))
    assert as_samples(tiny_inputs(2)).ids == ("0", "1")
    assert importlib.util.find_spec("rt_core.testing")

"""The plan: what is wrong is said when it is made, before anything runs; and it travels to a file and back."""

import json
import pickle
import re
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from rt_core import Encoder, Evaluation, PlanError, Suite, UnknownName, divergences, run, use
from rt_core.baselines import Identity, UniformNoise
from rt_core.evaluation import describe
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_label_free_metrics import BreakawayRisk, OverlapRisk
from rt_unsupervised_attacks import UPGD


def forbidden(*arguments):
    raise AssertionError("making a plan must not run or read anything")


class Unread:
    """A dataset that may not be read."""

    def __len__(self):
        return 10

    __getitem__ = forbidden


def plan(**changed):
    parts = {
        "encoders": [Encoder(forbidden, name="unused")],
        "dataset": Unread(),
        "attacks": {"noise": UniformNoise(epsilon=0.1)},
        "metrics": ["breakaway_risk"],
    }
    return Evaluation(**parts | changed)


# What is wrong


@dataclass(frozen=True)
class OnlyAims:
    aims: ClassVar = ("target",)

    def __call__(self, encoder, batch, divergence, *, random):
        return batch.inputs.clone()


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"encoders": []}, PlanError, "no encoder is given"),
        ({"encoders": [nn.Flatten(), nn.Flatten()]}, PlanError, "two encoders are called 'Flatten'; name them by a mapping"),
        ({"encoders": ["reznet"]}, UnknownName, "no encoder is named 'reznet'"),
        ({"dataset": use("photo")}, UnknownName, "no dataset is named 'photo'"),
        ({"attacks": [UniformNoise()]}, PlanError, "attacks is a list; expected a mapping from label"),
        ({"attacks": {"noise": 3}}, PlanError, "attack 'noise' is 3; expected an attack, a Suite or use"),
        ({"attacks": {"pgd": use("u_pdg")}}, UnknownName, "no attack is named 'u_pdg'; did you mean 'u_pgd'"),
        ({"attacks": {"pgd": use("u_pgd", epsilon=-1)}}, ValueError, "epsilon is -1"),
        ({"attacks": {"pgd": use("u_pgd", epsilom=1)}}, ValueError, "no option 'epsilom'; did you mean 'epsilon'"),
        ({"attacks": {}}, PlanError, "no attack is given, and the metrics read attacked representations"),
        (
            {"attacks": {"aim": OnlyAims()}},
            PlanError,
            "attack 'aim' supports aim target, and the metrics need away: it would have nothing to do",
        ),
        ({"metrics": []}, PlanError, "no metric is given"),
        ({"metrics": ["breakaway_risc"]}, UnknownName, "did you mean 'breakaway_risk'"),
        ({"metrics": ["breakaway_risk", BreakawayRisk()]}, PlanError, "two metrics are called 'breakaway_risk'; name them by a mapping"),
        ({"metrics": [use("breakaway_risk", divergence="l7")]}, ValueError, "no divergence is named 'l7'"),
        ({"divergence": "l7"}, ValueError, "no divergence is named 'l7'"),
        ({"attacked": 5}, PlanError, "attacked is 5; samples are attacked in pairs, so it must be even"),
        ({"attacked": 0}, PlanError, "attacked is 0; at least 2"),
        ({"bank": 1}, PlanError, "bank is 1; at least 2"),
        ({"attacked": 8, "bank": 6}, PlanError, r"bank is 6, below attacked \(8\)"),
        ({"bank": 2.5}, PlanError, "bank is 2.5"),
        ({"quantile_bank": 0}, PlanError, "quantile_bank is 0"),
        ({"pairing": "sorted"}, PlanError, "pairing is 'sorted'; expected 'random' or 'given'"),
        ({"seed": "0"}, PlanError, "seed is '0'; expected a whole number"),
    ],
)
def test_what_cannot_run_is_refused_when_the_plan_is_made(changed, error, words):
    with pytest.raises(error, match=words):
        plan(**changed)


@pytest.mark.parametrize("label", [1, None, "", "-", ("a", "b")])
@pytest.mark.parametrize("kind", ["attack", "metric", "encoder"])
def test_a_label_is_a_string_that_tables_can_show(kind, label):
    given = {"attack": use("identity"), "metric": use("divergence"), "encoder": tiny_encoder()}[kind]
    if label is None and kind != "attack":  # named as in a sequence
        assert list(getattr(plan(**{f"{kind}s": {label: given}}), f"{kind}s")) == [{"metric": "divergence"}.get(kind, tiny_encoder().name)]
        return
    with pytest.raises(PlanError, match=re.escape(f"the label of {kind} is {label!r}; expected a string, not empty and not '-'")):
        plan(**{f"{kind}s": {label: given}})


def test_numbers_may_be_numpy_s(tmp_path):
    there, expected = plan(seed=np.int64(3), attacked=np.int32(4)), plan(seed=3, attacked=4)
    assert there.describe() == expected.describe()
    assert type(there.seed) is type(there.attacked) is int
    for wrong in (True, np.bool_(True), 3.0, "3", None):
        with pytest.raises(PlanError, match=r"seed is .*; expected a whole number$"):
            plan(seed=wrong)
        with pytest.raises(PlanError, match=r"bank is .*; expected a whole number of samples$"):
            plan(bank=wrong)


def test_a_plan_reads_and_runs_nothing():
    made = plan()
    assert made.describe()["encoders"]["unused"]["encoder"] == "unused"
    assert plan(dataset=use("folder", path="/absent")).dataset == use("folder", path="/absent")


def test_a_metric_of_clean_samples_needs_no_attack():
    assert plan(attacks={}, metrics=["knn_accuracy"]).attacks == {}


# Labels


def test_encoders_are_called_by_name_model_or_mapping():
    assert list(plan(encoders=nn.Flatten()).encoders) == ["Flatten"]
    assert list(plan(encoders=[tiny_encoder(), nn.Flatten()]).encoders) == ["tiny", "Flatten"]
    assert list(plan(encoders={"a": tiny_encoder(), "b": tiny_encoder()}).encoders) == ["a", "b"]
    assert list(plan(encoders=[use("module", path="torch.nn:Flatten")]).encoders) == ["module"]


def test_metrics_are_called_by_name_and_their_own_divergence():
    metrics = ["breakaway_risk", use("breakaway_risk", divergence="linf"), OverlapRisk(divergence="cosine")]
    assert list(plan(metrics=metrics).metrics) == ["breakaway_risk", "breakaway_risk[linf]", "overlap_risk[cosine]"]
    assert list(plan(metrics="breakaway_risk").metrics) == ["breakaway_risk"]
    assert list(plan(metrics={"mine": "breakaway_risk"}).metrics) == ["mine"]


def test_a_suite_s_members_are_ordinary_attacks():
    suite = Suite({"noise": UniformNoise(), "still": Identity()})
    assert list(plan(attacks={"both": suite, "one": use("identity")}).made_attacks()) == ["both/noise", "both/still", "one"]


# Files


DESCRIBED = {
    "encoders": {
        "first": use("module", path="torch.nn:Flatten", bounds=[0, 1]),
        "the second": use("module", path="torch.nn:Flatten", name="é"),
    },
    "dataset": use("tensor", path="inputs.npz"),
    "attacks": {"u-pgd": use("u_pgd", epsilon=0.05, steps=10, marks=[5, 10]), "noise": use("uniform_noise")},
    "metrics": {"breakaway_risk": use("breakaway_risk"), "far [linf]": use("breakaway_risk", divergence="linf")},
}


def test_a_plan_of_descriptions_goes_to_a_file_and_back(tmp_path):
    made = Evaluation(**DESCRIBED, divergence="cosine", attacked=20, bank=30, quantile_bank=25, pairing="given", seed=7)
    made.to_toml(tmp_path / "study.toml")
    read = Evaluation.from_toml(tmp_path / "study.toml")

    assert read == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert json.loads(json.dumps(made.describe())) == read.describe()


def test_a_range_is_written_as_its_numbers(tmp_path):
    made = Evaluation(**{**DESCRIBED, "attacks": {"u-pgd": use("u_pgd", steps=3, marks=range(1, 4))}})
    made.to_toml(tmp_path / "study.toml")
    assert Evaluation.from_toml(tmp_path / "study.toml").attacks["u-pgd"].options["marks"] == [1, 2, 3]
    assert made.describe()["attacks"]["u-pgd"]["marks"] == [1, 2, 3]


def test_numpy_s_numbers_and_an_editor_s_mark_at_the_start_are_no_trouble(tmp_path):
    attack = use("u_pgd", epsilon=np.float64(0.5), steps=np.int64(3), marks=[np.int64(2)])
    Evaluation(**DESCRIBED | {"attacks": {"pgd": attack}}).to_toml(tmp_path / "study.toml")
    made = Evaluation.from_toml(tmp_path / "study.toml")
    assert made.attacks["pgd"] == use("u_pgd", epsilon=0.5, steps=3, marks=[2])
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "study.toml").read_bytes())
    assert Evaluation.from_toml(tmp_path / "study.toml") == made
    (tmp_path / "study.toml").write_text("seed = 0", encoding="utf-16")
    with pytest.raises(PlanError, match=r"study.toml is not TOML: 'utf-8' codec"):
        Evaluation.from_toml(tmp_path / "study.toml")


def test_live_objects_do_not_travel(tmp_path):
    with pytest.raises(
        PlanError, match=r"live objects \(dataset, encoders unused, attacks noise\), which cannot travel; describe them by use"
    ):
        plan().to_toml(tmp_path / "study.toml")
    with pytest.raises(PlanError, match="the divergence"):
        Evaluation(**DESCRIBED, divergence=divergences.l2).to_toml(tmp_path / "study.toml")
    assert not (tmp_path / "study.toml").exists()


STUDY = """
seed = 3
attacked = 4
store = "runs/first"

[dataset]
use = "tensor"
path = "inputs.npz"

[encoders.module]
path = "torch.nn:Flatten"

[attacks.noise]
use = "uniform_noise"

[attacks.pgd]
use = "u_pgd"
steps = 2
grid = { epsilon = [0.05, 0.1], norm = ["linf", "l2"] }

[metrics.breakaway_risk]
[metrics.overlap_risk]
"""


def write(tmp_path, text):
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    return tmp_path / "study.toml"


def test_a_grid_becomes_an_attack_for_each_combination(tmp_path):
    made = Evaluation.from_toml(write(tmp_path, STUDY))

    assert list(made.attacks) == [
        "noise",
        "pgd[epsilon=0.05,norm=linf]",
        "pgd[epsilon=0.05,norm=l2]",
        "pgd[epsilon=0.1,norm=linf]",
        "pgd[epsilon=0.1,norm=l2]",
    ]
    assert made.made_attacks()["pgd[epsilon=0.1,norm=l2]"] == UPGD(epsilon=0.1, norm="l2", steps=2)
    assert (made.seed, made.attacked, made.bank) == (3, 4, 10_000)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 3", "seed = ", "study.toml is not TOML"),
        ("seed = 3", "sede = 3", "has unknown keys sede; a study has attacked, attacks"),
        ('[dataset]\nuse = "tensor"\npath = "inputs.npz"', "", "lacks dataset"),
        (
            "[metrics.breakaway_risk]\n[metrics.overlap_risk]",
            "[metrics]\noverlap_risk = 3",
            "overlap_risk is 3; expected a table of options",
        ),
        ("attacked = 4", "attacked = 3", "attacked is 3; samples are attacked in pairs"),
        ("[metrics.overlap_risk]", "[metrics.overlap]", "no metric is named 'overlap'"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, old, new, words):
    assert old in STUDY
    with pytest.raises((PlanError, UnknownName), match=words):
        Evaluation.from_toml(write(tmp_path, STUDY.replace(old, new)))


def test_a_study_runs_as_the_plan_that_it_was_written_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("inputs.npz", inputs=tiny_inputs(6).numpy())
    results = run(Evaluation.from_toml(write(tmp_path, STUDY)), progress=False)
    assert set(results.frame["attack"]) == {
        "noise",
        *(f"pgd[epsilon={epsilon},norm={norm}]" for epsilon in (0.05, 0.1) for norm in ("linf", "l2")),
    }
    assert set(results.frame["metric"]) == {"breakaway_risk", "overlap_risk"}


# Descriptions


def test_descriptions_are_json_and_tell_settings_apart():
    for value in (
        UniformNoise(epsilon=0.1),
        use("u_pgd", marks=(1, 2)),
        tiny_encoder(),
        partial(divergences.wasserstein2, squared=True),
        {"a": torch.zeros(2), 1: float("inf")},
        Suite({"noise": UniformNoise()}),
    ):
        json.dumps(describe(value), allow_nan=False)
    assert describe(UniformNoise(epsilon=0.1)) != describe(UniformNoise(epsilon=0.2))
    assert describe(UniformNoise(epsilon=0.1)) == {"class": "rt_core.baselines.UniformNoise", "epsilon": 0.1, "mask": None}
    assert describe(tiny_encoder(seed=1)) != describe(tiny_encoder(seed=2))


def test_a_suite_needs_one_member_with_something_to_do_and_labels_of_its_own():
    pairs = plan(attacks={"suite": use("ensemble", epsilon=0.1)}, metrics=["overlap_risk"])
    assert "suite/apgd" in pairs.made_attacks()
    with pytest.raises(PlanError, match="two attacks are called 's/a', one of them in a suite; give the suite or the attack another label"):
        plan(attacks={"s/a": use("identity"), "s": Suite({"a": UniformNoise()})})

"""What is fitted before it is used: once for each encoder, on other samples, kept in the store, the same when it is read again."""

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch

from rt_core import Ball, Encoder, Evaluation, PlanError, Results, RobustnessWarning, StoreError, represent, run, transfer, use
from rt_core.datasets import as_samples, tensors
from rt_core.store import Store
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.traces import FrozenTensor
from rt_unsupervised_attacks import LPGD, UPGD, UniversalPerturbation

TRAIN = tiny_inputs(100, purpose="train")
CALLS = []


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Add what the mean training input is above a half."""

    epsilon: float = 0.1
    delta: FrozenTensor | None = None

    @property
    def ball(self):
        return Ball("linf", self.epsilon)

    def fit(self, encoder, train, divergence, *, random):
        CALLS.append(("attack", encoder.name, len(train)))
        mean = train.inputs(range(len(train))).mean(0, keepdim=True)
        return replace(self, delta=FrozenTensor.of(self.epsilon * (mean - 0.5).sign()))

    def __call__(self, encoder, batch, divergence, *, random):
        return self.ball.project(batch.inputs + self.delta.on(batch.inputs.device), batch.inputs, encoder.bounds)


@dataclass(frozen=True, kw_only=True)
class FromMean:
    """How far a representation is from the mean training one."""

    center: FrozenTensor | None = None
    about: str = ""
    keep: Any = field(default=None, compare=False)
    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, float("inf"))

    def fit(self, encoder, train, *, random):
        CALLS.append(("metric", encoder.name, len(train)))
        return replace(self, center=FrozenTensor.of(represent(encoder, train).mean(0)), about=f"{len(train)} samples")

    def __call__(self, trace, bank, context):
        return (trace.adversarial - self.center.on(torch.device("cpu"))).double().norm(dim=1)


def plan(**changed):
    parts = {
        "encoders": {"one": tiny_encoder(seed=1), "two": tiny_encoder(seed=2)},
        "dataset": tiny_inputs(30),
        "attacks": {"shift": Shift()},
        "metrics": {"far": FromMean(), "quantile": use("universal_quantile")},
        "attacked": 20,
        "bank": 30,
        "train": TRAIN,
    }
    return Evaluation(**parts | changed)


def test_each_encoder_has_its_own_fit_on_other_samples():
    CALLS.clear()
    results = run(plan(), progress=False)
    real = [call for call in CALLS if call[2] == 100]
    assert sorted(real) == 2 * [("attack", "tiny", 100)] + 2 * [("metric", "tiny", 100)]
    order = [int(sample) for sample in results.manifest["samples"]["sample"]]
    encoder, inputs = tiny_encoder(seed=2), tiny_inputs(30)[order]
    delta = 0.1 * (TRAIN.mean(0) - 0.5).sign()
    moved = represent(encoder, Ball("linf", 0.1).project(inputs + delta, inputs, (0, 1)))
    expected = (moved - represent(encoder, TRAIN).mean(0)).double().norm(dim=1)
    rows = results.frame[(results.frame["encoder"] == "two") & (results.frame["metric"] == "far")]
    assert rows["value"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_fit_is_kept_and_not_made_again(tmp_path):
    first = run(plan(), store=tmp_path, progress=False)
    CALLS.clear()
    again = run(plan(), store=tmp_path, progress=False)
    assert CALLS == []
    pd.testing.assert_frame_equal(first.frame, again.frame)
    other = run(plan(train=tiny_inputs(100, purpose="other")), store=tmp_path, progress=False)
    assert len([call for call in CALLS if call[2] == 100]) == 4
    assert not other.frame["value"].equals(first.frame["value"])


@dataclass(frozen=True, kw_only=True)
class Center:
    """The mean training representation, as a part of metrics and losses."""

    power: int = 1
    fitted: FrozenTensor | None = None

    def fit(self, encoder, train, *, random):
        CALLS.append(("part", encoder.name, len(train)))
        return replace(self, fitted=FrozenTensor.of(represent(encoder, train).mean(0)))


@dataclass(frozen=True, kw_only=True)
class FromCenter:
    """How far a representation is from a center."""

    center: Center = Center()
    scale: float = 1.0
    aim: ClassVar[str] = "away"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    per: ClassVar[str] = "sample"
    span: ClassVar[tuple[float, float]] = (0, float("inf"))

    def __call__(self, trace, bank, context):
        return self.scale * (trace.adversarial - self.center.fitted.on(torch.device("cpu"))).double().norm(dim=1)


@dataclass(frozen=True, kw_only=True)
class Nested:
    """A loss, which holds a metric, which holds a center."""

    inner: FromCenter = FromCenter()

    def __call__(self, encoder, batch, moved, random):
        return (encoder(moved) - self.inner.center.fitted.on(moved.device)).norm(dim=1)


def test_a_part_is_fitted_once_however_many_metrics_and_attacks_hold_it(tmp_path):
    CALLS.clear()
    metrics = {"far": FromCenter(), "twice": FromCenter(scale=2.0), "other": FromCenter(center=Center(power=2))}
    attacks = {"loss": LPGD(loss=Nested(), epsilon=0.1, steps=3)}
    results = run(plan(encoders={"one": tiny_encoder(seed=1)}, metrics=metrics, attacks=attacks), store=tmp_path, progress=False)
    assert [size for kind, _, size in CALLS if kind == "part"].count(100) == 2  # of power 1 and of power 2
    values = {name: rows["value"].to_numpy() for name, rows in results.frame.groupby("metric")}
    assert values["twice"].tolist() == (2 * values["far"]).tolist()
    assert values["other"].tolist() == values["far"].tolist()
    assert results.manifest["plan"]["metrics"]["far"]["train"] == results.manifest["plan"]["attacks"]["loss"]["train"] != ""
    CALLS.clear()
    again = run(plan(encoders={"one": tiny_encoder(seed=1)}, metrics=metrics, attacks=attacks), store=tmp_path, progress=False)
    assert CALLS == []
    pd.testing.assert_frame_equal(results.frame, again.frame)


def test_what_is_fitted_already_is_taken_as_it_is():
    center = Center().fit(tiny_encoder(seed=1), as_samples(TRAIN), random=None)
    CALLS.clear()
    parts = {"encoders": {"one": tiny_encoder(seed=1)}, "attacks": {"noise": use("uniform_noise", epsilon=0.1)}}
    given = run(plan(**parts, train=None, metrics={"far": FromCenter(center=center)}), progress=False)
    assert CALLS == []
    fitted = run(plan(**parts, metrics={"far": FromCenter()}), progress=False)
    assert given.frame["value"].tolist() == fitted.frame["value"].tolist()
    with pytest.raises(PlanError, match="the plan has no train, and 'far' must be fitted"):
        plan(**parts, train=None, metrics={"far": FromCenter()})


def test_the_rehearsal_fits_on_samples_of_all_of_train():
    rows = []

    class Looking(Center):
        def fit(self, encoder, train, *, random):
            rows.append(train.ids)
            return super().fit(encoder, train, random=random)

    run(plan(encoders={"one": tiny_encoder()}, metrics={"far": FromCenter(center=Looking())}, train=TRAIN), progress=False)
    assert len(rows[0]) == 64
    assert (rows[0][0], rows[0][-1]) == ("0", "99")
    assert len(rows[-1]) == 100


def labelled(labels, inputs=TRAIN):
    return tensors(inputs, labels=labels)


def test_a_rehearsal_fits_on_every_class_however_rare():
    rows = []

    class Looking(Center):
        def fit(self, encoder, train, *, random):
            rows.append(train.labels(range(len(train))))
            return super().fit(encoder, train, random=random)

    rare = [9 if row in (31, 77) else 8 if row == 55 else 0 for row in range(100)]
    run(plan(encoders={"one": tiny_encoder()}, metrics={"far": FromCenter(center=Looking())}, train=labelled(rare)), progress=False)
    assert len(rows[0]) == 64
    assert (rows[0].count(9), rows[0].count(8)) == (2, 1)


def test_other_labels_of_the_same_samples_are_another_train(tmp_path):
    CALLS.clear()
    parts = {
        "encoders": {"one": tiny_encoder(seed=1)},
        "metrics": {"far": FromCenter()},
        "attacks": {"noise": use("uniform_noise", epsilon=0.1)},
    }
    first = run(plan(**parts, train=labelled([0] * 100)), store=tmp_path, progress=False)
    with pytest.warns(RobustnessWarning, match="metric 'far' is another than in the earlier run"):
        second = run(plan(**parts, train=labelled([1] * 100)), store=tmp_path, progress=False)
    assert [size for kind, _, size in CALLS if kind == "part"].count(100) == 2
    trains = [results.manifest["plan"]["metrics"]["far"]["train"] for results in (first, second)]
    assert trains[0] != trains[1]


@dataclass(frozen=True, kw_only=True)
class Numbered(FromMean):
    """A metric with a fit of its own and a part that is fitted."""

    number: int = 0
    part: Center = Center()

    def __call__(self, trace, bank, context):
        return torch.full((len(trace),), float(self.number), dtype=torch.float64)


def test_metrics_with_a_part_and_a_fit_of_their_own_are_not_mixed_up(tmp_path):
    metrics = {f"m{number}": Numbered(number=number) for number in range(12)}
    for _ in range(2):
        results = run(plan(encoders={"one": tiny_encoder()}, metrics=metrics), store=tmp_path, progress=False)
        assert {name: rows["value"].unique().tolist() for name, rows in results.frame.groupby("metric")} == {
            f"m{number}": [float(number)] for number in range(12)
        }


def test_a_fit_that_takes_a_batch_gets_the_run_s():
    sizes = []

    class Batched(Center):
        def fit(self, encoder, train, *, random, batch=64):
            sizes.append(batch)
            return super().fit(encoder, train, random=random)

    run(plan(encoders={"one": tiny_encoder()}, metrics={"far": FromCenter(center=Batched())}), batch=5, progress=False)
    assert set(sizes) == {5}


def test_measured_samples_that_are_fitted_on_are_warned_about():
    inputs = tiny_inputs(30)
    parts = {"encoders": {"one": tiny_encoder()}, "metrics": {"far": FromCenter()}, "attacks": {"noise": use("uniform_noise", epsilon=0.1)}}
    with pytest.warns(RobustnessWarning, match="20 of 20 attacked samples are in train as well"):
        run(plan(**parts, train=inputs), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(plan(**parts), progress=False)  # other samples, though they are called 0, 1, 2, … as well
        run(plan(**parts | {"metrics": {"quantile": use("universal_quantile")}}, train=inputs), progress=False)


def test_the_passes_of_a_fit_are_in_the_estimate(monkeypatch):
    def slow(inputs):
        time.sleep(0.002 * len(inputs))
        return inputs.flatten(1)

    parts = {"encoders": {"one": Encoder(slow, name="slow")}, "metrics": {"far": FromCenter()}, "attacks": {"still": use("identity")}}
    results = run(plan(**parts, attacked=2, bank=30, train=tiny_inputs(400, purpose="train")), progress=False)
    assert 0.7 < results.manifest["estimated_seconds"] < 4


def test_a_transfer_fits_its_attacks_alone():
    CALLS.clear()
    one, two = tiny_encoder(seed=1), tiny_encoder(seed=2)
    transfer({"a": one}, {"b": two}, tiny_inputs(30), {"shift": Shift()}, {"far": FromMean()}, attacked=20, train=TRAIN, progress=False)
    assert [kind for kind, _, size in CALLS if size == 100] == ["attack", "metric"]


def test_what_is_said_of_a_fit_on_few_samples_is_not_said():
    class Wordy(Center):
        def fit(self, encoder, train, *, random):
            warnings.warn(f"fitted on {len(train)}", RobustnessWarning, stacklevel=2)
            return super().fit(encoder, train, random=random)

    with pytest.warns(RobustnessWarning) as said:
        run(plan(encoders={"one": tiny_encoder()}, metrics={"far": FromCenter(center=Wordy())}, train=TRAIN), progress=False)
    assert [str(one.message) for one in said if "fitted on" in str(one.message)] == ["fitted on 100"]


def test_a_fit_that_fails_after_the_rehearsal_costs_its_own_rows_and_is_tried_again(tmp_path):
    sick, tries = ["one"], []

    class Failing(Center):
        def fit(self, encoder, train, *, random):
            if len(train) == 100:
                tries.append(encoder.name)
                if encoder.name in sick:
                    raise ArithmeticError("on purpose")
            return super().fit(encoder, train, random=random)

    center = Failing(power=7)
    parts = {
        "encoders": {name: Encoder(tiny_encoder(seed=seed), name=name) for seed, name in enumerate(("one", "two"))},
        "attacks": {
            "noise": use("uniform_noise", epsilon=0.1),
            "loss": LPGD(loss=Nested(inner=FromCenter(center=center)), epsilon=0.1, steps=1),
        },
        "metrics": {"far": FromCenter(center=center), "twice": FromCenter(center=center, scale=2.0), "quantile": use("universal_quantile")},
    }
    with pytest.warns(
        RobustnessWarning, match="3 blocks or fits failed and .*the last: ArithmeticError: on purpose in encoder 'one', metric 'twice'"
    ):
        results = run(plan(**parts), store=tmp_path, progress=False)
    assert tries == ["one", "two"]  # once for three
    whose = [{name: value for name, value in error.items() if name not in ("error", "at")} for error in results.manifest["errors"]]
    assert whose == [{"encoder": "one", "attack": "loss"}, *({"encoder": "one", "metric": label} for label in ("far", "twice"))]
    rows = results.frame.groupby(["encoder", "attack", "metric"]).size()
    assert rows.to_dict() == {
        ("one", "noise", "quantile"): 20,
        **{("two", attack, metric): 20 for attack in ("loss", "noise") for metric in ("far", "quantile", "twice")},
    }
    sick.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = run(plan(**parts), store=tmp_path, progress=False)
    assert (tries, mended.manifest["errors"]) == (["one", "two", "one"], [])
    assert mended.frame.groupby("encoder").size().tolist() == [120, 120]


def test_a_store_that_cannot_be_written_is_no_failed_fit(tmp_path, monkeypatch):
    save = Store.save

    def full(self, key, arrays):
        if any(name.startswith("tensor/") for name in arrays):
            raise StoreError("no space left")
        save(self, key, arrays)

    monkeypatch.setattr(Store, "save", full)
    with pytest.raises(StoreError, match="no space left"):
        run(plan(encoders={"one": tiny_encoder()}), store=tmp_path, progress=False)


def test_what_must_be_fitted_needs_something_to_be_fitted_on():
    with pytest.raises(PlanError, match="the plan has no train, and 'shift', 'far' must be fitted; give train="):
        plan(train=None)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda self, encoder, train, *, random: 3, "fit of Broken returned int; it must return itself"),
        (lambda self, encoder, train, *, random: replace(self, keep=[1]), "set keep to a list, which a store cannot keep"),
    ],
)
def test_a_fit_that_cannot_be_kept_is_refused_in_the_rehearsal(fit, words):
    @dataclass(frozen=True, kw_only=True)
    class Broken(FromMean):
        keep: Any = None

    Broken.fit = fit
    with pytest.raises(PlanError, match=words):
        run(plan(metrics={"broken": Broken()}), progress=False)


def test_a_plan_with_train_is_described_and_travels(tmp_path):
    made = Evaluation(
        encoders=[use("module", path="rt_core.testing:tiny_encoder")],
        dataset=use("digits"),
        attacks={"universal": use("universal", epsilon=0.1)},
        metrics=["universal_quantile"],
        train=use("digits"),
    )
    made.to_toml(tmp_path / "study.toml")
    assert "[train]" in (tmp_path / "study.toml").read_text()
    again = Evaluation.from_toml(tmp_path / "study.toml")
    assert again.describe() == made.describe()
    assert again.train == use("digits")


def test_a_universal_perturbation_is_fitted_and_measured_on_unseen_samples():
    attacks = {"universal": UniversalPerturbation(epsilon=0.1, epochs=2, batch=25)}
    results = run(plan(attacks=attacks, metrics=["divergence"]), progress=False)
    assert (results.frame["value"] > 0).all()
    noise = run(plan(attacks={"noise": use("uniform_noise", epsilon=0.1)}, metrics=["divergence"]), progress=False)
    assert results.frame["value"].median() > 1.5 * noise.frame["value"].median()


@pytest.mark.parametrize("changed", ["train", "mask"])
def test_rows_of_another_fit_or_mask_do_not_stand_in_one_table(tmp_path, changed):
    mask = torch.ones(8, 8, dtype=torch.bool)

    def once(which, metric):
        if changed == "train":
            made = plan(metrics=[metric], train=(TRAIN, tiny_inputs(100, purpose="other"))[which])
        else:
            shape = mask.clone()
            shape[0, which] = False
            made = plan(metrics=[metric], train=None, attacks={"shift": UPGD(epsilon=0.1, steps=1, mask=shape)})
        return run(made, store=tmp_path, progress=False)

    once(0, "divergence")
    with pytest.warns(RobustnessWarning, match="attack 'shift' is another than in the earlier run"):
        once(1, "cosine_similarity")
    assert set(Results.load(tmp_path).frame["metric"]) == {"cosine_similarity"}


def test_samples_are_read_no_more_often_because_something_is_fitted():
    class Counted(torch.utils.data.Dataset):
        def __init__(self):
            self.reads = 0

        def __len__(self):
            return 30

        def __getitem__(self, row):
            self.reads += 1
            return tiny_inputs(30)[row], row % 3

    def reads(**changed):
        dataset = Counted()
        run(plan(dataset=dataset, metrics=["universal_quantile"], **changed), progress=False)
        return dataset.reads

    plain = reads(attacks={"shift": use("uniform_noise", epsilon=0.1)}, train=None)
    assert abs(reads() - plain) < 10  # a picture of the gallery may be another, and none of the 30 samples is read again

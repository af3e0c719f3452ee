"""One loop over data: the same rows whatever the batch, the order or the interruption, and everything measured again on the way."""

import json
import random as python_random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from rt_core import (
    AttackViolation,
    Attempt,
    Ball,
    Bank,
    Encoder,
    EncoderError,
    Evaluation,
    InvalidInputs,
    MissingLabels,
    PlanError,
    Results,
    RobustnessWarning,
    SampleRandom,
    ShapeError,
    StoreError,
    Suite,
    divergences,
    perturb,
    represent,
    run,
    use,
)
from rt_core.baselines import Identity, UniformNoise
from rt_core.datasets import tensors
from rt_core.perturbing import BLOCK
from rt_core.registry import Use
from rt_core.testing import linear_encoder, tiny_encoder, tiny_inputs
from rt_core.traces import Rows
from rt_label_free_metrics import BreakawayRisk, Divergence, OverlapRisk, breakaway_risk, universal_quantile
from rt_unsupervised_attacks import UFGSM, UPGD


@dataclass(frozen=True, kw_only=True)
class Doing:
    """An attack that does what it is told: ``do`` is called as the attack would be."""

    do: Any = field(compare=False, repr=False)
    ball: Any = None
    label: str = ""

    def __call__(self, encoder, batch, divergence, *, random):
        return self.do(encoder, batch, divergence, random)


@dataclass(frozen=True)
class Counting:
    """A metric that gives what it is told."""

    make: Any = field(compare=False, repr=False)
    aim: str = "away"
    per: str = "sample"
    better: ClassVar[str] = "lower"
    statistic: ClassVar[str] = "median"
    span: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))

    def __call__(self, trace, bank, context):
        return self.make(trace, bank, context)


def frames_equal(first, second):
    keys = ["encoder", "attack", "aim", "step", "metric", "sample"]
    pd.testing.assert_frame_equal(
        *(frame.sort_values(keys, ignore_index=True) for frame in (first, second)), check_exact=True, check_like=False
    )


# perturb


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(
    "attack", [UPGD(epsilon=0.1, steps=3, marks=(1,)), UFGSM(epsilon=0.1), UniformNoise(epsilon=0.1)], ids=lambda one: type(one).__name__
)
def test_a_trace_is_the_same_for_every_batch_and_order(attack, targeted):
    inputs, encoder = tiny_inputs(33), tiny_encoder()
    ids, targets = [f"photo {row}" for row in range(33)], inputs.flip(-1) if targeted else None
    whole = perturb(attack, encoder, inputs, targets=targets, ids=ids, batch=32)

    for size in (1, 7, 33):
        trace = perturb(attack, encoder, inputs, targets=targets, ids=ids, batch=size)
        for name in ("inputs", "adversarial", "clean", "divergence", "history", "stuck", "targets"):
            one, other = getattr(trace, name), getattr(whole, name)
            assert (one is None and other is None) or torch.equal(one, other), f"{name}, batch {size}"
        assert all(torch.equal(trace.marks[mark], whole.marks[mark]) for mark in whole.marks)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(1))
    part = order[:9]
    some = perturb(
        attack, encoder, inputs[part], targets=None if targets is None else targets[part], ids=[ids[row] for row in part], batch=4
    )
    assert torch.equal(some.inputs, whole.inputs[part])
    assert torch.equal(some.divergence, whole.divergence[part])


def test_what_is_reported_is_measured_on_what_is_returned():
    inputs, encoder = tiny_inputs(6), tiny_encoder()
    for targets in (None, inputs.flip(-1)):
        trace = perturb(UPGD(epsilon=0.1, steps=3, marks=(2,)), encoder, inputs, targets=targets)
        with torch.no_grad():
            anchor = encoder(inputs if targets is None else targets)
            assert torch.equal(trace.adversarial, encoder(trace.inputs))
            assert torch.equal(trace.marked[2], encoder(trace.marks[2]))
        assert torch.equal(trace.divergence, divergences.l2(anchor.double(), trace.adversarial.double()))
        assert trace.history.shape == (6, 4)
        assert torch.equal(trace.history[:, -1], trace.divergence)
        assert (trace.step, trace.aim) == (3, "away" if targets is None else "target")


def test_the_seed_and_the_ids_are_what_draws_depend_on():
    inputs, encoder, noise = tiny_inputs(4), tiny_encoder(), UniformNoise(epsilon=0.1)
    first = perturb(noise, encoder, inputs, seed=3).inputs

    assert torch.equal(perturb(noise, encoder, inputs, seed=3, ids=["0", "1", "2", "3"]).inputs, first)
    for other in (perturb(noise, encoder, inputs, seed=4), perturb(noise, encoder, inputs, seed=3, ids="abcd")):
        assert not (other.inputs == first).flatten(1).all(1).any()


def test_ids_of_another_number_are_refused():
    with pytest.raises(ShapeError, match="4 inputs and 3 ids"):
        perturb(Identity(), tiny_encoder(), tiny_inputs(4), ids="abc")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"targets": torch.tensor([1, 2, 3, 4])}, TypeError, r"targets is torch.int64; expected inputs of the same shape .*not labels"),
        ({"targets": tiny_inputs(3)}, ShapeError, r"targets has shape \[3, 3, 8, 8\]; expected that of the inputs, \[4"),
        ({"targets": tiny_inputs(4) + 1}, InvalidInputs, "targets lies in"),
        ({"start": tiny_inputs(3)}, ShapeError, "start has shape"),
        ({"divergence": "l9"}, ValueError, "no divergence is named 'l9'"),
        ({"batch": 0}, ValueError, "batch is 0; expected a positive number"),
        ({"batch": True}, ValueError, "batch is True; expected a positive number"),
        ({"bank": tiny_inputs(4) + 1}, InvalidInputs, "bank lies in"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_any_pass(options, error, words):
    encoder = tiny_encoder()
    with pytest.raises(error, match=words):
        perturb(UPGD(steps=1), encoder, tiny_inputs(4), **options)
    assert encoder.passes.backwards == 0


@pytest.mark.parametrize(
    ("epsilon", "norm", "bounds"), [(8, "linf", (0, 1)), (1.5, "linf", (0, 1)), (16, "l2", (0, 1)), (2.5, "linf", (-1, 1))]
)
def test_an_epsilon_beyond_the_bounds_is_refused(epsilon, norm, bounds):
    with pytest.raises(ValueError, match=f"epsilon is {epsilon:g}; inputs span a range") as raised:
        perturb(UPGD(epsilon=epsilon, norm=norm), tiny_encoder(bounds=bounds), tiny_inputs(2))
    assert (f"write {epsilon:g}/255, not {epsilon:g}" in str(raised.value)) == (bounds == (0, 1))


def test_a_suite_is_not_one_attack():
    with pytest.raises(ValueError, match=r"a suite is 2 attacks \(a, b\); perturb takes one of them, run takes the suite"):
        perturb(Suite({"a": Identity(), "b": Identity()}), tiny_encoder(), tiny_inputs(2))


OUTSIDE = {
    "the shape": (lambda inputs: inputs[:, :1], "returned torch.float32 .2, 1, 8, 8.; expected torch.float32 .2, 3, 8, 8."),
    "the number": (lambda inputs: inputs[:1], r"returned torch.float32 \[1, 3"),
    "the dtype": (lambda inputs: inputs.double(), "returned torch.float64"),
    "what it is": (lambda inputs: inputs.tolist(), "returned list"),
    "NaN": (lambda inputs: inputs.index_fill(0, torch.tensor([1]), float("nan")), "returned NaN or infinity for sample 'b'"),
    "the bounds": (lambda inputs: inputs + torch.tensor([0.0, 0.001]).view(2, 1, 1, 1), "moved sample 'b' out of the encoder's bounds"),
    "the ball": (lambda inputs: (inputs * 0.9).clamp(0, 1), r"by 0\.1\d* \(linf\), and its ball has radius 0.05; end with ball.project"),
    "its arguments": (lambda inputs: inputs.mul_(0.999), "changed the inputs that it was given in place"),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_an_attack_that_breaks_its_promise_is_stopped_by_name(what):
    change, words = OUTSIDE[what]
    attack = Doing(do=lambda encoder, batch, divergence, random: change(batch.inputs), ball=Ball("linf", 0.05))
    with pytest.raises(AttackViolation, match=words):
        perturb(attack, tiny_encoder(), tiny_inputs(2), ids="ab")


def test_marks_are_held_to_the_same_promises():
    def far(encoder, batch, divergence, random):
        return Attempt(inputs=batch.inputs.clone(), marks={1: (batch.inputs * 0.9)})

    with pytest.raises(AttackViolation, match=r"its ball has radius 0.05"):
        perturb(Doing(do=far, ball=Ball("linf", 0.05)), tiny_encoder(), tiny_inputs(2))


def test_a_last_bit_outside_the_ball_is_outside():
    def further(encoder, batch, divergence, random):
        low, _ = Ball("linf", 0.05).box(batch.inputs, encoder.bounds)
        return torch.nextafter(low, torch.tensor(-1.0)).clamp(0, 1)

    with pytest.raises(AttackViolation, match="ball has radius"):
        perturb(Doing(do=further, ball=Ball("linf", 0.05)), tiny_encoder(), tiny_inputs(2) * 0.5 + 0.25)


def test_a_given_start_is_taken_as_it_is():
    inputs = tiny_inputs(2) * 0.5 + 0.25
    start = inputs + 0.2  # outside the ball: the steps bring it back in
    trace = perturb(UPGD(epsilon=0.1, step=0.01, steps=1), tiny_encoder(), inputs, start=start)
    assert ((trace.inputs - inputs).abs() <= 0.1 + 1e-6).all()
    attack = Doing(do=lambda encoder, batch, divergence, random: batch.start, ball=Ball("linf", 0.1))
    assert torch.equal(perturb(attack, tiny_encoder(), inputs, start=start).inputs, start)


def test_an_error_says_where_it_was():
    def fail(encoder, batch, divergence, random):
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError) as raised:
        perturb(Doing(do=fail), tiny_encoder(), tiny_inputs(5), ids="abcde", batch=2)
    assert raised.value.__notes__ == ["in attack 'Doing', aim away, on encoder tiny, samples a to b".replace("tiny", "'tiny'")]


def test_a_library_s_global_generators_are_seeded_by_sample_and_put_back():
    def draw(encoder, batch, divergence, random):
        numbers = torch.tensor([python_random.random(), np.random.random(), torch.rand(1).item()])
        return batch.inputs * 0 + numbers.repeat(64).view(1, 3, 8, 8)

    before = torch.get_rng_state()
    first, again, other = (perturb(Doing(do=draw), tiny_encoder(), tiny_inputs(2), seed=seed).inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_the_bank_holds_others_and_knows_each_sample_s_own_row():
    seen = []

    def look(encoder, batch, divergence, random):
        seen.append((len(batch.bank), batch.own.tolist()))
        return batch.inputs.clone()

    encoder, inputs = tiny_encoder(), tiny_inputs(6)
    perturb(Doing(do=look), encoder, inputs[:3], bank=inputs[1:])  # sample 0 is not in it
    perturb(Doing(do=look), encoder, inputs[:3], bank=Bank(represent(encoder, inputs), ids="cbadef"), ids="abc")
    assert seen == [(5, [-1, 0, 1]), (6, [2, 1, 0])]


def test_a_sample_s_own_row_is_found_by_its_input_or_its_id_if_that_was_given():
    seen = []

    def look(encoder, batch, divergence, random):
        seen.append(batch.own.tolist())
        return batch.inputs.clone()

    encoder, inputs = tiny_encoder(), tiny_inputs(6)
    uneven = Encoder(lambda inputs: inputs.flatten(1) * (1 + len(inputs) / 100), name="uneven")  # rows depend on the batch, as many do
    perturb(Doing(do=look), uneven, inputs[:3], bank=inputs.flip(0))
    perturb(Doing(do=look), uneven, inputs[:3], bank=inputs.flip(0), ids=["bank/0", "bank/1", "bank/2"])
    reversed_bank = Bank(represent(encoder, inputs.flip(0)))
    perturb(Doing(do=look), encoder, inputs[:3], bank=reversed_bank)  # "0", "1", … on both sides mean nothing
    perturb(Doing(do=look), encoder, inputs[:3], bank=reversed_bank, ids=[0, 1, 2])
    assert seen == [[5, 4, 3], [5, 4, 3], [5, 4, 3], [0, 1, 2]]


@pytest.mark.parametrize("name", ["inputs", "clean", "targets", "target_inputs", "start"])
def test_nothing_that_an_attack_is_given_may_be_changed_in_place(name):
    def change(encoder, batch, divergence, random):
        getattr(batch, name).mul_(0.9)
        return batch.inputs.clone()

    inputs = tiny_inputs(2)
    with pytest.raises(AttackViolation, match=f"attack 'Doing' changed the {name} that it was given in place"):
        perturb(Doing(do=change), tiny_encoder(), inputs, targets=inputs.flip(0), start=inputs.clone())


def test_an_attack_that_only_imitates_says_so():
    @dataclass(frozen=True)
    class Imitator:
        aims: ClassVar[tuple[str, ...]] = ("target",)

        def __call__(self, encoder, batch, divergence, *, random):
            return batch.target_inputs

    with pytest.raises(ValueError, match=r"supports target.*: it only imitates targets; give targets, or take an attack that moves away"):
        perturb(Imitator(), tiny_encoder(), tiny_inputs(2))


def test_inputs_are_float32_on_a_device_without_float64(monkeypatch):
    monkeypatch.setattr("rt_core.perturbing._WITHOUT_DOUBLE", {"cpu"})
    seen = []

    def look(encoder, batch, divergence, random):
        seen.append(batch.inputs.dtype)
        return batch.inputs.clone()

    def encode(inputs):
        seen.append(inputs.dtype)
        return inputs.flatten(1)

    perturb(Doing(do=look), encode, tiny_inputs(2).double())
    assert set(seen) == {torch.float32}


def test_samples_without_a_gradient_are_stuck():
    flat = Encoder(lambda inputs: (inputs * 4).round().flatten(1) / 4, name="rounded")
    assert perturb(UPGD(epsilon=0.05, steps=2), flat, tiny_inputs(3)).stuck.tolist() == [True] * 3
    assert perturb(UPGD(epsilon=0.05, steps=2), flat, tiny_inputs(3)).notes["zero_gradient"].tolist() == [1.0] * 3
    assert not perturb(UPGD(epsilon=0.05, steps=2), tiny_encoder(), tiny_inputs(3)).stuck.any()
    assert not perturb(Identity(), tiny_encoder(), tiny_inputs(3)).stuck.any()


def test_the_bounds_of_the_encoder_are_the_units_of_epsilon():
    inputs = tiny_inputs(4, bounds=(-1, 1))
    trace = perturb(UPGD(epsilon=1.5, steps=2), tiny_encoder(bounds=(-1, 1)), inputs)
    assert -1 <= trace.inputs.min() < -0.9
    assert 0.9 < trace.inputs.max() <= 1
    assert 1 < (trace.inputs - inputs).abs().max() <= 1.5


# represent


@pytest.mark.parametrize("batch", [1, 7, 32, None])
def test_representations_are_those_of_the_encoder_in_any_batch(batch):
    encoder, inputs = tiny_encoder(), tiny_inputs(33)
    found = represent(encoder, inputs, batch=batch)
    with torch.no_grad():
        assert torch.equal(found, encoder(inputs))
    assert not found.requires_grad
    assert encoder.module.training


def test_representations_of_a_dataset_are_asked_for_in_batches():
    seen = []

    def encode(inputs):
        seen.append(len(inputs))
        return inputs.flatten(1)

    represent(encode, tiny_inputs(10), batch=4)
    assert seen == [4, 4, 2]
    with pytest.raises(InvalidInputs, match=r"inputs of dataset 'tensor' holds NaN .*\(samples '5'\)"):
        represent(encode, torch.cat([tiny_inputs(5), torch.full((1, 3, 8, 8), float("nan"))]), batch=4)


# run


def plan(**changed):
    parts = {
        "encoders": [tiny_encoder()],
        "dataset": tiny_inputs(40),
        "attacks": {"pgd": UPGD(epsilon=0.1, steps=2, marks=(1, 2)), "noise": UniformNoise(epsilon=0.1)},
        "metrics": ["divergence", "universal_quantile", "breakaway_risk", "relative_quantile", "overlap_risk"],
        "attacked": 12,
        "bank": 30,
    }
    return Evaluation(**parts | changed)


def test_rows_are_the_same_for_every_batch():
    whole = run(plan(dataset=tiny_inputs(90), attacked=70, bank=90), progress=False)
    for batch in (1, 7, 32):
        other = run(plan(dataset=tiny_inputs(90), attacked=70, bank=90), batch=batch, progress=False)
        frames_equal(whole.frame, other.frame)
        pd.testing.assert_frame_equal(whole.notes, other.notes, check_exact=True)
        assert other.manifest["batch"] == batch
    assert whole.manifest["batch"] == BLOCK
    assert not whole.manifest["encoders"]["tiny"]["rows_depend_on_batch"]


def test_there_is_a_row_for_each_sample_mark_and_measure_that_an_aim_needs():
    frame = run(plan(), progress=False).frame
    rows = frame.groupby(["attack", "aim", "step", "metric"]).size()

    assert {key: rows[key] for key in rows.index} == {
        (attack, aim, step, metric): 6 if metric == "overlap_risk" else 12
        for attack, steps in (("pgd", (1, 2)), ("noise", (0,)))
        for step in steps
        for aim, metrics in (
            ("away", ("divergence", "universal_quantile", "breakaway_risk")),
            ("target", ("relative_quantile", "overlap_risk")),
        )
        for metric in metrics
    }
    assert list(frame.columns) == ["encoder", "attack", "aim", "step", "metric", "sample", "value", "note"]


def test_rows_are_what_perturb_and_the_metric_give():
    encoder, inputs = tiny_encoder(), tiny_inputs(40)
    results = run(plan(), progress=False)
    samples = results.manifest["samples"]["sample"]
    rows = [int(sample) for sample in samples]
    attack = UPGD(epsilon=0.1, steps=2, marks=(1, 2))
    away = perturb(attack, encoder, inputs[rows], ids=samples)
    partners = [row ^ 1 for row in range(12)]
    toward = perturb(attack, encoder, inputs[rows], targets=inputs[rows][partners], ids=samples)

    def values(aim, metric, step):
        frame = results.frame.query("attack == 'pgd' and aim == @aim and metric == @metric and step == @step")
        return dict(zip(frame["sample"], frame["value"], strict=True))

    assert values("away", "divergence", 2) == dict(zip(samples, away.divergence.tolist(), strict=True))
    marked = divergences.l2(away.clean.double(), away.marked[1].double())
    assert values("away", "divergence", 1) == dict(zip(samples, marked.tolist(), strict=True))
    bare = divergences.l2(toward.targets.double(), toward.clean.double())
    assert values("target", "relative_quantile", 2) == dict(zip(samples, (toward.divergence / bare).tolist(), strict=True))
    assert list(values("target", "overlap_risk", 2)) == samples[::2]


def test_samples_come_in_a_seeded_order_and_more_of_them_extend_it():
    small, large = (run(plan(attacked=attacked), progress=False).manifest["samples"]["sample"] for attacked in (6, 12))
    other = run(plan(seed=1), progress=False).manifest["samples"]["sample"]
    given = run(plan(pairing="given"), progress=False).manifest["samples"]["sample"]

    assert large[:6] == small
    assert set(large) != set(other)
    assert given == [str(row) for row in range(12)]
    assert run(plan(pairing="given"), progress=False).manifest["samples"]["pair"] == [row // 2 for row in range(12)]


def test_more_attacked_samples_change_no_row_of_the_others():
    small, large = (run(plan(attacked=attacked), progress=False).frame for attacked in (6, 12))
    frames_equal(small, large[large["sample"].isin(set(small["sample"]))])


def test_no_movement_is_the_best_value_of_every_measure():
    results = run(
        plan(attacks={"zero": UPGD(epsilon=0, steps=2), "identity": Identity(), "l2": UPGD(epsilon=0, steps=1, norm="l2")}), progress=False
    )
    values = results.frame.groupby("metric")["value"]
    assert (
        values.min().to_dict()
        == values.max().to_dict()
        == {
            "breakaway_risk": 0,
            "divergence": 0,
            "overlap_risk": 0,
            "relative_quantile": 1,
            "universal_quantile": 0,
        }
    )
    assert set(results.frame["attack"]) == {"zero", "identity", "l2"}


def test_no_movement_of_an_encoder_whose_rows_depend_on_the_batch_is_none_either():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 32))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for part in (network[1], network[3]):
            part.reset_parameters()
    for batch in (5, 64):
        results = run(plan(encoders=[network], attacks={"identity": Identity()}, metrics=["divergence"]), batch=batch, progress=False)
        assert (results.frame["value"] == 0).all()


def test_the_dataset_may_be_smaller_than_the_plan_and_odd():
    results = run(plan(dataset=tiny_inputs(7), attacked=100, bank=1000), progress=False)
    assert results.manifest["attacked"] == 6
    assert results.manifest["bank"] == 7
    assert len(results.frame.query("attack == 'noise' and metric == 'breakaway_risk'")) == 6
    with pytest.raises(PlanError, match="has 1 sample; at least 2 are needed"):
        run(plan(dataset=tiny_inputs(1)), progress=False)


def test_the_seed_changes_the_rows_and_nothing_else_does():
    first, again, other = (run(plan(pairing="given", seed=seed), progress=False).frame for seed in (0, 0, 1))
    frames_equal(first, again)
    assert not first["value"].equals(other["value"])
    torch.manual_seed(123)
    np.random.seed(5)
    frames_equal(first, run(plan(pairing="given"), progress=False).frame)


def test_several_encoders_stand_side_by_side_and_do_not_see_each_other():
    both = run(plan(encoders={"a": tiny_encoder(seed=1), "b": tiny_encoder(seed=2)}), progress=False)
    alone = run(plan(encoders={"b": tiny_encoder(seed=2)}), progress=False)
    frames_equal(both.frame[both.frame["encoder"] == "b"], alone.frame)
    assert both.manifest["encoders"]["a"]["fingerprint"] != both.manifest["encoders"]["b"]["fingerprint"]


def test_clean_measures_need_labels_and_get_them():
    labelled = tensors(tiny_inputs(40), labels=[row % 3 for row in range(40)])
    results = run(plan(dataset=labelled, attacks={}, metrics=[use("knn_accuracy", k=3)]), progress=False)
    assert set(results.frame["attack"]) == {"-"}
    assert set(results.frame["aim"]) == {"clean"}
    assert len(results.frame) == 12
    with pytest.raises(MissingLabels, match="leave the metric out"):
        run(plan(attacks={}, metrics=["knn_accuracy"]), progress=False)


def test_a_metric_may_give_several_measures_and_words():
    def make(trace, bank, context):
        some = Rows(values=torch.full((len(trace),), float("nan")), notes=["abstained"] + [""] * (len(trace) - 1))
        return {"radius": some, "size": torch.ones(len(trace))}

    frame = run(plan(metrics={"mine": Counting(make)}, attacks={"noise": UniformNoise()}), progress=False).frame
    assert set(frame["metric"]) == {"mine/radius", "mine/size"}
    assert (frame[frame["metric"] == "mine/radius"]["note"] == "abstained").sum() == 1


def test_an_encoder_is_put_back_however_the_run_ends():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).train()
    network[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def fail(encoder, batch, divergence, random):
        raise ArithmeticError

    for attack in (UPGD(epsilon=0.1, steps=1), Doing(do=fail)):
        try:
            run(plan(encoders=[network], attacks={"one": attack}, metrics=["divergence"]), progress=False)
        except ArithmeticError:
            assert isinstance(attack, Doing)
        assert all(part.training for part in network.modules())
        assert [weight.requires_grad for weight in network.parameters()] == [False, True, True, True]
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


# What is found wrong in the first seconds


def failing_late():
    """An encoder that counts the samples it was asked about."""
    seen = []

    def encode(inputs):
        seen.append(len(inputs))
        return inputs.flatten(1)

    return Encoder(encode, name="counting"), seen


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"dataset": (255 * tiny_inputs(100)).byte()}, InvalidInputs, "uint8"),
        ({"dataset": tiny_inputs(100) - 0.5}, InvalidInputs, "outside the bounds"),
        ({"attacks": {"pgd": UPGD(epsilon=8)}}, ValueError, "write 8/255"),
        (
            {"metrics": {"bad": Counting(lambda trace, bank, context: torch.zeros(3, 2))}},
            ShapeError,
            r"metric 'bad' output has shape \[3, 2\]",
        ),
        ({"metrics": {"bad": Counting(lambda trace, bank, context: torch.zeros(len(trace) + 1))}}, ShapeError, "metric 'bad' output"),
        ({"metrics": {"one": Counting(lambda trace, bank, context: context.labels)}}, MissingLabels, "has none"),
    ],
)
def test_what_cannot_work_fails_before_the_data_are_run_through(changed, error, words):
    encoder, seen = failing_late()
    with pytest.raises(error, match=words):
        run(plan(**{"encoders": [encoder], "dataset": tiny_inputs(100), "attacked": 100, "bank": 100} | changed), progress=False)
    assert sum(seen) < 80  # of hundreds


def test_an_encoder_of_another_size_is_asked_once():
    calls = []

    def vit(inputs):
        calls.append(inputs.shape)
        assert inputs.shape[-1] == 224, f"Input height ({inputs.shape[-1]}) doesn't match model (224)"

    with pytest.raises(ValueError, match=r"Input height \(8\) doesn't match model \(224\)"):
        run(plan(encoders=[Encoder(vit, name="vit")]), progress=False)
    assert len(calls) == 1


def test_an_encoder_that_is_random_is_warned_about():
    def noisy(inputs):
        return inputs.flatten(1) + 0.01 * torch.rand(len(inputs), 192)

    with pytest.warns(RobustnessWarning, match="encoder 'noisy' is not deterministic"):
        run(plan(encoders=[noisy]), progress=False)


def test_masked_gradients_are_warned_about_and_counted():
    rounded = Encoder(lambda inputs: (inputs * 4).round().flatten(1) / 4, name="rounded")
    with pytest.warns(RobustnessWarning, match="attack 'pgd' found no gradient at all for 100% of the samples on encoder 'rounded'"):
        results = run(plan(encoders=[rounded], attacks={"pgd": UPGD(epsilon=0.05, steps=2)}), progress=False)
    notes = results.notes.query("name == 'stuck'")
    assert (notes["value"] == 1).all()
    assert len(notes) == 24  # away and target


def test_encoders_whose_rows_depend_on_the_batch_are_recorded():
    def mixing(inputs):
        return inputs.flatten(1) - inputs.flatten(1).mean(0)

    manifest = run(plan(encoders=[mixing, tiny_encoder()]), progress=False).manifest
    assert manifest["encoders"]["mixing"]["rows_depend_on_batch"]
    assert not manifest["encoders"]["tiny"]["rows_depend_on_batch"]


# Stores


class Dying:
    """A dataset that fails when it was asked too often."""

    def __init__(self, inputs, times):
        self.inputs, self.left = inputs, times

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, row):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.inputs[row]


def blocks(folder):
    return {path.name: path.read_bytes() for path in sorted((Path(folder) / "blocks").iterdir())}


def test_a_run_that_died_goes_on_where_it_was_and_repeats_no_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("rt_core.execution._rehearse", lambda *arguments: 0.0)  # whose passes are not counted here
    inputs, whole_encoder = tiny_inputs(150), tiny_encoder()

    def made(encoder, times=10**9):
        return plan(encoders=[encoder], dataset=Dying(inputs, times), attacked=140, bank=150)

    whole = run(made(whole_encoder), progress=False)
    resumed = None
    runs, spent, times = 0, 0, 100
    while resumed is None:
        encoder = tiny_encoder()
        try:
            resumed = run(made(encoder, times), store=tmp_path, progress=False)
        except KeyboardInterrupt:
            assert not (tmp_path / "manifest.json").exists()
        runs, spent, times = runs + 1, spent + encoder.passes.backwards, times + 40

    assert runs > 2
    frames_equal(whole.frame, resumed.frame)
    pd.testing.assert_frame_equal(whole.notes, resumed.notes, check_exact=True)
    assert whole_encoder.passes.backwards == spent == 140 * 2 * 2


def test_a_run_that_was_done_is_read_and_not_made_again(tmp_path):
    first = run(plan(), store=tmp_path, progress=False)
    encoder, before = tiny_encoder(), blocks(tmp_path)
    again = run(plan(encoders=[encoder]), store=tmp_path, progress=False)

    frames_equal(first.frame, again.frame)
    assert blocks(tmp_path) == before
    assert encoder.passes.backwards == 0  # nothing is left to rehearse
    frames_equal(Results.load(tmp_path).frame, first.frame)


def test_another_metric_needs_no_new_attack_and_another_attack_not_the_old_ones(tmp_path):
    run(plan(), store=tmp_path, progress=False)
    encoder, before = tiny_encoder(), blocks(tmp_path)
    more = plan(
        encoders=[encoder], metrics=["divergence", "universal_quantile", "breakaway_risk", "relative_quantile", "adversarial_margin"]
    )
    results = run(more, store=tmp_path, progress=False)
    assert set(results.frame["metric"]) >= {"adversarial_margin"}
    new = blocks(tmp_path).items() - before.items()
    assert len(new) == 2  # the new metric's own block for each of two attacks
    assert encoder.passes.backwards == 2 * 2  # its rehearsal
    frames_equal(results.frame, run(more, progress=False).frame)

    run(plan(attacks={"more": UPGD(epsilon=0.2, steps=2)}, encoders=[encoder]), store=tmp_path, progress=False)
    assert blocks(tmp_path).items() > before.items()


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"no archive"])
def test_a_damaged_block_is_made_again(tmp_path, damage):
    first = run(plan(), store=tmp_path, progress=False)
    whole = blocks(tmp_path)
    for name, content in whole.items():
        (tmp_path / "blocks" / name).write_bytes(damage(content))
        with pytest.warns(RobustnessWarning, match=f"block .*{name} is damaged"):
            again = run(plan(), store=tmp_path, progress=False)
        frames_equal(first.frame, again.frame)
        assert {block: len(content) for block, content in blocks(tmp_path).items()} == {
            block: len(content) for block, content in whole.items()
        }


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 1}, r"a run of another seed \(0, now 1\); give another folder"),
        ({"dataset": tiny_inputs(41)}, "another dataset"),
        ({"dataset": tiny_inputs(40, purpose="others")}, "another dataset"),
        ({"dataset": tensors(tiny_inputs(40), ids=[f"x{row}" for row in range(40)])}, "another dataset"),
        ({"pairing": "given"}, "another pairing"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(tmp_path, changed, words):
    run(plan(), store=tmp_path, progress=False)
    with pytest.raises(StoreError, match=words):
        run(plan(**changed), store=tmp_path, progress=False)


def test_the_store_keeps_the_batch_of_its_first_run(tmp_path):
    run(plan(), store=tmp_path, batch=7, progress=False)
    assert run(plan(), store=tmp_path, progress=False).manifest["batch"] == 7
    with pytest.raises(StoreError, match="another batch"):
        run(plan(), store=tmp_path, batch=8, progress=False)


def test_other_weights_are_another_encoder(tmp_path):
    first = run(plan(), store=tmp_path, progress=False)
    other = run(plan(encoders=[tiny_encoder(seed=5)]), store=tmp_path, progress=False)
    assert not first.frame["value"].equals(other.frame["value"])
    frames_equal(other.frame, run(plan(encoders=[tiny_encoder(seed=5)]), progress=False).frame)


def test_nothing_half_written_is_left_behind(tmp_path, monkeypatch):
    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(StoreError, match="disk full"):
        run(plan(), store=tmp_path, progress=False)
    assert not list((tmp_path / "blocks").iterdir())


def test_a_store_can_be_moved(tmp_path):
    first = run(plan(), store=tmp_path / "here", progress=False)
    shutil.move(tmp_path / "here", tmp_path / "there")
    encoder = tiny_encoder()
    frames_equal(first.frame, run(plan(encoders=[encoder]), store=tmp_path / "there", progress=False).frame)
    assert encoder.passes.backwards == 0


def nearest(encoder, batch, divergence, random):
    """Go where the nearest other representation is: an attack that looks at the bank."""
    _, rows = batch.bank.nearest(batch.clean, 1, batch.own)
    return encoder.clip(batch.inputs + 0.01 * batch.bank.take(rows[:, 0]).mean())


def test_a_larger_bank_repeats_only_what_looked_at_the_bank(tmp_path):
    attacks = {"pgd": UPGD(epsilon=0.1, steps=2), "nearest": Doing(do=nearest, label="nearest")}
    dataset, seen = tiny_inputs(60), []

    def once(size, store=None):
        encoder = tiny_encoder()
        results = run(plan(encoders=[encoder], dataset=dataset, attacks=attacks, attacked=20, bank=size), store=store, progress=False)
        seen.append(encoder.passes.backwards)
        return results

    small = once(40, tmp_path)
    first = set(blocks(tmp_path))
    large = once(60, tmp_path)
    rehearsal = 2 * 2 * 2
    assert seen == [20 * 2 * 2 + rehearsal, rehearsal]  # no new pass of the attack that does not care
    frames_equal(large.frame, once(60).frame)
    frames_equal(small.frame, once(40, tmp_path).frame)  # and back again
    kept = {path.name for path in (tmp_path / "blocks").iterdir()}
    assert kept > first


def test_an_attack_that_asks_for_quantiles_is_made_again_for_others(tmp_path):
    def threshold(encoder, batch, divergence, random):
        return encoder.clip(batch.inputs + 0.1 * batch.bank.quantile_value(0.5))

    def once(rows, store=None):
        made = plan(attacks={"far": Doing(do=threshold, label="far")}, dataset=tiny_inputs(60), attacked=20, bank=60, quantile_bank=rows)
        return run(made, store=store, progress=False).frame

    once(4, tmp_path)
    frames_equal(once(60, tmp_path), once(60))


def test_what_a_metric_shares_belongs_to_its_bank():
    @dataclass(frozen=True)
    class Sharing(Counting):
        def __call__(self, trace, bank, context):
            known = context.shared.setdefault("nearest", None)
            if known is None:
                known = context.shared["nearest"] = bank.nearest(trace.clean, 1, bank.rows(trace.ids))[0][:, 0]
            return known

    metrics = {
        "shared": Sharing(make=None),
        "plain": Counting(make=lambda trace, bank, context: bank.nearest(trace.clean, 1, bank.rows(trace.ids))[0][:, 0]),
    }
    wide = run(plan(dataset=tiny_inputs(40), metrics=metrics, attacked=40, bank=40), progress=False)._rows
    shared, alone = (wide[wide["metric"] == name].drop(columns="metric").reset_index(drop=True) for name in ("shared", "plain"))
    pd.testing.assert_frame_equal(shared, alone)
    assert (shared["without_0"] != shared["value"]).any()


def test_a_described_attack_is_made_as_often_as_a_run_needs_and_not_for_each_block(monkeypatch):
    made = []
    inner = Use.make
    monkeypatch.setattr(Use, "make", lambda self, kind: made.append(kind) or inner(self, kind))

    def makes(size):
        made.clear()
        run(plan(dataset=tiny_inputs(size), attacks={"noise": use("uniform_noise")}, attacked=size, bank=size), progress=False)
        return made.count("attack")

    assert makes(20) == makes(200)


def test_an_attack_of_whole_blocks_that_does_nothing_moves_nothing():
    @dataclass(frozen=True, kw_only=True)
    class Still:
        joint: ClassVar[bool] = True

        def __call__(self, encoder, batch, divergence, *, random):
            return batch.inputs.clone()

    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 16))  # whose last bits depend on the batch
    results = run(
        plan(
            encoders=[Encoder(linear, name="linear")],
            dataset=tiny_inputs(70),
            attacks={"still": Still()},
            metrics=["divergence"],
            attacked=70,
            bank=70,
        ),
        batch=7,
        progress=False,
    )
    assert (results.frame["value"] == 0).all()


@dataclass(frozen=True, kw_only=True)
class Together:
    """An attack whose samples are not independent: it says so, and notes how many it saw."""

    joint: ClassVar[bool] = True

    def __call__(self, encoder, batch, divergence, *, random):
        seen = torch.full((len(batch.ids),), float(len(batch.ids)))
        return Attempt(inputs=encoder.clip(batch.inputs + 0.1 * batch.inputs.mean()), notes={"seen": seen})


def test_an_attack_that_couples_samples_sees_whole_blocks_whatever_the_batch():
    def once(batch):
        return run(plan(dataset=tiny_inputs(100), attacks={"together": Together()}, attacked=100, bank=100), batch=batch, progress=False)

    whole, small = once(64), once(7)
    frames_equal(whole.frame, small.frame)
    for results in (whole, small):
        seen = results.notes[(results.notes["name"] == "seen") & (results.notes["aim"] == "away")]
        assert seen["value"].tolist() == [64.0] * 64 + [36.0] * 36


def test_ranks_in_a_small_bank_come_with_those_in_each_part_of_it(tmp_path):
    dataset = tiny_inputs(60)
    results = run(plan(dataset=dataset, attacked=20, bank=60), store=tmp_path, progress=False)
    wide, parts = results._rows, [f"without_{part}" for part in range(10)]
    assert list(results.frame.columns) == list(Results.COLUMNS)
    assert list(wide.columns) == [*Results.COLUMNS, *parts]
    looked = wide["metric"].isin(["universal_quantile", "breakaway_risk"])
    assert wide.loc[looked, parts].notna().all(axis=None)
    assert wide.loc[~looked, parts].isna().all(axis=None)
    assert set(wide.loc[~looked, "metric"]) == {"divergence", "relative_quantile", "overlap_risk"}

    order = [int(name) for name in results.manifest["samples"]["sample"]]
    assert results.manifest["samples"]["part"] == [row // 2 % 10 for row in range(20)]
    pd.testing.assert_frame_equal(Results.load(tmp_path)._rows, wide, check_exact=True)
    assert order == [int(sample) for sample in wide[(wide["metric"] == "divergence") & (wide["step"] == 2)]["sample"]]

    large = run(plan(dataset=dataset, attacked=6, bank=60), progress=False)
    assert list(large._rows.columns) == list(Results.COLUMNS)  # ten times as many: its error is small
    assert large.manifest["samples"]["part"] is None
    assert "both are resampled" in results.caption()
    assert "resampled" not in large.caption()


def test_the_rows_without_a_part_are_those_of_a_bank_without_it():
    encoder, dataset = tiny_encoder(), tiny_inputs(40)
    results = run(
        plan(encoders=[encoder], dataset=dataset, attacked=40, bank=40, metrics=["breakaway_risk", "universal_quantile"]), progress=False
    )
    order = [int(name) for name in results.manifest["samples"]["sample"]]
    clean = represent(encoder, dataset[order])
    attacked = perturb(UPGD(epsilon=0.1, steps=2), encoder, dataset[order], ids=order, bank=Bank(clean, ids=order)).adversarial
    wide = results._rows.set_index(["metric", "step"])
    for part in (0, 7):
        kept = [row for row in range(40) if row // 2 % 10 != part]
        bank = Bank(clean[kept], ids=[order[row] for row in kept])
        expected = breakaway_risk(attacked, clean, bank, bank.rows(order))
        assert wide.loc[("breakaway_risk", 2), f"without_{part}"].tolist() == expected.tolist()
        expected = universal_quantile(divergences.l2(clean.double(), attacked.double()), bank)
        assert wide.loc[("universal_quantile", 2), f"without_{part}"].tolist() == expected.tolist()


def test_parts_of_the_bank_keep_groups_whole():
    groups = [f"scene {row // 5}" for row in range(60)]
    results = run(plan(dataset=tensors(tiny_inputs(60), groups=groups), attacked=20, bank=60), progress=False)
    about = pd.DataFrame(results.manifest["samples"])
    assert about.groupby("group")["part"].nunique().max() == 1
    assert about["part"].nunique() > 5


def test_a_metric_that_a_smaller_bank_cannot_serve_has_open_intervals():
    def twenty(trace, bank, context):
        return bank.nearest(trace.adversarial, 38, bank.rows(trace.ids))[0][:, -1]

    results = run(plan(dataset=tiny_inputs(40), metrics={"far": Counting(make=twenty)}, attacked=40, bank=40), progress=False)
    row = results.summary().iloc[-1]
    assert np.isfinite(row["estimate"])
    assert (row["low"], row["high"]) == (-np.inf, np.inf)


def test_a_few_adversarial_inputs_are_kept_to_be_looked_at(tmp_path):
    dataset, encoder = tiny_inputs(140), tiny_encoder()
    pgd = {"pgd": UPGD(epsilon=0.1, steps=2)}
    made = plan(encoders=[encoder], dataset=dataset, attacks=pgd, attacked=140, bank=140)
    results = run(made, store=tmp_path, progress=False)
    gallery, about = results.gallery, results.gallery.about
    assert about.groupby(["aim", "why"]).size().to_dict() == {
        ("away", "fixed"): 4,
        ("away", "worst"): 3,
        ("target", "fixed"): 4,
        ("target", "worst"): 3,
    }
    order = results.manifest["samples"]["sample"]
    for aim in ("away", "target"):
        assert about[(about["aim"] == aim) & (about["why"] == "fixed")]["sample"].tolist() == order[:4]
        worst = about[(about["aim"] == aim) & (about["why"] == "worst")].set_index("sample")["divergence"]
        metric = "divergence" if aim == "away" else "target_divergence"
        told = run(plan(encoders=[encoder], dataset=dataset, attacks=pgd, attacked=140, bank=140, metrics=[metric]), progress=False)
        told = told.frame.set_index("sample")["value"]
        for block in (order[:64], order[64:128], order[128:]):
            (one,) = set(block) & set(worst.index)
            assert worst[one] == (told[block].max() if aim == "away" else told[block].min())
    for row, picture in about.iterrows():
        clean, moved = (torch.from_numpy(side[row])[None] for side in (gallery.clean, gallery.adversarial))
        assert torch.equal(clean[0], dataset[int(picture["sample"])])
        assert 0 < (moved - clean).abs().max() <= 0.1 + 1e-7
        anchor = clean if picture["aim"] == "away" else dataset[int(order[order.index(picture["sample"]) ^ 1])][None]
        ends = (represent(encoder, side).double() for side in (anchor, moved))
        assert divergences.l2(*ends).item() == pytest.approx(picture["divergence"], rel=1e-6)

    loaded = Results.load(tmp_path).gallery
    pd.testing.assert_frame_equal(loaded.about, about)
    assert np.array_equal(loaded.adversarial, gallery.adversarial)
    assert np.array_equal(loaded.clean, gallery.clean)
    again = run(made, store=tmp_path, progress=False).gallery  # read from the blocks
    assert np.array_equal(again.adversarial, gallery.adversarial)
    more = run(
        plan(encoders={"another": tiny_encoder(seed=3)}, dataset=dataset, attacked=140, bank=140, attacks={"other": UPGD(steps=1)}),
        store=tmp_path,
        progress=False,
    )
    assert set(Results.load(tmp_path).gallery.about["attack"]) == {"pgd", "other"}
    assert set(more.gallery.about["attack"]) == {"other"}


def test_noise_has_the_ball_and_the_mask_of_what_it_stands_beside():
    inputs, mask = tiny_inputs(6), torch.zeros(8, 8, dtype=torch.bool)
    mask[2:5] = True
    trace = perturb(UniformNoise(epsilon=(0.0, 0.01, 0.1), mask=mask), tiny_encoder(), inputs)
    moved = (trace.inputs - inputs).abs()
    assert not moved[:, :, ~mask].any()
    for channel, epsilon in enumerate((0.0, 0.01, 0.1)):
        assert epsilon / 2 <= moved[:, channel].max() <= epsilon
    whole, part = (perturb(UniformNoise(epsilon=0.1, **options), tiny_encoder(), inputs).inputs for options in ({}, {"mask": mask}))
    assert torch.equal(part[..., mask], whole[..., mask])


def test_pictures_from_0_to_1_in_wider_bounds_are_told():
    wide = Encoder(tiny_encoder().module, name="wide", bounds=(-1, 1))
    with pytest.warns(RobustnessWarning, match="no input of dataset 'tensor' is below 0, and the bounds of encoder 'wide' go down to -1"):
        run(plan(encoders=[wide]), progress=False)


# What is said


def test_nothing_is_printed(tmp_path, capfd):
    for progress in (False, True):  # stderr is no terminal here
        run(plan(), store=tmp_path, progress=progress)
        represent(tiny_encoder(), tiny_inputs(4), progress=progress)
        perturb(UPGD(steps=1), tiny_encoder(), tiny_inputs(4), progress=progress)
    assert capfd.readouterr() == ("", "")


def test_the_manifest_says_what_a_reader_needs_to_make_it_again(tmp_path):
    results = run(plan(encoders={"mine": tiny_encoder()}), store=tmp_path, progress=False)
    manifest = results.manifest

    assert json.loads(json.dumps(manifest, allow_nan=False)) == json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["plan"]["attacks"]["pgd"] == {
        "class": "rt_unsupervised_attacks.gradient.UPGD",
        "epsilon": 0.1,
        "step": None,
        "steps": 2,
        "norm": "linf",
        "start": "random",
        "eta": 0.001,
        "marks": [1, 2],
        "keep": "last",
        "restarts": 1,
        "mask": None,
    }
    assert manifest["seed"] == manifest["plan"]["seed"] == 0
    assert (manifest["attacked"], manifest["bank"], manifest["quantile_bank"], manifest["input_shape"]) == (12, 30, 30, [3, 8, 8])
    assert manifest["dataset"] == {"name": "tensor", "samples": 40, "notes": []}
    assert {"python", "torch", "numpy", "pandas", "rt-core", "rt-label-free-metrics"} <= manifest["versions"].keys()
    assert manifest["encoders"]["mine"]["fingerprint"] == tiny_encoder().fingerprint
    assert manifest["encoders"]["mine"]["dim"] == 16
    # The bank, then for each of two aims two steps of pgd, the marks' representation and the last's, and noise's.
    assert manifest["encoders"]["mine"]["passes"] == {"forwards": 30 + 2 * 12 * (2 + 2 + 1 + 1), "backwards": 2 * 12 * 2}
    assert manifest["metrics"]["overlap_risk"] == {
        "aim": "target",
        "better": "lower",
        "statistic": "rate",
        "per": "pair",
        "span": [0, 1],
        "comparable": True,
    }
    assert manifest["metrics"]["divergence"]["span"] == [0, None]
    assert not manifest["metrics"]["divergence"]["comparable"]
    assert manifest["encoders"]["mine"]["dtype"] == "float32"
    assert manifest["seconds"] >= 0


def test_histories_and_notes_are_kept_by_sample():
    results = run(plan(attacks={"pgd": UPGD(epsilon=0.1, steps=2)}), progress=False)
    history = results.notes.query("name.str.startswith('history') and aim == 'away'").pivot(index="sample", columns="name", values="value")
    last = results.frame.query("metric == 'divergence'").set_index("sample")["value"]

    assert list(history.columns) == ["history/0", "history/1", "history/2"]
    pd.testing.assert_series_equal(history["history/2"].sort_index(), last.sort_index(), check_names=False)


def test_of_the_adversarial_inputs_a_few_are_kept_and_no_more(tmp_path):
    run(plan(), store=tmp_path, progress=False)
    for path in (tmp_path / "blocks").iterdir():
        for name, array in np.load(path).items():
            assert array.size <= (30 * 16 if name != "kept/inputs" else 5 * 192)  # representations at most, or five pictures


def test_linear_encoders_reach_their_optimum_in_a_run():
    encoder, weight = linear_encoder(3, 4, 4)
    dataset = 0.4 + 0.2 * tiny_inputs(8, (3, 4, 4))
    results = run(
        plan(encoders=[encoder], dataset=dataset, attacks={"one": UFGSM(epsilon=0.1)}, metrics=[Divergence()], attacked=8), progress=False
    )
    best = 0.1 * weight.abs().sum().item()
    np.testing.assert_allclose(results.frame["value"], best, rtol=1e-4)


def test_metrics_given_as_objects_are_called_as_registered_ones():
    results = run(plan(metrics=[BreakawayRisk(), OverlapRisk()], attacks={"noise": UniformNoise()}), progress=False)
    assert set(results.frame["metric"]) == {"breakaway_risk", "overlap_risk"}


def test_a_metric_gets_the_samples_own_randomness_and_labels():
    labelled, seen = tensors(tiny_inputs(40), labels=list(range(40))), {}

    def make(trace, bank, context):
        drawn = context.random.uniform("metric", (2,))
        seen.update({name: (label, draw.tolist()) for name, label, draw in zip(trace.ids, context.labels.tolist(), drawn, strict=True)})
        return torch.zeros(len(trace))

    run(plan(dataset=labelled, metrics={"mine": Counting(make)}, attacks={"noise": UniformNoise()}), progress=False)
    assert len(seen) == 12
    for name, (label, draw) in seen.items():
        assert label == int(name)
        assert draw == SampleRandom.of(0, [name]).uniform("metric", (2,))[0].tolist()


# What a newcomer stumbled over


class Fails:
    """A metric that raises on some blocks."""

    aim, better, statistic, per, span = "away", "lower", "median", "sample", (0.0, 1.0)
    divergence = None

    def __call__(self, trace, bank, context):
        if "3" in trace.ids:
            raise ZeroDivisionError("no such number")
        return torch.zeros(len(trace))


def test_what_raises_costs_its_block_and_is_recorded(tmp_path):
    sizes = {"dataset": tiny_inputs(140), "attacked": 140, "bank": 140, "pairing": "given"}
    healthy = run(plan(metrics=["divergence"], **sizes), progress=False)
    broken = plan(metrics={"divergence": use("divergence"), "fails": Fails()}, **sizes)
    first = Fails.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Fails, "__call__", lambda self, trace, bank, context: first(self, trace, bank, context) if len(trace) > 2 else torch.zeros(2)
        )
        with pytest.warns(
            RobustnessWarning,
            match="2 blocks or fits failed .* ZeroDivisionError: no such number in encoder 'tiny', attack 'noise', metric 'fails'",
        ):
            results = run(broken, store=tmp_path, progress=False)
    frames_equal(results.frame[results.frame["metric"] == "divergence"].reset_index(drop=True), healthy.frame)
    fails = results.frame[(results.frame["metric"] == "fails") & (results.frame["attack"] == "noise")]
    assert len(fails) == 140 - 64
    assert [error["samples"] for error in results.manifest["errors"]] == ["0 to 63"] * 2


def test_what_raises_for_two_samples_is_not_begun(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        run(
            plan(metrics=[Fails()], dataset=tiny_inputs(10), pairing="given", attacked=10, bank=10, attacks={"noise": Wrong()}),
            progress=False,
        )
    assert "in encoder 'tiny', attack 'noise', aim 'away', samples '0 to 1'" in caught.value.__notes__


class Wrong:
    def __call__(self, encoder, batch, divergence, *, random):
        raise ZeroDivisionError("wrong")


def test_one_folder_keeps_what_a_later_plan_does_not_speak_of(tmp_path):
    run(plan(attacks={"a": UniformNoise(epsilon=0.1)}), store=tmp_path, progress=False)
    run(plan(attacks={"b": UniformNoise(epsilon=0.2)}), store=tmp_path, progress=False)
    both = Results.load(tmp_path)
    frames_equal(both.frame, run(plan(attacks={"a": UniformNoise(epsilon=0.1), "b": UniformNoise(epsilon=0.2)}), progress=False).frame)
    assert list(both.manifest["plan"]["attacks"]) == ["a", "b"]
    with pytest.warns(RobustnessWarning, match="attack 'a' is another than in the earlier run"):
        run(plan(attacks={"a": UniformNoise(epsilon=0.3)}), store=tmp_path, progress=False)
    assert list(dict.fromkeys(Results.load(tmp_path).frame["attack"])) == ["b", "a"]
    with pytest.warns(RobustnessWarning, match="encoder 'tiny' is another than in the earlier run"):
        run(plan(encoders=[tiny_encoder(seed=5)], attacks={"a": UniformNoise(epsilon=0.3)}), store=tmp_path, progress=False)
    assert set(Results.load(tmp_path).frame["attack"]) == {"a"}
    with pytest.warns(RobustnessWarning, match="were of another samples and bank and quantile_bank, so they are replaced"):
        run(plan(attacks={"a": UniformNoise(epsilon=0.3)}, attacked=20, bank=20), store=tmp_path, progress=False)
    assert Results.load(tmp_path).manifest["attacked"] == 20


def test_a_rehearsal_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(MissingLabels):
        run(plan(metrics=["knn_accuracy"]), store=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file; give a folder"):
        run(plan(), store=tmp_path / "file", progress=False)


def test_an_attack_without_rows_for_a_metric_is_said():
    with pytest.warns(RobustnessWarning, match="attack 'clean' supports aim target alone, so divergence will have no rows for it"):
        run(plan(attacks={"clean": UPGD(start="clean", steps=1)}, metrics=["divergence", "overlap_risk"]), progress=False)


def test_an_output_without_gradient_is_said_before_the_run():
    network = tiny_encoder().module
    with pytest.warns(RobustnessWarning, match="the output of encoder 'deaf' carries no gradient"):
        run(plan(encoders={"deaf": lambda inputs: network(inputs).detach()}, attacks={"noise": UniformNoise()}), progress=False)


def test_an_output_that_is_not_finite_is_named():
    with pytest.raises(EncoderError, match=r"encoder '.*' gave NaN or infinity for 1 of 1 inputs"):
        run(plan(encoders=[lambda inputs: inputs.flatten(1) / 0]), progress=False)


def test_a_near_duplicate_is_said():
    inputs = tiny_inputs(20)
    inputs[3] = inputs[2]
    with pytest.warns(RobustnessWarning, match="2 of 12 attacked samples have a near-duplicate in the bank for encoder 'tiny'"):
        run(plan(dataset=inputs, pairing="given", bank=20), progress=False)


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="device is 'gpuu', which is not to be had here"):
        run(plan(), device="gpuu", progress=False)


def test_a_large_bank_is_mapped_from_its_file(tmp_path, monkeypatch):
    whole = run(plan(), progress=False)
    monkeypatch.setattr("rt_core.execution._MAPPED", 100)
    encoder = tiny_encoder()
    frames_equal(run(plan(), store=tmp_path, progress=False).frame, whole.frame)
    assert len(list(tmp_path.glob("*.npy"))) == 1
    frames_equal(run(plan(encoders=[encoder]), store=tmp_path, progress=False).frame, whole.frame)


def test_a_dataset_that_draws_anew_is_refused():
    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, row):
            return torch.rand(3, 8, 8)

    with pytest.raises(InvalidInputs, match="gives other inputs when it is read again"):
        run(plan(dataset=Drawn()), progress=False)


def test_a_metric_that_needs_more_of_the_bank_than_the_rehearsal_has_is_not_refused():
    labelled = tensors(tiny_inputs(80), labels=[row % 2 for row in range(80)])
    results = run(plan(dataset=labelled, metrics=[use("knn_accuracy", k=40)], bank=80), progress=False)
    assert len(results.frame) == 12
    with pytest.raises(ValueError, match="k is 80"):
        run(plan(dataset=labelled, metrics=[use("knn_accuracy", k=80)], bank=80, attacked=80), progress=False)


def test_many_near_duplicates_are_all_counted():
    inputs = tiny_inputs(20).repeat_interleave(2, dim=0)
    with pytest.warns(RobustnessWarning, match="12 of 12 attacked samples have a near-duplicate"):
        run(plan(dataset=inputs, bank=40), progress=False)

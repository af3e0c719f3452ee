"""The named checks find what they are named after: each is failed by something that breaks just that promise."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import rt_core
from rt_core import AttackViolation, Attempt, Ball, Encoder, EncoderError, PluginError
from rt_core.baselines import UniformNoise
from rt_core.testing import (
    ATTACK_CHECKS,
    ENCODER_CHECKS,
    METRIC_CHECKS,
    check_plugin,
    checks,
    linear_encoder,
    parametrize_attack_checks,
    parametrize_encoder_checks,
    read_example,
    tiny_encoder,
    tiny_inputs,
)
from rt_label_free_metrics import BreakawayRisk, OverlapRisk
from rt_unsupervised_attacks import UPGD

# Attacks


@dataclass(frozen=True)
class Doing:
    """U-PGD, and then something else."""

    then: Any = field(repr=False)
    ball: ClassVar[Ball] = Ball("linf", 0.1)

    def __call__(self, encoder, batch, divergence, *, random):
        return self.then(encoder, batch, UPGD(epsilon=0.1, steps=1)(encoder, batch, divergence, random=random).inputs)


class Thawed:
    """An attack that is no frozen dataclass."""

    ball = Ball("linf", 0.1)

    def __call__(self, encoder, batch, divergence, *, random):
        return batch.inputs.clone()


def first_in_batch(encoder, batch, moved):
    return batch.inputs + (moved - batch.inputs) * (torch.arange(len(moved)) == 0).view(-1, 1, 1, 1)


def with_gradient(encoder, batch, moved):
    return moved.requires_grad_()


def drawing(encoder, batch, moved):
    np.random.rand()
    torch.rand(1)
    return moved


def random(encoder, batch, moved):
    return batch.inputs + 0.01 * torch.from_numpy(np.random.default_rng().random(batch.inputs.shape, dtype=np.float32)) * (
        0.5 - batch.inputs
    )


def training(encoder, batch, moved):
    encoder.module.train()
    encoder.module[1](moved.new_zeros(2, 4, 6, 6) + torch.rand(1)) if isinstance(encoder.module, nn.Sequential) else None
    return moved


def hooking_and_failing(encoder, batch, moved):
    hook = next(encoder.module.modules()).register_forward_hook(lambda *seen: None)
    encoder(moved)
    hook.remove()  # not reached where the pass fails
    return moved


def in_place(encoder, batch, moved):
    batch.clean.add_(1)
    return moved


def images_only(encoder, batch, moved):
    assert batch.inputs.ndim == 4
    return moved


def two_at_least(encoder, batch, moved):
    return batch.inputs + (moved - batch.inputs) / (len(moved) - 1 or math.nan)


ATTACKS_THAT_BREAK = {
    "keeps_shape_dtype_and_device": lambda encoder, batch, moved: moved.float(),
    "stays_inside_the_bounds_and_its_ball": lambda encoder, batch, moved: batch.inputs + 3 * (moved - batch.inputs),
    "leaves_what_it_is_given_alone": in_place,
    "leaves_the_network_alone": training,
    "leaves_the_network_alone_when_it_fails": hooking_and_failing,
    "gives_the_same_for_the_same_seed": random,
    "gives_a_sample_the_same_result_in_any_batch_and_order": first_in_batch,
    "leaves_the_global_generators_alone": drawing,
    "is_a_frozen_recordable_value": Thawed(),
    "moves_the_representation": lambda encoder, batch, moved: batch.inputs.clone(),
    "comes_nearer_to_its_target": lambda encoder, batch, moved: 2 * batch.inputs - moved,
    "takes_a_batch_of_one": two_at_least,
    "takes_inputs_that_are_no_images": images_only,
    "works_where_gradients_are_off": None,  # see below
    "returns_inputs_without_a_graph": with_gradient,
}


def test_each_check_has_something_that_breaks_it():
    assert set(ATTACKS_THAT_BREAK) == {check.__name__ for check in ATTACK_CHECKS}
    assert set(METRICS_THAT_BREAK) == {check.__name__ for check in METRIC_CHECKS}
    assert set(ENCODERS_THAT_BREAK) == {check.__name__ for check in ENCODER_CHECKS}


@pytest.mark.parametrize(
    "check", [check for check in ATTACK_CHECKS if check.__name__ != "works_where_gradients_are_off"], ids=lambda check: check.__name__
)
def test_an_attack_that_breaks_a_promise_fails_the_check_of_that_name(check):
    then = ATTACKS_THAT_BREAK[check.__name__]
    with pytest.raises((AssertionError, AttackViolation, EncoderError)):
        check(then if isinstance(then, Thawed) else Doing(then))


def test_an_attack_that_depends_on_the_mode_around_it_fails(monkeypatch):
    """`perturb` sees to it that no attack notices: so the mode has to leak."""
    plain = checks.perturb
    monkeypatch.setattr(checks, "perturb", lambda *given, **named: plain(*given, **named, seed=int(torch.is_grad_enabled())))
    with pytest.raises(AssertionError, match="another result under no_grad"):
        checks.works_where_gradients_are_off(UniformNoise(epsilon=0.1))


def test_marks_are_checked_too():
    def marking(encoder, batch, moved):
        return Attempt(inputs=moved, marks={1: batch.inputs + 3 * (moved - batch.inputs)})

    with pytest.raises(AttackViolation):
        checks.stays_inside_the_bounds_and_its_ball(Doing(marking))


# Metrics


@dataclass(frozen=True)
class Reading:
    """A metric that gives what it is told."""

    make: Any = field(compare=False, repr=False)
    aim: str = "away"
    better: str = "lower"
    statistic: str = "median"
    per: str = "sample"
    span: tuple[float, float] = (0.0, math.inf)

    def __call__(self, trace, bank, context):
        return self.make(trace, context)


class Unequal(Reading):
    """Equal to nothing, so that no copy is equal."""

    def __eq__(self, other):
        return False

    __hash__ = Reading.__hash__


def counting(trace, context):
    counting.calls = getattr(counting, "calls", 0) + 1
    return torch.full((len(trace),), float(counting.calls))


def changing(trace, context):
    trace.clean.add_(1)
    return trace.divergence


class Rehearsed(Reading):
    """One that sees samples alone, and says what it takes."""

    alone = True
    passes = (20, 0)
    reduced: Any = None

    def rehearsal(self):
        return self.reduced or self


@dataclass(frozen=True)
class Looking:
    """Look at one sample so many times."""

    times: int

    def __call__(self, trace, context):
        assert len(trace) == len(context.inputs) == len(context.labels) == 1
        for _ in range(self.times):
            context.encoder(context.inputs)
        return trace.divergence


class Long(Rehearsed):
    passes = (65, 0)


class Untold(Rehearsed):
    reduced = Rehearsed(Looking(3), aim="clean")


METRICS_THAT_BREAK = {
    "gives_one_number_a_row": [
        Reading(lambda trace, context: trace.clean),
        Reading(lambda trace, context: trace.divergence, aim="target", per="pair"),
    ],
    "gives_numbers_inside_its_span_or_nan": [
        Reading(lambda trace, context: -trace.divergence),
        Reading(lambda trace, context: trace.divergence / 0),
        Reading(lambda trace, context: {"a": trace.divergence, "b": trace.divergence - 9}),
    ],
    "gives_the_same_numbers_again": [Reading(counting)],
    "does_not_care_about_order_or_company": [
        Reading(lambda trace, context: trace.divergence.flip(0)),
        Reading(lambda trace, context: trace.divergence / trace.divergence.max()),
    ],
    "says_how_its_numbers_are_read": [
        Reading(counting, aim="forward"),
        Reading(counting, better="more"),
        Reading(counting, statistic="sum"),
        Reading(counting, statistic="mean"),
        Reading(counting, span=(1.0, 0.0)),
        Reading(counting, per="pair"),
    ],
    "is_a_frozen_value_or_a_function": [Unequal(None)],
    "leaves_what_it_reads_alone": [
        Reading(changing),
        Reading(lambda trace, context: context.encoder.module.train(False) and torch.rand(len(trace))),
    ],
    "takes_the_passes_that_it_says": [
        Rehearsed(Looking(21), aim="clean"),
        Long(Looking(65), aim="clean"),
        Untold(Looking(20), aim="clean"),
    ],
}


@pytest.mark.parametrize("check", METRIC_CHECKS, ids=lambda check: check.__name__)
def test_a_metric_that_breaks_a_promise_fails_the_check_of_that_name(check):
    for metric in METRICS_THAT_BREAK[check.__name__]:
        with pytest.raises(AssertionError):
            check(metric)


@pytest.mark.parametrize("check", METRIC_CHECKS, ids=lambda check: check.__name__)
def test_a_metric_that_sees_samples_alone_is_checked_so(check):
    check(Rehearsed(Looking(20), aim="clean"))


@pytest.mark.parametrize("aim", ["away", "target", "clean"])
def test_what_metrics_are_checked_on_has_something_to_read(aim):
    trace, bank, context = read_example(aim)
    assert (len(trace), len(bank)) == (12, 40)
    assert (trace.divergence > 0).all() == (aim != "clean")
    assert context.labels.unique().tolist() == [0, 1, 2]
    if aim == "target":
        assert 0 < OverlapRisk()(trace, bank, context).sum() < 6
    if aim == "away":
        assert 0 < BreakawayRisk()(trace, bank, context).mean() < 1


# Encoders


class Sampling(nn.Module):
    def forward(self, inputs):
        return inputs.flatten(1) + torch.rand(())


class Wandering(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return inputs.flatten(1)


ENCODERS_THAT_BREAK = {
    "gives_a_vector_a_sample": [Encoder(lambda inputs: inputs.flatten(1) / 0, name="infinite")],
    "gives_samples_together_what_it_gives_them_alone": [
        Encoder(lambda inputs: inputs.flatten(1) - inputs.flatten(1).mean(0), name="mixing"),
        Encoder(Sampling(), name="random"),
    ],
    "carries_gradients_to_each_input_alone": [
        Encoder(lambda inputs: inputs.flatten(1).round(), name="rounding"),
        Encoder(lambda inputs: inputs.flatten(1) - inputs.flatten(1).mean(0), name="mixing"),
        Encoder(
            lambda inputs: inputs.flatten(1).sqrt().sub(0.5).abs().pow(0.5).mul(0) / (inputs.flatten(1) - inputs.flatten(1)), name="nan"
        ),
    ],
    "leaves_its_network_as_it_was": [Encoder(Wandering(), name="counting")],
}


@pytest.mark.parametrize("check", ENCODER_CHECKS, ids=lambda check: check.__name__)
def test_an_encoder_that_breaks_a_promise_fails_the_check_of_that_name(check):
    for encoder in ENCODERS_THAT_BREAK[check.__name__]:
        with pytest.raises(AssertionError):
            check(encoder, (3, 8, 8))


# The examples


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_the_tiny_encoder_do_not_depend_on_the_rows_beside(dtype):
    encoder = tiny_encoder()
    encoder.module.to(dtype)

    def pushed(inputs):
        inputs = inputs.to(dtype).requires_grad_()
        representations = encoder(inputs)
        return representations.detach(), torch.autograd.grad(representations.square().sum(), inputs)[0]

    inputs = tiny_inputs(64)
    whole = pushed(inputs.clone())
    for size in (1, 2, 3, 7, 32, 63):
        for first in (0, 1):
            part = pushed(inputs[first : first + size].clone())
            assert all(torch.equal(one, other[first : first + size]) for one, other in zip(part, whole, strict=True))


def test_examples_are_the_same_each_time_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    assert tiny_encoder(seed=4).fingerprint == tiny_encoder(seed=4).fingerprint != tiny_encoder(seed=5).fingerprint
    assert torch.equal(tiny_inputs(3), tiny_inputs(8)[:3])
    linear_encoder(3, 4, 4, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_tiny_inputs_touch_the_bounds():
    for shape in ((3, 8, 8), (5,), (2, 7)):
        inputs = tiny_inputs(4, shape, bounds=(-1, 1))
        assert inputs.shape == (4, *shape)
        assert (inputs.min(), inputs.max()) == (-1, 1)
        assert inputs.flatten(1)[:, :2].tolist() == [[-1, 1]] * 4


@pytest.mark.parametrize("dim", [1, 3])
def test_the_linear_encoder_is_its_weight(dim):
    encoder, weight = linear_encoder(2, 3, 4, dim, dtype=torch.float64)
    inputs = tiny_inputs(5, (2, 3, 4)).double()
    expected = (inputs[:, None] * weight).flatten(2).sum(2)
    torch.testing.assert_close(encoder(inputs), expected, rtol=1e-12, atol=0)
    assert ((weight != 0).sum(0) == 1).all()  # each value of an input feeds one number
    assert weight.shape == (dim, 2, 3, 4)


# The decorators


def cases(decorator):
    """The parametrized cases of a decorated function: [(values, id, marks)]."""

    def test():
        """Stand for a test."""

    (mark,) = decorator(test).pytestmark
    assert mark.args[0] in (("attack", "check"), ("metric", "check"), ("encoder", "check"))
    return [(case.values, case.id, case.marks) for case in mark.args[1]]


def test_ids_are_sentences_and_failures_foreseen_are_strict():
    noise = UniformNoise()
    found = cases(parametrize_attack_checks([noise], expected_failures={"comes_nearer_to_its_target": "it does not aim"}))
    assert [name for _, name, _ in found] == [f"UniformNoise-{check.__name__}" for check in ATTACK_CHECKS]
    assert all(values[0] is noise for values, _, _ in found)
    marked = {name: [mark.kwargs for mark in marks] for _, name, marks in found if marks}
    assert marked == {"UniformNoise-comes_nearer_to_its_target": [{"reason": "it does not aim", "strict": True}]}


def test_failures_may_be_foreseen_for_one_alone():
    one, other = UniformNoise(epsilon=0.1), UniformNoise(epsilon=0.2)
    found = cases(
        parametrize_attack_checks(
            {"one": one, "other": other}, expected_failures=lambda attack: {"moves_the_representation": "no"} if attack is one else {}
        )
    )
    assert [name for _, name, marks in found if marks] == ["one-moves_the_representation"]


def test_a_failure_of_a_check_that_does_not_exist_cannot_be_foreseen():
    with pytest.raises(ValueError, match=r"expected_failures names moves_the_world; the checks are .*moves_the_representation"):
        parametrize_attack_checks([UniformNoise()], expected_failures={"moves_the_world": "too heavy"})


def test_the_shape_of_an_input_goes_to_the_checks():
    for shape in ((3, 8, 8), lambda encoder: (3, 8, 8)):
        for (encoder, check), _, _ in cases(parametrize_encoder_checks([tiny_encoder()], shape=shape)):
            check(encoder)


# Plugins


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Write a distribution as an installer would."""
    from rt_core.registry import installed

    def write(name, source, *, point="rt_core.plugins"):
        module = f"testing_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        folder = tmp_path / f"rt_{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rt-{name}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[{point}]\nplugin = {module}\n")
        return f"rt-{name}"

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("RT_STRICT_PLUGINS", raising=False)
    installed.cache_clear()
    yield write
    installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("testing_")]:
        del sys.modules[name]


HOOK = "import rt_core\n@rt_core.hookimpl\ndef rt_attacks():\n    return [rt_core.AttackEntry(name='flip', summary={summary!r}, factory={factory!r})]\n"


def test_a_good_plugin_has_no_problem(distribution, tmp_path):
    name = distribution("good", HOOK.format(summary="mirror the input", factory="rt_core.baselines:Identity"))
    assert check_plugin(name) == []
    (tmp_path / "page.md").write_text("The attack `flip` mirrors.")
    assert check_plugin(name, docs=tmp_path / "page.md") == []
    (tmp_path / "page.md").write_text("Nothing.")
    assert check_plugin(name, docs=tmp_path / "page.md") == [f"attack 'flip' is not mentioned in {tmp_path / 'page.md'}"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import torch\n" + HOOK.format(summary="mirror", factory="rt_core.baselines:Identity"),
            ["imports torch; give factories as strings"],
        ),
        (
            HOOK.format(summary="mirror", factory="rt_core.baselines:Absent"),
            ["attack 'flip' cannot be imported from 'rt_core.baselines:Absent'"],
        ),
        (HOOK.format(summary="mirror.", factory="rt_core.baselines:Identity"), ["the summary of attack 'flip' is 'mirror.'"]),
        (HOOK.format(summary="m" * 101, factory="rt_core.baselines:Identity"), ["at most 100 characters"]),
        ("import absent_thing", ["does not load: ModuleNotFoundError", "was left out: ModuleNotFoundError"]),
        ("x = 1", ["was left out: PluginError: it has no hook"]),
    ],
)
@pytest.mark.filterwarnings("ignore::rt_core.errors.PluginWarning")
def test_what_is_wrong_with_a_plugin_is_said(distribution, source, words):
    name = distribution("wrong", source)
    problems = check_plugin(name)
    assert len(problems) == len(words)
    for problem, expected in zip(problems, words, strict=True):
        assert expected in problem


def test_a_name_that_another_distribution_gives_is_a_problem(distribution):
    source = HOOK.format(summary="mirror the input", factory="rt_core.baselines:Identity")
    name, other = distribution("good", source), distribution("other", source)
    for mine, theirs in ((name, other), (other, name)):
        (problem,) = check_plugin(mine)
        assert problem == f"attack 'flip' has the name of {theirs}/flip, so that the bare name finds neither; give it another"


def test_a_name_that_is_registered_by_hand_is_none(distribution):
    name = distribution("good", HOOK.format(summary="mirror the input", factory="rt_core.baselines:Identity"))

    class Notebook:
        @rt_core.hookimpl
        def rt_attacks(self):
            return [rt_core.AttackEntry(name="flip", summary="mirror the input", factory=UniformNoise)]

    rt_core.register(Notebook())
    assert check_plugin(name) == []


METRIC = """
import rt_core

class Mute:
    aim, better, statistic, per, span = "away", "lower", "median", "sample", (0, 1)

@rt_core.hookimpl
def rt_metrics():
    return [rt_core.MetricEntry(name="mute", summary="say nothing", factory={factory})]
"""


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("Mute", []),
        ("type('Mute', (Mute,), {'span': (0, None)})", ["span of metric 'mute' is (0, None); expected two numbers"]),
        ("object", ["aim of metric 'mute' is missing; expected 'away'"]),
        ("lambda *, size: object()", []),  # it needs an option, and cannot be known without
        ("lambda: 1 / 0", ["metric 'mute' cannot be made: ZeroDivisionError"]),
    ],
)
def test_a_metric_that_does_not_say_how_it_is_read_is_a_problem(distribution, factory, words):
    problems = check_plugin(distribution("metric", METRIC.replace("{factory}", factory)))
    assert len(problems) == len(words)
    assert all(expected in problem for problem, expected in zip(problems, words, strict=True))


def test_what_is_no_plugin_cannot_be_checked(distribution):
    with pytest.raises(PluginError, match="no distribution is named 'rt-absent'; install it first"):
        check_plugin("rt-absent")
    name = distribution("pointless", "", point="console_scripts")
    with pytest.raises(PluginError, match=r"has no entry point in the group 'rt_core.plugins'; add"):
        check_plugin(name)

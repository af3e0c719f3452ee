"""The contracts of attacks, metrics and encoders as checks: each is a function whose name is the sentence that failed."""

import contextlib
import dataclasses
import json
import pickle
import random as python_random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rt_core.divergences import l2
from rt_core.encoders import Encoder
from rt_core.errors import PlanError
from rt_core.evaluation import describe
from rt_core.neighbors import Bank
from rt_core.perturbing import passes_of, perturb
from rt_core.randomness import SampleRandom
from rt_core.testing.examples import Reading, read_example, tiny_encoder, tiny_inputs
from rt_core.traces import Attempt, Batch, Rows, Trace, aims_of, ball_of, check_metric, is_alone, passes_of_attack

__all__ = ["ATTACK_CHECKS", "ENCODER_CHECKS", "METRIC_CHECKS"]

_OTHERS = 12  # in the bank
_REHEARSAL = 64  # passes

# Attacks


def keeps_shape_dtype_and_device(attack: Any) -> None:
    for dtype, batch in ((torch.float32, 8), (torch.float64, 3)):
        inputs = tiny_inputs(batch).to(dtype)
        for trace in _both(attack, inputs):
            for moved in (trace.inputs, *trace.marks.values()):
                assert (moved.shape, moved.dtype, moved.device) == (inputs.shape, inputs.dtype, inputs.device)


def stays_inside_the_bounds_and_its_ball(attack: Any) -> None:
    for low, high in ((0.0, 1.0), (-1.0, 1.0)):
        inputs = tiny_inputs(bounds=(low, high))
        for trace in _both(attack, inputs, tiny_encoder(bounds=(low, high))):
            for moved in (trace.inputs, *trace.marks.values()):
                assert moved.isfinite().all()
                assert low <= moved.min() <= moved.max() <= high, f"values in [{moved.min()}, {moved.max()}], bounds [{low}, {high}]"
                if (ball := ball_of(attack)) is not None:
                    furthest = ball.distance(moved, inputs).max().item()
                    assert furthest <= ball.tolerance, f"moved by {furthest:.9g} ({ball.norm}), radius {ball.radius:.9g}"


def leaves_what_it_is_given_alone(attack: Any) -> None:
    for aim in aims_of(attack):
        encoder, batch = tiny_encoder(), _batch(aim)
        given = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        before = {name: value.clone() for name, value in given.items()}
        _call(attack, encoder, batch)
        for name, value in given.items():
            assert torch.equal(value, before[name]), f"the attack changed the batch's {name} in place"
            assert not value.requires_grad, f"the attack left requires_grad on the batch's {name}"


def leaves_the_network_alone(attack: Any) -> None:
    for aim in aims_of(attack):
        encoder = Encoder(_network_in_training(), name="training")
        with _unchanged(encoder.module):
            _perturbed(attack, encoder, tiny_inputs(), aim)


def leaves_the_network_alone_when_it_fails(attack: Any) -> None:
    for failing_call in (2, 3, 4):
        network = _network_in_training()
        calls = [0]

        def fail(returned: Tensor, calls: list[int] = calls, last: int = failing_call) -> Tensor:
            calls[0] += 1
            if calls[0] == last:
                raise ArithmeticError("a failure on purpose")
            return returned

        encoder = Encoder(network, name="failing", output=fail)
        aim = aims_of(attack)[0]
        with _unchanged(network), contextlib.suppress(Exception):
            _perturbed(attack, encoder, tiny_inputs(), aim)


def gives_the_same_for_the_same_seed(attack: Any) -> None:
    for first, second in zip(_both(attack, tiny_inputs()), _both(attack, tiny_inputs()), strict=True):
        assert torch.equal(first.inputs, second.inputs)


def gives_a_sample_the_same_result_in_any_batch_and_order(attack: Any) -> None:
    inputs, encoder, order = tiny_inputs(), tiny_encoder(), torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    for aim in aims_of(attack):
        whole = _perturbed(attack, encoder, inputs, aim, batch=8).inputs
        for size in (1, 3):
            assert torch.equal(_perturbed(attack, encoder, inputs, aim, batch=size).inputs, whole), f"batch {size} is not batch 8"
        shuffled = _perturbed(attack, encoder, inputs[order], aim, ids=order.tolist()).inputs
        assert torch.equal(shuffled, whole[order]), "another order of the samples gives them other results"


def leaves_the_global_generators_alone(attack: Any) -> None:
    for aim in aims_of(attack):
        with _untouched_generators():
            _call(attack, tiny_encoder(), _batch(aim))


def is_a_frozen_recordable_value(attack: Any) -> None:
    _check_value(attack)
    assert dataclasses.is_dataclass(attack), "an attack is a frozen dataclass: its fields are its configuration"


def moves_the_representation(attack: Any) -> None:
    for trace in _both(attack, tiny_inputs()):
        still = (trace.adversarial == trace.clean).all(1).nonzero().flatten().tolist()
        assert not still, f"aim {trace.aim}: the representations of rows {still} did not move"


def comes_nearer_to_its_target(attack: Any) -> None:
    if "target" not in aims_of(attack):
        return
    inputs = tiny_inputs()
    trace = _perturbed(attack, tiny_encoder(), inputs, "target")
    before = l2(trace.targets.double(), trace.clean.double())
    assert (trace.divergence < before).all(), f"distances to the target, before {before.tolist()}, after {trace.divergence.tolist()}"


def takes_a_batch_of_one(attack: Any) -> None:
    for trace in _both(attack, tiny_inputs(1)):
        assert trace.inputs.shape == (1, 3, 8, 8)


def takes_inputs_that_are_no_images(attack: Any) -> None:
    for shape in ((5,), (2, 7)):
        inputs, encoder = tiny_inputs(4, shape), Encoder(lambda inputs: (3 * inputs.flatten(1)).sin(), name="waves")
        for trace in _both(attack, inputs, encoder):
            assert trace.inputs.shape == inputs.shape


def works_where_gradients_are_off(attack: Any) -> None:
    encoder = tiny_encoder()
    plain = [trace.inputs for trace in _both(attack, tiny_inputs(), encoder)]
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            for trace, expected in zip(_both(attack, tiny_inputs(), encoder), plain, strict=True):
                assert torch.equal(trace.inputs, expected), f"another result under {off.__name__}"


def returns_inputs_without_a_graph(attack: Any) -> None:
    for aim in aims_of(attack):
        returned = _call(attack, tiny_encoder(), _batch(aim))
        for moved in (returned.inputs, *returned.marks.values()) if isinstance(returned, Attempt) else (returned,):
            assert not moved.requires_grad, "the result needs a gradient: end with .detach()"


# Metrics


def gives_one_number_a_row(metric: Any) -> None:
    for size in (2, 12):
        for name, values in _numbers(metric, read_example(metric.aim, attacked=size)).items():
            expected = size if metric.per == "sample" else size // 2
            assert values.shape == (expected,), f"{name or 'it'} has shape {list(values.shape)} for {size} samples, per {metric.per}"
            assert values.is_floating_point()


def gives_numbers_inside_its_span_or_nan(metric: Any) -> None:
    low, high = metric.span
    for name, values in _numbers(metric, read_example(metric.aim)).items():
        assert not values.isinf().any(), f"{name or 'it'} is infinite in some rows"
        known = values[~values.isnan()]
        assert ((known >= low) & (known <= high)).all(), f"{name or 'it'} leaves [{low}, {high}]: {known.tolist()}"


def gives_the_same_numbers_again(metric: Any) -> None:
    first, second = (_numbers(metric, read_example(metric.aim)) for _ in range(2))
    assert first.keys() == second.keys()
    assert all(_same(first[name], second[name]) for name in first)


def does_not_care_about_order_or_company(metric: Any) -> None:
    pairs = torch.tensor([3, 0, 5, 1, 4, 2])
    for kept in (pairs, pairs[:2], pairs[2:]):
        order = torch.stack([2 * kept, 2 * kept + 1], dim=1).flatten()  # both sides of a pair stay together
        whole, part = _numbers(metric, read_example(metric.aim)), _numbers(metric, read_example(metric.aim, order=order.tolist()))
        rows = order if metric.per == "sample" else kept
        for name, values in whole.items():
            assert _same(part[name], values[rows]), f"{name or 'it'}: {part[name].tolist()}, and among others {values[rows].tolist()}"


def says_how_its_numbers_are_read(metric: Any) -> None:
    try:
        check_metric(metric, type(metric).__name__)
    except PlanError as error:
        raise AssertionError(str(error)) from None


def is_a_frozen_value_or_a_function(metric: Any) -> None:
    _check_value(metric)


def leaves_what_it_reads_alone(metric: Any) -> None:
    reading = read_example(metric.aim)
    reading = reading.sample(0) if is_alone(metric) else reading
    before = {name: value.clone() for name, value in vars(reading.trace).items() if isinstance(value, Tensor)}
    with _unchanged(reading.context.encoder.module), _untouched_generators():
        metric(*reading)
    for name, value in before.items():
        assert torch.equal(getattr(reading.trace, name), value), f"the metric changed the trace's {name}"


def takes_the_passes_that_it_says(metric: Any) -> None:
    if not hasattr(metric, "rehearsal"):
        return
    reading = read_example(metric.aim)
    for one, most in ((metric, None), (metric.rehearsal(), _REHEARSAL)):
        told, alone = passes_of_attack(one), reading.sample(0)
        before = passes_of(alone.context.encoder)
        one(*alone)
        after = passes_of(alone.context.encoder)
        made = (after.forwards - before.forwards, after.backwards - before.backwards)
        assert told == made, f"{type(one).__name__} says it takes {told} passes, and took {made}"
        assert most is None or sum(made) <= most, f"its rehearsal takes {sum(made)} passes; a run waits for it, so at most {most}"


# Encoders: the second argument is the shape of one input


def gives_a_vector_a_sample(encoder: Encoder, shape: Sequence[int] = (3, 32, 32)) -> None:
    for batch in (1, 3):
        representations = encoder(_inputs_of(encoder, batch, shape))
        assert representations.shape == (batch, representations.shape[-1])
        assert representations.dtype == torch.float32
        assert representations.isfinite().all()


def gives_samples_together_what_it_gives_them_alone(encoder: Encoder, shape: Sequence[int] = (3, 32, 32)) -> None:
    inputs = _inputs_of(encoder, 5, shape)
    with torch.no_grad():
        together, alone = encoder(inputs), torch.cat([encoder(one) for one in inputs.split(1)])
        torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5 * together.abs().max().item())
        assert torch.equal(encoder(inputs), together), "the same inputs give other representations: something in it is random"


def carries_gradients_to_each_input_alone(encoder: Encoder, shape: Sequence[int] = (3, 32, 32)) -> None:
    inputs = _inputs_of(encoder, 3, shape).requires_grad_()
    (slope,) = torch.autograd.grad(encoder(inputs)[1].square().sum(), inputs)
    assert slope.isfinite().all()
    assert slope[1].any(), "no gradient arrives at the input"
    assert not slope[0].any(), "a sample's representation depends on the samples beside it"
    assert not slope[2].any(), "a sample's representation depends on the samples beside it"


def leaves_its_network_as_it_was(encoder: Encoder, shape: Sequence[int] = (3, 32, 32)) -> None:
    modes, fingerprint = [module.training for module in encoder.module.modules()], encoder.fingerprint
    try:
        for training in (True, False):
            encoder.module.train(training)
            with _unchanged(encoder.module), _untouched_generators():
                encoder(_inputs_of(encoder, 2, shape))
            with _unchanged(encoder.module), contextlib.suppress(Exception):
                encoder(torch.zeros(2, 1, 1, 1, 1, 1, 1))  # of no use to any network
    finally:
        for module, mode in zip(encoder.module.modules(), modes, strict=True):
            module.training = mode
    assert encoder.fingerprint == fingerprint


ATTACK_CHECKS: tuple[Callable[..., None], ...] = (
    keeps_shape_dtype_and_device,
    stays_inside_the_bounds_and_its_ball,
    leaves_what_it_is_given_alone,
    leaves_the_network_alone,
    leaves_the_network_alone_when_it_fails,
    gives_the_same_for_the_same_seed,
    gives_a_sample_the_same_result_in_any_batch_and_order,
    leaves_the_global_generators_alone,
    is_a_frozen_recordable_value,
    moves_the_representation,
    comes_nearer_to_its_target,
    takes_a_batch_of_one,
    takes_inputs_that_are_no_images,
    works_where_gradients_are_off,
    returns_inputs_without_a_graph,
)
METRIC_CHECKS: tuple[Callable[..., None], ...] = (
    gives_one_number_a_row,
    gives_numbers_inside_its_span_or_nan,
    gives_the_same_numbers_again,
    does_not_care_about_order_or_company,
    says_how_its_numbers_are_read,
    is_a_frozen_value_or_a_function,
    leaves_what_it_reads_alone,
    takes_the_passes_that_it_says,
)
ENCODER_CHECKS: tuple[Callable[..., None], ...] = (
    gives_a_vector_a_sample,
    gives_samples_together_what_it_gives_them_alone,
    carries_gradients_to_each_input_alone,
    leaves_its_network_as_it_was,
)


def _targets(aim: str, inputs: Tensor) -> Tensor | None:
    return inputs.flip(-1) if aim == "target" else None


def _both(attack: Any, inputs: Tensor, encoder: Encoder | None = None) -> list[Trace]:
    """Return what the attack does in each aim that it supports."""
    encoder = encoder or tiny_encoder()
    return [_perturbed(attack, encoder, inputs, aim) for aim in aims_of(attack)]


def _perturbed(attack: Any, encoder: Encoder, inputs: Tensor, aim: str, **options: Any) -> Trace:
    """Attack with others beside, as a run does."""
    others = _inputs_of(encoder, _OTHERS, inputs.shape[1:]).flip(-1).to(inputs)
    return perturb(attack, encoder, inputs, targets=_targets(aim, inputs), bank=others, **options)


def _batch(aim: str) -> Batch:
    encoder, inputs = tiny_encoder(), tiny_inputs()
    targets = _targets(aim, inputs)
    with torch.no_grad():
        clean, aimed = encoder(inputs), None if targets is None else encoder(targets)
        bank = Bank(encoder(_inputs_of(encoder, _OTHERS, inputs.shape[1:]).flip(-1)))
    ids = tuple(map(str, range(8)))
    return Batch(
        ids=ids, inputs=inputs, clean=clean, aim=aim, targets=aimed, target_inputs=targets, bank=bank, own=torch.full((len(ids),), -1)
    )


def _call(attack: Any, encoder: Encoder, batch: Batch) -> Any:
    with encoder.in_use():
        return attack(encoder, batch, l2, random=SampleRandom.of(0, batch.ids))


def _numbers(metric: Any, reading: Reading) -> dict[str, Tensor]:
    if is_alone(metric) and len(reading.trace) > 1:
        each = [_numbers(metric, reading.sample(row)) for row in range(len(reading.trace))]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}
    measured = metric(*reading)
    parts = measured if isinstance(measured, dict) else {"": measured}
    return {name: torch.as_tensor(rows.values if isinstance(rows, Rows) else rows) for name, rows in parts.items()}


def _same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.nan_to_num(nan=-12.5), second.nan_to_num(nan=-12.5))


def _inputs_of(encoder: Encoder, batch: int, shape: Sequence[int]) -> Tensor:
    low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in encoder.bounds)
    return low + (high - low) * (0.1 + 0.8 * tiny_inputs(batch, shape))


def _check_value(value: Any) -> None:
    if dataclasses.is_dataclass(value):
        assert value.__dataclass_params__.frozen, "its dataclass is not frozen"  # type: ignore[attr-defined]
    json.dumps(describe(value))
    assert pickle.loads(pickle.dumps(value)) == value


def _network_in_training() -> nn.Module:
    """Return a network in which everything is set that could be lost: modes, flags, statistics, a gradient and a hook."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 6))
    network.train()
    network[3].eval()
    network[0].weight.requires_grad_(False)
    network[5].bias.grad = torch.ones(6)
    network[2].register_forward_hook(_seen)
    return network


def _seen(*seen: Any) -> None:
    """Stand for a hook of the network's owner."""


@contextlib.contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    def state() -> list[Any]:
        weights = {name: (weight.requires_grad, weight.grad) for name, weight in network.named_parameters()}
        hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks)) for part in network.modules()]
        return [[part.training for part in network.modules()], {name: flag for name, (flag, _) in weights.items()}, hooks]

    def tensors() -> dict[str, Tensor]:
        slopes = {f"{name}.grad": weight.grad for name, weight in network.named_parameters() if weight.grad is not None}
        return {name: tensor.clone() for name, tensor in ({**network.state_dict()} | slopes).items()}

    flags, before = state(), tensors()
    try:
        yield
    finally:
        for what, old, new in zip(("the modes", "requires_grad", "the hooks"), flags, state(), strict=True):
            assert old == new, f"{what} of the network are not as they were"
        after = tensors()
        assert before.keys() == after.keys(), f"gradients were left on the weights: {before.keys() ^ after.keys()}"
        changed = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]
        assert not changed, f"the network's {', '.join(changed)} changed"


@contextlib.contextmanager
def _untouched_generators() -> Iterator[None]:
    def states() -> list[Any]:
        return [python_random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state())]

    before, torch_before = states(), torch.get_rng_state()
    yield
    assert states() == before, "Python's or numpy's global generator was drawn from"
    assert torch.equal(torch.get_rng_state(), torch_before), "torch's global generator was drawn from"

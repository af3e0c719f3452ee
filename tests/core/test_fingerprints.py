"""What makes a value what it is: two that compute different things have different fingerprints, one made again has the same."""

import copy
import functools
import logging
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rt_core import Encoder, Evaluation, run
from rt_core.baselines import UniformNoise
from rt_core.fingerprints import content_of, fingerprint
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.traces import FrozenTensor


def layer(number):
    return lambda outputs: outputs[:, number:]


def default(outputs, number=1):
    return outputs * number


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, inputs):
        return inputs.flatten(1) * self.factor


class Keeps(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


class Plain:
    def __init__(self, factor):
        self.factor = factor

    def method(self, inputs):
        return inputs * self.factor


@dataclass(frozen=True)
class Holds:
    what: Any = field(repr=False)


def network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(3, 2)


DIFFERENT = {
    "numbers": (1, 2),
    "a number and its text": (1, "1"),
    "constants of functions": (lambda outputs: outputs[:, 0], lambda outputs: outputs[:, 1]),
    "closures": (layer(0), layer(2)),
    "closures over networks": (lambda x, net=network(0): net(x), lambda x, net=network(1): net(x)),
    "names in functions": (lambda x: x.min(), lambda x: x.max()),
    "partials": (functools.partial(default, number=1), functools.partial(default, number=2)),
    "methods": (Plain(1).method, Plain(2).method),
    "objects": (Plain(1), Plain(2)),
    "tensors": (torch.zeros(3), torch.ones(3)),
    "arrays": (np.zeros(3), np.ones(3)),
    "weights": (network(0), network(1)),
    "attributes of networks": (Times(1), Times(50)),
    "tensors that are no buffers": (Keeps(mean=torch.zeros(3)), Keeps(mean=torch.ones(3))),
    "private attributes of networks": (Keeps(_gain=1.0), Keeps(_gain=5.0)),
    "private tensors": (Keeps(_mean=torch.zeros(3)), Keeps(_mean=torch.ones(3))),
    "dicts in networks": (Keeps(config={"gain": 1.0}), Keeps(config={"gain": 5.0})),
    "deep in networks": (Keeps(_config={"of": [{"gain": np.ones(2)}]}), Keeps(_config={"of": [{"gain": np.zeros(2)}]})),
    "fields that are not shown": (Holds(torch.zeros(2)), Holds(torch.ones(2))),
    "ranges": (range(3), range(4)),
    "keys": ({"a": 1}, {"b": 1}),
    "nesting": ([[1], 2], [1, [2]]),
}


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_has_another_fingerprint(first, second):
    assert fingerprint(first) == fingerprint(first)
    assert fingerprint(first) != fingerprint(second)


def test_one_number_of_a_strided_tensor_has_its_bytes():
    strided = torch.arange(17.0).reshape(1, 17)[:, -1]
    assert content_of(strided) == np.float32(16).tobytes()
    assert fingerprint(strided) == fingerprint(torch.tensor([16.0]))
    assert torch.equal(FrozenTensor.of(strided).on(torch.device("cpu")), strided)
    assert content_of(torch.arange(6.0).reshape(2, 3).T) == np.arange(6, dtype=np.float32).reshape(2, 3).T.tobytes()


def test_the_fingerprint_of_an_encoder_is_taken_once_while_it_is_in_use():
    encoder = tiny_encoder()
    weight = next(encoder.module.parameters())
    before = encoder.fingerprint
    with encoder.in_use():
        assert encoder.fingerprint == before
        weight.data.add_(1)
        assert encoder.fingerprint == before
    assert encoder.fingerprint != before
    with encoder.in_use():
        assert encoder.fingerprint != before


def test_what_is_made_again_has_the_same():
    assert fingerprint(layer(1)) == fingerprint(layer(1))
    assert fingerprint(Plain(1).method) == fingerprint(Plain(1).method)
    assert fingerprint(network(0)) == fingerprint(network(0))
    assert fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    for module in (nn.LSTM(2, 3), nn.MultiheadAttention(4, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))):
        before = fingerprint(module)
        assert fingerprint(copy.deepcopy(module)) == before
        assert fingerprint(module.eval()) == before
    tooled = Keeps(_logger=logging.getLogger("a"), trainer=Plain(1), _hooked=print)
    assert fingerprint(tooled) == fingerprint(Keeps(_logger=logging.getLogger("b"), trainer=Plain(2), _hooked=max))
    code = "\n".join(
        [
            "import functools",
            "from rt_core.fingerprints import fingerprint",
            "class A: pass",
            "print(fingerprint([A(), functools.partial(max, 1), lambda x: x + 1]))",
        ]
    )
    prints = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(prints) == 1


@pytest.mark.parametrize("output", [(lambda out: out[:, :4], lambda out: out[:, 4:8]), (layer(0), layer(8))])
def test_a_store_tells_encoders_apart_by_their_output(tmp_path, output):
    def values(chosen, store):
        encoder = Encoder(tiny_encoder().module, name="same", output=chosen)
        plan = Evaluation([encoder], tiny_inputs(8), {"noise": UniformNoise(epsilon=0.1)}, ["divergence"], attacked=8)
        return run(plan, store=store, progress=False).frame["value"].tolist()

    first, second = (values(chosen, tmp_path) for chosen in output)
    assert first == values(output[0], None) != second == values(output[1], None)


def test_a_store_tells_divergences_of_one_name_apart(tmp_path):
    def values(factor, store):
        plan = Evaluation(
            [tiny_encoder()],
            tiny_inputs(8),
            {"noise": UniformNoise(epsilon=0.1)},
            ["divergence"],
            divergence=lambda first, second: factor * (first - second).abs().sum(1),
            attacked=8,
        )
        return run(plan, store=store, progress=False).frame["value"].tolist()

    assert values(1.0, tmp_path) != values(10.0, tmp_path) == values(10.0, None)

"""The encoder: what it selects and normalizes, what it refuses and with which words, and that it puts the network back."""

import argparse
import copy
import pickle
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rt_core import Encoder, EncoderError, IntegerInputs, InvalidInputs, OutputError, RobustnessWarning, ShapeError, perturb, represent
from rt_core.baselines import UniformNoise
from rt_core.encoders import as_encoder, check_inputs, from_import, round_inward
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.weights import load_weights
from rt_unsupervised_attacks import UPGD


def flat(**settings):
    return Encoder(nn.Flatten(), name="flat", **settings)


class Returning(nn.Module):
    """A network that returns what it is told, made of its flattened inputs."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, inputs):
        return self.make(inputs.flatten(1))


# What is selected


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda rows: rows, None),
        (lambda rows: {"embedding": rows, "logits": rows[:, :2]}, "embedding"),
        (lambda rows: (rows[:, :2], rows), 1),
        (lambda rows: (rows[:, :2], rows), np.int64(1)),
        (lambda rows: [rows[:, :2], rows], -1),
        (lambda rows: SimpleNamespace(last=rows), "last"),
        (lambda rows: {"states": [rows, rows]}, lambda returned: returned["states"][0]),
    ],
    ids=["tensor", "dict", "tuple", "numpy", "list", "object", "function"],
)
def test_any_part_of_what_a_network_returns_can_be_the_representation(make, output):
    inputs = tiny_inputs(2)
    assert torch.equal(Encoder(Returning(make), name="one", output=output)(inputs), inputs.flatten(1))


@pytest.mark.parametrize(
    ("make", "output", "words"),
    [
        (lambda rows: {"embedding": rows}, None, "a dict with keys 'embedding', and output=None selects no tensor.*output='embedding'"),
        (lambda rows: {"embedding": rows}, "embeding", "keys 'embedding', and output='embeding'"),
        (lambda rows: (rows, rows), None, "a tuple of 2.*output=0"),
        (lambda rows: (rows, rows), 2, "a tuple of 2, and output=2"),
        (lambda rows: SimpleNamespace(last=rows), None, "a SimpleNamespace"),
        (lambda rows: rows, 0, "a Tensor, and output=0"),
    ],
)
def test_a_part_that_is_not_there_is_a_type_error_that_says_what_is(make, output, words):
    with pytest.raises(OutputError, match=words) as raised:
        Encoder(Returning(make), name="one", output=output)(tiny_inputs(2))
    assert isinstance(raised.value, TypeError)


def test_a_submodule_s_output_can_be_the_representation():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.ReLU(), nn.Linear(7, 1000))
    inputs = tiny_inputs(2)
    encoder = Encoder(network, name="one", output="1")

    assert torch.equal(encoder(inputs), network[1](inputs.flatten(1)))
    assert not network[1]._forward_hooks
    network.forward = lambda inputs: inputs
    with pytest.raises(OutputError, match="a submodule that ran 0 times"):
        encoder(inputs)


def test_representations_of_another_shape_are_refused_by_their_axes():
    with pytest.raises(ShapeError, match=r"encoder 'one' output has shape \[2, 3, 8, 8\]; expected \[2, dim\] \(batch dim\)"):
        Encoder(nn.Identity(), name="one")(tiny_inputs(2))
    with pytest.raises(ShapeError, match=r"has shape \[1, 192\]; expected \[2, dim\]"):
        Encoder(Returning(lambda rows: rows[:1]), name="one")(tiny_inputs(2))


def test_complex_numbers_are_refused_and_not_cut_down_to_their_real_part():
    encoder = Encoder(lambda inputs: torch.fft.fft(inputs.flatten(1)), name="fft")
    with pytest.raises(OutputError, match=r"encoder 'fft' returned complex64; expected real numbers: say output=.*view_as_real"):
        encoder(tiny_inputs(2))
    said = Encoder(encoder.module, name="fft", output=lambda returned: torch.view_as_real(returned).flatten(1))
    assert said(tiny_inputs(2)).shape == (2, 384)
    with pytest.raises(InvalidInputs, match="inputs is complex64; expected real numbers"):
        check_inputs(tiny_inputs(2).to(torch.complex64), flat())


def test_a_network_that_fails_says_what_it_was_given():
    def fail(inputs):
        raise AssertionError("Input height (96) doesn't match model (224)")

    with pytest.raises(
        EncoderError, match=r"encoder 'vit' failed on inputs of shape \[2, 3, 8, 8\] \(float32, cpu\): AssertionError: Input height"
    ):
        Encoder(fail, name="vit")(tiny_inputs(2))


def test_functions_and_networks_become_encoders():
    inputs = tiny_inputs(2)
    assert torch.equal(as_encoder(lambda inputs: inputs.flatten(1))(inputs), inputs.flatten(1))
    assert as_encoder(nn.Flatten()).name == "Flatten"
    encoder = flat()
    assert as_encoder(encoder) is encoder
    with pytest.raises(ValueError, match="module is 3; an encoder wraps a torch module or a function"):
        Encoder(3, name="three")


# dtypes


@pytest.mark.parametrize(
    ("network", "inputs", "expected"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
    ],
)
def test_representations_are_float32_unless_all_is_float64(network, inputs, expected):
    encoder = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).to(network), name="one")
    representations = encoder(tiny_inputs(2).to(inputs).requires_grad_())
    assert representations.dtype == expected
    assert representations.numpy(force=True).dtype == str(expected).removeprefix("torch.")
    assert encoder.module[1].weight.dtype == network
    assert representations.requires_grad


def test_a_network_without_weights_takes_the_inputs_as_they_are():
    assert flat()(tiny_inputs(2).double()).dtype == torch.float64
    assert flat().where() is None


# Normalization and bounds


def test_normalization_is_by_channel():
    inputs = tiny_inputs(2, (3, 3, 3))
    encoder = flat(normalize=((0.1, 0.2, 0.3), (1.0, 2.0, 4.0)))
    expected = torch.stack([(inputs[:, 0] - 0.1) / 1, (inputs[:, 1] - 0.2) / 2, (inputs[:, 2] - 0.3) / 4], dim=1).flatten(1)

    torch.testing.assert_close(encoder(inputs), expected)
    torch.testing.assert_close(flat(normalize=([0.5], [0.5]))(inputs), 2 * inputs.flatten(1) - 1)
    torch.testing.assert_close(flat(normalize=(0.5, 0.5))(inputs), 2 * inputs.flatten(1) - 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(flat(normalize="imagenet")(inputs), ((inputs - mean[:, None, None]) / std[:, None, None]).flatten(1))


def test_normalization_of_other_channels_is_refused():
    with pytest.raises(InvalidInputs, match=r"mean has 3 values, input has 1 channel \(axis 1\)"):
        flat(normalize="imagenet")(tiny_inputs(2, (1, 4, 4)))
    with pytest.raises(InvalidInputs, match="mean has 3 values, input has 4 channels"):
        flat(normalize="imagenet")(tiny_inputs(2, (4, 3, 3)))


@pytest.mark.parametrize("normalize", ["cifar", ((0.5,), (0.5, 0.5)), ((0.5,), (0.0,))])
def test_normalization_that_makes_no_sense_is_refused(normalize):
    with pytest.raises(ValueError, match="normalize is"):
        flat(normalize=normalize)


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0, float("inf")), (float("nan"), 1), (0,), "01", (torch.zeros(3), torch.zeros(3))])
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(ValueError, match="bounds is"):
        flat(bounds=bounds)


def test_bounds_are_rounded_inward():
    third = 1 / 3  # rounds up in float32
    low, high = round_inward((-third, third), torch.zeros(1))
    assert -third < low.double() < high.double() < third
    assert low == -high == -torch.nextafter(torch.tensor(third), torch.tensor(0.0))
    assert [bound.item() for bound in round_inward((0.1, third), torch.zeros(1, dtype=torch.float64))] == [0.1, third]
    assert flat(bounds=(-third, third)).clip(torch.tensor([[-1.0, 1.0]])).tolist() == [[low, high]]


def test_bounds_may_be_of_each_channel():
    bounds = torch.tensor([-1.0, 0.0, 0.5])[:, None, None], torch.tensor([1.0, 2.0, 0.75])[:, None, None]
    clipped = flat(bounds=bounds).clip(torch.full((2, 3, 4, 4), 9.0))
    assert clipped[0, :, 0, 0].tolist() == [1.0, 2.0, 0.75]
    with pytest.raises(InvalidInputs, match=r"outside the bounds \[tensor, tensor\] in 2 of 2"):
        check_inputs(torch.full((2, 3, 4, 4), 0.9), flat(bounds=bounds))


def test_inputs_on_the_bounds_are_inside_in_each_dtype():
    for dtype in (torch.float32, torch.float64):
        check_inputs(torch.tensor([[0.1, 1 / 3]], dtype=dtype), flat(bounds=(0.1, 1 / 3)))
        check_inputs(torch.tensor([[0.7, 4 / 3]], dtype=dtype), flat(bounds=(0.7, 4 / 3)))


# What may not be asked


def broken(**places):
    inputs = tiny_inputs(4)
    for place, value in places.items():
        inputs[int(place[1:]), 0, 0, 0] = value
    return inputs


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        (
            broken(r1=float("nan"), r3=float("inf")),
            InvalidInputs,
            r"NaN or infinity in 2 of 4 samples \(rows 1, 3\); inputs must be finite",
        ),
        (broken(r2=1.5), InvalidInputs, r"lies in \[0, 1.5\], outside the bounds \[0, 1\] in 1 of 4 samples \(rows 2\): give unnormalized"),
        (255 * tiny_inputs(4), InvalidInputs, "divide by 255"),
        (tiny_inputs(4) - 0.5, InvalidInputs, "unnormalized inputs and let the encoder normalize, or say bounds="),
        ((255 * tiny_inputs(4)).byte(), InvalidInputs, r"uint8, 0..255.*write inputs.float\(\) / 255"),
        (torch.arange(8).view(2, 4), IntegerInputs, "int64, and integers carry no gradient; attack the output of the embedding layer"),
        (tiny_inputs(4).half(), InvalidInputs, "float16, too coarse"),
        (tiny_inputs(4)[:0], InvalidInputs, r"shape \[0, 3, 8, 8\]; expected \[batch, \*input\] with at least one sample"),
        (torch.zeros(4), InvalidInputs, r"shape \[4\]"),
        ([[0.5]], InvalidInputs, "of type list; give a tensor"),
    ],
)
def test_inputs_that_cannot_be_asked_about_are_refused_with_the_remedy(inputs, error, words):
    with pytest.raises(error, match=words):
        check_inputs(inputs, flat())


def test_many_broken_rows_are_not_all_listed():
    with pytest.raises(InvalidInputs, match=r"20 of 20 samples \(rows 0, 1, 2, 3, 4, …\)"):
        check_inputs(torch.full((20, 3), float("nan")), flat())


# The network afterwards


def state_of(network):
    modes, flags = [part.training for part in network.modules()], [weight.requires_grad for weight in network.parameters()]
    return modes, flags, {name: tensor.clone() for name, tensor in network.state_dict().items()}


def in_training():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 6))
    network[0].weight.requires_grad_(False)
    return network.train()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_modes_flags_and_statistics_are_put_back(held, fails):
    network = in_training()
    network[1].eval()
    encoder, (modes, flags, weights) = Encoder(network, name="one"), state_of(network)
    inputs = torch.zeros(2, 5, 8, 8) if fails else tiny_inputs(2)

    def use():
        assert held == (not any(part.training for part in network.modules()))
        return encoder(inputs.requires_grad_())

    try:
        if held:
            with encoder.in_use():
                assert not any(weight.requires_grad for weight in network.parameters())
                representations = use()
        else:
            representations = use()
    except EncoderError:
        assert fails
    else:
        representations.sum().backward()
        assert all(weight.grad is None for weight in network.parameters())
        assert inputs.grad.abs().sum() > 0

    modes_now, flags_now, weights_now = state_of(network)
    assert (modes, flags) == (modes_now, flags_now)
    assert all(torch.equal(tensor, weights_now[name]) for name, tensor in weights.items())


def test_a_network_in_training_is_encoded_as_in_evaluation():
    encoder = Encoder(in_training(), name="one")
    inputs = tiny_inputs(4)
    first = encoder(inputs)

    assert torch.equal(first, encoder(inputs))
    assert torch.equal(first, encoder.module.eval()(inputs))
    assert encoder.train() is encoder
    assert not encoder.training


def test_uses_may_be_nested():
    network = in_training()
    encoder = Encoder(network, name="one")
    with encoder.in_use():
        with encoder.in_use():
            encoder(tiny_inputs(2))
        assert not network.training
    assert network.training


@pytest.mark.parametrize("settings", [{}, {"channels_last": True}, {"normalize": (0.5, 0.5)}], ids=str)
def test_a_network_may_work_in_place_on_what_it_is_given(settings):
    def after(change):
        return Encoder(lambda inputs: change(inputs).flatten(1)[:, ::7], name="one", **settings)

    in_place, apart = after(lambda inputs: inputs.sub_(0.3).clamp_(-0.2, 0.2)), after(lambda inputs: (inputs - 0.3).clamp(-0.2, 0.2))
    for layout in (torch.contiguous_format, torch.channels_last):
        inputs = tiny_inputs(6).contiguous(memory_format=layout)
        given = inputs.clone()
        assert torch.equal(represent(in_place, inputs), represent(apart, inputs))
        for attack in (UniformNoise(epsilon=0.1), UPGD(epsilon=0.1, steps=2)):
            traces = [perturb(attack, encoder, inputs, bank=inputs) for encoder in (in_place, apart)]
            assert torch.equal(traces[0].inputs, traces[1].inputs)
            assert torch.equal(traces[0].divergence, traces[1].divergence)
            assert traces[0].divergence.min() > 0
        assert torch.equal(inputs, given)


def test_what_surrounds_a_call_of_autocast_is_off_inside():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 6))
    inputs, encoder = tiny_inputs(3), Encoder(network, name="one")

    def measured():
        moved = inputs.clone().requires_grad_()
        with encoder.in_use():
            slope = torch.autograd.grad(encoder(moved).sum(), moved)[0]
            product = inputs.flatten(1) @ inputs.flatten(1).T
        return encoder(inputs), slope, product, perturb(UPGD(epsilon=0.1), encoder, inputs).inputs

    expected = measured()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        amid = measured()
        with pytest.raises(EncoderError, match="division by zero"):
            Encoder(lambda inputs: 1 / 0, name="broken")(inputs)
        assert torch.is_autocast_enabled("cpu")
        assert network[2](inputs.flatten(1)[:, :144]).dtype == torch.bfloat16
    assert all(torch.equal(*pair) for pair in zip(expected, amid, strict=True))


def test_a_network_that_enters_autocast_itself_keeps_it():
    linear, seen = nn.Linear(192, 4), []

    def half(inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append(linear(inputs.flatten(1)))
        return seen[-1]

    assert Encoder(half, name="one")(tiny_inputs(2)).dtype == torch.float32
    assert seen[0].dtype == torch.bfloat16


def test_weights_made_in_inference_mode_are_refused_before_anything():
    with torch.inference_mode():
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).train()
    encoder = Encoder(network, name="one")
    with pytest.raises(
        EncoderError, match=r"encoder 'one' has weights made inside torch.inference_mode\(\).*make or load the network outside"
    ):
        represent(encoder, tiny_inputs(2))
    assert network.training
    made_outside = Encoder(copy.deepcopy(network), name="one")
    assert perturb(UPGD(epsilon=0.1, steps=1), made_outside, tiny_inputs(2)).divergence.min() > 0
    with torch.inference_mode():
        assert torch.equal(encoder(tiny_inputs(2)), made_outside(tiny_inputs(2)))


def is_put_back(network):
    modes, flags, _ = state_of(network)
    return all(modes) and flags == [False, *[True] * (len(flags) - 1)]


@pytest.mark.parametrize("of_its_own", [False, True], ids=["one encoder", "an encoder each"])
def test_a_network_is_put_back_when_the_last_use_ends_in_whatever_order(of_its_own):
    network = in_training()
    encoder, part = Encoder(network, name="one"), network[4]
    first, second = encoder.in_use(), (Encoder(part, name="part") if of_its_own else encoder).in_use()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not part.training
    assert not part.weight.requires_grad
    assert network[0].training == of_its_own  # nobody uses it any more
    second.__exit__(None, None, None)
    assert is_put_back(network)


@pytest.mark.parametrize("of_its_own", [False, True], ids=["one encoder", "an encoder each"])
def test_threads_may_share_a_network(of_its_own):
    network, inputs, wrong = in_training(), tiny_inputs(4), []
    encoder = Encoder(network, name="one", output="4")
    expected = encoder(inputs)

    def use():
        mine = Encoder(network, name="one", output="4") if of_its_own else encoder
        try:
            for _ in range(100):
                assert torch.equal(mine(inputs), expected)
        except Exception as error:
            wrong.append(error)

    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
    assert not wrong
    assert is_put_back(network)


def test_a_copy_made_while_it_is_in_use_is_in_use_by_nobody():
    encoder = tiny_encoder()
    with encoder.in_use():
        copied, before = copy.deepcopy(encoder), encoder.fingerprint
    with torch.no_grad():
        next(copied.module.parameters()).add_(1)
    copied.module.train()
    with copied.in_use():
        assert not copied.module.training
        assert copied.fingerprint != before
    assert copied.module.training


def test_it_is_a_live_reference_and_its_fingerprint_tells_weights_apart():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4))
    encoder = Encoder(network, name="one")
    inputs, before = tiny_inputs(2), encoder.fingerprint
    first = encoder(inputs)
    with torch.no_grad():
        network[1].bias += 1

    assert not torch.equal(encoder(inputs), first)
    assert encoder.fingerprint != before
    after = encoder.fingerprint
    with torch.no_grad():
        network[2].running_mean += 1
    assert encoder.fingerprint != after
    with torch.no_grad():
        network[2].running_mean -= 1
        network[1].bias -= 1
    assert encoder.fingerprint == Encoder(network.train(), name="another").fingerprint == Encoder(network.eval(), name="one").fingerprint


@pytest.mark.parametrize(
    "settings", [{"normalize": "imagenet"}, {"bounds": (-1, 1)}, {"output": "1"}, {"output": 0}, {"output": lambda returned: returned}]
)
def test_settings_are_part_of_the_fingerprint(settings):
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    assert Encoder(network, name="one", **settings).fingerprint != Encoder(network, name="one").fingerprint


def test_passes_are_counted_in_samples():
    encoder = tiny_encoder()
    encoder(tiny_inputs(5))
    moved = tiny_inputs(3).requires_grad_()
    encoder(moved).sum().backward()
    assert (encoder.passes.forwards, encoder.passes.backwards) == (8, 3)


def test_channels_last_changes_the_memory_and_not_the_numbers():
    inputs, seen = tiny_inputs(2), []
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    network[0].register_forward_pre_hook(lambda part, arguments: seen.append(arguments[0].is_contiguous(memory_format=torch.channels_last)))
    plain, last = (Encoder(network, name="one", channels_last=value)(inputs) for value in (False, True))

    assert seen == [False, True]
    torch.testing.assert_close(plain, last)


def test_an_encoder_of_a_module_can_be_pickled():
    encoder = tiny_encoder()
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.fingerprint == encoder.fingerprint
    assert torch.equal(copy(tiny_inputs(2)), encoder(tiny_inputs(2)))


# Warnings


def test_a_classifier_s_logits_are_suspected():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Flatten(), nn.Linear(192, 1000)

        def forward(self, inputs):
            return self.fc(self.body(inputs))

    with pytest.warns(RobustnessWarning, match=r"seems to end in a classifier \('fc'\).*fc = torch.nn.Identity\(\)"):
        Encoder(Classifier(), name="one")
    stripped = Classifier()
    stripped.fc = nn.Identity()
    Encoder(stripped, name="one")
    Encoder(Classifier(), name="one", output="body")


def test_a_second_normalization_is_suspected():
    class Normalize(nn.Module):
        def forward(self, inputs):
            return inputs - 0.5

    network = nn.Sequential(Normalize(), nn.Flatten())
    with pytest.warns(RobustnessWarning, match="inputs would be normalized twice; drop one"):
        Encoder(network, name="one", normalize="imagenet")
    Encoder(network, name="one")


# Weights and import paths


def test_weights_are_loaded_without_running_code(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"state_dict": {"weight": torch.ones(2)}, "args": argparse.Namespace(lr=0.1)}, path)

    with pytest.raises(ValueError, match=r"weights_only loading refuses it; if you trust .*allow=\['argparse.Namespace'\]"):
        load_weights(path)
    loaded = load_weights(path, allow=["argparse.Namespace"])
    assert loaded["args"].lr == 0.1
    with pytest.raises(ValueError, match="weights_only"):
        load_weights(path)  # what was allowed once is not allowed for good
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "absent.pt")


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    path = tmp_path / "bad.pt"
    torch.save({"state_dict": Attack()}, path)
    with pytest.raises(ValueError, match="weights_only"):
        load_weights(path)
    assert not (tmp_path / "ran").exists()


def test_an_importable_network_becomes_an_encoder(tmp_path):
    encoder = from_import("torch.nn:Linear", options={"in_features": 4, "out_features": 2}, bounds=(-1, 1))
    assert encoder.name == "Linear"
    assert encoder(torch.zeros(3, 4)).shape == (3, 2)
    torch.save({"weight": torch.eye(2, 4), "bias": torch.zeros(2)}, tmp_path / "weights.pt")
    loaded = from_import(
        "torch.nn:Linear", options={"in_features": 4, "out_features": 2}, weights=str(tmp_path / "weights.pt"), name="eye", bounds=(-1, 1)
    )
    assert loaded.name == "eye"
    assert loaded(torch.tensor([[0.1, 0.2, 0.3, 0.4]])).tolist() == torch.tensor([[0.1, 0.2]]).tolist()
    with pytest.raises(ValueError, match=r"do not fit 'torch.nn:Linear'"):
        from_import("torch.nn:Linear", options={"in_features": 9, "out_features": 2}, weights=str(tmp_path / "weights.pt"))


@pytest.mark.parametrize("path", ["torch.nn", "torch.nn:Absent", "absent_package:Network", ":Network"])
def test_a_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(ValueError, match=r"write 'package.module:name' of something importable"):
        from_import(path)


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}, lambda state: {"model": state}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_are_loaded_as_training_scripts_save_them(tmp_path, wrap, prefix):
    saved = nn.Linear(4, 2)
    state = {f"{prefix}{name}": weight for name, weight in saved.state_dict().items()}
    torch.save(wrap(state), tmp_path / "checkpoint.pt")
    encoder = from_import("torch.nn:Linear", options={"in_features": 4, "out_features": 2}, weights=str(tmp_path / "checkpoint.pt"))
    inputs = torch.rand(3, 4)
    assert torch.equal(encoder(inputs), saved(inputs))


def test_weights_that_do_not_fit_are_refused(tmp_path):
    torch.save({"state_dict": {"encoder.weight": torch.zeros(2, 4)}}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"weights .* do not fit 'torch.nn:Linear'"):
        from_import("torch.nn:Linear", options={"in_features": 4, "out_features": 2}, weights=str(tmp_path / "checkpoint.pt"))

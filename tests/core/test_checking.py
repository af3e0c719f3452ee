"""The one-call answer: references beside the encoder, a size that fits the time, findings in sentences."""

import argparse
import copy

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import rt_core
from rt_core import Encoder, PlanError, RobustnessWarning, check, cli, demos
from rt_core.checking import _affordable, findings, untrained_twin
from rt_core.cli import main
from rt_core.datasets import as_samples
from rt_core.registry import installed
from rt_core.testing import tiny_encoder, tiny_inputs


def test_a_check_stands_beside_noise_and_the_untrained_twin(tmp_path):
    encoder, inputs = tiny_encoder(), tiny_inputs(200)
    results = check(encoder, inputs, epsilon=0.1, minutes=1e-6, store=tmp_path, progress=False)

    assert list(results.manifest["encoders"]) == ["tiny", "tiny (untrained)"]
    assert (results.manifest["attacked"], results.manifest["bank"]) == (16, 160)
    assert set(results.frame["attack"]) == {"u-pgd", "noise"}
    estimate = results.summary().set_index(["encoder", "attack", "metric"])["estimate"]
    assert estimate["tiny", "u-pgd", "universal_quantile"] > estimate["tiny", "noise", "universal_quantile"]
    said = findings(results)
    assert f"{estimate['tiny', 'u-pgd', 'universal_quantile']:.1%} of all pairs" in said[0]
    assert said[-1].startswith("the same network untrained")
    assert rt_core.Results.load(tmp_path).frame.equals(results.frame)


def test_more_time_attacks_more_samples_and_never_more_than_there_are():
    few = check(tiny_encoder(), tiny_inputs(60), minutes=1e-6, progress=False).manifest["attacked"]
    all_of_them = check(tiny_encoder(), tiny_inputs(60), minutes=10, progress=False).manifest["attacked"]
    assert few == 16 < all_of_them == 60


def test_epsilon_is_in_the_bounds_units():
    results = check(tiny_encoder(bounds=(-1.0, 1.0)), tiny_inputs(20, bounds=(-1.0, 1.0)), minutes=1e-6, progress=False)
    assert results.manifest["plan"]["attacks"]["u-pgd"]["epsilon"] == pytest.approx(8 / 255)


def test_too_few_samples_are_refused():
    with pytest.raises(PlanError, match="has 15 samples; at least 16 are needed"):
        check(tiny_encoder(), tiny_inputs(15), progress=False)


class Odd(nn.Module):
    """A layer that initializes itself, one parameter that none does, and batch statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.normal = nn.Linear(12, 6), nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.arange(6.0))
        self.same = nn.Parameter(torch.ones(6))

    def forward(self, inputs):
        return self.normal(self.first(inputs)) * self.scale * self.same


def test_the_twin_has_fresh_weights_and_the_original_keeps_its_own():
    network = Odd()
    network.normal.running_mean += 3
    before = copy.deepcopy(network.state_dict())
    encoder, state = Encoder(network, name="odd", bounds=(0, 2)), torch.get_rng_state()
    twin, again = untrained_twin(encoder), untrained_twin(encoder)

    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert twin.fingerprint == again.fingerprint != untrained_twin(encoder, seed=1).fingerprint
    fresh = twin.module.state_dict()
    assert not torch.equal(fresh["first.weight"], before["first.weight"])
    assert torch.equal(fresh["normal.running_mean"], torch.zeros(6))
    assert sorted(fresh["scale"].tolist()) == before["scale"].tolist() != fresh["scale"].tolist()
    assert torch.equal(fresh["same"], before["same"])
    assert (twin.name, twin.bounds) == ("odd (untrained)", encoder.bounds)


def test_a_twin_that_says_nothing_is_left_out():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def reset_parameters(self):
            nn.init.zeros_(self.weight)

        def forward(self, inputs):
            return inputs.mean((2, 3)) * self.weight

    with pytest.warns(RobustnessWarning, match="the untrained twin of 'dead' gives the same for all inputs and is left out"):
        results = check(Encoder(Dead(), name="dead"), tiny_inputs(20), minutes=1e-6, progress=False)
    assert list(results.manifest["encoders"]) == ["dead"]


def test_a_twin_that_is_the_network_itself_is_left_out():
    network = tiny_encoder().module
    with pytest.warns(RobustnessWarning, match="twin of 'wrapped' is the network itself, since no parameter .* and is left out"):
        results = check(Encoder(lambda inputs: network(inputs), name="wrapped"), tiny_inputs(20), minutes=1e-6, progress=False)
    assert list(results.manifest["encoders"]) == ["wrapped"]


def test_a_repeated_check_attacks_the_same_samples(tmp_path):
    encoder, samples = tiny_encoder(), as_samples(tiny_inputs(1100))
    sizes = {_affordable(encoder, samples, seconds) for seconds in np.geomspace(1e-6, 1e3, 60)}
    assert {16, 1000} <= sizes <= {16, 32, 64, 128, 256, 512, 1000}
    first = check(encoder, tiny_inputs(40), minutes=1e-6, store=tmp_path, progress=False)
    before = encoder.passes.backwards
    again = check(encoder, tiny_inputs(40), minutes=10, store=tmp_path, progress=False)
    assert first.manifest["attacked"] == again.manifest["attacked"] == 16
    assert encoder.passes.backwards == before


def test_time_is_taken_where_the_run_will_be(monkeypatch):
    seen, encoder = [], tiny_encoder()
    held = encoder.in_use
    monkeypatch.setattr("rt_core.checking.find_device", lambda device: f"the device of {device!r}")
    monkeypatch.setattr(encoder, "in_use", lambda device=None: seen.append(device) or held())
    _affordable(encoder, as_samples(tiny_inputs(16)), 1.0)
    assert seen[0] == "the device of 'auto'"


def test_a_check_from_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "small_network_of_a_shell_test.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))\n"
    )
    options = ["--size", "16", "--minutes", "0.001", "--output", "2", "--normalize", "imagenet"]
    assert main(["check", "small_network_of_a_shell_test:make", "photos", *options]) == 0
    printed = capsys.readouterr().out
    assert "16 of 20 samples of 'photos' attacked, 20 in the bank" in printed
    assert "make (untrained)" in printed
    assert "- half of the attacked samples moved further than" in printed

    assert main(["check", "digits_robot", "photos"]) == 2
    assert "did you mean 'digits_robust'?" in capsys.readouterr().err
    assert main(["check", "digits_robust", "nowhere"]) == 2
    assert "which is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("plan", ["digits_plan", "photos_plan"])
def test_the_demos_are_plans(plan):
    made = getattr(demos, plan)()
    assert len(made.encoders) >= 2
    assert "u-pgd" in made.attacks


def test_what_is_not_installed_is_left_out_of_a_demo_by_name(monkeypatch):
    monkeypatch.setitem(demos._ATTACKS, "other", rt_core.use("unheard_of"))
    with pytest.warns(RobustnessWarning, match="unheard_of is left out, since its plugin is not installed"):
        assert [*demos.digits_plan().attacks] == ["noise", "u-pgd", "torchattacks PGD", "ART PGD"]


def test_a_demo_of_a_plugin_runs_by_its_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = check(tiny_encoder(), tiny_inputs(20), minutes=1e-6, progress=False)
    places = []

    class Plugin:
        @rt_core.hookimpl
        def rt_demos(self):
            yield rt_core.DemoEntry(
                name="mine", summary="a demo", factory=lambda *, store: places.append(store) or (results, "And this is said.")
            )

    rt_core.register(Plugin())
    try:
        assert main(["demo", "mine"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(results.caption())
        assert printed.endswith("\n\nAnd this is said.\n\nThe run is in runs/mine: rt show runs/mine\n")
        assert main(["demo", "mine", "--store", "there"]) == 0
        assert places == ["runs/mine", "there"]
        assert main(["demo", "mein"]) == 2
        assert "no demo is named 'mein'; did you mean 'mine'?" in capsys.readouterr().err
        monkeypatch.setattr("rt_core.registry.demo", lambda name, store: places.append((name, store)) or (results, ""))
        assert main(["demo", "--generator"]) == main(["demo"]) == 0
        assert places[-2:] == [("generator", "runs/generator"), ("digits", "runs/demo")]
    finally:
        installed.cache_clear()


@pytest.mark.parametrize("minutes", [0, -1.0])
def test_time_must_be_more_than_none(minutes):
    with pytest.raises(ValueError, match=r"minutes is .*; give how long it may take, more than 0"):
        check(tiny_encoder(), tiny_inputs(20), minutes=minutes)


def test_a_described_dataset_is_made(tmp_path):
    np.save(tmp_path / "inputs.npy", tiny_inputs(20).numpy())
    results = check(tiny_encoder(), rt_core.use("tensor", path=str(tmp_path / "inputs.npy")), minutes=1e-6, progress=False)
    assert results.manifest["attacked"] == 16


@pytest.mark.parametrize(("text", "value"), [("0.03", 0.03), ("8/255", 8 / 255)])
def test_a_radius_may_be_a_fraction_on_the_command_line(text, value):
    assert cli._fraction(text) == value


@pytest.mark.parametrize("text", ["x", "8/", "8/0", "1/2/3"])
def test_what_is_no_fraction_is_refused(text):
    if text == "8/":
        assert cli._fraction(text) == 8
        return
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no number; write 0\.03 or 8/255"):
        cli._fraction(text)

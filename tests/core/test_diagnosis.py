"""Whether a number can be believed: encoders that hide their gradient raise the sign that belongs to it, and sound ones none."""

import itertools
import math
import sys
import warnings

import numpy as np
import pytest
import torch

from rt_core import Encoder, Evaluation, RobustnessWarning, attack, diagnosis, run
from rt_core.cli import main
from rt_core.diagnosis import FEWEST, LIMITS, SAMPLES, SHARE
from rt_core.perturbing import passes_of
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_unsupervised_attacks import UFGSM, UPGD

SOUND = tiny_encoder()
DRAWS = itertools.count()


def rounded(inputs):
    """A network whose input is rounded: its gradient is zero everywhere, and it is none the more robust."""
    return SOUND((inputs * 8).round() / 8)


def saturated(inputs):
    """Outputs that saturate until float32 has no slope left."""
    return torch.sigmoid(1e4 * SOUND(inputs))


def random(inputs):
    """Noise in the output, of another draw at every call."""
    generator = torch.Generator().manual_seed(next(DRAWS))
    return SOUND(inputs) + 0.01 * torch.randn(len(inputs), 1, generator=generator)


def diagnosed(encoders, *, attack=None, attacked=400, **options):
    plan = Evaluation(
        encoders=encoders,
        dataset=tiny_inputs(400),
        attacks={"pgd": attack or UPGD(epsilon=0.1, steps=10)},
        metrics=["universal_quantile", "relative_quantile"],
        attacked=attacked,
        bank=400,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RobustnessWarning)
        results = run(plan, progress=False, **options)
    said = [str(one.message) for one in caught if issubclass(one.category, RobustnessWarning)]
    return results, {one["encoder"]: one for one in results.manifest["diagnosis"]}, said


def raised(about):
    return {name for name, value in about["values"].items() if LIMITS[name].raised(math.inf if value is None else value)}


def test_a_sound_encoder_raises_no_sign():
    _, found, said = diagnosed({"first": tiny_encoder(), "second": tiny_encoder(seed=4)})
    for about in found.values():
        assert set(about["values"]) >= {"noise", "doubled_steps", "restarts", "gradient_free", "large_epsilon", "not_deterministic"}
        assert about["warnings"] == []
        assert about["samples"] >= FEWEST
    assert "transfer" in found["second"]["values"]
    assert "transfer" not in found["first"]["values"]
    assert not [one for one in said if "'pgd'" in one]


@pytest.mark.parametrize(
    ("encoder", "signs"),
    [(rounded, {"zero_gradient", "gradient_free"}), (saturated, {"zero_gradient"}), (random, {"not_deterministic"})],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_an_encoder_that_hides_its_gradient_raises_its_sign_in_words(encoder, signs):
    _, found, said = diagnosed({"sound": tiny_encoder(), "suspect": Encoder(encoder, name="suspect")})
    assert found["sound"]["warnings"] == []
    assert raised(found["suspect"]) >= signs
    assert len(found["suspect"]["warnings"]) == len(raised(found["suspect"]))
    for warning in found["suspect"]["warnings"]:
        assert warning in said
        assert warning.startswith("attack 'pgd' on encoder 'suspect': ")


def test_inputs_of_another_encoder_that_do_more_than_ones_own_are_told():
    _, found, _ = diagnosed({"sound": tiny_encoder(), "rounded": Encoder(rounded, name="rounded")})
    assert found["rounded"]["values"]["transfer"] > 1
    assert any("inputs made against encoder 'sound'" in warning for warning in found["rounded"]["warnings"])


@pytest.mark.parametrize(
    ("attack", "sign"),
    [
        (UPGD(epsilon=0.1, steps=10, step=0.002, start="eta"), "doubled_steps"),
        (UPGD(epsilon=0.1, steps=10, step=0.5, norm="l2", start="eta"), None),
    ],
    ids=["a step that gets nowhere", "l2 as it should be"],
)
def test_an_attack_that_is_too_weak_is_told(attack, sign):
    _, found, _ = diagnosed({"sound": tiny_encoder()}, attack=attack)
    assert raised(found["sound"]) >= {sign} if sign else not raised(found["sound"])


def test_a_diagnosis_costs_at_most_a_tenth_of_the_passes_and_can_be_left_out():
    def passes(**options):
        encoder = tiny_encoder()
        _, found, _ = diagnosed({"tiny": encoder}, **options)
        spent = passes_of(encoder)
        return spent.forwards + spent.backwards, found

    without, nothing = passes(diagnose=False)
    whole, found = passes()
    assert nothing == {}
    assert whole - without == found["tiny"]["passes"] <= SHARE * without
    assert found["tiny"]["samples"] <= SAMPLES
    small, nothing = passes(attacked=40)
    assert (small, nothing) == (passes(attacked=40, diagnose=False)[0], {})


def test_a_diagnosis_is_kept_with_the_run(tmp_path):
    first = diagnosed({"tiny": tiny_encoder(), "other": tiny_encoder(seed=3)}, store=tmp_path)[1]
    encoder = tiny_encoder()
    again = diagnosed({"tiny": encoder, "other": tiny_encoder(seed=3)}, store=tmp_path)[1]
    assert again == first
    assert encoder.passes.backwards == 0


def test_the_rows_are_the_same_with_and_without_a_diagnosis():
    first, second = (diagnosed({"tiny": tiny_encoder()}, diagnose=diagnose)[0] for diagnose in (True, False))
    assert first.frame.equals(second.frame)
    assert first.notes.equals(second.notes)


def test_an_attack_without_steps_is_not_diagnosed():
    assert diagnosed({"tiny": tiny_encoder()}, attack=UFGSM(epsilon=0.1))[1] == {}


def test_another_batch_gives_the_same_diagnosis():
    whole, small = (diagnosed({"tiny": tiny_encoder()}, batch=batch)[1]["tiny"]["values"] for batch in (64, 7))
    assert whole == small


def test_the_words_of_every_sign_can_be_said():
    for name, sign in LIMITS.items():
        values = {name: sign.limit - 1e-9 if sign.below else sign.limit + 1e-9}
        found = diagnosis.Diagnosis("e", "a", 8, 9, values, {name: "another"}, torch.zeros(1))
        (warning,) = found.warnings()
        assert warning.startswith("attack 'a' on encoder 'e': ")
        assert "{" not in warning


def test_a_mask_and_another_objective_are_no_signs_against_the_numbers():
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, :2] = True
    _, found, _ = diagnosed({"sound": tiny_encoder()}, attack=UPGD(epsilon=0.1, steps=10, mask=mask))
    assert found["sound"]["warnings"] == []
    assert "large_epsilon" not in found["sound"]["values"]
    for name, options in (("margin_apgd", {}), ("u_apgd", {"divergence": "cosine"}), ("l_pgd", {"loss": "kl_vat"})):
        assert diagnosed({"sound": tiny_encoder()}, attack=attack(name, epsilon=0.1, steps=10, **options))[1] == {}


def test_two_copies_of_one_network_do_not_accuse_each_other():
    near = tiny_encoder()
    with torch.no_grad():
        for weight in near.module.parameters():
            weight.mul_(1.001)
    _, found, _ = diagnosed({"one": tiny_encoder(), "other": near})
    assert found["other"]["values"]["transfer"] == pytest.approx(1, abs=0.05)
    assert found["other"]["warnings"] == []


STUDY = """
attacked = 400
bank = 400
[dataset]
use = "tensor"
path = "inputs.npy"
[encoders.tiny]
use = "module"
path = "diagnosed_network:network"
[attacks.worst]
use = "ensemble"
budget = 8
epsilon = 0.1
[metrics]
universal_quantile = {}
"""


@pytest.mark.parametrize("flag", [[], ["--no-diagnosis"]], ids=["asked", "not asked"])
def test_a_study_of_the_ensemble_prints_its_worst_case_its_cost_and_the_diagnosis(tmp_path, monkeypatch, capsys, flag):
    np.save(tmp_path / "inputs.npy", tiny_inputs(400).numpy())
    (tmp_path / "study.toml").write_text(STUDY.replace("inputs.npy", str(tmp_path / "inputs.npy")))
    (tmp_path / "diagnosed_network.py").write_text("from rt_core.testing import tiny_encoder\nnetwork = tiny_encoder().module\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "diagnosed_network", raising=False)
    assert main(["run", str(tmp_path / "study.toml"), "--store", str(tmp_path / "run"), *flag]) == 0
    said = capsys.readouterr().out
    assert "worst: 48 gradient calls and 16 more forward passes a sample, aim away" in said
    assert "worst (worst case)" in said
    assert ("no sign against the numbers in a diagnosis of" in said) == (not flag)

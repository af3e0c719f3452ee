"""Everything that is installed keeps its contract: what the registry lists is made with the options below, and goes through the named checks.

What is installed later joins by itself; one that cannot be made without options needs a line here.
"""

from dataclasses import replace

import pytest

from rt_core import SampleRandom, Suite, attack, encoder, installed, metric
from rt_core.datasets import as_samples, tensors
from rt_core.testing import (
    check_plugin,
    linear_encoder,
    parametrize_attack_checks,
    parametrize_encoder_checks,
    parametrize_metric_checks,
    tiny_encoder,
    tiny_inputs,
)
from rt_core.traces import needs_fit, parts_of

# By name: the options of each variant that is checked; an entry that is not named is checked as it comes.
ATTACKS = {
    "uniform_noise": [{"epsilon": 0.1}],
    "u_fgsm": [{"epsilon": 0.1}, {"epsilon": 1.0, "norm": "l2"}],
    "u_bim": [{"epsilon": 0.1, "steps": 3}, {"epsilon": 1.0, "steps": 3, "norm": "l2", "keep": "best"}],
    "u_pgd": [
        {"epsilon": 0.1, "steps": 3, "marks": (1, 3)},
        {"epsilon": 1.0, "steps": 3, "norm": "l2", "marks": (2,)},
        {"epsilon": 0.1, "steps": 3, "keep": "best", "restarts": 2, "marks": (1, 3)},
        {"epsilon": 1.0, "steps": 2, "norm": "l2", "restarts": 2, "keep": "best"},
        {"epsilon": 0.1, "steps": 3, "start": "clean"},
    ],
    "torchattacks": [
        {"attack": "PGD", "steps": 3},
        {"attack": "BIM", "steps": 3},
        {"attack": "APGD", "steps": 3},
        {"attack": "FAB", "steps": 5, "threshold": 0.2},
    ],
    "art": [
        {"attack": "ProjectedGradientDescent", "eps": 0.1, "eps_step": 0.05, "max_iter": 3, "num_random_init": 1},
        {"attack": "FastGradientMethod", "eps": 0.05},
    ],
    "u_mi_pgd": [{"epsilon": 0.1, "steps": 3}, {"epsilon": 1.0, "steps": 3, "norm": "l2", "decay": 0.5}],
    "u_apgd": [
        {"epsilon": 0.1, "steps": 6, "marks": (1, 3)},
        {"epsilon": 1.0, "norm": "l2", "steps": 6, "restarts": 2},
        {"epsilon": 0.1, "steps": 6, "parity": True},
    ],
    "margin_apgd": [{"epsilon": 0.1, "steps": 6}],
    "nearest_apgd": [{"epsilon": 0.1, "steps": 6}],
    "u_square": [{"epsilon": 0.1, "queries": 25}, {"epsilon": 1.0, "norm": "l2", "queries": 25}],
    "ensemble": [{"epsilon": 0.1, "budget": 20}],
    "universal": [{"epsilon": 0.1, "epochs": 2}],
    "l_fgsm": [{"loss": "kl_vat", "epsilon": 0.1}],
    "l_bim": [{"loss": "kl_vat", "epsilon": 1.0, "steps": 3, "norm": "l2"}],
    "l_pgd": [{"loss": "kl_vat", "epsilon": 0.1, "steps": 3, "marks": (1, 3)}, {"loss": "rocl", "epsilon": 0.1, "steps": 3}],
    "batch_l_fgsm": [{"loss": "ho_vasconcelos", "epsilon": 0.1}],
    "batch_l_bim": [{"loss": "advcl", "epsilon": 1.0, "steps": 3, "norm": "l2"}],
    "batch_l_pgd": [{"loss": "info_nce", "epsilon": 0.1, "steps": 3}],
}
CENTERED = {"sigma": 0.1, "center_draws": 40, "certify_draws": 100, "alpha_certify": 0.05}
OUTPUT = CENTERED | {"input_radius": 0.02, "delta": 0.4, "alpha_center": 0.5}  # so loose that no sample is abstained from
METRICS = {
    "breakaway_radius": [{"limit": 0.5, "steps": 4, "rounds": 3}],
    "quantile_radius": [{"limit": 0.5, "steps": 4, "rounds": 3, "quantile": 0.2}],
    "knn_accuracy": [{"k": 3}, {"k": 2, "divergence": "cosine"}],
    "probe_top1": [{}, {"probe": {"view": "lowpass"}}, {"probe": {"view": "noise", "sigma": 0.1, "draws": 2}}],
    "robust_accuracy": [{}, {"probe": {"recipe": "paper", "epochs": 3, "drops": (1, 2)}}],
    "impersonation_rate": [{}, {"groups": {"low": [0, 1], "high": [2, 3]}}],
    "neighbor_impersonation_rate": [{}, {"groups": {"low": 0, "high": [1, 2, 3]}}],
    "verification_rate": [{"far": 0.05}, {"far": 0.05, "divergence": "cosine"}],
    "dodging_rate": [{"far": 0.05}],
    "verification_threshold": [{"far": 0.05}],
    "certified_accuracy": [{"sigma": 0.1, "certify_draws": 60, "alpha": 0.2}],
    "certified_radius": [{"sigma": 0.1, "certify_draws": 60, "alpha": 0.2}],
    "half_mass_radius": [CENTERED, {**CENTERED, "divergence": "cosine"}],
    "certified_half_mass_radius": [{**CENTERED, "input_radius": 0.05}],
    "certified_output_radius": [OUTPUT, {**OUTPUT, "divergence": "linf"}],
    "certified_quantile": [OUTPUT],
    "certified_breakaway": [OUTPUT, {**OUTPUT, "divergence": "l1"}],
    "certified_neighbor_radius": [{"sigma": 0.02, "certify_draws": 60}],
}
TRAIN = tensors(tiny_inputs(48, purpose="train"), labels=[row % 8 for row in range(48)])
SHAPES = {"digits": (1, 16, 16), "tiny": (3, 8, 8), "linear": (3, 8, 8)}  # of one input, by how the name begins
NEEDS_OPTIONS = {"module"}  # an encoder that is nothing without a path

# What cannot hold, by label, and why.
FOREIGN_START = {
    "gives_a_sample_the_same_result_in_any_batch_and_order": "the library draws its start from a global generator, seeded for the batch"
}
IN_COMPANY = {
    "gives_a_sample_the_same_result_in_any_batch_and_order": "what a sample is compared with comes from its batch",
    "takes_a_batch_of_one": "a contrast needs another sample",
}
EXPECTED = {
    "universal[epochs=2]": {"takes_inputs_that_are_no_images": "it is fitted to inputs of one shape"},
    "batch_l_fgsm[loss=ho_vasconcelos]": IN_COMPANY,
    "batch_l_bim[loss=advcl,norm=l2]": IN_COMPANY | {"takes_inputs_that_are_no_images": "its high pass is of pictures"},
    "batch_l_pgd[loss=info_nce]": IN_COMPANY,
    "identity": {
        "moves_the_representation": "it leaves every input as it is",
        "comes_nearer_to_its_target": "it leaves every input as it is",
    },
    "uniform_noise": {"comes_nearer_to_its_target": "noise does not aim"},
    "torchattacks[attack=PGD]": FOREIGN_START,
    "torchattacks[attack=APGD]": FOREIGN_START,
    "art[attack=ProjectedGradientDescent,num_random_init=1]": FOREIGN_START,
}


def fitted(thing):
    """Fit what needs it, parts first, as a run does."""
    whole = (
        replace(thing, **parts) if (parts := {name: fitted(part) for name, part in parts_of(thing).items() if needs_fit(part)}) else thing
    )
    return whole.fit(tiny_encoder(), as_samples(TRAIN), random=SampleRandom.of(0, [])) if needs_fit(whole) else whole


def variants(kind, make, options):
    """Everything of one kind that is installed, made: {label: thing}."""
    made = {}
    for item in installed().items:
        if item.kind == kind and item.entry.name not in NEEDS_OPTIONS:
            for chosen in options.get(item.entry.name, [{}]):
                shown = ",".join(
                    f"{key}={value}" for key, value in chosen.items() if key not in ("steps", "max_iter", "epsilon", "eps", "eps_step")
                )
                label, thing = f"{item.entry.name}[{shown}]" if shown else item.entry.name, make(item.full_name, **chosen)
                thing = fitted(thing)
                made |= (
                    {f"{label}/{name}": member for name, member in thing.members.items()} if isinstance(thing, Suite) else {label: thing}
                )
    return made


MADE_ATTACKS = variants("attack", attack, ATTACKS)
MADE_ENCODERS = variants("encoder", encoder, {}) | {
    "tiny": tiny_encoder(),
    "tiny[-1..1]": tiny_encoder(bounds=(-1, 1), seed=3),
    "linear": linear_encoder(3, 8, 8)[0],
    "linear[dim=5]": linear_encoder(3, 8, 8, 5)[0],
}


def expected_of(one):
    return EXPECTED.get(next(label for label, made in MADE_ATTACKS.items() if made is one), {})


def shape_of(encoder):
    return next((shape for start, shape in SHAPES.items() if encoder.name.startswith(start)), (3, 32, 32))


@parametrize_attack_checks(MADE_ATTACKS, expected_failures=expected_of)
def test_attacks(attack, check):
    check(attack)


@parametrize_metric_checks(variants("metric", metric, METRICS))
def test_metrics(metric, check):
    check(metric)


@parametrize_encoder_checks(MADE_ENCODERS, shape=shape_of)
def test_encoders(encoder, check):
    check(encoder)


@pytest.mark.parametrize("distribution", sorted({plugin.distribution for plugin in installed().plugins} - {"rt-core"}))
def test_plugins(distribution):
    assert check_plugin(distribution) == []

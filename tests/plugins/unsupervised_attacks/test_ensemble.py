"""The ensemble: a suite of ordinary attacks with one ball and one budget, and a total of passes that is what it says."""

import pytest
import torch

from rt_core import Bank, Suite, perturb, represent
from rt_core.divergences import cosine, l2
from rt_core.registry import attack
from rt_core.testing import tiny_encoder, tiny_inputs
from rt_core.traces import Ball, aims_of
from rt_unsupervised_attacks import ensemble
from rt_unsupervised_attacks import suites as module
from rt_unsupervised_attacks.gradient import UBIM, UFGSM, UMIPGD, UPGD


def test_it_is_a_suite_of_attacks_in_one_ball():
    suite = ensemble(epsilon=0.1, norm="l2", budget=7)
    assert isinstance(suite, Suite)
    assert list(suite.members) == ["apgd", "margin", "nearest", "square", "cosine"]
    assert {member.ball for member in suite.members.values()} == {Ball("l2", 0.1)}
    assert [name for name, member in suite.members.items() if "target" in aims_of(member)] == ["apgd", "square", "cosine"]
    assert attack("ensemble", epsilon=0.1, norm="l2", budget=7) == suite


@pytest.mark.parametrize("aim", ["away", "target"])
def test_the_total_of_passes_is_the_arithmetic_of_its_docstring(aim):
    budget, k, encoder, inputs = 6, 2, tiny_encoder(), tiny_inputs(4)
    bank = Bank(represent(encoder, tiny_inputs(20, purpose="bank")))
    spent = [0, 0]
    for member in ensemble(epsilon=0.1, budget=budget, k=k).members.values():
        if aim in aims_of(member):
            trace = perturb(member, encoder, inputs, targets=inputs.flip(-1) if aim == "target" else None, bank=bank)
            assert (trace.forwards - 4, trace.backwards) == tuple(4 * passes for passes in member.passes)  # one more measures the result
            spent = [spent[0] + trace.forwards // 4 - 1, spent[1] + trace.backwards // 4]

    gradients = (3 + k) * budget if aim == "away" else 2 * budget
    assert spent == [gradients + module.QUERIES * budget, gradients]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_its_worst_is_no_better_than_any_single_attack_with_the_same_calls_for_each_objective(norm):
    encoder, inputs = tiny_encoder(), tiny_inputs(96)
    bank, epsilon, steps = Bank(represent(encoder, inputs)), 0.03 if norm == "linf" else 0.35, 20
    options = {"epsilon": epsilon, "norm": norm}

    def measured(one):
        trace = perturb(one, encoder, inputs[:32], bank=bank, ids=range(32))
        clean, moved = trace.clean.double(), trace.adversarial.double()
        risk = bank.closer_counts(trace.adversarial, trace.clean, range(32))
        return torch.stack([l2(clean, moved), cosine(clean, moved), risk.double(), (risk > 0).double()])

    worst = torch.stack([measured(one) for one in ensemble(budget=steps, **options).members.values()]).amax(0).mean(1)
    for single in (UFGSM(**options), *(cls(steps=steps, **options) for cls in (UBIM, UPGD, UMIPGD))):
        assert (worst >= 0.98 * measured(single).mean(1)).all(), single


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -1}, "epsilon is -1"),
        ({"epsilon": 0.1, "norm": "l1"}, "norm is 'l1'"),
        ({"epsilon": 0.1, "budget": 0}, "budget is 0; at least one is needed"),
        ({"epsilon": 0.1, "budget": 1}, "steps is 1; .* at least 2"),
        ({"epsilon": 0.1, "budget": 2.5}, "budget is 2.5; expected a whole number"),
        ({"epsilon": 0.1, "k": 0}, "k is 0"),
    ],
)
def test_parameters_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ensemble(**options)

"""The sandwich: what an attack finds lies below the exhaustive optimum, and that below a bound; strong attacks nearly reach it.

Inputs have two numbers, so that the whole ball can be looked at on a grid. Between its points the divergence can rise by no more than the
network's Lipschitz constant allows, so the true optimum is known up and down. Interval arithmetic bounds it for the whole ball at once.
"""

import pytest
import torch
from torch import nn

from rt_core import Encoder, attack, divergences, perturb
from rt_core.traces import aims_of

EPSILON, SIDE = 0.15, 301
WEAK = {"u_fgsm": {}, "u_bim": {"steps": 20}, "u_square": {"queries": 600}}  # of two numbers, random search sees the corners alone
STRONG = {
    "u_pgd": {"steps": 40, "restarts": 12, "keep": "best"},
    "u_mi_pgd": {"steps": 40, "restarts": 12, "keep": "best"},
    "u_apgd": {"steps": 40, "restarts": 12},
}


def network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).double()
        for layer in made[::2]:
            layer.weight.data.mul_(2.5)
    return made


def boxes(made, low, high):
    """Interval arithmetic: [batch, 2] -> [batch, 3], least and largest outputs."""
    for layer in made:
        if isinstance(layer, nn.Linear):
            center, radius = (low + high) / 2, (high - low) / 2
            center, radius = layer(center), radius @ layer.weight.abs().T
            low, high = center - radius, center + radius
        else:
            low, high = layer(low), layer(high)
    return low, high


@torch.no_grad()
def optimum(made, inputs, anchor):
    """The largest l2 divergence on a grid of the ball, how much more there can be between its points, and the bound of interval arithmetic."""
    places = torch.linspace(-EPSILON, EPSILON, SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(places, places)
    values = torch.stack(
        [divergences.l2(own.expand(len(grid), -1), made((one + grid).clamp(0, 1))) for one, own in zip(inputs, anchor, strict=True)]
    )
    slope = torch.stack([torch.linalg.matrix_norm(layer.weight, 2) for layer in made[::2]]).prod()  # ReLU has slope 1 at most
    gap = slope * (places[1] - places[0]) / 2 * 2**0.5
    low, high = boxes(made, (inputs - EPSILON).clamp(0, 1), (inputs + EPSILON).clamp(0, 1))
    bound = torch.maximum((low - anchor).abs(), (high - anchor).abs()).norm(dim=1)
    return values, gap, bound


def found(name, options, encoder, inputs, targets):
    return perturb(attack(name, epsilon=EPSILON, **options), encoder, inputs, targets=targets).divergence


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "options"), [*WEAK.items(), *STRONG.items()], ids=lambda one: one if isinstance(one, str) else "")
def test_no_attack_away_is_above_the_optimum_and_strong_ones_reach_it(name, options, seed):
    made = network(seed)
    inputs = torch.rand(12, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values, gap, bound = optimum(made, inputs, made(inputs).detach())
    best = values.amax(1)
    reached = found(name, options, Encoder(made, name="tiny"), inputs, None)
    assert (best <= bound + 1e-9).all()
    assert (reached <= best + gap).all()
    assert (reached <= bound + 1e-9).all()
    if STRONG.get(name) == options:
        assert (reached >= 0.99 * best).double().mean() >= 0.9


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "options"), STRONG.items(), ids=lambda one: one if isinstance(one, str) else "")
def test_no_attack_toward_a_target_is_below_the_optimum_and_strong_ones_reach_it(name, options, seed):
    made, encoder = network(seed), Encoder(network(seed), name="tiny")
    inputs = torch.rand(12, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    targets = inputs.roll(1, 0)
    assert "target" in aims_of(attack(name, epsilon=EPSILON, **options))
    values, gap, _ = optimum(made, inputs, made(targets).detach())
    best, start = values.amin(1), divergences.l2(made(targets), made(inputs)).detach()
    reached = found(name, options, encoder, inputs, targets)
    assert (reached >= best - gap).all()
    assert ((start - reached) >= 0.95 * (start - best) - gap).double().mean() >= 0.9

"""The pure parts: the ball around most points against brute force, ranks against the binomial distribution, votes against published numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from rt_center_smoothing import (
    abstains,
    center_draws_needed,
    certify_draws_needed,
    certify_rank,
    largest_input_radius,
    minimum_enclosing_center,
    quantile_level,
    vote_radius,
)
from rt_center_smoothing.geometry import geometry_of
from rt_core.divergences import DIVERGENCES, kl, wasserstein2
from rt_core.neighbors import pairwise

METRICS = ["l1", "l2", "linf", "cosine"]
TYPICAL = {"input_radius": 0.25, "sigma": 0.25, "delta": 0.05, "alpha": 0.005}


def brute_force(points, divergence="l2", candidates=None, parity=False):
    """The definition, with every distance at once."""
    placed = points.double()
    if divergence == "cosine":
        placed = placed / torch.linalg.vector_norm(placed, dim=1, keepdim=True)
    apart = pairwise("l2" if divergence == "cosine" else divergence, placed[:candidates], placed).numpy()
    radii = np.median(apart, axis=1) if parity else np.sort(apart, axis=1)[:, (len(points) + 1) // 2 - 1]
    first = int(radii.argmin())
    return first, radii[first] ** 2 / 2 if divergence == "cosine" else radii[first]


@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 40),
    dim=st.integers(1, 6),
    grid=st.sampled_from([0, 1, 3, 50]),
    shift=st.sampled_from([0.0, 5.0, 1e4]),
    divergence=st.sampled_from(METRICS),
    parity=st.booleans(),
    share=st.floats(0, 1),
)
def test_the_center_is_that_of_brute_force_also_among_ties(seed, count, dim, grid, shift, divergence, parity, share):
    points = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) + shift
    points = (points * grid).round() + (divergence == "cosine") * 0.5 if grid else points
    candidates = None if share > 0.5 else 1 + int(share * (count - 1))

    found = minimum_enclosing_center(points, divergence, candidates=candidates, parity=parity)

    assert found == brute_force(points, divergence, candidates, parity)


@pytest.mark.parametrize("divergence", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_center_of_more_points_than_a_block_is_that_of_brute_force(divergence, dtype):
    points = torch.randn(1001, 7, generator=torch.Generator().manual_seed(1), dtype=dtype) + 100
    assert minimum_enclosing_center(points, divergence) == brute_force(points, divergence)


def test_close_points_far_from_the_origin_are_told_apart():
    # Where a product form that is not centered has no digit left.
    points = 1e8 + torch.randn(600, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert minimum_enclosing_center(points) == brute_force(points)


def test_copies_of_one_point_have_a_ball_of_nothing():
    assert minimum_enclosing_center(torch.full((3000, 16), 0.1)) == (0, 0.0)
    mostly = torch.cat([torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), torch.ones(101, 4)])
    assert minimum_enclosing_center(mostly) == (100, 0.0)


def test_the_rank_is_the_upper_half_and_parity_the_mean_of_both():
    line = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    assert minimum_enclosing_center(line) == (0, 1.0)  # distances 0, 1 of 0, 1, 3, 7
    assert minimum_enclosing_center(line, parity=True) == (1, 1.5)  # medians 2, 1.5, 2.5 and 5
    assert minimum_enclosing_center(line[:3]) == (0, 1.0)
    assert minimum_enclosing_center(line[:1]) == (0, 0.0)


def test_what_has_no_direction_is_infinitely_far():
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [2.0, 0.1], [3.0, 0.0]])
    center, radius = minimum_enclosing_center(points, "cosine")
    assert (center, math.isfinite(radius)) == (2, True)  # three of five are enough
    assert minimum_enclosing_center(torch.zeros(3, 2), "cosine")[1] == math.inf


def without_the_broken(points, divergence):
    """Brute force in which what is not finite is infinitely far from all."""
    finite = points.isfinite().all(1)
    placed = points.double() / (torch.linalg.vector_norm(points.double(), dim=1, keepdim=True) if divergence == "cosine" else 1)
    apart = pairwise("l2" if divergence == "cosine" else divergence, placed, placed)
    apart[~finite], apart[:, ~finite] = math.inf, math.inf
    radii = apart.sort(dim=1).values[:, (len(points) + 1) // 2 - 1]
    least = radii.min().item()
    return int(radii.argmin()), least**2 / 2 if divergence == "cosine" and math.isfinite(least) else least


@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 30),
    broken=st.integers(0, 20),
    value=st.sampled_from([math.inf, -math.inf, math.nan, 1e200]),
    whole=st.booleans(),
    divergence=st.sampled_from(METRICS),
)
def test_points_that_are_not_finite_are_infinitely_far_and_no_center(seed, count, broken, value, whole, divergence):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 3, generator=generator, dtype=torch.float64) + 5
    rows = torch.randperm(count, generator=generator)[:broken]
    points[rows, slice(None) if whole else 1] = value
    center, radius = minimum_enclosing_center(points, divergence)
    expected = without_the_broken(points, divergence)
    if not math.isfinite(expected[1]):
        assert radius == math.inf
        assert value == 1e200 or len(rows) == count or center not in rows
    else:
        assert (center, radius) == expected


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_one_point_that_is_not_finite_leaves_the_ball_as_it_is(value):
    points = torch.randn(21, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points[3, 0] = value
    center, radius = minimum_enclosing_center(points)
    assert (center, radius) == without_the_broken(points, "l2")
    assert center != 3
    assert 0 < radius < 5


@given(seed=st.integers(0, 2**31), count=st.integers(1, 30))
def test_the_ball_is_at_most_twice_the_smallest_around_any_place(seed, count):
    line = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    half = (count + 1) // 2
    ordered = line.flatten().sort().values
    smallest = (ordered[half - 1 :] - ordered[: count - half + 1]).min().item() / 2  # of all intervals that hold half

    _, radius = minimum_enclosing_center(line)

    assert smallest * (1 - 1e-12) <= radius <= 2 * smallest * (1 + 1e-12)


def test_what_is_no_metric_is_refused_with_the_remedy():
    for divergence in ("kl", "wasserstein2", kl, wasserstein2, lambda first, second: (second - first).square().sum(1)):
        with pytest.raises(ValueError, match=r"triangle inequality and certifies l1, l2, linf, and cosine .*: say divergence='l2'"):
            minimum_enclosing_center(torch.zeros(3, 2), divergence)
    with pytest.raises(ValueError, match="candidates is 4; there are 3 points, so it must be in 1 to 3"):
        minimum_enclosing_center(torch.zeros(3, 2), candidates=4)


@given(
    ratio=st.floats(0, 4),
    sigma=st.sampled_from([0.1, 0.25, 63.75]),
    delta=st.floats(0, 0.45),
    alpha=st.floats(1e-6, 0.4),
    draws=st.integers(1, 3000),
)
@settings(max_examples=200)
def test_the_rank_is_the_smallest_that_the_binomial_distribution_allows(ratio, sigma, delta, alpha, draws):
    known = {"input_radius": ratio * sigma, "sigma": sigma, "delta": delta, "alpha": alpha, "draws": draws}
    share = norm.cdf(norm.ppf(0.5 + delta) + ratio)
    reaches = binom.sf(np.arange(draws), draws, share)  # P[Bin >= k] for k = 1 … draws
    near = np.abs(reaches - alpha) < 1e-9 * alpha

    found, published = certify_rank(**known), certify_rank(**known, rank="hoeffding")

    if not near.any():
        allowed = np.flatnonzero(reaches <= alpha) + 1
        assert found == (allowed[0] if len(allowed) else None)
    if published is not None:
        assert found is not None
        assert found <= published <= draws
        assert binom.sf(published - 1, draws, share) <= alpha


def test_levels_are_those_of_the_science_page():
    for draws, binomial, hoeffding in ((1_000, 0.898, 0.921), (10_000, 0.8785, 0.8861), (100_000, 0.8726, 0.8750)):
        known = TYPICAL | {"draws": draws}
        assert quantile_level(**known) == pytest.approx(binomial, abs=6e-4 if draws == 1000 else 6e-5)
        assert quantile_level(**known, rank="hoeffding") == pytest.approx(hoeffding, abs=5e-4 if draws == 1000 else 5e-5)
    assert quantile_level(**TYPICAL, draws=100_000, rank="hoeffding") == pytest.approx(0.86985 + 0.00515, abs=1e-5)


def test_the_largest_input_radius_is_the_last_that_has_a_rank():
    known = {"sigma": 1.0, "delta": 0.05, "alpha": 0.005}
    published = [largest_input_radius(**known, draws=10**power, rank="hoeffding") for power in (3, 4, 5, 6)]
    assert published == pytest.approx([1.505, 2.012, 2.440, 2.817], abs=6e-4)
    for rank in ("binomial", "hoeffding"):
        for draws in (30, 1_000, 100_000):
            largest = largest_input_radius(**known, draws=draws, rank=rank)
            assert certify_rank(input_radius=largest * (1 - 1e-8), **known, draws=draws, rank=rank) == draws
            assert certify_rank(input_radius=largest * (1 + 1e-8), **known, draws=draws, rank=rank) is None
            assert certify_draws_needed(input_radius=largest * (1 - 1e-8), **known, rank=rank) == draws
            assert certify_draws_needed(input_radius=largest * (1 + 1e-3), **known, rank=rank) > draws
    assert largest_input_radius(**known, draws=2, rank="hoeffding") < 0
    assert certify_draws_needed(input_radius=50, **known) == math.inf
    assert certify_rank(input_radius=50, **known, draws=100_000) is None


@given(
    radii=st.tuples(st.floats(0, 2), st.floats(0, 2)),
    sigmas=st.tuples(st.floats(0.05, 5), st.floats(0.05, 5)),
    deltas=st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)),
    draws=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    rank=st.sampled_from(["binomial", "hoeffding"]),
)
def test_certificates_ask_for_more_with_the_input_radius_and_delta_and_for_less_with_sigma_and_draws(radii, sigmas, deltas, draws, rank):
    def share(input_radius, sigma, delta, count):
        found = certify_rank(input_radius=input_radius, sigma=sigma, delta=delta, alpha=0.01, draws=count, rank=rank)
        return math.inf if found is None else found / count

    least, most = sorted(radii)
    assert share(least, 1, 0.05, draws[0]) <= share(most, 1, 0.05, draws[0])
    assert share(1, max(sigmas), 0.05, draws[0]) <= share(1, min(sigmas), 0.05, draws[0])
    assert share(1, 1, min(deltas), draws[0]) <= share(1, 1, max(deltas), draws[0])
    few, many = sorted(draws)
    # Ranks are whole numbers: a share may rise by less than one draw.
    assert share(0.5, 1, 0.05, many) <= share(0.5, 1, 0.05, few) + 1 / many
    known = {"sigma": 1.0, "delta": 0.05, "alpha": 0.01, "rank": rank}
    assert largest_input_radius(draws=few, **known) <= largest_input_radius(draws=many, **known)


def test_it_abstains_as_published():
    assert center_draws_needed(alpha=0.005, delta=0.05) == 1199
    assert abstains(1198, 1198, alpha=0.005, delta=0.05)
    assert not abstains(1199, 1199, alpha=0.005, delta=0.05)
    assert not abstains(4674, 10_000, alpha=0.005, delta=0.05)  # at 10,000 a share of .4673 is needed
    assert abstains(4672, 10_000, alpha=0.005, delta=0.05)


@given(votes=st.integers(0, 500), draws=st.integers(1, 500), alpha=st.floats(1e-5, 0.3), sigma=st.floats(0.01, 100))
@settings(max_examples=200)
def test_votes_certify_what_the_lower_bound_of_their_share_allows(votes, draws, alpha, sigma):
    votes = min(votes, draws)
    bound = beta.ppf(alpha, votes, draws - votes + 1) if votes else 0.0

    found = vote_radius(votes, draws, sigma=sigma, alpha=alpha)

    if abs(bound - 0.5) > 1e-9:
        assert math.isnan(found) == (bound <= 0.5)
    if bound > 0.5 + 1e-9:
        assert found == pytest.approx(sigma * norm.ppf(bound), rel=1e-6)
        assert found <= vote_radius(draws, draws, sigma=sigma, alpha=alpha)
        assert vote_radius(min(votes + 1, draws), draws, sigma=sigma, alpha=alpha) >= found
        assert vote_radius(2 * votes, 2 * draws, sigma=sigma, alpha=alpha) >= found
        assert vote_radius(votes, draws, sigma=2 * sigma, alpha=alpha) == pytest.approx(2 * found)


def test_votes_give_the_published_radii():
    assert vote_radius(100_000, 100_000, sigma=0.25, alpha=0.001) == pytest.approx(0.95286, abs=5e-6)
    assert vote_radius(100, 100, sigma=0.5, alpha=0.001) == pytest.approx(0.750238, abs=1e-6)
    assert vote_radius(66, 100, sigma=1, alpha=0.001) == pytest.approx(0.00414, abs=1e-5)
    assert math.isnan(vote_radius(65, 100, sigma=1, alpha=0.001))
    assert math.isnan(vote_radius(0, 100, sigma=1, alpha=0.001))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha is 1; it is a probability of error and must be in"),
        ({"delta": 0.5}, r"delta is 0.5; 1/2 \+ delta is a share of draws, so it must be in \[0, 0.5\)"),
        ({"draws": 0}, "draws is 0; at least one is needed"),
        ({"draws": 1000.5}, "draws is 1000.5; expected a whole number"),
        ({"alpha": "0.005"}, "alpha is '0.005'; expected a plain number"),
        ({"sigma": 0.0}, "sigma is 0; the noise's standard deviation must be positive"),
        ({"sigma": math.nan}, "sigma is nan"),
        ({"input_radius": -1.0}, "input_radius is -1; a radius cannot be negative"),
        ({"rank": "exact"}, "rank is 'exact'; expected 'binomial' or 'hoeffding'"),
    ],
)
def test_a_parameter_that_none_can_have_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        certify_rank(**TYPICAL | {"draws": 100} | options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vote_radius(5.5, 10, sigma=1, alpha=0.1), "own_votes is 5.5; of 10 draws it must be a whole number in 0 to 10"),
        (lambda: vote_radius(11, 10, sigma=1, alpha=0.1), "own_votes is 11; of 10 draws"),
        (lambda: vote_radius(5, 10.5, sigma=1, alpha=0.1), "draws is 10.5; expected a whole number"),
        (lambda: vote_radius(torch.tensor([5, 6]), 10, sigma=1, alpha=0.1), "own_votes is tensor"),
        (lambda: abstains(-1, 10, alpha=0.1, delta=0.1), "inside is -1; of 10 draws"),
        (lambda: minimum_enclosing_center(torch.rand(3)), r"points has shape \[3\]; expected \[n, dim\]"),
        (lambda: minimum_enclosing_center(torch.rand(0, 3)), "there are no points; expected at least one"),
        (lambda: minimum_enclosing_center(torch.rand(3, 2), candidates=1.5), "candidates is 1.5; expected a whole number"),
        (lambda: minimum_enclosing_center(torch.rand(3, 2), candidates=4), "candidates is 4; there are 3 points"),
    ],
)
def test_counts_and_points_that_none_can_have_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(seed=st.integers(0, 2**31), divergence=st.sampled_from(METRICS), distance=st.floats(0, 3))
def test_what_is_kept_is_nowhere_in_the_ball_nearer_than_the_own_point(seed, divergence, distance):
    generator = torch.Generator().manual_seed(seed)
    geometry = geometry_of(divergence)
    center, own, *others = geometry.place(torch.randn(8, 3, generator=generator))
    others = torch.stack([*others, own])
    kept = geometry.keeps(center, distance, own, others)

    steps = torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    lengths = torch.linalg.vector_norm(steps, {"l1": 1, "l2": 2, "linf": math.inf}[geometry.norm], dim=1, keepdim=True)
    places = center + distance * steps / lengths * torch.rand(3000, 1, generator=generator, dtype=torch.float64).pow(0.2)
    if geometry.directions:  # what is represented there is a direction too
        places = geometry.place(places)
        places = places[torch.linalg.vector_norm(places - center, dim=1) <= distance]
    to_own, to_others = pairwise(geometry.norm, own[None], places), pairwise(geometry.norm, others, places)

    assert kept[-1]  # a copy of the own point
    assert not (to_others < to_own - 1e-9)[kept].any()
    if geometry.norm == "l2":  # and what is not kept is reached, by going straight there, on the sphere by turning there
        for other in others[~kept]:
            toward = (other - own) / torch.linalg.vector_norm(other - own)
            there = center + distance * (1 + 1e-9) * toward
            if geometry.directions:
                across = geometry.place((toward - (toward @ center) * center)[None])[0]
                angle = min(2 * math.asin(min(distance / 2, 1)), math.acos(max(-1.0, min(1.0, (toward @ center).item())))) * (1 + 1e-9)
                there = math.cos(angle) * center + math.sin(angle) * across
            assert torch.linalg.vector_norm(there - other) < torch.linalg.vector_norm(there - own) + 1e-9


@pytest.mark.parametrize("divergence", METRICS)
def test_distances_of_placed_points_are_the_divergence(divergence):
    first, second = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0))
    geometry = geometry_of(divergence)
    expected = DIVERGENCES[divergence](first[:1].double().expand(50, 6), second.double())
    found = geometry.distances(geometry.place(first)[0], geometry.place(second))
    torch.testing.assert_close(torch.tensor([geometry.divergence(one) for one in found.tolist()], dtype=torch.float64), expected)
    assert geometry_of("cosine").divergence(7.0) == 2

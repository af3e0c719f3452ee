"""Benign views and local sensitivity: against closed forms on linear encoders, brute force, and what they must say of odd encoders."""

import math

import pytest
import torch

from rt_core import Bank, Encoder, Evaluation, perturb, represent, run
from rt_core.divergences import l2
from rt_core.randomness import SampleRandom
from rt_core.testing import linear_encoder, read_example, tiny_encoder, tiny_inputs
from rt_core.traces import Context
from rt_label_free_metrics import LocalSensitivity, ViewQuantile, benign_views
from rt_unsupervised_attacks import UPGD


def context_of(encoder, inputs, **options):
    return Context(encoder=encoder, divergence=l2, random=SampleRandom.of(0, range(len(inputs))), read=lambda: inputs, **options)


# Views


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0)])
def test_views_are_crops_a_mirror_image_and_jpeg_inside_the_bounds(bounds):
    encoder, inputs = tiny_encoder(bounds=bounds), tiny_inputs(6, (3, 16, 16), bounds=bounds)
    views = benign_views(encoder, inputs, SampleRandom.of(0, range(6)), crops=5, scale=(0.5, 1.0))
    assert len(views) == 5 + 1 + 4
    assert all(view.shape == inputs.shape and bounds[0] <= view.min() <= view.max() <= bounds[1] for view in views)
    assert torch.equal(views[5], inputs.flip(-1))
    smooth = torch.linspace(*bounds, 16).expand(2, 3, 16, 16)
    best, *_, worst = benign_views(encoder, smooth, SampleRandom.of(0, range(2)), crops=1, scale=(1.0, 1.0))[2:]
    width = bounds[1] - bounds[0]
    assert (best - smooth).abs().max() < 0.05 * width
    assert (worst - smooth).abs().mean() > (best - smooth).abs().mean()


@pytest.mark.parametrize(("shape", "count"), [((1, 8, 8), 10), ((4, 8, 8), 6), ((7,), 5), ((2, 9), 5)])
def test_what_is_no_picture_has_fewer_views(shape, count):
    inputs = tiny_inputs(4, shape)
    views = benign_views(
        Encoder(lambda inputs: inputs.flatten(1), name="flat"), inputs, SampleRandom.of(0, range(4)), crops=5, scale=(0.5, 1.0)
    )
    assert len(views) == count
    assert all(view.shape == inputs.shape for view in views)


def test_the_view_quantile_is_the_share_of_views_that_move_at_least_as_far():
    trace, bank, context = read_example("away")
    metric = ViewQuantile(crops=6)
    views = benign_views(context.encoder, context.inputs, context.random, crops=6, scale=metric.scale)
    expected = []
    for row in range(len(trace)):
        moved = (trace.adversarial[row].double() - trace.clean[row].double()).norm()
        others = [(represent(context.encoder, view)[row].double() - trace.clean[row].double()).norm() for view in views]
        expected.append(sum(other.item() >= moved.item() for other in others) / len(others))
    found = metric(trace, bank, context)
    assert found.tolist() == pytest.approx(expected)
    assert 0 < found.mean() < 1


def test_an_attack_that_does_nothing_is_outdone_by_every_view_and_a_strong_one_by_few():
    encoder, inputs = tiny_encoder(), tiny_inputs(12)

    def found(epsilon):
        trace = perturb(UPGD(epsilon=epsilon, steps=10), encoder, inputs)
        return ViewQuantile()(trace, Bank(trace.clean), context_of(encoder, inputs)).mean()

    assert found(0.0) == 1
    assert found(0.5) < found(0.05) <= 1
    assert found(0.5) < 0.3


def test_views_are_looked_at_once_for_all_attacks_on_a_sample():
    def forwards(attacks, metrics):
        encoder = tiny_encoder()
        plan = Evaluation([encoder], tiny_inputs(80), attacks, metrics, attacked=80, bank=80)
        return run(plan, progress=False, diagnose=False), encoder.passes.forwards

    one, three = ({f"a{number}": UPGD(epsilon=0.1, steps=2, marks=(1, 2)) for number in range(count)} for count in (1, 3))
    extra = [forwards(attacks, ["view_quantile", "divergence"])[1] - forwards(attacks, ["divergence"])[1] for attacks in (one, three)]
    assert extra[0] == 16 * (80 + 2)  # views of the samples and of the rehearsal's two
    assert extra[1] == 16 * (80 + 2)
    whole, small = (
        run(Evaluation([tiny_encoder()], tiny_inputs(80), one, ["view_quantile"], attacked=80, bank=80), batch=batch, progress=False).frame
        for batch in (64, 7)
    )
    assert whole.equals(small)


@pytest.mark.parametrize(
    ("options", "words"), [({"crops": 0}, "crops is 0"), ({"scale": (0, 1)}, "scale is"), ({"scale": (0.9, 0.5)}, "scale is")]
)
def test_options_of_views_are_checked(options, words):
    with pytest.raises(ValueError, match=words):
        ViewQuantile(**options)


# Sensitivity


def test_on_a_linear_encoder_sensitivity_is_the_norm_of_its_weight():
    encoder, weight = linear_encoder(3, 4, 4, dtype=torch.float64)
    inputs = 0.3 + 0.4 * tiny_inputs(10, (3, 4, 4)).double()
    clean = represent(encoder, inputs)
    trace = read_example("clean", attacked=10).trace
    trace = type(trace)(**{**vars(trace), "clean": clean, "adversarial": clean})
    bank, metric = Bank(clean), LocalSensitivity(radius=1e-3, draws=64)
    found = metric(trace, bank, context_of(encoder, inputs))
    unit = torch.pdist(clean).sort().values[22].item()  # the median of 45 pairs
    assert found["gradient"].tolist() == pytest.approx([weight.abs().sum().item() / unit] * 10, rel=1e-6)
    # A sum of many small uniform terms is nearly normal: |sum| is sqrt(2 / pi) of its deviation, sqrt(1 / 3) of the weight's length.
    expected = math.sqrt(2 / math.pi / 3) * weight.norm().item() / unit
    assert found["noise"].mean().item() == pytest.approx(expected, rel=0.1)


def test_sensitivity_does_not_depend_on_the_scale_of_the_representation():
    trace, bank, context = read_example("clean")
    encoder = Encoder(lambda inputs: 1000 * context.encoder(inputs), name="scaled")
    clean = represent(encoder, context.inputs)
    scaled = LocalSensitivity()(
        type(trace)(**{**vars(trace), "clean": clean}), Bank(1000 * bank.take(torch.arange(len(bank)))), context_of(encoder, context.inputs)
    )
    for name, values in LocalSensitivity()(trace, bank, context).items():
        assert scaled[name].tolist() == pytest.approx(values.tolist(), rel=1e-3)


def test_an_encoder_that_hides_its_gradient_has_noise_and_no_gradient():
    inner = tiny_encoder()
    encoder, inputs = Encoder(lambda inputs: inner((inputs * 64).round() / 64), name="rounded"), tiny_inputs(12)
    trace, clean = read_example("clean").trace, represent(encoder, inputs)
    found = LocalSensitivity()(type(trace)(**{**vars(trace), "clean": clean}), Bank(clean), context_of(encoder, inputs))
    assert not found["gradient"].any()
    assert (found["noise"] > 0).all()


def test_sensitivity_costs_next_to_nothing_and_a_constant_bank_leaves_it_undefined():
    encoder = tiny_encoder()
    plan = Evaluation([encoder], tiny_inputs(20), {}, ["local_sensitivity"], attacked=20, bank=20)
    results = run(plan, progress=False)
    assert set(results.frame["metric"]) == {"local_sensitivity/gradient", "local_sensitivity/noise"}
    assert encoder.passes.backwards == 20 + 2
    trace, _, context = read_example("clean")
    found = LocalSensitivity()(trace, Bank(torch.ones(5, 16)), context)
    assert found["gradient"].isnan().all()


@pytest.mark.parametrize("options", [{"radius": 0}, {"radius": "1"}, {"draws": 0}])
def test_options_of_sensitivity_are_checked(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        LocalSensitivity(**options)

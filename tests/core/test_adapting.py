"""The views of an encoder as a classifier: what they show, what they hand on as gradient, and what is made of what comes back."""

import pytest
import torch
from torch import nn

import rt_core
from rt_core.adapting import (
    AnchorLogits,
    Scale,
    ThresholdLogits,
    UnitLogits,
    better_of,
    bisected,
    check_given,
    check_route,
    finite_slope,
    magnitudes,
    one_by_one,
    threshold_of,
    unmoved,
    warn_untested,
)
from rt_core.divergences import cosine, kl, l1, l2
from rt_core.errors import RobustnessWarning, ShapeError
from rt_core.testing import linear_encoder, tiny_encoder

BOTH = pytest.mark.parametrize("aim", ["away", "target"])


def images(rows, seed=1):
    return torch.rand(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def make_batch(encoder, inputs, aim="away", bank=None, own=None, targets=None):
    with torch.no_grad():
        clean = encoder(inputs)
        aimed = encoder(images(len(inputs), seed=2) if targets is None else targets)
    return rt_core.Batch(
        ids=tuple(map(str, range(len(inputs)))),
        inputs=inputs,
        clean=clean,
        aim=aim,
        targets=aimed if aim == "target" else None,
        bank=None if bank is None else rt_core.Bank(bank.detach()),
        own=own,
    )


def eta(inputs, seed=5):
    return torch.rand(inputs.shape, generator=torch.Generator().manual_seed(seed)) * 2e-3 - 1e-3


def gradient(values, at):
    return torch.autograd.grad(values.sum(), at)[0]


VIEWS = {
    "unit": lambda encoder, batch, divergence=l2: UnitLogits(encoder, batch, divergence, eta=None, who="test"),
    "threshold": lambda encoder, batch, divergence=l2: ThresholdLogits(encoder, batch, divergence, threshold=0.5, who="test"),
    "anchors": lambda encoder, batch, divergence=l2: AnchorLogits(encoder, batch, divergence, anchors=3, who="test"),
}


@pytest.mark.parametrize("name", VIEWS)
@BOTH
def test_a_view_shows_no_modules_and_keeps_its_mode(name, aim):
    encoder, inputs = tiny_encoder(), images(3)
    view = VIEWS[name](encoder, make_batch(encoder, inputs, aim, bank=encoder(images(9, seed=3))))
    assert [len(list(view.modules())), len(list(view.parameters()))] == [1, 1]
    assert view.train() is view
    assert not view.training
    forwards = encoder.passes.forwards
    view(inputs)
    assert encoder.passes.forwards == forwards + 3


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_view_takes_any_type_and_memory_order_and_answers_in_kind(name, dtype):
    encoder, inputs = tiny_encoder(), images(3)
    view = VIEWS[name](encoder, make_batch(encoder, inputs, bank=encoder(images(9, seed=3))))
    at = (inputs + 0.05).clamp(0, 1).to(dtype).to(memory_format=torch.channels_last).requires_grad_()
    logits = view(at)
    assert logits.dtype == dtype
    slope = gradient(logits[:, 1], at)
    assert slope.is_contiguous()
    torch.testing.assert_close(logits, view(at.detach().contiguous()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", VIEWS)
@BOTH
def test_a_constant_encoder_has_a_gradient_of_zero(name, aim):
    encoder, inputs = rt_core.Encoder(lambda inputs: torch.ones(len(inputs), 4), name="constant"), images(2)
    batch = make_batch(encoder, inputs, aim, bank=torch.ones(5, 4) + torch.eye(5, 4))
    at = inputs.clone().requires_grad_()
    assert torch.equal(gradient(VIEWS[name](encoder, batch)(at), at), torch.zeros_like(at))


WEIGHT = torch.ones(192, 4, requires_grad=True)
DEAF = {
    "no_grad": torch.no_grad()(lambda inputs: inputs.flatten(1)),  # what comes out asks for a gradient, and has no graph
    "detached": lambda inputs: inputs.detach().flatten(1),
    "weights alone": lambda inputs: inputs.detach().flatten(1) @ WEIGHT,  # a graph, and the input is not in it
}


@pytest.mark.parametrize("deaf", DEAF)
@pytest.mark.parametrize("name", VIEWS)
@BOTH
def test_an_encoder_without_a_gradient_has_one_of_zero(name, aim, deaf):
    encoder, inputs = rt_core.Encoder(DEAF[deaf], name="deaf"), images(2)
    view = VIEWS[name](encoder, make_batch(encoder, inputs, aim, bank=encoder(images(5, seed=3))))
    assert unmoved([view.passage]) == {}
    at = (inputs + 0.01).clamp(0, 1).requires_grad_()
    logits = view(at)
    assert torch.equal(gradient(logits, at), torch.zeros_like(at))
    assert unmoved([view.passage])["zero_gradient"].tolist() == [1, 1]
    torch.testing.assert_close(logits, view(at.detach()), rtol=0, atol=0)


def test_the_share_of_zero_gradients_is_each_sample_s_own():
    inputs = images(3)
    inputs[1] = 0.2
    encoder = rt_core.Encoder(lambda inputs: (inputs.flatten(1)[:, :4] - 0.5).relu(), name="half dead")
    view = VIEWS["unit"](encoder, make_batch(encoder, inputs))
    for step in (0.2, 0.7):
        at = (inputs + step).requires_grad_()
        gradient(view(at)[:, 1], at)
    assert view.passage.zero_gradient.tolist() == [0, 0.5, 0]
    single = VIEWS["unit"](encoder, make_batch(encoder, inputs[1:2]))
    at = torch.stack([inputs[1] + 0.2, inputs[1] + 0.7]).requires_grad_()  # several rows of the only sample: one of them sees something
    gradient(single(at)[:, 1], at)
    assert single.passage.zero_gradient.tolist() == [0]
    assert unmoved([single.passage, single.passage])["zero_gradient"].tolist() == [0, 0]


@pytest.mark.parametrize("name", VIEWS)
def test_a_gradient_that_is_infinite_at_one_pixel_is_finite_for_a_library(name):
    encoder, inputs = rt_core.Encoder(lambda inputs: inputs.flatten(1).sqrt(), name="root"), images(2) * 0.5 + 0.2
    view = VIEWS[name](encoder, make_batch(encoder, inputs, bank=encoder(images(5, seed=3))))
    at = inputs.clone() + 0.1
    at[:, 0, 0, 0] = 0
    slope = gradient(view(at.requires_grad_())[:, 1], at)
    assert slope.isfinite().all()
    torch.testing.assert_close(slope[:, 0, 0, 0].abs(), slope.abs().flatten(1).amax(1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_slope_that_is_finite_stays_bit_for_bit(dtype):
    random = torch.Generator().manual_seed(0)
    slope = torch.randn(5, 3, 8, 8, generator=random, dtype=dtype)
    slope *= 10.0 ** torch.randint(-30, 30, slope.shape, generator=random)
    slope[1] = 0
    assert torch.equal(finite_slope(slope), slope)
    assert torch.equal(finite_slope(slope.to(memory_format=torch.channels_last)), slope)
    assert finite_slope(slope[:0]).shape == (0, 3, 8, 8)


def test_what_is_infinite_is_as_large_as_the_largest_finite_slope_of_its_sample():
    inf, nan, top = torch.inf, torch.nan, torch.finfo(torch.float32).max
    given = torch.tensor([[1, inf, -inf, nan, -3], [0, inf, -inf, nan, 0], [nan] * 5, [2, -1, 0, 7, -5], [top, -top, inf, 0, top / 5]])
    expected = torch.tensor([[1, 3, -3, 0, -3], [0, 1, -1, 0, 0], [0.0] * 5, [2, -1, 0, 7, -5], [1, -1, 1, 0, 1]])
    expected[4] *= top / 5  # the largest of which five have a finite mean
    torch.testing.assert_close(finite_slope(given), expected, rtol=0, atol=0)
    assert finite_slope(given).abs().mean(1).isfinite().all()


@pytest.mark.parametrize("name", ["unit", "threshold"])
def test_at_a_clean_input_the_gradient_is_that_beside_it(name):
    encoder, inputs = tiny_encoder(), images(3)
    batch, shift = make_batch(encoder, inputs), eta(inputs)
    views = {
        "unit": UnitLogits(encoder, batch, l2, eta=shift, who="test"),
        "threshold": ThresholdLogits(encoder, batch, l2, threshold=1.0, eta=shift, who="test"),
    }
    moved = inputs.clone()
    moved[1] = (moved[1] + 0.03).clamp(0, 1)
    at = moved.clone().requires_grad_()
    got = gradient(views[name](at)[:, 1], at)

    beside = torch.stack([(inputs + shift).clamp(0, 1)[0], moved[1], (inputs + shift).clamp(0, 1)[2]]).requires_grad_()
    wanted = gradient(l2(batch.clean, encoder(beside)), beside)
    ratio = 1 if name == "unit" else 5 / 1.002
    torch.testing.assert_close(got, wanted * ratio, rtol=1e-4, atol=1e-6)
    assert (got != 0).flatten(1).any(1).all()
    with torch.no_grad():
        assert views["unit"](inputs)[:, 1].max() < 1e-5, "where no gradient is asked for, the clean input is seen as it is"


def test_unit_logits_have_a_gradient_of_one_and_never_saturate():
    inputs = images(4)
    for factor in (1e-6, 1.0, 1e15):
        encoder, _ = linear_encoder(3, 8, 8, 5)
        scaled = rt_core.Encoder(lambda inputs, encoder=encoder, factor=factor: encoder(inputs) * factor, name="scaled")
        for aim, way in (("away", 1), ("target", -1)):
            batch = make_batch(scaled, inputs, aim)
            view = UnitLogits(scaled, batch, l2, eta=None, who="test")
            at = (inputs + 0.02).clamp(0, 1).requires_grad_()
            logits = view(at)
            assert (logits[:, 1] >= 0).all()
            assert (logits[:, 1] <= 40).all()
            loss = nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
            assert torch.equal(torch.autograd.grad(loss, at)[0], gradient(way * l2(batch.anchor, scaled(at)), at))
            view.mistaken = False
            assert (view(at).argmax(1) == 0).all()


@BOTH
def test_threshold_logits_decide_where_the_divergence_crosses_the_threshold(aim):
    encoder, inputs = tiny_encoder(), images(64)
    batch = make_batch(encoder, inputs, aim)
    moved = (inputs + 0.3 * (images(64, seed=7) - 0.5)).clamp(0, 1)
    with torch.no_grad():
        value = l2(batch.anchor, encoder(moved))
    threshold = value.median().item()
    logits = ThresholdLogits(encoder, batch, l2, threshold=threshold, columns=4, who="test")(moved)
    assert logits.shape == (64, 4)
    clear = (value / threshold - 1).abs() > 0.003
    beyond = value > threshold if aim == "away" else value < threshold
    assert torch.equal((logits.argmax(1) != 0)[clear], beyond[clear])
    assert clear.sum() > 50
    assert (logits[:, 2:].amax(1) < logits[:, :2].amin(1) - 100).all()
    way, edge = (1, 1.002) if aim == "away" else (-1, 1 / 1.002)
    torch.testing.assert_close(logits[:, 1] - logits[:, 0], way * 10 * (value / (threshold * edge) - 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("inf"), float("nan")])
def test_a_threshold_is_positive_and_finite(threshold):
    encoder, inputs = tiny_encoder(), images(2)
    with pytest.raises(ValueError, match="expected a positive, finite divergence"):
        ThresholdLogits(encoder, make_batch(encoder, inputs), l2, threshold=threshold, who="test")


def test_views_by_row_refuse_other_rows_unless_there_is_one_sample():
    encoder, inputs = tiny_encoder(), images(3)
    for name in ("unit", "threshold"):
        with pytest.raises(ShapeError, match="test asks for 6 rows of a batch of 3: it drops, repeats or reorders rows"):
            VIEWS[name](encoder, make_batch(encoder, inputs))(inputs.repeat(2, 1, 1, 1))
        single = VIEWS[name](encoder, make_batch(encoder, inputs[:1]))
        many = single(images(5, seed=9))
        torch.testing.assert_close(many, torch.cat([single(one[None]) for one in images(5, seed=9)]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("divergence", [l2, cosine, l1, kl])
def test_anchor_logits_are_the_divergences_from_every_anchor(divergence):
    encoder, inputs = tiny_encoder(), images(5)
    bank = encoder(images(20, seed=3)).detach()
    batch = make_batch(encoder, inputs, bank=bank)
    view = AnchorLogits(encoder, batch, divergence, anchors=4, scale=0.1, who="test")
    moved = (inputs + 0.1 * images(5, seed=4)).clamp(0, 1)[[3, 1, 1]]
    with torch.no_grad():
        found = encoder(moved).double()
        brute = torch.stack([divergence(view.anchors.double(), row.expand(len(view.anchors), -1)) for row in found])
        torch.testing.assert_close(view(moved).double(), 8 - brute / 0.1, rtol=1e-3, atol=1e-3)
        wanted = {tuple(row.tolist()) for row in batch.clean}
        for clean in batch.clean:
            order = divergence(bank.double(), clean.double().expand(20, -1)).argsort()
            wanted |= {tuple(bank[row].tolist()) for row in order[:4]}
    assert {tuple(row.tolist()) for row in view.anchors} == wanted
    assert torch.equal(view.anchors[view.labels], batch.clean)


def test_anchor_logits_find_breakaways_and_impersonations():
    encoder, inputs = tiny_encoder(), images(4)
    others = images(12, seed=3)
    bank = encoder(torch.cat([inputs, others])).detach()
    batch = make_batch(encoder, inputs, bank=bank, own=torch.arange(4))
    view = AnchorLogits(encoder, batch, l2, anchors=11, who="test")
    assert len(view.anchors) == 16, "a sample's own row is its clean representation, and stands once"
    assert torch.equal(view(inputs).argmax(1), view.labels)
    assert (view(others).argmax(1)[:, None] != view.own).all(), "another input is nearer to its own than to any of the batch"

    with torch.no_grad():
        aimed = make_batch(encoder, inputs, "target", bank=bank, own=torch.arange(4), targets=inputs.flip(0))
    toward = AnchorLogits(encoder, aimed, l2, anchors=11, who="test")
    assert torch.equal(toward.labels, toward.own.flip(0)), "a target that is the batch's own stands once"
    assert torch.equal(toward(inputs.flip(0)).argmax(1), toward.labels)
    alone = AnchorLogits(encoder, make_batch(encoder, inputs[:1], "target"), l2, columns=4, who="test")
    assert alone(inputs[:1]).shape == (1, 4)
    assert alone(inputs[:1])[0, 2:].max() < -1000
    with pytest.raises(ValueError, match="test in mode 'instance' needs a bank of others to break away to"):
        AnchorLogits(encoder, make_batch(encoder, inputs), l2, who="test")


def test_the_gradient_of_anchor_logits_is_that_of_the_divergences():
    inputs = images(3).double()
    module = tiny_encoder().module.double()
    encoder = rt_core.Encoder(module, name="double")
    batch = make_batch(encoder, inputs, bank=encoder(images(9, seed=3).double()))
    for divergence in (l2, cosine):
        view = AnchorLogits(encoder, batch, divergence, anchors=3, scale=1.0, who="test")
        at = (inputs + 0.03).clamp(0, 1).requires_grad_()
        got = gradient(view(at)[:, 2], at)
        wanted = gradient(-divergence(view.anchors[2].expand(3, -1), encoder(at)), at)
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)
        at = inputs.clone().requires_grad_()
        assert gradient(view(at)[:, view.own[0]], at).isfinite().all()


def test_rows_of_anchor_logits_may_be_dropped_and_reordered():
    encoder, inputs = tiny_encoder(), images(5)
    view = AnchorLogits(encoder, make_batch(encoder, inputs, bank=encoder(images(9, seed=3))), l2, anchors=3, who="test")
    whole = view(inputs)
    torch.testing.assert_close(view(inputs[[4, 0]]), whole[[4, 0]], rtol=1e-3, atol=1e-3)


@BOTH
def test_bisection_ends_within_one_percent_beyond_the_threshold(aim):
    encoder, inputs = tiny_encoder(), images(20)
    batch = make_batch(encoder, inputs, aim)
    moved = images(20, seed=8) if aim == "away" else images(20, seed=2)
    with torch.no_grad():
        start, end = l2(batch.anchor, batch.clean), l2(batch.anchor, encoder(moved))
        threshold = ((start + 2 * end) / 3).median().item()
        forwards = encoder.passes.forwards
        found, reached = bisected(encoder, batch, l2, moved, threshold)
        assert encoder.passes.forwards == forwards + 12 * 20
        value = l2(batch.anchor, encoder(found))
    way = 1 if aim == "away" else -1
    begun = way * (start - threshold) >= 0
    assert torch.equal(reached, begun | (way * (end - threshold) >= 0))
    inside = (value >= threshold) & (value <= 1.01 * threshold) if aim == "away" else (value <= threshold) & (value >= threshold / 1.01)
    assert inside[reached & ~begun].all()
    assert (reached & ~begun).sum() >= 5
    assert torch.equal(found[begun], inputs[begun])
    assert torch.equal(found[~reached], moved[~reached])
    share = ((found - inputs) / (moved - inputs)).flatten(1)
    torch.testing.assert_close(share[reached].amin(1), share[reached].amax(1), rtol=1e-3, atol=1e-3)


def test_bisection_leaves_what_already_is_at_the_threshold():
    encoder, inputs = tiny_encoder(), images(4)
    batch = make_batch(encoder, inputs)
    moved = images(4, seed=8)
    with torch.no_grad():
        value = l2(batch.clean, encoder(moved))
    found, reached = bisected(encoder, batch, l2, moved, value.min().item() * 0.995)
    assert torch.equal(found[value.argmin()], moved[value.argmin()])
    assert reached.all()


@BOTH
def test_the_better_of_two_is_kept_row_by_row(aim):
    encoder, inputs = tiny_encoder(), images(30)
    batch = make_batch(encoder, inputs, aim)
    first, second = images(30, seed=11), images(30, seed=12)
    got = better_of(encoder, batch, l2, first, second)
    with torch.no_grad():
        values = [l2(batch.anchor, encoder(one)) for one in (first, second, got)]
    best = torch.maximum(*values[:2]) if aim == "away" else torch.minimum(*values[:2])
    torch.testing.assert_close(values[2], best, rtol=1e-5, atol=0)
    assert 0 < (got == first).flatten(1).all(1).sum() < 30
    assert torch.equal(better_of(encoder, batch, l2, first, first), first)


def test_magnitudes_are_those_of_what_was_reached():
    encoder, inputs = tiny_encoder(), images(3)
    moved = inputs.clone()
    moved[0, 0, 0, 0], moved[0, 1, 2, 2] = moved[0, 0, 0, 0] + 3.0, moved[0, 1, 2, 2] - 4.0
    notes = magnitudes(make_batch(encoder, inputs), moved, torch.tensor([True, True, False]))
    assert notes["reached"].tolist() == [1, 1, 0]
    assert notes["magnitude_l2"][:2].tolist() == pytest.approx([5, 0])
    assert notes["magnitude_linf"][:2].tolist() == pytest.approx([4, 0])
    assert notes["magnitude_l2"][2].isnan()


def test_the_threshold_is_a_quantile_of_the_pairs():
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    bank = rt_core.Bank(rows)
    pairs = torch.pdist(rows.double()).sort().values
    for quantile in (0.05, 0.5, 1.0):
        found = threshold_of(bank, quantile, l2)
        assert found == pytest.approx(pairs[max(-(-int(quantile * len(pairs) * 1000) // 1000) - 1, 0)].item(), rel=1e-6)
        assert bank.pair_quantiles(torch.tensor([found], dtype=torch.float64), l2).item() >= quantile
    with pytest.raises(ValueError, match=r"needs a bank for its threshold, .*give threshold=, .*or perturb\(…, bank="):
        threshold_of(None, 0.5, l2)


def test_scale_maps_bounds_of_one_width_alone():
    inputs = images(2) * 3 - 1
    scale = Scale.of((-1.0, 2.0), inputs, "it")
    shown = scale.forth(inputs)
    assert shown.min() >= 0
    assert shown.max() <= 1
    torch.testing.assert_close(scale.back(shown), inputs)
    assert Scale.of((0.0, 1.0), inputs, "it") is None
    with pytest.raises(ValueError, match=r"it moves inputs in \[0, 1\], and the encoder's bounds are 1 wide in one place and 2 in another"):
        Scale.of((torch.zeros(3, 1, 1), torch.tensor([1.0, 1.0, 2.0]).reshape(3, 1, 1)), inputs, "it")


def test_a_view_can_leave_the_bounds_as_they_are():
    encoder, inputs = tiny_encoder(bounds=(-1, 1)), images(3) * 2 - 1
    batch = make_batch(encoder, inputs)
    plain = UnitLogits(encoder, batch, l2, eta=None, who="test", rescale=False)
    mapped = UnitLogits(encoder, batch, l2, eta=None, who="test")
    assert torch.equal(plain.clean, inputs)
    torch.testing.assert_close(plain((inputs + 0.1).clamp(-1, 1)), mapped((inputs / 2 + 0.55).clamp(0, 1)), rtol=1e-4, atol=1e-5)


def test_one_by_one_is_every_sample_with_all_that_is_its_own():
    encoder, inputs = tiny_encoder(), images(3)
    batch = make_batch(encoder, inputs, "target", bank=encoder(inputs), own=torch.tensor([2, 1, 0]))
    parts = list(one_by_one(batch))
    assert [row for row, _ in parts] == [0, 1, 2]
    for row, one in parts:
        assert one.ids == (str(row),)
        assert torch.equal(one.inputs, inputs[row : row + 1])
        assert torch.equal(one.targets, batch.targets[row : row + 1])
        assert one.own.tolist() == [2 - row]
        assert one.bank is batch.bank


def test_a_route_is_one_of_three():
    check_route("single")
    with pytest.raises(ValueError, match="route is 'one'; expected 'auto', 'batch', 'single'"):
        check_route("one")


@pytest.mark.parametrize(("version", "warns"), [("3.5.1", False), ("3.5", False), ("3.6.0", True), ("3.4.9", True), ("4.0.0rc1", True)])
def test_an_untested_version_warns(version, warns, recwarn):
    warn_untested("thing", version, ((3, 5), (3, 6)))
    assert bool([warning for warning in recwarn if warning.category is RobustnessWarning]) == warns


@pytest.mark.parametrize(("value", "default"), [(3, 10), (2.5, 0.1), (True, False), (True, None), ("l2", "linf"), (None, 3)])
def test_an_option_of_a_library_may_be_anything_but_a_bool_for_a_number(value, default):
    check_given("steps", value, default)
    for number in (10, 0.1):
        with pytest.raises(ValueError, match=f"steps is False; expected a number, such as {number}, the library's default"):
            check_given("steps", False, number)

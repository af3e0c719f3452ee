"""Other views of a sample: what they show, whose they are, and that gradients pass through them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rt_core.randomness import SampleRandom
from rt_core.testing import tiny_inputs
from rt_core.views import crop_and_flip


def views(inputs, purpose="view", seed=0, **options):
    return crop_and_flip(inputs, SampleRandom.of(seed, range(len(inputs))), purpose, **options)


def test_the_whole_picture_is_itself_or_its_mirror_image():
    inputs = tiny_inputs(64)
    seen = views(inputs, scale=(1.0, 1.0))
    random = SampleRandom.of(0, range(64))
    square = random.uniform("view", (5,))[:, 1].sub(0.5).abs() < 0.02  # nearly of the picture's own shape
    mirrored = random.uniform("view", (5,))[:, 4] < 0.5

    assert square.any()
    assert 16 < mirrored.sum() < 48
    for row in square.nonzero().flatten().tolist():
        expected = inputs[row].flip(-1) if mirrored[row] else inputs[row]
        torch.testing.assert_close(seen[row], expected, rtol=0, atol=0.05)


@given(seed=st.integers(0, 2**31), low=st.floats(0.05, 1))
def test_a_view_is_a_straight_part_of_the_picture_of_the_area_that_is_asked_for(seed, low):
    rows, columns = torch.meshgrid(*[torch.arange(32, dtype=torch.float64)] * 2, indexing="ij")
    picture = torch.stack([rows, columns]).expand(4, 2, 32, 32)  # each pixel says where it comes from
    seen = views(picture, seed=seed, scale=(low, 1.0))
    down, across = seen[:, 0], seen[:, 1]

    torch.testing.assert_close(down, down[:, :, :1].expand_as(down))  # a row of the view is of one row of the picture
    torch.testing.assert_close(across, across[:, :1, :].expand_as(across))
    height = (down[:, 20, 0] - down[:, 12, 0]) / 8  # away from the border, where places are clamped
    width = (across[:, 0, 20] - across[:, 0, 12]) / 8
    assert (height > 0).all()
    assert (height <= 1 + 1e-6).all()
    assert (width.abs() <= 1 + 1e-6).all()
    whole = (height > 1 - 1e-6) | (width.abs() > 1 - 1e-6)  # where a side had to be shortened
    area, shape = (height * width.abs())[~whole], (width.abs() / height)[~whole]
    assert ((area >= low - 1e-6) & (area <= 1 + 1e-6)).all()
    assert ((shape >= 0.75 - 1e-6) & (shape <= 4 / 3 + 1e-6)).all()


def test_no_value_of_a_view_is_beyond_those_of_the_picture():
    inputs = tiny_inputs(8)
    seen = views(inputs)
    assert (seen.amax((1, 2, 3)) <= inputs.amax((1, 2, 3)) + 1e-6).all()
    assert (seen.amin((1, 2, 3)) >= inputs.amin((1, 2, 3)) - 1e-6).all()


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7), (6,), (2, 7)])
def test_a_sample_has_its_own_view_whatever_stands_beside_it(shape):
    inputs, random = tiny_inputs(8, shape), SampleRandom.of(3, range(8))
    whole = crop_and_flip(inputs, random, "view")
    order = [5, 2, 7, 0]

    assert torch.equal(crop_and_flip(inputs[order], random.select(order), "view"), whole[order])
    for row in range(8):
        assert torch.equal(crop_and_flip(inputs[row : row + 1], random.select([row]), "view"), whole[row : row + 1])
    assert not torch.equal(crop_and_flip(inputs, random, "another"), whole)
    assert whole.shape == inputs.shape


def test_gradients_pass_through_a_view():
    inputs = tiny_inputs(3, (2, 5, 5)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda inputs: views(inputs).square(), inputs)

    vectors = tiny_inputs(3, (6,)).requires_grad_()
    assert torch.equal(torch.autograd.grad(views(vectors).sum(), vectors)[0], torch.ones(3, 6))  # the noise is added


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_what_is_no_picture_gets_noise_of_a_twentieth_of_its_size(scale):
    inputs = scale * tiny_inputs(4, (5000,))
    moved = views(inputs) - inputs
    size = inputs.square().mean(1).sqrt()
    torch.testing.assert_close(moved.square().mean(1).sqrt(), 0.05 * size, rtol=0.05, atol=0)
    assert torch.equal(views(torch.zeros(2, 5)), torch.zeros(2, 5))


@pytest.mark.parametrize("scale", [(0, 1), (0.5, 0.2), (0.2, 1.1)])
def test_shares_of_the_area_that_make_no_sense_are_refused(scale):
    with pytest.raises(ValueError, match="expected the least and the largest share of the area"):
        views(tiny_inputs(2), scale=scale)

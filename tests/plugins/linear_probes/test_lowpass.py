"""The low pass: the reference's numbers, a transform written out, odd and oblong pictures, bounds, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import recipe
from reference import GOLDEN
from rt_core.views import low_frequencies
from rt_linear_probes import lowpass


def picture(size):
    """Of the golden numbers, 0..255: [1, 3, size, size]"""
    return torch.from_numpy(recipe.u8image(size, size).astype(np.float64)).permute(2, 0, 1)[None]


def in_order(filtered):
    """[1, 3, height, width] -> [height * width * 3], as the golden numbers are listed"""
    return filtered[0].permute(1, 2, 0).flatten()


def by_definition(inputs, radius):
    """Sum the kept waves one by one, in float64: [batch, channel, height, width] -> same shape, not clipped"""
    height, width = inputs.shape[2:]
    shorter, result = min(height, width), np.zeros(inputs.shape)
    rows, columns = np.arange(height), np.arange(width)
    for row in range(-(height // 2), height - height // 2):
        for column in range(-(width // 2), width - width // 2):
            if math.hypot(row * shorter / height, column * shorter / width) < radius:
                wave = np.exp(2j * np.pi * (row * rows[:, None] / height + column * columns / width))
                amount = (inputs.numpy() * wave.conj()).sum((2, 3), keepdims=True) / (height * width)
                result += (amount * wave).real
    return torch.from_numpy(result)


@pytest.mark.parametrize(("name", "size", "radius"), [("16r4", 16, 4), ("224r50", 224, 50)])
def test_it_keeps_what_the_reference_keeps(name, size, radius):
    golden = GOLDEN["lowpass"][name]
    assert low_frequencies(size, size, float(radius)).sum() == golden["mask_sum"]
    real = lowpass(picture(size), radius, bounds=(-1e9, 1e9))
    assert real.min().item() == pytest.approx(golden["hfc_low_min"], abs=1e-9)
    assert real.max().item() == pytest.approx(golden["hfc_low_max"], abs=1e-9)
    assert real.abs().sum().item() == pytest.approx(golden["hfc_real_low_sum_abs"], rel=1e-12)
    clipped = lowpass(picture(size), radius, bounds=(0, 255))
    assert clipped.round().sum() == golden["independent_right_u8_sum (real part, clip, round)"]
    mirrored = lowpass(picture(size), radius, bounds=(0, 255), reference_abs=True).floor()
    assert mirrored.sum() == golden["petrov_u8_sum"]
    assert ((mirrored - clipped).abs() > 1.001).any()
    if size == 16:
        torch.testing.assert_close(in_order(real), torch.tensor(golden["hfc_low"], dtype=torch.float64), rtol=0, atol=1e-8)
        assert in_order(mirrored).tolist() == golden["petrov_u8"]


@pytest.mark.parametrize("shape", [(7, 7), (8, 12), (12, 7), (1, 5)])
@pytest.mark.parametrize("radius", [0.5, 1.0, 2.3])
def test_it_is_the_sum_of_the_waves_below_the_radius(shape, radius):
    inputs = torch.rand(2, 3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    filtered = lowpass(inputs, radius, bounds=(-9, 9))
    torch.testing.assert_close(filtered, by_definition(inputs, radius), rtol=0, atol=1e-12)


def test_the_radius_is_strict_and_by_default_that_of_the_paper():
    assert low_frequencies(9, 9, 1.0).sum() == 1
    assert low_frequencies(9, 9, 1.0001).sum() == 5
    assert low_frequencies(9, 9, 5.0).sum() == sum(math.hypot(row, column) < 5 for row in range(-4, 5) for column in range(-4, 5))
    inputs = torch.rand(1, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lowpass(inputs), lowpass(inputs, 50.0))
    small = inputs[..., :16, :16]
    assert torch.equal(lowpass(small), lowpass(small, 50 / 112 * 8))


@given(st.integers(2, 9), st.integers(2, 9), st.floats(0.6, 6))
def test_an_oblong_picture_is_filtered_like_its_transpose(height, width, radius):
    inputs = torch.rand(1, 2, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    turned = lowpass(inputs.mT, radius).mT
    torch.testing.assert_close(lowpass(inputs, radius), turned, rtol=0, atol=1e-12)


def test_pictures_stay_in_their_bounds_and_flat_ones_as_they_are():
    inputs = (torch.rand(4, 3, 10, 10, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    assert lowpass(inputs, 3, bounds=(-9, 9)).min() < 0
    low, high = torch.tensor([0.2, 0.1, 0.0]).reshape(3, 1, 1), 1 / 3
    filtered = lowpass(inputs, 3, bounds=(low, high))
    assert (filtered >= low).all()
    assert (filtered.double() <= high).all()
    flat = torch.full((1, 1, 6, 5), 0.7)
    torch.testing.assert_close(lowpass(flat), flat)
    assert filtered.dtype == torch.float32
    assert torch.equal(filtered[2:], lowpass(inputs[2:], 3, bounds=(low, high)))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_half_precision_is_filtered_in_float32_and_given_back(dtype, digits):
    inputs = torch.rand(2, 3, 8, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    filtered = lowpass(inputs, 2, bounds=(0.1, 0.9))
    assert filtered.dtype == dtype
    assert filtered.double().min() >= 0.1
    assert filtered.double().max() <= 0.9
    torch.testing.assert_close(filtered.float(), lowpass(inputs.float(), 2, bounds=(0.1, 0.9)), rtol=0, atol=digits)


def test_it_is_differentiable():
    inputs = torch.full((1, 1, 5, 6), 0.5, dtype=torch.float64) + 0.01 * torch.rand(
        1, 1, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    assert torch.autograd.gradcheck(lambda moved: lowpass(moved, 2), inputs.requires_grad_())


@pytest.mark.parametrize(
    ("inputs", "radius", "words"),
    [
        (torch.zeros(2, 5), None, r"float32 of shape \[2, 5\]; a low pass is of pictures"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.uint8), None, "uint8 of shape"),
        (torch.zeros(1, 1, 4, 4), 0, "radius is 0; it must be positive"),
        (torch.zeros(1, 1, 4, 4), float("nan"), "radius is nan"),
    ],
)
def test_what_it_cannot_filter_is_refused(inputs, radius, words):
    with pytest.raises(ValueError, match=words):
        lowpass(inputs, radius)

"""Curves as a picture: steps where the numbers are, ticks that can be read, names that do not overlap."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_generator_perturbations import readings
from rt_generator_perturbations.readings import curve_plot

BLUE, ORANGE, EDGE = (0, 90, 160), (200, 80, 0), (150, 150, 150)


def curves_of(shares, magnitudes, encoder="a", attack="early", reading="raw"):
    shares = np.asarray(shares, dtype=float)
    about = {"encoder": encoder, "attack": attack, "reading": reading, "judged_by": "", "magnitude": magnitudes, "share": shares, "n": 10}
    return pd.DataFrame({**about, "low": (shares - 0.1).clip(0), "high": (shares + 0.1).clip(max=1)})


def panels(image):
    """Return the place of the left edge, and of the upper end, of each panel, found by its frame."""
    framed = (image == np.array(EDGE)).all(-1)
    columns = np.flatnonzero(framed.sum(0) > 60)
    return columns[::2], np.flatnonzero(framed[:, columns[0]])[0]


def looker(curves, pixels=100):
    image = np.asarray(curve_plot(curves, pixels=pixels)).astype(int)
    lefts, top = panels(image)

    def marked(across, share, color, panel=0):
        row, column = round(top + (1 - share) * pixels), round(lefts[panel] + across * pixels)
        return (abs(image[row - 2 : row + 3, column - 2 : column + 3] - np.array(color)).sum(-1) < 60).any()

    return marked


def test_a_curve_steps_where_it_was_read_and_holds_between():
    magnitudes = np.geomspace(0.1, 10, 5)
    marked = looker(pd.concat([curves_of([0.2, 0.4, 0.6, 0.8, 0.9], magnitudes), curves_of([0.0] * 5, magnitudes, "b")]))

    for place in range(1, 4):  # the ends lie under the frame
        share = 0.2 + 0.2 * place
        assert marked(place / 4, share, BLUE)  # what was read there
        assert marked(place / 4 + 0.2, share, BLUE)  # just before the next it is still that
        assert not marked(place / 4 + 0.125, share + 0.1, BLUE)  # where a ramp would be
        assert not marked(place / 4, share, ORANGE)
    assert marked(0.5, 0.0, ORANGE)


def test_a_single_magnitude_is_a_point_with_its_interval():
    marked = looker(curves_of([0.5], [0.3]))

    assert marked(0.5, 0.5, BLUE)
    assert marked(0.5, 0.6, BLUE)
    assert marked(0.5, 0.4, BLUE)
    assert not marked(0.5, 0.7, BLUE)


def test_each_group_has_a_panel_of_its_own():
    marked = looker(
        pd.concat([curves_of([0.7] * 3, [0.1, 1, 10]), curves_of([0.3] * 3, [0.1, 1, 10], attack="a group with a rather long name")])
    )

    assert marked(0.5, 0.7, BLUE)
    assert not marked(0.5, 0.3, BLUE)
    assert marked(0.5, 0.3, BLUE, panel=1)


def test_a_reading_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no curves of reading 'label-keeping'; there are 'raw'"):
        curve_plot(curves_of([0.5, 0.6], [0.1, 1]), reading="label-keeping")


@pytest.mark.parametrize(
    "names",
    [
        ["a"],
        ["standard", "robust"],
        ["a victim of a name that is rather long, " * 2, "another of a long name, " * 2, "c"],
        ["v" * 200, "w"],
    ],
    ids=["one", "two", "long", "longest"],
)
@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize("reading", ["raw", "label-keeping"])
def test_no_words_overlap_or_leave_the_picture(names, groups, reading, monkeypatch):
    boxes = []
    text = readings.ImageDraw.ImageDraw.text

    def noted(pen, place, words, **options):
        boxes.append((words, pen.textbbox(place, words, font=options["font"], anchor=options.get("anchor"))))
        return text(pen, place, words, **options)

    monkeypatch.setattr(readings.ImageDraw.ImageDraw, "text", noted)
    rows = [
        curves_of(np.linspace(0, 1, 25), np.geomspace(0.01, 5, 25), name, f"group {one}", reading)
        for name in names
        for one in range(groups)
    ]

    image = curve_plot(pd.concat(rows), reading=reading)

    said = [words for words, _ in boxes]
    assert {*names, "magnitude, standard deviations, log scale", "0.01", "0.1", "1", "5", "0%", "100%"} <= {*said}
    assert "read at 25 magnitudes" in said[0]
    assert reading in said[0]
    for place, (words, (left, top, right, bottom)) in enumerate(boxes):
        assert 0 <= left < right <= image.width, words
        assert 0 <= top < bottom <= image.height, words
        for other, (left2, top2, right2, bottom2) in boxes[:place]:
            assert right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top, (words, other)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.01, 5, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]),
        (0.03, 0.6, [0.05, 0.1, 0.2, 0.5]),
        (0.1123456, 0.19, [0.112, 0.19]),
        (0.3, 0.3, [0.3]),
        (0.001, 1000, [0.001, 0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, ticks):
    assert readings._ticks(low, high) == pytest.approx(ticks)


@given(low=st.floats(-5, 3), wide=st.floats(0, 6))
def test_ticks_are_few_and_in_order_whatever_the_range(low, wide):
    ticks = readings._ticks(10**low, 10 ** (low + wide))

    assert ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 11
    assert 0.99 * 10**low <= ticks[0]
    assert ticks[-1] <= 1.01 * 10 ** (low + wide)

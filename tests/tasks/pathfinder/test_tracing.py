"""Tests of markers and labels inferred from Pathfinder pictures, generated and of the original generator."""

import numpy as np
import pytest

from lra_bench.tasks.pathfinder.drawing import LABEL, ORIGIN_X, ORIGIN_Y, TERMINAL_X, TERMINAL_Y
from lra_bench.tasks.pathfinder.generation import draw_pictures
from lra_bench.tasks.pathfinder.markers import find_markers
from lra_bench.tasks.pathfinder.parameters import published
from lra_bench.tasks.pathfinder.tracing import trace
from tests.support.pathfinder_originals import originals

SETS = [
    (32, "hard", 400),
    (32, "intermediate", 400),
    (32, "easy", 400),
    (64, "easy", 100),
    (128, "hard", 80),
    (256, "hard", 60),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("resolution", "difficulty", "count"), SETS)
def test_markers_and_labels_are_inferred(resolution, difficulty, count):
    p = published(resolution, difficulty)
    drawn = draw_pictures(p, seed=2, first=0, count=count)
    origin, terminal = drawn.about[:, [ORIGIN_Y, ORIGIN_X]], drawn.about[:, [TERMINAL_Y, TERMINAL_X]]
    expected = [sorted(ends) for ends in np.stack([origin, terminal], axis=1).tolist()]
    correct = [ends == target for ends, target in zip(find_markers(drawn.pixels, p).tolist(), expected, strict=True)]
    assert np.mean(correct) >= 0.995
    assert (trace(drawn.pixels, p) == drawn.about[:, LABEL]).mean() >= 0.97


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("resolution", "difficulty"), [(32, "hard"), (32, "intermediate"), (32, "easy"), (128, "hard")]
)
def test_labels_of_the_original_are_inferred(shared_data, resolution, difficulty):
    pixels, labels, _ = originals(shared_data, resolution, difficulty)
    assert (trace(pixels, published(resolution, difficulty)) == labels).mean() >= 0.97


def test_contour_with_an_erased_paddle_is_not_found():
    p = published(128, "easy")
    drawn = draw_pictures(p, seed=4, first=0, count=30)
    joined = drawn.about[:, LABEL] == 1
    erased = drawn.pixels.copy()
    for picture, ends in zip(erased, find_markers(drawn.pixels, p), strict=True):
        y, x = np.mgrid[:128, :128]
        distance = np.min([np.hypot(y - end[0], x - end[1]) for end in ends], axis=0)
        picture[(distance > 8) & (distance < 16)] = 0
    assert trace(drawn.pixels, p)[joined].all()
    assert not trace(erased, p).any()


def test_no_contour_is_found_in_black_pictures():
    p = published(32, "hard")
    assert not trace(np.zeros((3, 32, 32), dtype=np.uint8), p).any()

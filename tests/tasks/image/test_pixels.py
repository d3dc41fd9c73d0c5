"""Tests of grey conversion, tokens and resizing against independent computations."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image as Pillow

from lra_bench.tasks.image.lengths import lengthened, noise_of, resized, size_of
from lra_bench.tasks.image.pixels import grey, to_pictures, to_tokens, to_values

# sha256 of the intensities of all colours, red slowest, from TensorFlow 2.21 (tf.image.rgb_to_grayscale on uint8).
TENSORFLOW_SHA256 = "824a76d81dad2c5a2cf1fa0b2c0a5afe7d871ec2970e4fa2809b53ddbecdca93"

pictures = arrays(np.uint8, st.tuples(st.integers(1, 3), st.just(32), st.just(32)))


@pytest.fixture(scope="module")
def every_grey():
    """Compute the intensity of every colour, (256, 256, 256)."""
    green_and_blue = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2, indexing="ij"), axis=-1)
    planes = np.zeros((256, 256, 256), dtype=np.uint8)
    for red in range(256):
        colours = np.concatenate([np.full((256, 256, 1), red, dtype=np.uint8), green_and_blue], axis=-1)
        planes[red] = grey(colours)
    return planes


def test_grey_equals_tensorflow_for_every_colour(every_grey):
    assert hashlib.sha256(every_grey.tobytes()).hexdigest() == TENSORFLOW_SHA256


def test_grey_differs_from_exact_luma_only_by_single_precision_rounding(every_grey):
    red, green, blue = np.ogrid[:256, :256, :256]
    # The luma times 255.5 / 255, in integers.
    exact = (2989 * red + 5870 * green + 1140 * blue) * 511
    differs = np.flatnonzero(exact // 5_100_000 != every_grey)
    assert len(differs) == 237
    beyond = exact.ravel()[differs] % 5_100_000 / 5_100_000
    assert np.minimum(beyond, 1 - beyond).max() < 5e-5


@given(pictures)
@settings(max_examples=30, deadline=None)
def test_tokens_and_values_round_trip_to_the_picture(picture):
    tokens = to_tokens(picture)
    assert tokens[0, 33] == picture[0, 1, 1] and tokens.shape == (len(picture), 1024)
    assert np.array_equal(to_pictures(tokens), picture)
    assert np.array_equal(to_pictures(to_values(tokens)), picture)


def test_values_are_normalised_as_in_s4():
    assert to_values(np.array([0, 255], dtype=np.uint8)).tolist() == pytest.approx([-122.6 / 61, (255 - 122.6) / 61])


@given(pictures, st.sampled_from([1, 8, 16, 20, 24]))
@settings(max_examples=20, deadline=None)
def test_downscaling_averages_by_area(picture, side):
    fine = math.lcm(32, side)  # a size at which pixels of both sizes consist of complete pixels
    drawn = picture.astype(np.int64).repeat(fine // 32, axis=1).repeat(fine // 32, axis=2)
    cells = drawn.reshape(len(picture), side, fine // side, side, fine // side)
    sums, area = cells.sum(axis=(2, 4)), (fine // side) ** 2
    assert np.array_equal(resized(picture, side, side), (2 * sums + area) // (2 * area))


@given(pictures, st.sampled_from([33, 48, 64, 96]))
@settings(max_examples=20, deadline=None)
def test_upscaling_is_bilinear(picture, side):
    for before, after in zip(picture, resized(picture, side, side), strict=True):
        by_pillow = np.asarray(Pillow.fromarray(before).resize((side, side), Pillow.Resampling.BILINEAR)).astype(int)
        assert np.abs(after.astype(int) - by_pillow).max() <= 1


def test_sums_are_exact_and_halves_are_rounded_up():
    picture = np.zeros((1, 32, 32), dtype=np.uint8)
    picture[0, 0, :2] = 1, 1
    assert resized(picture, 16, 16)[0, 0, 0] == 1  # two quarters
    picture[0, :2, :3] = [[7, 50, 30], [90, 11, 0]]
    part = Fraction(2, 3)  # part of the second pixel in the first of 24 columns, each of which is a third wider
    wide = [Fraction(3, 4) * (row[0] + part / 2 * row[1]) for row in picture[0, :2, :2].astype(int).tolist()]
    expected = Fraction(3, 4) * (wide[0] + part / 2 * wide[1])
    assert resized(picture, 24, 24)[0, 0, 0] == int(expected + Fraction(1, 2))


@given(pictures, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_canvas_contains_the_picture(picture, more, seed):
    length = 1024 + 256 * more
    noise = noise_of(picture)
    (canvas,) = lengthened(picture, length, "canvas", noise, (seed,))
    assert canvas.shape == (len(picture), 32 + 8 * more, 32)
    for small, tall in zip(picture, canvas, strict=True):
        assert any(np.array_equal(tall[top : top + 32], small) for top in range(8 * more + 1))
    (again,) = lengthened(picture, length, "canvas", noise, (seed,))
    assert np.array_equal(again, canvas)


def test_canvases_use_every_height_and_the_intensities_of_train():
    generator = np.random.default_rng(0)
    train = (generator.random((50, 32, 32)) ** 3 * 255).astype(np.uint8)
    noise = noise_of(train)
    shares = np.bincount(train.ravel(), minlength=256) / train.size
    assert np.abs(np.bincount(noise, minlength=256) / len(noise) - shares).max() < 1e-4
    black = np.zeros((3000, 32, 32), dtype=np.uint8)
    canvases = np.concatenate(list(lengthened(black, 40 * 32, "canvas", noise[noise > 0], (1,))))
    tops = (canvases.max(axis=2) == 0).argmax(axis=1)
    counts = np.bincount(tops, minlength=9)
    assert len(counts) == 9 and np.abs(counts / 3000 - 1 / 9).max() < 5 * np.sqrt(1 / 9 * 8 / 9 / 3000)
    drawn = canvases[canvases > 0]
    assert abs(drawn.mean() - noise[noise > 0].mean()) < 0.5


def test_size_of_length():
    assert size_of(1024, "canvas") == (32, 32) and size_of(1056, "canvas") == (33, 32)
    assert size_of(2304, "resolution") == (48, 48) and size_of(256, "resolution") == (16, 16)
    assert size_of(256, "canvas", 16) == (16, 16) and size_of(272, "canvas", 16) == (17, 16)
    assert "16 pixels wide" in size_of(240, "canvas", 16) and "at least 256" in size_of(264, "canvas", 16)
    for length, variant in [(992, "canvas"), (1040, "canvas"), (2048, "resolution"), (0, "resolution")]:
        assert isinstance(size_of(length, variant), str)
        with pytest.raises(ValueError):
            next(lengthened(np.zeros((1, 32, 32), dtype=np.uint8), length, variant, np.zeros(1, np.uint8), (0,)))

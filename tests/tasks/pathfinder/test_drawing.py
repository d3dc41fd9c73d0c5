"""Tests of compiled Pathfinder drawing against a plain Python port: complete pictures and single parts."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.tasks.pathfinder.cells import TAKEN, find_free, mark_taken, nth_free
from lra_bench.tasks.pathfinder.drawing import ATTEMPTS, FIRST_X, FIRST_Y
from lra_bench.tasks.pathfinder.generation import draw_pictures, pictures
from lra_bench.tasks.pathfinder.parameters import CONTOUR_LENGTHS, RESOLUTIONS, published
from lra_bench.tasks.pathfinder.stamps import COLLISION, LINE, MASK, tables
from tests.oracles.pathfinder import Drawer, opposite_of_outward

SETS = [(resolution, margin) for resolution in RESOLUTIONS for margin in published(resolution, "hard").margins]


def make_drawer(resolution, margin, border_rule=True):
    drawer = Drawer(published(resolution, "hard"), seed=0, number=0, border_rule=border_rule)
    drawer.margin = margin
    return drawer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resolution", "difficulty", "count"),
    [(32, "hard", 4), (32, "intermediate", 4), (32, "easy", 8), (64, "easy", 2), (128, "easy", 2), (256, "easy", 1)],
)
def test_pictures_equal_those_of_the_port(resolution, difficulty, count):
    p = published(resolution, difficulty)
    drawn = draw_pictures(p, seed=3, first=7, count=count)
    for row in range(count):
        picture, about = Drawer(p, seed=3, number=7 + row).draw()
        assert about == drawn.about[row].tolist()
        np.testing.assert_array_equal(picture, drawn.pixels[row])


def test_pictures_without_the_border_rule_equal_those_of_the_port():
    p = published(32, "easy")
    drawn = draw_pictures(p, seed=0, first=0, count=8, border_rule=False)
    for row in range(8):
        picture, about = Drawer(p, seed=0, number=row, border_rule=False).draw()
        assert about == drawn.about[row].tolist()
        np.testing.assert_array_equal(picture, drawn.pixels[row])


# Computed with the original (drewlinsley/pathfinder, commit ab9c130, with OpenCV 5.0 and Pillow 13, and with
# scipy.misc.imresize and imsave rewritten from their documentation), changed to use the random numbers of this
# implementation: both gave the same pictures, byte for byte. If a digest changes, the task needs a new version.
DIGESTS = {
    (32, "hard"): "efad245b19b85223",
    (32, "intermediate"): "94ab0572dc077b6a",
    (32, "easy"): "ca466e0f8db2677f",
    (64, "easy"): "72cbcf53b3a3760e",
    (128, "easy"): "82f4fa65fda5f2c5",
    (256, "hard"): "e196a3b8d99313c2",
}


@pytest.mark.parametrize(("resolution", "difficulty"), DIGESTS)
def test_pictures_equal_those_of_the_original(resolution, difficulty):
    drawn = draw_pictures(published(resolution, difficulty), seed=0, first=0, count=6)
    assert hashlib.sha256(drawn.pixels.tobytes()).hexdigest()[:16] == DIGESTS[resolution, difficulty]


def test_picture_depends_only_on_seed_and_number():
    p = published(32, "easy")
    sequential = draw_pictures(p, seed=5, first=0, count=600)
    for workers in (1, 3):
        parts = list(pictures(p, 5, 0, 600, workers=workers))
        assert len(parts) > 1
        np.testing.assert_array_equal(np.concatenate([part.pixels for part in parts]), sequential.pixels)
        np.testing.assert_array_equal(np.concatenate([part.about for part in parts]), sequential.about)
    np.testing.assert_array_equal(draw_pictures(p, 5, 599, 1).pixels[0], sequential.pixels[599])
    assert len({picture.tobytes() for picture in sequential.pixels}) == 600
    assert not (draw_pictures(p, 6, 0, 20).pixels == sequential.pixels[:20]).all(axis=(1, 2)).any()


@pytest.mark.slow
def test_usable_directions_equal_those_of_the_original():
    at_32 = np.flatnonzero(tables(published(32, "hard"), 1).usable) - 180
    assert at_32.tolist() == list(range(-150, -120))
    counts = {
        (resolution, margin): tables(published(resolution, "hard"), margin).usable.sum() for resolution, margin in SETS
    }
    assert counts == {(32, 1): 30, (64, 1): 95, (128, 2): 354, (128, 3): 360, (256, 3): 360}
    assert tables(published(32, "hard"), 1, border_rule=False).usable.all()


@pytest.mark.parametrize("border_rule", [True, False])
@pytest.mark.parametrize(("resolution", "margin", "every"), [(32, 1, 1), (64, 1, 7), (128, 2, 31)])
def test_first_starts_equal_the_free_cells_of_the_port(resolution, margin, every, border_rule):
    t, plain = tables(published(resolution, "hard"), margin, border_rule), make_drawer(resolution, margin, border_rule)
    empty = plain.framed(np.zeros((resolution, resolution)), 2 * plain.p.seed_distance)
    for direction in range(0, 360, every):
        free = plain.free_cells(empty, (direction - 180) * np.pi / 180)
        assert t.start_counts[direction] == len(free)
        found = [nth_free(t.starts[direction], number) for number in range(len(free))]
        assert found == [tuple(cell) for cell in free]


@pytest.mark.parametrize(("resolution", "margin"), SETS)
def test_stamps_equal_paddles_drawn_by_the_port(resolution, margin):
    t, plain = tables(published(resolution, "hard"), margin), make_drawer(resolution, margin)
    half = t.stamps.shape[2] // 2
    outward = np.arctan2(*t.candidates.T)
    angles = [(degree - 180) * np.pi / 180 for degree in range(360)] + [opposite_of_outward(angle) for angle in outward]
    for number in range(0, len(angles), 3):
        line, mask = plain.paddle((half, half), angles[number], size=2 * half + 1)
        np.testing.assert_array_equal(t.stamps[LINE, number], np.rint(line * 255))
        np.testing.assert_array_equal(t.stamps[MASK, number], np.rint(mask * 255))


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_markers_equal_discs_drawn_on_a_complete_picture(resolution):
    from lra_bench.tasks.pathfinder.drawing import _paste_marker

    plain, t = (
        make_drawer(resolution, 1),
        tables(published(resolution, "hard"), published(resolution, "hard").margins[0]),
    )
    edge = [0, 1, 2, 5, 7, 9, 11, resolution // 2]
    places = sorted({*edge, *(resolution - 1 - place for place in edge)})
    for y, x in zip(places, np.random.default_rng(0).permutation(places), strict=True):
        discs = np.zeros((resolution, resolution), dtype=np.uint8)
        _paste_marker(t.markers, np.array([0, y, x]), discs)
        np.testing.assert_array_equal(discs, np.rint(plain.marker((y, x)) * 255))


def test_masks_collide_from_1_8_in_single_precision():
    values = (np.arange(256) / 255).astype(np.float32).astype(np.float64)
    collides = values[:, None] + values >= 1.8
    assert (collides == (np.add.outer(np.arange(256), np.arange(256)) >= COLLISION)).all()


@pytest.mark.parametrize(("resolution", "margin"), SETS)
def test_paddles_cover_their_start_and_start_inside_the_picture(resolution, margin):
    t = tables(published(resolution, "hard"), margin)
    centre, distance = t.stamps.shape[2] // 2, published(resolution, "hard").seed_distance
    assert (t.boxes[..., [0, 2]] <= centre).all()
    assert (t.boxes[..., [1, 3]] > centre).all()
    starts = [nth_free(t.starts[d], n) for d in np.flatnonzero(t.usable) for n in (0, t.start_counts[d] - 1)]
    assert np.min(starts) - distance >= 0
    assert np.max(starts) + distance < resolution


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([8, 32, 64, 70, 128, 130]),
    offsets=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=12),
    share=st.floats(0, 0.5),
    seed=st.integers(0, 2**32),
)
def test_free_cells_equal_those_of_a_loop_over_pixels(size, offsets, share, seed):
    generator = np.random.default_rng(seed)
    mask = np.where(generator.random((size, size)) < share, generator.integers(0, 256, (size, size)), 0).astype(
        np.uint8
    )
    bits = np.empty((size, -(-size // 64)), dtype=np.uint64)
    free = np.empty_like(bits)
    assert mark_taken(mask, bits) == (mask < TAKEN).sum()
    expected = np.ones((size, size), dtype=bool)
    for down, right in offsets:
        for y in range(max(0, -down), min(size, size - down)):
            for x in range(max(0, -right), min(size, size - right)):
                expected[y, x] &= mask[y + down, x + right] / 255 <= 0.3
    cells = [tuple(cell) for cell in np.argwhere(expected).tolist()]
    assert find_free(bits, np.array(offsets), free) == len(cells)
    for number in {0, len(cells) // 3, len(cells) - 1} if cells else ():
        assert nth_free(free, number) == cells[number]


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_candidate_offsets_do_not_depend_on_the_pivot(resolution):
    p = published(resolution, "hard")
    for margin in p.margins:
        radius = p.length + margin
        angles = np.arange(np.ceil(2 * np.pi * radius)) / radius
        for offsets in (radius * np.sin(angles), radius * np.cos(angles)):
            for pivot in range(resolution):
                inside = offsets + pivot >= 0
                np.testing.assert_array_equal(np.trunc(offsets + pivot)[inside], (np.floor(offsets) + pivot)[inside])


def test_border_rule_restricts_the_first_start_to_the_centre_at_32_pixels():
    p = published(32, "hard")
    restricted = draw_pictures(p, 0, 0, 200).about
    assert restricted[:, [FIRST_Y, FIRST_X]].min() == 14
    assert restricted[:, [FIRST_Y, FIRST_X]].max() == 16
    unrestricted = draw_pictures(p, 0, 0, 200, border_rule=False).about
    assert unrestricted[:, [FIRST_Y, FIRST_X]].min() < 14
    assert unrestricted[:, [FIRST_Y, FIRST_X]].max() == 31
    assert unrestricted[:, ATTEMPTS].mean() < restricted[:, ATTEMPTS].mean() / 3


def test_every_picture_has_intensities_from_0_to_255():
    for resolution in RESOLUTIONS:
        pixels = draw_pictures(published(resolution, "easy"), 1, 0, 5).pixels
        assert (pixels.min(axis=(1, 2)) == 0).all()
        assert (pixels.max(axis=(1, 2)) == 255).all()


def test_published_numbers_of_distractors():
    numbers = {
        (resolution, difficulty): (
            published(resolution, difficulty).distractors,
            published(resolution, difficulty).distractor_length,
        )
        for resolution in RESOLUTIONS
        for difficulty in CONTOUR_LENGTHS
    }
    assert [numbers[resolution, "hard"] for resolution in RESOLUTIONS] == [(5, 4), (5, 4), (8, 4), (7, 4)]
    assert [numbers[32, difficulty] for difficulty in ("easy", "intermediate")] == [(10, 2), (6, 3)]


def test_unpublished_sets_are_refused():
    with pytest.raises(UserError, match=r"task\.resolution=48: .* 32, 64, 128, 256"):
        published(48, "hard")
    with pytest.raises(UserError, match=r"task\.difficulty=mad: .* easy, intermediate, hard"):
        published(32, "mad")

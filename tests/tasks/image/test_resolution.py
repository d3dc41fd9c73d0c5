"""Tests of the option ``resolution`` of the image task: pictures averaged down before anything else."""

import numpy as np
import pytest

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.columns import numbers
from lra_bench.data.examples import content_sha256
from lra_bench.tasks.image.lengths import resized
from lra_bench.tasks.image.pixels import to_pictures, to_values
from lra_bench.tasks.image.rows import rows_of
from lra_bench.tasks.image.task import Image
from tests.support.cifar_files import SPLITS, World, digests, prepared, write_batches

VALUES = {"tokens": lambda tokens: tokens, "linear": to_values}


def pictures_of(task, name="test"):
    return to_pictures(rows_of(task.split(name)), task.spec.grid[1])


def checkered(world):
    """Alternate black and white pixels, so that all averages of 2 x 2 pixels are equal."""
    world.colours[:] = 255 * (np.indices((32, 32)).sum(axis=0) % 2)[..., None]
    return world


def magnified(world):
    """Double each pixel, so that pictures of 16 x 16 pixels have all intensities."""
    world.colours = world.colours[:, ::2, ::2].repeat(2, axis=1).repeat(2, axis=2)
    return world


@pytest.mark.parametrize("input", VALUES)
@pytest.mark.parametrize("side", [8, 16, 21, 31])
def test_pictures_are_averaged_down_from_the_original_ones(side, input, tmp_path):
    root = write_batches(World(), tmp_path / "data")
    original, task = prepared(root, tmp_path), prepared(root, tmp_path, resolution=side, input=input)
    assert (task.spec.train_length, task.spec.grid) == (side * side, (side, side))
    for name in SPLITS:
        expected = resized(pictures_of(original, name), side, side).reshape(-1, side * side)
        assert np.array_equal(rows_of(task.split(name)), VALUES[input](expected))
        assert set(numbers(task.split(name), "length").tolist()) == {side * side}
        assert np.array_equal(numbers(task.split(name), "target"), numbers(original.split(name), "target"))
    batch = Rows(task.split("test"), task.spec).batch([0, 1])
    assert (batch.tokens if input == "tokens" else batch.values[..., 0]).shape == (2, side * side)
    assert task.split("test", side * side, "resolution") is task.split("test")


def test_default_resolution_changes_neither_pictures_nor_fingerprint(tmp_path):
    root = write_batches(World(), tmp_path / "data")
    default, given, other = (prepared(root, tmp_path, **each) for each in ({}, {"resolution": 32}, {"resolution": 16}))
    assert given.fingerprint() == default.fingerprint() != other.fingerprint()
    assert digests(given) == digests(default)
    assert Image(resolution=32).fingerprint() == Image().fingerprint() != Image(resolution=16).fingerprint()


@pytest.mark.parametrize("input", VALUES)
def test_other_resolutions_are_made_from_the_original_pictures(input, tmp_path):
    root = write_batches(World(), tmp_path / "data")
    pictures = pictures_of(prepared(root, tmp_path))[:20]
    task = prepared(root, tmp_path, resolution=16, input=input, extrapolation_rows=20)
    for side in (8, 24, 32, 48):
        rows = rows_of(task.split("test", side * side, "resolution"))
        assert np.array_equal(to_pictures(rows, side), resized(pictures, side, side))
        assert task.supports_length(side * side, "resolution") is None


def test_canvases_have_the_width_and_contain_the_pictures_of_the_resolution(tmp_path):
    task = prepared(write_batches(World(), tmp_path / "data"), tmp_path, resolution=16, extrapolation_rows=20)
    tall = to_pictures(rows_of(task.split("test", 1024, "canvas")), 16)
    assert tall.shape == (20, 64, 16)
    for picture, canvas in zip(pictures_of(task), tall, strict=False):
        assert any(np.array_equal(canvas[top : top + 16], picture) for top in range(49))
    assert content_sha256(task.split("test", 1024)) == content_sha256(task.split("test", 1024, "canvas"))
    assert "16" in task.supports_length(64, "canvas") and task.supports_length(272, "canvas") is None
    with pytest.raises(UserError, match="length 264 is not possible"):
        task.split("test", 264)


def test_noise_of_canvases_has_the_intensities_of_the_averaged_pictures(tmp_path):
    task = prepared(write_batches(checkered(World()), tmp_path / "data"), tmp_path, resolution=16)
    assert set(rows_of(task.split("test", 1024, "canvas")).ravel().tolist()) == {128}


def test_floors_are_fitted_on_the_averaged_pictures(tmp_path, monkeypatch):
    task = prepared(write_batches(World(), tmp_path / "data"), tmp_path, resolution=16, extrapolation_rows=10)
    fitted = []

    def note(train, rows, advance):
        fitted.append((train, rows))
        return {"majority": np.ones(len(rows.labels))}

    monkeypatch.setattr("lra_bench.tasks.image.floors.correct_rows", note)
    for length, variant in ((None, None), (1024, "canvas"), (1024, "resolution"), (64, "resolution")):
        task.floors("test", length, variant)
    assert [(len(train.labels), len(rows.labels)) for train, rows in fitted] == [(54, 30), *[(54, 10)] * 3]
    assert [train.pixels.shape[1] for train, _ in fitted] == [256, 256, 256, 64]
    assert [train.histograms[0].sum() for train, _ in fitted] == [256, 1024, 1024, 64]
    assert np.array_equal(fitted[0][0].pixels, rows_of(task.split("train")))


def test_check_counts_duplicates_among_the_averaged_pictures(tmp_path):
    valid = prepared(write_batches(magnified(World()), tmp_path / "valid"), tmp_path, resolution=16)
    for name in SPLITS:
        valid.check(name)
    world = magnified(World())
    world.colours[-1] = world.colours[-2]
    world.colours[-1, 0, 0], world.colours[-1, 1, 0] = 90, 110
    world.colours[-2, 0, 0], world.colours[-2, 1, 0] = 110, 90
    root = write_batches(world, tmp_path / "equal")
    prepared(root, tmp_path).check("test")
    with pytest.raises(UserError, match="1 rows occur again in the split itself"):
        prepared(root, tmp_path, resolution=16).check("test")


def test_real_pictures_of_a_lower_resolution_pass_the_checks_and_keep_their_floors(shared_data, tmp_path):
    task = prepared(shared_data / "cifar10", tmp_path, resolution=16, input="linear")
    for name in SPLITS:
        task.check(name)
    values = rows_of(task.split("train"))
    assert abs(values.mean()) < 0.03 and 0.94 < values.std() < 0.99
    floors = task.floors("test")
    assert 0.21 < floors["linear_pixels"] < 0.32 and 0.12 < floors["bag_of_pixels"] < 0.21

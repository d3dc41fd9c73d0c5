"""Tests of the image task: splits, other lengths, floors and checks."""

import numpy as np
import pytest

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.columns import numbers
from lra_bench.data.examples import content_sha256, digests_of
from lra_bench.tasks.image import files
from lra_bench.tasks.image.checks import check_pictures
from lra_bench.tasks.image.floors import correct_rows, features
from lra_bench.tasks.image.pixels import to_pictures
from lra_bench.tasks.image.rows import rows_of, tables
from lra_bench.tasks.image.task import Image
from tests.support.cifar_files import SPLITS, World, digests, prepared, write_batches, write_tables


def test_splits_are_reproducible_stratified_and_disjoint(tmp_path):
    root = write_batches(World(train=400, test=30), tmp_path / "data")
    task = prepared(root, tmp_path)
    for name, each in (("train", 36), ("validation", 4), ("test", 3)):
        assert np.bincount(numbers(task.split(name), "target")).tolist() == [each] * 10
    found = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*found)) == 430
    assert digests(task) == digests(prepared(root, tmp_path))
    assert digests(task)[:2] != digests(prepared(root, tmp_path, seed=1))[:2]
    assert digests(task)[2] == digests(prepared(root, tmp_path, seed=1))[2]


def test_fewer_rows_are_the_first_ones_with_balanced_classes(tmp_path):
    root = write_batches(World(train=400, test=40), tmp_path / "data")
    whole, few = prepared(root, tmp_path), prepared(root, tmp_path, rows={"train": 60, "test": 20})
    assert np.array_equal(rows_of(few.split("train")), rows_of(whole.split("train"))[:60])
    assert np.bincount(numbers(few.split("test"), "target")).tolist() == [2] * 10
    assert len(few.split("validation")) == 40
    assert few.fingerprint() != whole.fingerprint()
    assert "only 60 train rows, only 20 test rows" in few.provenance().partial


def test_partial_and_lossy_data_need_allow_partial_and_are_recorded(tmp_path):
    partial = write_batches(World(), tmp_path / "data")
    with pytest.raises(UserError, match=r"60 of 50,000 train pictures .* task\.allow_partial=true"):
        prepared(partial, tmp_path, allow_partial=False)
    task = prepared(partial, tmp_path)
    assert "60 of 50,000 train pictures and 30 of 10,000 test pictures" in task.provenance().partial
    lossy = prepared(write_tables(World(), tmp_path / "jpeg", "JPEG", "jpeg"), tmp_path).provenance()
    assert "JPEG" in lossy.lossy and lossy.partial
    assert set(lossy.checksums) == set(SPLITS) and "Krizhevsky" in lossy.citation


def test_linear_input_contains_the_same_pictures(tmp_path):
    root = write_batches(World(), tmp_path / "data")
    tokens, linear = prepared(root, tmp_path), prepared(root, tmp_path, input="linear")
    for name in SPLITS:
        values = rows_of(linear.split(name))
        assert values.dtype == np.float32
        assert np.array_equal(to_pictures(values), to_pictures(rows_of(tokens.split(name))))
        linear.check(name)
    batch = Rows(linear.split("test"), linear.spec).batch([0, 1])
    assert batch.tokens is None and batch.values.shape == (2, 1024, 1) and linear.spec.channels == 1
    assert Rows(tokens.split("test"), tokens.spec).batch([0]).tokens.shape == (1, 1024)
    assert linear.fingerprint() != tokens.fingerprint()
    assert linear.floors("test") == tokens.floors("test")


def test_prepared_pictures_are_not_read_again(tmp_path, monkeypatch):
    root = write_batches(World(), tmp_path / "data")
    first = digests(prepared(root, tmp_path))
    monkeypatch.setattr(files, "read_batches", None)
    assert digests(prepared(root, tmp_path)) == first


def test_other_lengths_contain_the_first_pictures_of_the_split(tmp_path):
    task = prepared(write_batches(World(), tmp_path / "data"), tmp_path, extrapolation_rows=20)
    pictures = to_pictures(rows_of(task.split("test")))[:20]
    for length in (1056, 2048):
        longer = task.split("test", length, "canvas")
        assert numbers(longer, "length").tolist() == [length] * 20
        assert numbers(longer, "target").tolist() == numbers(task.split("test"), "target")[:20].tolist()
        for small, tall in zip(pictures, to_pictures(rows_of(longer)), strict=True):
            assert any(np.array_equal(tall[top : top + 32], small) for top in range(length // 32 - 31))
    assert rows_of(task.split("validation", 256, "resolution")).shape == (6, 256)
    assert task.split("test", 1024, "resolution") is task.split("test")
    assert content_sha256(task.split("test", 2048)) == content_sha256(task.split("test", 2048, "canvas"))
    linear = prepared(tmp_path / "data", tmp_path, extrapolation_rows=20, input="linear")
    squares = to_pictures(rows_of(linear.split("test", 4096, "resolution")), 64)
    assert np.array_equal(squares, to_pictures(rows_of(task.split("test", 4096, "resolution")), 64))


def test_impossible_lengths_are_refused(tmp_path):
    task = prepared(write_batches(World(), tmp_path / "data"), tmp_path)
    assert "32" in task.supports_length(512) and "square" in task.supports_length(2048, "resolution")
    assert task.supports_length(2048) is task.supports_length(4096, "resolution") is task.supports_length(1024) is None
    with pytest.raises(UserError, match="length 512 is not possible"):
        task.split("test", 512)
    with pytest.raises(ValueError):
        task.split("test", 2048, "tiled")
    with pytest.raises(ValueError):
        task.split("exam")


@pytest.mark.slow
def test_floors_distinguish_brightness_from_shape():
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 10
    bright = np.clip(generator.normal(labels[:, None, None] * 20 + 30, 3, (600, 32, 32)), 0, 255).astype(np.uint8)
    shaped = np.full((600, 32, 32), 50, dtype=np.uint8)
    shaped[np.arange(600), labels * 3] = 200
    for pictures, low, high in ((bright, None, "bag_of_pixels"), (shaped, "bag_of_pixels", "linear_pixels")):
        train = features([pictures[:200], pictures[200:400]], labels[:400], lambda rows: None)
        test = features([pictures[400:]], labels[400:], lambda rows: None)
        found = {name: correct.mean() for name, correct in correct_rows(train, test, lambda rows: None).items()}
        assert found["majority"] == 0.1 and found[high] > 0.95
        assert low is None or found[low] == 0.1
        assert found["nearest_pictures"] > (0.95 if low else 0)


def test_nearest_pictures_equal_a_search_in_float64():
    generator = np.random.default_rng(3)
    centres = generator.integers(0, 256, (10, 8, 8))
    labels = np.arange(260) % 10
    noisy = centres[labels] + generator.normal(0, 150, (260, 8, 8))
    pictures = np.clip(noisy, 0, 255).astype(np.uint8)
    train, test = (
        features([pictures[part]], labels[part], lambda rows: None, 8) for part in (slice(0, 200), slice(200, None))
    )
    found = correct_rows(train, test, lambda rows: None)["nearest_pictures"]
    rows = pictures.reshape(260, -1).astype(np.float64)
    rows = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    distances = ((rows[200:, None] - rows[None, :200]) ** 2).sum(2)
    nearest = labels[np.argsort(distances, axis=1)[:, :10]]
    votes = np.array([np.bincount(row, minlength=10).argmax() for row in nearest])
    assert np.array_equal(found, votes == labels[200:]) and 0.2 < found.mean() < 1


def test_histograms_count_every_pixel_and_large_pictures_are_downscaled():
    pictures = np.random.default_rng(1).integers(0, 256, (3, 48, 32), dtype=np.uint8)
    found = features([pictures], np.zeros(3, dtype=np.int64), lambda rows: None)
    assert np.array_equal(found.histograms[1], np.bincount(pictures[1].ravel(), minlength=256))
    assert found.pixels.shape == (3, 1024)
    assert features([pictures[:, :16, :16]], np.zeros(3, dtype=np.int64), lambda rows: None).pixels.shape == (3, 256)


def test_floors_of_another_length_are_fitted_on_all_of_train_and_cached(tmp_path, monkeypatch):
    task = prepared(write_batches(World(), tmp_path / "data"), tmp_path, extrapolation_rows=10)
    calls = []

    def note(train, rows, advance):
        calls.append((len(train.labels), len(rows.labels), train.pixels.shape[1]))
        return {"majority": np.ones(len(rows.labels)), "linear_pixels": np.full(len(rows.labels), 0.25)}

    monkeypatch.setattr("lra_bench.tasks.image.floors.correct_rows", note)
    for _ in range(2):
        assert task.floors("test", 2048)["linear_pixels"] == 0.25
        task.floors("test", 256, "resolution")
        task.floors("test")
    assert calls == [(54, 10, 1024), (54, 10, 256), (54, 30, 1024)]


def as_dataset(pictures, labels):
    import datasets

    (table,) = tables([pictures], labels, False, lambda rows: None)
    return datasets.Dataset(table)


def test_checks_accept_valid_pictures_and_name_faults():
    generator = np.random.default_rng(0)
    pictures, labels = generator.integers(0, 256, (200, 32, 32), dtype=np.uint8), np.arange(200) % 10
    good, other = as_dataset(pictures, labels), as_dataset(pictures[::-1] // 2, labels)
    check_pictures(good, "image test", 1024, {"train": other})
    twice = pictures.copy()
    twice[1] = twice[0]
    faults = {
        r"the label \d": as_dataset(pictures, np.minimum(labels, 3)),
        "between 0 and 127": other,
        "1 rows occur again in the split itself": as_dataset(twice, labels),
        r"not all rows have 1,024 pixels": as_dataset(pictures[:, :16], labels),
    }
    for fault, dataset in faults.items():
        with pytest.raises(UserError, match=fault):
            check_pictures(dataset, "image test", 1024, {})
    with pytest.raises(UserError, match="200 rows occur again in train"):
        check_pictures(good, "image test", 1024, {"train": good})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"input": "bytes"}, "task.input=bytes"),
        ({"rows": {"exam": 3}}, "task.rows"),
        ({"rows": {"train": 0}}, r"task\.rows\.train=0"),
        ({"extrapolation_rows": 0}, "extrapolation_rows"),
        ({"seed": -1}, "seed"),
        *(
            ({"resolution": side}, rf"task\.resolution={side}: .*from 8 to 32")
            for side in (0, 7, 33, 64, 16.0, "16", True)
        ),
    ],
)
def test_invalid_options_are_named(options, fault):
    with pytest.raises(UserError, match=fault):
        Image(**options)


def test_subset_of_the_official_pictures_needs_allow_partial(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(shared_data))
    task = Image()
    with pytest.raises(UserError, match="4,000 of 50,000 train pictures"):
        task.prepare(Cache(tmp_path))
    task = Image(allow_partial=True)
    task.prepare(Cache(tmp_path))
    for name in SPLITS:
        task.check(name)
    floors = task.floors("test")
    assert 0.21 < floors["linear_pixels"] < 0.30 and 0.12 < floors["bag_of_pixels"] < 0.21
    pixels = rows_of(task.split("train"))
    assert abs(pixels.mean() - 122.6) < 1.5 and abs(pixels.std() - 61) < 1.5


@pytest.mark.long
def test_jpeg_copy_of_the_official_pictures_is_complete_and_recorded_as_lossy(shared_data, tmp_path):
    task = prepared(shared_data / "cifar10_jpeg_lossy", tmp_path)
    assert [len(task.split(name)) for name in SPLITS] == [45_000, 5_000, 10_000]
    for name in SPLITS:
        task.check(name)
        assert len(set(np.bincount(numbers(task.split(name), "target")).tolist())) == 1
    assert "JPEG" in task.provenance().lossy and task.provenance().partial == ""
    floors = task.floors("test")
    assert floors["majority"] == 0.1 and 0.28 < floors["linear_pixels"] < 0.32 and 0.16 < floors["bag_of_pixels"] < 0.2

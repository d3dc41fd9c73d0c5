"""Tests of reading released Pathfinder pictures: every file layout, and invalid files."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from lra_bench.contracts import UserError
from lra_bench.data.columns import numbers
from lra_bench.data.examples import digests_of
from lra_bench.tasks.pathfinder.drawing import LABEL
from lra_bench.tasks.pathfinder.generation import draw_pictures
from tests.support.pathfinder_originals import originals
from tests.support.pathfinder_release import (
    EASY,
    SPLITS,
    png,
    prepared,
    read_release,
    release,
    write_archive,
    write_folder,
)

FIRST = "curv_baseline/imgs/0/sample_0.png"


def checksums(task):
    return task.provenance().checksums


@pytest.mark.slow
def test_every_layout_gives_the_same_examples(tmp_path, monkeypatch):
    files = release()
    cache = tmp_path / "cache"
    first = read_release(write_folder(files, tmp_path / "plain"), cache)
    sources = [
        tmp_path / "plain" / "curv_baseline",
        write_folder(files, tmp_path / "a" / "pathfinder32").parent,
        write_folder(files, tmp_path / "b" / "lra_release" / "pathfinder32").parents[1],
        write_folder(files, tmp_path / "c" / "lra_release" / "lra_release" / "pathfinder32").parents[2],
        write_archive(files, tmp_path / "any.tar.gz"),
        write_archive(files, tmp_path / "b" / "short.tar", "pathfinder32/"),
        write_archive(files, tmp_path / "lra_release.gz").parent,
    ]
    for source in sources:
        assert checksums(read_release(source, cache)) == checksums(first)
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path / "a"))
    assert checksums(read_release("official", cache)) == checksums(first)


def test_examples_are_in_the_order_of_the_lists(tmp_path):
    task = read_release(write_folder(release(), tmp_path / "data"), tmp_path / "cache")
    drawn = draw_pictures(EASY, seed=9, first=0, count=120)
    indices = []
    for name in SPLITS:
        split = task.split(name)
        places = numbers(split, "number")
        assert (np.diff(places) > 0).all()
        rows = np.array(split.with_format("numpy")["tokens"][:]).reshape(-1, 32, 32)
        np.testing.assert_array_equal(rows, drawn.pixels[places])
        assert numbers(split, "target").tolist() == drawn.about[places, LABEL].tolist()
        indices += places.tolist()
    assert sorted(indices) == list(range(120))


def test_validation_and_test_are_stratified_tenths(tmp_path):
    source, cache = write_folder(release(), tmp_path / "data"), tmp_path / "cache"
    task = read_release(source, cache)
    assert {name: len(task.split(name)) for name in SPLITS} == {"train": 96, "validation": 12, "test": 12}
    label_mean = np.mean([label for name in SPLITS for label in numbers(task.split(name), "target")])
    for name in ("validation", "test"):
        assert abs(numbers(task.split(name), "target").sum() - 12 * label_mean) <= 1
    other = read_release(source, cache, seed=1)
    assert digests_of(other.split("test")) != digests_of(task.split("test"))
    assert other.fingerprint() != task.fingerprint()
    few = read_release(source, cache, rows={"train": 20})
    assert numbers(few.split("train"), "number").tolist() == numbers(task.split("train"), "number")[:20].tolist()
    assert few.provenance().partial == "120 of 200,000 pictures, only 20 train rows"


def test_incomplete_release_needs_allow_partial(tmp_path):
    source = write_folder(release(), tmp_path / "data")
    with pytest.raises(UserError, match=r"120 of 200,000 pictures; set task\.allow_partial=true"):
        prepared(tmp_path / "cache", source=str(source))
    assert read_release(source, tmp_path / "cache").provenance().partial == "120 of 200,000 pictures"


def test_linear_input_contains_the_same_released_pictures(tmp_path):
    source, cache = write_folder(release(), tmp_path / "data"), tmp_path / "cache"
    tokens, linear = read_release(source, cache), read_release(source, cache, input="linear")
    for name in SPLITS:
        expected = np.array(tokens.split(name).with_format("numpy")["tokens"][:])
        np.testing.assert_allclose(
            np.array(linear.split(name).with_format("numpy")["values"][:]), expected / 255, atol=1e-7
        )
        linear.check(name)


def test_empty_and_missing_pictures_are_skipped_and_reported(tmp_path, capsys):
    files = release()
    files[FIRST] = b""
    del files["curv_baseline/imgs/2/sample_3.png"]
    source = write_archive(files, tmp_path / "data.tar.gz")
    task = read_release(source, tmp_path / "cache")
    assert sum(len(task.split(name)) for name in SPLITS) == 118
    printed = capsys.readouterr().err
    assert "1 empty pictures are skipped" in printed and FIRST in printed and "1 listed pictures are missing" in printed


def test_the_outer_of_two_copies_in_an_archive_is_used(tmp_path, capsys):
    broken = release(labels=np.random.default_rng(0).integers(0, 2, 120))
    files = {f"lra_release/pathfinder32/{name}": content for name, content in release().items()}
    files |= {f"lra_release/lra_release/pathfinder32/{name}": content for name, content in broken.items()}
    both = read_release(write_archive(files, tmp_path / "both.tar.gz", ""), tmp_path / "cache")
    one = read_release(write_folder(release(), tmp_path / "one"), tmp_path / "cache")
    assert checksums(both) == checksums(one)
    assert "2 copies of pathfinder32/curv_baseline; using lra_release/pathfinder32/" in capsys.readouterr().err


def test_copy_with_wrong_labels_is_refused(tmp_path):
    broken = release(count=240, labels=np.random.default_rng(0).integers(0, 2, 240))
    source = write_archive(broken, tmp_path / "data.tar.gz")
    for _ in range(2):
        with pytest.raises(UserError, match=r"pathfinder train: labels do not agree with the pictures.*issue 38"):
            read_release(source, tmp_path / "cache")


def test_lists_written_on_windows_are_read(tmp_path):
    files = {
        name: b"\r\n".join([*content.replace(b"imgs/", b"imgs\\").splitlines(), b"", b""])
        if "metadata" in name
        else content
        for name, content in release().items()
    }
    windows = read_release(write_folder(files, tmp_path / "windows"), tmp_path / "cache")
    plain = read_release(write_folder(release(), tmp_path / "plain"), tmp_path / "cache")
    assert checksums(windows) == checksums(plain)


def test_pictures_are_part_of_the_identity_of_a_folder(tmp_path):
    root = write_folder(release(), tmp_path / "data")
    first, cache = read_release(root, tmp_path / "cache"), tmp_path / "cache"
    copy = read_release(write_folder(release(), tmp_path / "copy"), cache)
    assert copy.fingerprint() == first.fingerprint()
    brighter = np.array(Image.open(root / FIRST))
    brighter[0, 0] ^= 255
    (root / FIRST).write_bytes(png(brighter))
    changed = read_release(root, cache)
    assert changed.fingerprint() != first.fingerprint() and checksums(changed) != checksums(first)


def test_lists_without_pictures_are_named(tmp_path):
    lists = {name: content for name, content in release().items() if "metadata" in name}
    with pytest.raises(UserError, match=r"curv_baseline has lists \(metadata\) but no pictures \(imgs\)"):
        read_release(write_folder(lists, tmp_path / "data"), tmp_path / "cache")
    with pytest.raises(UserError, match=r"data.tar has none of the 120 listed pictures"):
        read_release(write_archive(lists, tmp_path / "data.tar"), tmp_path / "cache")


LIST = "curv_baseline/metadata/1.npy"
DAMAGE = {
    "not a picture": (FIRST, b"\x89PNG but no more", r"sample_0\.png is damaged"),
    "truncated picture": (
        FIRST,
        png(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8))[:500],
        r"sample_0\.png is damaged",
    ),
    "small picture": (
        FIRST,
        png(np.zeros((16, 16), dtype=np.uint8)),
        "is not a grey picture of 32 x 32 pixels but 16 x 16",
    ),
    "coloured picture": (FIRST, png(np.zeros((32, 32, 3), dtype=np.uint8)), "but 32 x 32, mode RGB"),
    "binary list": (LIST, b"\x93NUMPY\x01\x00", r"metadata/1\.npy is not text"),
    "third label": (LIST, b"imgs/1 sample_0.png 0 2 1.0 6 2 2 0.5 1 1\n", "line 1: expected 11 fields"),
    "short line": (LIST, b"imgs/1 sample_0.png 0 1\n", "line 1: expected 11 fields"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_invalid_files_are_named_and_leave_no_data(tmp_path, damage):
    name, content, message = DAMAGE[damage]
    source = write_folder({**release(), name: content}, tmp_path / "data")
    with pytest.raises(UserError, match=message):
        read_release(source, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "data").glob("pathfinder-*"))


def test_archives_with_links_or_other_sets_are_refused(tmp_path):
    archive = write_archive(release(), tmp_path / "other.tar.gz")
    with pytest.raises(UserError, match=r"no lists .* of pathfinder32/curv_contour_length_14"):
        read_release(archive, tmp_path / "cache", difficulty="hard")
    with pytest.raises(UserError, match=r"no lists .* of pathfinder64/curv_baseline"):
        read_release(archive, tmp_path / "cache", resolution=64)
    with tarfile.open(tmp_path / "link.tar", "w") as opened:
        member = tarfile.TarInfo("pathfinder32/curv_baseline/metadata/0.npy")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(member, io.BytesIO())
    with pytest.raises(UserError, match="link"):
        read_release(tmp_path / "link.tar", tmp_path / "cache")


def test_without_files_the_message_names_their_source(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"task\.source=.*empty: does not contain lra_release\.gz"):
        read_release(tmp_path / "empty", tmp_path / "cache")
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    with pytest.raises(UserError, match=r"pathfinder needs lra_release\.gz .* task\.source=PATH"):
        read_release("official", tmp_path / "cache")
    few = write_folder(release(count=8), tmp_path / "few")
    with pytest.raises(UserError, match="8 pictures, too few"):
        read_release(few, tmp_path / "cache")


@pytest.mark.slow
def test_pictures_of_the_original_generator_are_read(shared_data, tmp_path):
    archive = shared_data / "pathfinder" / "original_generator_pathfinder32.tar.gz"
    pixels, labels, _ = originals(shared_data, 32, "hard")
    task = read_release(archive, tmp_path / "cache", difficulty="hard")
    for name in SPLITS:
        split = task.split(name)
        places = numbers(split, "number")
        rows = np.array(split.with_format("numpy")["tokens"][:]).reshape(-1, 32, 32)
        np.testing.assert_array_equal(rows, pixels[places])
        assert numbers(split, "target").tolist() == labels[places].tolist()
        task.check(name)

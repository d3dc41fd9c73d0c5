"""Tests of enwik8: file formats, splits, floors against dictionaries, invalid files."""

import gzip
import hashlib
import io
import math
import os
import threading
import zipfile
from collections import defaultdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.columns import ListColumn
from lra_bench.data.download import Remote
from lra_bench.tasks.enwik8 import files
from lra_bench.tasks.enwik8.floors import HIGHEST_ORDER, ByteModels
from lra_bench.tasks.enwik8.task import Enwik8
from tests.support.command import Folder

SPLITS = ("train", "validation", "test")
WHOLE = files.OPENING + bytes(np.random.default_rng(0).integers(0, 256, 2_000, dtype=np.uint8).tobytes())
PART = WHOLE[:1_234]


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "1")
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)


@pytest.fixture
def small_text(monkeypatch):
    """Replace enwik8 with ``WHOLE``."""
    monkeypatch.setattr(files, "WHOLE_BYTES", len(WHOLE))
    monkeypatch.setattr(files, "WHOLE_MD5", hashlib.md5(WHOLE).hexdigest())


def zipped(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


FORMS = {
    "enwik8": lambda text: text,
    "enwik8.gz": gzip.compress,
    "enwik8.zip": lambda text: zipped({"enwik8": text}),
    "enwik8_first_pages.gz": gzip.compress,
}


def prepared(root, source=None, **options):
    task = Enwik8(source=None if source is None else str(source), **options)
    task.prepare(Cache(root / "cache"))
    return task


def content(task, split):
    return ListColumn(task.split(split), "tokens").row(0).tobytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["file", "folder", "data folder", "data file"])
def test_every_format_is_found_in_every_location(form, place, small_text, tmp_path, monkeypatch):
    folder = tmp_path / "enwik8" if place == "data folder" else tmp_path / "files"
    folder.mkdir()
    (folder / form).write_bytes(FORMS[form](WHOLE))
    if place.startswith("data"):
        monkeypatch.setenv("LRA_BENCH_DATA", str(folder if place == "data file" else tmp_path))
    source = {"file": folder / form, "folder": folder}.get(place)
    task = prepared(tmp_path, source)
    assert b"".join(content(task, split) for split in SPLITS) == WHOLE
    assert [len(content(task, split)) for split in SPLITS] == [1853, 103, 103]
    provenance = task.provenance()
    assert provenance.partial == provenance.lossy == "" and set(provenance.checksums) == set(SPLITS)
    assert provenance.source == str(folder / form)
    for split in SPLITS:
        task.check(split)
    # The fingerprint does not depend on the file format.
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    (tmp_path / "plain").write_bytes(WHOLE)
    assert task.fingerprint() == Enwik8(source=str(tmp_path / "plain")).fingerprint()


@given(st.binary(min_size=100, max_size=2_000))
@settings(max_examples=10, deadline=None)
def test_splits_are_consecutive_parts_of_the_text(tmp_path_factory, text):
    root = tmp_path_factory.mktemp("text")
    (root / "enwik8").write_bytes(text)
    task = prepared(root, root, allow_partial=True)
    assert b"".join(content(task, split) for split in SPLITS) == text
    sizes = np.array([len(content(task, split)) for split in SPLITS])
    assert (abs(sizes - len(text) * np.array([0.9, 0.05, 0.05])) <= 1).all()


def test_the_test_split_can_be_the_first_one(small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    task = prepared(tmp_path, tmp_path, test_first=True)
    parts = [content(task, split) for split in ("test", "train", "validation")]
    assert b"".join(parts) == WHOLE and [*map(len, parts)] == [102, 1854, 103]
    for split in SPLITS:
        task.check(split)
    assert task.fingerprint() != prepared(tmp_path, tmp_path).fingerprint()


def test_spec():
    task = Enwik8(context=16)
    assert (task.spec.kind, task.spec.direction, task.spec.metric) == (
        "language_modeling",
        "causal",
        "bits_per_character",
    )
    assert (task.spec.vocabulary_size, task.spec.classes, task.spec.chance) == (256, 256, 8.0)
    assert task.spec.train_length == 16 and not task.spec.higher_is_better
    assert task.supports_length(16) is None and "context" in task.supports_length(32)


def test_each_split_is_one_document(small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    task = prepared(tmp_path, tmp_path, context=16)
    for split in SPLITS:
        rows = Rows(task.split(split), task.spec)
        assert len(rows) == 1 and rows.row(0).dtype == np.uint8
        assert rows.lengths.tolist() == task.split(split)["length"] == [len(content(task, split))]


def test_prefix_is_used_only_with_allow_partial(small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(PART)
    with pytest.raises(UserError, match=r"the first 1,234 of 2,059 bytes; set task\.allow_partial=true"):
        prepared(tmp_path, tmp_path)
    assert not list((tmp_path / "cache").rglob("manifest.json"))
    task = prepared(tmp_path, tmp_path, allow_partial=True)
    assert task.provenance().partial == "the first 1,234 of 2,059 bytes"
    assert b"".join(content(task, split) for split in SPLITS) == PART


def test_an_altered_prefix_is_not_described_as_one(small_text, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "OFFICIAL_MD5", {None: files.WHOLE_MD5, 1_000: hashlib.md5(WHOLE[:1_000]).hexdigest()})
    for size, count in ((1_234, "1,234"), (800, "800")):
        (tmp_path / "enwik8").write_bytes(WHOLE[:size])
        described = prepared(tmp_path, tmp_path, allow_partial=True).provenance().partial
        assert described == f"the first {count} of 2,059 bytes"
    (tmp_path / "enwik8").write_bytes(PART[:900] + b"?" + PART[901:])
    task = prepared(tmp_path, tmp_path, allow_partial=True)
    assert task.provenance().partial == "1,234 bytes of a file that is not enwik8"


def test_option_bytes_needs_no_allow_partial_and_is_recorded(small_text, tmp_path):
    (tmp_path / "whole").write_bytes(WHOLE)
    (tmp_path / "part.gz").write_bytes(gzip.compress(PART))
    task = prepared(tmp_path, tmp_path / "whole", bytes=1_000)
    assert task.provenance().partial == "the first 1,000 of 2,059 bytes"
    assert b"".join(content(task, split) for split in SPLITS) == WHOLE[:1_000]
    with pytest.raises(UserError, match="the first 1,234 of 2,059"):
        prepared(tmp_path, tmp_path / "part.gz", bytes=1_000)
    same = prepared(tmp_path, tmp_path / "part.gz", bytes=1_000, allow_partial=True)
    assert same.fingerprint() == task.fingerprint() and same.provenance().partial == task.provenance().partial
    assert prepared(tmp_path, tmp_path / "whole", bytes=len(WHOLE)).provenance().partial == ""


@pytest.mark.parametrize("text", [b"<other" + WHOLE[6:], WHOLE[:-1] + b"!", b"<mediawiki xmlns='other'>" * 50])
def test_other_text_is_not_accepted_as_enwik8(text, small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(text)
    with pytest.raises(UserError, match=f"is {len(text):,} bytes of a file that is not enwik8; set task.allow_partial"):
        prepared(tmp_path, tmp_path)
    task = prepared(tmp_path, tmp_path, allow_partial=True, bytes=500)
    assert task.provenance().partial == "500 bytes of a file that is not enwik8"


def test_enwik9_is_accepted_because_it_begins_with_enwik8(small_text, tmp_path):
    (tmp_path / "enwik9").write_bytes(WHOLE + b"and so on")
    task = prepared(tmp_path, tmp_path / "enwik9")
    assert task.provenance().partial == "" and content(task, "test") == WHOLE[-103:]


def test_prepared_text_is_not_read_again(small_text, tmp_path, monkeypatch):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    first = prepared(tmp_path, tmp_path)
    monkeypatch.setattr(files.Text, "read", lambda self: pytest.fail("the cache was not used"))
    assert prepared(tmp_path, tmp_path).provenance() == first.provenance()


def test_file_that_changes_after_examination_is_refused(small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    text = files.examine(tmp_path / "enwik8", None, tmp_path / "digests")
    (tmp_path / "enwik8").write_bytes(WHOLE[::-1])
    with pytest.raises(UserError, match=f"does not have the md5 {text.md5}"):
        text.read()


def test_check_detects_reordered_splits_and_changed_bytes(small_text, tmp_path):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    task = prepared(tmp_path, tmp_path)
    splits = dict(task._splits)
    task._splits = {**splits, "validation": splits["test"], "test": splits["validation"]}
    with pytest.raises(UserError, match="not consecutive parts of the text"):
        task.check("test")
    changed = bytearray(content(prepared(tmp_path, tmp_path), "train"))
    changed[77] ^= 1
    table = {"tokens": [list(changed)], "target": [0], "length": [len(changed)]}
    kind = datasets.Features(
        tokens=datasets.List(datasets.Value("uint8")), target=datasets.Value("int64"), length=datasets.Value("int64")
    )
    task._splits = {**splits, "train": datasets.Dataset.from_dict(table, features=kind)}
    with pytest.raises(UserError, match="not consecutive parts of the text"):
        task.check("train")
    task._splits = {**splits, "train": splits["test"]}
    with pytest.raises(UserError, match="train: has 103 bytes instead of 1,853"):
        task.check("train")


def naive_bits(train, text, start, stop, window=None, highest=HIGHEST_ORDER):
    """Compute the mean bits of bytes start to stop for each order, with dictionaries of counts (Witten-Bell)."""
    counts = defaultdict(lambda: defaultdict(int))
    for place in range(len(train)):
        for order in range(min(place, highest) + 1):
            counts[train[place - order : place]][train[place]] += 1

    def probability(history, byte):
        shorter = probability(history[1:], byte) if history else 1 / 256
        after = counts[history]
        if not after:
            return shorter
        return (after.get(byte, 0) + len(after) * shorter) / (sum(after.values()) + len(after))

    def context(at, order):
        first = 0 if window is None else start - 1 + (at - start) // window * window
        return text[max(first, at - order) : at]

    return [
        np.mean([-math.log2(probability(context(at, order), text[at])) for at in range(start, stop)])
        for order in range(highest + 1)
    ]


few_bytes = st.lists(st.sampled_from([0, 1, 65, 255]), min_size=3, max_size=60).map(bytes)


@given(few_bytes, few_bytes, st.data())
@settings(max_examples=15, deadline=None)
def test_byte_models_equal_dictionaries(train, text, data):
    start = data.draw(st.integers(1, len(text) - 1))
    stop = data.draw(st.integers(start + 1, len(text)))
    window = data.draw(st.sampled_from([None, 1, 3, 8]))
    train_array, text_array = (np.frombuffer(content, dtype=np.uint8) for content in (train, text))
    found = ByteModels(train_array).bits(text_array, [(start, stop)], window)
    np.testing.assert_allclose(found, naive_bits(train, text, start, stop, window))


def test_bits_of_the_first_byte_and_of_a_short_text_have_short_contexts():
    train = np.frombuffer(b"ab", dtype=np.uint8)
    np.testing.assert_allclose(ByteModels(train).bits(train, [(0, 2)]), naive_bits(b"ab", b"ab", 0, 2))


def test_floors_are_computed_on_scored_bytes_and_cached(small_text, tmp_path, monkeypatch):
    (tmp_path / "enwik8").write_bytes(WHOLE)
    task = prepared(tmp_path, tmp_path, context=32)
    train, test = content(task, "train"), content(task, "test")
    names = ("majority", "order_1", "order_2")
    assert dict(task.floors("test")) == pytest.approx(
        dict(zip(names, naive_bits(train, test, 1, len(test), 32, 2), strict=True))
    )
    parts = [naive_bits(train, test, *span, highest=2) for span in ((5, 15), (40, 70))]
    mean = [(10 * first + 30 * second) / 40 for first, second in zip(*parts, strict=True)]
    spans = [(0, 5, 15), (0, 40, 70)]
    assert dict(task.floors_between("test", spans)) == pytest.approx(dict(zip(names, mean, strict=True)))
    monkeypatch.setattr(ByteModels, "bits", lambda *_: pytest.fail("the cache was not used"))
    again = prepared(tmp_path, tmp_path, context=32)
    assert again.floors("test") == task.floors("test")
    assert again.floors_between("test", spans) == task.floors_between("test", spans)


def test_the_order_of_the_floor_is_the_best_on_the_validation_split(small_text, tmp_path, monkeypatch):
    text = files.OPENING + b"0123456789" * 200
    monkeypatch.setattr(files, "WHOLE_BYTES", len(text))
    monkeypatch.setattr(files, "WHOLE_MD5", hashlib.md5(text).hexdigest())
    (tmp_path / "enwik8").write_bytes(text)
    task = prepared(tmp_path, tmp_path, context=16)
    train, validation, test = (content(task, split) for split in ("train", "validation", "test"))
    best = int(np.argmin(naive_bits(train, validation, 1, len(validation), 16)))
    assert best > 2
    floors = task.floors("test")
    assert list(floors) == ["majority", "order_1", "order_2", f"order_{best}"]
    assert floors[f"order_{best}"] == pytest.approx(naive_bits(train, test, 1, len(test), 16)[best])


BROKEN = {
    "truncated gzip": ("enwik8.gz", gzip.compress(PART)[:-40], "truncated"),
    "gzip with a changed byte": ("enwik8.gz", gzip.compress(PART)[:300] + b"?" + gzip.compress(PART)[301:], "cannot"),
    "truncated zip": ("enwik8.zip", zipped({"enwik8": PART})[:-40], "cannot be read"),
    "zip of two files": ("enwik8.zip", zipped({"enwik8": PART, "readme": b"read me"}), "2 files instead of one"),
    "zip that leads out": ("enwik8.zip", zipped({"../enwik8": PART}), "leads out"),
    "another file": ("other.txt", PART, r"enwik8, enwik8\.zip or enwik8\.gz"),
    "nothing": (None, b"", r"enwik8, enwik8\.zip or enwik8\.gz"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_invalid_files_do_not_change_the_cache(case, tmp_path):
    name, written, reason = BROKEN[case]
    source = tmp_path / "source"
    source.mkdir()
    if name:
        (source / name).write_bytes(written)
    with pytest.raises(UserError, match=reason) as caught:
        prepared(tmp_path, source, allow_partial=True)
    assert "\n" not in str(caught.value) and str(source) in str(caught.value)
    assert not (tmp_path / "cache" / "data").exists()


def test_invalid_options_are_named(tmp_path):
    (tmp_path / "enwik8").write_bytes(PART)
    cases: list[tuple[dict, str]] = [
        ({"context": 1}, r"task\.context=1"),
        ({"bytes": 99}, r"task\.bytes=99"),
        ({"bytes": 5_000, "allow_partial": True}, r"task\.bytes=5000: .* contains only 1,234 bytes"),
        ({"source": str(tmp_path / "nowhere")}, r"task\.source="),
    ]
    for options, named in cases:
        with pytest.raises(UserError, match=named):
            prepared(tmp_path, **{"source": tmp_path, **options})


def test_without_network_the_message_names_the_file_to_download(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"https://mattmahoney\.net/dc/enwik8\.zip into .*raw/enwik8"):
        prepared(tmp_path)
    monkeypatch.setattr(files, "REMOTE", Remote("http://localhost:1/enwik8.zip", "enwik8.zip"))
    monkeypatch.delenv("LRA_BENCH_OFFLINE")
    with pytest.raises(UserError, match="localhost cannot be reached"):
        prepared(tmp_path)
    assert not (tmp_path / "cache" / "data").exists()


def test_official_archive_is_downloaded_once(small_text, tmp_path, monkeypatch):
    archive, requests = zipped({"enwik8": WHOLE}), []
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "enwik8.zip").write_bytes(archive)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            requests.append(arguments)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path / "served"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/enwik8.zip"
    digest = hashlib.sha256(archive).hexdigest()
    monkeypatch.setattr(files, "REMOTE", Remote(address, "enwik8.zip", digest, size_bytes=len(archive)))
    monkeypatch.delenv("LRA_BENCH_OFFLINE")
    try:
        downloaded = prepared(tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert downloaded.provenance().partial == "" and content(downloaded, "test") == WHOLE[-103:]
    assert len(requests) == 1
    assert prepared(tmp_path, bytes=1_000).provenance().partial == "the first 1,000 of 2,059 bytes"


@pytest.mark.slow
def test_damaged_file_ends_the_command_with_a_one_line_message(tmp_path):
    folder = Folder(tmp_path, LRA_BENCH_DATA=str(tmp_path))
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(os.urandom(5_000))[:2_000])
    done = folder.run("data", "prepare", "enwik8", "--protocol", "smoke", check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "enwik8.gz is truncated" in done.stderr.strip().splitlines()[-1]
    assert not (folder.cache / "data").exists()


def test_first_pages_of_the_official_text(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(shared_data))
    with pytest.raises(UserError, match="the first 4,154,399 of 100,000,000 bytes"):
        prepared(tmp_path)
    task = prepared(tmp_path, allow_partial=True)
    assert task.provenance().partial == "the first 4,154,399 of 100,000,000 bytes"
    assert [len(content(task, split)) for split in SPLITS] == [3_738_959, 207_720, 207_720]
    assert content(task, "train").decode().count("<page>") > 100
    for split in SPLITS:
        task.check(split)
    floors = task.floors("test")
    assert floors["majority"] == pytest.approx(5.12, abs=0.01)
    assert floors["order_1"] == pytest.approx(3.88, abs=0.01)
    assert floors["order_2"] == pytest.approx(3.08, abs=0.01)


def test_md5_of_prefixes_equal_those_of_the_file(shared_data):
    with gzip.open(shared_data / "enwik8" / "enwik8_first4154399.gz") as stream:
        content = stream.read()
    for size, md5 in files.OFFICIAL_MD5.items():
        if size is not None:
            assert hashlib.md5(content[:size]).hexdigest() == md5

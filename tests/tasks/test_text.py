"""Tests of the text task: formats, truncation, filler, floors, checks, invalid files."""

import codecs
import dataclasses
import functools
import gzip
import http.server
import io
import tarfile
import threading
import zipfile
from collections import Counter

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.columns import ListColumn, numbers
from lra_bench.data.digest import sha256_of_file
from lra_bench.data.examples import content_sha256, join
from lra_bench.tasks.documents.bytes import byte_shares, surround, to_bytes, to_tokens
from lra_bench.tasks.documents.checks import check_rows, text_fault
from lra_bench.tasks.text.files import HUB_REVISION, REMOTES
from lra_bench.tasks.text.reviews import Reviews
from lra_bench.tasks.text.task import Text

SPLITS = ("train", "validation", "test")
SMALL = {"max_length": 60, "allow_partial": True, "filler_rows": 7}


def generate_reviews(split: str, count: int) -> list[tuple[int, str]]:
    """Return reviews (label, text) whose words depend on the label, of different lengths and partly not ASCII."""
    generator = np.random.default_rng(len(split))
    words = [["dull", "weak", "naïve", "bad"], ["grand", "fine", "café", "good"]]
    return [
        (row % 2, f"{split} {row} <br />" + " ".join(generator.choice(words[row % 2], size=3 + row % 30)))
        for row in range(count)
    ]


REVIEWS = {"train": generate_reviews("train", 80), "test": generate_reviews("test", 40)}
UNLABELLED = {"train/unsup/0_0.txt": "unlabelled", "README": "read me", "train/pos/._0_9.txt": "of macOS"}


def members(reviews=REVIEWS) -> dict[str, str]:
    names = ("neg", "pos")
    return {
        **{
            f"{split}/{names[label]}/{row}_{row % 10}.txt": text
            for split, rows in reviews.items()
            for row, (label, text) in enumerate(rows)
        },
        **UNLABELLED,
    }


def write_folder(root, contents=None):
    for name, text in (contents or members()).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() + b"\n")
    return root


def write_tar(path, contents=None, more=()):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (contents or {f"aclImdb/{name}": text for name, text in members().items()}).items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for member in more:
            archive.addfile(member)
    return path


def write_tables(root, reviews=REVIEWS, pattern="{}.parquet", reverse=False, write=None):
    for split, rows in reviews.items():
        path = root / pattern.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = rows[::-1] if reverse else rows
        table = pa.table({"text": [text for _, text in rows], "label": [label for label, _ in rows]})
        if write is None:
            pa.parquet.write_table(table, path, row_group_size=16)
        else:
            write(table.to_pandas(), path)
    return root


def write_shards(root):
    for split, rows in REVIEWS.items():
        for number in range(2):
            name = f"{split}-{number:05d}-of-00002.parquet"
            write_tables(root, {split: rows[number::2]}, pattern=name)
    return root


def write_saved(root):
    """Write a folder as ``save_to_disk`` of Hugging Face's datasets does."""
    splits = {
        split: datasets.Dataset.from_dict({"text": [text for _, text in rows], "label": [label for label, _ in rows]})
        for split, rows in REVIEWS.items()
    }
    datasets.DatasetDict(splits).save_to_disk(root)
    return root


def write_links(root, store):
    """Write the folder of reviews as links to files and folders of a store."""
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        (root / split / "neg").symlink_to(store / split / "neg")
        (root / split / "pos").mkdir()
        for path in (store / split / "pos").iterdir():
            (root / split / "pos" / path.name).symlink_to(path)
    return root


def prepared(cache, source, **options):
    task = Text(**{**SMALL, "source": str(source), **options})
    task.prepare(cache)
    return task


def texts(task, split, *where):
    column = ListColumn(task.split(split, *where), "tokens")
    return [to_bytes(column.row(row)) for row in range(len(column))]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def task(tmp_path_factory, cache):
    return prepared(cache, write_tables(tmp_path_factory.mktemp("tables")))


def test_examples_are_the_first_bytes_of_the_reviews(task):
    expected = {split: Counter(text.encode()[:60] for _, text in rows) for split, rows in REVIEWS.items()}
    assert Counter(texts(task, "test")) == expected["test"]
    assert Counter(texts(task, "train")) + Counter(texts(task, "validation")) == expected["train"]
    assert [len(task.split(split)) for split in SPLITS] == [72, 8, 40]
    for split in SPLITS:
        labels = numbers(task.split(split), "target")
        assert labels.sum() * 2 == len(labels)  # stratified
        praise = ["good" in str(text) or "fine" in str(text) or "grand" in str(text) for text in texts(task, split)]
        assert (np.array(praise) <= labels).all()
        task.check(split)
    batch = Rows(task.split("test"), task.spec).batch([0, 1])
    assert batch.inputs.shape == (2, 60) and int(batch.inputs.max()) < task.spec.vocabulary_size


def test_every_format_gives_the_same_examples(task, tmp_path, cache):
    formats = {
        "folder": write_folder(tmp_path / "aclImdb"),
        "folder above it": tmp_path,
        "archive": write_tar(tmp_path / "reviews.tgz"),
        "archive in a folder": write_tar(tmp_path / "raw" / "aclImdb_v1.tar.gz").parent,
        "hub": write_tables(tmp_path / "hub", pattern="plain_text/{}-00000-of-00001.parquet"),
        "other order": write_tables(tmp_path / "order", reverse=True),
        "shards": write_shards(tmp_path / "shards"),
        "csv": write_tables(tmp_path / "csv", pattern="{}.csv", write=lambda frame, path: frame.to_csv(path)),
        "json": write_tables(
            tmp_path / "json",
            pattern="{}.jsonl",
            write=lambda frame, path: frame.to_json(path, orient="records", lines=True),
        ),
        "saved": write_saved(tmp_path / "saved"),
        "store": write_links(tmp_path / "links", write_folder(tmp_path / "store")),
    }
    with zipfile.ZipFile(tmp_path / "reviews.zip", "w") as archive:
        for name, text in members().items():
            archive.writestr(f"aclImdb/{name}", f"  {text}\r\n")
    formats["zip, with white space"] = tmp_path / "reviews.zip"
    for name, source in formats.items():
        other = prepared(cache, source)
        assert other.provenance().checksums == task.provenance().checksums, name
        assert other.fingerprint() == task.fingerprint() == Text(**SMALL, source=str(source)).fingerprint(), name


def test_folders_of_the_data_folder(task, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path))
    write_tables(tmp_path / "imdb")
    assert prepared(cache, "official").fingerprint() == task.fingerprint()
    write_folder(tmp_path / "aclImdb", members({**REVIEWS, "test": generate_reviews("test", 20)}))
    assert len(prepared(cache, "official").split("test")) == 20


def test_fingerprint_depends_on_options_and_files(task, tmp_path):
    base = task.fingerprint()
    source = task.source
    assert Text(**SMALL, source=source).fingerprint() == base
    for change in ({"max_length": 61}, {"seed": 1}, {"filler_rows": 8}, {"rows": {"test": 10}}):
        assert Text(**{**SMALL, "source": source, **change}).fingerprint() != base
    write_tables(tmp_path, {**REVIEWS, "test": generate_reviews("other", 40)})
    assert Text(**SMALL, source=str(tmp_path)).fingerprint() != base


def test_fingerprint_needs_no_download(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "1")
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    assert Text().fingerprint() == Text(source="official").fingerprint()
    with pytest.raises(
        UserError, match=r"^task\.source: train-00000.* cannot be downloaded .*huggingface\.co.*e6281661"
    ) as caught:
        Text().prepare(Cache(tmp_path))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.parquet")) and not Cache(tmp_path).entries()


class Hub(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_reviews_are_downloaded_from_the_hub_once(task, tmp_path, monkeypatch):
    place = tmp_path / "served" / "datasets" / "stanfordnlp" / "imdb" / "resolve" / HUB_REVISION
    write_tables(place, pattern="plain_text/{}-00000-of-00001.parquet")
    served = [place / remote.url for remote in REMOTES]
    remotes = [
        dataclasses.replace(remote, sha256=sha256_of_file(path), size_bytes=path.stat().st_size)
        for remote, path in zip(REMOTES, served, strict=True)
    ]
    monkeypatch.setattr("lra_bench.tasks.text.files.REMOTES", remotes)
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    monkeypatch.delenv("LRA_BENCH_OFFLINE", raising=False)
    handler = functools.partial(Hub, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        downloaded = Text(**SMALL)
        downloaded.prepare(Cache(tmp_path / "cache"))
        server.shutdown()
    assert downloaded.provenance().checksums == task.provenance().checksums
    again = Text(**SMALL)
    again.prepare(Cache(tmp_path / "cache"))
    assert again.fingerprint() == task.fingerprint()


def test_validation_shares_no_text_with_train(cache, tmp_path):
    twice = {**REVIEWS, "train": REVIEWS["train"] + REVIEWS["train"][:40]}
    task = prepared(cache, write_tables(tmp_path, twice), max_length=500)
    assert len(task.split("validation")) == 12
    assert not set(texts(task, "validation")) & set(texts(task, "train"))


def test_rows_selects_a_fixed_balanced_subset(task, cache):
    fewer = prepared(cache, task.source, rows={"train": 20, "validation": 4, "test": 10})
    for split, rows in (("train", 20), ("validation", 4), ("test", 10)):
        assert not Counter(texts(fewer, split)) - Counter(texts(task, split))
        assert numbers(fewer.split(split), "target").sum() * 2 == rows == len(fewer.split(split))
    assert fewer.provenance().partial.endswith("20 of 72 train rows, 4 of 8 validation rows, 10 of 40 test rows")
    same_test = prepared(cache, task.source, rows={"test": 10})
    assert content_sha256(same_test.split("test")) == content_sha256(fewer.split("test"))
    assert len(prepared(cache, task.source, rows={"test": 1000}).split("test")) == 40


def test_partial_data_needs_allow_partial(task, tmp_path):
    with pytest.raises(UserError, match=r"80 of 25,000 train rows, 40 of 25,000 test rows; .*allow_partial"):
        prepared(Cache(tmp_path), task.source, allow_partial=False)
    assert "80 of 25,000 train rows" in task.provenance().partial


@pytest.mark.parametrize("length", [1, 30, 60, 61, 100])
def test_truncated_contains_the_same_reviews_at_another_length(task, cache, length):
    longer = prepared(cache, task.source, max_length=1000)
    assert texts(task, "test", length) == [text[:length] for text in texts(longer, "test")]
    assert numbers(task.split("test", length), "target").tolist() == numbers(longer.split("test"), "target").tolist()
    assert task.supports_length(length) is None


def test_lengths_without_information_are_refused(task):
    longest = max(len(text.encode()) for _, text in REVIEWS["test"])
    assert task.supports_length(longest) is None
    assert task.supports_length(longest + 1) == f"no test review is longer than {longest:,} bytes"
    assert task.supports_length(59, "filler") == "filler only lengthens, and the training length is 60 bytes"
    for length, variant in ((longest + 1, "truncated"), (59, "filler")):
        with pytest.raises(UserError, match=rf"measure\.extrapolation_ratios: length {length} is not possible"):
            task.split("test", length, variant)
    with pytest.raises(ValueError, match="no variant upsampled"):
        task.split("test", 120, "upsampled")


def test_split_at_the_training_length_is_the_split_itself(task):
    for variant in (None, "truncated", "filler"):
        assert task.split("test", 60, variant) is task.split("test")
        assert task.floors("test", 60, variant) == task.floors("test")


@pytest.mark.parametrize("length", [61, 120, 480])
def test_filler_contains_the_review_and_equally_many_bytes_of_both_labels(task, length):
    rows, plain = task.split("test", length, "filler"), ListColumn(task.split("test"), "tokens")
    column, labels = ListColumn(rows, "tokens"), numbers(task.split("test"), "target")
    assert len(rows) == 7 and (column.lengths == length).all()
    pieces = {label: [to_bytes(plain.row(r)) for r in np.flatnonzero(labels == label)] for label in (0, 1)}
    for row, (place, start) in enumerate(zip(rows["row"], rows["start"], strict=True)):
        review = plain.row(place)
        assert (column.row(row)[start : start + len(review)] == review).all()
        assert rows["target"][row] == labels[place]
        around = to_bytes(column.row(row)[:start]) + to_bytes(column.row(row)[start + len(review) :])
        assert len(around) == length - len(review)
        counts = count_bytes_by_label(around, pieces)
        assert abs(counts[0] - counts[1]) <= 1 and sum(counts) == len(around)


def count_bytes_by_label(around: bytes, pieces: dict[int, list[bytes]]) -> tuple[int, int]:
    """Return the numbers of bytes of texts of each label in ``around``.

    ``around`` consists of complete texts and at most one truncated text of each label, in any order.
    """
    truncated = {
        label: {text[:n] for text in texts for n in range(1, len(text) + 1)} for label, texts in pieces.items()
    }
    complete = {label: {text + b" " for text in texts} for label, texts in pieces.items()}

    def walk(at: int, counts: tuple[int, int], cut: frozenset[int]):
        if at == len(around):
            yield counts
        for label in (0, 1):
            for piece in complete[label] | (set() if label in cut else truncated[label]):
                if around.startswith(piece, at):
                    more = tuple(n + len(piece) * (label == other) for other, n in enumerate(counts))
                    yield from walk(at + len(piece), more, cut if piece in complete[label] else cut | {label})

    return min(walk(0, (0, 0), frozenset()), key=lambda counts: abs(counts[0] - counts[1]))


def test_filler_does_not_depend_on_the_number_of_examples(task, cache):
    more = prepared(cache, task.source, filler_rows=40)
    few = dict(zip(task.split("test", 120, "filler")["row"], texts(task, "test", 120, "filler"), strict=True))
    many = dict(zip(more.split("test", 120, "filler")["row"], texts(more, "test", 120, "filler"), strict=True))
    assert few.items() <= many.items() and len(many) == 40


@given(
    text=st.binary(min_size=1, max_size=20).filter(lambda text: b"\xff" not in text),
    more=st.integers(0, 50),
    kinds=st.integers(1, 3),
    seed=st.integers(0, 5),
)
@settings(deadline=None)
def test_surround_fills_equally_many_bytes_of_every_kind(text, more, kinds, seed):
    fillers = [np.full(4, 200 + kind, dtype=np.uint8) for kind in range(kinds)]
    draws = [lambda piece=piece: piece for piece in fillers]
    row, start = surround(to_tokens(text), len(text) + more, draws, np.random.default_rng(seed))
    assert len(row) == len(text) + more
    assert to_bytes(row[start : start + len(text)]) == text
    around = np.concatenate([row[:start], row[start + len(text) :]])
    spaces = (around == ord(" ") + 1).sum()
    counts = [(around == 200 + kind).sum() for kind in range(kinds)]
    assert sum(counts) + spaces == more
    # The quotas of two kinds differ by at most one byte; a fifth of each quota is spaces.
    assert max(counts) - min(counts) <= 1


@given(text=st.text(max_size=200), length=st.integers(0, 250))
@settings(deadline=None)
def test_tokens_round_trip_to_the_text(text, length):
    tokens = to_tokens(text.encode())
    assert to_bytes(tokens).decode() == text
    assert (tokens >= 1).all() and (tokens <= 256).all()
    cut = tokens[:length]
    start = codecs.getincrementaldecoder("utf-8")().decode(to_bytes(cut))
    assert text.startswith(start) and len(start.encode()) > len(cut) - 4
    assert (text_fault(cut) is None) == bool(len(cut))


def test_floors_are_fitted_on_examples_of_the_same_variant_and_length(task, cache, monkeypatch):
    floors = task.floors("test")
    assert floors["majority"] == 0.5
    assert floors["bag_of_bytes"] > 0.75  # the words of each label have different letters
    calls = []

    def note(train, rows, of_shares, advance):
        calls.append((len(train), int(train.lengths.max()), len(rows), int(rows.lengths.max())))
        return {"majority": np.ones(len(rows), dtype=bool)}

    monkeypatch.setattr("lra_bench.tasks.documents.floors.correct_rows", note)
    assert task.floors("test") == floors  # from the cache
    task.floors("test", 30)
    task.floors("test", 120, "filler")
    assert calls == [(72, 30, 40, 30), (72, 120, 7, 120)]


def test_features_are_byte_frequencies(task):
    train = join(task._rows("train", 60, "truncated", np.arange(72)))
    frequencies = task.features(byte_shares(train))
    for frequency, label, text in zip(frequencies, train.targets, texts(task, "train"), strict=True):
        assert np.allclose(frequency, [text.count(byte) / len(text) for byte in range(256)])
        assert label == (b"good" in text or b"fine" in text or b"grand" in text or "café".encode() in text)


def changed(dataset, **columns):
    table = dataset.data.table
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values, table.column(name).type))
    return datasets.Dataset(table, fingerprint="changed")


def test_check_detects_invalid_data(task, tmp_path):
    split = task.split("test")
    tokens, targets, lengths = split["tokens"][:], split["target"][:], split["length"][:]
    wrong = {
        r"row 3 is empty or contains padding": {"tokens": [*tokens[:3], [0] * lengths[3], *tokens[4:]]},
        r"row 4 is not UTF-8 text": {"tokens": [*tokens[:4], [0x80 + 1] * lengths[4], *tokens[5:]]},
        r"row 5 has a wrong length": {"length": [*lengths[:5], 7, *lengths[6:]]},
        r"a row has the label 2": {"target": [2, *targets[1:]]},
        r"95% of the labels are 1": {"target": [1] * 38 + [0] * 2},
    }
    for message, columns in wrong.items():
        with pytest.raises(UserError, match=message):
            check_rows(changed(split, **columns), "text test", 60)
    for message, reviews in {
        "text train: 100 reviews are duplicates": {
            **REVIEWS,
            "train": generate_reviews("train", 200) + generate_reviews("train", 100),
        },
        r"text test: 1\d\d reviews are shared with train": {
            "train": generate_reviews("train", 1600),
            "test": generate_reviews("train", 160),
        },
    }.items():
        checked = prepared(Cache(tmp_path / message[5:9]), write_tables(tmp_path / message[5:9] / "files", reviews))
        with pytest.raises(UserError, match=message):
            checked.check(message.split(":")[0].removeprefix("text "))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def link():
    member = tarfile.TarInfo("aclImdb/train/pos/1_1.txt")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


def truncate_table(root):
    write_tables(root)
    truncate(root / "test.parquet")


def write_table_with(root, column, values):
    write_tables(root)
    table = pa.parquet.read_table(root / "test.parquet")
    table = table.drop_columns(column)
    pa.parquet.write_table(table if values is None else table.append_column(column, values), root / "test.parquet")


def corrupt_table(root):
    write_tables(root)
    path = root / "test.parquet"
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)


def truncate_tar(root):
    truncate(write_tar(root / "aclImdb_v1.tar.gz"))


BROKEN = {
    "an empty folder": (lambda root: None, r"does not contain the folder aclImdb, aclImdb_v1\.tar\.gz, or"),
    "a truncated table": (truncate_table, r"test\.parquet cannot be read after row 0"),
    "a damaged table": (corrupt_table, r"test\.parquet cannot be read after row \d+"),
    "no labels": (lambda root: write_table_with(root, "label", None), r"test\.parquet has no column label"),
    "wrong labels": (
        lambda root: write_table_with(root, "label", pa.array([0] * 39 + [-1])),
        r"row 40 of .*test\.parquet has the label -1",
    ),
    "a missing label": (
        lambda root: write_table_with(root, "label", pa.array([0] * 39 + [None])),
        r"row 40 of .*test\.parquet has the label None",
    ),
    "booleans": (
        lambda root: write_table_with(root, "label", pa.array([True, False] * 20)),
        r"row 1 of .*test\.parquet has the label True instead of 0 or 1",
    ),
    "a shard is missing": (
        lambda root: (write_shards(root) / "train-00001-of-00002.parquet").unlink(),
        r"does not contain train-00001-of-00002\.parquet, only other shards of it",
    ),
    "an empty file": (
        lambda root: (write_tables(root) / "test.parquet").write_bytes(b""),
        r"test\.parquet is empty; download it again",
    ),
    "a pointer of Git LFS": (
        lambda root: (write_tables(root) / "test.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        r"test\.parquet is a pointer of Git LFS; replace it by the file \(git lfs pull\)",
    ),
    "numbers": (
        lambda root: write_table_with(root, "text", pa.array(range(40))),
        r"row 1 of .*test\.parquet is not text",
    ),
    "a truncated archive": (truncate_tar, r"aclImdb_v1\.tar\.gz"),
    "an archive without reviews": (
        lambda root: write_tar(root / "aclImdb_v1.tar.gz", {"aclImdb/README": "read me"}),
        r"aclImdb_v1\.tar\.gz contains no train reviews",
    ),
    "an archive with a path outside": (
        lambda root: write_tar(root / "aclImdb_v1.tar.gz", more=[tarfile.TarInfo("../train/pos/1_1.txt")]),
        r"a name that leads out of the archive",
    ),
    "an archive with a link": (
        lambda root: write_tar(root / "aclImdb_v1.tar.gz", more=[link()]),
        r"which is a link or device",
    ),
    "not an archive": (
        lambda root: (root / "aclImdb_v1.tar.gz").write_bytes(gzip.compress(b"text" * 1000)),
        "not a folder, tar",
    ),
    "an empty review": (
        lambda root: write_folder(root, {**members(), "test/pos/1_1.txt": " "}),
        r"test/pos/1_1\.txt is empty",
    ),
    "empty folders": (
        lambda root: [(root / name).mkdir(parents=True) for name in ("train/pos", "train/neg", "test/pos", "test/neg")],
        "contains no train reviews",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_files_give_a_one_line_message_and_no_data(tmp_path, name):
    write_broken, message = BROKEN[name]
    (tmp_path / "files").mkdir()
    write_broken(tmp_path / "files")
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(UserError, match=message) as caught:
            prepared(cache, tmp_path / "files")
        assert str(caught.value).startswith("task.source") and "\n" not in str(caught.value)
    # The train reviews may be valid if the test reviews are not.
    assert {entry.name for entry in cache.entries()} <= {"text-reviews-train"}
    assert not list(cache.root.rglob("*building*"))


def test_review_in_another_encoding_is_named(tmp_path):
    root = write_folder(tmp_path / "files")
    (root / "test" / "pos" / "7_7.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(UserError, match=r"test/pos/7_7\.txt is not UTF-8"):
        prepared(Cache(tmp_path / "cache"), root)


def test_too_few_reviews_are_refused(tmp_path):
    reviews = {"train": REVIEWS["train"][:8], "test": REVIEWS["test"]}
    with pytest.raises(UserError, match="contains too few train reviews to hold out a tenth of them"):
        prepared(Cache(tmp_path / "cache"), write_tables(tmp_path / "files", reviews))
    one_each = {"train": REVIEWS["train"], "test": REVIEWS["test"][:2]}
    task = prepared(Cache(tmp_path / "cache"), write_tables(tmp_path / "others", one_each))
    with pytest.raises(UserError, match=r"task\.rows: filler needs at least two reviews of each label"):
        task.split("test", 120, "filler")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, r"^task\.max_length=0: must be at least 1"),
        ({"filler_rows": 0}, r"^task\.filler_rows=0: must be at least 1"),
        ({"seed": -1}, r"^task\.seed=-1: must be at least 0"),
        ({"rows": {"valid": 10}}, r"^task\.rows: there is no split valid; the splits are train, validation, test"),
        ({"rows": {"test": 1}}, r"^task\.rows\.test=1: must be at least 2"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        Text(**options)


def test_use_before_prepare_is_refused():
    with pytest.raises(RuntimeError, match="prepare"):
        Text().provenance()


def test_altered_reviews_of_the_official_number_are_not_official(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(Reviews, "OFFICIAL_ROWS", {split: len(rows) for split, rows in REVIEWS.items()})
    official = prepared(cache, write_tables(tmp_path / "official"))
    monkeypatch.setattr(Reviews, "OFFICIAL_CONTENT", official.ready()[1].content())
    for source in (write_tables(tmp_path / "tables", reverse=True), write_folder(tmp_path / "folder")):
        task = prepared(cache, source, allow_partial=False)
        assert task.provenance().partial == "" and "complete" in task.provenance().source
        assert task.fingerprint() == official.fingerprint()
    altered = write_tables(
        tmp_path / "altered", {**REVIEWS, "test": [(1 - REVIEWS["test"][0][0], "x"), *REVIEWS["test"][1:]]}
    )
    with pytest.raises(UserError, match=r"the data is not that of the official files; set task.allow_partial=true"):
        prepared(cache, altered, allow_partial=False)
    assert prepared(cache, altered).provenance().partial == "not that of the official files"


@pytest.mark.slow
def test_official_reviews(shared_data, tmp_path_factory):
    if not (shared_data / "imdb").is_dir():
        pytest.skip("no IMDB")
    cache = Cache(tmp_path_factory.mktemp("official"))
    task = Text(source=str(shared_data), max_length=1024)
    task.prepare(cache)
    assert [len(task.split(split)) for split in SPLITS] == [22_500, 2_500, 25_000]
    assert not task.provenance().partial
    assert task.ready()[1].content() == Reviews.OFFICIAL_CONTENT
    for split in SPLITS:
        task.check(split)
        assert numbers(task.split(split), "target").mean() == 0.5
    assert 0.63 < task.floors("test")["bag_of_bytes"] < 0.66
    again = Text(source=str(shared_data), max_length=1024)
    again.prepare(cache)
    assert again.provenance().checksums == task.provenance().checksums

"""Tests of the retrieval task: file formats, truncation, filler, floors, checks, invalid files."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.columns import ListColumn, numbers
from lra_bench.data.examples import join
from lra_bench.tasks.documents.bytes import byte_shares, to_bytes
from lra_bench.tasks.retrieval.checks import check_pairs
from lra_bench.tasks.retrieval.files import find_pairs, read_pairs
from lra_bench.tasks.retrieval.task import Retrieval

SPLITS = {"train": "train", "validation": "eval", "test": "test"}
SMALL = {"max_length": 50, "allow_partial": True, "filler_rows": 7}


def generate_pairs(split: str, count: int) -> list[tuple[int, str, str, str, str]]:
    """Return pairs with quotes, non-ASCII letters and different lengths; papers of citing pairs share letters."""
    generator = np.random.default_rng(len(split))
    alphabets = ["abcdé", "vwxyz"]
    pairs = []
    for row in range(count):
        label = row % 2
        first = int(generator.integers(2))
        one, other = (
            f'"{split} {row}.{kind} '
            + "".join(generator.choice(list(alphabets[kind]), size=20 + int(generator.integers(100))))
            for kind in (first, first if label else 1 - first)
        )
        pairs.append((label, f"{split}-{row}", f"{split}-{row + 1}", one, other))
    return pairs


PAIRS = {split: generate_pairs(split, count) for split, count in (("train", 120), ("validation", 30), ("test", 40))}


def format_line(pair) -> str:
    label, *fields = pair
    return "\t".join([f"{label:.1f}", *fields]) + "\n"


def write(root, pairs=PAIRS, packed=False, **lines):
    root.mkdir(parents=True, exist_ok=True)
    for split, short in SPLITS.items():
        text = "".join(lines.get(split, [format_line(pair) for pair in pairs[split]])).encode()
        name = f"new_aan_pairs.{short}.tsv"
        if packed:
            (root / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (root / name).write_bytes(text)
    return root


def write_release(path, pairs=PAIRS, leave_out="", more=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for member in more:
            archive.addfile(member)
        for split, short in SPLITS.items():
            text = "".join(format_line(pair) for pair in pairs[split]).encode()
            member = tarfile.TarInfo(f"lra_release/lra_release/tsv_data/new_aan_pairs.{short}.tsv")
            member.size = len(text)
            if short != leave_out:
                archive.addfile(member, io.BytesIO(text))
    return path


def prepared(cache, source, **options):
    task = Retrieval(**{**SMALL, "source": str(source), **options})
    task.prepare(cache)
    return task


def texts(task, split, *where):
    column = ListColumn(task.split(split, *where), "tokens", documents=True)
    return [tuple(to_bytes(column.row(row, document)) for document in (0, 1)) for row in range(len(column))]


def truncate_pairs(pairs, length):
    return [tuple(text.encode()[:length] for text in pair[3:]) for pair in pairs]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("retrieval"))


@pytest.fixture(scope="module")
def task(tmp_path_factory, cache):
    return prepared(cache, write(tmp_path_factory.mktemp("tables")))


def test_examples_are_the_first_bytes_of_both_papers(task):
    for split, pairs in PAIRS.items():
        assert texts(task, split) == truncate_pairs(pairs, 50)
        assert numbers(task.split(split), "target").tolist() == [pair[0] for pair in pairs]
        task.check(split)
    batch = Rows(task.split("test"), task.spec).batch([0, 1, 2])
    assert batch.inputs.shape == (3, 2, 50) and batch.lengths.shape == (3, 2)
    assert int(batch.inputs.max()) < task.spec.vocabulary_size


def test_every_format_gives_the_same_examples(task, tmp_path, cache):
    forms = {
        "gzipped": write(tmp_path / "packed", packed=True),
        "in tsv_data": write(tmp_path / "above" / "tsv_data").parent,
        "unpacked release": write(tmp_path / "lra_release" / "lra_release" / "tsv_data").parents[2],
        "release": write_release(tmp_path / "lra_release.gz"),
        "folder with the release": write_release(tmp_path / "raw" / "lra_release.gz").parent,
        "windows": write(
            tmp_path / "crlf", **{split: [format_line(pair)[:-1] + "\r\n" for pair in PAIRS[split]] for split in SPLITS}
        ),
    }
    for name, source in forms.items():
        other = prepared(cache, source)
        assert other.provenance().checksums == task.provenance().checksums, name
        assert other.fingerprint() == task.fingerprint() == Retrieval(**SMALL, source=str(source)).fingerprint(), name


def test_folders_of_the_data_folder(task, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path))
    for folder in reversed(Retrieval.source_folders):
        write(tmp_path / folder, {**PAIRS, "test": generate_pairs(folder, 40)})
        found = prepared(cache, "official")
        assert texts(found, "test") == truncate_pairs(generate_pairs(folder, 40), 50)


def test_without_files_the_message_names_their_source(tmp_path, monkeypatch):
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    for call in (Retrieval().fingerprint, lambda: Retrieval().prepare(Cache(tmp_path))):
        with pytest.raises(
            UserError, match=r"^task\.source: retrieval needs .*lra_release\.gz.*retrieval_synthetic"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_fingerprint_depends_on_options_and_files(task, tmp_path, monkeypatch):
    base = task.fingerprint()
    for change in ({"max_length": 51}, {"seed": 1}, {"filler_rows": 8}, {"rows": {"test": 10}}):
        assert Retrieval(**{**SMALL, "source": task.source, **change}).fingerprint() != base
    write(tmp_path, {**PAIRS, "test": generate_pairs("other", 40)})
    assert Retrieval(**SMALL, source=str(tmp_path)).fingerprint() != base
    swapped = [(1 - label, *rest) for label, *rest in PAIRS["test"]]
    write(tmp_path, {**PAIRS, "test": swapped})
    assert Retrieval(**SMALL, source=str(tmp_path)).fingerprint() != base


def test_rows_selects_a_fixed_balanced_subset(task, cache):
    fewer = prepared(cache, task.source, rows={"train": 20, "validation": 4, "test": 10})
    for split, rows in (("train", 20), ("validation", 4), ("test", 10)):
        assert set(texts(fewer, split)) < set(texts(task, split))
        assert numbers(fewer.split(split), "target").sum() * 2 == rows == len(fewer.split(split))
    assert fewer.provenance().partial.endswith("20 of 120 train rows, 4 of 30 validation rows, 10 of 40 test rows")


def test_partial_data_needs_allow_partial(task, tmp_path):
    message = r"120 of 147,086 train rows, 30 of 18,090 validation rows, 40 of 17,437 test rows; .*allow_partial"
    with pytest.raises(UserError, match=message):
        prepared(Cache(tmp_path), task.source, allow_partial=False)
    assert "40 of 17,437 test rows" in task.provenance().partial


@pytest.mark.parametrize("length", [1, 30, 51, 100])
@pytest.mark.parametrize("kept", [4000, 60])
def test_truncated_contains_the_same_papers_at_another_length(task, tmp_path, monkeypatch, length, kept):
    # Papers longer than those in the cache are read from the files again.
    monkeypatch.setattr(Retrieval, "official_length", kept)
    short = prepared(Cache(tmp_path), task.source, rows={"test": 10})
    places = {text: row for row, text in enumerate(truncate_pairs(PAIRS["test"], 50))}
    chosen = [PAIRS["test"][places[text]] for text in texts(short, "test")]
    assert texts(short, "test", length) == truncate_pairs(chosen, length)
    assert numbers(short.split("test", length), "target").tolist() == [pair[0] for pair in chosen]
    assert (
        short.split("test", length).column_names == short.split("test").column_names == ["tokens", "target", "length"]
    )


def test_lengths_without_information_are_refused(task):
    longest = max(len(text.encode()) for pair in PAIRS["test"] for text in pair[3:])
    assert task.supports_length(longest) is None
    assert task.supports_length(longest + 1) == f"no test paper is longer than {longest:,} bytes"
    assert task.supports_length(49, "filler") == "filler only lengthens, and the training length is 50 bytes"
    with pytest.raises(UserError, match=r"measure\.extrapolation_ratios: length 49 is not possible"):
        task.split("test", 49, "filler")


@pytest.mark.parametrize("length", [51, 200, 900])
def test_filler_contains_both_papers_among_others(task, length):
    rows, plain = task.split("test", length, "filler"), texts(task, "test")
    papers = [pair[1:3] for pair in PAIRS["test"]]
    assert len(rows) == 7
    for row, both in enumerate(texts(task, "test", length, "filler")):
        place = rows["row"][row]
        assert rows["target"][row] == PAIRS["test"][place][0]
        other_texts = {
            text + b" "
            for other, pair in enumerate(plain)
            for text, paper in zip(pair, papers[other], strict=True)
            if paper not in papers[place]
        }
        for text, start, own in zip(
            both, (rows["first_start"][row], rows["second_start"][row]), plain[place], strict=True
        ):
            assert len(text) == length and text[start : start + len(own)] == own
            assert consists_of(text[:start] + text[start + len(own) :], other_texts)


def consists_of(around: bytes, pieces: set[bytes]) -> bool:
    """Return whether ``around`` consists of complete pieces and at most one truncated one, in any order."""

    def walk(at: int, cut: bool) -> bool:
        if at == len(around) or (not cut and any(piece.startswith(around[at:]) for piece in pieces)):
            return True
        complete = any(around.startswith(piece, at) and walk(at + len(piece), cut) for piece in pieces)
        if complete or cut:
            return complete
        starts = {piece[:n] for piece in pieces for n in range(1, len(piece)) if around.startswith(piece[:n], at)}
        return any(walk(at + len(start), True) for start in starts)

    return walk(0, False)


def test_filler_needs_other_papers(tmp_path):
    same = {split: [(row % 2, "A", "B", "text", f"text {row}") for row in range(10)] for split in SPLITS}
    task = prepared(Cache(tmp_path / "cache"), write(tmp_path / "files", same))
    with pytest.raises(UserError, match=r"task\.rows: filler needs papers other than those of the pair"):
        task.split("test", 100, "filler")


def test_floors(task):
    floors = task.floors("test")
    assert floors["majority"] == 0.5
    assert floors["bag_of_bytes"] > 0.9  # citing papers share an alphabet
    assert task.floors("test", 200, "filler")["bag_of_bytes"] < floors["bag_of_bytes"]
    assert task.floors("test", 30)["bag_of_bytes"] > 0.75


def test_features_compare_byte_frequencies(task):
    test = join(task._rows("test", 50, "truncated", np.arange(len(PAIRS["test"]))))
    features = task.features(byte_shares(test))
    for row, (first, second) in enumerate(texts(task, "test")):
        frequencies = [np.array([text.count(byte) / len(text) for byte in range(256)]) for text in (first, second)]
        assert np.allclose(
            features[row],
            np.concatenate([abs(frequencies[0] - frequencies[1]), frequencies[0] * frequencies[1]]),
            atol=1e-6,
        )
    assert test.targets.tolist() == [pair[0] for pair in PAIRS["test"]]


def test_check_detects_duplicate_pairs():
    generator = np.random.default_rng(0)
    papers = {split: generator.integers(-(2**63), 2**63, (1000, 2)) for split in SPLITS}
    check_pairs("test", papers)
    few = {**papers, "test": papers["test"].copy()}
    few["test"][:10] = few["test"][10:20, ::-1]
    check_pairs("test", few)
    few["test"][:20] = few["test"][20:40, ::-1]
    with pytest.raises(UserError, match="retrieval test: 20 of 1,000 pairs occur more than once"):
        check_pairs("test", few)
    with pytest.raises(UserError, match="retrieval test: 30 of 1,000 pairs occur in train too"):
        check_pairs("test", {**papers, "train": np.concatenate([papers["train"], papers["test"][:30, ::-1]])})


BROKEN_LINES = {
    "no tabs": ("one long text\n", r"has 0 tabs instead of 4"),
    "too many tabs": (format_line((1, "a", "b", "text", "text\tmore")), r"has 5 tabs instead of 4"),
    "an empty line": ("\n", r"has 0 tabs instead of 4"),
    "another label": ("2.0\ta\tb\ttext\ttext\n", r"has the label '2\.0' instead of 0\.0 or 1\.0"),
    "no label": ("\ta\tb\ttext\ttext\n", r"has the label '' instead"),
    "a word": ("label\tid1\tid2\ttext1\ttext2\n", r"has the label 'label' instead"),
    "no number": ("nan\ta\tb\ttext\ttext\n", r"has the label 'nan' instead"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BROKEN_LINES)
def test_invalid_line_is_named(tmp_path, name, packed):
    line, message = BROKEN_LINES[name]
    lines = [format_line(pair) for pair in PAIRS["test"]]
    write(tmp_path / "files", packed=packed, test=[*lines[:17], line, *lines[17:]])
    cache = Cache(tmp_path / "cache")
    with pytest.raises(UserError, match=rf"^task\.source: line 18 of .*new_aan_pairs\.test\.tsv.* {message}") as caught:
        prepared(cache, tmp_path / "files")
    assert "\n" not in str(caught.value)
    assert "retrieval-pairs-test-4000" not in {entry.name for entry in cache.entries()}
    assert not list(cache.root.rglob("*building*"))


def test_invalid_utf8_and_long_lines_are_refused(tmp_path, monkeypatch):
    write(tmp_path)
    path = tmp_path / "new_aan_pairs.test.tsv"
    path.write_bytes(path.read_bytes() + b"1.0\ta\tb\ttext \xe9\ttext\n")
    with pytest.raises(UserError, match=r"line 41 of .*test\.tsv is not UTF-8"):
        prepared(Cache(tmp_path / "cache"), tmp_path)
    monkeypatch.setattr("lra_bench.data.archives.LONGEST_LINE", 300)
    path.write_bytes(b"1.0\ta\tb\t" + b"text " * 100)
    with pytest.raises(UserError, match=r"line 1 of .*test\.tsv is longer than 300 bytes"):
        prepared(Cache(tmp_path / "cache"), tmp_path)


def test_blank_lines_at_the_end_are_ignored(tmp_path, cache):
    rows = ["1.0\ta\tb\ttext\ttext\r\n", "0.0\tc\td\ttext\ttext\r\n"]
    assert len(texts(prepared(cache, write(tmp_path / "end", test=[*rows, "\r\n", "\n"])), "test")) == 2
    with pytest.raises(UserError, match=r"line 2 of .*test.tsv has 0 tabs instead of 4"):
        prepared(cache, write(tmp_path / "middle", test=[rows[0], "\n", rows[1]]))


def test_paper_without_text_becomes_a_space(tmp_path, cache):
    task = prepared(cache, write(tmp_path, test=["1.0\ta\tb\t\ttext\n", "0.0\tc\td\ttext\t"]))
    assert texts(task, "test") == [(b" ", b"text"), (b"text", b" ")]


def outside_path():
    return tarfile.TarInfo("../new_aan_pairs.train.tsv")


def link():
    member = tarfile.TarInfo("lra_release/new_aan_pairs.train.tsv")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN = {
    "an empty folder": (lambda root: None, r"does not contain new_aan_pairs\.train\.tsv"),
    "a missing table": (
        lambda root: (write(root) / "new_aan_pairs.eval.tsv").unlink(),
        "does not contain new_aan_pairs",
    ),
    "an empty table": (lambda root: write(root, test=[]), "is empty; download it again"),
    "a truncated table": (
        lambda root: truncate(write(root, packed=True) / "new_aan_pairs.test.tsv.gz"),
        r"test\.tsv\.gz is truncated",
    ),
    "a truncated release": (lambda root: truncate(write_release(root / "lra_release.gz")), r"lra_release\.gz"),
    "not a release": (
        lambda root: (root / "lra_release.gz").write_bytes(b"text"),
        r"lra_release\.gz is not a folder, tar",
    ),
    "a release without a table": (
        lambda root: write_release(root / "lra_release.gz", leave_out="eval"),
        r"lra_release\.gz does not contain new_aan_pairs\.eval\.tsv",
    ),
    "a release with a path outside": (
        lambda root: write_release(root / "lra_release.gz", more=[outside_path()]),
        "a name that leads out of the archive",
    ),
    "a release with a link": (
        lambda root: write_release(root / "lra_release.gz", more=[link()]),
        "which is a link or device",
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
    assert {entry.name for entry in cache.entries()} <= {
        "retrieval-pairs-train-4000",
        "retrieval-pairs-validation-4000",
    }
    assert not list(cache.root.rglob("*building*"))


field = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), max_size=40)


@given(pairs=st.lists(st.tuples(st.integers(0, 1), field, field, field, field), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_read_pairs_equal_written_pairs(tmp_path_factory, pairs):
    root = write(tmp_path_factory.mktemp("any"), dict.fromkeys(SPLITS, pairs))
    source = find_pairs(root)
    advanced: list[int] = []
    (examples,) = read_pairs(source, "test", 1000, advanced.append)
    ends = np.cumsum(examples.lengths.ravel())
    back = [to_bytes(each).decode() for each in np.split(examples.values, ends[:-1])]
    assert back == [text or " " for pair in pairs for text in pair[3:]]
    assert examples.targets.tolist() == [pair[0] for pair in pairs] and sum(advanced) == len(pairs)
    assert examples.extra["whole"].tolist() == [max(len(text.encode()) for text in pair[3:]) for pair in pairs]
    same = [(a[1] == b[1], a[2] == b[2]) for a in pairs for b in pairs]
    first, second = examples.extra["first"], examples.extra["second"]
    assert list(zip(np.equal.outer(first, first).ravel(), np.equal.outer(second, second).ravel(), strict=True)) == same


def test_use_before_prepare_is_refused():
    with pytest.raises(RuntimeError, match="prepare"):
        Retrieval().provenance()


@pytest.mark.slow
def test_real_papers(shared_data, tmp_path_factory):
    if not (shared_data / "aan_like").is_dir():
        pytest.skip("no pairs of papers")
    task = Retrieval(source=str(shared_data), max_length=1024, allow_partial=True)
    task.prepare(Cache(tmp_path_factory.mktemp("real")))
    assert [len(task.split(split)) for split in SPLITS] == [4430, 553, 553]
    for split, label_share in (("train", 2194 / 4430), ("validation", 280 / 553), ("test", 294 / 553)):
        task.check(split)
        assert numbers(task.split(split), "target").mean() == label_share
    assert task.provenance().partial
    assert 0.55 < task.floors("test")["bag_of_bytes"] < 0.67

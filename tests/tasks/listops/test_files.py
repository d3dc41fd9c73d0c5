"""Tests of reading ListOps tables: both layouts, validation of every line, messages that name file and line."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.data.examples import join
from lra_bench.tasks.listops.files import find_files, read_examples
from lra_bench.tasks.listops.trees import SYMBOLS
from tests.oracles.listops import evaluate, parenthesised, trees, write

GOOD = "( ( ( [MAX 4 ) 3 ) ] )\t4"
NESTED = "( ( ( [SM ( ( ( [MED 1 ) 8 ) ] ) ) 9 ) ] )\t3"


def read(path, rows=10**6, max_length=2000):
    advanced: list[int] = []
    examples = join(list(read_examples(path, rows, max_length, advanced.append)))
    assert sum(advanced) == len(examples)
    return examples


def symbols_of(examples):
    return [
        [SYMBOLS[token - 1] for token in examples.values[start : start + length]]
        for start, length in zip(examples.starts, examples.lengths, strict=True)
    ]


def table(path, lines, newline="\r\n"):
    path.write_bytes(newline.join([*lines, ""]).encode())
    return path


@given(tree_list=st.lists(trees, min_size=1, max_size=4), crlf=st.booleans(), layout=st.sampled_from(["lra", "spinn"]))
@settings(max_examples=40, deadline=None)
def test_read_examples_equal_written_examples(tmp_path_factory, tree_list, crlf, layout):
    path = tmp_path_factory.mktemp("tables") / "basic_train.tsv"
    lines = [(parenthesised(tree), str(evaluate(tree))) for tree in tree_list]
    if layout == "lra":
        text = ["Source\tTarget", *(f"{source}\t{target}" for source, target in lines)]
    else:
        text = [f"{target}\t{source}" for source, target in lines]
    examples = read(table(path, text, "\r\n" if crlf else "\n"))
    assert symbols_of(examples) == [write(tree) for tree in tree_list]
    assert examples.targets.tolist() == [evaluate(tree) for tree in tree_list]


def test_a_byte_order_mark_is_read_over(tmp_path):
    for lines in (["\ufeffSource\tTarget", GOOD], [f"\ufeff{GOOD}"]):
        assert read(table(tmp_path / "a.tsv", lines)).targets.tolist() == [4]


def test_plain_and_gzipped_tables_are_equal_and_rows_limits_examples(tmp_path):
    plain = table(tmp_path / "a.tsv", ["Source\tTarget", *([GOOD, NESTED] * 700)])
    packed = tmp_path / "a.tsv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain).targets.tolist() == read(packed).targets.tolist() == [4, 3] * 700
    assert read(plain, rows=513).targets.tolist() == ([4, 3] * 700)[:513]
    assert read(plain, rows=512).targets.tolist() == [4, 3] * 256


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("( ( ( [MAX 4 ) 3 ) ] )", "has 0 tabs"),
        ("", "has 0 tabs"),
        (f"{GOOD}\t4", "has 2 tabs"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t3", "its label is 3 but its value is 4"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t12", "label '12' instead of a digit"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t", "label '' instead of a digit"),
        ("( ( ( [MEAN 4 ) 3 ) ] )\t4", r"unknown symbol '\[MEAN'"),
        ("( ( ( [MAX 4 ) 11 ) ] )\t4", "unknown symbol '11'"),
        ("( ( ( [MAX 4 ) 3 )\t4", "a bracket is not closed"),
        ("( ( ( [MAX 4 ) 3 ) ] ] )\t4", "continues after its end"),
        ("( ( ( 4 ) 3 ) ] )\t4", "continues after its end"),
        ("( [MAX ] )\t4", "no arguments"),
        ("\t4", "it is empty"),
    ],
)
def test_invalid_line_is_named(tmp_path, line, message):
    lines = ["Source\tTarget", *([GOOD] * 600), line, GOOD]
    with pytest.raises(UserError, match=rf"^task\.source: line 602 of .*basic_val\.tsv .*{message}") as caught:
        read(table(tmp_path / "basic_val.tsv", lines))
    assert "\n" not in str(caught.value)


def test_long_examples_are_refused_instead_of_truncated(tmp_path):
    path = table(tmp_path / "a.tsv", ["Source\tTarget", GOOD, NESTED])
    assert len(read(path, max_length=7)) == 2
    with pytest.raises(UserError, match=r"line 3 of .* has 7 tokens, more than task\.max_length=6"):
        read(path, max_length=6)


def test_files_without_examples_are_refused(tmp_path):
    for lines, message in (([], "is empty"), (["Source\tTarget"], "contains no examples")):
        with pytest.raises(UserError, match=message):
            read(table(tmp_path / "a.tsv", lines, "\n" if lines else ""))


def test_blank_lines_at_the_end_are_ignored(tmp_path):
    assert read(table(tmp_path / "a.tsv", ["Source\tTarget", GOOD, NESTED, "", " "])).targets.tolist() == [4, 3]


def test_truncated_or_damaged_archive_is_refused(tmp_path):
    packed = gzip.compress("\r\n".join(["Source\tTarget", *([GOOD] * 5000)]).encode())
    path = tmp_path / "a.tsv.gz"
    damaged = packed[:20] + b"\xff" * 40 + packed[60:]
    for content, message in ((packed[:-9], "is truncated"), (damaged, "cannot be read"), (b"no archive", "has 0 tabs")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.tsv\.gz {message}"):
            read(path)


def test_official_files_are_found_in_known_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    cache = Cache(tmp_path / "cache")

    def find(source):
        return find_files(str(source), ("listops-1000", "listops"), cache)

    def write_files(folder):
        folder.mkdir(parents=True)
        splits = {"train": "train", "validation": "val", "test": "test"}
        return {name: table(folder / f"basic_{short}.tsv", ["Source\tTarget", GOOD]) for name, short in splits.items()}

    for source in ("official", tmp_path):
        with pytest.raises(UserError, match=r"^task\.source.*basic_train\.tsv.*task\.source=generated"):
            find(source)
    expected = write_files(cache.root / "raw" / "listops")
    assert find("official") == expected
    expected = write_files(tmp_path / "listops-1000")
    assert find(tmp_path) == find(tmp_path / "listops-1000") == expected
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path))
    assert find("official") == expected


def test_labels_of_the_original_files_are_accepted(shared_data):
    # Reading compares each label with the value of the tree and raises if they differ.
    files = find_files(str(shared_data), ("listops",), Cache())
    assert [len(read(path)) for path in files.values()] == [2000, 500, 500]
    short = read(shared_data / "listops" / "spinn_test_d20s.tsv.gz")
    assert len(short) == 10_000 and round(float(np.mean(short.lengths))) == 43

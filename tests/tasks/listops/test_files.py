"""Reading ListOps tables: both layouts, every line checked, mistakes told by file and line."""

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


@given(several=st.lists(trees, min_size=1, max_size=4), crlf=st.booleans(), layout=st.sampled_from(["lra", "spinn"]))
@settings(max_examples=40, deadline=None)
def test_reads_what_was_written(tmp_path_factory, several, crlf, layout):
    path = tmp_path_factory.mktemp("tables") / "basic_train.tsv"
    lines = [(parenthesised(tree), str(evaluate(tree))) for tree in several]
    if layout == "lra":
        text = ["Source\tTarget", *(f"{source}\t{target}" for source, target in lines)]
    else:
        text = [f"{target}\t{source}" for source, target in lines]
    examples = read(table(path, text, "\r\n" if crlf else "\n"))
    assert symbols_of(examples) == [write(tree) for tree in several]
    assert examples.targets.tolist() == [evaluate(tree) for tree in several]


def test_plain_and_gzipped_are_the_same_and_rows_can_be_fewer(tmp_path):
    plain = table(tmp_path / "a.tsv", ["Source\tTarget", *([GOOD, NESTED] * 700)])
    packed = tmp_path / "a.tsv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain).targets.tolist() == read(packed).targets.tolist() == [4, 3] * 700
    assert read(plain, rows=513).targets.tolist() == ([4, 3] * 700)[:513]
    assert read(plain, rows=512).targets.tolist() == [4, 3] * 256


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("( ( ( [MAX 4 ) 3 ) ] )", "has 0 tabs"),
        ("", "has 0 tabs"),
        (f"{GOOD}\t4", "has 2 tabs"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t3", "its label is 3 but its value is 4"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t12", "label '12' instead of a digit"),
        ("( ( ( [MAX 4 ) 3 ) ] )\t", "label '' instead of a digit"),
        ("( ( ( [MEAN 4 ) 3 ) ] )\t4", r"unknown symbol '\[MEAN'"),
        ("( ( ( [MAX 4 ) 11 ) ] )\t4", "unknown symbol '11'"),
        ("( ( ( [MAX 4 ) 3 )\t4", "a bracket is never closed"),
        ("( ( ( [MAX 4 ) 3 ) ] ] )\t4", "goes on after its end"),
        ("( ( ( 4 ) 3 ) ] )\t4", "goes on after its end"),
        ("( [MAX ] )\t4", "no arguments"),
        ("\t4", "it is empty"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, told):
    lines = ["Source\tTarget", *([GOOD] * 600), line, GOOD]
    with pytest.raises(UserError, match=rf"^task\.source: line 602 of .*basic_val\.tsv .*{told}") as caught:
        read(table(tmp_path / "basic_val.tsv", lines))
    assert "\n" not in str(caught.value)


def test_rows_are_never_cut(tmp_path):
    path = table(tmp_path / "a.tsv", ["Source\tTarget", GOOD, NESTED])
    assert len(read(path, max_length=7)) == 2
    with pytest.raises(UserError, match=r"line 3 of .* has 7 tokens, more than task\.max_length=6"):
        read(path, max_length=6)


def test_files_without_examples(tmp_path):
    for lines in ([], ["Source\tTarget"]):
        with pytest.raises(UserError, match="holds no examples"):
            read(table(tmp_path / "a.tsv", lines, "\n" if lines else ""))


def test_a_cut_or_damaged_archive(tmp_path):
    packed = gzip.compress("\r\n".join(["Source\tTarget", *([GOOD] * 5000)]).encode())
    path = tmp_path / "a.tsv.gz"
    damaged = packed[:20] + b"\xff" * 40 + packed[60:]
    for content, told in ((packed[:-9], "is cut short"), (damaged, "cannot be read"), (b"no archive", "has 0 tabs")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.tsv\.gz {told}"):
            read(path)


def test_finds_official_names_in_known_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    cache = Cache(tmp_path / "cache")

    def found(source):
        return find_files(str(source), ("listops-1000", "listops"), cache)

    def put(folder):
        folder.mkdir(parents=True)
        splits = {"train": "train", "validation": "val", "test": "test"}
        return {name: table(folder / f"basic_{short}.tsv", ["Source\tTarget", GOOD]) for name, short in splits.items()}

    for source in ("official", tmp_path):
        with pytest.raises(UserError, match=r"^task\.source.*basic_train\.tsv.*task\.source=generated"):
            found(source)
    expected = put(cache.root / "raw" / "listops")
    assert found("official") == expected
    expected = put(tmp_path / "listops-1000")
    assert found(tmp_path) == found(tmp_path / "listops-1000") == expected
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path))
    assert found("official") == expected


def test_every_label_of_the_original_files_is_ours(shared_data):
    # Reading holds each label against the tree; a wrong one would raise.
    files = find_files(str(shared_data), ("listops",), Cache())
    assert [len(read(path)) for path in files.values()] == [2000, 500, 500]
    short = read(shared_data / "listops" / "spinn_test_d20s.tsv.gz")
    assert len(short) == 10_000 and round(float(np.mean(short.lengths))) == 43

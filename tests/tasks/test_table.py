"""Tasks on tables of the user: formats, splits, floors, other lengths, and what is wrong with a table."""

import csv
import importlib
import json
import tracemalloc
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lra_bench import bench, evaluate, task_from
from lra_bench.config.loading import override
from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.checks import check_split
from lra_bench.tasks.table import Hub, Table, content, files
from tests.support.command import Folder
from tests.support.hub_host import REVISION, hub

SPLITS = ("train", "validation", "test")
REVIEWS = Path(__file__).parents[1] / "support" / "own_table" / "reviews.csv"


def rows_of(path=REVIEWS):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def prepared(cache, kind=Table, **options):
    task = kind(**options)
    task.prepare(Cache(cache))
    return task


def saved(root, rows):
    datasets.Dataset.from_list(rows).save_to_disk(str(root / "saved"))
    return root / "saved"


def lines(root, rows):
    (root / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return root / "rows.jsonl"


def parquet(root, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "rows.parquet")
    return root / "rows.parquet"


FORMATS = {
    "tsv": lambda root, rows: write(root / "rows.tsv", rows, "\t"),
    "jsonl": lines,
    "parquet": parquet,
    "save_to_disk": saved,
}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("cache"), path=str(REVIEWS), max_length=64)


def test_examples_are_the_bytes_and_the_class_of_each_row(reviews):
    expected = {(row["text"].encode()[:64], row["label"]) for row in rows_of()}
    found = set()
    for name in SPLITS:
        check_split(reviews.split(name), reviews.spec, name)
        reviews.check(name)
        for row in reviews.split(name):
            found.add((bytes(token - 1 for token in row["tokens"]), ("neg", "pos")[row["target"]]))
            assert row["length"] == len(row["tokens"])
    assert found == expected
    assert (reviews.spec.classes, reviews.spec.vocabulary_size, reviews.spec.train_length) == (2, 257, 64)


def test_splits_depend_on_the_text_only(reviews, tmp_path):
    rows = rows_of()
    grown = prepared(tmp_path, path=str(write(tmp_path / "grown.csv", [*rows[::-1], *rows[:30]])), max_length=64)
    for name in SPLITS:
        texts = [{tuple(tokens) for tokens in task.split(name)["tokens"]} for task in (reviews, grown)]
        assert texts[0] == texts[1]
    sizes = [len(reviews.split(name)) for name in SPLITS]
    assert sum(sizes) == len(rows) and 0.7 < sizes[0] / len(rows) < 0.9
    assert "drawn by a hash of the input" in reviews.provenance().source


def test_a_seed_draws_other_splits(reviews, tmp_path):
    other = prepared(tmp_path, path=str(REVIEWS), max_length=64, seed=3)
    assert other.split("test")["tokens"] != reviews.split("test")["tokens"]
    assert other.fingerprint() != reviews.fingerprint()


@pytest.mark.parametrize("format", FORMATS)
def test_formats_with_the_same_rows_are_the_same_task(format, reviews, tmp_path):
    path = FORMATS[format](tmp_path, rows_of())
    task = prepared(tmp_path / "cache", path=str(path), max_length=64)
    assert task.fingerprint() == reviews.fingerprint()
    assert task.provenance().checksums == reviews.provenance().checksums


def test_another_row_is_another_version(reviews, tmp_path):
    changed = Table(path=str(write(tmp_path / "reviews.csv", [*rows_of(), {"text": "new", "label": "pos"}])))
    assert changed.spec.version != reviews.spec.version and changed.fingerprint() != reviews.fingerprint()


def test_the_splits_of_a_folder_are_kept(tmp_path):
    rows = rows_of()
    for name, own in {"train": rows[:100], "dev": rows[100:130]}.items():
        write(tmp_path / f"{name}.csv", own)
    task = prepared(tmp_path / "cache", path=str(tmp_path))
    assert len(task.split("test")) == 30 and len(task.split("train")) + len(task.split("validation")) == 100
    assert "test is the split validation" in task.provenance().source


def test_floors_and_other_lengths(reviews):
    floors = reviews.floors("test")
    assert set(floors) == {"majority", "bag_of_bytes"} | {
        f"{rule}_{unit}" for rule in ("naive_bayes", "linear") for unit in ("words", "bytes")
    }
    assert floors["linear_words"] >= floors["majority"]
    assert max(reviews.split("test", 128)["length"]) == 128
    assert "no test example is longer than" in reviews.supports_length(100_000)


def test_several_classes_and_whole_numbers_as_labels(tmp_path):
    rows = [{"text": row["text"], "label": 10 - n % 3} for n, row in enumerate(rows_of())]
    task = prepared(tmp_path, path=str(parquet(tmp_path, rows)))
    assert task.content.classes == ["8", "9", "10"] and task.spec.classes == 3
    assert 0 < task.floors("test")["linear_bytes"] <= 1


def test_pairs_of_texts(tmp_path):
    rows = [{"a": row["text"], "b": f"{row['text']} again", "label": row["label"]} for row in rows_of()]
    task = prepared(tmp_path, path=str(write(tmp_path / "pairs.csv", rows)), text=["a", "b"], max_length=32)
    assert task.spec.kind == "matching"
    check_split(task.split("train"), task.spec, "train")
    assert Rows(task.split("test"), task.spec).batch([0]).tokens.shape == (1, 2, 32)
    assert "linear_words" in task.floors("test")


def series():
    random = np.random.default_rng(0)
    for n in range(200):
        yield n, random.normal(3 + n % 2, 2, size=(8, 2))


@pytest.mark.parametrize("shape", ["columns", "lists", "text"])
def test_series_of_numbers(shape, tmp_path):
    if shape == "columns":
        rows = [{**{f"t{i}": x for i, x in enumerate(each[:, 0])}, "label": n % 2} for n, each in series()]
        path, values, channels = write(tmp_path / "series.csv", rows), ["t*"], 1
    else:
        as_cell = (lambda column: " ".join(map(str, column))) if shape == "text" else list
        rows = [{"x": as_cell(each[:, 0]), "y": as_cell(each[:, 1]), "label": n % 2} for n, each in series()]
        path, values, channels = FORMATS["parquet"](tmp_path, rows), ["x", "y"], 2
    task = prepared(tmp_path / "cache", path=str(path), values=values)
    assert (task.spec.channels, task.spec.train_length, task.spec.vocabulary_size) == (channels, 8, None)
    for name in SPLITS:
        check_split(task.split(name), task.spec, name)
    train = np.array(task.split("train")["values"]).reshape(-1, channels)
    assert np.abs(train.mean(axis=0)).max() < 1e-5 and train.std(axis=0) == pytest.approx([1] * channels, abs=1e-3)
    assert set(task.floors("test")) == {"majority", "linear_summary", "linear_values"}
    assert max(task.split("test", 4)["length"]) == 4


def spoiled(root, name):
    rows, path = rows_of(), root / "own.csv"
    if name == "missing text":
        rows[16]["text"] = " "
    if name == "one class":
        rows = [row for row in rows if row["label"] == "pos"]
    if name == "a class missing in a split":
        rows = [*rows, {"text": "rare", "label": "mixed"}]
    if name == "numbers as labels":
        rows = [{**row, "label": 0.5} for row in rows]
        return parquet(root, rows)
    write(path, rows, ";" if name == "wrong delimiter" else ",")
    lines = path.read_text().split("\n")
    if name == "duplicate headers":
        lines = ["text,text", *lines[1:]]
    if name == "wrong column":
        lines = ["review,label", *lines[1:]]
    if name == "unquoted delimiter":
        lines[5] = "a, b, c,pos"
    if name == "open quote":
        lines[5] = '"never closed,pos'
    path.write_text("\n".join(lines))
    if name == "not UTF-8":
        path.write_bytes(path.read_text().encode("latin-1", "replace"))
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "missing text",
            "1 of 160 rows have no input or no label, the first is row 17; complete them, or set task.allow_",
        ),
        ("one class", "task.label: all rows have the label 'pos'; a classification needs two classes"),
        (
            "a class missing in a split",
            "has the class 'mixed'; set task.seed to another number, add such rows or remove",
        ),
        ("duplicate headers", "own.csv has several columns 'text'; rename all but one"),
        ("wrong delimiter", "has a single column 'text;label', so its delimiter is not ','; set task.delimiter=';'"),
        ("wrong column", "task.text=text: task.path="),
        ("unquoted delimiter", "line 6 of own.csv has 4 cells instead of 2; quote texts that contain ','"),
        ("open quote", "cannot be read (line "),
        ("not UTF-8", "is not UTF-8"),
        ("numbers as labels", "row 1 has the label 0.5; task.label must name a column of words or integers"),
    ],
)
def test_what_is_wrong_is_one_sentence(name, words, tmp_path):
    with pytest.raises(UserError) as raised:
        prepared(tmp_path / "cache", path=str(spoiled(tmp_path, name)))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_rows_without_text_can_be_left_out(tmp_path):
    task = prepared(tmp_path / "cache", path=str(spoiled(tmp_path, "missing text")), allow_partial=True)
    assert sum(len(task.split(name)) for name in SPLITS) == 159
    assert task.provenance().partial == "without 1 rows that lack input or label"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "task.path: names no table"),
        ({"path": "absent.csv"}, "task.path=absent.csv: does not exist"),
        ({"path": str(REVIEWS), "text": ["a", "b", "c"]}, "has 3 columns; name one, or two for pairs of texts"),
        ({"path": str(REVIEWS), "delimiter": "ab"}, "task.delimiter=ab: must be one character"),
        ({"path": str(REVIEWS), "label": "text"}, "no row of the split"),
        ({"path": str(REVIEWS), "values": ["text"]}, "neither a finite number nor a list of them"),
        ({"path": str(REVIEWS), "values": ["label"], "tokenizer": "bert"}, "task.tokenizer: applies to texts"),
        ({"path": str(REVIEWS), "splits": {"test": "dev"}}, "task.splits: task.path="),
    ],
)
def test_wrong_options_are_one_sentence(options, words, tmp_path):
    with pytest.raises(UserError) as raised:
        prepared(tmp_path, **options)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_inputs_shared_by_given_splits_are_reported(tmp_path):
    rows = rows_of()
    for name, own in {"train": rows, "test": rows[:40]}.items():
        write(tmp_path / f"{name}.csv", own)
    task = prepared(tmp_path / "cache", path=str(tmp_path))
    with pytest.raises(UserError, match="inputs of test are also in train; remove them"):
        task.check("test")


def test_a_tokenizer_gives_its_tokens(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    words = {
        word: n for n, word in enumerate(["[UNK]", *sorted({w for row in rows_of() for w in row["text"].split()})])
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    task = prepared(tmp_path / "cache", path=str(REVIEWS), tokenizer=str(tmp_path / "tokenizer.json"), max_length=16)
    check_split(task.split("test"), task.spec, "test")
    expected = {tuple(words[word] for word in row["text"].split()[:16]) for row in rows_of()}
    assert {tuple(row) for row in task.split("test")["tokens"]} <= expected
    assert task.spec.vocabulary_size == len(words) and "linear_words" in task.floors("test")


def byte_pairs(size):
    """Return a tokenizer with ``size`` tokens that is trained on the reviews; skip the test without its package."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=["[PAD]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator([row["text"] for row in rows_of()], trainer)
    return tokenizer


def test_stored_padding_truncation_and_special_tokens_are_not_applied(tmp_path):
    tokenizer = byte_pairs(300)
    expected = {tuple(tokenizer.encode(row["text"]).ids[:24]) for row in rows_of()}
    template = importlib.import_module("tokenizers.processors").TemplateProcessing
    tokenizer.post_processor = template("[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    task = prepared(tmp_path / "cache", path=str(REVIEWS), tokenizer=str(tmp_path), max_length=24)
    found = {tuple(tokens) for name in SPLITS for tokens in task.split(name)["tokens"]}
    assert found == expected and task.spec.vocabulary_size == tokenizer.get_vocab_size()


@pytest.mark.slow
def test_a_cell_with_a_tokenizer_is_measured_once(tmp_path, monkeypatch):
    file, folder = tmp_path / "tokenizer.json", Folder(tmp_path / "work")
    monkeypatch.setenv("LRA_BENCH_CACHE", str(folder.cache))
    overrides = {"train.steps": 8, "train.evaluate_every": 8, "measure.extrapolation_ratios": [1], "tracker": "none"}
    overrides |= {"measure.speed_lengths": [], "measure.flops": False, "hardware.threads": 1}
    options = {"protocol": "smoke", "hardware": "cpu", "overrides": overrides, "results": folder.results}
    sizes = (200, 120)
    for size in sizes:  # another content of the same file is another cell
        byte_pairs(size).save(str(file))
        reviews = task_from(REVIEWS, tokenizer=file, max_length=16)
        results = bench("bag_of_tokens", reviews, raise_on_failure=True, **options)
    records = folder.records()
    assert {record["parameters"]["embeddings"] for record in records} == {size * 64 for size in sizes}
    assert all("linear_words" in record["floors"] for record in records)
    assert evaluate(results[0], [8], write=False)["length"].tolist() == [8]

    own = [f"task.tokenizer={file}", "task.max_length=16", *(override(*each) for each in overrides.items())]
    folder.run("bench", "model=bag_of_tokens", "task=csv", f"task.path={REVIEWS}", "protocol=smoke", *own)
    assert folder.records() == records


def test_a_tokenizer_that_cannot_be_loaded_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "1")
    with pytest.raises(UserError) as raised:
        prepared(tmp_path, path=str(REVIEWS), tokenizer="owner/name")
    assert str(raised.value).startswith("task.tokenizer=owner/name: ") and "to read bytes" in str(raised.value)


@pytest.mark.slow
def test_the_memory_of_reading_does_not_grow_with_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "ITEMS_PER_TABLE", 1 << 16)
    peaks = []
    for copies in (10, 40):
        texts = (
            {"text": f"{copy} {row['text'] * 20}", "label": row["label"]} for copy in range(copies) for row in rows_of()
        )
        path = write(tmp_path / f"{copies}.csv", list(texts))
        size = path.stat().st_size
        source = files.open_path(str(path), None, {}, tmp_path / "digests")
        columns = content.Columns(["text"], "label", False)
        pyarrow_before = pyarrow.total_allocated_bytes()
        tracemalloc.start()
        for table in content._tables(source, files.ALL, columns, lambda rows: None):
            assert table.nbytes + pyarrow.total_allocated_bytes() - pyarrow_before < 1 << 20
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert size > 10 << 20 and peaks[1] < 1.2 * peaks[0] and peaks[1] < size / 5


def test_a_local_folder_is_loaded_as_from_the_hub(reviews, tmp_path):
    task = prepared(tmp_path, Hub, name=str(REVIEWS.parent), max_length=64)
    assert task.split("test")["tokens"] == reviews.split("test")["tokens"]
    assert task.spec.name == "hub"


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_downloaded_once(reviews, tmp_path):
    with hub("someone/reviews", {"train.csv": REVIEWS.read_bytes()}) as (address, requests):
        folder = Folder(tmp_path, HF_ENDPOINT=address, HF_HOME=str(tmp_path / "hub"))
        options = ["data", "prepare", "hub", "task.name=someone/reviews", "task.max_length=64"]
        sizes = ", ".join(f"{len(reviews.split(name)):,} {name}" for name in SPLITS)
        assert f"hub: {sizes} rows" in folder.run(*options).stdout
        assert [each for each in requests if f"GET /datasets/someone/reviews/resolve/{REVISION}/train.csv" in each]
        requests.clear()
        assert f"hub: {sizes} rows" in folder.run(*options).stdout
        assert not [each for each in requests if each.startswith("GET /datasets/") and each.endswith("train.csv")]
        failed = folder.run("data", "prepare", "hub", "task.name=someone/else", check=False)
    assert failed.returncode == 2 and "task.name=someone/else: cannot be loaded (" in failed.stderr

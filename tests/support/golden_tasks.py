"""First examples of every task: generated tasks at a small size, other tasks from small files."""

import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from lra_bench.build import build
from lra_bench.config.groups import option_files
from lra_bench.contracts import Task
from lra_bench.data.cache import Cache
from lra_bench.data.digest import settings_digest
from tests.support.cifar_files import write_batches

SPLITS = ("train", "validation", "test")
FIRST = 4
"""Number of examples of a split that are compared."""
LONGEST = 4_096
"""Length in tokens up to which examples of another length than the training length are compared."""
ROWS = {"rows": {"train": 12, "validation": 4, "test": 6}, "extrapolation_rows": 4}
OPTIONS: dict[str, dict] = {
    "listops": {"window": [20, 100], **ROWS},
    "enwik8": {"context": 32},
    "image": {"rows": {"train": 40, "validation": 10, "test": 10}},
    "text": {"max_length": 60, "filler_rows": 7},
    "retrieval": {"max_length": 50, "filler_rows": 7},
    "csv": {"max_length": 60},
    "hub": {"max_length": 60},
    "key_to_door": {"size": 3, "phases": [6, 3, 6], "expert_fraction": 1.0, **ROWS},
    "key_to_door_memory": {"size": 3, "phases": [6, 3, 6], "expert_fraction": 1.0, **ROWS},
}
"""Options by task; those that are not listed have ``ROWS``."""


def sentence(seed, size):
    """Return ``size`` words that depend on the seed, partly with letters beyond ASCII."""
    words = ["plain", "naïve", "grand", "weak", "café", "dull", "fine", "bad", "quite", "never"]
    return " ".join(words[(seed * 7 + place * place * (seed % 3 + 1)) % len(words)] for place in range(size))


def write_text(root):
    """Write reviews as in the authors' folder."""
    for split, count in (("train", 40), ("test", 20)):
        for row in range(count):
            label = ("neg", "pos")[row % 2]
            path = root / split / label / f"{row}_{row % 10}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{split} {row} <br /> {sentence(row, 3 + row % 20)}", encoding="utf-8")


def write_retrieval(root):
    """Write pairs of papers as in the release of Long Range Arena."""
    for split, (file, count) in {"train": ("train", 40), "validation": ("eval", 12), "test": ("test", 20)}.items():
        lines = [
            f"{row % 2:.1f}\t{split}-{row}\t{split}-{row + 1}\t"
            f"{split} {row} {sentence(row, 2 + row % 9)}\tother {row} {sentence(row * 3 + 1, 2 + row % 7)}\n"
            for row in range(count)
        ]
        (root / f"new_aan_pairs.{file}.tsv").write_text("".join(lines), encoding="utf-8")


def write_image(root):
    """Write random pictures in the format of CIFAR-10."""
    train, test = 60, 30
    pixels = (np.arange((train + test) * 32 * 32 * 3, dtype=np.int64) ** 2 // 7 % 251).astype(np.uint8)
    colours, labels = pixels.reshape(-1, 32, 32, 3), np.arange(train + test) % 10
    parts = {False: (colours[:train], labels[:train]), True: (colours[train:], labels[train:])}
    write_batches(SimpleNamespace(split=lambda test: parts[test]), root)


def write_enwik8(root):
    """Write a short text in place of the encyclopedia."""
    (root / "enwik8").write_text(sentence(5, 800), encoding="utf-8")


def write_table(root):
    """Write a table of texts of three classes."""
    lines = [f'"{row} {sentence(row, 3 + row % 20)}",{"abc"[row % 3]}\n' for row in range(90)]
    (root / "table.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")


FILES = {
    "text": write_text,
    "retrieval": write_retrieval,
    "image": write_image,
    "enwik8": write_enwik8,
    "csv": write_table,
    "hub": write_table,
}
"""Function that writes the files of a task to a folder, for tasks that read files."""
NAMED_BY = {"csv": "path", "hub": "name"}
"""Option with the path of the files; by default ``source``."""


def task_output(name, node):
    """Return digests of the first examples of all splits and of the test split at other lengths."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        environment.delenv("LRA_BENCH_DATA", raising=False)
        return _output(name, node, Path(folder))


def _output(name, node, folder):
    source = folder / "files"
    source.mkdir()
    if name in FILES:
        FILES[name](source)
        node = {**node, NAMED_BY.get(name, "source"): str(source), "allow_partial": True}
    task = build(node, Task, "task")  # type: ignore[type-abstract]
    task.prepare(Cache(folder / "cache"))
    output = {split: first_rows(task.split(split)) for split in SPLITS}
    trained = task.spec.train_length
    if task.spec.kind != "language_modeling":
        for variant in task.variants:
            for length in (4 * trained, trained // 4):
                if task.supports_length(length, variant) is None and length <= LONGEST:
                    output[f"{variant} {length}"] = first_rows(task.split("test", length, variant))
    return output


def first_rows(dataset):
    """Return a digest of the first examples of a split; numbers that are not integers are rounded to 1e-6."""
    rows = dataset.select(range(min(FIRST, len(dataset)))).to_list()
    return settings_digest([_rounded(row) for row in rows])


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def _cases():
    for name, file in option_files("task").items():
        node = {**yaml.safe_load(file.read_text(encoding="utf-8")), **OPTIONS.get(name, ROWS)}
        yield f"task {name}", node, partial(task_output, name, node)


CASES = {name: (node, output) for name, node, output in _cases()}
"""Configuration node and function of the output, by name of the case."""

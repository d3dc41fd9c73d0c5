"""Time and memory of building all tables and files from thousands of records."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lra_bench.figures import figure_names, tabulate
from lra_bench.page.page import page
from lra_bench.records.store import load_all
from lra_bench.tables.layouts import LAYOUTS
from tests.support import large_results
from tests.support.record_factory import make_record

SYSTEMS = ("transformer", "bag_of_tokens", "linear")
NEEDS_FILES = ("learning_curves",)
# These require several training lengths, other tasks, searched cells, pairs, or systems with memory or adaptive depth.
OTHER = ("score_vs_length", "abilities", "middle_phase", "rate_search", "score_vs_memory", "score_vs_depth")
DRAWN = tuple(name for name in figure_names() if name not in (*OTHER, "depth_by_slice", "minimal_pairs", "gain"))

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathfinder128", "copy", "recall", "needle", "enwik8")


def fill(root: Path, models: int) -> int:
    """Write records of several models under two protocols with ten tasks and five seeds; return their number."""
    count = 0
    for number in range(models):
        model = "transformer" if number == 0 else f"model{number}"
        for protocol in ("small", "lra"):
            for task in TASKS:
                for seed in range(5):
                    level = 0.3 + 0.001 * number + 0.01 * (seed % 3)
                    record = make_record(model, task, seed, protocol=protocol, hash=f"{number:08x}", accuracy=level)
                    path = root / "runs" / record.key.file("json")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(record.to_dict()), encoding="utf-8")
                    count += 1
    return count


USED = """
import atexit, pathlib, re, resource, sys
def used():
    own, helper = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = sum(each.ru_utime + each.ru_stime for each in (own, helper))
    status = pathlib.Path("/proc/self/status")  # ru_maxrss begins with the size of the process that started this one
    peak = re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1] if status.exists() else 0
    print(seconds, peak, helper.ru_maxrss if status.exists() else 0, file=sys.stderr)
atexit.register(used)
from lra_bench.cli import main
main.main()
"""


def used_by(*arguments: str) -> tuple[float, int, int]:
    """Return the CPU seconds of a command including its second process, and the peak KiB of each process."""
    done = subprocess.run([sys.executable, "-c", USED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds, own, helper = done.stderr.splitlines()[-1].split()
    return float(seconds), int(own), int(helper)


@pytest.mark.slow
@pytest.mark.alone
def test_export_of_5000_records_takes_less_than_60_s_and_1_gib(tmp_path: Path) -> None:
    assert fill(tmp_path, 50) == 5000
    seconds, own, _ = used_by("leaderboard", "--write", "--results", str(tmp_path))
    assert len(list(tmp_path.glob("*.*"))) == 4 * 4 + 1 + 2 + 1  # layouts, page, LaTeX of two protocols, bibliography
    # CPU time depends little on the load. It was 35 s on an AMD EPYC without AVX-512.
    assert seconds < 60
    assert own < 2**20


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("seeds", "protocols", "count", "most_seconds"),
    [(1, ("quick",), 532, 200), pytest.param(5, ("quick", "small"), 5320, 400, marks=pytest.mark.long)],
    ids=["five hundred", "five thousand"],
)
def test_tables_and_figures_of_76_systems_take_less_than_1_gib(
    tmp_path: Path, seeds: int, protocols: tuple[str, ...], count: int, most_seconds: float
) -> None:
    systems = large_results.SYSTEMS[:76]
    assert large_results.fill(tmp_path, systems, seeds=seeds, protocols=protocols) == count
    total = 0.0
    for command in (("leaderboard", "--write"), ("plot", "all")):
        seconds, own, helper = used_by(*command, "--results", str(tmp_path))
        total += seconds
        assert own + helper < 2**20  # upper bound: the peaks occur at different times
    figures = [path.name for path in (tmp_path / "figures").glob("*.pdf")]
    for name in DRAWN:
        assert sum(file.startswith(f"{name}-") for file in figures) >= len(protocols), name
    # CPU time of two processes; the limit allows for a slow machine under load.
    assert total < most_seconds


@pytest.mark.slow
def test_each_learning_curve_is_read_once_with_two_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, tuple[str, ...]]] = []

    class Counted(pq.ParquetFile):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.name = str(path)

        def read(self, columns: list[str] | None = None) -> pa.Table:
            read.append((self.name, tuple(columns or ())))
            return super().read(columns)

    large_results.fill(tmp_path, SYSTEMS, ("listops", "enwik8"), seeds=2)
    records = load_all(tmp_path)
    expected = sorted((str(path), ("step", "validation_score")) for path in tmp_path.rglob("*.curves.parquet"))
    monkeypatch.setattr(pq, "ParquetFile", Counted)
    for name in DRAWN:
        tabulate(name, records)
    assert sorted(read) == expected
    read.clear()
    page(records, {name: layout.make(records) for name, layout in LAYOUTS.items()})
    assert sorted(read) == expected


@pytest.mark.slow
def test_size_of_figure_data_is_independent_of_the_number_of_seeds() -> None:
    rows = []
    for seeds in (1, 4):
        records = list(large_results.study(SYSTEMS, ("listops", "enwik8"), seeds))
        rows.append({name: len(tabulate(name, records)) for name in DRAWN if name not in NEEDS_FILES})
    assert rows[0] == rows[1]
    assert min(rows[0].values()) >= 2 * len(SYSTEMS) - 2


def test_memory_per_record_is_small(tmp_path: Path) -> None:
    count = large_results.fill(tmp_path, SYSTEMS, ("listops", "enwik8"), seeds=5)
    load_all(tmp_path)  # allocates caches shared by all records
    tracemalloc.start()
    records = load_all(tmp_path)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(records) == count
    assert size / count < 60_000  # 300 MB for 5,000 records

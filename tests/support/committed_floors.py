"""Compute the floors in ``tasks/floors.npz``: ``python -m tests.support.committed_floors [TASK ...]``.

The file contains what the cells of ``PROTOCOLS`` ask for, for tasks of which the data is generated or complete in
``$LRA_BENCH_DATA``, so that a first run does not compute it. Only the entries of the named tasks are replaced. Run it
after a change of floors, with ``FLOORS_VERSION`` in ``tasks/floor_rows.py`` raised.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np

from lra_bench.config import compose
from lra_bench.config.groups import option_files
from lra_bench.config.objects import build_task
from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.windows import cut_all
from lra_bench.measurements.contexts import region_of
from lra_bench.tasks import floor_rows

FILE = Path(__file__).parents[2] / "tasks" / "floors.npz"
PROTOCOLS = ("quick",)
OPTIONS = {"enwik8": ["task.allow_partial=true"]}
"""Options by task. The first bytes of enwik8 are enough for protocols that use no others."""


def composed(protocol, name):
    """Return the configuration of a cell of a task."""
    return compose.compose([f"task={name}", f"protocol={protocol}", *OPTIONS.get(name, [])]).config


def ask_for_floors(task, config):
    """Call what a cell calls to get floors and rungs: for the splits, each length and variant, and slices."""
    measure, trained = config.measure, task.spec.train_length
    lengths = [round(trained * ratio) for ratio in measure.extrapolation_ratios]
    task.floors("test")
    if task.spec.kind == "language_modeling":
        rows = {split: Rows(task.split(split), task.spec) for split in ("validation", "test")}
        scored = cut_all(rows["validation"].lengths, trained, config.train.validation_tokens)
        task.floors_between("validation", scored.spans, trained)
        region = region_of(rows["test"], max(lengths), measure.extrapolation_tokens)
        for window in (*lengths, None):
            task.floors_between("test", region.spans, window)
        return
    task.floors("validation")
    task.rungs("test")
    if task.slices("test"):
        task.floor_targets("test")
    for variant in task.variants:
        for length in lengths:
            if task.supports_length(length, variant) is None:
                task.floors("test", length, variant)


def columns_of(cache, name, key):
    """Return the columns that are stored in the cache; columns of zeros and ones are boolean."""

    def missing(*_):
        raise RuntimeError(f"{name}-{key}: is not in the cache")

    if cache.path(name, key).is_dir():
        table = cache.dataset(name, key, missing, 0, "").data
        columns = {rule: table.column(rule).to_numpy() for rule in table.column_names}
    else:
        columns = {rule: np.float64(value) for rule, value in cache.note(name, key, missing).items()}
    return {
        rule: values.astype(bool) if values.ndim and np.isin(values, (0, 1)).all() else values
        for rule, values in columns.items()
    }


def computed(protocol, name, cache):
    """Return the entries of a task, computed again; raises ``UserError`` if its data is not complete."""
    asked = []

    def record(entry, key):
        if (entry, key) not in asked:
            asked.append((entry, key))
            shutil.rmtree(cache.path(entry, key), ignore_errors=True)
            cache.path(entry, key).with_name(f"{entry}-{key}.json").unlink(missing_ok=True)
        return {}

    config = composed(protocol, name)
    task = build_task(config)
    task.prepare(cache)
    lookup, floor_rows.committed = floor_rows.committed, record
    try:
        ask_for_floors(task, config)
    finally:
        floor_rows.committed = lookup
    return {
        f"{entry}-{key}/{rule}": values
        for entry, key in asked
        for rule, values in columns_of(cache, entry, key).items()
    }


def _name_and_key(entry):
    """Return what entries are sorted by, so that the rules of one stay in order: the first of equal rules is shown."""
    return entry.split("/")[0]


def main(names):
    """Recompute the floors of the named tasks, by default of all tasks."""
    with np.load(FILE) as file:
        entries = {entry: file[entry] for entry in file.files}
    tasks = names or list(option_files("task"))
    entries = {entry: values for entry, values in entries.items() if entry.split("-")[0] not in tasks}
    for protocol in PROTOCOLS:
        for name in tasks:
            start = time.perf_counter()
            try:
                found = computed(protocol, name, Cache())
            except UserError as error:
                print(f"{protocol} {name}: {error}")
                continue
            entries |= found
            print(f"{protocol} {name}: {len(found)} columns, {time.perf_counter() - start:.1f} s", flush=True)
    np.savez_compressed(FILE, **{entry: entries[entry] for entry in sorted(entries, key=_name_and_key)})
    print(f"{FILE}: {len(entries)} columns, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Records with a wrong value in any field are refused in one sentence, or shown without an error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from lra_bench.contracts import UserError
from lra_bench.page import facts
from lra_bench.records import store
from lra_bench.tables import export
from lra_bench.tables.describe import describe
from lra_bench.tables.layouts import LAYOUTS
from tests.support.malformed import STRANGE

COMMITTED = Path(__file__).parents[2] / "results" / "reference"
BOARDS = ("board2026", "adaptive_depth", "memory")


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON object, of lists those of the first two entries."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from paths(entry, (*path, name))


def spoiled(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    """Return the JSON of a record with another value at ``path``."""
    changed = copy.deepcopy(record)
    node = changed
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return json.dumps(changed).encode()


def first_record(board: str) -> dict[str, Any]:
    with (COMMITTED / board / "records.jsonl").open(encoding="utf-8") as lines:
        record: dict[str, Any] = json.loads(next(lines))
    return record


def fields_of(board: str) -> list[tuple[Any, ...]]:
    """Return the fields that are changed in the record of a board; each field is changed in one of the boards."""
    boards: dict[tuple[Any, ...], list[str]] = {}
    for each in BOARDS:
        for path in paths(first_record(each)):
            boards.setdefault(path, []).append(each)
    return [path for number, (path, found) in enumerate(boards.items()) if found[number % len(found)] == board]


@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
def test_a_wrong_value_in_any_field_is_refused_or_shown(board: str) -> None:
    record = first_record(board)
    values, refused, shown = cycle(STRANGE), 0, 0
    for path in fields_of(board):
        try:
            read = store.read(spoiled(record, path, next(values)), "record", Path("record"))
            describe(read)
            dict(facts.groups([read]))
            for layout in ("long", "wide"):
                export.render(LAYOUTS[layout].make([read]), "markdown", layout=layout)
            shown += 1
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
        except Exception as error:
            raise AssertionError(f"{path}: {type(error).__name__}: {error}") from error
    assert refused > 50 and shown > 50

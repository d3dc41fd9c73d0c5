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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BOARDS)))
def test_a_wrong_value_in_any_field_is_refused_or_shown(number: int) -> None:
    """Change one value at a time; fields that all boards have are divided among the boards."""
    with (COMMITTED / BOARDS[number] / "records.jsonl").open(encoding="utf-8") as lines:
        record = json.loads(next(lines))
    values, refused, shown = cycle(STRANGE), 0, 0
    for path in list(paths(record))[number :: len(BOARDS)]:
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

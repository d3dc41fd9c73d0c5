"""The JSON Schema of records accepts and refuses the same records as reading them."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.schema import Record, record_schema
from lra_bench.records.values import stored_fields
from tests.records.test_every_field import BOARDS, COMMITTED, paths, spoiled
from tests.support.record_factory import make_record

WRONG = (None, "text", -1.5, True, [], {}, [{}], {"a": "b"})


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = record_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(json.loads(json.dumps(schema)))


def test_every_field_is_described(validator: Draft202012Validator) -> None:
    fields = validator.schema["properties"]
    assert fields.keys() == set(stored_fields(Record)) and all(field["description"] for field in fields.values())
    assert validator.is_valid(make_record().to_dict())
    assert not validator.is_valid({**make_record().to_dict(), "further": 1})
    assert not validator.is_valid({**make_record().to_dict(), "status": "excellent"})


@pytest.mark.slow
@pytest.mark.parametrize("board", sorted(path.parent.name for path in COMMITTED.glob("*/records.jsonl")))
def test_committed_records_are_valid(board: str, validator: Draft202012Validator) -> None:
    for line in Path(COMMITTED / board / "records.jsonl").read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))


@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
def test_a_wrong_value_is_refused_by_both_or_neither(board: str, validator: Draft202012Validator) -> None:
    with (COMMITTED / board / "records.jsonl").open(encoding="utf-8") as lines:
        record = json.loads(next(lines))
    values, refused = cycle(WRONG), 0
    for path in paths(record):
        if path[0] in ("schema_version", "artifacts"):  # other versions are upgraded; names of tables are compared
            continue
        content = spoiled(record, path, next(values))
        try:
            store.read(content, "record")
            accepted = True
        except UserError:
            accepted = False
        assert validator.is_valid(json.loads(content)) == accepted, (path, content)
        refused += not accepted
    assert refused > 100

"""The JSON Schema of a record, from the types that its fields are checked against."""

from __future__ import annotations

import inspect
import re
from typing import Any

from lra_bench.config.measurements import measurements

from .schema import STATUSES, Record
from .sections import Config
from .upgrades import SCHEMA_VERSION
from .values import json_schema


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of records of the current version, with the sections of all measurements."""
    schema = json_schema(Record)
    fields = schema["properties"]
    fields["measured"]["properties"] = {}
    for measurement in measurements().values():
        for name, kind in (measurement.sections or {measurement.name: measurement.Result}).items():
            section = json_schema(kind)
            if not fields.get(name):  # Any: it may be missing
                section = {"anyOf": [section, {"type": "null"}]}
            (fields if name in fields else fields["measured"]["properties"])[name] = section
    fields["config"] = json_schema(Config)
    fields["schema_version"] = {"const": SCHEMA_VERSION}
    fields["status"] = {"enum": list(STATUSES)}
    attributes = inspect.cleandoc(Record.__doc__ or "").partition("Attributes:\n")[2]
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE):
        if name in fields:
            fields[name] = {**fields[name], "description": " ".join(text.split())}
    schema["required"].remove("measured")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Record of lra-bench"}
    return {**draft, **schema, "additionalProperties": False}

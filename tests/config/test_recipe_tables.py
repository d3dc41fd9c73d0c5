"""The tables of docs/published-recipes.md show the values of the composed configurations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lra_bench.config.compose import compose, hydra_context
from lra_bench.config.serialization import as_dict

PAGE = Path(__file__).parents[2] / "docs" / "published-recipes.md"
OPTION = re.compile(r"`((?:backbone|train|task)\.\w+)`")
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
Value = tuple[str, str, str, str]


def shown() -> list[Value]:
    """Return protocol, task, option and value of every cell of the tables."""
    found: list[Value] = []
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
            heading, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines())
            for row in rows:
                found += _row(section.split("\n", 1)[0], heading, row)
    return found


def _row(title: str, heading: list[str], row: list[str]) -> list[Value]:
    """Return the values of one row; ``title`` is the heading of its section."""
    if heading[0] == "task":  # one row per task, one column per option
        cells = [(OPTION.search(name) or OPTION.search(text), text) for name, text in zip(heading, row, strict=True)]
        texts = [(option[1], OPTION.sub("", text)) for option, text in cells if option]
        return [("small", row[0].strip("`"), option, text) for option, text in texts]
    option = OPTION.search(row[0])
    if option is None:
        return []
    protocols = re.findall(r"`(lra\w*)`", row[0]) or (["small"] if "small" in title else ["lra", "lra_released"])
    if heading[1:] == ["here", "original"]:
        return [(protocol, task, option[1], row[1]) for protocol in protocols for task in TASKS]
    return [
        (protocol, task, option[1], text)
        for protocol in protocols
        for task, text in zip(heading[1:], row[1:], strict=True)
        if text
    ]


VALUES = shown()


@pytest.fixture(scope="module")
def composed() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the configurations of a Transformer by protocol and task."""
    with hydra_context():
        cells = {value[:2] for value in VALUES}
        return {
            cell: as_dict(
                compose([f"protocol={cell[0]}", f"task={cell[1]}", "model=transformer", "hardware=cpu"]).config
            )
            for cell in cells
        }


def test_the_page_has_values_of_every_protocol_and_task():
    assert {value[:2] for value in VALUES} == {
        (protocol, task) for protocol in ("small", "lra", "lra_released") for task in TASKS
    }
    assert len(VALUES) > 300


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["small", "lra", "lra_released"])
def test_the_values_of_the_page_are_those_of_the_configuration(protocol, composed):
    wrong = []
    for found, task, option, text in VALUES:
        if found == protocol:
            section, name = option.split(".")
            expected = yaml.safe_load(re.sub(r"\(.*", "", text).strip().replace(" or ", "|"))
            value = composed[protocol, task][section][name]
            same = float(expected) == value if isinstance(value, float) else expected == value
            if not same:
                wrong.append((task, option, text, value))
    assert wrong == []

"""The tables of docs/published-recipes.md show the values of the composed configurations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lra_bench.config.compose import compose
from lra_bench.config.serialization import as_dict

PAGE = Path(__file__).parents[2] / "docs" / "published-recipes.md"
OPTION = re.compile(r"^`((?:backbone|train|task)\.\w+)`$")
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
Value = tuple[str, str, str, str]


def shown() -> list[Value]:
    """Return protocol, task, option and value of each row of the tables, for every task."""
    found: list[Value] = []
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        protocols = re.findall(r"`(\w+)`", section.split("\n", 1)[0])
        rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in section.splitlines() if line[:1] == "|")
        options = [(option[1], row[1]) for row in rows if (option := OPTION.match(row[0]))]
        found += [(protocol, task, *option) for protocol in protocols for task in TASKS for option in options]
    return found


VALUES = shown()


@pytest.fixture(scope="module")
def composed() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the configurations of a Transformer by protocol and task."""
    cells = {value[:2] for value in VALUES}
    return {
        cell: as_dict(compose([f"protocol={cell[0]}", f"task={cell[1]}", "model=transformer", "hardware=cpu"]).config)
        for cell in cells
    }


def test_the_page_has_values_of_every_protocol_and_task():
    assert {value[:2] for value in VALUES} == {
        (protocol, task) for protocol in ("small", "lra", "lra_released") for task in TASKS
    }
    assert len(VALUES) == 25


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

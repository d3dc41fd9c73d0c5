"""The site contains every page and links to it; ``make check`` builds it, and reports broken links between pages."""

from __future__ import annotations

from unittest import TestCase

import pytest
import yaml

from tests.support import site
from tests.support.agreements import ROOT


@pytest.mark.parametrize(
    ("source", "uri", "text", "expected"),
    [
        ("README.md", "index.md", "[tasks](docs/tasks.md#floors)", "[tasks](tasks.md#floors)"),
        ("README.md", "index.md", "![a](docs/figures/a.png)", "![a](figures/a.png)"),
        ("docs/gpu.md", "gpu.md", "[rules](../CONTRIBUTING.md)", "[rules](contributing.md)"),
        ("docs/gpu.md", "gpu.md", "[`x`](tasks.md)", "[`x`](tasks.md)"),
        ("README.md", "index.md", "[docs/tasks.md](docs/tasks.md)", "[Tasks](tasks.md)"),
        ("docs/gpu.md", "gpu.md", "[tasks.md](tasks.md#floors)", "[Tasks](tasks.md#floors)"),
        ("docs/gpu.md", "gpu.md", "[here](#floors)", "[here](#floors)"),
        ("docs/gpu.md", "gpu.md", "[code](https://example.org/a)", "[code](https://example.org/a)"),
        ("docs/gpu.md", "gpu.md", "[backbone](../models/backbone.py)", "backbone (`models/backbone.py`)"),
        ("docs/gpu.md", "gpu.md", "[`models/map.py`](../models/map.py)", "`models/map.py`"),
        ("docs/gpu.md", "gpu.md", "[all](../models/README.md)", "[all](systems/index.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, uri: str, text: str, expected: str) -> None:
    assert site.LINK.sub(lambda match: site.relinked(match, source, uri), text) == expected


def test_a_link_to_a_missing_file_is_a_warning() -> None:
    match = site.LINK.search("[a](../models/none.py)")
    assert match
    with TestCase().assertLogs("mkdocs", "WARNING") as found:
        site.relinked(match, "docs/gpu.md", "gpu.md")
    assert "docs/gpu.md: contains a link to ../models/none.py" in found.output[0]


def test_the_site_loads_nothing_from_other_servers() -> None:
    theme = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.BaseLoader)["theme"]
    assert theme["font"] == "false"

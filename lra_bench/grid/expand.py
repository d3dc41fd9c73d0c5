"""From overrides with lists to one list of single values per cell."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from lra_bench import config as configuration
from lra_bench.contracts import UserError


def expand(overrides: Sequence[str], config_dir: Path | None = None) -> list[list[str]]:
    """Overrides with comma lists, ranges and ``model=ALL`` as one list of single values per cell."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    choices: list[list[str]] = []
    parser = OverridesParser.create()
    for text in overrides:
        key, _, value = text.partition("=")
        if value == "ALL" and key in configuration.GROUPS:
            choices.append([f"{key}={name}" for name in configuration.option_files(key, config_dir)])
            continue
        if key == "task.source":
            choices.append([f"task.source={json.dumps(value)}" if value[:1] not in "'\"" else text])
            continue
        try:
            parsed = parser.parse_override(text)
        except HydraException as error:
            raise UserError(f"{text}: cannot be read as key=value ({str(error).splitlines()[0]})") from error
        if parsed.is_sweep_override():
            choices.append([f"{key}={each}" for each in parsed.sweep_string_iterator()])
        else:
            choices.append([text])
    return [list(cell) for cell in itertools.product(*choices)]

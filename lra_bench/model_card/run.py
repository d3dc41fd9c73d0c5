"""Check a model, run the cells and the profile of its card, and write the page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.checks.overrides import check_overrides
from lra_bench.contracts import UserError
from lra_bench.grid.execute import execute, not_run
from lra_bench.grid.notes import absences, destinations, not_used
from lra_bench.grid.profiles import profiles
from lra_bench.progress import bar, say
from lra_bench.records.key import CellKey
from lra_bench.records.reference import load_records
from lra_bench.records.store import check_writable
from lra_bench.runtime.files import replacing
from lra_bench.runtime.findings import Finding
from lra_bench.runtime.redaction import shareable

from .plan import CardRequest, plan_card

if TYPE_CHECKING:
    from lra_bench.records.schema import Record

FOLDER = "cards"
"""Folder in the results folder that contains cards."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PRINTING_SECONDS = 120.0
SOFTWARE = """@software{{lra_bench,
  author = {{{{The lra-bench authors}}}},
  title = {{{{lra-bench: a benchmark of sequence models on long inputs}}}},
  version = {{{version}}},
}}
"""


def check_model(overrides: Sequence[str], config_dir: Path | None) -> list[Finding]:
    """Return the findings of ``lra-bench check``. Raises ``UserError`` if a declaration of the model is wrong."""
    with bar(1, "Checking the model", unit="models") as advance:
        findings = check_overrides(overrides, config_dir)
        advance(1)
    if wrong := [f"{each.what}: {each.found}" for each in findings if each.ok is False]:
        raise UserError(f"model: {'; '.join(wrong)}; correct what it declares, lra-bench check prints all properties")
    return findings


def make_card(
    request: CardRequest, pdf: bool = False, ended: Callable[[Record], None] = lambda record: None
) -> tuple[list[Path], int]:
    """Check the model, measure what is not measured yet, and write its card to the results folder.

    ``pdf`` also prints the card with an installed Chromium, and ``ended`` is called with the record of each cell that
    has ended.

    Returns:
        The paths of the card, HTML and, if it was printed, PDF; and the largest exit code of the cells.

    Raises:
        UserError: If an argument is wrong, the check fails, no cell has a record, or a file cannot be written.
        KeyboardInterrupt: After Ctrl-C; the same call continues.
    """
    results, config_dir = request.results, request.config_dir
    check_writable(results)
    planned = plan_card(request)
    findings = check_model(request.overrides, config_dir)
    for line in (
        *absences(not_run(planned.cells)),
        *destinations(planned.cells, results, "never"),
        *not_used(planned.cells, results, "never"),
    ):
        say(line)
    worst, found = 0, dict[CellKey, Any]()
    for each, record, code in execute(planned.cells, results):
        worst = max(worst, code)
        if record is not None:
            found[each.cell.key] = record
            ended(record)
    cells = [record for each in planned.own if (record := found.get(each.cell.key))]
    if not cells:
        raise UserError(f"model={planned.model}: no cell of the card has a record, see the messages above")
    profile = planned.stored
    if planned.profile is not None and profile is None:
        [(profile, path)] = profiles([planned.profile], results, config_dir)
        say(f"wrote {path}")
    from lra_bench.tables.bibliography import bibliography, papers
    from lra_bench.tables.claims import REFERENCE
    from lra_bench.tables.export import write_files

    from .page import card

    with bar(1, "Drawing the card", unit="cards") as advance:
        records = load_records(results, request.reference or "none")[1]
        absent = {each.cell.key.task: each.reason for each in not_run(planned.own)}
        names = dict.fromkeys((planned.model, REFERENCE, *request.rivals))
        cited = bibliography(papers(names, config_dir).values())
        entries = f"{SOFTWARE.format(version=metadata.version('lra-bench'))}\n{cited}"
        text = card(cells, absent, records, request.rivals, findings, profile, _commands(request, cells), entries)
        advance(1)
    [path] = write_files({f"{FOLDER}/{_file_name(cells[0])}.html": text}, results)
    return [path, *([printed] if pdf and (printed := print_pdf(path)) else [])], worst


def print_pdf(page: Path) -> Path | None:
    """Print a page on A4 next to its file with an installed Chromium; without one, or if it fails, say so."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    by_hand = f"open {page} in a browser and print it"
    if program is None:
        say(f"--pdf: no Chromium is installed ({', '.join(BROWSERS)}); {by_hand}")
        return None
    path = page.with_suffix(".pdf")
    with (
        tempfile.TemporaryDirectory(prefix="lra-bench-", ignore_cleanup_errors=True) as temporary_name,
        bar(1, "Printing the card", unit="cards") as advance,
    ):
        folder = Path(temporary_name)
        options = [f"--user-data-dir={folder / 'browser'}", f"--print-to-pdf={folder / path.name}"]
        if os.geteuid() == 0:  # Chromium refuses to start its sandbox for the superuser
            options.append("--no-sandbox")
        command = [program, "--headless", "--disable-gpu", "--no-pdf-header-footer", *options, page.resolve().as_uri()]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PRINTING_SECONDS, check=True)
            with replacing(path) as temporary:
                shutil.copyfile(folder / path.name, temporary)
        except (OSError, subprocess.SubprocessError) as error:
            say(f"--pdf: {program} failed ({type(error).__name__}); {by_hand}")
            return None
        advance(1)
    return path


def _commands(request: CardRequest, cells: Sequence[Record]) -> dict[str, str]:
    """Return the commands that repeat the card and its cells, and compare its rows."""
    seeds = list(request.seeds)
    folder = ["--config-dir", str(request.config_dir)] if request.config_dir else []
    number = ["--seeds", str(len(seeds))] if seeds == list(range(len(seeds))) and len(seeds) > 1 else []
    first = cells[0]
    compared = ["compare", first.variant_name, "transformer", "--protocol", first.key.protocol]
    found = {
        "This card": shlex.join(["lra-bench", "card", *request.overrides, *number, *folder]),
        "Comparison with the Transformer": shlex.join(["lra-bench", *compared]),
        "Cells": "\n".join(record.command for record in cells),
    }
    return {what: str(shareable(command)) for what, command in found.items() if command}


def _file_name(record: Record) -> str:
    """Return a name for the file of a card that is safe for shells: variant and protocol."""
    return re.sub(r"[^\w.=-]+", "-", f"{record.variant_name}-{record.key.protocol}", flags=re.ASCII).lstrip("-.")

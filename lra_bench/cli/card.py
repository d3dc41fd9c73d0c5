"""The command ``lra-bench card``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lra_bench.errors import from_here
from lra_bench.progress import say

from .bench import print_cells
from .options import ConfigDir, DryRun, Overrides, Reference, Results, root_of


def card(
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; comparisons need three")] = 1,
    rivals: Annotated[
        str, typer.Option(help="Models that are profiled and drawn next to the model and the Transformer")
    ] = "local,mamba2",
    pdf: Annotated[bool, typer.Option("--pdf", help="Also print the card on A4 with an installed Chromium")] = False,
    dry_run: DryRun = False,
    results: Results = None,
    reference: Reference = None,
    config_dir: ConfigDir = None,
) -> None:
    """Measure a model on a fixed grid and write one page about it, which works offline.

    The card contains the abilities next to the rows of the boards, scores over length, speed, memory and inference
    state, and with three seeds what is better and worse than the Transformer. Cells that have a record are not
    measured again, and an interrupted card continues.
    """
    from lra_bench.model_card.plan import CardRequest, plan_card
    from lra_bench.model_card.run import make_card
    from lra_bench.records.reference import reference_root
    from lra_bench.runtime.files import cache_read_only
    from lra_bench.tables.naming import names_of

    root, boards = root_of(results), reference_root(reference)
    request = CardRequest(overrides or [], range(seeds), names_of(rivals), root, boards, config_dir)
    if dry_run:
        with cache_read_only():
            _print_plan(plan_card(request), root, boards)
        return
    paths, code = make_card(request, pdf=pdf, ended=lambda record: say(f"{record.key}: {record.status}"))
    for path in paths:
        print(f"Card: {from_here(path)}")
    if code:
        raise typer.Exit(code)


def _print_plan(planned: Any, root: Path, boards: Path | None) -> None:
    """Print a table of the cells, and the estimated duration of those that must run and of the profile."""
    from lra_bench.grid.cost import format_duration

    print_cells(planned.cells, [each.reason for each in planned.cells], root, boards, "never", others=True)
    if planned.profile_seconds:
        names = ", ".join(each.name for each in planned.profile.candidates)
        say(f"Profile of {names}: at least {format_duration(planned.profile_seconds)}.")
    elif planned.stored is not None:
        say("The profile is stored and is not measured again.")

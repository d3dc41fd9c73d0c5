"""The command ``lra-bench profile``: compare models with exact attention in two back-ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lra_bench.progress import say

from .options import ConfigDir, Json, Overrides, Results, print_json, print_table, root_of

if TYPE_CHECKING:
    from lra_bench.profiling.comparison.run import Profile


def profile(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    results: Results = None,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option(help="Also write the rows to this CSV file")] = None,
) -> None:
    """Compare speed, memory and FLOPs of untrained models.

    The baseline is exact attention in two back-ends. The results are stored in the results folder, and tables take
    relative speed and memory from them.
    """
    from lra_bench.grid.notes import absences
    from lra_bench.grid.profiles import comparison_plans, profiles
    from lra_bench.tables.profile import tables, write_csv

    root = root_of(results)
    planned, absent = comparison_plans(overrides or [], root, config_dir)
    for line in absences(absent):
        say(line)
    measured: list[Profile] = []
    if output is not None:
        write_csv(measured, output)  # raises an error before the measurement if the file cannot be written
    try:
        for profile, path in profiles(planned, root, config_dir):
            measured.append(profile)
            if not as_json:
                print(f"{profile.task} · {profile.protocol} · {profile.hardware}")
                for title, rows in tables(profile):
                    if rows:
                        print(f"\n{title}")
                        print_table(rows)
                for warning in profile.warnings:
                    say(f"Note: {warning}.")
            if output is not None:
                write_csv(measured, output)
            say(f"wrote {path}")
    except KeyboardInterrupt:
        say("lra-bench: interrupted; run the same command again to measure all lengths.")
        sys.exit(130)
    if as_json:
        print_json([profile.as_dict() for profile in measured])
    if absent:
        raise typer.Exit(2)

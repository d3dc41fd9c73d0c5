"""lra-bench: which sequence model to use on long inputs, measured.

The public functions import what they need when they are called, so that importing the package stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import pandas as pd

__all__ = ["load_records"]


def load_records(
    results: str | os.PathLike[str] | None = None,
    table: str = "runs",
    *,
    wandb: str | None = None,
    reference: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Load the records of a results folder as a tidy table.

    ``table`` is ``runs`` (a row per run), ``lengths`` (per run and evaluated length) or ``speed`` (per run, mode and
    timed length); ``lra_bench.leaderboard.query.documented`` explains the columns. Unknown values are missing.
    ``results`` defaults to ``$LRA_BENCH_RESULTS``, else ``./results``. Rows of the boards in ``reference`` (default:
    ``$LRA_BENCH_REFERENCE``, else those of the checkout; ``"none"`` for none) follow, with the board's name in the
    column ``reference``. With ``wandb="ENTITY/PROJECT"`` the records of a W&B project are loaded instead. Raises
    ``UserError`` if there is no such table, folder of boards, or project.
    """
    from lra_bench.contracts import UserError
    from lra_bench.leaderboard.query import TABLES, tidy
    from lra_bench.records.reference import load_reference, reference_root
    from lra_bench.records.store import load_all, results_root

    if table not in TABLES:
        raise UserError(f"table={table}: choose {', '.join(TABLES)}")
    if wandb is None:
        root = results_root(results)
        return tidy([*load_all(root), *load_reference(reference_root(reference), root)], table)
    from lra_bench.tracking.reading import load_project

    return tidy(load_project(wandb, "wandb="), table)

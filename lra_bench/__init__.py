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
    """The records of a results folder as a tidy table.

    ``lra_bench.leaderboard.query.TABLES`` documents the columns.

    ``runs`` has a row per run, ``lengths`` one per run and length that it was evaluated on, ``speed`` one per run, mode
    and length that was timed. ``results`` is the folder, else ``$LRA_BENCH_RESULTS``, else ``./results``; rows of the
    boards in ``reference`` follow (else ``$LRA_BENCH_REFERENCE``, else those of the checkout; ``"none"`` for no such
    rows) with the board's name in the column ``reference``. Unknown values are missing. With
    ``wandb="ENTITY/PROJECT"`` the records are those of a project of W&B instead. Raises ``UserError`` if there is no
    such table, folder of boards, or project.
    """
    from lra_bench.contracts import UserError
    from lra_bench.leaderboard.query import TABLES, tidy
    from lra_bench.records.reference import load_reference, reference_root
    from lra_bench.records.store import load_all, results_root
    from lra_bench.tracking.reading import load_project

    if table not in TABLES:
        raise UserError(f"table={table}: choose {', '.join(TABLES)}")
    if wandb is None:
        root = results_root(results)
        return tidy([*load_all(root), *load_reference(reference_root(reference), root)], table)
    return tidy(load_project(wandb, "wandb="), table)

"""lra-bench, a benchmark of sequence models on long inputs.

Public functions import their dependencies when they are called, so that importing the package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import pandas as pd

    from lra_bench.runtime.findings import Finding

__all__ = ["check", "load_records"]


def check(*overrides: str, config_dir: str | os.PathLike[str] | None = None) -> list[Finding]:
    """Compare what a model declares with what it computes.

    Args:
        *overrides: Options as on the command line, such as ``model=my_mixer``.
        config_dir: Folder of additional configuration and classes.

    Returns:
        One finding per property: ``what`` was checked, whether it is ``ok`` (None for information without a verdict),
        and what was ``found``, with the remedy if it is wrong.

    Raises:
        UserError: If an option is wrong, or the model cannot be built.
    """
    from pathlib import Path

    from lra_bench.checks.overrides import check_overrides

    return check_overrides(overrides, None if config_dir is None else Path(config_dir))


def load_records(
    results: str | os.PathLike[str] | None = None,
    table: str = "runs",
    *,
    wandb: str | None = None,
    reference: str | os.PathLike[str] | None = None,
    protocol: str | None = None,
) -> pd.DataFrame:
    """Load the records of a results folder as a tidy table.

    Args:
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        table: ``runs`` (one row per run), ``lengths`` (one row per run and evaluated length), ``slices`` (one row per
            run and named subset of the test targets) or ``speed`` (one row per run, mode and timed length).
        wandb: ``ENTITY/PROJECT`` of a W&B project. If given, its records are loaded instead of ``results`` and
            ``reference``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE`` if set, otherwise the
            boards of the checkout. Their rows follow those of ``results``; the column ``reference`` contains the
            board's name.
        protocol: Name of a protocol, to load only its records, or name and version, such as ``small-v2``. Default: all
            protocols except ``smoke``, whose scores are meaningless.

    Returns:
        The table. ``lra_bench.leaderboard.query.documented`` describes its columns. Unknown values are missing.

    Raises:
        UserError: If there is no such table, folder or project, or no record of the protocol.
    """
    from lra_bench.contracts import UserError
    from lra_bench.leaderboard.naming import PYTHON, explain_hidden, select
    from lra_bench.leaderboard.query import TABLES, tidy
    from lra_bench.progress import say
    from lra_bench.records.reference import load_reference, reference_root
    from lra_bench.records.store import load_all, results_root

    if table not in TABLES:
        raise UserError(f"table={table}: choose {', '.join(TABLES)}")
    if wandb is None:
        root = results_root(results)
        if results is not None and not root.is_dir():
            raise UserError(f"results={results}: there is no such folder; name the folder that contains runs/")
        found = [*load_all(root), *load_reference(reference_root(reference), root)]
    else:
        from lra_bench.tracking.reading import load_project

        found = load_project(wandb, "wandb=")
    if explanation := explain_hidden(found, protocol=protocol, spelling=PYTHON):
        say(f"{explanation}.")
    return tidy(select(found, protocol=protocol, spelling=PYTHON), table)

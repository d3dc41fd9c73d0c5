"""Public functions that read records and configuration: tables, comparisons, figures, lists, differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.errors import UserError

from .arguments import config_folder, name_of
from .checked import Folder, public, spelled

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record


class Figures(tuple[Path, ...]):
    """Paths of figure files: PDF, PNG, CSV and captions. Notebooks display the first PNG."""

    def _repr_png_(self) -> bytes | None:
        return next((path.read_bytes() for path in self if path.suffix == ".png"), None)


@public
def compare(
    a: str,
    b: str,
    *,
    tasks: str | Sequence[str] = (),
    protocol: str | None = None,
    results: Folder | None = None,
    reference: Folder | None = None,
) -> pd.DataFrame:
    """Compare two variants, paired over seeds and test examples.

    Args:
        a: Variant, such as ``performer`` or ``performer features=64 rope``, or one of its records.
        b: Variant to compare with, in the same form.
        tasks: Tasks or groups of tasks. Default: all that both variants finished.
        protocol: Protocol. Default: all except ``smoke``.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE``, or those of the
            checkout.

    Returns:
        One row per task, protocol and data, with differences, intervals, p-values and the verdict.

    Raises:
        UserError: If a name matches no variant or several, or if the variants share no task and protocol.

    Examples:
        >>> lra_bench.compare("local", "performer")[["a", "b", "task"]].values.tolist()
        [['local', 'performer', 'listops']]
    """
    import pandas as pd

    from lra_bench.tables.comparison import compare_stored

    name_a, name_b, comparisons = compare_stored(a, b, results, reference, tasks, protocol)
    return pd.DataFrame([{"a": name_a, "b": name_b, **each.as_dict()} for each in comparisons])


@public
def leaderboard(
    *,
    tasks: str | Sequence[str] = (),
    models: str | Sequence[str] = (),
    protocol: str | None = None,
    layout: str = "long",
    against: str | None = None,
    results: Folder | None = None,
    reference: Folder | None = None,
) -> pd.DataFrame:
    """Return the leaderboard of all records, with unrounded values.

    Args:
        tasks: Tasks or groups of tasks, in the order of tables or columns. Default: all.
        models: Models, in the order of rows. Default: all.
        protocol: Protocol. Default: all except ``smoke``.
        layout: ``long`` (a row per variant and task), ``wide`` (a column per task), ``published`` (numbers from
            papers) or ``reproduction`` (protocol ``small`` compared with published numbers).
        against: Variant that every row is compared with. Default: ``transformer``.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE``, or those of the
            checkout.

    Returns:
        The table. ``lra-bench list columns`` describes its columns.

    Raises:
        UserError: If there is no such layout, task, model, protocol or variant.

    Examples:
        >>> table = lra_bench.leaderboard(tasks="listops")
        >>> sorted(table["variant"]), set(table["task"])
        (['local', 'performer'], {'listops'})
    """
    from lra_bench.records.reference import load_records as load
    from lra_bench.tables.layouts import find_layout
    from lra_bench.tables.naming import names_of, task_order

    chosen = find_layout(layout)
    if layout == "published":
        return chosen.arranged(chosen.make([]), names_of(tasks), names_of(models))
    records = _select(load(results, reference)[1], tasks, protocol, models)
    return chosen.arranged(
        chosen.make(records, against if records else None), task_order(records, tasks), names_of(models)
    )


@public
def plot(
    name: str | Sequence[str] = "all",
    *,
    tasks: str | Sequence[str] = (),
    models: str | Sequence[str] = (),
    protocol: str | None = None,
    width: str = "two",
    font: str = "sans-serif",
    output: Folder | None = None,
    everything: bool = False,
    results: Folder | None = None,
    reference: Folder | None = None,
) -> Figures:
    """Draw figures of the records, as PDF, PNG and CSV, with captions; a notebook shows the first page.

    Args:
        name: Figures, such as ``ranks,heat_map`` (``lra-bench list figures``), or ``all``.
        tasks: Tasks or groups of tasks, in the order of panels and columns. Default: all.
        models: Models, in the order of rows and legends. Default: all.
        protocol: Protocol. Default: all except ``smoke``, in their newest versions.
        width: Width in columns of a paper: ``one`` or ``two``.
        font: Font of all text: ``sans-serif`` or ``serif``.
        output: Output folder. Default: ``figures`` in the results folder.
        everything: Whether to draw also records of earlier protocol versions and of modified protocols.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE``, or those of the
            checkout.

    Returns:
        The paths of the files.

    Raises:
        UserError: If there is no such figure, or no record that contains its data.

    Examples:
        >>> [path.suffix for path in lra_bench.plot("heat_map")]
        ['.pdf', '.png', '.csv', '.txt', '.tex']
    """
    from lra_bench.figures import draw_stored

    folder = None if output is None else Path(output)
    return Figures(draw_stored(name, results, reference, tasks, protocol, width, folder, everything, models, font))


@public
def load_records(
    results: Folder | None = None,
    table: str = "runs",
    *,
    wandb: str | None = None,
    reference: Folder | None = None,
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
        The table. ``lra_bench.tables.query.documented`` describes its columns. Unknown values are missing.

    Raises:
        UserError: If there is no such table, folder or project, or no record of the protocol.

    Examples:
        >>> lra_bench.load_records()[["task", "model", "seed"]].head(2).values.tolist()
        [['listops', 'local', 0], ['listops', 'local', 1]]
    """
    from lra_bench.records.reference import load_records as load
    from lra_bench.tables.query import tables, tidy

    if table not in tables():
        raise UserError(f"table={table}: choose {', '.join(tables())}")
    if wandb is None:
        records = load(results, reference)[1]
    else:
        from lra_bench.tracking.reading import load_project

        records = load_project(wandb, "--wandb")
    return tidy(_select(records, None, protocol), table)


@public
def list_models(*, family: str | None = None, causal: bool = False, config_dir: Folder | None = None) -> list[str]:
    """Return the names of the models.

    Args:
        family: Only models of this family, such as ``linear``.
        causal: Whether to return only models with an exact causal form.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        The names in alphabetical order; ``lra-bench list models`` also prints descriptions.

    Raises:
        UserError: If there is no such family or folder.

    Examples:
        >>> "performer" in lra_bench.list_models(family="linear")
        True
    """
    return _names_of("models", config_dir, family=family, causal=causal)


@public
def list_tasks(*, config_dir: Folder | None = None) -> list[str]:
    """Return the names of the tasks.

    Args:
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        The names in alphabetical order; ``lra-bench list tasks`` also prints descriptions.

    Raises:
        UserError: If there is no such folder.

    Examples:
        >>> "recall" in lra_bench.list_tasks()
        True
    """
    return _names_of("tasks", config_dir)


@public
def list_protocols(*, config_dir: Folder | None = None) -> list[str]:
    """Return the names of the protocols.

    Args:
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        The names in alphabetical order; ``lra-bench list protocols`` also prints descriptions.

    Raises:
        UserError: If there is no such folder.

    Examples:
        >>> "quick" in lra_bench.list_protocols()
        True
    """
    return _names_of("protocols", config_dir)


@public
def diff(
    a: Record | Folder,
    b: Record | Folder | None = None,
    *,
    results: Folder | None = None,
    reference: Folder | None = None,
    config_dir: Folder | None = None,
) -> pd.DataFrame:
    """Return the options in which two cells differ, including defaults, class revisions and code digests.

    Args:
        a: A record, the path of one, a name as in ``lra-bench show``, or overrides, such as ``model=local task=text``.
        b: The other cell. Default: the cell that the command of ``a`` names today.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE``, or those of the
            checkout.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        One row per option, with the values of ``A`` and ``B`` and the origins of those that were composed today.

    Raises:
        UserError: If there is no such record, or an override is wrong.

    Examples:
        >>> lra_bench.diff("model=local task=text", "model=local task=text train.lr=1")["option"].tolist()
        ['train.lr']
    """
    import pandas as pd

    from lra_bench.grid.changes import differences_of
    from lra_bench.records.reference import reference_root
    from lra_bench.records.store import results_root

    folders = results_root(results), reference_root(reference), config_folder(config_dir)
    rows = differences_of(name_of(a), None if b is None else name_of(b), *folders)
    return pd.DataFrame(rows, columns=None if rows else ["option", "A", "B"])


def _select(
    records: Sequence[Record], tasks: str | Sequence[str] | None, protocol: str | None, models: str | Sequence[str] = ()
) -> list[Record]:
    """Return the records of tasks, a protocol and models; print a message if all of them are hidden."""
    from lra_bench.progress import say
    from lra_bench.tables.naming import explain_hidden, select

    if explanation := explain_hidden(records, tasks, protocol):
        say(f"{spelled(explanation)}.")
    return select(records, tasks, protocol, models)


def _names_of(kind: str, config_dir: Folder | None, **filters: Any) -> list[str]:
    """Return the names of a kind of options, such as ``models``."""
    from lra_bench.config.import_path import importable
    from lra_bench.config.listing import options

    folder = config_folder(config_dir)
    with importable(folder):
        return [row["name"] for row in options(kind, folder, **filters)]

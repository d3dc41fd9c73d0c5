"""Public functions that measure: ``bench``, ``card``, ``profile``, ``evaluate``, ``load_model`` and ``check``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from lra_bench.errors import UserError

from .arguments import NO_OVERRIDES, Model, Task, by_folder, cells_of, code_folder, path_of, seeds_in
from .checked import Folder, public

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from lra_bench.records.schema import Record
    from lra_bench.runtime.findings import Finding

SHOWN = ("task", "variant", "protocol", "seed", "status", "score", "floor", "parameters_total", "train_seconds")
"""Columns of the table of ``Results``."""


class Results(Sequence["Record"]):
    """Records of one call of ``bench``: a sequence that is printed, and displayed in notebooks, as a table.

    Attributes:
        not_run: A sentence for each cell without a record, with the reason.

    Examples:
        >>> tiny = {"train.steps": 4, "measure.speed_lengths": [], "tracker": "none"}
        >>> results = lra_bench.bench("transformer", "recall", protocol="smoke", overrides=tiny)
        >>> results[0].status, len(results), results.not_run
        ('ok', 1, ())
        >>> results.frame[["task", "model", "seed"]].values.tolist()
        [['recall', 'transformer', 0]]
        >>> results.best is results[0]
        True
    """

    def __init__(self, records: Iterable[Record], not_run: Iterable[str] = ()) -> None:
        self._records = tuple(records)
        self.not_run = tuple(not_run)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Record | Results:
        return Results(self._records[index], self.not_run) if isinstance(index, slice) else self._records[index]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per record, with the columns of ``load_records(table="runs")``."""
        from lra_bench.tables.query import tidy

        return tidy(self._records)

    @property
    def best(self) -> Record:
        """The record with the best test score.

        Raises ``UserError`` if no record has a score, or if the records are of several tasks.
        """
        scores = [(score, record) for record in self if (score := record.score()) is not None]
        tasks = dict.fromkeys(record.key.task for _, record in scores)
        if len(tasks) != 1:
            several = f"scores of different tasks ({', '.join(tasks)}) are not comparable; use results.frame"
            raise UserError(f"results.best: {several if tasks else 'no cell has a score; see results.frame'}")
        sign = 1 if scores[0][1].higher_is_better else -1
        return max(scores, key=lambda entry: sign * entry[0])[1]

    def _table(self) -> pd.DataFrame:
        frame = self.frame
        failed = frame["status"].ne("ok").any()
        return frame[[*SHOWN, "reason"] if failed else [*SHOWN]].map(lambda value: "–" if value is None else value)

    def __repr__(self) -> str:
        table = [self._table().to_string(index=False, na_rep="–", float_format="{:.4g}".format)] if self else []
        return "\n".join([*table, *self.not_run]) or "no records"

    def _repr_html_(self) -> str:
        table = self._table().to_html(index=False, na_rep="–", float_format="{:.4g}".format) if self else ""
        return table + "".join(f"<p>{escape(sentence)}</p>" for sentence in self.not_run)


@public
def bench(
    model: Model | Sequence[Model],
    task: Task,
    *,
    seeds: int | Sequence[int] = 1,
    protocol: str | Sequence[str] = "quick",
    search: str | Sequence[str] | None = None,
    hardware: str | Sequence[str] = "auto",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    results: Folder | None = None,
    config_dir: Folder | None = None,
    rerun: str = "never",
    raise_on_failure: bool = False,
) -> Results:
    """Train and measure every model on every task with every seed; write one record per cell.

    Each cell runs in a process of its own. An interrupted call (Ctrl-C, or the stop button of a notebook) continues
    when it is repeated, and cells with a record are not run again.

    Args:
        model: Name of a model (``list_models``), a mixer class, a function that returns a mixer, or what ``wrap``
            returned; or a sequence of these. Code of a notebook or script is stored in the results folder.
        task: Name of a task, or a sequence of names (``list_tasks``), or a group of tasks such as ``lra``; or what
            ``load_task`` or ``task_from`` returned.
        seeds: Number of seeds n, for the seeds 0 to n - 1, or the seeds.
        protocol: Budget of the measurement (``list_protocols``).
        search: Search of the learning rate, such as ``lr``; by default none.
        hardware: Hardware option, such as ``cpu`` or ``cuda``; by default the GPU if there is one.
        overrides: Further options with their values, such as ``{"train.lr": 3e-4}``. A list is one value.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.
        rerun: Which cells with a record are measured again: ``never``, ``failed``, ``stale`` or ``all``.
        raise_on_failure: Whether to raise an error if a cell fails or cannot run.

    Returns:
        The records, in the order of the cells. Failed cells have a record with status and reason. Cells that are
        submitted to a queue (``{"launcher": "slurm"}``) have none until they have ended.

    Raises:
        UserError: If an argument is wrong or no cell can run, and with ``raise_on_failure`` if a cell failed. In the
            latter case all other cells are measured first.
        KeyboardInterrupt: After Ctrl-C, when running cells have written their checkpoints.

    Examples:
        >>> tiny = {"train.steps": 4, "measure.speed_lengths": [], "tracker": "none"}
        >>> results = lra_bench.bench("transformer", "recall", protocol="smoke", overrides=tiny)
        >>> results[0].status
        'ok'
    """
    from lra_bench.grid.execute import execute, not_run
    from lra_bench.grid.notes import absences, destinations, not_used
    from lra_bench.grid.plan import plan
    from lra_bench.grid.status import check_rerun
    from lra_bench.progress import say
    from lra_bench.records.store import results_root

    check_rerun(rerun)
    choices = {"protocol": protocol, "search": search, "hardware": hardware}
    root, seed, planned = results_root(results), f"seed={','.join(map(str, seeds_in(seeds)))}", []
    for each in [model] if isinstance(model, str) or not isinstance(model, Sequence) else by_folder(model):
        given, folder = cells_of(each, task, choices, overrides, results, config_dir)
        planned += plan([*given, seed], root, folder)
    notes = *absences(not_run(planned)), *destinations(planned, root, rerun), *not_used(planned, root, rerun)
    for line in notes:
        say(line)
    order = [each.cell.key for each in planned]
    outcomes = sorted(execute(planned, root, rerun), key=lambda outcome: order.index(outcome[0].cell.key))
    absent = [
        f"{each.cell.key}: is not run; {each.reason or 'see the messages'}"
        for each, record, _ in outcomes
        if not record
    ]
    failed = [f"{record.key}: {record.status}, {record.reason}" for _, record, code in outcomes if record and code]
    if raise_on_failure and (sentences := [*absent, *failed]):
        raise UserError(f"{len(sentences)} of {len(planned)} cells failed; {'; '.join(sentences)}")
    return Results([record for _, record, _ in outcomes if record], absent)


@public
def profile(
    model: Model,
    task: Task = "listops",
    *,
    protocol: str | Sequence[str] = "quick",
    hardware: str | Sequence[str] = "auto",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    results: Folder | None = None,
    config_dir: Folder | None = None,
) -> pd.DataFrame:
    """Compare speed, memory and FLOPs of untrained models with exact attention, timed alternately.

    The profile is stored in the results folder, and tables take relative speed and memory from it.

    Args:
        model: Name of a model, a sequence of names, or a model as in ``bench``.
        task: Name of a task, a sequence of names, or a task as in ``bench``. The models get its vocabulary and number
            of classes.
        protocol: Protocol, whose sizes the models have.
        hardware: Hardware option, such as ``cpu`` or ``cuda``; by default the GPU if there is one.
        overrides: Further options with their values, such as ``{"measure.speed_lengths": [1024, 4096]}``.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        One row per model, batch policy, mode and length, with ratios to exact attention. Lengths are in tokens, times
        in seconds, memory in bytes.

    Raises:
        UserError: If an argument is wrong, or a model does not support the task.

    Examples:
        >>> small = {"measure.speed_lengths": [64], "measure.flops": False}
        >>> rows = lra_bench.profile("local", "recall", protocol="smoke", overrides=small)
        >>> sorted(set(rows["length"])), "local" in set(rows["model"])
        ([64], True)
    """
    from lra_bench.grid.notes import absences
    from lra_bench.grid.profiles import comparison_plans, profiles
    from lra_bench.progress import say
    from lra_bench.records.store import results_root
    from lra_bench.tables.profile import frame

    choices = {"protocol": protocol, "hardware": hardware}
    root, (given, folder) = results_root(results), cells_of(model, task, choices, overrides, results, config_dir)
    planned, absent = comparison_plans(given, root, folder)
    for line in absences(absent):
        say(line)
    return frame([profile for profile, _ in profiles(planned, root, folder)])


@public
def card(
    model: Model,
    *,
    seeds: int | Sequence[int] = 1,
    rivals: str | Sequence[str] = ("local", "mamba2"),
    protocol: str | Sequence[str] = "quick",
    hardware: str | Sequence[str] = "cpu",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    results: Folder | None = None,
    reference: Folder | None = None,
    config_dir: Folder | None = None,
    pdf: bool = False,
) -> list[Path]:
    """Measure a model on a fixed grid and write one page about it, which works offline.

    Cells that have a record are not measured again, and an interrupted call continues when it is repeated.

    Args:
        model: Name of the model, or a model as in ``bench``.
        seeds: Number of seeds n, for the seeds 0 to n - 1, or the seeds. Comparisons need three.
        rivals: Models that are profiled and drawn next to the model and the Transformer.
        protocol: Budget of the cells, and sizes of the profiled models.
        hardware: Hardware option, such as ``cpu`` or ``cuda``.
        overrides: Further options with their values, such as ``{"train.lr": 3e-4}``.
        results: Results folder. Default: ``$LRA_BENCH_RESULTS`` if set, otherwise ``./results``.
        reference: Folder of reference boards, or ``"none"``. Default: ``$LRA_BENCH_REFERENCE``, or those of the
            project.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.
        pdf: Whether to print the card with an installed Chromium, too.

    Returns:
        The paths of the card: HTML and, if it was printed, PDF.

    Raises:
        UserError: If an argument is wrong, the model does not compute what it declares, or no cell has a record.
        KeyboardInterrupt: After Ctrl-C, when running cells have written their checkpoints.

    Examples:
        >>> lra_bench.card("my_mixer", config_dir="ideas", seeds=3)  # doctest: +SKIP
        [PosixPath('results/cards/my_mixer-quick-v3.html')]
    """
    from lra_bench.config.import_path import importable
    from lra_bench.model_card.plan import CardRequest
    from lra_bench.model_card.run import make_card
    from lra_bench.records.reference import reference_root
    from lra_bench.records.store import results_root
    from lra_bench.tables.naming import names_of

    choices = {"protocol": protocol, "hardware": hardware}
    given, folder = cells_of(model, "listops", choices, overrides, results, config_dir)
    cells = [text for text in given if not text.startswith("task=")]
    root, boards = results_root(results), reference_root(reference)
    request = CardRequest(cells, seeds_in(seeds), names_of(rivals), root, boards, folder)
    with importable(folder):
        return make_card(request, pdf)[0]


@public
def evaluate(
    record: Record | Folder,
    lengths: Sequence[int] = (),
    *,
    knobs: Sequence[str] = (),
    hardware: str | None = None,
    write: bool = True,
    trust: Sequence[str] = (),
    results: Folder | None = None,
    config_dir: Folder | None = None,
) -> pd.DataFrame:
    """Test the best weights of a record again without training, at the training length or at other lengths.

    Args:
        record: A record, the path of one, or a name as in ``lra-bench show``, such as ``last``.
        lengths: Lengths in tokens. Default: the training length, or with ``knobs`` the longer lengths of the record.
        knobs: Options to change for evaluation only, such as ``position.scaling=yarn``; ``["ALL"]`` for every one.
        hardware: Hardware option. Default: that of the record.
        write: Whether to add the points to the record.
        trust: Packages whose classes the record may name, in addition to lra-bench.
        results: Results folder that contains the record.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        One row per new point, with its length, score, interval, floor and status.

    Raises:
        UserError: If there is no such record, its weights are not kept on this machine, or an argument is wrong.

    Examples:
        >>> points = lra_bench.evaluate("last", [50, 200], write=False)
        >>> points[["length", "status"]].values.tolist()
        [[50, 'ok'], [200, 'ok']]
    """
    import pandas as pd

    from lra_bench.cells.reevaluate import reevaluate

    if not isinstance(lengths, Iterable) or not all(isinstance(length, int) for length in lengths):
        raise UserError(f"lengths={lengths!r}: must be a sequence of integers, such as [1000, 2000]")
    if isinstance(knobs, str):
        raise UserError(f"knobs={knobs!r}: must be a sequence of options, such as [{knobs!r}]")
    path = path_of(record, results)
    _, points = reevaluate(path, lengths, knobs, hardware, code_folder(path, config_dir), write, trust)
    return pd.DataFrame(points)


@public
def load_model(
    record: Record | Folder,
    *,
    trust: Sequence[str] = (),
    results: Folder | None = None,
    config_dir: Folder | None = None,
) -> nn.Module:
    """Load the trained model of a record, with its best weights, in evaluation mode on the CPU.

    The weights are in the cache of the machine that measured the record.

    Args:
        record: A record, the path of one, or a name as in ``lra-bench show``, such as ``last``.
        trust: Packages whose classes the record may name, in addition to lra-bench.
        results: Results folder that contains the record.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        The model, whose ``forward`` gets a ``lra_bench.contracts.Batch``.

    Raises:
        UserError: If there is no such record, it has no tested weights, or they are not kept on this machine.

    Examples:
        >>> model = lra_bench.load_model("last")
        >>> model.training, next(model.parameters()).device.type
        (False, 'cpu')
    """
    from lra_bench.cells.reevaluate import trained_model

    path = path_of(record, results)
    return trained_model(path, code_folder(path, config_dir), trust)


@public
def check(
    model: Model,
    task: Task = "listops",
    *,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    config_dir: Folder | None = None,
) -> list[Finding]:
    """Compare what a model declares with what it computes: direction, padding, lengths, growth, state.

    Args:
        model: Name of the model, or a model as in ``bench``.
        task: Name of the task, or a task as in ``bench``, from which the model gets its vocabulary and number of
            classes. No data is needed.
        overrides: Further options with their values, such as ``{"model.mixer.window": 8}``.
        config_dir: Folder of your own YAML files and classes. Default: ``$LRA_BENCH_CONFIG_DIR`` if set.

    Returns:
        One finding per property: ``what`` was checked, whether it is ``ok`` (None for information without a verdict),
        and what was ``found``, with the remedy if it is wrong.

    Raises:
        UserError: If an argument is wrong, or the model cannot be built.

    Examples:
        >>> findings = lra_bench.check("local", overrides={"protocol": "smoke"})
        >>> [finding.what for finding in findings if finding.ok is False]
        []
    """
    from lra_bench.checks.overrides import check_overrides

    given, folder = cells_of(model, task, {}, overrides, None, config_dir)
    if any("," in name for name in given[:2]):
        raise UserError(f"model={model!r} task={task!r}: check examines one model for one task")
    return check_overrides(given, folder)

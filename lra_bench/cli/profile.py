"""The command ``lra-bench profile``: compare models with exact attention in two back-ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lra_bench.contracts import TaskSpec, UserError
from lra_bench.progress import say

from .options import ConfigDir, Json, Overrides, Results, print_json, print_table, report_not_run, root_of

if TYPE_CHECKING:
    from lra_bench.grid.plan import PlanCache
    from lra_bench.grid.status import Planned
    from lra_bench.profiling.comparison.types import ComparisonModel

BASELINE = "transformer"


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
    from lra_bench.config.import_path import importable
    from lra_bench.leaderboard.profile import tables, write_csv
    from lra_bench.profiling.comparison.run import Comparison
    from lra_bench.records.profiles import write_profile
    from lra_bench.records.store import check_writable
    from lra_bench.runtime.hardware import resolve

    root = root_of(results)
    planned, absent = comparison_plans(overrides or [], root, config_dir)
    report_not_run(absent)
    profiles: list[Any] = []
    # Raise an error before the measurement if a file cannot be written.
    check_writable(root)
    if output is not None:
        write_csv(profiles, output)
    with importable(config_dir):
        for comparison_plan in planned:
            hardware = resolve(comparison_plan.candidates[0].config.hardware)
            if hardware.strategy != "none":
                raise UserError(
                    f"hardware.strategy={hardware.strategy}: a profile measures one process; "
                    f"set hardware={hardware.device.type}"
                )
            comparison = Comparison(
                comparison_plan.candidates,
                comparison_plan.spec,
                hardware,
                comparison_plan.protocol,
                refused=comparison_plan.refused,
            )
            try:
                found = comparison.run()
            except KeyboardInterrupt:
                say("lra-bench: interrupted; an unfinished profile is not saved, run it again.")
                sys.exit(130)
            profiles.append(found)
            if not as_json:
                _print_profile(found, tables(found))
            if output is not None:
                write_csv(profiles, output)
            say(f"wrote {write_profile(found.as_dict(), root)}")
    if as_json:
        print_json([found.as_dict() for found in profiles])
    if absent:
        raise typer.Exit(2)


def _print_profile(found: Any, tables: Iterable[tuple[str, list[dict[str, Any]]]]) -> None:
    print(f"{found.task} · {found.protocol} · {found.hardware}")
    for title, rows in tables:
        print(f"\n{title}")
        print_table(rows)
    for warning in found.warnings:
        say(f"Note: {warning}.")


@dataclass(frozen=True)
class ComparisonPlan:
    """Models with the same task and training options, the two baselines first.

    ``refused`` contains the names of models that do not support the task, with the reasons.
    """

    candidates: tuple[ComparisonModel, ...]
    refused: tuple[tuple[str, str], ...]
    spec: TaskSpec
    protocol: str


def comparison_plans(
    overrides: Sequence[str], results: Path, config_dir: Path | None = None
) -> tuple[list[ComparisonPlan], list[Planned]]:
    """Group the planned cells by all options except those of the model.

    Returns one ``ComparisonPlan`` per group, and the cells that cannot run, which belong to no group. Raises
    ``UserError`` if no model of a group supports its task.
    """
    from lra_bench.config.import_path import importable
    from lra_bench.grid.execute import not_run
    from lra_bench.grid.plan import PlanCache, plan

    cache = PlanCache()
    groups: dict[tuple[str, ...], list[Planned]] = {}
    planned = plan(overrides, results, config_dir, cache=cache)
    absent = not_run(planned)
    for each in (each for each in planned if each not in absent):
        shared = tuple(text for text in each.cell.overrides if not _is_model(text))
        groups.setdefault(shared, []).append(each)
    with importable(config_dir):
        found = [_comparison_plan(shared, group, results, config_dir, cache) for shared, group in groups.items()]
    return found, absent


def _comparison_plan(
    shared: Sequence[str], planned: Sequence[Planned], results: Path, config_dir: Path | None, cache: PlanCache
) -> ComparisonPlan:
    from lra_bench.grid.plan import plan
    from lra_bench.profiling.attention_backend import MATH
    from lra_bench.profiling.comparison.types import ComparisonModel

    fit = [each for each in planned if each.status != "incompatible"]
    if not fit:
        raise UserError(f"{planned[0].cell.key}: {planned[0].reason}")
    (standard,) = plan([*shared, f"model={BASELINE}"], results, config_dir, cache=cache)
    config, hash = standard.cell.config, standard.cell.key.hash
    return ComparisonPlan(
        candidates=(
            ComparisonModel(BASELINE, BASELINE, config, baseline="default", hash=hash),
            ComparisonModel(f"{BASELINE} ({MATH})", BASELINE, config, attention=MATH, baseline=MATH, hash=hash),
            *(
                ComparisonModel(_name(each), each.cell.key.model, each.cell.config, hash=each.cell.key.hash)
                for each in fit
                if each.cell.key.hash != hash
            ),
        ),
        refused=tuple((_name(each), each.reason) for each in planned if each not in fit),
        spec=cache.spec(config),
        protocol=standard.cell.key.protocol,
    )


def _is_model(override: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return key == "model" or key.startswith("model.")


def _name(planned: Planned) -> str:
    """Return the name of the variant without the position, which is the same for all models of a comparison."""
    from lra_bench.records.schema import variant_name

    return variant_name(planned.cell.key.model, planned.cell.differences, None)

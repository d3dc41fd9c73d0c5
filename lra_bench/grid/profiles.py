"""Comparisons of the speed, memory and FLOPs of planned models with exact attention in two back-ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.config.import_path import importable
from lra_bench.config.search import OPTUNA
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.records.profiles import write_profile
from lra_bench.records.schema import variant_name
from lra_bench.records.store import check_writable
from lra_bench.runtime.hardware import resolve

from .execute import not_run
from .plan import PlanCache, plan
from .status import Planned

if TYPE_CHECKING:
    from lra_bench.profiling.comparison.run import Profile
    from lra_bench.profiling.types import ComparisonModel

BASELINE = "transformer"


def profiles(
    planned: Sequence[ComparisonPlan], results: Path, config_dir: Path | None = None
) -> Iterator[tuple[Profile, Path]]:
    """Measure the comparisons, and yield each profile with the file in the results folder that contains it.

    Raises ``UserError`` if the folder cannot be written or a comparison uses several processes. After an interruption
    the lengths that were measured are yielded, then ``KeyboardInterrupt`` is raised.
    """
    from lra_bench.profiling.comparison.run import Comparison

    check_writable(results)
    with importable(config_dir):
        for each in planned:
            hardware = resolve(each.candidates[0].config.hardware)
            if hardware.strategy != "none":
                raise UserError(
                    f"hardware.strategy={hardware.strategy}: a profile measures one process; "
                    f"set hardware={hardware.device.type}"
                )
            profile = Comparison(each.candidates, each.spec, hardware, each.protocol, refused=each.refused).run()
            yield profile, write_profile(profile.as_dict(), results)
            if profile.interrupted:
                raise KeyboardInterrupt


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
    cache = PlanCache()
    groups: dict[tuple[str, ...], list[Planned]] = {}
    planned = plan(overrides, results, config_dir, cache=cache)
    if any(each.cell.config.search.name == OPTUNA for each in planned):
        raise UserError("search=optuna: a profile measures one choice of options; set them, and leave search out")
    absent = not_run(planned)
    for each in (each for each in planned if each not in absent):
        # Without those of the model.
        shared = tuple(text for text in each.cell.overrides if re.match(r"[+~]*model([.=]|$)", text) is None)
        groups.setdefault(shared, []).append(each)
    with importable(config_dir):
        found = [_comparison_plan(shared, group, results, config_dir, cache) for shared, group in groups.items()]
    return found, absent


def _comparison_plan(
    shared: Sequence[str], planned: Sequence[Planned], results: Path, config_dir: Path | None, cache: PlanCache
) -> ComparisonPlan:
    from lra_bench.profiling.attention_backend import MATH
    from lra_bench.profiling.types import ComparisonModel

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
        spec=cache.task(config).spec,
        protocol=standard.cell.key.protocol,
    )


def _name(planned: Planned) -> str:
    """Return the name of the variant without the position, which is the same for all models of a comparison."""
    return variant_name(planned.cell.key.model, planned.cell.differences, None)

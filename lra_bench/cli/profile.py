"""Who is compared with whom: the models that overrides name, beside exact attention by two back-ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lra_bench.build import build_task
from lra_bench.config.import_path import importable
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.grid.plan import plan
from lra_bench.grid.status import Planned
from lra_bench.profiling.attention_backend import MATH
from lra_bench.profiling.comparison.types import ComparisonModel
from lra_bench.records.schema import variant_name

BASELINE = "transformer"


@dataclass(frozen=True)
class ComparisonPlan:
    """Models that share all but the model, the two baselines first; ``refused`` are names and reasons."""

    candidates: tuple[ComparisonModel, ...]
    refused: tuple[tuple[str, str], ...]
    spec: TaskSpec
    protocol: str


def comparison_plans(overrides: Sequence[str], results: Path, config_dir: Path | None = None) -> list[ComparisonPlan]:
    """One plan for every choice beside the model; ``UserError`` where no model of one runs its task."""
    together: dict[tuple[str, ...], list[Planned]] = {}
    for each in plan(overrides, results, config_dir):
        shared = tuple(text for text in each.cell.overrides if not _is_model(text))
        together.setdefault(shared, []).append(each)
    with importable(config_dir):
        return [_comparison_plan(shared, several, results, config_dir) for shared, several in together.items()]


def _comparison_plan(
    shared: Sequence[str], planned: Sequence[Planned], results: Path, config_dir: Path | None
) -> ComparisonPlan:
    fit = [each for each in planned if each.status != "incompatible"]
    if not fit:
        raise UserError(f"{planned[0].cell.key}: {planned[0].reason}")
    (standard,) = plan([*shared, f"model={BASELINE}"], results, config_dir)
    config = standard.cell.config
    return ComparisonPlan(
        candidates=(
            ComparisonModel(BASELINE, BASELINE, config, baseline="default"),
            ComparisonModel(f"{BASELINE} ({MATH})", BASELINE, config, attention=MATH, baseline=MATH),
            *(
                ComparisonModel(_name(each), each.cell.key.model, each.cell.config)
                for each in fit
                if each.cell.key.hash != standard.cell.key.hash
            ),
        ),
        refused=tuple((_name(each), each.reason) for each in planned if each not in fit),
        spec=build_task(config).spec,
        protocol=standard.cell.key.protocol,
    )


def _is_model(override: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return key == "model" or key.startswith("model.")


def _name(planned: Planned) -> str:
    """The model and what differs from its file; the position is common to all."""
    return variant_name(planned.cell.key.model, planned.cell.differences, None)

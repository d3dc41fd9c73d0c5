"""Plan the card of a model: its cells, those of the Transformer for comparisons, and a profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.grid.profiles import ComparisonPlan, comparison_plans
from lra_bench.grid.status import NOT_RUN, Planned
from lra_bench.profiling.types import MODES, lengths_of
from lra_bench.records.key import CellKey
from lra_bench.records.profiles import load_profiles
from lra_bench.records.reference import load_reference
from lra_bench.runtime.hardware import resolve
from lra_bench.runtime.processor import usable_cpus
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables.claims import REFERENCE

if TYPE_CHECKING:
    from lra_bench.profiling.comparison.run import Profile

GRID = "card"
"""Name of the grid whose cells a card contains."""
MOST_WORKERS = 2
PROFILE = ("task=listops", "measure.speed_lengths=[1024,2048,4096,8192]", "measure.energy=false", "measure.flops=false")
"""Overrides of the profile; those of the user replace them."""
PROFILE_ONLY = "measure.speed_"
"""Beginning of the options that change the profile but not the cells, whose speed is not measured."""
TIMING_SECONDS = 2.0
"""Shortest time that a profile times a model in one mode at one length by default."""
FIXED = {"task": "lra-bench bench", "grid": "lra-bench bench", "seed": "--seeds"}
"""Options that a card does not accept, and what does."""


@dataclass(frozen=True)
class CardRequest:
    """What a card shows, and where its results are stored.

    Attributes:
        overrides: Overrides as in ``lra-bench bench``, without task, seed and grid.
        seeds: The seeds. With ``MIN_SEEDS`` or more, cells of the Transformer are planned that no board contains.
        rivals: Names of the models to profile together with the model and the Transformer.
        results: The results folder, in which records and profiles are looked up.
        reference: The folder of reference boards, None for no boards.
        config_dir: Folder of additional configuration and classes.
    """

    overrides: Sequence[str]
    seeds: Sequence[int]
    rivals: Sequence[str]
    results: Path
    reference: Path | None
    config_dir: Path | None


@dataclass(frozen=True)
class Plan:
    """The cells and the profile of a card.

    Attributes:
        model: Name of the model.
        own: The cells of the model.
        reference: The cells of the Transformer that no board contains; empty with too few seeds for comparisons.
        profile: The models to profile, None if the model does not support the task of the profile.
        stored: An earlier profile of the same models, None if there is none.
    """

    model: str
    own: Sequence[Planned]
    reference: Sequence[Planned]
    profile: ComparisonPlan | None
    stored: Profile | None

    @property
    def cells(self) -> list[Planned]:
        """All cells."""
        return [*self.own, *self.reference]

    @property
    def profile_seconds(self) -> float | None:
        """The shortest duration of the profile in seconds, None if none is measured."""
        if self.profile is None or self.stored is not None:
            return None
        measure = self.profile.candidates[0].config.measure
        lengths = lengths_of(measure, resolve(self.profile.candidates[0].config.hardware).device.type)
        seconds = measure.speed_seconds or TIMING_SECONDS
        return seconds * len(MODES) * len(lengths) * len(self.profile.candidates)


def plan_card(request: CardRequest) -> Plan:
    """Plan the cells and the profile of a card.

    Raises:
        UserError: If no model, or more than one, is named, or an override is wrong.
    """
    overrides, seeds, results, config_dir = request.overrides, request.seeds, request.results, request.config_dir
    keys = [_key(text) for text in overrides]
    if wrong := next((key for key in keys if key in FIXED), None):
        raise UserError(f"{wrong}=: a card has a fixed grid; leave it out, or use {FIXED[wrong]}")
    models = [text.partition("=")[2] for text in overrides if _key(text) == "model"]
    if len(models) != 1 or "," in models[0] or models[0] in ("", "ALL"):
        raise UserError("model=: a card describes one model; name it, for example model=performer")
    cells = [text for text in overrides if not _key(text).startswith(PROFILE_ONLY)]
    hardware = [text.partition("=")[2] for text in overrides if _key(text) == "hardware"]
    if hardware in ([], ["cpu"]) and not any(key.partition(".")[0] == "launcher" for key in keys):
        cells.append(f"launcher.workers={min(MOST_WORKERS, usable_cpus())}")
    grid = [f"grid={GRID}", f"seed={','.join(map(str, seeds))}"]
    own = plan([*grid, *cells], results, config_dir)
    theirs: list[Planned] = []
    if len(seeds) >= MIN_SEEDS and models[0] != REFERENCE:
        fit = {
            each.cell.key.task
            for each in own
            if each.status not in (*NOT_RUN, "incompatible")
            and (each.record is None or each.record.status != "incompatible")  # the record of an earlier card
        }
        done = {_cell(record.key) for record in load_reference(request.reference) if record.status == "ok"}
        shared = [text for text in cells if not _of_model(text)]
        planned = plan([*grid, f"model={REFERENCE}", *shared], results, config_dir)
        theirs = [each for each in planned if each.cell.key.task in fit and _cell(each.cell.key) not in done]
    profile = _profile(request)
    stored = _stored(profile, results) if profile is not None else None
    return Plan(models[0], own, theirs, profile, stored)


def _profile(request: CardRequest) -> ComparisonPlan | None:
    """Return the profile of the model and its rivals, None if the model does not support the task of the profile."""
    from lra_bench.grid.expand import grid_parts

    overrides, results, config_dir = request.overrides, request.results, request.config_dir
    given = {_key(text) for text in overrides}
    (_, first), *_ = grid_parts(GRID, config_dir)
    of_grid = [text for key, text in first.items() if key.partition(".")[0] in ("protocol", "hardware")]
    common = [text for text in (*PROFILE, *of_grid) if _key(text) not in given]
    try:
        [own], _ = comparison_plans([*common, *overrides], results, config_dir)
    except UserError:  # the card shows why the cells of the model do not run
        return None
    others = [name for name in request.rivals if name != REFERENCE]
    if not others:
        return own
    shared = [text for text in overrides if not _of_model(text)]
    [compared], _ = comparison_plans([*common, *shared, f"model={','.join(others)}"], results, config_dir)
    known = {candidate.hash for candidate in own.candidates}
    further = [candidate for candidate in compared.candidates if candidate.hash not in known]
    return replace(own, candidates=(*own.candidates, *further), refused=(*own.refused, *compared.refused))


def _stored(planned: ComparisonPlan, results: Path) -> Profile | None:
    """Return the latest stored profile that contains all models and lengths on this machine, None if there is none."""
    from lra_bench.profiling.comparison.run import Profile

    first = planned.candidates[0].config
    hardware = resolve(first.hardware)
    wanted, lengths = {each.hash for each in planned.candidates}, lengths_of(first.measure, hardware.device.type)
    for found in reversed(load_profiles(results)):
        same = found.protocol == planned.protocol and found.path.parent.name == hardware.slug
        if same and found.summaries and wanted <= {row["hash"] for row in found.rows}:
            content = json.loads(found.path.read_text(encoding="utf-8"))
            if content.get("lengths") == lengths:
                return Profile(**{each.name: content[each.name] for each in fields(Profile) if each.name in content})
    return None


def _cell(key: CellKey) -> tuple[str, str, str, str, int]:
    """Return what identifies a cell on any machine."""
    return key.task, key.model, key.protocol, key.hash, key.seed


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _of_model(override: str) -> bool:
    return _key(override).partition(".")[0] == "model"

"""The kept best checkpoint of a record, evaluated again without training; what is found joins the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import from_dict, options_from
from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.records.extrapolation import attempt_now, joined, section
from lra_bench.records.points import Extrapolation, ExtrapolationPoint
from lra_bench.records.schema import Record
from lra_bench.runtime.hardware import HardwareOptions, first_line

if TYPE_CHECKING:
    from torch import nn

    from lra_bench.contracts import Task
    from lra_bench.evaluation.extrapolation import Measured
    from lra_bench.runtime.hardware import Hardware

ALL_KNOBS = "ALL"


@dataclass(frozen=True)
class Wanted:
    """What to measure: lengths in tokens, knobs by name, and the points of the record that it leaves standing."""

    lengths: list[int]
    knobs: list[str]
    longest: int
    kept: Extrapolation


def reevaluate(
    path: Path,
    lengths: Sequence[int] = (),
    knobs: Sequence[str] = (),
    hardware: str | None = None,
    config_dir: Path | None = None,
    write: bool = True,
    trusted: Sequence[str] = (),
) -> tuple[Extrapolation, list[ExtrapolationPoint]]:
    """Test the best weights of the record at ``path``: its section with what was found, and the points found now.

    At ``lengths``, by default the training length, or with ``knobs`` the longer ones of the record. ``knobs`` are
    measured beside the plain curve; ``ALL`` are those that the model declares. ``hardware`` names an option of that
    group, by default the record's own. With ``write`` the points join the record as a new attempt, in one step, after
    all are measured, and its run of W&B is brought up to date. Raises ``UserError`` where the checkpoint is gone, and
    where the record names a class that is not lra-bench's, an installed extension's, in ``config_dir``, or in a package
    among ``trusted``.
    """
    from lra_bench.evaluation.extrapolation import extrapolate
    from lra_bench.evaluation.knobs import chosen
    from lra_bench.records import environment, store
    from lra_bench.runtime.hardware import resolve, single_process
    from lra_bench.tracking.tracker import update
    from lra_bench.training.checkpoint import Checkpoints

    from .locks import cell_lock, checkpoint_folder

    key = store.load(path).key
    checkpoints = Checkpoints(checkpoint_folder(key), 0)
    checkpoints.check_best()
    # The record is read again once no other process changes it.
    with cell_lock(key):
        record = store.load(path)
        if record.status != "ok":
            raise UserError(f"{path}: is {record.status}, so there are no tested weights; run {record.command} first")
        config = _config(record, hardware, config_dir)
        machine = resolve(single_process(config.hardware))
        machine.apply()
        with recorded_classes(path, config_dir, trusted):
            task, model = _restored(record, config, checkpoints, machine)
        known = chosen(model, None if ALL_KNOBS in knobs else knobs, "--knobs")
        wanted = _wanted(record, task, lengths, known)
        ratios = [length / task.spec.train_length for length in wanted.lengths]
        options = replace(config.measure, extrapolation_ratios=ratios, extrapolation_knobs=wanted.knobs)
        number = record.attempt + 1
        found = extrapolate(model, task, options, machine, attempt=number, longest=wanted.longest)
        attempt = attempt_now(
            number, machine.slug, environment.environment(machine)["hardware"], environment.code_version()
        )
        after = joined(wanted.kept, found.points, found.by_position, attempt, task.spec.higher_is_better)
        if write:
            _join(record, after, found, number)
            update(record)
    return after, _told(after, found.points)


def _restored(record: Record, config: CellConfig, checkpoints: Any, hardware: Hardware) -> tuple[Task, nn.Module]:
    """The task with its data and the model with its best weights, as they were when it was tested."""
    from lra_bench.config.objects import build_model, build_task
    from lra_bench.data.batches import Rows
    from lra_bench.data.cache import Cache

    task = build_task(config)
    task.prepare(Cache())
    if record.data is not None and record.data["fingerprint"] != task.fingerprint():
        raise UserError(
            f"{record.path}: was measured on other data (task {task.spec.name}: fingerprint "
            f"{record.data['fingerprint']}, here {task.fingerprint()}); give the same data or run the cell anew"
        )
    model = hardware.place(build_model(config, task.spec))
    checkpoints.load_best(model)
    finish = getattr(model, "finish", None)
    if finish is not None:
        finish(*(Rows(task.split(name), task.spec) for name in ("train", "validation")))
    return task, model


@contextmanager
def recorded_classes(path: Path, config_dir: Path | None, trusted: Sequence[str]) -> Iterator[None]:
    """Build what the configuration of a record says, which may be a stranger's.

    Classes come from lra-bench, installed extensions, ``config_dir`` and the packages ``trusted``. What a malformed
    configuration leads to is a ``UserError`` that names the record at ``path``.
    """
    from lra_bench.build import classes_of
    from lra_bench.config.groups import extension_packages

    packages = {*extension_packages(config_dir), *trusted}
    remedy = "if you trust whoever made the record, give --config-dir DIR that holds it, or --trust PACKAGE"
    try:
        with classes_of(packages, str(path), remedy):
            yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{path}: its configuration cannot be built ({type(error).__name__}: {first_line(error)})"
        ) from error


def _config(record: Record, hardware: str | None, config_dir: Path | None) -> CellConfig:
    """The configuration of a record, with the hardware options of the file ``hardware`` if given.

    Raises ``UserError`` if the recorded configuration is malformed.
    """
    import yaml

    from lra_bench.build import suggest
    from lra_bench.config.groups import option_files

    try:
        config = from_dict(record.config)
    except UserError as error:
        raise UserError(f"{record.path}: its configuration cannot be used ({error})") from error
    if hardware is None:
        return config
    files = option_files("hardware", config_dir)
    if hardware not in files:
        raise UserError(f"--hardware {hardware}: there is no such hardware{suggest(hardware, set(files))}")
    chosen = yaml.safe_load(files[hardware].read_text(encoding="utf-8"))
    options = options_from(HardwareOptions, {**asdict(config.hardware), **chosen}, "hardware")
    return replace(config, hardware=options)


def _wanted(record: Record, task: Task, lengths: Sequence[int], knobs: Sequence[str]) -> Wanted:
    trained, higher = task.spec.train_length, task.spec.higher_is_better
    kept = record.extrapolation or section(trained, [], [], [], higher)
    before = sorted({point["length"] for point in kept["points"]})
    asked = sorted(set(lengths)) or ([length for length in before if length > trained] if knobs else [trained])
    if not asked:
        raise UserError(f"--knobs: the record has no length beyond the {trained:,} tokens of training; add --lengths")
    if asked[0] < 1:
        raise UserError(f"--lengths {asked[0]}: must be at least 1")
    longest = max([*before, *asked])
    if task.spec.kind == "language_modeling" and before and longest > before[-1]:
        say(f"A context of {longest:,} moves the tokens that all contexts are scored on; all are measured again.")
        knobs = list(dict.fromkeys([*(point["knob"] for point in kept["points"] if point["knob"]), *knobs]))
        asked, kept = sorted({*before, *asked}), section(trained, [], [], [], higher)
    return Wanted(asked, list(knobs), longest, kept)


def _join(record: Record, after: Extrapolation, found: Measured, number: int) -> None:
    """Write the record with its new section, and its predictions with the new ones in place of older."""
    import pandas as pd

    from lra_bench.records import store, tables

    from .stages import predictions_table

    parts = [predictions_table(found.evaluations)] if found.evaluations else []
    old = tables.predictions(record)
    if old is not None:
        old = old if "knob" in old else old.assign(knob="")
        again = {(place.variant, place.knob, place.length) for place in found.evaluations}
        places = zip(old["variant"], old["knob"], old["length"], strict=True)
        parts.insert(0, old[[place not in again for place in places]])
    record.extrapolation, record.attempt = after, number
    store.amend(record, pd.concat(parts, ignore_index=True) if parts else None)


def _told(after: Extrapolation, found: Sequence[ExtrapolationPoint]) -> list[ExtrapolationPoint]:
    """The points found, as they stand in the section where they do."""
    stands = {(p["variant"], p["knob"], p["length"], p["attempt"]): p for p in after["points"]}
    return [stands.get((p["variant"], p["knob"], p["length"], p["attempt"]), p) for p in found]

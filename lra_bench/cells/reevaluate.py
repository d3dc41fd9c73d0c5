"""Evaluate the best checkpoint of a record again, without training, and add the results to the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.config.import_path import importable
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import from_dict, options_from
from lra_bench.config.validation import check_hardware
from lra_bench.contracts import UserError
from lra_bench.measurements.length_curves import attempt_now, joined, place, section
from lra_bench.measurements.points import Extrapolation, ExtrapolationPoint
from lra_bench.progress import say
from lra_bench.records.reference import reference_root
from lra_bench.records.schema import Record
from lra_bench.runtime.hardware import HardwareOptions, first_line

if TYPE_CHECKING:
    from torch import nn

    from lra_bench.contracts import Task
    from lra_bench.measurements.extrapolation import Measured
    from lra_bench.runtime.hardware import Hardware
    from lra_bench.training.checkpoint import Checkpoints

ALL_KNOBS = "ALL"


def reevaluate(
    path: Path,
    lengths: Sequence[int] = (),
    knobs: Sequence[str] = (),
    hardware: str | None = None,
    config_dir: Path | None = None,
    write: bool = True,
    trusted: Sequence[str] = (),
) -> tuple[Extrapolation, list[ExtrapolationPoint]]:
    """Test the best weights of a record at other lengths or with knobs, without training.

    Args:
        path: The record file.
        lengths: Lengths in tokens. Default: the training length, or with ``knobs`` all lengths of the record that
            exceed it.
        knobs: Knobs to evaluate in addition to the curve without a knob. ``ALL`` selects every knob that the model
            declares.
        hardware: An option of the group ``hardware``. Default: the hardware options of the record.
        config_dir: Folder of additional configuration and classes.
        write: Whether to add the points to the record. They are written as a new attempt in one step after all are
            measured, and the record's W&B run is updated. A record without slices or minimal pairs gets them if the
            training length is evaluated.
        trusted: Packages whose classes the record may name.

    Returns:
        The extrapolation section of the record including the new points, and the new points.

    Raises:
        UserError: If the record is of a reference board, the checkpoint does not exist, the record has no tested
            weights, or the record names a class that is neither part of lra-bench, of an installed extension, of
            ``config_dir`` nor of a trusted package.
    """
    from lra_bench.measurements.extrapolation import extrapolate
    from lra_bench.measurements.knobs import select_knobs
    from lra_bench.measurements.minimal_pairs import MinimalPairs
    from lra_bench.measurements.slices import Slices
    from lra_bench.measurements.subject import Context, Subject
    from lra_bench.records import environment, store
    from lra_bench.runtime.hardware import resolve, single_process
    from lra_bench.tracking.mirror import update

    from .locks import cell_lock

    boards = reference_root()
    if boards is not None and path.resolve().is_relative_to(boards.resolve()):
        raise UserError(f"{path}: belongs to a reference board; run lra-bench bench for its cell first")
    unlocked = store.load(path)
    _weights(unlocked)
    # Read the record again under the lock: another process may have changed it.
    with importable(config_dir), cell_lock(unlocked.key):
        record = store.load(path)
        with recorded_classes(path, config_dir, trusted):
            config = _config(record, hardware, config_dir)
            check_hardware(single_process(config.hardware))
            machine = resolve(single_process(config.hardware))
            machine.apply()
            task, model = _restored(record, config, machine)
        selected_knobs = select_knobs(model, None if ALL_KNOBS in knobs else knobs, "--knobs")
        lengths, selected_knobs, kept = _requested(record, task, lengths, selected_knobs)
        longest = max([*(point["length"] for point in kept["points"]), *lengths])
        ratios = [length / task.spec.train_length for length in lengths]
        changed: dict[str, Any] = {"extrapolation_ratios": ratios, "extrapolation_knobs": selected_knobs}
        options = replace(config.measure, **changed)
        number = record.attempt + 1
        found = extrapolate(model, task, options, machine, attempt=number, longest=longest)
        attempt = attempt_now(
            number, machine.slug, environment.environment(machine)["hardware"], environment.code_version()
        )
        after = joined(kept, found.points, found.by_position, attempt, task.spec.higher_is_better)
        if write:
            at_training_length = (result for key, result in found.evaluations.items() if key.ratio == 1)
            test = next((result for result in at_training_length if result.target_correct is not None), None)
            subject = Subject(config, task, model, test=test)
            context = Context(machine, machine, number, options.evaluation_batch_size, lambda: attempt)
            # Slices of an existing record remain: they are parts of its test score, which is not measured again.
            if not record.slices and test is not None:
                record.slices = Slices(options).measure(subject, context)
            if record.minimal_pairs is None and task.spec.train_length in lengths:
                record.minimal_pairs = MinimalPairs(options).measure(subject, context)
            _join(record, after, found, number)
            update(record)
    # Each as it is stored, if it is part of the section.
    stored = {(*place(point), point["attempt"]): point for point in after["points"]}
    return after, [stored.get((*place(point), point["attempt"]), point) for point in found.points]


def trained_model(path: Path, config_dir: Path | None = None, trusted: Sequence[str] = ()) -> nn.Module:
    """Return the model of a record with its best weights, in evaluation mode on the CPU.

    Args:
        path: The record file.
        config_dir: Folder of additional configuration and classes.
        trusted: Packages whose classes the record may name.

    Returns:
        The model. Data is read only if the model needs it after training.

    Raises:
        UserError: If the checkpoint does not exist, the record has no tested weights, or it names a class that is not
            permitted, see ``reevaluate``.
    """
    from lra_bench.records import store
    from lra_bench.runtime.hardware import resolve, single_process

    record = store.load(path)
    _weights(record)
    with importable(config_dir), recorded_classes(path, config_dir, trusted):
        config = _config(record, "cpu", config_dir)
        _, model = _restored(record, config, resolve(single_process(config.hardware)), with_data=False)
    return model.eval()


def _weights(record: Record) -> Checkpoints:
    """Return the checkpoints of a cell. Raises ``UserError`` if there are no tested weights, or they are not kept."""
    from lra_bench.training.checkpoint import Checkpoints

    from .locks import checkpoint_folder

    if record.status != "ok":
        raise UserError(
            f"{record.path}: has status {record.status}, so it has no tested weights; run {record.command} first"
        )
    checkpoints = Checkpoints(checkpoint_folder(record.key), 0)
    checkpoints.check_best()
    return checkpoints


def _restored(record: Record, config: CellConfig, hardware: Hardware, with_data: bool = True) -> tuple[Task, nn.Module]:
    """Return the task and the model with its best weights, in the state in which it was tested.

    The data of the task is prepared if ``with_data`` is set or the model needs it. Raises ``UserError`` if the record
    has no tested weights, or if the data differs from the data of the record.
    """
    from lra_bench.config.objects import build_model, build_task
    from lra_bench.data.batches import Rows
    from lra_bench.data.cache import Cache

    checkpoints = _weights(record)
    task = build_task(config)
    model = build_model(config, task.spec)
    finish = getattr(model, "finish", None)
    if with_data or finish is not None:
        task.prepare(Cache())
        if record.data is not None and record.data["fingerprint"] != task.fingerprint():
            raise UserError(
                f"{record.path}: was measured on other data (task {task.spec.name}: fingerprint "
                f"{record.data['fingerprint']}, here {task.fingerprint()}); provide the same data or run the cell again"
            )
    model = hardware.place(model)
    checkpoints.load_best(model, (record.training or {}).get("best_weights_sha256"))
    if finish is not None:
        finish(*(Rows(task.split(name), task.spec) for name in ("train", "validation")))
    return task, model


@contextmanager
def recorded_classes(path: Path, config_dir: Path | None, trusted: Sequence[str]) -> Iterator[None]:
    """Restrict which classes the configuration of a record may build, because the record may be untrusted.

    Classes of lra-bench, installed extensions, ``config_dir`` and the packages ``trusted`` are permitted. Raises
    ``UserError`` that names the record at ``path`` if its configuration is malformed or names another class.
    """
    from lra_bench.build import classes_of
    from lra_bench.config.groups import extension_packages

    packages = {*extension_packages(config_dir), *trusted}
    remedy = "if you trust the source of the record, add --config-dir DIR with the class, or --trust PACKAGE"
    try:
        with classes_of(packages, str(path), remedy):
            yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{path}: its configuration cannot be built ({type(error).__name__}: {first_line(error)})"
        ) from error


def _config(record: Record, hardware: str | None, config_dir: Path | None) -> CellConfig:
    """Return the configuration of a record, with the hardware options of the file ``hardware`` if given.

    Raises ``UserError`` if the recorded configuration is malformed or ``hardware`` does not exist.
    """
    from lra_bench.build import suggest
    from lra_bench.config.groups import option_files
    from lra_bench.config.yaml_files import read

    try:
        config = from_dict(record.config)
    except UserError as error:
        raise UserError(f"{record.path}: its configuration cannot be used ({error})") from error
    if hardware is None:
        return config
    files = option_files("hardware", config_dir)
    if hardware not in files:
        raise UserError(f"--hardware {hardware}: there is no such hardware{suggest(hardware, set(files))}")
    chosen, _ = read(files[hardware], f"--hardware {hardware}")
    options = options_from(HardwareOptions, {**asdict(config.hardware), **chosen}, "hardware")
    return replace(config, hardware=options)


def _requested(
    record: Record, task: Task, lengths: Sequence[int], knobs: Sequence[str]
) -> tuple[list[int], list[str], Extrapolation]:
    """Return the lengths and knobs to evaluate, and the section of the record whose points are kept.

    In language modelling a new longest context changes which tokens are scored. Then all points of the record are
    measured again and none is kept. Raises ``UserError`` if no length remains or a length is below 1.
    """
    trained, higher = task.spec.train_length, task.spec.higher_is_better
    kept = record.extrapolation or section(trained, [], [], [], higher)
    before = sorted({point["length"] for point in kept["points"]})
    selected = sorted(set(lengths)) or ([length for length in before if length > trained] if knobs else [trained])
    if not selected:
        raise UserError(f"--knobs: the record has no length beyond the {trained:,} tokens of training; add --lengths")
    if selected[0] < 1:
        raise UserError(f"--lengths {selected[0]}: must be at least 1")
    if task.spec.kind == "language_modeling" and before and selected[-1] > before[-1]:
        say(f"A context of {selected[-1]:,} tokens changes which tokens are scored; all contexts are measured again.")
        knobs = list(dict.fromkeys([*(point["knob"] for point in kept["points"] if point["knob"]), *knobs]))
        selected, kept = sorted({*before, *selected}), section(trained, [], [], [], higher)
    return selected, list(knobs), kept


def _join(record: Record, after: Extrapolation, found: Measured, number: int) -> None:
    """Write the record with its new section and its predictions, replacing old predictions that were made again."""
    import pandas as pd

    from lra_bench.records import store, tables

    from .stages import predictions_table

    parts = [predictions_table(found.evaluations)] if found.evaluations else []
    old = tables.predictions(record)
    if old is not None:
        old = old if "knob" in old else old.assign(knob="")
        again = {(key.variant, key.knob, key.length) for key in found.evaluations}
        keys = zip(old["variant"], old["knob"], old["length"], strict=True)
        parts.insert(0, old[[key not in again for key in keys]])
    record.extrapolation, record.attempt = after, number
    store.amend(record, pd.concat(parts, ignore_index=True) if parts else None)

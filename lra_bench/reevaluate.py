"""The kept best checkpoint of a record, evaluated again without training."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.records.schema import ExtrapolationPoint, Record


def reevaluate(record: Record, lengths: Sequence[int] = ()) -> list[ExtrapolationPoint]:
    """Test the record's best weights at its own length, or at ``lengths``: points as in ``extrapolation``.

    Raises ``UserError`` where the checkpoint is no longer there.
    """
    from lra_bench.build import build_model, build_task
    from lra_bench.cell import checkpoint_folder
    from lra_bench.data.batches import Rows
    from lra_bench.data.cache import Cache
    from lra_bench.hardware import resolve
    from lra_bench.measure.length import extrapolate, point_of_test
    from lra_bench.training.checkpoint import Checkpoints
    from lra_bench.training.evaluation import evaluate

    config = record.config
    hardware = resolve(config["hardware"])
    hardware.apply()
    task = build_task(config)
    task.prepare(Cache())
    model = build_model(config, task.spec).to(hardware.device)
    Checkpoints(checkpoint_folder(record.key), 0).load_best(model)
    finish = getattr(model, "finish", None)
    if finish is not None:
        finish(*(Rows(task.split(name), task.spec) for name in ("train", "validation")))
    rows = Rows(task.split("test"), task.spec)
    test = evaluate(model, rows, task.spec, hardware, config["measure"]["evaluation_batch_size"], "Test")
    if not lengths:
        return [point_of_test(task, test)]
    ratios = [length / task.spec.train_length for length in lengths]
    asked = {**config, "measure": {**config["measure"], "extrapolation_ratios": ratios}}
    return extrapolate(model, task, asked, hardware, test).points

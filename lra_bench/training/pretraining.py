"""Self-pretraining of a network on the inputs of the training split, with the loop of the training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from lra_bench.config.objects import build_pretraining, kept_weights
from lra_bench.config.pretraining import RECORD, hiding_probability, phase_config, phase_spec
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.data.batches import Rows, evaluation_batches
from lra_bench.data.inputs import InputRows
from lra_bench.runtime.hardware import Hardware, first_line

from .checkpoint import Checkpoints
from .loop import Fit, train
from .loss import is_scored
from .meter import Diverged
from .parallel import ALONE, Group


def pretrain(
    network: nn.Module,
    rows: Mapping[str, Rows],
    spec: TaskSpec,
    config: CellConfig,
    hardware: Hardware,
    checkpoints: Checkpoints,
    group: Group = ALONE,
) -> Fit:
    """Pretrain a network, or resume its pretraining; ``load_pretrained`` loads the selected weights afterwards.

    Args:
        network: The network, on the device.
        rows: The rows of the splits ``train`` and ``validation``; the weights are trained on the former only.
        spec: The specification of the task.
        config: The configuration of the cell.
        hardware: The device, precision and size of micro-batches.
        checkpoints: The checkpoints of the training.
        group: The ranks that train together.

    Returns:
        The final state and the figures of this phase, see ``loop.train``.

    Raises:
        Diverged: As ``loop.train``, with a message that names the phase.
        Stopped: As ``loop.train``.
        UserError: If the network has no hidden states of tokens.
    """
    inputs, own, phase = input_rows(rows, config, spec), checkpoints.of_pretraining(), phase_config(config)
    with with_head(network, spec, config) as wrapped:
        try:
            model = hardware.place(wrapped)
            return train(model, inputs, phase_spec(spec), phase, hardware, own, lambda step, values: None, group)
        except Diverged as error:
            raise Diverged(f"pretraining: {error}") from error


def load_pretrained(network: nn.Module, spec: TaskSpec, config: CellConfig, checkpoints: Checkpoints) -> None:
    """Load the weights with which training begins, strictly by name; the head of the network keeps its weights.

    They are those that pretraining selected, or those of another record.
    """
    if config.pretrain.name == RECORD:
        _load_record(network, str(config.pretrain.record))
        return
    own = checkpoints.of_pretraining()
    with with_head(network, spec, config) as wrapped:
        (own.load_best if config.pretrain.select == "best" else own.load_last)(wrapped)


def _load_record(network: nn.Module, key: str) -> None:
    """Load the tested weights of another cell into a network, except those of its head.

    Raises ``UserError`` if they are not in the cache, or have other names or shapes.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    option = "pretrain.record"
    path = kept_weights(key, option)
    if (head := getattr(network, "head", None)) is None:
        raise UserError(f"{option}={key}: {type(network).__name__} has no head; set pretrain=none")
    network.head = nn.Identity()
    try:
        missing, unexpected = load_model(network, path, strict=False)
        wrong = [*missing, *(name for name in unexpected if not name.startswith("head."))]
        fault = f"{wrong[0]} is not in both" if wrong else ""
    except (SafetensorError, RuntimeError) as error:
        fault = first_line(error)
    finally:
        network.head = head
    if fault:
        raise UserError(f"{option}={key}: its weights are those of another network ({fault})")


@contextmanager
def with_head(network: nn.Module, spec: TaskSpec, config: CellConfig) -> Iterator[Any]:
    """Yield the network with the head of the objective, which is removed when the context exits."""
    digest = hashlib.blake2b(f"{config.seed}/pretraining".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        wrapped = build_pretraining(config, network, spec)
    try:
        yield wrapped
    finally:
        wrapped.remove()


def input_rows(rows: Mapping[str, Rows], config: CellConfig, spec: TaskSpec) -> dict[str, InputRows]:
    """Return the inputs of the training and the validation split as examples of the objective."""
    options = config.pretrain
    probability = hiding_probability(options, spec)
    return {
        name: InputRows(rows[name], phase_spec(spec), probability, options.span, config.seed, count)
        for name, count in {"train": options.rows, "validation": None}.items()
    }


def constant_floor(rows: InputRows, batch_size: int) -> tuple[float, float | None]:
    """Return the lowest loss of a constant prediction on the targets of rows, and its accuracy, None for values.

    The constant is the distribution of these targets, whose loss is their entropy, or the median of each channel.
    Raises ``UserError`` if there are no targets.
    """
    parts = [batch.targets[is_scored(batch.targets)] for _, batch in evaluation_batches(rows, batch_size)]
    targets = torch.cat(parts).numpy()
    if not len(targets):
        raise UserError(
            "pretrain.probability: no position of the validation split is hidden; raise it, or lower pretrain.span"
        )
    if targets.dtype.kind == "f":
        by_channel = targets.reshape(-1, rows.spec.classes).astype(np.float64)
        return float(np.abs(by_channel - np.median(by_channel, axis=0)).mean()), None
    shares = np.bincount(targets) / len(targets)
    known = shares[shares > 0]
    return float(-(known * np.log(known)).sum()), float(shares.max())


def section(
    fit: Fit, config: CellConfig, spec: TaskSpec, rows: int, floor: tuple[float, float | None]
) -> dict[str, Any]:
    """Return the section ``pretraining`` of the record; ``floor`` is the result of ``constant_floor``."""
    figures, options = fit.figures, config.pretrain
    is_best = options.select == "best"
    floor_loss, floor_accuracy = floor
    values = spec.vocabulary_size is None
    return {
        "objective": options.name,
        "loss": "absolute error" if values else "cross-entropy",
        "probability": hiding_probability(options, spec),
        "rows": rows,
        "steps": figures["steps"],
        "selected_step": fit.state.best_step if is_best else figures["steps"],
        "seconds": figures["train_seconds"],
        "evaluation_seconds": figures["evaluation_seconds"],
        "tokens_seen": figures["tokens_seen"],
        "validation_loss": figures["lowest_validation_loss"],
        "floor_loss": floor_loss,
        "validation_accuracy": None if values else figures["validation_score_at_lowest_loss"],
        "floor_accuracy": floor_accuracy,
        "validations": [
            {"step": step, "loss": loss, "accuracy": None if values else score}
            for step, loss, score in fit.state.validations
        ],
        "final_weights_sha256": figures["final_weights_sha256"],
    }

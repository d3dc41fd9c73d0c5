"""The training loop. A resumed run gives the same result as an uninterrupted one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only

from lra_bench.config.schema import CellConfig, Train
from lra_bench.config.search import reference_lr
from lra_bench.contracts import Batch, Output, Prepared, Stepped, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.progress import bar
from lra_bench.records.skill import skill
from lra_bench.runtime.hardware import Hardware
from lra_bench.runtime.signals import Stopped, deferred

from .checkpoint import Checkpoints, State
from .compilation import Compilation
from .evaluation import Evaluation, evaluate
from .loss import objective, scored_targets
from .meter import Diverged, Meter
from .optimizer import Optimizer
from .parallel import ALONE, Group, gather_full, micro_batches
from .prefetch import ahead_of
from .sampling import training_batches
from .take_off import IN_A_ROW, first_above, has_skill, late_progress, take_off


@dataclass(frozen=True)
class Fit:
    """The result of training besides the weights.

    ``state`` is the final training state. ``figures`` are the measured values of the record's ``training`` section, by
    name.
    """

    state: State
    figures: dict[str, Any]


def seed_everything(seed: int, step: int, rank: int = 0) -> None:
    """Seed torch's generators for one step, so that checkpoints need not store generator states.

    The three numbers are hashed into one seed, because neighbouring seeds could give correlated random numbers.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    # torch.manual_seed would also queue a call for every kind of device that is not initialised, and format the stack
    # for it, at every step.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def train(
    model: nn.Module,
    rows: Mapping[str, Rows],
    spec: TaskSpec,
    config: CellConfig,
    hardware: Hardware,
    checkpoints: Checkpoints,
    log: Callable[[int, dict[str, float]], None],
    group: Group = ALONE,
    floor: float | None = None,
) -> Fit:
    """Train ``model`` and keep the best weights on ``rows["validation"]``.

    The best weights are those of the lowest validation loss, or of the best score if ``spec.select_by`` is ``metric``.

    Training resumes from the last checkpoint, if there is one.

    Args:
        model: The model, on the device.
        rows: The rows of ``training_rows`` and of the split ``validation``.
        spec: The specification of the task.
        config: The configuration of the cell; ``config.train`` is the recipe.
        hardware: The device, precision and size of micro-batches.
        checkpoints: The checkpoint folder.
        log: Called as ``log(step, values)`` after every evaluation.
        group: The ranks that train together. Each rank calls this function with the same arguments and processes its
            part of every batch; the result is the same on all ranks.
        floor: The score of the strongest floor on the evaluated rows of the validation split, from which the skill of
            evaluations is computed; None if unknown. It must be the same on all ranks.

    Returns:
        The final training state and the values of the record's ``training`` section.

    Raises:
        Diverged: If a loss, also on the validation split, or without a gradient scaler a gradient norm, is not finite.
            The meter checks those of training every ``CHECK_EVERY_STEPS`` steps, before evaluations and before
            checkpoints, not at every step.
        Stopped: If the process was interrupted; a checkpoint has been written.
        UserError: If ``train.stop_at`` is set and the skill of evaluations is undefined.
    """
    recipe, seed = config.train, config.seed
    if recipe.stop_at is not None and not has_skill(floor, spec.higher_is_better):
        raise UserError(
            f"train.stop_at={recipe.stop_at}: {spec.name} has no floor on the validation split to compute skill from; "
            "set train.stop_at=null"
        )
    sampled = training_batches(rows, recipe, seed)
    compilation = Compilation(model, hardware.compile)
    run = group.wrap(model, compilation.run)
    optimizer = Optimizer(model, recipe, hardware, reference_lr(config))
    state = checkpoints.resume(model, optimizer)
    state.memory = tree_map_only(Tensor, lambda tensor: tensor.to(hardware.device), state.memory)
    meter = Meter(state, optimizer, hardware, group, compilation.pop_seconds)
    stepped = stepped_modules(model)
    solved = _is_solved(state, recipe, spec, floor)

    if isinstance(model, Prepared):
        with bar(model.preparation_steps, "Preparing", unit="steps") as advance:
            model.prepare(rows["train"], state.step == 0, advance)
    model.train()
    label, steps = f"Training {config.model['label']}", range(state.step, recipe.steps)
    with (
        bar(recipe.steps, label, start=state.step, unit="steps") as advance,
        deferred() as interrupted,
        closing(ahead_of(((step, sampled(step)) for step in steps), hardware.device)) as batches,
    ):
        for step in steps:
            if solved:
                break
            seed_everything(seed, step, group.rank)
            batch = meter.wait(batches)
            # If compilation fails in the first function, the second one undoes its effects before the first is retried.
            loss, state.memory, statistics = compilation.guarded(
                partial(forward_backward, run, batch, optimizer, hardware, state.memory, group),
                partial(_reset_step, optimizer, seed, step, group.rank),
            )
            norm = optimizer.step(step)
            after_step(stepped, step, statistics)
            meter.update(step, loss, norm, batch)
            state.step = step + 1
            advance(1)
            if state.step % recipe.evaluate_every == 0 or state.step == recipe.steps:
                meter.check()
                with meter.phase("evaluation"):
                    _validate_and_save_best(
                        model, rows["validation"], spec, config, hardware, checkpoints, state, group
                    )
                _, validation_loss, score = state.validations[-1]
                log(state.step, meter.latest() | {"validation_loss": validation_loss, "validation_score": score})
                solved = _is_solved(state, recipe, spec, floor)
                model.train()
            due, stopped = group.any(checkpoints.due(), interrupted())
            if due or stopped or solved or state.step == recipe.steps:
                meter.check()
                with meter.phase("checkpoint"):
                    checkpoints.save(state, model, optimizer)
            if stopped:
                raise Stopped
    if interrupted() and not group.connected:
        # The interrupt arrived while the last checkpoint was written. For a group, the parent process raises instead.
        raise Stopped
    figures = {**meter.figures(), "compile": compilation.report(), **_outcome(model, state, spec, floor)}
    found = take_off(
        [(step, score) for step, _, score in state.validations], state.validation_seconds, floor, spec.higher_is_better
    )
    return Fit(state, {**figures, **found, "stopped_early": state.step < recipe.steps})


def _is_solved(state: State, recipe: Train, spec: TaskSpec, floor: float | None) -> bool:
    """Return whether the skill of the latest evaluations exceeds ``train.stop_at``, so that training ends."""
    if recipe.stop_at is None or floor is None:
        return False
    latest = [score for _, _, score in state.validations[-IN_A_ROW:]]
    return first_above(latest, floor, spec.higher_is_better, recipe.stop_at) is not None


def forward_backward(
    model: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    hardware: Hardware,
    memory: Any = None,
    group: Group = ALONE,
) -> tuple[Tensor, Any, dict[str, dict[str, Tensor]]]:
    """Run the forward and backward passes of a batch, in micro-batches; gradients are accumulated in the parameters.

    The loss of a batch is the mean cross-entropy over its scored targets plus its auxiliary losses. Losses of
    micro-batches are normalised such that they add up to it: the cross-entropy is divided by the number of scored
    targets of the full batch of all ranks, and auxiliary losses are multiplied by the micro-batch's fraction of the
    rows of that batch.

    Args:
        model: The model to call.
        batch: The batch of all ranks.
        optimizer: The optimizer, which scales the loss if the precision is fp16.
        hardware: The device, precision and size of micro-batches.
        memory: The memory after the previous batch: a pytree of tensors, batch first. It is used only by batches of a
            stream, which have the entry ``reset`` in ``extra``, and set to zero in rows that begin a document.
        group: The ranks that share the batch. Each rank processes its own rows.

    Returns:
        The loss as a scalar tensor, the memory after the batch, and the statistics of modules summed over
        micro-batches. The loss is the sum over the rank's micro-batches, so it is only a part of the loss of the batch
        if there are several ranks; ``Meter`` adds the parts of all ranks. The memory is that of the rank's rows.
        Gradients and statistics are those of all rows.
    """
    parts = micro_batches(batch.size, hardware.micro_batch, group.rank, group.world)
    begin, end = parts[0][0], parts[-1][1]
    full_batch = batch
    batch = batch if end - begin == batch.size else batch.rows(begin, end)
    reset = batch.extra.get("reset")
    batch = batch.to(hardware.device)
    if reset is None:
        memory = None
    else:
        # Memory may have tensors on the CPU, such as numbers of tokens that a mixer reads there.
        resets = {reset.device: reset, hardware.device: batch.extra["reset"]}
        memory = tree_map_only(Tensor, lambda tensor: _reset_rows(tensor, resets[tensor.device]), memory)
    if group.world == len(parts) == 1:
        loss, memory, reported = _micro_step(model, batch, optimizer, hardware, memory)
        return loss, memory, {name: dict(values) for name, values in reported.items()}
    scored = scored_targets(full_batch).clamp(min=1).to(hardware.device, non_blocking=True)
    losses: list[Tensor] = []
    memories: list[Any] = []
    statistics: dict[str, dict[str, Tensor]] = {}
    for start, stop in parts:
        part = batch.rows(start - begin, stop - begin)
        part_memory = tree_map_only(Tensor, lambda tensor: tensor[start - begin : stop - begin], memory)  # noqa: B023
        share = part.size / full_batch.size
        with group.reducing(model, last=stop == end):
            loss, after, reported = _micro_step(model, part, optimizer, hardware, part_memory, scored, share, group)
        losses.append(loss)
        memories.append(after)
        for name, values in reported.items():
            sums = statistics.setdefault(name, {})
            for key, value in values.items():
                sums[key] = sums[key] + value if key in sums else value
    merged = tree_map(lambda *parts: torch.cat(parts), *memories) if memories[0] is not None else None
    return torch.stack(losses).sum(), merged, group.sum_statistics(statistics)


def _micro_step(
    model: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    hardware: Hardware,
    memory: Any,
    scored: Tensor | None = None,
    share: float = 1.0,
    group: Group = ALONE,
) -> tuple[Tensor, Any, Mapping[str, Mapping[str, Tensor]]]:
    """Run the forward and backward passes of one micro-batch; return its loss, memory and statistics, all detached.

    ``scored`` is the number of scored targets of the full batch, None if the micro-batch is the full batch. ``share``
    is the micro-batch's fraction of the rows of the full batch, by which its auxiliary losses are multiplied.
    """
    with hardware.autocast():
        output: Output = model(batch, memory)
    loss = objective(output, batch, scored, share)
    optimizer.backward(group.scaled(loss))
    after = tree_map_only(Tensor, lambda tensor: tensor.detach(), output.memory)
    return loss.detach(), after, output.statistics


def _reset_step(optimizer: Optimizer, seed: int, step: int, rank: int) -> None:
    """Clear the gradients and restore the generators, as before the forward pass of ``step``."""
    optimizer.clear()
    seed_everything(seed, step, rank)


def _reset_rows(tensor: Tensor, reset: Tensor) -> Tensor:
    """Return ``tensor`` (B, ...) with zeros, the initial memory, in the rows (B,) that begin a new document."""
    return tensor.masked_fill(reset.view(-1, *[1] * (tensor.dim() - 1)), 0)


def stepped_modules(model: nn.Module) -> list[Stepped]:
    """Return the modules of ``model`` that update their buffers after each step."""
    return [module for module in model.modules() if isinstance(module, Stepped)]


def after_step(modules: Sequence[Stepped], step: int, statistics: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Call ``after_step`` of each module, with the statistics that it reported, without gradients."""
    with torch.no_grad():
        for module in modules:
            module.after_step(step, statistics.get(str(getattr(module, "statistics_name", "")), {}))


def _validate_and_save_best(
    model: nn.Module,
    rows: Rows,
    spec: TaskSpec,
    config: CellConfig,
    hardware: Hardware,
    checkpoints: Checkpoints,
    state: State,
    group: Group,
) -> None:
    """Evaluate on the validation split and keep the weights if they are better than all before.

    The training time until the evaluation is read from ``state.seconds``, which must be up to date. In language
    modelling, the evaluation stops after ``train.validation_tokens`` scored tokens.
    """
    batch_size, tokens = config.measure.evaluation_batch_size, config.train.validation_tokens
    stream = config.train.order == "stream"
    result = evaluate(model, rows, spec, hardware, batch_size, "Validation", tokens, group, stream=stream)
    if not math.isfinite(result.loss):
        raise Diverged(f"the validation loss is {result.loss} at step {state.step}")
    state.validations.append((state.step, result.loss, result.score))
    state.validation_seconds.append(state.seconds["train"])
    value = selected_value(result, spec)
    lower_is_better = spec.select_by == "loss" or not spec.higher_is_better
    if math.isnan(state.best_value) or (value < state.best_value if lower_is_better else value > state.best_value):
        state.best_value, state.best_step = value, state.step
        state.best_digest = checkpoints.keep_best(model)


def selected_value(result: Evaluation, spec: TaskSpec) -> float:
    """Return the value of an evaluation that selects the best weights: the loss, or the score."""
    return result.loss if spec.select_by == "loss" else result.score


def _outcome(model: nn.Module, state: State, spec: TaskSpec, floor: float | None) -> dict[str, Any]:
    """Return the record's values for the steps done, the selection of the best weights, and the SHA-256 of the last.

    ``lowest_validation_loss`` is that of all evaluations; score and skill are those of the same evaluation.

    The digest covers name and bytes of every tensor of the state dictionary, in the order of names. Of a tensor without
    dimensions it covers only the name, because torch cannot view such a tensor as bytes.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(gather_full(model.state_dict()).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else b"")
    _, loss, score = min(state.validations, key=lambda found: found[1])
    return {
        "lowest_validation_loss": loss,
        "validation_score_at_lowest_loss": score,
        "validation_skill_at_lowest_loss": skill(score, floor, spec.higher_is_better),
        **late_progress(state.validations),
        "steps": state.step,
        "best_step": state.best_step,
        "selected_by": "loss" if spec.select_by == "loss" else spec.metric,
        "final_weights_sha256": digest.hexdigest(),
    }

"""Losses and times of a training run, gathered without waiting for the device."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import Batch
from lra_bench.runtime.hardware import Hardware

from .checkpoint import State
from .optimizer import Optimizer
from .parallel import ALONE, Group

WARMUP_STEPS = 10
CHECK_EVERY_STEPS = 25


class Diverged(Exception):
    """The loss or a gradient became infinite or not a number."""


class Meter:
    """Losses and times of a run, gathered without waiting for the device except where figures are looked at.

    Seconds of evaluation, checkpoints, the first steps and ``compiling`` (those spent so since it was asked last) are
    kept apart from those of training. Losses are those of
    a rank's share and are summed over the ``group``; rows and tokens are those of the whole batch.
    """

    def __init__(
        self,
        state: State,
        optimizer: Optimizer,
        hardware: Hardware,
        group: Group = ALONE,
        compiling: Callable[[], float] = float,
    ) -> None:
        self.state, self.optimizer, self.hardware, self.group = state, optimizer, hardware, group
        self.compiling = compiling
        self.pending: list[tuple[int, int]] = []
        # One place for all: scalars kept alive one by one would cut up the memory that steps take and give back.
        self.figures_pending = torch.zeros(CHECK_EVERY_STEPS, 2, dtype=torch.float64, device=hardware.device)
        self.tokens = state.curve[-1][3] if state.curve else 0
        self.steps_here = 0
        self.mark = time.perf_counter()
        self.waited = 0.0
        self.window = {"steps": 0.0, "rows": 0.0, "tokens": 0.0, "padded_tokens": 0.0}

    def wait(self, batches: Callable[[int], Batch], step: int) -> Batch:
        """The batch of ``step``, counting the time it takes to come."""
        began = time.perf_counter()
        batch = batches(step)
        self.waited += time.perf_counter() - began
        return batch

    def update(self, step: int, loss: Tensor, norm: Tensor, batch: Batch) -> None:
        """Take note of a step; figures stay on the device until ``check``."""
        real = int(batch.lengths.sum())
        self.tokens += real
        torch.stack((loss.double(), norm.double()), out=self.figures_pending[len(self.pending)])
        self.pending.append((step, self.tokens))
        self.window["steps"] += 1
        self.window["rows"] += batch.size
        self.window["tokens"] += real
        self.window["padded_tokens"] += batch.lengths.numel() * batch.width
        self.steps_here += 1
        if self.steps_here == WARMUP_STEPS:
            self._close_window(counted=False)
        elif len(self.pending) >= CHECK_EVERY_STEPS:
            self.check()

    def check(self) -> None:
        """Bring pending figures to the host, once for all; ``Diverged`` where one is not finite."""
        if not self.pending:
            return
        losses, norms = self.figures_pending[: len(self.pending)].unbind(1)
        values = torch.stack((self.group.sum_in_order(losses), norms), 1).tolist()
        for (step, tokens), (loss, norm) in zip(self.pending, values, strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"the loss became {loss} at step {step + 1}")
            # In fp16 a gradient may overflow: the scaler skips that step.
            if not (math.isfinite(norm) or self.optimizer.scaler.is_enabled()):
                raise Diverged(f"the gradient became {norm} at step {step + 1}")
            rate = self.optimizer.train.lr * self.optimizer.factor(step)
            self.state.curve.append((loss, rate, norm, tokens))
        self.pending.clear()

    def latest(self) -> dict[str, float]:
        """The newest row of the curve, by name."""
        loss, rate, norm, tokens = self.state.curve[-1]
        return {"train_loss": loss, "learning_rate": rate, "gradient_norm": norm, "tokens_seen": tokens}

    def phase(self, name: str) -> _Phase:
        """A context whose seconds count as ``name`` and not as training."""
        return _Phase(self, name)

    def _close_window(self, counted: bool = True) -> None:
        self.hardware.synchronize()
        compiling, spent = self.compiling(), self.state.seconds
        seconds = time.perf_counter() - self.mark - compiling
        counted = counted and self.steps_here > WARMUP_STEPS
        if counted:
            for key, value in {**self.window, "seconds": seconds, "data_wait_seconds": self.waited}.items():
                self.state.timed[key] = self.state.timed.get(key, 0.0) + value
        spent["train"] = spent.get("train", 0.0) + seconds
        if compiling:
            spent["compile"] = spent.get("compile", 0.0) + compiling
        self.window = dict.fromkeys(self.window, 0.0)
        self.waited = 0.0
        self.mark = time.perf_counter()

    def figures(self) -> dict[str, Any]:
        """Throughput and times for the record; None where too few steps were timed."""
        self._close_window()
        timed, spent = self.state.timed, self.state.seconds
        seconds = timed.get("seconds", 0.0)
        per_second = {
            f"{name}_per_second": timed[name] / seconds if seconds else None
            for name in ("steps", "rows", "tokens", "padded_tokens")
            if name in timed
        }
        return {
            "train_seconds": spent.get("train"),
            "evaluation_seconds": spent.get("evaluation"),
            "checkpoint_seconds": spent.get("checkpoint"),
            "compile_seconds": spent.get("compile"),
            "tokens_seen": self.tokens,
            **self._gradients(),
            "data_wait_share": timed["data_wait_seconds"] / seconds if seconds else None,
            **per_second,
        }

    def _gradients(self) -> dict[str, float | None]:
        """The last learning rate, and the norms of the gradients before clipping; None where no step was made."""
        curve, clip = self.state.curve, self.optimizer.train.clip
        norms = [norm for _, _, norm, _ in curve]
        clipped = sum(norm > clip for norm in norms) if clip else 0
        return {
            "last_learning_rate": curve[-1][1] if curve else None,
            "gradient_norm_median": statistics.median(norms) if norms else None,
            "gradient_norm_max": max(norms, default=None),
            "clipped_share": clipped / len(norms) if norms else None,
        }


class _Phase:
    def __init__(self, meter: Meter, name: str) -> None:
        self.meter, self.name = meter, name

    def __enter__(self) -> None:
        self.meter._close_window()

    def __exit__(self, *_: object) -> None:
        self.meter.hardware.synchronize()
        spent = self.meter.state.seconds
        now = time.perf_counter()
        spent[self.name] = spent.get(self.name, 0.0) + now - self.meter.mark
        self.meter.mark = now

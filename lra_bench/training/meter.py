"""Record losses and times of a training run without synchronising with the device at every step."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Raised when the loss or a gradient norm is infinite or NaN."""


class Meter:
    """Losses and times of a training run.

    Losses stay on the device and are copied to the host every ``CHECK_EVERY_STEPS`` steps, before evaluations and
    before checkpoints. Each rank adds the loss of its rows; losses are summed over the ``group``. Rows and tokens are
    those of the full batch. The first ``WARMUP_STEPS`` steps do not count for the throughput. Times of evaluations,
    checkpoints and compilation do not count as training; ``compile_seconds`` returns the seconds of compilation since
    its previous call.
    """

    def __init__(
        self,
        state: State,
        optimizer: Optimizer,
        hardware: Hardware,
        group: Group = ALONE,
        compile_seconds: Callable[[], float] = float,
    ) -> None:
        self.state, self.optimizer, self.hardware, self.group = state, optimizer, hardware, group
        self.compile_seconds = compile_seconds
        self.pending: list[tuple[int, int]] = []
        # One tensor for all steps: individual scalars that stay alive would fragment the allocator's memory.
        self.figures_pending = torch.zeros(CHECK_EVERY_STEPS, 2, dtype=torch.float64, device=hardware.device)
        self.tokens = state.curve[-1][3] if state.curve else 0
        self.steps_here = 0
        self.mark = time.perf_counter()
        self.waited = 0.0
        self.window = Counter[str]()

    def wait(self, batches: Iterator[tuple[int, Batch]]) -> Batch:
        """Return the next batch and add the time spent waiting for it."""
        began = time.perf_counter()
        _, batch = next(batches)
        self.waited += time.perf_counter() - began
        return batch

    def update(self, step: int, loss: Tensor, norm: Tensor, batch: Batch) -> None:
        """Record a step; its loss and gradient norm stay on the device until ``check``."""
        real = int(batch.lengths.sum())
        self.tokens += real
        torch.stack((loss.double(), norm.double()), out=self.figures_pending[len(self.pending)])
        self.pending.append((step, self.tokens))
        padded = batch.lengths.numel() * batch.width
        self.window.update(steps=1, rows=batch.size, tokens=real, padded_tokens=padded)
        self.steps_here += 1
        if self.steps_here == WARMUP_STEPS:
            self._close_window(counted=False)
        elif len(self.pending) >= CHECK_EVERY_STEPS:
            self.check()

    def check(self) -> None:
        """Copy all pending losses and norms to the host in one transfer and append them to the curve.

        Raises ``Diverged`` if a loss is not finite, or a gradient norm without a gradient scaler.
        """
        if not self.pending:
            return
        losses, norms = self.figures_pending[: len(self.pending)].unbind(1)
        values = torch.stack((self.group.sum_in_order(losses), norms), 1).tolist()
        for (step, tokens), (loss, norm) in zip(self.pending, values, strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"the loss became {loss} at step {step + 1}")
            # A gradient may overflow in fp16; the gradient scaler skips that step.
            if not (math.isfinite(norm) or self.optimizer.scaler.is_enabled()):
                raise Diverged(f"the gradient became {norm} at step {step + 1}")
            rate = self.optimizer.train.lr * self.optimizer.factor(step)
            self.state.curve.append((loss, rate, norm, tokens))
        self.pending.clear()

    def latest(self) -> dict[str, float]:
        """Return the last entry of the curve, by name."""
        loss, rate, norm, tokens = self.state.curve[-1]
        return {"train_loss": loss, "learning_rate": rate, "gradient_norm": norm, "tokens_seen": tokens}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the context as phase ``name`` and not as training, also after an exception."""
        self._close_window()
        try:
            yield
        finally:
            self.hardware.synchronize()
            now = time.perf_counter()
            self.state.seconds[name] = self.state.seconds.get(name, 0.0) + now - self.mark
            self.mark = now

    def _close_window(self, counted: bool = True) -> None:
        """Add the time since the last mark to the training time, and if ``counted`` to the throughput as well."""
        self.hardware.synchronize()
        compiling, spent = self.compile_seconds(), self.state.seconds
        seconds = time.perf_counter() - self.mark - compiling
        counted = counted and self.steps_here > WARMUP_STEPS
        if counted:
            for key, value in {**self.window, "seconds": seconds, "data_wait_seconds": self.waited}.items():
                self.state.timed[key] = self.state.timed.get(key, 0.0) + value
        spent["train"] = spent.get("train", 0.0) + seconds
        if compiling:
            spent["compile"] = spent.get("compile", 0.0) + compiling
        self.window.clear()
        self.waited = 0.0
        self.mark = time.perf_counter()

    def figures(self) -> dict[str, Any]:
        """Return the record's times, throughput (None if too few steps were timed), and statistics of the gradient."""
        self._close_window()
        timed, spent = self.state.timed, self.state.seconds
        seconds = timed.get("seconds", 0.0)
        per_second = {
            f"{name}_per_second": timed[name] / seconds if seconds else None
            for name in ("steps", "rows", "tokens", "padded_tokens")
            if name in timed
        }
        curve, clip = self.state.curve, self.optimizer.train.clip
        norms = [norm for _, _, norm, _ in curve]  # before clipping
        clipped = sum(norm > clip for norm in norms) if clip else 0
        return {
            **{f"{phase}_seconds": spent.get(phase) for phase in ("train", "evaluation", "checkpoint", "compile")},
            "tokens_seen": self.tokens,
            "last_learning_rate": curve[-1][1] if curve else None,
            "gradient_norm_median": statistics.median(norms) if norms else None,
            "gradient_norm_max": max(norms, default=None),
            "clipped_share": clipped / len(norms) if norms else None,
            "data_wait_share": timed["data_wait_seconds"] / seconds if seconds else None,
            **per_second,
        }

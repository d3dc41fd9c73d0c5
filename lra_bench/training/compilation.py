"""A model run through ``torch.compile``; where that fails it runs as it is, and what became of it is known."""

from __future__ import annotations

import functools
import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from lra_bench.progress import say
from lra_bench.records.sections import Compile

T = TypeVar("T")


class Compilation:
    """``run`` is what to call in place of ``model``: the model, or its compiled form where that is ``requested``.

    A function that breaks the graph is compiled in parts, with what breaks it run as it is. Where compiling fails, the
    whole model runs as it is from then on, which stderr and ``report`` say. ``backend`` is that of ``torch.compile``.
    """

    def __init__(self, model: nn.Module, requested: bool, backend: Any = "inductor") -> None:
        self.requested = requested
        self.failure = ""
        self.run = model
        if requested:
            # What an earlier model has left counts toward the number of times that the same code may be compiled.
            torch.compiler.reset()
            _clock().listen()
            if "TORCH_LOGS" not in os.environ:
                logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # pages on what ``report`` tells
            # torch looks at gradients of what has none when it goes on after a break.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            self.run = _Switch(model, backend, self)
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self._began = self._taken = _clock().seconds
        if self.requested:
            _counters().clear()

    def guarded(self, work: Callable[[], T], again: Callable[[], object]) -> T:
        """What ``work``, which calls ``run``, returns.

        Where it fails it is done once more with the model as it is, after ``again`` has undone what was done; what
        fails then too is the model's own fault, and passes through. So does a want of memory at once.
        """
        if not self.requested or self.failure:
            return work()
        try:
            return work()
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            self.failure = f"{type(error).__name__}: {_sentence(str(error), 2)}"
        again()
        done = work()
        say(f"torch.compile failed, so the model runs as it is ({self.failure}).")
        return done

    def taken_seconds(self) -> float:
        """Seconds spent on compiling since this was asked last."""
        before, self._taken = self._taken, _clock().seconds
        return self._taken - before

    def report(self) -> Compile | None:
        """What was compiled since ``begin``; None where nothing was to be."""
        if not self.requested:
            return None
        found = _counters()
        graphs, frames = found["stats"]["unique_graphs"], found["frames"]
        return Compile(
            used=not self.failure and graphs > 0,
            graphs=graphs,
            # By place in the code: torch counts a break again each time that it comes upon it.
            graph_breaks=len(found["resumes"]),
            uncompiled_functions=frames["total"] - frames["ok"],
            cache_hits=found["aot_autograd"]["autograd_cache_hit"] + found["inductor"]["fxgraph_cache_hit"],
            seconds=_clock().seconds - self._began,
            reason=self.failure or next((_sentence(reason, 1) for reason in found["graph_break"]), ""),
        )


class _Switch(nn.Module):
    """Calls a model in compiled form, until that has failed."""

    def __init__(self, model: nn.Module, backend: Any, compilation: Compilation) -> None:
        super().__init__()
        self.model = model
        self._compilation = compilation
        # A function and not the module, whose compiled form would be a second module over the same weights.
        self._compiled = torch.compile(self._plain, backend=backend)

    def _plain(self, *arguments: Any) -> Any:
        return self.model(*arguments)

    def forward(self, *arguments: Any) -> Any:
        return (self._plain if self._compilation.failure else self._compiled)(*arguments)


class _Clock:
    """Seconds that this process has spent on compiling, by torch's own word of when it begins and ends."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def listen(self) -> None:
        """Be told of what is compiled from now on; a reset of the compiler forgets who is to be told."""
        from torch._dynamo.callback import callback_handler

        if self._begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._begin)
            callback_handler.register_end_callback(self._end)

    def _begin(self, *_: object) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


@functools.cache
def _clock() -> _Clock:
    return _Clock()


def _counters() -> dict[str, Counter[str]]:
    """What torch has counted in this process, by kind."""
    from torch._dynamo.utils import counters

    return counters


def _sentence(text: str, lines: int) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()[:lines])

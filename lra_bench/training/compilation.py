"""Run a model through ``torch.compile``, with a fallback to eager mode and a report of graphs and graph breaks."""

from __future__ import annotations

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
from lra_bench.runtime.limits import is_lost_device, is_out_of_memory

T = TypeVar("T")


class Compilation:
    """A model and, if ``requested``, its compiled form.

    Call the attribute ``run`` in place of ``model``: it is the model itself or its compiled form. Graph breaks are
    allowed: the code between them is compiled, the code that causes them runs in eager mode. If compilation fails, the
    entire model runs in eager mode from then on; a message on stderr and ``report`` state the reason. ``backend`` is
    the backend of ``torch.compile``.
    """

    def __init__(self, model: nn.Module, requested: bool, backend: Any = "inductor") -> None:
        self.requested = requested
        self.failure = ""
        self.run = model
        if requested:
            # Compilations of an earlier model would count towards torch's recompilation limit for the same code.
            torch.compiler.reset()
            _CLOCK.listen()
            if "TORCH_LOGS" not in os.environ:
                logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # ``report`` replaces its long logs
            # torch reads .grad of tensors that are not leaves when it resumes after a graph break.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            self.run = _CompiledUntilFailure(model, backend, self)
        self.begin()

    def begin(self) -> None:
        """Reset the counters and times that ``report`` returns."""
        self._began = self._popped = _CLOCK.seconds
        if self.requested:
            _counters().clear()

    def guarded(self, work: Callable[[], T], undo: Callable[[], object]) -> T:
        """Return the result of ``work``, which calls ``run``; if it raises, retry once in eager mode.

        ``undo`` is called before the retry to discard the partial effects of the first call. Exceptions of the retry
        are errors of the model and are raised. Out-of-memory errors, and errors after which the GPU cannot be used, are
        raised without a retry.
        """
        if not self.requested or self.failure:
            return work()
        try:
            return work()
        except Exception as error:
            if is_out_of_memory(error) or is_lost_device(error):
                raise
            self.failure = f"{type(error).__name__}: {_first_lines(str(error), 2)}"
        undo()
        result = work()
        say(f"torch.compile failed, so the model runs in eager mode ({self.failure}).")
        return result

    def pop_seconds(self) -> float:
        """Return the seconds of compilation since the previous call."""
        before, self._popped = self._popped, _CLOCK.seconds
        return self._popped - before

    def report(self) -> Compile | None:
        """Return the record's ``compile`` section for the time since ``begin``, None if not ``requested``."""
        if not self.requested:
            return None
        counters = _counters()
        graphs, frames = counters["stats"]["unique_graphs"], counters["frames"]
        return Compile(
            used=not self.failure and graphs > 0,
            graphs=graphs,
            # The number of break locations in the code: torch's counter of breaks counts each time one is reached.
            # torch 2.6 does not list the locations; distinct reasons are counted if there is no list.
            graph_breaks=len(counters["resumes"] or counters["graph_break"]),
            uncompiled_functions=frames["total"] - frames["ok"],
            cache_hits=counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"],
            seconds=_CLOCK.seconds - self._began,
            reason=self.failure or next((_first_lines(reason, 1) for reason in counters["graph_break"]), ""),
        )


class _CompiledUntilFailure(nn.Module):
    """A module that calls the compiled model until compilation fails, then the eager model."""

    def __init__(self, model: nn.Module, backend: Any, compilation: Compilation) -> None:
        super().__init__()
        self.model = model
        self._compilation = compilation
        # Compile a function: a compiled module would be a second module with the same weights.
        self._compiled = torch.compile(self._eager, backend=backend)

    def _eager(self, *arguments: Any) -> Any:
        return self.model(*arguments)

    def forward(self, *arguments: Any) -> Any:
        return (self._eager if self._compilation.failure else self._compiled)(*arguments)


class _Clock:
    """Seconds of compilation in this process, measured between torch's start and end callbacks."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def listen(self) -> None:
        """Register the callbacks; needed again after each ``torch.compiler.reset``, which removes them."""
        from torch._dynamo.callback import callback_handler

        if self._begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._begin)
            callback_handler.register_end_callback(self._end)

    def _begin(self, *_: object) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


_CLOCK = _Clock()


def _counters() -> dict[str, Counter[str]]:
    """Return the counters of ``torch._dynamo`` in this process, by category; the import takes a second."""
    from torch._dynamo.utils import counters

    return counters


def _first_lines(text: str, lines: int) -> str:
    """Return the first ``lines`` lines of ``text``, joined by spaces."""
    return " ".join(line.strip() for line in text.strip().splitlines()[:lines])

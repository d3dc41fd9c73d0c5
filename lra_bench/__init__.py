"""lra-bench, a benchmark of sequence models on long inputs.

The functions of ``lra_bench.api`` are imported when they are used, so that importing the package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_bench.api import (
        Results,
        bench,
        card,
        check,
        compare,
        diff,
        evaluate,
        leaderboard,
        list_models,
        list_protocols,
        list_tasks,
        load_model,
        load_records,
        load_task,
        plot,
        profile,
        task_from,
        wrap,
    )
    from lra_bench.errors import UserError

    __version__: str

__all__ = [
    "Results",
    "UserError",
    "__version__",
    "bench",
    "card",
    "check",
    "compare",
    "diff",
    "evaluate",
    "leaderboard",
    "list_models",
    "list_protocols",
    "list_tasks",
    "load_model",
    "load_records",
    "load_task",
    "plot",
    "profile",
    "task_from",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        return version("lra-bench")
    from lra_bench import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The public functions of ``lra_bench``, which do in Python what the commands do.

Each function imports what it needs when it is called, so that importing the package is fast.
"""

from lra_bench.errors import UserError

from .own_code import wrap
from .own_data import load_task, task_from
from .reading import Figures, compare, diff, leaderboard, list_models, list_protocols, list_tasks, load_records, plot
from .running import Results, bench, card, check, evaluate, load_model, profile

__all__ = [
    "Figures", "Results", "UserError", "bench", "card", "check", "compare", "diff", "evaluate", "leaderboard",
    "list_models", "list_protocols", "list_tasks", "load_model", "load_records", "load_task", "plot", "profile",
    "task_from", "wrap",
]  # fmt: skip

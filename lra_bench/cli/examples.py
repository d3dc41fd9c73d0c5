"""Examples in the help text of each command."""

from __future__ import annotations

import typer

from lra_bench.config.groups import GROUPS, listing

CHOICES = (
    "\b",
    "Choices, several with commas or ALL, and the commands that list them:",
    *(f"  {f'{group}=':<12} {listing(group)}" for group in (*GROUPS, "grid")),
    f"  {'seed=':<12} an integer, such as 0",
    "Every other option: lra-bench bench --print-config",
    "",
)
"""Choices of the commands that take ``key=value``, and how to list their values."""

EXAMPLES = {
    "bench": (
        "lra-bench bench model=performer task=listops",
        "lra-bench bench model=performer,local task=listops seed=0,1,2 --dry-run",
        "lra-bench bench model=transformer task=text protocol=smoke train.lr=3e-4",
    ),
    "card": (
        "lra-bench card model=performer --dry-run",
        "lra-bench card model=performer",
        "lra-bench card model=performer --seeds 3 --rivals s4d,luna --pdf",
    ),
    "profile": (
        "lra-bench profile model=performer,local",
        "lra-bench profile model=s4d 'measure.speed_lengths=[1024,4096]' --output speed.csv",
    ),
    "evaluate": (
        "lra-bench evaluate last --lengths 1000,2000",
        "lra-bench evaluate listops/performer --knobs position.scaling=yarn --no-write",
    ),
    "list": (
        "lra-bench list models",
        "lra-bench list models s4d",
        "lra-bench list models --family linear --causal",
        "lra-bench list groups",
    ),
    "leaderboard": (
        "lra-bench leaderboard --tasks lra --protocol quick",
        "lra-bench leaderboard --format latex --models transformer,s4d,mamba2 --tasks listops,text",
        "lra-bench leaderboard --columns score,floor,parameters",
        "lra-bench leaderboard --write",
    ),
    "compare": (
        "lra-bench compare performer transformer --tasks listops",
        "lra-bench compare performer 'performer features=64'",
    ),
    "cite": ("lra-bench cite performer s4d", "lra-bench cite > systems.bib"),
    "plot": ("lra-bench plot", "lra-bench plot ranks,heat_map --width one --output figures"),
    "new": ("lra-bench new model my_mixer", "lra-bench new task my_task --folder ideas"),
    "clean": ("lra-bench clean", "lra-bench clean --keep-best --yes"),
    "show": ("lra-bench show last", "lra-bench show listops/performer", "lra-bench show quick-v3-c7d7128d/seed0"),
    "diff": (
        "lra-bench diff last 'model=performer task=listops'",
        "lra-bench diff 'protocol=quick task=pathfinder' 'protocol=small task=pathfinder'",
        "lra-bench diff listops/performer",
    ),
    "check": ("lra-bench check model=performer", "lra-bench check model=performer model.mixer.features=8"),
    "doctor": ("lra-bench doctor", "lra-bench doctor --results results"),
    "data prepare": (
        "lra-bench data prepare abilities",
        "lra-bench data prepare text --source aclImdb_v1.tar.gz --protocol small",
    ),
    "data verify": ("lra-bench data verify", "lra-bench data verify listops --protocol small"),
    "data path": ("lra-bench data path", "lra-bench data path listops"),
    "data list": ("lra-bench data list", "lra-bench data list listops --json"),
    "grid status": ("lra-bench grid status", "lra-bench grid status --json"),
    "grid stop": ("lra-bench grid stop",),
    "results import": ("lra-bench results import other/results",),
    "results list": ("lra-bench results list", "lra-bench results list --results other/results --json"),
    "results check": ("lra-bench results check",),
    "results pack": ("lra-bench results pack --results my_board",),
    "results push": (
        "lra-bench results push user/boards --results my_board --dry-run",
        "lra-bench results push user/boards --results my_board --pull-request",
    ),
    "results pull": (
        "lra-bench results pull user/boards --to boards",
        "lra-bench results pull user/boards --to proposed --revision refs/pr/1",
    ),
    "results schema": ("lra-bench results schema",),
}


def add_examples(app: typer.Typer, before: str = "") -> None:
    """Add the examples of each command to its help text."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if found := EXAMPLES.get(f"{before}{name}"):
            # The line with \b prevents click from joining the lines below it.
            choices = CHOICES if name in ("bench", "profile", "check") else ()
            command.epilog = "\n".join([*choices, "\b", "Examples:", *(f"  {each}" for each in found)])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{before}{group.name} ")

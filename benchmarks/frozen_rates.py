"""Print the learning rates with the lowest validation losses, as the section ``cells`` of a protocol.

Usage: ``python -m benchmarks.frozen_rates RESULTS``.

RESULTS is a folder of trials: of cells with ``search=trial`` and the rates of ``conf/search/quick.yaml``, or the
folder ``trials`` of a search. Where a rate next to the chosen one was not tried, the command that tries it is printed
as a comment. Cells with different position encodings are printed apart. Then a table of the validation scores follows.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lra_bench.config.groups import option_files
from lra_bench.config.schema import SearchOptions
from lra_bench.config.yaml_files import read
from lra_bench.measurements.rate_search import Trial, choose, mean_losses, trial
from lra_bench.records.store import load_all

Cell = tuple[str, str, str]
"""Task, model and class of the position encoding."""


def trials(folder: Path) -> dict[Cell, list[Trial]]:
    """Return the trials of each task, model and position."""
    found: dict[Cell, list[Trial]] = defaultdict(list)
    for record in load_all(folder, print):
        if record.status == "interrupted":
            continue
        position = record.config["position"]["_target_"].rpartition(".")[2]
        ended = trial(
            record.config["train"]["lr"], record.key.seed, record.status, record.training or {}, record.wall_seconds
        )
        found[record.key.task, record.key.model, position].append(ended)
    return found


def lines_of(cell: Cell, own: list[Trial], search: SearchOptions) -> list[str]:
    """Return the entry of the section ``cells`` with the losses as a comment, and what is left to try."""
    task, model, _ = cell
    losses = mean_losses(own)
    tried = ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in sorted(losses.items()))
    lr = choose(losses)
    if lr is None:
        return [f"  # {task}/{model}: diverged  # {tried}"]
    rates = [min(search.rates) / search.factor, *search.rates, max(search.rates) * search.factor]
    chosen = min(range(len(rates)), key=lambda index: abs(math.log(rates[index] / lr)))
    missing = [
        f"{rate:g}"
        for rate in rates[max(chosen - 1, 0) : chosen + 2]
        if not any(math.isclose(rate, other, rel_tol=1e-3) for other in losses)
    ]
    command = f"  # to try: model={model} task={task} search=trial train.lr={','.join(missing)}"
    return [f"  {task}/{model}: {{train: {{lr: {lr:g}}}}}  # {tried}", *([command] if missing else [])]


def table(made: dict[Cell, list[Trial]]) -> Iterator[str]:
    """Yield the rows of a table with the validation score at each rate, in percent or bits, the chosen one bold."""
    rates = sorted({one["lr"] for own in made.values() for one in own})
    yield f"| task | system | position | {' | '.join(f'{rate:g}' for rate in rates)} |"
    yield "| --- " * (3 + len(rates)) + "|"
    for (task, model, position), own in sorted(made.items()):
        texts = {one["lr"]: _score(task, one) for one in own}
        if (chosen := choose(mean_losses(own))) is not None:
            texts[chosen] = f"**{texts[chosen]}**"
        name = "none" if position == "NoPosition" else position.removesuffix("Position").lower()
        yield f"| {task} | {model} | {name} | {' | '.join(texts.get(rate, '–') for rate in rates)} |"


def _score(task: str, one: Trial) -> str:
    if one["score"] is None:
        return one["status"]
    return f"{one['score']:.3f}" if task == "enwik8" else f"{100 * one['score']:.1f}"


def main(folder: Path) -> None:
    """Print the section for each position encoding, and the table."""
    search = SearchOptions(**read(option_files("search")["quick"], "search=quick")[0])
    made = trials(folder)
    sections: dict[str, list[str]] = defaultdict(list)
    for cell, own in sorted(made.items()):
        sections[cell[2]] += lines_of(cell, own, search)
    for position, lines in sections.items():
        print(f"# {position}", *lines, sep="\n")
    print(*table(made), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

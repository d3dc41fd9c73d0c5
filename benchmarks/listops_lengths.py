"""How alike ListOps buckets of other lengths are to training: floors with and without resampling.

    python benchmarks/listops_lengths.py [--rows 2000] [--train 20000] [--lengths 1000,2000,4000,8000,16000]

The task's own rows of Long Range Arena's lengths (500 to 2,000 tokens in training). Of each bucket: the probability of
an operator, mean length and root arity, and the accuracy of the rule that names the commonest label of each root
operator, fitted on training rows. Beside it what that rule reaches on as many random trees of that length that were not
resampled to training's distribution of root operator and label, where it is fitted on them. Exit code 1 where the first
moves by more than 2 points.
"""

from __future__ import annotations

import argparse
import sys

from lra_bench.data.cache import Cache
from lra_bench.data.examples import join
from lra_bench.tasks.listops.floors import shortcut_accuracies
from lra_bench.tasks.listops.generation import distinct
from lra_bench.tasks.listops.task import ListOps
from lra_bench.tasks.listops.trees import describe, describe_rows

MOST_POINTS = 2.0


def main() -> int:
    """Print the table; the exit code says whether the floors stayed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--lengths", default="1000,2000,4000,8000,16000")
    options = parser.parse_args()
    rows = {"train": options.train, "validation": options.rows, "test": options.rows}
    task = ListOps(rows=rows, extrapolation_rows=options.rows)
    task.prepare(Cache())
    train = describe_rows(task.split("train"))
    trained = shortcut_accuracies(train, train)["root_operator"]
    print(f"train: root operator {100 * trained:.1f} %, {options.train:,} rows")
    print("length  P(operator)  mean length  root arity  root operator  not resampled, refitted")
    worst = 0.0
    for length in map(int, options.lengths.split(",")):
        trees = task._trees(length)
        drift = task.drift("test", length)
        floor = task.floors("test", length)["root_operator"]
        drawn = join(distinct(trees, seed=1, start=0, stop=options.rows, advance=lambda _: None))
        about = describe(drawn.values, drawn.starts, drawn.lengths)
        plain = shortcut_accuracies(about, about)["root_operator"]
        worst = max(worst, 100 * abs(floor - trained))
        print(
            f"{length:>6,}  {trees.operator_probability:>11.2f}  {drift['mean_length']:>11,.0f}  "
            f"{drift['mean_root_arity']:>10.2f}  {100 * floor:>11.1f} %  {100 * plain:>21.1f} %"
        )
    print(f"largest change of the root operator's floor: {worst:.2f} points")
    return int(worst > MOST_POINTS)


if __name__ == "__main__":
    sys.exit(main())

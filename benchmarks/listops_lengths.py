"""Similarity of ListOps rows of other lengths to training rows: floors with and without resampling.

    python benchmarks/listops_lengths.py [--rows 2000] [--train 20000] [--lengths 1000,2000,4000,8000,16000]

The rows are those of the task with Long Range Arena's lengths (500 to 2,000 tokens in training). For each length the
table shows the probability of an operator, the mean length, the mean arity of the root, and the floor (baseline without
a model) that predicts the most frequent label of each root operator, fitted on training rows. The last column is the
accuracy of the same rule on as many random trees of that length without resampling to the training distribution of root
operator and label, fitted on these trees. The exit code is 1 if the floor changes by more than 2 percentage points.
"""

from __future__ import annotations

import argparse
import sys

from lra_bench.data.cache import Cache
from lra_bench.data.examples import join
from lra_bench.tasks.listops.floors import correct_rows
from lra_bench.tasks.listops.generation import distinct
from lra_bench.tasks.listops.task import ListOps
from lra_bench.tasks.listops.trees import describe, describe_rows

MAX_CHANGE_POINTS = 2.0


def main() -> int:
    """Print the table; return exit code 1 if a floor changes by more than ``MAX_CHANGE_POINTS``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--lengths", default="1000,2000,4000,8000,16000")
    options = parser.parse_args()
    rows = {"train": options.train, "validation": options.rows, "test": options.rows}
    task = ListOps(rows=rows, extrapolation_rows=options.rows)
    task.prepare(Cache())
    train = describe_rows(task.split("train"))
    trained = correct_rows(train, train)["root_operator"].mean()
    print(f"train: root operator {100 * trained:.1f} %, {options.train:,} rows")
    print("length  P(operator)  mean length  root arity  root operator  not resampled, refitted")
    worst = 0.0
    for length in map(int, options.lengths.split(",")):
        trees = task._trees(length)
        drift = task.drift("test", length)
        floor = task.floors("test", length)["root_operator"]
        random_trees = join(distinct(trees, seed=1, start=0, stop=options.rows, advance=lambda _: None))
        description = describe(random_trees.values, random_trees.starts, random_trees.lengths)
        refitted = correct_rows(description, description)["root_operator"].mean()
        worst = max(worst, 100 * abs(floor - trained))
        print(
            f"{length:>6,}  {trees.operator_probability:>11.2f}  {drift['mean_length']:>11,.0f}  "
            f"{drift['mean_root_arity']:>10.2f}  {100 * floor:>11.1f} %  {100 * refitted:>21.1f} %"
        )
    print(f"largest change of the root operator's floor: {worst:.2f} points")
    return int(worst > MAX_CHANGE_POINTS)


if __name__ == "__main__":
    sys.exit(main())

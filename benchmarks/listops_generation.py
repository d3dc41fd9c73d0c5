"""ListOps examples per second on one core: compiled code compared with plain Python, interleaved in one process.

    python benchmarks/listops_generation.py [--repeats 7] [--chunks 16] [--minimum 24000]

Both sample from the distribution of Long Range Arena (500 to 2,000 tokens, depth 10, up to 10 arguments) and return
tokens and label of each accepted tree. The plain-Python recursion is optimised: it generates no trees of a single
digit, evaluates accepted trees only, and computes medians from sorted lists. The exit code is 1 if the compiled code is
slower than ``--minimum`` examples per second.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

from lra_bench.tasks.listops.generation import ROWS_PER_CHUNK, draw_chunk
from lra_bench.tasks.listops.lengths import Trees
from lra_bench.tasks.listops.trees import IDS

LRA = Trees(window=(500, 2000), max_depth=10, max_arguments=10, operator_probability=0.25)
Tree = int | tuple[str, list["Tree"]]


def middle(digits: list[int]) -> int:
    """Return the median, rounded down to an integer."""
    ordered = sorted(digits)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


RULES: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": middle,
    "[SM": lambda digits: sum(digits) % 10,
}
OPERATORS = tuple(RULES)


def grow(depth: int) -> tuple[Tree, int]:
    """Generate a random tree whose root is an operator; return it and its length in tokens."""
    if depth > 1 and (depth == LRA.max_depth or random.random() > LRA.operator_probability):
        return random.randrange(10), 1
    children, length = [], 2
    for _ in range(random.randint(2, LRA.max_arguments)):
        child, size = grow(depth + 1)
        children.append(child)
        length += size
    return (random.choice(OPERATORS), children), length


def finish(tree: Tree, tokens: list[int]) -> int:
    """Append a tree's tokens and return its value."""
    if isinstance(tree, int):
        tokens.append(1 + tree)
        return tree
    operator, children = tree
    tokens.append(IDS[operator])
    values = [finish(child, tokens) for child in children]
    tokens.append(IDS["]"])
    return RULES[operator](values)


def plain(rows: int) -> int:
    """Generate trees with tokens and labels until ``rows`` are accepted; return the number of accepted trees."""
    low, high = LRA.window
    accepted = 0
    while accepted < rows:
        tree, length = grow(1)
        if low < length < high:
            tokens: list[int] = []
            finish(tree, tokens)
            accepted += len(tokens) == length
    return accepted


def timed(work: Callable[[], int]) -> float:
    """Return the rows per second of one call, where ``work`` returns the number of rows."""
    start = time.perf_counter()
    rows = work()
    return rows / (time.perf_counter() - start)


def main() -> int:
    """Measure both, print the rates, and compare with the minimum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats of both")
    parser.add_argument("--chunks", type=int, default=16, help=f"chunks of {ROWS_PER_CHUNK} compiled rows per repeat")
    parser.add_argument("--plain-rows", type=int, default=600, help="plain-Python rows per repeat")
    parser.add_argument("--minimum", type=float, default=24_000, help="compiled examples per second to reach")
    options = parser.parse_args()
    random.seed(0)

    def compiled_rows() -> int:
        # Chunks are generated sequentially in this thread.
        return sum(len(draw_chunk(LRA, seed=0, stream=0, chunk=chunk)[0]) for chunk in range(options.chunks))

    compiled_rows()  # compiles
    rates = [(timed(compiled_rows), timed(lambda: plain(options.plain_rows))) for _ in range(options.repeats)]
    compiled_rate, plain_rate = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(compiled / python for compiled, python in rates)
    print(f"{'examples per second, one core':<32}{'median':>10}{'lowest':>10}{'highest':>10}")
    for name, column, median in (
        ("compiled", [compiled for compiled, _ in rates], compiled_rate),
        ("plain Python", [python for _, python in rates], plain_rate),
    ):
        print(f"{name:<32}{median:>10,.0f}{min(column):>10,.0f}{max(column):>10,.0f}")
    print(f"ratio: {ratio:.1f} (median of {options.repeats} interleaved repeats)")
    if compiled_rate < options.minimum:
        print(f"below the minimum of {options.minimum:,.0f} examples per second", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

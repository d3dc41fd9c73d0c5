"""Pathfinder images per second on one core, compared with the original generator.

    python benchmarks/pathfinder_generation.py [--repeats 5]

The original (drewlinsley/pathfinder, commit ab9c130) generates 5 hard images of 32 pixels per second and 0.5 of 128
pixels, on one core; this implementation generates the same images. The exit code is 1 if a set is generated less than
50 times as fast.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from lra_bench.tasks.pathfinder.generation import draw_pictures
from lra_bench.tasks.pathfinder.parameters import Parameters, published

# By resolution, images per second of the original, and images to generate per repeat.
SETS = {32: (5.0, 1500), 128: (0.5, 100)}
MIN_RATIO = 50


def rate(parameters: Parameters, first: int, count: int) -> float:
    """Return the images per second of CPU time of this thread, which other processes do not affect."""
    start = time.thread_time()
    draw_pictures(parameters, seed=0, first=first, count=count)
    return count / (time.thread_time() - start)


def main() -> int:
    """Measure both resolutions, print the rates, and compare with the original."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each set, with different images")
    options = parser.parse_args()
    print(f"{'images per second, one core':<32}{'median':>10}{'lowest':>10}{'highest':>10}{'original':>10}{'ratio':>8}")
    slow = False
    for resolution, (original, count) in SETS.items():
        parameters = published(resolution, "hard")
        draw_pictures(parameters, seed=0, first=0, count=1)  # compiles
        rates = [rate(parameters, 1 + repeat * count, count) for repeat in range(options.repeats)]
        median = statistics.median(rates)
        figures = (
            f"{median:>10,.0f}{min(rates):>10,.0f}{max(rates):>10,.0f}{original:>10,.1f}{median / original:>8,.0f}"
        )
        print(f"{f'{resolution} hard':<32}{figures}")
        slow |= median < MIN_RATIO * original
    if slow:
        print(f"less than {MIN_RATIO} times as fast as the original", file=sys.stderr)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

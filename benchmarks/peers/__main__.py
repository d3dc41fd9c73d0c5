"""Compare layers of lra-bench with those of other packages: time and peak memory of forward and backward pass.

    python -m benchmarks.peers [--lengths 1024 4096 16384] [--pairs performer local-attention] [--blocks 41]
                               [--width 256] [--heads 4] [--threads 2] [--output FOLDER]

Each pair runs in a separate process at each length, on the same rows, with batch size 1 and single precision: the layer
of lra-bench, the peer, and projections only (the floor), in interleaved blocks of steps. The output is the ratio of
times, peer over lra-bench, as the median over neighbouring blocks with its 95 % interval. Peak memory is the growth of
resident memory, measured in another process. Notes state where a peer failed or computes a different function.
``--output`` writes the table as CSV and the figure as PNG and PDF. The extra ``peers`` installs the peers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .figure import save
from .measure import measure
from .pair import Pair, Sizes
from .pairs import PAIRS
from .table import as_table, as_text, geometric_means


def select_pairs(names: list[str]) -> list[Pair]:
    """Return the pairs with the given names, packages or keys; all pairs without names."""
    return [pair for pair in PAIRS if not names or {pair.name, pair.package, pair.key} & set(names)]


def main() -> int:
    """Measure the pairs, print and write the results; return exit code 1 if no peer was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--pairs", nargs="+", default=[], help="names, packages or model keys; all by default")
    for name, default in {"blocks": 41, "width": 256, "heads": 4, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, help="folder for peers.csv, peers.png and peers.pdf")
    options = parser.parse_args()
    pairs = select_pairs(options.pairs)
    if not pairs:
        parser.error(f"--pairs: no pair matches; choose from {', '.join(pair.name for pair in PAIRS)}")
    rows = []
    for length in options.lengths:
        for pair in pairs:
            row = measure(pair, Sizes(length, options.width, options.heads), options.blocks, options.threads)
            print(f"{pair.name} at {length}: {row.failure or 'measured'}", file=sys.stderr, flush=True)
            rows.append(row)
        data = as_table(rows)
        if options.output:
            # Write after each length, so that results are kept if the longest, which can take an hour, is interrupted.
            written = save(data, options.output)
    print(as_text(data), *geometric_means(data), sep="\n")
    if options.output:
        print(*written, sep="\n")
    return 0 if data["time_ratio"].notna().any() else 1


if __name__ == "__main__":
    sys.exit(main())

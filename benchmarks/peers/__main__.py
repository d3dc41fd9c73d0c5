"""Our layers against those of other packages: time and peak memory of forward and backward pass, in turns.

    python -m benchmarks.peers [--lengths 1024 4096 16384] [--pairs performer local-attention] [--blocks 41]
                               [--width 256] [--heads 4] [--threads 2] [--output FOLDER]

Each pair runs one layer with its projections on the same rows, batch 1, single precision, at each length in a process
of its own: ours, the peer's, and projections alone, in alternating blocks of steps. Printed is the ratio of times, peer
over ours, as the median over neighbouring blocks with its 95 % interval. Peak memory is the growth of resident memory
in a process of its own. The notes say where a peer failed, or computes something else. ``--output``
writes the table as CSV and the figure as PNG and PDF. Peers come with pip install -e '.[peers]'.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lra_bench.figures.style import save

from .figure import draw
from .measure import measure
from .pair import Pair, Sizes
from .pairs import PAIRS
from .table import as_table, as_text, geometric_means


def chosen(names: list[str]) -> list[Pair]:
    """The pairs of those names, packages or keys; all where there are none."""
    return [pair for pair in PAIRS if not names or {pair.name, pair.package, pair.key} & set(names)]


def main() -> int:
    """Measure, print, write; exit code 1 where no peer was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--pairs", nargs="+", default=[], help="names, packages or model keys; all by default")
    for name, default in {"blocks": 41, "width": 256, "heads": 4, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, help="a folder for peers.csv, peers.png and peers.pdf")
    asked = parser.parse_args()
    pairs = chosen(asked.pairs)
    if not pairs:
        parser.error(f"--pairs: known are {', '.join(pair.name for pair in PAIRS)}")
    rows = []
    for length in asked.lengths:
        for pair in pairs:
            row = measure(pair, Sizes(length, asked.width, asked.heads), asked.blocks, asked.threads)
            print(f"{pair.name} at {length}: {row.failure or 'measured'}", file=sys.stderr, flush=True)
            rows.append(row)
        data = as_table(rows)
        if asked.output:
            # After each length: the longest may take an hour, and whoever ends it shall have the others.
            written = save([draw(data)], data, asked.output, "peers")
    print(as_text(data), *geometric_means(data), sep="\n")
    if asked.output:
        print(*written, sep="\n")
    return 0 if data["time_ratio"].notna().any() else 1


if __name__ == "__main__":
    sys.exit(main())

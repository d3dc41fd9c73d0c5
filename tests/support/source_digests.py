"""``python -m tests.support.source_digests`` stores the digests of the modules of models/ and tasks/.

Cells of a module that differs from its stored digest have another key and are marked as edited.
"""

import csv

from lra_bench.config.sources import STORED, current_digests

COMMAND = "python -m tests.support.source_digests"


def main():
    """Store the current digests."""
    rows = [(name, *digests) for name, digests in current_digests().items()]
    with STORED.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"{len(rows)} modules in {STORED}")


if __name__ == "__main__":
    main()

"""The command ``lra-bench clean``."""

from __future__ import annotations

from typing import Annotated

import typer

from lra_bench.progress import say


def clean(
    data: Annotated[bool, typer.Option("--data", help="Also the prepared data")] = False,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Spare the best weights, which evaluate needs; cells go on from step 0")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what would go")] = False,
) -> None:
    """List and remove kept checkpoints, and prepared data; records, and cells being measured, are not touched."""
    import shutil

    from lra_bench.cells import checkpoint_store
    from lra_bench.data.cache import Cache

    root = Cache().root
    found = checkpoint_store.checkpoints(root)
    busy = [each.folder for each in found if not checkpoint_store.remove(each, keep_best)] if yes else []
    spoken = "removed" if yes else "would remove"
    for what, size in list(checkpoint_store.totals([each for each in found if each.folder not in busy]))[keep_best:]:
        print(f"{spoken} {what}: {size / 2**20:.1f} MiB")
    if data:
        size = checkpoint_store.folder_bytes(root / "data")
        if yes:
            shutil.rmtree(root / "data", ignore_errors=True)
        print(f"{spoken} prepared data: {size / 2**20:.1f} MiB")
    for folder in busy:
        say(f"{folder}: is being measured, so it stays.")
    print(f"{'now' if yes else 'all'} in {root}: {checkpoint_store.folder_bytes(root) / 2**20:.1f} MiB")
    if not yes:
        say("Nothing removed; add --yes.")

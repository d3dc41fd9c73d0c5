"""The command ``lra-bench clean``."""

from __future__ import annotations

from typing import Annotated

import typer

from lra_bench.progress import say


def clean(
    data: Annotated[bool, typer.Option("--data", help="Also remove the prepared data")] = False,
    keep_best: Annotated[
        bool,
        typer.Option(
            "--keep-best", help="Keep the best weights, which evaluate needs; unfinished cells restart from step 0"
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the files; without it, only print their sizes")] = False,
) -> None:
    """List or remove checkpoints and prepared data.

    Records, and checkpoints of cells that are being measured, are not removed.
    """
    import shutil

    from lra_bench.cells import checkpoint_store
    from lra_bench.data.cache import Cache

    root = Cache().root
    found = checkpoint_store.checkpoints(root)
    busy = [each.folder for each in found if not checkpoint_store.remove(each, keep_best)] if yes else []
    verb = "removed" if yes else "would remove"
    for what, size in list(checkpoint_store.totals([each for each in found if each.folder not in busy]))[keep_best:]:
        print(f"{verb} {what}: {size / 2**20:.1f} MiB")
    if data:
        size = checkpoint_store.folder_bytes(root / "data")
        if yes:
            shutil.rmtree(root / "data", ignore_errors=True)
        print(f"{verb} prepared data: {size / 2**20:.1f} MiB")
    for folder in busy:
        say(f"{folder}: is being measured, so it is kept.")
    print(f"{'remaining' if yes else 'total'} in {root}: {checkpoint_store.folder_bytes(root) / 2**20:.1f} MiB")
    if not yes:
        say("Nothing removed; add --yes to remove the files.")

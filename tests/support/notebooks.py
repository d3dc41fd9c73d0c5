"""Runs notebooks in a kernel; ``python -m tests.support.notebooks`` stores them with their outputs.

The tables and figures show the reference boards, and those of speed, which the boards do not contain, three models.
Messages and progress are not stored, and pictures have few pixels and colours, so that the files are small.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lra_bench

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

REVIEWS = Path(__file__).parent / "own_table" / "reviews.csv"


def executed(path: Path, folder: Path, **environment: str) -> Any:
    """Run all cells in a new kernel that starts in ``folder``; return the notebook with its outputs."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=None, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the event loop and the sockets of the client
        client.execute(env={**os.environ, **environment})
    return notebook


def _measure(results: Path) -> None:
    """Measure the speed of three models."""
    lra_bench.bench(
        ["transformer", "performer", "local"],
        lra_bench.task_from(REVIEWS),
        hardware="cpu",
        overrides={
            "measure.speed_lengths": [128, 256, 512, 1024],
            "measure.speed_seconds": 0.2,
            "measure.extrapolation_ratios": [1],
            "measure.flops": False,
            "tracker": "none",
        },
        results=results,
        raise_on_failure=True,
    )


def _prepare(notebook: Any) -> None:
    """Remove messages and what differs between runs, and shrink pictures."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if not _is_progress(each)]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data = {"image/png": _smaller(output.data["image/png"])}  # without the paths of the files


def _is_progress(output: Any) -> bool:
    """Return whether an output is a message or the line of a progress bar."""
    return output.get("name") == "stderr" or output.get("output_type") == "display_data"


def _smaller(picture: str) -> str:
    """Return a PNG, encoded as in notebooks, of a width of 1000 pixels with 64 colours."""
    from PIL import Image

    written = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image = image.resize((1000, round(image.height * 1000 / image.width)), Image.Resampling.LANCZOS)
    image = image.quantize(64, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    image.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main() -> None:
    """Run all notebooks, or those with the given numbers, in a temporary folder and store them with their outputs."""
    import nbformat

    for path in NOTEBOOKS:
        if sys.argv[1:] and path.stem[:2] not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = Path(folder) / "notebooks"
            start.mkdir()
            os.environ["LRA_BENCH_CACHE"] = str(Path(folder) / "cache")
            if path.stem[:2] == "03":
                _measure(start.parent / "results")
            notebook = executed(path, start)
        _prepare(notebook)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

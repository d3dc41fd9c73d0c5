"""Files of an older layout in a working copy are ignored: byte code, numba caches, folders without modules."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOVED = (
    "lra_bench/config",
    "lra_bench/cli",
    "lra_bench/measure/speed",
    "lra_bench/tasks/text",
    "lra_bench/tasks/listops",
)
"""Modules of the older layout. Most of their names are now names of packages."""

PROGRAM = """
import lra_bench.cli.main, lra_bench.config.compose, lra_bench.profiling.timing
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.listops.trees import draw
from lra_bench.tasks.text import Text
print(ListOps.__module__, Text.__module__)
"""


def working_copy(folder: Path) -> Path:
    """Create the installed package from symbolic links, together with leftover files of an older layout."""
    for name in ("lra_bench", "tasks", "models", "conf"):
        package = folder / "lra_bench" if name == "lra_bench" else folder / "lra_bench" / name
        package.mkdir()
        for path in (ROOT / name).iterdir():
            if path.name != "__pycache__":
                (package / path.name).symlink_to(path)
    stale = folder / "stale.py"
    stale.write_text("raise RuntimeError('byte code of an older layout was imported')\n")
    for module in MOVED:
        caches = (folder / module).parent / "__pycache__"
        caches.mkdir(parents=True, exist_ok=True)
        name = Path(module).name
        py_compile.compile(str(stale), str(caches / f"{name}.{sys.implementation.cache_tag}.pyc"), doraise=True)
        (caches / f"{name}_trees.evaluate-48.py311.nbi").write_bytes(b"numba's index of another file")
    return folder


@pytest.mark.slow
def test_caches_of_an_older_layout_are_not_used(tmp_path: Path) -> None:
    copy = working_copy(tmp_path)
    used = subprocess.run([sys.executable, "-c", "import stale"], cwd=copy, capture_output=True, check=False)
    assert b"byte code of an older layout was imported" in used.stderr, "importing stale byte code must raise an error"
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    # Without this the finder of an editable install would find the checkout first.
    code = "import sys; sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder).lower()]"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PROGRAM}\nimport lra_bench; print(lra_bench.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules, location = done.stdout.splitlines()
    assert modules == "lra_bench.tasks.listops.task lra_bench.tasks.text.task"
    assert location == str(copy / "lra_bench" / "__init__.py")

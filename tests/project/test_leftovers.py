"""Files that an older layout left in a working copy do no harm: byte code, numba's caches, folders without modules."""

import os
import py_compile
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOVED = (
    "lra_bench/config",
    "lra_bench/cli",
    "lra_bench/measure/speed",
    "lra_bench/tasks/text",
    "lra_bench/tasks/listops",
)
"""Modules of the older layout; of most of them a package now has the name."""
PROGRAM = """
import lra_bench.cli.main, lra_bench.config.compose, lra_bench.profiling.timing
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.listops.trees import draw
from lra_bench.tasks.text import Text
print(ListOps.__module__, Text.__module__)
"""


def working_copy(folder: Path) -> Path:
    """The package as it is installed, made of links, beside what an older layout left."""
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


def test_caches_of_an_older_layout_are_not_used(tmp_path: Path) -> None:
    copy = working_copy(tmp_path)
    used = subprocess.run([sys.executable, "-c", "import stale"], cwd=copy, capture_output=True, check=False)
    assert b"byte code of an older layout was imported" in used.stderr, "importing it would be noticed"
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    # An editable install would find the checkout first.
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
    classes, place = done.stdout.splitlines()
    assert classes == "lra_bench.tasks.listops.task lra_bench.tasks.text.task"
    assert place == str(copy / "lra_bench" / "__init__.py")

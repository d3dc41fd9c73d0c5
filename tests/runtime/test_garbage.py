"""Garbage is collected as by default while a model trains, and not when a process ends."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_training_collects_as_by_default() -> None:
    code = """
import gc
default = gc.get_threshold()
from lra_bench.runtime import garbage
garbage.reduce_collections()
print(gc.get_threshold() == garbage.START_THRESHOLDS, gc.get_freeze_count() == 0)
garbage.restore_collections()
print(gc.get_threshold() == default, gc.get_freeze_count() > 0)
"""
    assert run(code) == ["True"] * 4


def test_nothing_is_collected_when_the_process_ends() -> None:
    code = """
from lra_bench.runtime import garbage
class Node:
    def __del__(self): print("collected")
def leave():
    node = Node()
    node.itself = node
{}
leave()
"""
    assert run(code.format("")) == ["collected"]
    assert run(code.format("garbage.skip_final_collection()")) == []


def test_importing_the_loop_imports_what_an_optimizer_needs() -> None:
    code = """
import sys
assert "torch" not in sys.modules
from lra_bench.training import loop
print("torch._dynamo" in sys.modules)
"""
    assert run(code) == ["True"]

"""Garbage collection uses the default thresholds during training and is skipped at exit."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_default_thresholds_are_restored() -> None:
    code = """
import gc
default, frozen = gc.get_threshold(), gc.get_freeze_count()
from lra_bench.runtime import garbage
garbage.reduce_collections()
print(gc.get_threshold() == garbage.START_THRESHOLDS, gc.get_freeze_count() == frozen)
garbage.restore_collections()
print(gc.get_threshold() == default, gc.get_freeze_count() > frozen)
"""
    assert run(code) == ["True"] * 4


def test_the_final_collection_is_skipped() -> None:
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


@pytest.mark.slow
def test_importing_the_loop_imports_dynamo() -> None:
    code = """
import sys
assert "torch" not in sys.modules
from lra_bench.training import loop
print("torch._dynamo" in sys.modules)
"""
    assert run(code) == ["True"]

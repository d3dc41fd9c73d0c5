"""What a process keeps of the memory that it frees, seen by the kernel: pages fetched, and pages resident."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lra_bench.runtime.memory import KEEPING_ALL, KEEPING_NOTHING
from lra_bench.runtime.subprocesses import environment

PAGES = (48 << 20) // 4096
"""In a block that is larger than any that glibc keeps by itself."""

STEPS = """
import json, resource
from pathlib import Path
import torch
from lra_bench.runtime.memory import hand_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

def step():
    torch.ones(12 << 20)

for _ in range(24):  # holes that are a little too small for the next block of their size have to merge first
    step()
fetched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
fetched = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - fetched) / 4
kept = resident()
hand_back()
print(json.dumps([fetched, kept - resident()]))
"""

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are glibc's"),
    pytest.mark.skipif(HUGE.exists() and "[always]" in HUGE.read_text(), reason="one fault fetches many pages"),
]


def pages(variables: dict[str, str]) -> list[float]:
    """Pages fetched by a step that frees a large block, and pages handed back afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env={**environment(), **variables}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_timed_process_fetches_no_page_twice_until_it_hands_all_back():
    fetched, handed_back = pages(KEEPING_ALL)
    assert fetched < PAGES / 100
    assert handed_back > 0.9 * PAGES


@pytest.mark.parametrize("variables", [{}, KEEPING_NOTHING])
def test_else_a_large_block_is_fetched_at_every_step(variables):
    fetched, handed_back = pages(variables)
    assert fetched > 0.9 * PAGES and handed_back < PAGES / 10, "else the test above shows nothing"

"""Memory that glibc keeps after it is freed, measured by page faults and resident pages."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY
from lra_bench.runtime.subprocesses import environment

PAGES = (48 << 20) // 4096
"""Number of pages of a block that is larger than glibc keeps by default."""

STEPS = """
import json, resource
from pathlib import Path
import torch
from lra_bench.runtime.memory import hand_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

def step():
    torch.ones(12 << 20)

for _ in range(24):  # until free blocks of the heap that are slightly too small have merged
    step()
fetched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
fetched = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - fetched) / 4
kept = resident()
hand_back()
print(json.dumps([fetched, kept - resident()]))
"""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are those of glibc"),
    pytest.mark.skipif(
        HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text(), reason="one page fault maps many pages"
    ),
]


def pages(variables: dict[str, str]) -> list[float]:
    """Return the page faults of a step that frees a large block, and the pages returned by ``hand_back``."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env={**environment(), **variables}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.alone
def test_a_timed_process_reuses_pages_until_it_returns_them():
    fetched, handed_back = pages(KEEP_FREED_MEMORY)
    assert fetched < PAGES / 100
    assert handed_back > 0.9 * PAGES


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("variables", [{}, RETURN_FREED_MEMORY])
def test_by_default_a_large_block_is_mapped_at_every_step(variables):
    fetched, handed_back = pages(variables)
    assert fetched > 0.9 * PAGES and handed_back < PAGES / 10, "otherwise the test above is meaningless"

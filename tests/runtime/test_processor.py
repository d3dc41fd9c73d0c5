"""Identity of the processor from the text of /proc/cpuinfo, and its short name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lra_bench.records.key import CellKey
from lra_bench.runtime import processor as module
from lra_bench.runtime.processor import Processor, parse_cpuinfo, processor, slugify_processor

MASKED_XEON = """processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Processor
stepping	: 8
flags		: fpu sse2 avx avx2 avx512f amx_tile hypervisor

processor	: 1
cpu family	: 7
"""
EPYC = """processor	: 0
cpu family	: 25
model		: 1
model name	: AMD EPYC 7763 64-Core Processor
stepping	: 1
flags		: fpu avx avx2
"""
GRAVITON = """processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd sve
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd40
CPU revision	: 1
"""


def test_a_virtual_machine_that_hides_the_model_is_named_by_its_numbers() -> None:
    found = parse_cpuinfo(MASKED_XEON)
    assert (found.family, found.model, found.stepping, found.virtual) == ("6", "143", "8", True)
    assert found.instruction_sets == ("amx_tile", "avx", "avx2", "avx512f")
    assert found.slug == "xeon-6-143-8-vm"


def test_a_machine_with_a_model_name_keeps_it() -> None:
    found = parse_cpuinfo(EPYC)
    assert (found.slug, found.virtual) == ("epyc-7763-25-1-1", False)


def test_an_arm_processor_without_a_name_is_named_by_architecture_and_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    found = parse_cpuinfo(GRAVITON)
    assert (found.name, found.virtual, found.instruction_sets) == (None, None, ("asimd", "sve"))
    assert found.slug == "aarch64-41-d40-r1p1"
    assert Processor().slug == "aarch64"


def test_a_mac_is_described_by_sysctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "missing")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    answers = {"machdep.cpu.brand_string": "Apple M2 Pro", "kern.hv_vmm_present": "0"}
    monkeypatch.setattr(module, "_sysctl", answers.get)
    assert processor.__wrapped__() == Processor(name="Apple M2 Pro", virtual=False)
    assert processor.__wrapped__().slug == "apple-m2-pro"


def test_caches_are_read_in_bytes(tmp_path: Path) -> None:
    for number, values in enumerate((("1", "Data", "32K"), ("3", "Unified", "32M"), ("4", "Unified", "?"))):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name).write_text(value + "\n")
    (tmp_path / "index9").mkdir()
    assert module._caches(tmp_path) == {"L1 data": 2**15, "L3 unified": 2**25}
    assert module._caches(tmp_path / "missing") == {}


def test_the_short_name_of_this_processor_can_be_part_of_a_key() -> None:
    CellKey("listops", "local", f"cpu-{processor().slug}-2t", "quick", "0a1b2c3d", 0)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("AMD EPYC", "epyc"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "xeon-gold-6248"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "xeon"),
        ("Intel Xeon Processor (Skylake, IBRS)", "xeon-skylake-ibrs"),
        ("11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", "core-i7-1165g7"),
        ("AMD Ryzen 7 5800U with Radeon Graphics", "ryzen-7-5800u"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "ryzen-9-5950x"),
        ("Apple M2 Pro", "apple-m2-pro"),
        ("Neoverse-N1", "neoverse-n1"),
        ("", ""),
    ],
)
def test_processor_slugs(name: str, slug: str) -> None:
    assert slugify_processor(name) == slug


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/jobs/step\n", {"jobs/step/cpu.max": "max 100000", "jobs/cpu.max": "200000 100000"}, 2),
        ("0::/hidden/path\n", {"cpu.max": "400000 100000"}, 4),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("7:memory:/\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("", {}, math.inf),
    ],
)
def test_cpu_quota_of_control_groups(tmp_path: Path, membership: str, files: dict[str, str], quota: float) -> None:
    (tmp_path / "self").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert module.cpu_quota(tmp_path / "mounted", tmp_path / "self") == quota
    assert module.cpu_quota(tmp_path / "mounted", tmp_path / "absent") == math.inf

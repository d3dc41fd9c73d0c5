"""Energy of processor packages, read from files in the layout of Linux powercap."""

from pathlib import Path

import pytest

from lra_bench.profiling import energy
from lra_bench.profiling.energy import joule_counter


def zone(root: Path, name: str, label: str, microjoules: int, max_range: int = 262_143_328_850) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{max_range}\n")
    return folder / "energy_uj"


def test_packages_are_summed_without_their_parts(tmp_path: Path) -> None:
    one, other = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000), zone(tmp_path, "intel-rapl:1", "package-1", 7)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    platform = zone(tmp_path, "intel-rapl:2", "psys", 0)
    mmio = zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    read = joule_counter(tmp_path)
    assert not isinstance(read, str)
    assert read() == 0
    one.write_text("6500000")
    other.write_text("500007")
    for ignored in (core, platform, mmio):
        ignored.write_text("9000000")
    assert read() == pytest.approx(2.0)
    assert read() == pytest.approx(2.0), (
        "joules must be counted from the creation of the counter, not from the last reading"
    )


def test_counter_that_wraps_around_is_read_correctly(tmp_path: Path) -> None:
    file = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, max_range=10_000_000)
    read = joule_counter(tmp_path)
    assert not isinstance(read, str)
    for value, joules in ((500_000, 1.5), (9_500_000, 10.5), (250_000, 11.25)):
        file.write_text(str(value))
        assert read() == pytest.approx(joules)


def test_missing_counter_is_reported_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no energy counter of processor packages" in joule_counter(tmp_path / "nowhere")
    zone(tmp_path, "intel-rapl:0", "psys", 1)
    assert "no energy counter of processor packages" in joule_counter(tmp_path), "the zone of a platform must not count"
    broken = zone(tmp_path, "intel-rapl:1", "package-0", 1)
    broken.write_text("lots")
    assert "cannot be read" in joule_counter(tmp_path)
    broken.write_text("5")

    def deny(path: Path, name: str) -> int:
        raise PermissionError(13, "Permission denied", str(path / name))

    monkeypatch.setattr(energy, "_microjoules", deny)
    assert joule_counter(tmp_path) == f"{broken} is not readable by this user"


def test_energy_of_a_cpu_step_is_that_of_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    file = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    monkeypatch.setattr(energy, "joule_counter", lambda: joule_counter(tmp_path))
    counter = energy.counter_of(torch.device("cpu"))
    assert isinstance(counter, energy.Counter)

    def step() -> None:
        file.write_text(str(int(file.read_text()) + 3_000_000))

    found = energy.measure_energy(step, torch.device("cpu"), counter, seconds=0.02)
    assert found["joules_per_step"] == pytest.approx(3.0)
    assert found["route"].startswith("RAPL energy of all processor packages over")

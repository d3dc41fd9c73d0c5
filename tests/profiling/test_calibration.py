"""The profile of mixers with known additional cost: a tensor of fixed size, a pause, and an N x N matrix."""

import json
import sys
from typing import Any

import pytest

from tests.support.command import Folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc"),
]

MIXERS = """
import time

import torch

from lra_bench.models.mixer import Mixer, MixerSpec


class Plain(Mixer):
    spec = MixerSpec(family="test", paper="none")

    def __init__(self, width, heads, **common):
        super().__init__(width, heads, **common)
        self.within = torch.nn.Linear(width, width)

    def forward(self, x, context):
        return self.within(x), context


class Heavy(Plain):
    def forward(self, x, context):
        held = torch.ones(64_000_000)
        y, context = super().forward(x, context)
        return y + held[0] * 0, context


class Pausing(Plain):
    def forward(self, x, context):
        time.sleep(0.005)
        return super().forward(x, context)


class Spinning(Plain):
    def forward(self, x, context):
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        return super().forward(x, context)


class Square(Plain):
    def forward(self, x, context):
        scores = torch.ones(x.shape[1], x.shape[1])
        y, context = super().forward(x, context)
        return y + scores[0, 0] * 0, context
"""
MODEL = "# @package _global_\n# Known cost.\nmodel: {{label: {name}, mixer: {{_target_: known.{name}}}}}\n"
LENGTHS = (1024, 2048, 4096)
SHORT = (128, 256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("calibration"))
    (folder.root / "own" / "model").mkdir(parents=True)
    (folder.root / "own" / "known.py").write_text(MIXERS)
    for name in ("Plain", "Heavy", "Pausing", "Spinning", "Square"):
        (folder.root / "own" / "model" / f"{name.lower()}.yaml").write_text(MODEL.format(name=name))
    return folder


def profiled(folder: Folder, lengths: tuple[int, ...], *options: str) -> dict[str, Any]:
    done = folder.run(
        *("profile", "--config-dir", "own", "--json", "task=listops", "protocol=smoke", "hardware=cpu"),
        *(f"measure.speed_lengths=[{','.join(map(str, lengths))}]", "measure.flops=false", "hardware.threads=1"),
        *options,
        timeout=1200,
    )
    (profile,) = json.loads(done.stdout)
    return profile


@pytest.fixture(scope="module")
def found(folder: Folder) -> dict[str, Any]:
    return profiled(folder, LENGTHS, "model=plain,heavy,square", "backbone.width=64", "backbone.ff_width=128")


@pytest.fixture(scope="module")
def paused(folder: Folder) -> dict[str, Any]:
    # Step times of two processes with the same model differ by some percent, so a short step shows the pause exactly.
    # After a sleep caches are cold, which costs more for larger steps.
    options = ("backbone.width=8", "backbone.heads=1", "backbone.ff_width=8")
    return profiled(folder, SHORT, "model=plain,pausing,spinning", *options)


def column(found: dict[str, Any], variant: str, mode: str, field: str, lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    rows = [row for row in found["rows"] if (row["variant"], row["mode"]) == (variant, mode)]
    assert [row["length"] for row in rows] == list(lengths)
    assert {row["status"] for row in rows} == {"ok"}
    return [row[field] for row in rows]


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_peak_contains_a_tensor_of_256_megabytes(found: dict[str, Any], mode: str) -> None:
    heavy, plain = (column(found, name, mode, "peak_resident_growth_bytes") for name in ("heavy", "plain"))
    for own, other in zip(heavy, plain, strict=True):
        assert own - other == pytest.approx(256e6, abs=13e6)


@pytest.mark.parametrize("mode", ["inference", "train"])
@pytest.mark.parametrize(("name", "within"), [("pausing", 1e-3), ("spinning", 0.5e-3)])
def test_step_time_contains_a_pause_of_five_milliseconds(
    paused: dict[str, Any], name: str, within: float, mode: str
) -> None:
    """The pause is a sleep or a busy wait; after the latter, caches are not colder than without it."""
    seconds = (column(paused, variant, mode, "fast_seconds", SHORT) for variant in (name, "plain"))
    for length, own, other in zip(SHORT, *seconds, strict=True):
        # Cold caches and differences between processes change the step time by a fraction of it.
        assert own - other == pytest.approx(5e-3, abs=within + other / 4), f"{length} tokens, {own}, {other}"


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_growth_of_memory_reveals_an_n_by_n_matrix(found: dict[str, Any], mode: str) -> None:
    exponents = {
        summary["variant"]: summary["memory_exponent"] for summary in found["summaries"] if summary["mode"] == mode
    }
    assert exponents["square"] == pytest.approx(2, abs=0.15)
    assert exponents["transformer (math)"] == pytest.approx(2, abs=0.15)
    for name in ("plain", "transformer"):
        assert exponents[name] == pytest.approx(1, abs=0.2), name


@pytest.mark.parametrize(("mode", "kernel"), [("inference", "fused"), ("train", "slices")])
def test_rows_contain_the_attention_kernel_of_each_baseline(found: dict[str, Any], mode: str, kernel: str) -> None:
    assert set(column(found, "plain", mode, "default_backend")) == {kernel}
    assert set(column(found, "plain", mode, "math_backend")) == {"math"}
    assert set(column(found, "transformer", mode, "speed_ratio_default")) == {1}
    ratios = column(found, "plain", mode, "memory_ratio_math")
    assert all(0 < ratio < 1 for ratio in ratios)

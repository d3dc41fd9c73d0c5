"""Results of a comparison over all lengths: ratios, growth, efficiency lengths, fallbacks, and the tables."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from lra_bench.config.schema import Measure
from lra_bench.contracts import UserError
from lra_bench.profiling import interleave
from lra_bench.profiling.comparison import run as comparison
from lra_bench.profiling.comparison.ratios import fast
from lra_bench.profiling.comparison.rows import row_of, summary_of
from lra_bench.profiling.comparison.run import Comparison, Profile, batches_of
from lra_bench.profiling.interleave import VISITS, WorkerPool
from lra_bench.profiling.sections import entry_of, unmeasured
from lra_bench.profiling.timing import Timing, WarmUp, summary
from lra_bench.profiling.types import ComparisonModel, Measured, Setting
from lra_bench.runtime.memory import PeakMemory
from lra_bench.tables.profile import tables, write_csv
from tests.profiling.test_profile import config, hardware
from tests.support import toy_networks as toy

LENGTHS = [1024, 2048, 4096]
# Seconds and bytes per row at 1,024 tokens, and the exponent of both.
COSTS = {
    "transformer": (0.01, 1e6, 2),
    "transformer (math)": (0.02, 4e6, 2),
    "linear": (0.02, 3e6, 1),
    "toy": (1, 1, 1),
}
KERNELS = {"transformer": "fused", "transformer (math)": "math"}


class Scripted:
    """Replacement for ``Interleaving`` with costs computed by a formula and ``available_bytes`` of memory.

    ``calls`` collects length, batch and models of each call of ``run``, ``visited`` the lengths of later visits.
    """

    calls: ClassVar[list[tuple[int, Any, list[str]]]] = []
    visited: ClassVar[list[int]] = []
    available_bytes = 1e12
    kernels: ClassVar[dict[str, str]] = KERNELS
    noise: ClassVar[list[float]] = [1.0, 1.0, 1.0, 1.0, 1.0]

    def __init__(self, setting: Setting, processes: WorkerPool, report: Any) -> None:
        self.setting, self.report = setting, report
        self.found: list[Measured] = []
        self.flops: dict[str, Any] = {}
        self.processes = WorkerPool(timing=dict.fromkeys(COSTS))

    def run(self, candidates: list[ComparisonModel], modes: dict[str, list[str]]) -> list[Measured]:
        for candidate in candidates:
            self.flops[candidate.name] = {"inference": 10 * self.setting.length, "train": None}
            self.flops[candidate.name]["per_token"] = {"length": self.setting.length, "per_token_forward": 10}
        self.calls.append(
            (self.setting.length, self.setting.batch, [one.name for one in candidates if modes[one.name]])
        )
        self.found = [self.measured(one, mode) for one in candidates for mode in modes[one.name]]
        return self.found

    def answer(self, name: str, command: str) -> dict[str, Any]:
        if command == "peak_matmul_flops":
            return {"flops_per_second": 1e9}
        return {"energy": {"joules_per_step": 1.0, "route": "scripted"}} if name == "linear" else {"reason": "failed"}

    def revisit(self) -> None:
        self.visited.append(self.setting.length)
        for one in self.found:
            one.rounds = [*one.rounds, *one.rounds[: len(self.noise)]]

    def measured(self, candidate: ComparisonModel, mode: str) -> Measured:
        length, batch = self.setting.length, self.setting.batch
        rows = int(batch) if batch != "largest" else 8
        seconds, size, power = COSTS[candidate.name]
        grown = rows * (length / 1024) ** power
        self.report(1, "")
        if size * grown > self.available_bytes:
            reason = "out_of_memory", "no room", self.setting.policy
            return Measured(candidate, unmeasured(mode, length, rows, *reason))
        timing = Timing(20, seconds * grown, seconds * grown, seconds * grown, 1.0, False)
        peak = PeakMemory(peak_resident_growth_bytes=int(size * grown))
        entry = entry_of(mode, length, rows, rows * length, timing, peak, self.setting.policy)
        entry["attention_backend"] = self.kernels.get(candidate.name)
        noise = self.noise if not candidate.baseline else [1.0] * len(self.noise)
        return Measured(candidate, entry, [[timing.median_seconds * each] for each in noise], flops_per_row=length)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Scripted]]:
    monkeypatch.setattr(interleave, "Interleaving", Scripted)
    monkeypatch.setattr(Scripted, "calls", [])
    monkeypatch.setattr(Scripted, "visited", [])
    yield Scripted


def compare(*others: str, **measure: Any) -> Profile:
    base = config(lengths=LENGTHS)
    options = replace(base, measure=replace(base.measure, **{"flops": True, "speed_batches": [1], **measure}))
    candidates = [
        ComparisonModel("transformer", "transformer", options, baseline="default"),
        ComparisonModel("transformer (math)", "transformer", options, attention="math", baseline="math"),
        *(ComparisonModel(name, name.partition(" ")[0], options) for name in others),
    ]
    return Comparison(candidates, toy.spec(), hardware(), "smoke").run()


def cells(profile: Profile, title: str) -> dict[str, dict[str, Any]]:
    """Return the rows of the table whose title starts with ``title``, by model."""
    (found,) = [rows for name, rows in tables(profile) if name.startswith(title)]
    return {row["model"]: row for row in found}


def test_ratios_and_their_geometric_means(scripted: type[Scripted]) -> None:
    profile = compare("linear")
    rows = [row for row in profile.rows if (row["variant"], row["mode"]) == ("linear", "train")]
    assert [row["speed_ratio_default"] for row in rows] == pytest.approx([0.5, 1, 2])
    assert [row["speed_ratio_math"] for row in rows] == pytest.approx([1, 2, 4])
    assert [row["memory_ratio_default"] for row in rows] == pytest.approx([3, 1.5, 0.75])
    assert {(row["default_backend"], row["math_backend"]) for row in rows} == {("fused", "math")}
    assert [row["steps_per_second"] for row in rows] == pytest.approx([50, 25, 12.5])
    (summary,) = [one for one in profile.summaries if (one["variant"], one["mode"]) == ("linear", "train")]
    assert summary["speed_ratio_default"] == pytest.approx(1), "the mean of 0.5, 1 and 2 must be geometric"
    assert summary["time_exponent"] == pytest.approx(1) and summary["memory_exponent"] == pytest.approx(1)
    assert summary["time_crossing_default"] == {
        "verdict": "crosses",
        "length": 4096,
        "interpolated": pytest.approx(2048),
        "longest": 4096,
    }
    assert summary["memory_crossing_default"]["interpolated"] == pytest.approx(3072)
    assert summary["memory_crossing_math"]["verdict"] == "at once"


def test_speed_ratio_equals_the_ratio_of_fast_seconds_in_the_rows() -> None:
    generator = np.random.default_rng(0)

    def measured(name: str, seconds: float, rows: int, baseline: str | None = None) -> Measured:
        rounds = (seconds * (1 + generator.exponential(0.3, size=(28, 3)))).tolist()
        entry = entry_of("train", 64, rows, rows * 64, summary(rounds, WarmUp(1.0, seconds)), PeakMemory())
        entry["attention_backend"] = KERNELS.get(name)
        return Measured(ComparisonModel(name, name, config(), baseline=baseline), entry, rounds)

    own, exact = measured("linear", 0.02, 4), measured("transformer", 0.01, 1, "default")
    row = row_of(own, ["default"], {("default", "train", 64): exact})
    assert row["speed_ratio_default"] == pytest.approx(4 * fast(exact.rounds) / row["fast_seconds"])
    assert row["speed_ratio_default"] == pytest.approx(2, rel=0.1)


def test_all_lengths_are_revisited_after_the_last_was_measured(scripted: type[Scripted]) -> None:
    profile = compare("linear")
    assert [length for length, _, _ in scripted.calls] == LENGTHS
    assert scripted.visited == LENGTHS * (VISITS["cpu"] - 1)
    assert {len(row["round_medians_seconds"]) for row in profile.rows} == {VISITS["cpu"] * len(scripted.noise)}


@pytest.mark.parametrize("finished", [1, 4])
def test_interrupted_profile_keeps_the_lengths_that_were_measured(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
    visits = iter(range(finished))

    def interrupt_after(method: Any) -> Any:
        def visit(*arguments: Any) -> Any:
            if next(visits, None) is None:
                raise KeyboardInterrupt
            return method(*arguments)

        return visit

    for name in ("run", "revisit"):
        monkeypatch.setattr(Scripted, name, interrupt_after(getattr(Scripted, name)))
    profile = compare("linear", speed_batches=[1, 2])
    assert profile.interrupted and not profile.summaries
    assert {row["length"] for row in profile.rows} == set(LENGTHS[:finished])
    assert {row["batch_size"] for row in profile.rows} == {1}
    assert any("interrupted" in warning for warning in profile.warnings)
    with pytest.raises(KeyboardInterrupt):
        compare("linear")


def test_baseline_that_does_not_fit_gives_no_ratio(scripted: type[Scripted]) -> None:
    scripted.available_bytes = 20e6
    profile = compare("linear")
    scripted.available_bytes = 1e12
    last = profile.rows[-1]
    assert (last["variant"], last["length"], last["math_status"]) == ("linear", 4096, "out_of_memory")
    assert last["speed_ratio_math"] is None and last["speed_ratio_default"] == pytest.approx(2)
    speeds = cells(profile, "inference · batch 1 · speed and memory relative to transformer (math)")
    assert speeds["linear"]["4,096"] == "– –"
    assert speeds["transformer (math)"]["4,096"] == "OOM"


def test_ratios_name_the_attention_kernel_and_are_omitted_if_it_is_unknown(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = compare("linear")
    titles = [title for title, _ in tables(profile)]
    against = [title for title in titles if "relative to" in title]
    assert against and all(
        "relative to transformer (fused)" in title or "relative to transformer (math)" in title for title in against
    )
    monkeypatch.setattr(scripted, "kernels", {"transformer (math)": "math"})
    profile = compare("linear")
    assert {row["speed_ratio_default"] for row in profile.rows} == {None}
    assert {row["speed_ratio_math"] for row in profile.rows} != {None}
    assert {summary["time_crossing_default"]["verdict"] for summary in profile.summaries} == {"unknown"}
    assert any("attention kernel of transformer is unknown" in warning for warning in profile.warnings)


def test_errors_and_unknown_peaks_of_the_baseline_do_not_count_as_crossings() -> None:
    def entries(model: str, cost: float, length: int, **changes: Any) -> Any:
        known = {"attention_backend": KERNELS.get(model), "tokens_per_second": 1 / cost}
        entry = {**unmeasured("train", length, 1, "ok", ""), **known, "peak_resident_growth_bytes": int(10 * cost)}
        return {**entry, **changes}

    broken = {"status": "failed", "tokens_per_second": None, "peak_resident_growth_bytes": None}
    other = {
        1024: entries("transformer", 1, 1024),
        2048: entries("transformer", 2, 2048, peak_resident_growth_bytes=None),
        4096: entries("transformer", 4, 4096, **broken),
    }
    options = config()
    own = [Measured(ComparisonModel("linear", "linear", options), entries("linear", 3, length)) for length in other]
    exact = ComparisonModel("transformer", "transformer", options, baseline="default")
    baselines = {("default", "train", length): Measured(exact, entry) for length, entry in other.items()}
    rows = [row_of(one, ["default"], baselines) for one in own]
    summary = summary_of(rows, {}, ["default"], baselines)
    assert summary["time_crossing_default"]["verdict"] == "never"
    assert summary["time_crossing_default"]["longest"] == 2048
    assert summary["memory_crossing_default"]["longest"] == 1024
    other[4096]["status"] = "timeout"
    assert summary_of(rows, {}, ["default"], baselines)["time_crossing_default"]["length"] == 4096


def test_tables_show_ratios_growth_and_efficiency_lengths(scripted: type[Scripted]) -> None:
    profile = compare("linear")
    speeds = cells(profile, "train · batch 1 · steps per second, and speed relative to transformer (fused)")
    assert speeds["linear"] == {"model": "linear", "1,024": "50 0.50×", "2,048": "25 1.00×", "4,096": "12.5 2.00×"}
    memory = cells(profile, "train · batch 1 · peak memory in MiB")
    assert memory["transformer (math)"]["4,096"] == "61 4.00×"
    growth = cells(profile, "train · batch 1 · growth")
    assert growth["transformer"]["time ∝ length^"] == "2.00 [2.00, 2.00]"
    against = cells(profile, "train · batch 1 · all lengths relative to transformer (fused)")
    assert against["linear"] == {
        "model": "linear",
        "speed": "1.00×",
        "memory": "1.50×",
        "faster": "from 4,096 (≈ 2,048)",
        "less memory": "from 4,096 (≈ 3,072)",
    }
    assert against["transformer (math)"]["faster"] == "never up to 4,096"
    shares = cells(profile, "train · batch 1 · utilisation of 1 GFLOP/s")
    assert shares["linear"]["1,024"] == f"{100 * 1024 / 0.02 / 1e9:.2g} %"


@pytest.mark.parametrize(("noise", "marked"), [([1] * 30 + [5] * 5, False), ([1 + i / 25 for i in range(35)], True)])
def test_uncertain_ratios_are_marked_and_reported(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, noise: list[float], marked: bool
) -> None:
    monkeypatch.setattr(scripted, "noise", noise)
    monkeypatch.setattr(comparison, "VISITS", {"cpu": 1})
    profile = compare("linear")
    found = [
        warning for warning in profile.warnings if "12 of 36 speed ratios" in warning and "more than 5%" in warning
    ]
    assert bool(found) == marked
    assert ("~" in cells(profile, "train · batch 1 · steps")["linear"]["1,024"]) == marked


def test_many_models_are_compared_in_groups(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_INTERLEAVED", 3)
    profile = compare("linear", "toy")
    assert [names for _, _, names in scripted.calls] == [
        ["transformer", "transformer (math)", name] for name in ("linear", "toy") for _ in LENGTHS
    ]
    counts = [row["variant"] for row in profile.rows]
    assert {name: counts.count(name) for name in counts} == dict.fromkeys(COSTS, 6)


def test_single_rows_are_measured_if_a_batch_does_not_fit(scripted: type[Scripted]) -> None:
    scripted.available_bytes = 200e6
    profile = compare("linear", speed_batches=[32])
    scripted.available_bytes = 1e12
    assert [(length, batch) for length, batch, _ in scripted.calls] == [
        *((length, 32) for length in LENGTHS),
        *((length, 1) for length in LENGTHS[1:]),
    ], "the first model to run out of memory, at 2,048 tokens, is the transformer with the math backend"
    policies = {(row["batch_policy"], row["batch_size"]) for row in profile.rows}
    assert policies == {("fixed", 32), ("fallback", 1)}
    assert cells(profile, "train · batch 32 · steps")["transformer (math)"]["2,048"] == "OOM"
    assert cells(profile, "train · batch 1, if a larger batch does not fit · steps")["linear"]["4,096"]


def test_group_with_single_rows_also_measures_the_baselines_with_single_rows(
    scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MAX_INTERLEAVED", 3)
    monkeypatch.setitem(COSTS, "toy", (0.01, 4e6, 2))
    monkeypatch.setitem(COSTS, "transformer (math)", (0.02, 1e6, 2))
    monkeypatch.setattr(scripted, "available_bytes", 32 * 16e6)
    profile = compare("linear", "toy", speed_batches=[32])
    single = [row for row in profile.rows if row["batch_policy"] == "fallback"]
    assert {row["variant"] for row in single} == {"transformer", "transformer (math)", "toy"}
    assert {row["length"] for row in single} == {4096} and len(single) == 6
    assert {row["speed_ratio_default"] for row in single if row["variant"] == "toy"} == {1}


def test_largest_batches_are_compared_by_tokens_but_not_by_memory_or_growth(scripted: type[Scripted]) -> None:
    profile = compare("linear", speed_batches=["largest"])
    assert {summary["time_exponent"] for summary in profile.summaries} == {None}
    assert {summary["memory_crossing_default"]["verdict"] for summary in profile.summaries} == {"unknown"}
    tokens = cells(profile, "train · largest batch that fits · tokens per second")
    assert tokens["linear"]["1,024"] == "51,200 0.50×"


def test_lengths_predicted_to_exceed_the_memory_limit_are_not_tried(scripted: type[Scripted]) -> None:
    profile = compare("linear", memory_limit_gigabytes=0.05)
    assert scripted.calls[-1] == (4096, 1, ["transformer", "linear"])
    failed = [row for row in profile.rows if row["status"] == "out_of_memory"]
    assert [(row["variant"], row["mode"], row["length"]) for row in failed] == [
        ("transformer (math)", mode, 4096) for mode in ("inference", "train")
    ]
    assert "predicted to need 0.064 GB" in failed[0]["reason"]


@pytest.mark.parametrize(
    ("measure", "device", "expected"),
    [
        (Measure(speed_batches=None, speed_batch_size=None), "cpu", [1]),
        (Measure(speed_batches=None, speed_batch_size=None), "cuda", [32, 1, "largest"]),
        (Measure(speed_batches=None, speed_batch_size=8), "cuda", [8]),
        (Measure(speed_batches=["largest", 4, 4], speed_batch_size=8), "cpu", ["largest", 4]),
    ],
)
def test_batches_come_from_the_configuration_or_the_device(measure: Measure, device: str, expected: list) -> None:
    assert batches_of(measure, device) == expected


def test_profile_is_available_as_json_and_csv(scripted: type[Scripted], tmp_path: Path) -> None:
    import pandas as pd

    profile = compare("linear", energy=True)
    assert json.loads(json.dumps(profile.as_dict(), allow_nan=False))["baselines"] == {
        "default": "transformer",
        "math": "transformer (math)",
    }
    assert profile.flops[2] == {
        "variant": "linear",
        "length": 1024,
        "per_token_forward": 10,
    }
    assert [(row["variant"], row["joules_per_step"]) for row in profile.energy] == [("linear", 1.0)]
    write_csv([profile], tmp_path / "new" / "rows.csv")
    frame = pd.read_csv(tmp_path / "new" / "rows.csv")
    assert len(frame) == len(profile.rows) == 3 * 2 * 3
    assert frame.groupby("variant")["speed_ratio_math"].max()["linear"] == pytest.approx(4)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output"):
        write_csv([profile], tmp_path / "file" / "rows.csv")

"""Relative speed, memory and growth in tables come from one profile of the shown systems."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra_bench.page.page import page
from lra_bench.records.check import check_store
from lra_bench.records.machines import CEILING
from lra_bench.records.profiles import attach_costs, load_profiles, write_profile
from lra_bench.records.reference import load_reference
from lra_bench.records.schema import Record
from lra_bench.records.store import load_all, write
from lra_bench.tables import export
from lra_bench.tables.formatting import rows_of
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import over_tasks, overview
from tests.support.page_records import data_of
from tests.support.record_factory import make_record

LENGTHS = (1024, 4096, 8192)
MODELS = {"transformer": 1.0, "local": 4.0, "performer": 2.0}
HASHES = {name: f"{number:08x}" for number, name in enumerate(MODELS)}


def profile(
    ratios: Mapping[str, float] = MODELS, task: str = "listops", spread: float = 0.01, **changes: Any
) -> dict[str, Any]:
    """Return a profile in which the speed ratio of a model grows with the length."""
    names = {"transformer": "transformer", "transformer (math)": "transformer", **{name: name for name in ratios}}
    rows = [
        {
            "variant": variant, "hash": HASHES[name], "mode": mode, "length": length, "batch_size": 1,
            "batch_policy": "fixed", "status": "ok", "default_backend": "flash",
            "speed_ratio_default": (0.5 if variant.endswith(")") else ratios[name]) * length / 4096,
            "spread_of_speed_ratio_default": spread, "memory_ratio_default": ratios[name] / 10,
        }
        for variant, name in names.items() for mode in ("train", "inference") for length in LENGTHS
    ]  # fmt: skip
    summaries = [
        {
            "variant": name, "hash": HASHES[name], "mode": "train", "batch_policy": "fixed",
            "time_exponent": 1.0 + value / 10, "time_low": 1.0, "time_high": 2.0, "lengths": list(LENGTHS),
        }
        for name, value in ratios.items()
    ]  # fmt: skip
    return {
        "task": task, "protocol": "quick", "hardware": "cpu-epyc-2t", "lengths": list(LENGTHS),
        "ceiling_flops_per_second": 1e11, "rows": rows, "summaries": summaries, **changes,
    }  # fmt: skip


def records(models: Sequence[str] = (*MODELS, "linear"), **options: Any) -> list[Record]:
    return [make_record(model, hash=HASHES.get(model, "ffffffff"), **options) for model in models]


def made(root: Path, found: list[Record] | None = None) -> list[Record]:
    """Return records with the costs of the profiles below ``root``."""
    found = records() if found is None else found
    attach_costs(found, load_profiles(root))
    return found


def costs(frame: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    measured = frame[frame["kind"] == "measured"].set_index("variant")
    rows = measured[["relative_speed", "relative_memory", "profile_time_exponent"]].dropna()
    return {str(name): tuple(row) for name, row in rows.iterrows()}


def test_rows_are_matched_by_hash_and_others_are_empty(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path)
    frame = overview(made(tmp_path))
    assert costs(frame) == {
        "transformer": pytest.approx((2.0, 0.1, 1.1)),
        "local": pytest.approx((8.0, 0.4, 1.4)),
        "performer": pytest.approx((4.0, 0.2, 1.2)),
    }
    assert set(frame["profile_length"].dropna()) == {8192} and set(frame["profile_kernel"].dropna()) == {"flash"}
    text = export.render(frame, "markdown", layout="wide")
    assert "relative speed @8k (flash)" in text and "8.00× " in text and "8.00×~" not in text


def test_without_a_profile_the_columns_are_empty(tmp_path: Path) -> None:
    frame = overview(made(tmp_path))
    assert frame[["relative_speed", "relative_memory", "profile_time_exponent", "profile_length"]].isna().all(axis=None)
    assert "relative" not in export.render(frame, "markdown", layout="wide").partition("##")[2]


def test_the_profile_with_the_most_shown_rows_is_used_alone(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path)
    write_profile(profile({"transformer": 1.0, "local": 99.0}), tmp_path)
    assert costs(overview(made(tmp_path)))["local"][0] == pytest.approx(8.0)


def test_an_interrupted_profile_is_used_only_without_a_complete_one(tmp_path: Path) -> None:
    interrupted = {**profile({"transformer": 1.0, "local": 99.0, "performer": 2.0}), "summaries": []}
    write_profile(interrupted, tmp_path / "one")
    assert made(tmp_path / "one")[1].profiled
    write_profile(profile(), tmp_path)
    write_profile(interrupted, tmp_path)
    assert costs(overview(made(tmp_path)))["local"][0] == pytest.approx(8.0)


@pytest.mark.parametrize("change", [{"task": "text"}, {"protocol": "small"}, {"hardware": "cpu-epyc-4t"}])
def test_profiles_of_another_task_protocol_or_machine_are_not_used(tmp_path: Path, change: dict[str, str]) -> None:
    write_profile(profile(**change), tmp_path)
    assert costs(overview(made(tmp_path))) == {}


def test_the_length_is_the_longest_at_which_most_rows_were_timed(tmp_path: Path) -> None:
    slow = profile()
    for row in slow["rows"]:
        if row["length"] == 8192 and row["hash"] in (HASHES["transformer"], HASHES["local"]):
            row |= {"status": "timeout", "speed_ratio_default": None}
    write_profile(slow, tmp_path)
    frame = overview(made(tmp_path))
    assert set(frame["profile_length"].dropna()) == {4096} and costs(frame)["local"][0] == pytest.approx(4.0)


def test_uncertain_ratios_are_marked(tmp_path: Path) -> None:
    write_profile(profile(spread=0.2), tmp_path)
    text = export.render(overview(made(tmp_path)), "markdown", layout="wide")
    assert "8.00×~" in text


def test_tasks_are_combined_by_geometric_mean(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path)
    write_profile(profile({"transformer": 1.0, "local": 1.0, "performer": 2.0}, task="text"), tmp_path)
    frame = overview(made(tmp_path, [*records(), *records(task="text")]))
    assert costs(frame)["local"][:2] == pytest.approx((4.0, 0.2))


def test_costs_over_some_tasks_are_those_of_these_tasks_only(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path)
    write_profile(profile({"transformer": 1.0, "local": 1.0, "performer": 2.0}, task="text"), tmp_path)
    frame = overview(made(tmp_path, [*records(), *records(("transformer", "local"), task="text")]))
    rows = {row["variant"]: row for row in rows_of(frame)}
    assert rows["local"]["relative_speed"] == pytest.approx(4.0)
    for tasks, expected in ((["listops"], 8.0), (["text"], 2.0)):
        local = over_tasks(rows["local"], tasks)
        assert local["relative_speed"] == pytest.approx(expected)
        assert local["profile_length"] == 8192


def test_a_profile_belongs_to_the_machine_with_its_ceiling(tmp_path: Path) -> None:
    for seed, ceiling in ((0, 1e11), (1, 3e11)):
        for record in records(seed=seed):
            record.environment["hardware"][CEILING] = ceiling
            write(record, tmp_path)
    write_profile(profile(), tmp_path)
    profiled = [record for record in load_all(tmp_path) if record.profiled]
    assert {record.machine for record in profiled} == {"cpu-epyc-2t-100gflops"} and len(profiled) == 3


def test_profiles_of_boards_are_used_for_their_rows_only(tmp_path: Path) -> None:
    board = tmp_path / "reference" / "first"
    for record in records():
        write(record, board)
        write(record, tmp_path / "own")
    write_profile(profile(), board)
    found = [*load_all(tmp_path / "own"), *load_reference(tmp_path / "reference")]
    known = overview(found).query("relative_speed.notna()")
    assert set(known["reference"]) == {"first"} and len(known) == 3


def test_a_damaged_profile_is_reported_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_profile(profile(), tmp_path)
    good.with_name("broken.json").write_text("{")
    lacking = json.loads(good.read_text())
    del lacking["rows"][0]["hash"]
    good.with_name("lacking.json").write_text(json.dumps(lacking))
    good.with_name("newer.json").write_text(json.dumps({**json.loads(good.read_text()), "version": 2}))
    assert [each.path for each in load_profiles(tmp_path)] == [good]
    message = capsys.readouterr().err
    assert "is not a profile" in message and "rows.0.hash is missing" in message and "upgrade lra-bench" in message
    [finding] = [finding for finding in check_store(tmp_path) if finding.what == "profiles"]
    assert finding.ok is False and "rows.0.hash is missing" in finding.found


def test_every_format_shows_the_columns(tmp_path: Path) -> None:
    write_profile(profile(), tmp_path)
    shown = made(tmp_path)
    frames = {name: layout.make(shown) for name, layout in LAYOUTS.items()}
    for format in ("terminal", "markdown"):
        assert "8.00" in export.render(frames["wide"], format, 400, "wide")
    assert json.loads(export.render(frames["wide"], "json"))[0]["relative_speed"] is not None
    [protocol] = data_of(page(records(), frames))["protocols"]
    assert "relative_speed" in {column["key"] for column in protocol["systems"]["columns"]}

"""Changes between two checkouts: conditions, cells that are matched, noise of profiles, and exit codes."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.profiles import write_profile
from lra_bench.tables.condition import Condition, Interval
from lra_bench.tables.regression import Change, changes, markdown
from tests.support.record_factory import make_record


def exact(value: float) -> Interval:
    return Interval(value, value, value)


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("score<-1", {"score": exact(-1.5)}, True),
        ("score<-1", {"score": exact(-1.0)}, False),
        ("score<=-1", {"score": exact(-1.0)}, True),
        ("-1>score", {"score": exact(-1.5)}, True),
        ("speed<0.95", {"speed": Interval(0.9, 0.8, 0.94)}, True),
        ("speed<0.95", {"speed": Interval(0.9, 0.8, 0.96)}, None),
        ("not speed>=0.95", {"speed": Interval(0.9, 0.8, 0.96)}, None),
        ("not speed>=0.95", {"speed": Interval(0.9, 0.8, 0.94)}, True),
        ("speed<0.95 or score<-1", {"score": exact(-2)}, True),
        ("speed<0.95 or score<-1", {"score": exact(0)}, None),
        ("speed<0.95 and score<-1", {"score": exact(0)}, False),
        ("(memory>1.1 or parameters>1.1) and not score>2", {"parameters": exact(2), "score": exact(1)}, True),
    ],
)
def test_a_condition_is_true_only_if_it_is_true_of_the_whole_interval(text, values, holds) -> None:
    assert Condition(text).holds(values) is holds


@pytest.mark.parametrize(
    "text",
    [
        "", "score", "score<", "1<2", "score<speed", "score<-1 or", "0<score<1", "score==0", "score<True", "score<1j",
        "__import__('os').system('true')<1", "score.real<1", "score<[1]", "(lambda: 1)()", "score<1 if 1 else 0",
        "score<f()", "score<'1'", "score<-1;speed<1", "not " * 400 + "score<1", "(" * 240 + "score<1", "score<\0",
    ],
)  # fmt: skip
def test_a_wrong_condition_gives_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"--fail-if .*write comparisons of score, speed, .*with numbers"):
        Condition(text)


def test_an_unknown_name_is_corrected() -> None:
    with pytest.raises(UserError, match="there is no value sped; did you mean speed"):
        Condition("sped<0.9")


@given(st.text(alphabet="scorepd<>=.-+()[]andotr 019'_\n", max_size=60))
def test_any_text_is_a_condition_or_a_user_error(text: str) -> None:
    with suppress(UserError):
        Condition(text).holds({"score": exact(1)})


def profile_of(ratio: float, spread: float = 0.01, peak: float = 1e6, hash: str = "0a1b2c3d") -> dict[str, Any]:
    common = {
        "length": 512, "batch_size": 1, "batch_policy": "fixed", "status": "ok", "default_backend": "fused",
        "memory_ratio_default": 1.0, "peak_bytes": peak,
    }  # fmt: skip
    own = {"variant": "performer", "hash": hash, "speed_ratio_default": ratio}
    baseline = {"variant": "transformer", "hash": "ffffffff", "baseline": "default", "speed_ratio_default": 1.0}
    rows = [
        {**common, **each, "mode": mode, "spread_of_speed_ratio_default": spread}
        for each in (baseline, own)
        for mode in ("inference", "train")
    ]
    place = {"task": "listops", "protocol": "quick", "hardware": "cpu-epyc-2t"}
    return {**place, "ceiling_flops_per_second": None, "rows": rows, "summaries": []}


def write(root: Path, *records: Any, profiles: Any = ()) -> Path:
    for record in records:
        store.write(record, root)
    for each in profiles:
        write_profile(each, root)
    return root


def compared(tmp_path: Path, condition: str | None = None) -> list[Change]:
    return changes(tmp_path / "base", tmp_path / "head", condition and Condition(condition))


def test_cells_are_matched_without_the_code_and_seed_by_seed(tmp_path: Path) -> None:
    write(tmp_path / "base", *(make_record(seed=seed, accuracy=0.5, hash="aaaaaaaa") for seed in (0, 1)))
    edited = {"edited": True}
    write(
        tmp_path / "head",
        make_record(seed=0, accuracy=0.5, hash="bbbbbbbb", differences=edited),
        make_record(seed=1, accuracy=0.47, hash="bbbbbbbb", differences=edited),
        make_record(seed=2, accuracy=0.5, hash="bbbbbbbb"),
        make_record(seed=0, accuracy=0.5, hash="cccccccc", differences={"model.mixer.features": 8}),
    )
    found = sorted(compared(tmp_path, "score<-1"), key=lambda each: (each.missing, each.cell[-1]))
    first, second, third, other = found
    assert first.values["score"] == exact(0) and not first.fails
    assert second.values["score"] == pytest.approx(exact(-3)) and second.fails
    assert {third.missing, other.missing} == {"base"} and not third.fails
    text = markdown(found, Condition("score<-1"))
    assert "1 of 2 rows fail: score<-1." in text and "equal" in text and "-3.00" in text
    assert "Missing in the base: performer on listops (quick, cpu-epyc-2t, seed 2)." in text


def test_more_bits_per_character_are_worse(tmp_path: Path) -> None:
    for side, bits in (("base", 2.0), ("head", 2.02)):
        record = make_record(accuracy=0.5)
        record.metrics = {"test": {"bits_per_character": bits, "loss": 1.0, "n": 9, "low": None, "high": None}}
        write(tmp_path / side, record)
    (change,) = compared(tmp_path, "score<-1")
    assert change.values["score"] == pytest.approx(exact(-2)) and change.fails


def test_a_cell_that_fails_only_in_the_head_fails_whatever_the_condition(tmp_path: Path) -> None:
    write(tmp_path / "base", make_record())
    write(tmp_path / "head", make_record(status="diverged"))
    (change,) = compared(tmp_path, "score<-1")
    assert change.fails and change.note == "ok, now diverged"


def test_the_latest_record_of_a_cell_counts(tmp_path: Path) -> None:
    write(tmp_path / "base", make_record(accuracy=0.5))
    old, new = make_record(accuracy=0.1, hash="aaaaaaaa"), make_record(accuracy=0.5, hash="bbbbbbbb")
    new.finished_at = "2026-11-21T09:00:00+00:00"
    write(tmp_path / "head", old, new)
    (change,) = compared(tmp_path)
    assert change.values["score"] == exact(0)


@pytest.mark.parametrize(
    ("heads", "spread", "value", "fails"),
    [((1.8, 1.8), 0.01, 0.9, True), ((1.8, 1.8), 0.1, 0.9, False), ((2.0, 1.8), 0.01, 0.95, False)],
)
def test_speeds_are_paired_and_fail_only_beyond_their_interval(tmp_path, heads, spread, value, fails) -> None:
    write(tmp_path / "base", profiles=[profile_of(2.0, spread), profile_of(2.0, spread)])
    write(tmp_path / "head", profiles=[profile_of(each, spread, peak=1.1e6, hash="11111111") for each in heads])
    (change,) = compared(tmp_path, "speed<0.96")
    speed, memory = change.values["speed"], change.values["memory"]
    assert speed is not None and speed.value == pytest.approx(value) and speed.low < speed.value < speed.high
    assert change.fails is fails and memory is not None and memory.value == pytest.approx(1.1)
    assert (change.cell.system, change.cell.seed) == ("performer", None)  # the baseline is not a row


def test_costs_belong_to_the_cells_of_the_profiled_hash(tmp_path: Path) -> None:
    options = {"differences": {"model.mixer.features": 8}, "hash": "0a1b2c3d"}
    for side in ("base", "head"):
        write(tmp_path / side, make_record(**options), make_record(hash="dddddddd"), profiles=[profile_of(2.0)])
    plain, features = sorted(compared(tmp_path), key=lambda each: each.cell.system)
    assert plain.values["speed"] is None and features.values["speed"] is not None


def test_costs_belong_to_the_hardware_of_the_profile(tmp_path: Path) -> None:
    record = make_record(hash="0a1b2c3d", hardware="cpu-epyc-8t")
    for side in ("base", "head"):
        write(tmp_path / side, record, profiles=[profile_of(2.0)])
    profiled, measured = sorted(compared(tmp_path), key=lambda each: each.cell.hardware)
    assert (profiled.cell.hardware, measured.cell.hardware) == ("cpu-epyc-2t", "cpu-epyc-8t")
    assert profiled.values["speed"] is not None and measured.values["speed"] is None


def test_nothing_in_common_and_unknown_values_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--base .*no such folder"):
        compared(tmp_path)
    write(tmp_path / "base", make_record())
    write(tmp_path / "head", make_record(task="text"))
    with pytest.raises(UserError, match="has no cell in common"):
        compared(tmp_path)
    write(tmp_path / "head", make_record())
    with pytest.raises(UserError, match=r'--fail-if "speed<0.9": speed is known in no cell .* run lra-bench profile'):
        compared(tmp_path, "speed<0.9")


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--fail-if", "score<-1"], 1, "FAILS"),
        (["--fail-if", "score<-9", "--format", "markdown"], 0, "| listops"),
        (["--json"], 0, '"score"'),
        (["--fail-if", "score<"], 2, "write comparisons"),
        (["--format", "latex"], 2, "--format latex"),
        (["performer"], 2, "leave out A, B"),
    ],
)
def test_exit_codes_of_the_command(tmp_path, monkeypatch, capsys, options, code, text) -> None:
    write(tmp_path / "base", make_record(accuracy=0.5))
    write(tmp_path / "head", make_record(accuracy=0.48))
    folders = ["--base", str(tmp_path / "base"), "--results", str(tmp_path / "head")]
    monkeypatch.setattr(sys, "argv", ["lra-bench", "compare", *folders, *options])
    with pytest.raises(SystemExit) as ended:
        main.main()
    printed = "".join(capsys.readouterr())
    assert (ended.value.code or 0) == code and text in printed
    if options == ["--json"]:
        assert json.loads(printed[printed.index("[") :])[0]["score"]["value"] == pytest.approx(-2)


@pytest.mark.parametrize("arguments", [["--fail-if", "score<1", "a", "b"], ["--format", "markdown", "a", "b"], ["a"]])
def test_options_of_two_checkouts_need_a_base(monkeypatch, capsys, arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["lra-bench", "compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2 and "--base" in capsys.readouterr().err

"""The W&B mirror: content of offline runs, and independence of the run from errors of the mirror."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lra_bench.config.schema import TrackerOptions
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.tracking import account
from lra_bench.tracking import mirror as mirroring
from lra_bench.tracking.account import has_account
from lra_bench.tracking.contents import summary, thinned
from lra_bench.tracking.mirror import Tracker, artifact_name, tracker, update
from tests.support import wandb_log
from tests.support.mirrored_runs import OFFLINE, PLAIN, mirror_record
from tests.support.record_factory import RATIOS, make_curves, make_extrapolation, make_point, make_record

ROOT = Path(__file__).parents[2]
MIRRORING = (
    "import sys; from pathlib import Path; from tests.support.record_factory import make_record\n"
    "from tests.support.mirrored_runs import OFFLINE, PLAIN, mirror_record, tracker, TrackerOptions"
)
"""Imports of a subprocess that mirrors a record; importing this module would take seconds longer."""


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.chdir(tmp_path)
    yield
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


def mirrored(folder: Path, options: dict = OFFLINE, drawn: bool = False, **record_options) -> Path:
    """Mirror a finished cell offline in ``folder``, with figures if ``drawn``, and return the log."""
    if not drawn:
        record_options |= PLAIN
    mirror_record(make_record(accuracy=0.3815, **record_options), folder, options)
    return wandb_log.only_log(folder)


def test_an_offline_run_contains_the_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(psutil.Process().children())
    log = mirrored(tmp_path, drawn=True)
    assert set(psutil.Process().children()) <= before, (
        "the process that writes the log is still running, so the log may be truncated"
    )
    assert capfd.readouterr() == ("", "")
    record = store.load_all(tmp_path)[0]
    check_summary(log, record)
    check_history(log)
    check_tables_figures_and_artifact(log, record)


def check_summary(log: Path, record: Record) -> None:
    logged_summary = wandb_log.summary(log)
    media = ("tables/", "figures/", "Custom Chart Tables/", "_")  # names of W&B begin with an underscore
    assert {name: value for name, value in logged_summary.items() if not name.startswith(media)} == summary(record)
    assert logged_summary["metrics/test/accuracy"] == record.metrics["test"]["accuracy"] == 0.3815
    config = {name: value for name, value in wandb_log.config(log).items() if name != "_wandb"}
    assert config == {**record.config, "key": dataclasses.asdict(record.key)}


def check_history(log: Path) -> None:
    """Check that curves are complete although only some steps were logged live, as after an interruption."""
    entries = wandb_log.history(log)
    live = [entry for entry in entries if "live/train_loss" in entry]
    assert [(entry["_step"], entry["live/validation_score"]) for entry in live] == [(25, 0.25), (50, 0.5)]
    curves, drawn = make_curves(), [entry for entry in entries if "curves/step" in entry]
    assert [entry["curves/step"] for entry in drawn] == list(curves["step"])
    assert [entry["curves/train_loss"] for entry in drawn] == list(curves["train_loss"])
    score = "curves/validation_score"
    evaluated = {entry["curves/step"]: entry[score] for entry in drawn if score in entry}
    assert evaluated == curves.dropna().set_index("step")["validation_score"].to_dict()


def check_tables_figures_and_artifact(log: Path, record: Record) -> None:
    assert record.path is not None and record.extrapolation is not None
    (artifact,) = [artifact for artifact in wandb_log.artifacts(log) if artifact.type == "record"]
    assert artifact.name == artifact_name(record.key)
    staged = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert set(staged) == {record.artifacts["curves"], "seed0.json"}
    assert staged["seed0.json"].read_bytes() == record.path.read_bytes()
    assert all(path.is_relative_to(log.parents[1]) for path in staged.values())
    logged = {name: value for entry in wandb_log.history(log) for name, value in entry.items()}
    points = json.loads((log.parent / "files" / logged["tables/extrapolation/path"]).read_text())
    scores = [row[points["columns"].index("score")] for row in points["data"]]
    assert scores == [point["score"] for point in record.extrapolation["points"]]
    speed = json.loads((log.parent / "files" / logged["tables/speed/path"]).read_text())
    assert len(speed["data"]) == len(record.speed)
    slices = json.loads((log.parent / "files" / logged["tables/slices/path"]).read_text())
    labels = [row[slices["columns"].index("label")] for row in slices["data"]]
    assert labels == [point["label"] for point in record.slices] != []
    for name in ("extrapolation", "slices", "speed_vs_length"):
        image = log.parent / "files" / logged[f"figures/{name}/path"]
        assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_only_the_offline_run_of_the_finished_attempt_is_kept(tmp_path: Path) -> None:
    for attempt, status, kept in ((1, "interrupted", [1]), (2, "ok", [2]), (3, "failed", [2, 3])):
        if attempt > 1:
            time.sleep(1)  # W&B names folders by the second
        mirror_record(make_record(**PLAIN, status=status, attempt=attempt), tmp_path, OFFLINE)
        logs = tmp_path.rglob("offline-run-*/*.wandb")
        assert sorted(wandb_log.summary(log)["attempt"] for log in logs) == kept


def test_a_failed_cell_is_mirrored(tmp_path: Path) -> None:
    logged_summary = wandb_log.summary(mirrored(tmp_path, status="diverged"))
    assert logged_summary["status"] == "diverged" and "metrics/test/accuracy" not in logged_summary


@pytest.mark.slow
def test_without_an_account_a_run_is_offline_and_the_home_folder_is_unchanged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    program = f"{MIRRORING}\nmirror_record(make_record(**PLAIN), Path(sys.argv[1]), OFFLINE | {{'mode': None}})"
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "results")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert wandb_log.summary(wandb_log.only_log(tmp_path / "results"))["status"] == "ok"
    assert not [path for path in home.rglob("*") if "wandb" in path.name]


@pytest.mark.parametrize("mode", [None, "online"])
def test_an_unreachable_server_means_offline(
    mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(mirroring, "QUIET", {**mirroring.QUIET, "init_timeout": 0.5})
    log = mirrored(tmp_path, OFFLINE | {"mode": mode})
    assert wandb_log.summary(log)["metrics/test/accuracy"] == 0.3815
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and "tracker.mode=offline" in printed and "wandb sync" in printed


@pytest.mark.parametrize("options", [OFFLINE, OFFLINE | {"mode": "online"}, OFFLINE | {"mode": None}])
def test_without_an_account_nothing_is_updated_or_printed(
    options: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    for name in ("Api", "init"):
        monkeypatch.setattr(wandb, name, lambda *_, **__: pytest.fail("W&B was contacted"))
    record = make_record(**PLAIN, config={"tracker": options})
    store.write(record, tmp_path, make_curves())
    before = sorted(tmp_path.rglob("*"))
    update(record)
    assert capfd.readouterr() == ("", "") and sorted(tmp_path.rglob("*")) == before


def test_an_error_is_reported_once_and_the_run_continues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    mirror, record = Tracker("lra-bench", "offline"), make_record()
    mirror.start(record.config, record.key, tmp_path / "file")
    mirror.log(1, {"train_loss": 1.0})
    mirror.finish(record, make_curves())
    printed = capfd.readouterr().err
    assert printed.count("\n") == 1 and "W&B could not start" in printed and "tracker=none" in printed


def test_a_run_is_ended_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirroring, "summary", lambda _: 1 / 0)
    log = mirrored(tmp_path)
    assert "W&B could not mirror the record (division by zero)" in capfd.readouterr().err
    assert wandb_log.records(log)[-1].WhichOneof("record_type") == "exit"


@pytest.mark.slow
def test_tracker_none_does_nothing_and_does_not_import_wandb(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.support.record_factory import *; from lra_bench.tracking.mirror import tracker\n"
        "from lra_bench.config.schema import TrackerOptions\n"
        "mirror, record = tracker(TrackerOptions(name='none', project='p')), make_record()\n"
        "mirror.start(record.config, record.key, Path('x')); mirror.log(1, {}); mirror.finish(record)\n"
        "assert 'wandb' not in sys.modules and not Path('x').exists()"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert tracker(TrackerOptions(mode="disabled", project="p")).mode == "disabled"


def test_accounts_in_netrc_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_account()
    (tmp_path / "no-netrc").write_text("machine example.org login user password secret\n")
    assert not has_account()
    (tmp_path / "no-netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_account()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_account()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_account()


def test_thinned_curves_keep_every_evaluation() -> None:
    curves = make_curves(10_001, every=97)
    kept = thinned(curves)
    assert 1000 <= len(kept) <= 1000 + 10_001 // 97 + 1
    assert set(curves.dropna()["step"]) <= set(kept["step"])
    assert len(thinned(make_curves(100))) == 100


def test_unknown_values_are_not_in_the_summary() -> None:
    record = make_record(wall_seconds=None)
    assert "wall_seconds" not in summary(record)
    assert all(isinstance(value, int | float | str) for value in summary(record).values())


def test_every_name_of_the_summary_is_a_path_in_the_record() -> None:
    knobs = [make_point(0.37, 0.06, ratio, knob=knob) for knob in ("", "position.scaling=yarn") for ratio in RATIOS]
    record = make_record(extrapolation=make_extrapolation(knobs), speed_failures={8192: "out_of_memory"})
    logged_summary = summary(record)
    for name, value in logged_summary.items():
        assert field_of(record.to_dict(), name) == value, name
    assert logged_summary["extrapolation/points/redrawn/position.scaling=yarn/2x/score"] == pytest.approx(0.31)
    assert logged_summary["speed/train/8192/status"] == "out_of_memory"
    assert len([name for name in logged_summary if name.endswith("/score")]) == len(knobs)
    assert len([name for name in logged_summary if name.startswith("speed/")]) > 2 * len(record.speed)


def field_of(raw: Any, name: str) -> Any:
    """Return the value in a record's JSON that a name of the summary refers to."""
    parts = name.split("/")
    if parts[0] == "speed":
        _, mode, length, entry = parts
        (found,) = [point for point in raw["speed"] if (point["mode"], str(point["length"])) == (mode, length)]
        return found[entry]
    if parts[:2] == ["extrapolation", "points"]:
        place = (parts[2], parts[3] if len(parts) == 6 else "", float(parts[-2].removesuffix("x")))
        points = raw["extrapolation"]["points"]
        (found,) = [each for each in points if (each["variant"], each["knob"], each["ratio"]) == place]
        return found[parts[-1]]
    if parts[:2] == ["extrapolation", "summary"]:
        curve = (parts[2], parts[3] if len(parts) == 5 else "")
        (found,) = [each for each in raw["extrapolation"]["summary"] if (each["variant"], each["knob"]) == curve]
        return found[parts[-1]]
    for part in parts:
        raw = raw[part]
    return raw


@pytest.mark.parametrize("part", ["m" * 100, "a+b", "a.b_c-d"])
def test_artifact_names_are_valid_in_wandb(part: str) -> None:
    from wandb.sdk.artifacts._validators import validate_artifact_name

    keys = [make_record(part, seed=seed, hash=part).key for seed in (0, 1)]
    for key in keys:
        assert validate_artifact_name(artifact_name(key))
    assert len({artifact_name(key) for key in keys}) == 2


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    """SIGINT to the process group, as from a terminal; then SIGKILL."""
    program = (
        f"{MIRRORING}; import time\n"
        "record = make_record(**PLAIN, status='interrupted')\n"
        "mirror = tracker(TrackerOptions(**OFFLINE)); mirror.start(record.config, record.key, Path(sys.argv[1]))\n"
        "try: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: mirror.finish(record); sys.exit(130)"
    )
    for number, (send, code) in enumerate(((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL))):
        folder = tmp_path / str(number)
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            helpers = psutil.Process(child.pid).children(recursive=True)
            assert helpers
            os.killpg(child.pid, send)
            began = time.monotonic()
            assert child.wait(timeout=20) == code
            assert time.monotonic() - began < 10
        _, alive = psutil.wait_procs(helpers, timeout=15)
        assert not alive
        if send == signal.SIGINT:
            assert wandb_log.summary(wandb_log.only_log(folder))["status"] == "interrupted"


@pytest.mark.parametrize("cut", [0, 3, 8, -1])
def test_the_log_reader_detects_damage(cut: int, tmp_path: Path) -> None:
    data = bytearray(mirrored_bytes(tmp_path))
    data[cut] ^= 0xFF
    with pytest.raises(ValueError, match=r"damaged|not a W&B log"):
        list(wandb_log.payloads(bytes(data)))


def mirrored_bytes(folder: Path) -> bytes:
    import zlib

    body = b"x" * 40_000
    data, position = bytearray(b":W&B\xe1\xbe\x00"), 0
    kinds = iter((wandb_log.FIRST, wandb_log.LAST))
    while position < len(body):
        room = wandb_log.BLOCK_BYTES - len(data) % wandb_log.BLOCK_BYTES - 7
        chunk, kind = body[position : position + room], next(kinds)
        data += wandb_log.CHUNK_HEADER.pack(zlib.crc32(bytes([kind]) + chunk), len(chunk), kind) + chunk
        position += len(chunk)
    assert list(wandb_log.payloads(bytes(data))) == [body]
    return bytes(data)


def test_a_service_that_does_not_end_is_killed(monkeypatch):
    """``end_service`` returns within its time limit even if the process of W&B does not end."""
    import wandb

    service = subprocess.Popen(["sleep", "600"])
    names = {service.pid: account.SERVICE}
    monkeypatch.setattr(psutil.Process, "name", lambda process: names.get(process.pid, ""))
    monkeypatch.setattr(wandb, "teardown", service.wait)
    began = time.monotonic()
    account.end_service(seconds=0.5)
    assert service.wait(10) == -signal.SIGKILL and time.monotonic() - began < 10

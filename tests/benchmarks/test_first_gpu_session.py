"""The GPU session: time limits of items, resuming, and processes that crash or hang."""

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import distributions, packages_distributions, requires
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import first_gpu_session as session_module
from benchmarks import gpu_probes
from benchmarks.first_gpu_session import (
    MINUTES,
    PLAN,
    Item,
    Session,
    read_lines,
    run_items,
    run_steps,
    run_systems,
    summary,
)
from tests.support.fake_cuda.device import unavailable

ROOT = Path(__file__).parents[2]
PRINTS = ("-c", "print('text'); print('{\"value\": 3}')")
INSTALLED = {canonicalize_name(found.name) for found in distributions()}
UNUSED = {"wandb"}
"""Packages that are not imported with ``tracker=none``."""


def listed_packages():
    """Return the two lists of packages in docs/gpu.md: those on the machine, and those to bring as wheels."""
    rows = re.findall(
        r"^\| (?:on the machine|wheels) \| (.*) \|$", (ROOT / "docs" / "gpu.md").read_text(), re.MULTILINE
    )
    present, wheels = (set(re.findall(r"`([\w-]+)`", row)) for row in rows)
    return present, wheels


def required_by(package):
    """Return the packages that an installed package requires without extras."""
    found = map(Requirement, requires(package) or [])
    return {canonicalize_name(each.name) for each in found if not each.marker or each.marker.evaluate({"extra": ""})}


def unlisted_modules():
    """Return the installed modules of packages that docs/gpu.md does not list and that no package there requires."""
    present, wheels = listed_packages()
    left = {name for name in present if name in INSTALLED}
    listed = {"lra-bench"} | wheels
    while left:
        listed |= left
        left = {name for package in left for name in required_by(package) if name in INSTALLED} - listed
    modules = packages_distributions()
    return sorted(name for name in modules if not listed & {canonicalize_name(each) for each in modules[name]})


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path, "cpu", True, "listops")


def statuses(session):
    return {line["item"]: line["status"] for line in read_lines(session.results_file)}


def test_items_record_what_they_printed_and_are_not_repeated(session, monkeypatch):
    items = [Item("A", "prints", PRINTS, 30), Item("A", "fails", ("-c", "raise SystemExit(3)"), 30)]
    run_items(session, items, time.monotonic() + 60)
    lines = {line["item"]: line for line in read_lines(session.results_file)}
    assert (lines["prints"]["status"], lines["prints"]["found"]) == ("ok", [{"value": 3}])
    assert (lines["fails"]["status"], lines["fails"]["code"]) == ("failed", 3)


def test_another_call_continues_with_new_items_and_then_repeats_those_that_failed(session, monkeypatch):
    statuses = {"a": "ok", "b": "failed", "c": "timeout", "d": "stopped", "e": "incompatible", "f": "not started"}
    lines = [{"step": "A", "item": name, "status": status} for name, status in statuses.items()]
    session.results_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = []

    def run_item(_, item, until):
        ran.append(f"{item.step} {item.name}")
        return {"step": item.step, "item": item.name, "status": "failed", "seconds": 0.0}

    monkeypatch.setattr(session_module, "run_item", run_item)
    plan = {step: lambda _, step=step: [Item(step, name, PRINTS, 30) for name in "abcdefg"] for step in "AC"}
    monkeypatch.setattr(session_module, "PLAN", plan)
    run_steps(session, ["A", "C"])
    assert ran == [f"A {name}" for name in "dfg"] + [f"C {name}" for name in "abcdefg"] + ["A b", "A c"]


def test_the_steps_take_12_minutes_and_every_item_has_a_limit_within_its_step(tmp_path):
    assert sum(MINUTES.values()) == 12
    for step, items in PLAN.items():
        for item in items(Session(tmp_path, "cuda", False, "listops")):
            assert item.step == step and 0 < item.seconds <= 60 * MINUTES[step], item.name


def test_the_packages_that_the_session_needs_are_listed():
    """Each package that lra-bench or a listed wheel requires is on the machine or in the list of wheels."""
    present, wheels = listed_packages()
    for name in {"lra-bench", *wheels} & INSTALLED:
        assert required_by(name) - UNUSED <= present | wheels, name


@pytest.mark.slow
def test_item_that_the_end_of_its_step_stops_is_not_a_timeout(session):
    run_items(session, [Item("C", "long", ("-c", "import time; time.sleep(60)"), 60)], time.monotonic() + 6)
    assert statuses(session) == {"long": "stopped"}


@pytest.mark.slow
def test_item_ends_at_its_limit_and_later_items_of_a_step_without_time_do_not_start(session):
    waits = ("-c", "import time; time.sleep(60)")
    monotonic = time.monotonic()
    run_items(session, [Item("C", "long", waits, 6), Item("C", "late", PRINTS, 60)], monotonic + 8)
    assert statuses(session) == {"long": "timeout", "late": "not started"}
    assert time.monotonic() - monotonic < 30
    assert summary(session)[2:] == [
        "Step C: 1 timeout, 1 not started",
        "  long: timeout",
        "  late: not started",
        "Step D: –",
    ]


def test_incomplete_last_line_is_ignored(session):
    session.results_file.write_text(json.dumps({"step": "A", "item": "x", "status": "ok"}) + '\n{"step": "A", "it')
    assert session.statuses() == {("A", "x"): "ok"}


def test_crash_of_a_process_affects_one_system(session, monkeypatch):
    child = (
        "import json, os, sys\n"
        "for name in sys.argv[1].split(','):\n"
        "    print(json.dumps({'started': name}), flush=True)\n"
        "    if name == 'kills':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    print(json.dumps({'system': name, 'status': 'ok'}), flush=True)\n"
    )
    names = ["first", "kills", "last", "x", "y"]
    monkeypatch.setattr(session_module, "probe", lambda name, session, flag, names, *more: ("-c", child, names))
    run_systems(session, names, time.monotonic() + 60)
    assert statuses(session) == {"first": "ok", "kills": "crashed", "last": "ok", "x": "ok", "y": "ok"}


@pytest.mark.slow
def test_system_that_hangs_is_stopped(session, monkeypatch):
    child = (
        "import json, sys, time\n"
        "for name in sys.argv[1].split(','):\n"
        "    print(json.dumps({'started': name}), flush=True)\n"
        "    time.sleep(30 * (name == 'hangs'))\n"
        "    print(json.dumps({'system': name, 'status': 'ok'}), flush=True)\n"
    )
    monkeypatch.setattr(session_module, "SYSTEM_SECONDS", 3.0)
    monkeypatch.setattr(session_module, "probe", lambda name, session, flag, names, *more: ("-c", child, names))
    run_systems(session, ["hangs", "last", "z"], time.monotonic() + 60)
    assert statuses(session) == {"hangs": "timeout", "last": "ok", "z": "ok"}


def test_missing_device_is_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(session_module, "cuda_is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["first_gpu_session", "--output", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as ended:
        session_module.main()
    assert ended.value.code == 2 and not (tmp_path / "new").exists()
    assert "--device cuda: no CUDA device is available here" in capsys.readouterr().err


def test_unknown_step_is_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["first_gpu_session", "--output", str(tmp_path), "--steps", "A,Q"])
    with pytest.raises(SystemExit) as ended:
        session_module.main()
    assert ended.value.code == 2
    assert "--steps Q: choose among A,B,C,D" in capsys.readouterr().err


def test_systems_probe_finds_a_wrong_result_on_the_device(monkeypatch, capsys):
    """Logits on the device that differ from those on the CPU are reported."""
    arguments = ["gpu_probes", "systems", "--device", "cpu", "--protocol", "smoke", "--length", "16"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--systems", "transformer"])
    calls = []

    def shifted(model, batch, context):
        calls.append(model)
        return torch.full((2, 3), 2.0 if len(calls) == 1 else 2.5)

    monkeypatch.setattr(gpu_probes, "logits_of", shifted)
    assert gpu_probes.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["status"] == "ok" and found["relative_difference"] == {"fp32": pytest.approx(0.25)}


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whole_session_with_tiny_sizes(device, tmp_path):
    """Runs on the CPU, and on the fake CUDA device, whose operators are computed on the CPU."""
    if device == "cuda" and (reason := unavailable()):
        pytest.skip(reason)
    environment = {**os.environ, "WANDB_MODE": "offline"}
    if device == "cuda":
        environment["PYTHONPATH"] = str(ROOT / "tests" / "support" / "fake_cuda" / "site")
    else:  # as on a machine that has only the listed packages
        environment["PYTHONPATH"] = str(tmp_path / "site")
        (tmp_path / "site").mkdir()
        hidden = f"import sys\nsys.modules.update(dict.fromkeys({unlisted_modules()!r}))\n"
        (tmp_path / "site" / "sitecustomize.py").write_text(hidden)
    options = ["--output", str(tmp_path), "--device", device, "--tiny", "--minutes", "480"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.first_gpu_session", *options], cwd=ROOT, env=environment, check=True
    )
    lines = {(line["step"], line["item"]): line for line in read_lines(tmp_path / "items.jsonl")}
    failed = {key: line["tail"] for key, line in lines.items() if line["status"] not in ("ok", "incompatible")}
    assert failed == {}
    assert {step for step, _ in lines} == {"A", "B", "C", "D"}
    assert list((tmp_path / "results" / "runs").glob("listops/*/*/*/seed0.json"))

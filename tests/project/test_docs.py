"""Commands and files in the documentation run as written, and everything that it refers to exists."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lra_bench import figures
from lra_bench.errors import extras, install_command
from tests.support.record_factory import MODELS, make_record

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(document: Path) -> dict[str, str]:
    """Return the files that a document contains, by path."""
    return {title: text for _, title, text in FENCE.findall(document.read_text()) if title}


def commands_of(document: Path) -> list[str]:
    """Return the commands of a document's ``bash`` blocks, in order. Blocks of type ``console`` are not run."""
    blocks = (text for language, _, text in FENCE.findall(document.read_text()) if language == "bash")
    return [line for text in blocks for line in text.splitlines() if line.strip()]


def run_as_written(document: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a document's commands in ``folder`` with its files; return the records."""
    for name, text in files_of(document).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for command in commands_of(document):
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return [json.loads(path.read_text()) for path in folder.glob("results/runs/*/*/*/*/seed*.json")]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a document in ``folder``, with separate results and cache folders."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LRA_BENCH_RESULTS": str(folder / "results"),
        "LRA_BENCH_CACHE": str(folder / "cache"),
        "WANDB_MODE": "offline",
        # The commands and other tests use every core. Busy-waiting threads would slow each step down to seconds.
        "OMP_WAIT_POLICY": "passive",
    }
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_the_mixer_of_the_guide_runs_outside_the_repository(tmp_path: Path) -> None:
    records = run_as_written(ROOT / "docs" / "adding-a-model.md", tmp_path)
    for record in records:
        assert (record["status"], record["key"]["task"], record["key"]["model"]) == ("ok", "listops", "my_mixer")
        assert record["capability"]["family"] == "attention_free"
    differences = [record["variant"]["differences"] for record in records]
    own = {"backbone._target_": "my_backbone.Tempered", "backbone.temperature": 2}
    assert sorted(differences, key=len) == [{}, own]


@pytest.mark.slow
def test_the_task_of_the_guide_runs_outside_the_repository(tmp_path: Path) -> None:
    (record,) = run_as_written(ROOT / "docs" / "adding-a-task.md", tmp_path)
    assert (record["status"], record["key"]["task"], record["key"]["model"]) == ("ok", "echo", "transformer")
    lengths = [point["length"] for point in record["extrapolation"]["points"] if not point["knob"]]
    assert lengths == [128, 256, 512]
    assert 0.5 <= record["floors"]["majority"] < 0.6


@pytest.mark.slow
def test_the_commands_for_scripts_run(tmp_path: Path) -> None:
    [record] = run_as_written(ROOT / "SKILL.md", tmp_path)
    assert (record["status"], record["key"]["model"], record["reason"]) == ("ok", "my_mixer", "")
    read = {"metrics", "floors", "extrapolation", "protocol_modified"}
    assert read <= set(record) and "accuracy" in record["metrics"]["test"] and record["extrapolation"]["points"]


@pytest.mark.slow
def test_the_measurement_of_the_guide_is_run_shown_and_drawn(tmp_path: Path) -> None:
    document = ROOT / "docs" / "adding-a-measurement.md"
    (record,) = run_as_written(document, tmp_path)
    norms = record["measured"]["state_norm"]
    assert record["status"] == "ok" and record["config"]["measure"]["state_norm_examples"] == norms["examples"] == 4
    assert 0 < norms["mean"] < 10
    shown, table = (run(command, tmp_path).stdout for command in commands_of(document)[1:3])
    assert f"{norms['mean']:.3f}, mean over 4 examples" in shown and f"{norms['mean']:.3f}" in table
    [drawn] = (tmp_path / "results" / "figures").glob("score_vs_state_norm-*.csv")
    assert pd.read_csv(drawn)["state_norm"].tolist() == [pytest.approx(norms["mean"])]
    without = run("lra-bench leaderboard --protocol smoke --task listops", tmp_path)
    assert without.returncode == 0 and "norm of state" not in without.stdout


@pytest.mark.slow
def test_the_table_of_the_guide_is_measured(tmp_path: Path) -> None:
    (record,) = run_as_written(ROOT / "docs" / "own-data.md", tmp_path)
    assert (record["status"], record["key"]["task"]) == ("ok", "csv") and sum(record["data"]["rows"].values()) <= 300
    assert record["data"]["source"].startswith("reviews, 300 rows") and record["protocol_modified"] == []


SSH = """#!/bin/sh
# Runs the command here: ssh -tt HOST COMMAND
echo "$2" >> "$HOSTS"
exec sh -c "$3"
"""


@pytest.mark.slow
def test_the_launcher_of_the_guide_runs_a_cell_on_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOSTS", str(tmp_path / "hosts"))
    document = ROOT / "docs" / "adding-a-launcher.md"
    records = run_as_written(document, tmp_path)
    assert [(record["key"]["seed"], record["status"]) for record in records] in (
        [(0, "ok"), (1, "ok")],
        [(1, "ok"), (0, "ok")],
    )
    assert "sources" not in records[0]["code"] and records[0]["variant"]["differences"] == {}
    assert records[0]["config"]["launcher"] == {"_target_": "over_ssh.OverSsh", "hosts": ["node1", "node2"]}
    assert sorted((tmp_path / "hosts").read_text().split()) == ["node1", "node2"]
    again = run(commands_of(document)[0], tmp_path)
    assert again.stderr.count("done") == 2 and len((tmp_path / "hosts").read_text().split()) == 2
    wrong = run(commands_of(document)[0].replace("node2]", "2]"), tmp_path)
    assert wrong.returncode == 2 and "launcher.hosts" in wrong.stderr


def test_the_figure_of_the_guide_draws_the_values_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(file, text)] = files_of(ROOT / "docs" / "figures.md").items()
    (tmp_path / file).write_text(text)
    name = file.removesuffix(".py")
    spec = importlib.util.spec_from_file_location(f"lra_bench.figures.{name}", tmp_path / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(figures.FIGURES, name, getattr(module, name))
    without = make_record("local", hash="00000001", parameters=None)
    written = figures.draw(name, [*(make_record(model) for model in MODELS), without], tmp_path / "drawn")
    assert [path.name for path in written] == [f"{name}-quick.{end}" for end in ("pdf", "png", "csv", "txt", "tex")]
    drawn = pd.read_csv(written[2]).set_index("model")["parameters"]
    assert dict(drawn) == {model: body for model, (body, *_) in MODELS.items()}


def test_the_documents_install_extras_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv" / "bin" / "python"))
    for document in DOCUMENTS:
        for command in re.findall(r"(?:[^\s`]+ -m )?pip install (?!--no-index)[^`\n]+", document.read_text()):
            assert command in {install_command(extra) for extra in extras()}, document


def test_the_examples_of_the_guides_have_the_stated_number_of_lines() -> None:
    for document, file, lines in (("adding-a-model", "my_mixer", 20), ("adding-a-task", "echo", 30)):
        text = files_of(ROOT / "docs" / f"{document}.md")[f"ideas/{file}.py"]
        assert len([line for line in text.splitlines() if line.strip()]) <= lines


def test_the_readme_states_the_number_of_systems() -> None:
    number = len(list((ROOT / "conf" / "model").glob("*.yaml")))
    readme = (ROOT / "README.md").read_text()
    assert f"with {number} implemented systems" in readme and f"list all\n{number}." in readme


def test_the_readme_contains_the_mixer_of_the_guide() -> None:
    shown, guide = files_of(ROOT / "README.md"), files_of(ROOT / "docs" / "adding-a-model.md")
    assert shown.keys() < guide.keys() and shown == {name: guide[name] for name in shown}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    named = re.findall(r"`((?:lra_bench|models|tasks|conf|tests|benchmarks|docs)/[\w/.-]+)`", document.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_and_commands_exist(document: Path) -> None:
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(block for _, _, block in FENCE.findall(text))])
    assert set(re.findall(r"^make ([a-z-]+)", code, re.MULTILINE)) <= targets
    assert set(re.findall(r"^lra-bench ([a-z]+)", code, re.MULTILINE)) <= commands()


def commands() -> set[str]:
    """Return the commands of ``lra-bench``."""
    from typer.main import get_group

    from lra_bench.cli import main

    return set(get_group(main.app).commands)


def test_protocol_sizes_in_the_docs_are_those_of_the_files() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) layers? × (\d+)", (ROOT / "docs/protocols.md").read_text(), re.MULTILINE)
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf/protocol").glob("*.yaml")}
    tuned = {name for name, node in files.items() if node.get("tuned")}
    assert {name: (int(depth), int(width)) for name, depth, width in rows} == {
        name: (node["common"]["backbone"]["depth"], node["common"]["backbone"]["width"])
        for name, node in files.items()
        if name not in tuned and "common" in node
    }
    documented = re.findall(r"^\| `(\w+)` \| each paper's own", (ROOT / "docs/protocols.md").read_text(), re.MULTILINE)
    assert set(documented) == tuned


def test_every_make_target_has_a_description() -> None:
    makefile = (ROOT / "Makefile").read_text()
    declared = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert declared == set(re.findall(r"^([a-z-]+):.* ## ", makefile, re.MULTILINE))

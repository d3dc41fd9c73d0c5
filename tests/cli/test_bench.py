"""The smallest end-to-end runs of ``lra-bench bench``: record, printed row, leaderboard, figures and W&B run."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lra_bench.cli.bench import _print_defaults, _print_next_steps
from lra_bench.cli.options import follow_up
from lra_bench.config.schema import CellConfig, TrackerOptions
from lra_bench.grid.notes import destinations
from lra_bench.grid.plan import plan
from tests.support.command import TINY, Folder
from tests.support.record_factory import make_record

SMOKE = ["model=performer", "task=listops", "protocol=smoke", "hardware=cpu", "hardware.threads=1"]

FIELDS = {
    "schema_version", "hash_version", "status", "reason", "last_lines", "attempt", "key", "variant", "config",
    "protocol_modified", "command", "started_at", "finished_at", "wall_seconds", "code", "data", "environment",
    "parameters", "training", "speed", "growth", "flops", "energy", "metrics", "floors", "rungs", "margins", "slices",
    "minimal_pairs", "extrapolation", "capability", "search", "state", "memory", "adaptive_depth", "restriction",
    "artifacts",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Return the folder and the finished process of a smoke cell with all measurements enabled."""
    folder = Folder(tmp_path_factory.mktemp("bench"))
    done = folder.run("bench", *SMOKE)
    return folder, done


def test_the_record_is_complete(bench):
    folder, _ = bench
    record = folder.record()
    assert set(record) == FIELDS
    assert record["status"] == "ok"
    for section in (
        "data",
        "environment",
        "parameters",
        "training",
        "speed",
        "flops",
        "metrics",
        "floors",
        "capability",
        "restriction",
    ):
        assert record[section], section
    assert record["key"]["task"] == "listops"
    assert record["training"]["steps"] == record["config"]["train"]["steps"]
    for name in ("tokens_per_second", "padded_tokens_per_second", "data_wait_share", "train_seconds"):
        assert record["training"][name] > 0, name
    assert record["training"]["validation_change_on_reload"] == pytest.approx(0, abs=1e-6)
    assert {(point["mode"], point["status"]) for point in record["speed"]} == {("train", "ok"), ("inference", "ok")}
    assert record["flops"]["per_token_training"] > record["flops"]["per_token_forward"] > 0
    test = record["metrics"]["test"]
    assert 0 <= test["low"] <= test["accuracy"] <= test["high"] <= 1
    assert {point["slicing"] for point in record["slices"]} == {"length", "depth", "operator", "modular_sums"}
    for name in ("length", "depth", "operator", "modular_sums"):
        own = [point for point in record["slices"] if point["slicing"] == name]
        assert sum(point["n"] for point in own) == test["n"]
        assert sum(point["n"] * point["score"] for point in own) / test["n"] == pytest.approx(test["accuracy"])
        assert all(point["floor"] is not None for point in own)
    assert {"majority", "root_operator", "digits_of_children"} < set(record["floors"])
    pairs = record["minimal_pairs"]
    assert pairs["slicing"] == "level" and pairs["total"]["chance"] == pytest.approx(0.01)
    assert sum(point["n"] for point in pairs["points"]) == pairs["total"]["n"] > 400
    assert set(record["rungs"]) == {"one_level", "two_levels", "three_levels"}
    assert record["parameters"]["total"] == sum(
        record["parameters"][part] for part in ("body", "embeddings", "positions", "head")
    )


def test_the_extrapolation_has_a_floor_at_every_length(bench):
    folder, _ = bench
    curve = folder.record()["extrapolation"]
    assert [point["ratio"] for point in curve["points"]] == [0.5, 1, 2]
    for point in curve["points"]:
        assert point["status"] == "ok", point["reason"]
        assert point["length"] == curve["train_length"] * point["ratio"]
        assert point["floor"] == max(point["floors"].values())
        assert 0 < point["floor"] < 1
        assert point["low"] <= point["score"] <= point["high"]
        assert point["skill"] == pytest.approx((point["score"] - point["floor"]) / (1 - point["floor"]))


def test_curves_and_predictions_agree_with_the_record(bench):
    folder, _ = bench
    record = folder.record()
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    curves = pd.read_parquet(path.with_name(record["artifacts"]["curves"]))
    assert list(curves["step"]) == list(range(1, record["training"]["steps"] + 1))
    assert curves["validation_score"].max() == record["metrics"]["validation"]["accuracy"]
    predictions = pd.read_parquet(path.with_name(record["artifacts"]["predictions"]))
    for point in record["extrapolation"]["points"]:
        of_length = predictions[predictions["length"] == point["length"]]
        assert len(of_length) == point["n"]
        assert of_length["correct"].mean() == pytest.approx(point["score"])
        assert ((of_length["prediction"] == of_length["target"]) == of_length["correct"]).all()


def test_a_row_is_printed_with_interval_and_floor(bench):
    folder, done = bench
    record = folder.record()
    assert f"{100 * record['metrics']['test']['accuracy']:.1f}" in done.stdout
    assert "root operator" in done.stdout
    assert f"{100 * record['floors']['root_operator']:.1f}" in done.stdout
    assert done.stdout.count("protocol=quick") == 1


def test_the_path_of_the_record_and_the_next_steps_are_printed(bench, forks):
    folder, done = bench
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    assert f"Record: {path.relative_to(folder.root)}\n" in done.stdout
    shown = forks.command(folder, "show", "last").stdout
    assert f"cell              {path.relative_to(folder.results / 'runs').with_suffix('')}\n" in shown
    commands = [line.partition("lra-bench ")[2] for line in done.stdout.splitlines() if "  lra-bench " in line]
    assert [command.split()[0] for command in commands] == ["show", "leaderboard", "bench"]
    for command in commands:
        forks.command(folder, *shlex.split(command), *(["--dry-run"] if command.startswith("bench") else []))


def test_the_next_steps_keep_the_results_folder_and_the_folder_of_extensions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ideas").mkdir()
    (planned,) = plan([*SMOKE, "seed=1"], tmp_path / "empty", Path("ideas"))
    _print_next_steps([(planned.cell, make_record(protocol="smoke"))], SMOKE, Path("ideas"), Path("my results"))
    commands = [shlex.split(line)[-2:] for line in capsys.readouterr().out.splitlines() if "lra-bench" in line]
    assert commands == [["--results", "my results"]] * 3
    _print_next_steps([(planned.cell, make_record(protocol="smoke"))], SMOKE, Path("ideas"), None)
    *_, run, _ = capsys.readouterr().out.splitlines()
    assert "--results" not in run and "--config-dir ideas " in run
    assert follow_up("grid status g", Path("other")) == "lra-bench grid status g --results other"


def test_the_next_steps_of_a_grid_are_of_all_its_cells(tmp_path, capsys):
    overrides = [*SMOKE[1:], "model=local,performer", "seed=4,7"]
    cells = plan(overrides, tmp_path)
    _print_next_steps([(each.cell, make_record(protocol="smoke")) for each in cells], overrides, None, None)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "seeds, to test" in line]
    assert " model=local,performer " in line and line.endswith(" seed=0,1,2")


@pytest.mark.parametrize(
    ("overrides", "printed"),
    [
        ([], "Defaults: model=transformer task=listops. 1 cell to run; the duration is unknown"),
        (["task=copy", "seed=0,1"], "Default: model=transformer. 2 cells to run; the duration is unknown"),
        (["model=performer"], "Default: task=listops. 1 cell to run"),
        (["model=performer", "task=copy"], ""),
    ],
)
def test_defaults_are_printed_with_the_estimated_duration(overrides, printed, tmp_path, capsys):
    _print_defaults(plan(overrides, tmp_path), tmp_path, None, "never")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Default")]
    assert len(lines) == bool(printed) and "".join(lines).startswith(printed)


def test_leaderboard_show_list_and_plot_read_the_record(bench, forks):
    folder, _ = bench
    assert json.loads(forks.command(folder, "leaderboard", "--json").stdout) == []  # smoke is shown only if it is named
    rows = json.loads(forks.command(folder, "leaderboard", "--protocol", "smoke", "--json").stdout)
    assert len(rows) == 1
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    assert json.loads(folder.run("show", str(path), "--json").stdout) == folder.record()
    assert "performer" in forks.command(folder, "show", str(path)).stdout
    assert "performer" in folder.run("leaderboard", "--protocol", "smoke", "--write").stdout
    for suffix in ("md", "csv", "json"):
        assert "performer" in (folder.results / f"leaderboard.{suffix}").read_text().lower()
    plotted = folder.run("plot", "--protocol", "smoke")
    drawn = {Path(path).name for path in plotted.stdout.split()}
    files = {f"{figure}-smoke.{suffix}" for figure in ("extrapolation", "heat_map") for suffix in ("pdf", "png", "csv")}
    assert files <= drawn
    assert "plot score_vs_length" in plotted.stderr and "lra-bench bench" in plotted.stderr
    failed = forks.command(folder, "plot", "score_vs_length", "--protocol", "smoke", check=False)
    assert (failed.returncode, failed.stdout) == (2, "") and "lra-bench bench" in failed.stderr
    (listed,) = json.loads(folder.run("results", "list", "--json").stdout)
    assert f"{listed['record']}.json" == path.relative_to(folder.results / "runs").as_posix()


def test_the_kept_checkpoint_scores_the_same_again(bench, forks):
    folder, _ = bench
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    (point,) = json.loads(forks.command(folder, "evaluate", str(path), "--json").stdout)
    assert point["score"] == folder.record()["metrics"]["test"]["accuracy"]
    longer = json.loads(forks.command(folder, "evaluate", str(path), "--lengths", "50,200", "--json").stdout)
    known = {p["length"]: p["score"] for p in folder.record()["extrapolation"]["points"]}
    assert {p["length"]: p["score"] for p in longer} == {50: known[50], 200: known[200]}


def test_the_wandb_run_is_offline_and_complete(bench):
    from tests.support.wandb_log import records as read_log

    folder, done = bench
    (log,) = folder.results.glob("wandb/**/*.wandb")
    line, *others = [line for line in done.stderr.splitlines() if "W&B" in line]
    runs = log.parents[1].relative_to(folder.root)
    assert f"wandb sync {runs}/offline-run-* uploads them; tracker=none" in line and not others
    summary = {}
    for entry in read_log(log):
        if entry.WhichOneof("record_type") == "summary":
            for item in entry.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    assert summary["metrics/test/accuracy"] == folder.record()["metrics"]["test"]["accuracy"]


def test_the_destination_of_the_runs_is_printed_once_per_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def planned(status, **options):
        return SimpleNamespace(
            status=status, cell=SimpleNamespace(config=CellConfig(tracker=TrackerOptions(**options)))
        )

    offline = [planned("to run", mode="offline") for _ in range(2)]
    others = [planned("to run", name="none"), planned("done", project="finished")]
    runs = "'my results/wandb'"
    assert list(destinations([*offline, *others], tmp_path / "my results", "never")) == [
        f"W&B: runs are stored in {runs} and not uploaded; wandb sync {runs}/offline-run-* uploads them; "
        "tracker=none turns this off."
    ]


def test_a_truncated_cache_file_is_rebuilt_and_reported(bench, forks):
    folder, _ = bench
    arrow = max(folder.cache.glob("data/*/*.arrow"), key=lambda path: path.stat().st_size)
    content = arrow.read_bytes()
    arrow.write_bytes(content[: len(content) // 2])
    done = forks.command(folder, "bench", *SMOKE[:2], *TINY, "tracker=none", "seed=7")
    assert "rebuilding" in done.stderr
    assert arrow.read_bytes() == content


def test_lists_of_values_expand_to_cells_with_separate_records(tmp_path, forks):
    folder = Folder(tmp_path)
    command = ["bench", "model=bag_of_tokens,transformer", "seed=0,1", *TINY, "tracker=none", "train.steps=4"]
    planned = forks.command(folder, *command, "--dry-run").stdout
    assert planned.count("to run") == 4
    forks.command(folder, *(argument.replace("bag_of_tokens,", "") for argument in command))
    records = folder.records()
    assert [(r["key"]["model"], r["key"]["seed"]) for r in records] == [("transformer", 0), ("transformer", 1)]
    assert all(record["status"] == "ok" for record in records)
    assert {tuple(r["protocol_modified"]) for r in records} == {("train.steps",)}
    planned = forks.command(folder, *command, "--dry-run").stdout
    assert (planned.count("done"), planned.count("to run")) == (2, 2)
    assert len({record["training"]["final_weights_sha256"] for record in records}) == 2


def test_an_incompatible_cell_has_a_record_with_the_reason(tmp_path, forks):
    folder = Folder(tmp_path)
    (tmp_path / "ideas" / "model").mkdir(parents=True)
    body = 'spec = MixerSpec(family="test", paper="none", bidirectional=False, causal="exact")'
    (tmp_path / "ideas" / "ahead.py").write_text(
        f"from lra_bench.models.mixer import Mixer, MixerSpec\n\n\nclass Ahead(Mixer):\n    {body}\n"
    )
    (tmp_path / "ideas" / "model" / "ahead.yaml").write_text(
        "# @package _global_\n# Ahead.\nmodel: {label: Ahead, mixer: {_target_: ahead.Ahead}}\n"
    )
    (tmp_path / "ideas" / "task").mkdir()
    (tmp_path / "ideas" / "task" / "both.yaml").write_text("# Both.\n_target_: both.Both\n")
    (tmp_path / "ideas" / "both.py").write_text(
        "import dataclasses\n\nfrom lra_bench.tasks.listops.task import ListOps\n\n\n"
        "class Both(ListOps):\n    def __init__(self, **options):\n        super().__init__(**options)\n"
        "        self.spec = dataclasses.replace(self.spec, direction='bidirectional')\n"
    )
    command = ["bench", "--config-dir", "ideas", "task=both", "model=ahead", "protocol=smoke", "tracker=none"]
    assert "incompatible" in forks.command(folder, *command, "--dry-run").stdout
    done = forks.command(folder, *command)
    record = folder.record()
    assert record["status"] == "incompatible"
    assert "no bidirectional form" in record["reason"]
    assert record["reason"] in done.stdout


def test_a_task_may_define_its_own_score(tmp_path, forks):
    folder = Folder(tmp_path)
    (tmp_path / "ideas" / "task").mkdir(parents=True)
    (tmp_path / "ideas" / "task" / "judged.yaml").write_text("# Judged.\n_target_: judged.Judged\n")
    (tmp_path / "ideas" / "judged.py").write_text(
        "from lra_bench.contracts import TaskScore\nfrom lra_bench.tasks.listops.task import ListOps\n\n\n"
        "class Judged(ListOps):\n"
        "    def score(self, model, *, length=None, variant=None, seed=0, batch_size=32):\n"
        "        assert not model.training\n"
        "        return TaskScore(0.625 if length is None else 0.25, 16, {'judge': {'first': 0.5}})\n"
    )
    sizes = "task.rows={train: 64, validation: 16, test: 16}"
    forks.command(
        folder,
        *("bench", "--config-dir", "ideas", *TINY[:1], "task=judged", *TINY[2:], "model=bag_of_tokens", "tracker=none"),
        *("task.window=[20,100]", "task.extrapolation_rows=16", sizes),
    )
    record = folder.record()
    test, (part,) = record["metrics"]["test"], record["slices"]
    assert (test["accuracy"], test["n"]) == (0.625, 16) and test["low"] < 0.625 < test["high"]
    assert record["metrics"]["test_targets"]["accuracy"] in np.arange(17) / 16
    assert (part["slicing"], part["label"], part["score"]) == ("judge", "first", 0.5)
    points = {point["ratio"]: point for point in record["extrapolation"]["points"] if point["status"] == "ok"}
    own = points.pop(1.0)
    assert own["score"] == 0.625 and "parts" not in own
    assert len(points) >= 2 and all(point["score"] == 0.25 for point in points.values())
    assert all(point["parts"] == {"judge": {"first": 0.5}} for point in points.values())
    assert forks.command(folder, "show", "last").stdout.count(", first 0.5000\n") == len(points)


def test_a_record_of_an_older_version_is_reported_as_stale(tmp_path, forks):
    folder = Folder(tmp_path)
    command = ["bench", "model=bag_of_tokens", *TINY, "tracker=none", "train.steps=4"]
    forks.command(folder, *command)
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    record = json.loads(path.read_text())
    record["code"]["version"] = "0.0.1"
    path.write_text(json.dumps(record))
    planned = forks.command(folder, *command, "--dry-run").stdout
    assert "stale" in planned
    assert "0.0.1" in planned


def test_a_cell_that_diverges_has_a_record_and_the_next_cell_runs(tmp_path, forks):
    folder = Folder(tmp_path)
    done = forks.command(
        folder,
        "bench",
        "model=bag_of_tokens",
        "train.lr=1e30,1e-3",
        "train.clip=null",
        *TINY,
        "tracker=none",
        check=False,
    )
    statuses = sorted(record["status"] for record in folder.records())
    assert statuses == ["diverged", "ok"], done.stderr
    assert done.returncode == 1
    assert any("step" in record["reason"] for record in folder.records())

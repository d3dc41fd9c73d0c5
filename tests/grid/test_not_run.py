"""Cells without data, with an unreadable record or with a refused option are not run, the others are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from lra_bench.contracts import CellJob, Task, Unwritable, UserError
from lra_bench.grid.execute import execute, must_run, not_run, partition
from lra_bench.grid.plan import plan
from lra_bench.grid.profiles import comparison_plans
from lra_bench.grid.slurm import Slurm
from lra_bench.grid.status import NO_DATA, REFUSED, RERUN, UNREADABLE
from lra_bench.records import store
from lra_bench.tasks.retrieval import Retrieval
from tests.support.command import TINY, Folder
from tests.support.malformed import command

QUICK = [text for text in TINY if not text.startswith("task=")] + [
    "tracker=none", "train.steps=2", "measure.extrapolation_ratios=[1]",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache and no folder of official data, so that the task ``retrieval`` has none."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)


def test_only_the_cells_of_the_task_without_data_have_no_data(tmp_path: Path) -> None:
    planned = plan([*QUICK, "task=copy,retrieval,needle", "model=local,performer", "seed=0,1"], tmp_path)
    statuses = {(each.cell.key.task, each.status) for each in planned}
    assert statuses == {("copy", "to run"), ("needle", "to run"), ("retrieval", NO_DATA)} and len(planned) == 12
    for each in not_run(planned):
        assert each.reason.startswith("task.source: retrieval needs new_aan_pairs")
        assert each.record is None and each.cell.key.hash == "unknown"
        assert not any(must_run(each, rerun) for rerun in RERUN)


def test_variants_of_a_task_without_data_are_separate_cells_and_duplicates_are_not(tmp_path: Path) -> None:
    planned = plan([*QUICK, "task=copy,retrieval", "model=performer", "train.lr=0.1,0.2,0.1", "seed=0,0"], tmp_path)
    assert [each.cell.config.train.lr for each in not_run(planned)] == [0.1, 0.2] and len(planned) == 4


@pytest.mark.slow
def test_a_single_task_without_data_is_an_error(tmp_path: Path) -> None:
    for task in ("task=retrieval", "task=retrieval,retrieval"):
        with pytest.raises(UserError, match=r"^task\.source: retrieval needs"):
            plan([*QUICK, task, "model=local,performer"], tmp_path)
    code, errors = command("bench", *QUICK, "task=retrieval", "model=local", "--results", tmp_path / "results")
    assert code == 2 and "lra-bench: task.source: retrieval needs" in errors
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_other_errors_of_a_task_still_end_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="wrong_option"):
        plan([*QUICK, "task=copy,retrieval", "model=local", "task.wrong_option=1"], tmp_path)

    def full(self: Task) -> str:
        raise Unwritable("LRA_BENCH_CACHE: no space left")

    monkeypatch.setattr(Retrieval, "fingerprint", full)
    with pytest.raises(Unwritable):
        plan([*QUICK, "task=copy,retrieval", "model=local"], tmp_path)


def test_cells_without_data_are_neither_run_nor_submitted(tmp_path: Path) -> None:
    planned = plan([*QUICK, "task=retrieval,copy", "model=local", "launcher=slurm"], tmp_path / "results")
    assert [each.cell.key.task for each, _ in partition(planned, tmp_path / "results", "all")] == ["copy"]
    absent = not_run(planned)
    assert list(execute(absent, tmp_path / "results")) == [(absent[0], None, 2)]
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.slow
def test_the_other_cells_are_submitted_and_the_exit_code_is_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[str] = []

    def submit(self: Slurm, jobs: Sequence[CellJob], logs: Path) -> Iterator[Mapping[CellJob, str]]:
        submitted.extend(job.planned.cell.key.task for job in jobs)
        yield dict.fromkeys(jobs, "12_0")

    monkeypatch.setattr(Slurm, "submit", submit)
    cells = ("task=retrieval,copy", "model=local,performer", "launcher=slurm")
    code, errors = command("bench", *QUICK, *cells, "--results", tmp_path / "results")
    assert (code, submitted) == (2, ["copy", "copy"])
    assert "retrieval: 2 cells are not run" in errors and "2 cells submitted" in errors


@pytest.mark.slow
def test_a_dry_run_shows_the_reason(tmp_path: Path) -> None:
    done = Folder(tmp_path).run("bench", "task=lra", "model=performer", "protocol=smoke", "--dry-run")
    assert done.stdout.count("to run") == 5 and done.stdout.count(NO_DATA) == 1
    assert "task.source: retrieval needs" in done.stdout.partition(NO_DATA)[2]
    assert "5 cells to run" in done.stderr


@pytest.mark.slow
def test_the_other_cells_run_and_the_exit_code_is_2(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    done = folder.run("bench", *QUICK, "task=retrieval,copy", "model=local", check=False)
    assert done.returncode == 2
    assert [(record["key"]["task"], record["status"]) for record in folder.records()] == [("copy", "ok")]
    *lines, last = done.stderr.splitlines()  # on a slow machine, progress precedes the messages
    [reported] = [line for line in lines if line.startswith("retrieval:")]
    assert reported.startswith("retrieval: 1 cell is not run, because there is no data; task.source: retrieval needs")
    assert last == "1 of 2 cells were not run, see the messages at the start."


@pytest.mark.slow
def test_a_profile_leaves_out_the_task_without_data(tmp_path: Path) -> None:
    found, absent = comparison_plans([*QUICK, "task=retrieval,copy", "model=local,performer"], tmp_path)
    assert [each.spec.name for each in found] == ["copy"]
    assert {each.cell.key.task for each in absent} == {"retrieval"} and len(absent) == 2


def test_an_unreadable_record_is_named_and_the_other_cells_run(tmp_path: Path) -> None:
    options = [*QUICK, "task=copy", "model=local"]
    (first, _) = plan([*options, "seed=0,1"], tmp_path)
    path = tmp_path / store.RUNS / first.cell.key.file("json")
    path.parent.mkdir(parents=True)
    path.write_text('{"status": "ok"}')
    planned = plan([*options, "seed=0,1"], tmp_path)
    assert [each.status for each in planned] == [UNREADABLE, "to run"]
    assert str(path) in planned[0].reason and "move it away" in planned[0].reason
    assert not_run(planned) == planned[:1]
    assert [each.cell.key.seed for each, _ in partition(planned, tmp_path, "all")] == [1]
    with pytest.raises(UserError, match="move it away"):
        plan([*options, "seed=0"], tmp_path)
    assert path.read_text() == '{"status": "ok"}'


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.mixer.features=0", "model.mixer.features=0: must be at least 1"),
        ("model.mixer.features=64.5", "model.mixer: Performer cannot be built"),
        ("backbone.heads=3", "backbone.heads=3: does not divide"),
        ("train.length_warmup=[[4096,1]]", "train.length_warmup: 4,096 tokens are not below the training length"),
    ],
)
def test_an_option_that_a_constructor_or_the_task_refuses_is_refused_in_planning(
    option: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        plan([*QUICK, "task=copy", "model=performer", option], tmp_path)


def test_a_length_warmup_that_one_of_two_lengths_refuses_leaves_the_other_cell(tmp_path: Path) -> None:
    options = [*QUICK, "task=copy", "model=performer", "task.length=32,128", "train.length_warmup=[[64,1]]"]
    assert [each.status for each in plan(options, tmp_path)] == [REFUSED, "to run"]


def test_a_position_that_one_of_two_models_refuses_leaves_the_other_cell(tmp_path: Path) -> None:
    planned = plan([*QUICK, "task=listops", "model=fnet,transformer", "position=rope"], tmp_path)
    assert [each.status for each in planned] == [REFUSED, "to run"]
    assert planned[0].reason.startswith("position=rope: FNet does not support")


def test_two_measurements_of_one_cell_are_refused(tmp_path: Path) -> None:
    options = [text for text in QUICK if "speed_lengths" not in text]
    with pytest.raises(UserError, match=r"speed_lengths=\[128\] and .*: are measurements of the same cell"):
        plan([*options, "task=copy", "model=local", "measure.speed_lengths=[128],[256]"], tmp_path)

"""Groups of tasks: their files, and their names in place of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra_bench.cli.data import prepare
from lra_bench.cli.options import complete
from lra_bench.config.groups import option_files
from lra_bench.config.listing import describe, options
from lra_bench.config.task_groups import FOLDER, board_of, expand_tasks, group_names, on_one_board, task_group
from lra_bench.contracts import UserError
from lra_bench.grid.expand import expand
from tests.support.malformed import command

GROUPS = sorted(option_files(FOLDER))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder of configuration with a group ``own``, whose file a test may replace."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "own.yaml").write_text("# Own\ntasks: [recall, text]\n")
    return tmp_path


def test_the_groups_of_the_project() -> None:
    assert group_names() == GROUPS == ["abilities", "decisions", "generation", "lra", "mad", "zoology"]
    assert [name for name in GROUPS if task_group(name).apart] == ["decisions", "generation"]
    assert task_group("lra").tasks == ("listops", "text", "retrieval", "image", "pathfinder", "pathfinder128")


@pytest.mark.parametrize("name", GROUPS)
def test_every_task_of_a_group_has_a_file(name: str) -> None:
    group, tasks = task_group(name), option_files("task")
    assert [task for task in group.tasks if task not in tasks] == []
    assert len(set(group.tasks)) == len(group.tasks)
    assert set(group.measured_at) <= set(group.tasks), "measured_at names a task outside of the group"
    assert name not in tasks and describe(option_files(FOLDER)[name])


def test_tasks_with_a_board_of_their_own_are_averaged_with_each_other_only() -> None:
    assert [board_of(task) for task in ("key_to_door", "recall", "mine")] == ["decisions", "", ""]
    assert on_one_board(["text", "key_to_door", "mine v2"]) == ["text", "mine v2"]
    for labels in (["key_to_door v2", "delayed_recall"], ["text", "recall"], []):
        assert on_one_board(labels) == labels


def test_a_group_expands_to_its_tasks_without_duplicates(own: Path) -> None:
    lra = list(task_group("lra").tasks)
    assert expand_tasks(["text", "lra", "copy", "own"], own) == ["text", "listops", *lra[2:], "copy", "recall"]
    assert expand_tasks(["ALL"], own) == [task for task in option_files("task") if task not in ("csv", "hub")]
    assert expand_tasks(["nothing_known"], own) == ["nothing_known"]


def test_overrides_and_grids_accept_groups(own: Path) -> None:
    assert expand(["task=own", "seed=0,1"], own) == [
        [f"task={task}", f"seed={seed}"] for task in ("recall", "text") for seed in (0, 1)
    ]
    assert expand(["task=own,copy"], own) == [["task=recall"], ["task=text"], ["task=copy"]]
    (own / "grid").mkdir()
    (own / "grid" / "study.yaml").write_text("parts: [{task: own, model: local}, {task: [own, needle]}]\n")
    tasks = [cell[0] for cell in expand(["grid=study"], own)]
    assert tasks == [*("task=recall", "task=text"), *("task=recall", "task=text", "task=needle")]


def test_a_task_precedes_a_group_of_its_name(own: Path) -> None:
    (own / FOLDER / "copy.yaml").write_text("tasks: [text]\n")
    assert expand_tasks(["copy"], own) == ["copy"] and "copy" not in group_names(own)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tasks: [recall, txt]\n", "task=own: the group contains txt, which is not a task; did you mean text"),
        ("tasks: recall\n", r"task=own: .*own\.yaml has no tasks"),
        ("tasks: []\n", r"task=own: .*own\.yaml has no tasks"),
        ("- recall\n", r"task=own: .*own\.yaml has no tasks"),
        ("tasks: [recall]\nmeasured_at: {recall: far}\n", "measured_at must be a mapping from tasks to positive"),
        ("tasks: [", r"task=own: a configuration file cannot be read .*own\.yaml"),
    ],
)
def test_a_wrong_file_is_named(own: Path, text: str, words: str) -> None:
    (own / FOLDER / "own.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        expand(["task=own"], own)


def test_commands_list_and_suggest_groups() -> None:
    listed = {row["name"]: row for row in options("groups")}
    assert list(listed) == GROUPS and options("task_groups") == options("group") == options("groups")
    assert listed["lra"]["tasks"] == list(task_group("lra").tasks)
    assert all(task in listed["lra"]["description"] for task in listed["lra"]["tasks"])
    assert "task=abilities" in complete("task=abi") and "model=abilities" not in complete("model=abi")
    code, errors = command("bench", "task=abilitis", "model=local", "--dry-run")
    assert code == 2 and "did you mean abilities?" in errors
    code, errors = command("bench", "abilities", "local", "--dry-run")
    assert code == 2 and "write task=abilities model=local" in errors


@pytest.mark.slow
def test_data_of_a_group_is_prepared(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    (own / FOLDER / "own.yaml").write_text("tasks: [recall, copy]\n")
    prepare(["own"], protocol="smoke", config_dir=own)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["recall", "copy"]
    with pytest.raises(UserError, match=r"--source: applies to one task, 2 are named \(recall copy\)"):
        prepare(["task=own"], protocol="smoke", config_dir=own, source="here")

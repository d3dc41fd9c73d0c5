"""Records selected by a group of tasks, for tables, figures and comparisons."""

import pytest

from lra_bench.config.task_groups import task_group
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.tables import comparison
from lra_bench.tables.naming import explain_hidden, select
from tests.support.malformed import command
from tests.support.record_factory import make_record

TASKS = ("copy", "listops", "recall", "text", "mine")


def records(**more):
    return [make_record(model, task, **more) for model in ("local", "performer") for task in TASKS]


def test_a_group_selects_the_records_of_its_tasks() -> None:
    for name, tasks in (("lra", {"listops", "text"}), ("abilities", {"copy", "recall"}), ("ALL", set(TASKS))):
        assert {record.key.task for record in select(records(), name)} == tasks
    assert {record.key.task for record in select(records(), "mine")} == {"mine"}


def test_a_group_without_records_is_an_error_and_a_task_of_its_name_precedes_it() -> None:
    made = [record for record in records() if record.key.task in task_group("abilities").tasks]
    with pytest.raises(UserError, match=r"^--tasks lra: no record of that task \(known: copy, recall\)$"):
        select(made, "lra")
    assert select([], "lra") == []
    own = make_record("local", "lra")
    assert select([*records(), own], "lra") == [own]


def test_hidden_records_of_a_group_are_reported() -> None:
    assert explain_hidden(records(protocol="smoke"), "lra").startswith("4 records of protocol smoke are hidden")
    assert explain_hidden(records(), "lra") == ""


def test_variants_are_compared_on_the_tasks_of_a_group() -> None:
    *_, found = comparison.compare(records(), "local", "performer", "abilities")
    assert {each.task for each in found} == {"copy", "recall"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("arguments", [("leaderboard",), ("plot", "heat_map"), ("compare", "local", "performer")])
def test_commands_accept_a_group(arguments, tmp_path) -> None:
    for record in records():
        store.write(record, tmp_path)
    chosen = ("--results", tmp_path, "--reference", "none", "--task")
    code, errors = command(*arguments, *chosen, "lra")
    assert code == 0, errors
    code, errors = command(*arguments, *chosen, "lrs")
    assert code == 2 and "--tasks lrs: no record of that task" in errors

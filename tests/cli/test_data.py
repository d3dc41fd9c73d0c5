"""The commands of ``lra-bench data``: accepted tasks, output, and independent failure of each task."""

import json

import pytest

from lra_bench.cli import data
from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from tests.support.command import Folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache, with two tasks: one that can be generated and one whose source files do not exist."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    (tmp_path / "mine" / "task").mkdir(parents=True)
    (tmp_path / "mine" / "task" / "lacking.yaml").write_text(
        "_target_: lra_bench.tasks.listops.ListOps\nsource: official\nrows: {train: 1}\n"
    )
    return Cache()


def run(command, *arguments, cache, **options):
    return getattr(data, command)(
        list(arguments), config_dir=cache.root.parent / "mine", **({"protocol": "smoke"} | options)
    )


def names(command, *arguments, cache, **options):
    return getattr(data, command)(list(arguments), config_dir=cache.root.parent / "mine", **options)


def test_a_prepared_task_is_not_prepared_again(cache, capsys):
    run("prepare", "listops", cache=cache)
    assert capsys.readouterr().out == "listops: 400 train, 64 validation, 64 test rows\n"
    files = {path: path.stat().st_mtime_ns for path in cache.root.rglob("*.arrow")}
    run("prepare", "listops", cache=cache)
    assert {path: path.stat().st_mtime_ns for path in cache.root.rglob("*.arrow")} == files
    assert len(cache.entries()) == 3


@pytest.mark.slow
def test_a_task_must_be_named_and_the_failure_of_one_does_not_stop_the_others(cache, capsys):
    with pytest.raises(UserError, match=r"^data prepare: needs a task; name one, such as task=listops, or task=ALL "):
        run("prepare", cache=cache)
    with pytest.raises(UserError, match=r"^lacking: failed, see the messages above; 1 of 2 done$"):
        run("prepare", "listops", "lacking", cache=cache)
    printed = capsys.readouterr()
    assert printed.out == "listops: 400 train, 64 validation, 64 test rows\n"
    assert printed.err.splitlines()[-1].startswith("lacking: task.source: listops needs basic_train.tsv")
    with pytest.raises(UserError, match=r"^task.source: listops needs"):
        run("prepare", "lacking", cache=cache)


@pytest.mark.slow
def test_overrides_and_sources_need_a_named_task(cache, tmp_path, capsys):
    run("prepare", "task=listops", "task.rows.train=40", "task.seed=5", cache=cache)
    assert capsys.readouterr().out.startswith("listops: 40 train")
    for arguments, source in ((["task.seed=5"], None), ([], "here")):
        with pytest.raises(UserError, match=r"^(task\.seed=5|--source): needs a task; name one, such as task=listops"):
            run("prepare", *arguments, cache=cache, source=source)
    with pytest.raises(UserError, match=r"--source: applies to one task, 2 are named \(listops lacking\)"):
        run("prepare", "listops,lacking", cache=cache, source="here")
    with pytest.raises(UserError, match=r"task.source=.*: does not exist"):
        run("prepare", "listops", cache=cache, source=str(tmp_path / "here"))


def test_list_and_path(cache, capsys):
    run("prepare", "listops", cache=cache)
    (cache.root / "raw" / "listops").mkdir(parents=True)
    capsys.readouterr()
    names("list_entries", "listops", cache=cache, as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == ["listops-test", "listops-train", "listops-validation"]
    names("list_entries", "lacking", cache=cache, as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    names("list_entries", cache=cache)
    table = capsys.readouterr().out
    assert "400" in table and "KiB" in table and listed[0]["path"] in table
    names("path", cache=cache)
    assert capsys.readouterr().out == f"{cache.root}\n"
    names("path", "listops", cache=cache)
    folders = [str(cache.root / "raw" / "listops"), *(entry["path"] for entry in listed)]
    assert capsys.readouterr().out.splitlines() == folders
    with pytest.raises(UserError, match=r"^lacking: has no data in the cache .* run lra-bench data prepare lacking"):
        names("path", "lacking", cache=cache)
    for command in ("path", "list_entries"):
        with pytest.raises(UserError, match="lisops: there is no such task; did you mean listops"):
            names(command, "lisops", cache=cache)
        with pytest.raises(UserError, match=r"task.seed=1: this command accepts only task names"):
            names(command, "task.seed=1", cache=cache)


def test_verify(cache, capsys):
    run("prepare", "listops", cache=cache)
    capsys.readouterr()
    run("verify", "listops", cache=cache)
    labels, checksums = capsys.readouterr().out.splitlines()
    assert labels == "listops: labels, ranges and duplicates are correct"
    assert checksums == "3 of 3 data sets match their checksums"
    damaged = cache.entries()[1].path
    table = next(damaged.glob("*.arrow"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with pytest.raises(UserError, match=f"^{table}: wrong checksum; remove the folder"):
        run("verify", cache=cache)
    assert capsys.readouterr().out == "2 of 3 data sets match their checksums\n"


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (26_343, "25.7 KiB"), (170_498_071, "163 MiB"), (3 << 30, "3.00 GiB")],
)
def test_sizes_are_readable(size_bytes, shown):
    assert data._readable(size_bytes) == shown


@pytest.mark.slow
def test_a_failed_task_gives_exit_code_2_after_the_other_tasks_are_prepared(tmp_path):
    folder = Folder(tmp_path)
    folder.environment.pop("LRA_BENCH_DATA", None)
    done = folder.run("data", "prepare", "listops", "nope", "--protocol", "smoke", check=False)
    assert done.returncode == 2 and done.stdout == "listops: 400 train, 64 validation, 64 test rows\n"
    first, last = done.stderr.splitlines()[-2:]  # progress of slow steps is printed before
    assert first.startswith("nope: ") and last.startswith("lra-bench: nope: failed")

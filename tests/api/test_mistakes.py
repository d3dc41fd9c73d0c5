"""Each wrong use from Python raises a UserError of one sentence that names the argument, and writes no record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import lra_bench
from lra_bench.api import Results
from lra_bench.api.checked import spelled
from lra_bench.config.loading import override
from lra_bench.records import store
from tests.support.record_factory import make_curves, make_record

Call = Callable[..., Any]


def bench(*arguments: Any, **options: Any) -> Call:
    return lambda: lra_bench.bench(*(arguments or ("local", "recall")), **{"protocol": "smoke", **options})


def check(factory: Any, **options: Any) -> Any:
    return lra_bench.check(lra_bench.wrap(factory, **options), "recall", overrides={"protocol": "smoke"})


def parity() -> Any:
    return lra_bench.load_task("parity", protocol="smoke", length=16)


ROWS = {"text": ["a", "b"] * 30, "label": [0, 1] * 30}

typed = {"__name__": "__main__", "torch": __import__("torch")}  # as in python -c: without a file of the source
exec("def typed_function(width): return torch.nn.GRU(width, width, batch_first=True)", typed)

CASES: dict[str, tuple[Call, str]] = {
    "code without a file": (
        lambda: check(typed["typed_function"]),
        "code that is given to python -c or typed into the interpreter cannot be read",
    ),
    "unknown model": (bench("perfomer", "recall"), "model=perfomer: there is no such model; did you mean performer"),
    "unknown task": (bench("local", "listop"), "task=listop: there is no such task; did you mean listops"),
    "unknown protocol": (bench(protocol="quik"), "protocol=quik: there is no such protocol; did you mean quick"),
    "unknown search": (bench(search="rate"), "search=rate: there is no such search"),
    "unknown hardware": (bench(hardware="gpu"), "hardware=gpu: there is no such hardware; write hardware=cuda"),
    "an override as a model": (
        bench("model=local", "recall"),
        "model='model=local': is not a name; write model='local'",
    ),
    "names in one text": (
        bench("local, performer", "recall"),
        "model='local, performer': is not a name; write model=['local', 'performer']",
    ),
    "no model": (bench([], "recall"), "model=[]: must be a name or a sequence of names (lra-bench list models)"),
    "None as a task": (bench("local", None), "task=None: must be a name or a sequence of names (lra-bench list tasks)"),
    "a number as a protocol": (bench(protocol=3), "protocol=3: must be a name"),
    "an empty text as a model": (bench("", "recall"), "model='': must be a name or a sequence of names"),
    "a data frame as a task": (bench("local", pd.DataFrame(ROWS)), "; make a task of a table with lra_bench.task_from"),
    "a file as a task": (
        bench("local", "own/reviews.csv"),
        "task='own/reviews.csv': is not a name; write task=lra_bench.task_from('own/reviews.csv')",
    ),
    "a truth value as a search": (bench(search=True), "(lra-bench list search)"),
    "a number as a folder": (bench(results=3), "results=3: must be a path"),
    "a file as a results folder": (bench(results=__file__), "test_mistakes.py: is a file; name a folder"),
    "no seed": (bench(seeds=0), "seeds=0: must be a number of seeds from 1 on, or a sequence of seeds, such as [0, 1]"),
    "a negative number of seeds": (bench(seeds=-1), "seeds=-1: must be a number"),
    "an empty list of seeds": (bench(seeds=[]), "seeds=[]: must be a number"),
    "a negative seed": (bench(seeds=[0, -3]), "seeds=[0, -3]: must be a number"),
    "half a seed": (bench(seeds=1.5), "seeds=1.5: must be a number"),
    "seeds as a text": (bench(seeds="0,1"), "seeds='0,1': must be a number"),
    "a truth value as seeds": (bench(seeds=True), "seeds=True: must be a number"),
    "overrides of the command line": (
        bench(overrides="train.lr=1"),
        "overrides='train.lr=1': must map options to values, such as {\"train.lr\": 3e-4}",
    ),
    "an option that is a number": (bench(overrides={3: 4}), "overrides={3: 4}: must map options to values"),
    "an option with a value": (
        bench(overrides={"train.lr=1": 1}),
        "overrides['train.lr=1']: is not the name of an option, such as train.lr",
    ),
    "an option without a name": (bench(overrides={"": 1}), "overrides['']: is not the name of an option"),
    "a list for a group": (
        bench(overrides={"train": [1]}),
        "train=[1]: is a group of options; write train.OPTION=…",
    ),
    "an unknown option": (
        bench(overrides={"train.stepz": 3}),
        "train.stepz: there is no such option; did you mean",
    ),
    "a text instead of a number": (bench(overrides={"train.steps": "many"}), "train.steps=many: must be an integer"),
    "an argument among the overrides": (
        bench(overrides={"seed": 3}),
        "overrides['seed']: is an argument of the function; write seeds=…",
    ),
    "a function as a value": (
        bench(overrides={"train.lr": max}),
        "train.lr: cannot be a builtin_function_or_method; set a number, text or list",
    ),
    "unknown rerun": (bench(rerun="maybe"), "rerun=maybe: choose never, failed, stale, all"),
    "an option of another launcher": (
        bench(overrides={"launcher": "slurm", "launcher.workers": 2}),
        "launcher.workers: Slurm has no such option",
    ),
    "no folder of configuration": (bench(config_dir="not/there"), "config_dir=not/there: there is no such folder"),
    "a refused option": (bench(overrides={"backbone.heads": 3}), "backbone.heads=3"),
    "a profile of an unknown model": (lambda: lra_bench.profile("perfomer"), "model=perfomer: there is no such model"),
    "a check of two models": (
        lambda: lra_bench.check(["local", "performer"]),
        "model=['local', 'performer'] task='listops': check examines one model for one task",
    ),
    "an unknown family": (lambda: lra_bench.list_models(family="lineer"), "family=lineer: there is no such family"),
    "an unknown layout": (lambda: lra_bench.leaderboard(layout="tall"), "layout=tall: unknown layout"),
    "a task without records": (lambda: lra_bench.leaderboard(tasks="text"), "tasks=text: no record of that task"),
    "an unknown figure": (lambda: lra_bench.plot("rank"), "plot rank: unknown figure; did you mean ranks"),
    "an unknown variant": (lambda: lra_bench.compare("local", "lstm"), "lstm"),
    "a variant compared with itself": (lambda: lra_bench.compare("local", "local"), "both are the same variant"),
    "an unknown table": (lambda: lra_bench.load_records(table="points"), "table=points: choose runs, lengths"),
    "no results folder": (lambda: lra_bench.load_records("not/there"), "results=not/there: there is no such folder"),
    "a wrong W&B project": (lambda: lra_bench.load_records(wandb="x"), "wandb=x: is not a W&B project"),
    "an unknown record": (lambda: lra_bench.load_model("nothing"), "nothing: no such record"),
    "the weights of a failed cell": (
        lambda: lra_bench.load_model("listops/performer"),
        "has status diverged, so it has no tested weights",
    ),
    "weights that are not kept": (
        lambda: lra_bench.load_model("listops/local"),
        "no kept checkpoint of this cell; measure it again with rerun=all",
    ),
    "a number as a record": (lambda: lra_bench.load_model(3), "record=int: must be a record with a file, a path"),
    "a record without a file": (
        lambda: lra_bench.load_model(make_record()),
        "record=Record: must be a record with a file",
    ),
    "lengths in a text": (
        lambda: lra_bench.evaluate("listops/local", "100,200"),
        "lengths='100,200': must be a sequence of integers, such as [1000, 2000]",
    ),
    "one knob": (
        lambda: lra_bench.evaluate("listops/local", knobs="ALL"),
        "knobs='ALL': must be a sequence of options, such as ['ALL']",
    ),
    "a length": (lambda: lra_bench.evaluate("last", 100), "lengths=100: must be a sequence of integers"),
    "a model without records": (
        lambda: lra_bench.plot(models=["perfomer"]),
        "models=perfomer: no record of that model",
    ),
    "a number as tasks": (lambda: lra_bench.leaderboard(tasks=3), "3: must be a name or a sequence of names"),
    "a number as a layout": (lambda: lra_bench.leaderboard(layout=3), "layout=3: must be a text"),
    "a number as a figure": (lambda: lra_bench.plot(3), "3: must be a name or a sequence of names"),
    "several families": (lambda: lra_bench.list_models(family=["linear"]), "family=['linear']: must be a text"),
    "None as a table": (lambda: lra_bench.load_records(table=None), "table=None: must be a text"),
    "an open quote in diff": (
        lambda: lra_bench.diff("model='local"),
        "model='local: cannot be read as overrides (No closing quotation); correct the quotes",
    ),
    "a number as the name of a task": (lambda: lra_bench.load_task(3), "name=3: must be a text"),
    "two tasks with data": (lambda: lra_bench.load_task("listops,text"), "task='listops,text': is not a name"),
    "the data of a group": (lambda: lra_bench.load_task("lra"), "task=lra: is a group of tasks; load one of listops,"),
    "no folder of a task": (
        lambda: lra_bench.load_task("parity", config_dir="not/there").spec,
        "config_dir=not/there: there is no such folder",
    ),
    "a text as an option of a task": (
        lambda: lra_bench.task_from(ROWS, max_length="long").spec,
        "task.max_length=long: must be a number",
    ),
    "a text as a length": (lambda: parity().dataset("test", "10"), "length='10': must be an integer"),
    "an unknown variant of a task": (
        lambda: parity().dataset("test", 50, "longer"),
        "variant=longer: there is no such variant; choose",
    ),
    "a table without rows": (
        lambda: lra_bench.task_from({"train": ROWS, "test": {"text": [], "label": []}}),
        "task_from: the table test has no rows; leave it out or add some",
    ),
    "an empty data frame": (lambda: lra_bench.task_from(pd.DataFrame()), "task_from: the table all has no rows"),
    "declarations in a list": (
        lambda: lra_bench.wrap(lambda width: nn.GRU(width, width), declares=["growth"]),
        "wrap: declares=['growth']: must map capabilities to values",
    ),
    "a text as a growth": (
        lambda: check(lambda width: nn.GRU(width, width, batch_first=True), declares={"growth": "two"}),
        "growth='two' in the declared capabilities: must be a number",
    ),
    "an unknown argument of the function": (
        lambda: check(lambda dim: nn.GRU(dim, dim)),
        "model.mixer: the function has the argument dim; name its arguments after the values that they receive (width,",
    ),
    "a wrong override in diff": (lambda: lra_bench.diff("model=perfomer"), "model=perfomer: there is no such model"),
    "the best of nothing": (lambda: Results([]).best, "results.best: no cell has a score; see results.frame"),
    "the best of two tasks": (
        lambda: Results([make_record(task="listops"), make_record(task="text")]).best,
        "results.best: scores of different tasks (listops, text) are not comparable; use results.frame",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with a finished and a failed record."""
    root = tmp_path_factory.mktemp("mistakes")
    store.write(make_record("local"), root, make_curves())
    store.write(make_record("performer", status="diverged"), root)
    return root


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_use_gives_one_sentence(case: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_RESULTS", str(results))
    monkeypatch.delenv("LRA_BENCH_CONFIG_DIR", raising=False)
    before = sorted(results.rglob("*.json"))
    call, words = CASES[case]
    with pytest.raises(lra_bench.UserError) as raised:
        call()
    message = str(raised.value)
    assert words in message and "\n" not in message and "--" not in message, message
    assert sorted(results.rglob("*.json")) == before


def test_options_are_spelled_as_arguments() -> None:
    assert spelled("--config-dir x: there is no such folder") == "config_dir=x: there is no such folder"
    assert spelled("--knobs: the model has none; add --lengths") == "knobs: the model has none; add lengths"
    assert spelled("Hidden rows: 3. Use --all to show them.") == "Hidden rows: 3. Use everything=True to show them."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"), (3e-4, "0.0003"), (np.float64(0.5), "0.5"), (np.int64(2), "2"), (True, "true"), (None, "null"),
        ("cosine", "cosine"), ("a b", '"a b"'), ("true", '"true"'), ("1", '"1"'), ("", '""'), (Path("a/b"), "a/b"),
        ([1, 2.0, "x y"], '[1,2.0,"x y"]'), (np.arange(2), "[0,1]"), ({"a": [None]}, "{a:[null]}"),
    ],
)  # fmt: skip
def test_a_value_is_the_same_after_it_was_written_as_an_override(value: Any, text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert override("a.b", value) == f"a.b={text}"
    parsed = OverridesParser.create().parse_override(override("a.b", value)).value()
    if not isinstance(value, list | dict | np.ndarray):  # their texts stay quoted in Hydra's own type
        assert parsed == (str(value) if isinstance(value, Path) else value)

"""The command ``lra-bench profile``: compared models, refused input, and processes after an interrupt."""

import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from lra_bench.cli import main
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.grid import status
from lra_bench.grid.profiles import comparison_plans
from lra_bench.profiling.sections import LARGEST
from tests.support.command import Folder

SMALL = ["task=listops", "protocol=smoke", "hardware=cpu", "hardware.threads=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("profile"))


def names(*overrides: str, **options: Path) -> list[list[tuple[str, str | None]]]:
    planned, _ = comparison_plans([*SMALL, *overrides], Path("results"), **options)
    return [
        [(candidate.name, candidate.attention) for candidate in comparison_plan.candidates]
        for comparison_plan in planned
    ]


BASELINES = [("transformer", None), ("transformer (math)", "math")]


@pytest.mark.slow
def test_every_comparison_contains_both_baselines_once() -> None:
    assert names("model=performer,local") == [[*BASELINES, ("performer", None), ("local", None)]]
    assert names("model=transformer,local") == [[*BASELINES, ("local", None)]]
    assert names() == [BASELINES]


@pytest.mark.slow
def test_variants_have_distinct_names_and_a_changed_transformer_is_not_a_baseline() -> None:
    assert names("model=performer", "model.mixer.features=8,16") == [
        [*BASELINES, ("performer · features=8", None), ("performer · features=16", None)]
    ]
    assert names("model=transformer", "model.mixer.score=dot") == [[*BASELINES, ("transformer · score=dot", None)]]


@pytest.mark.slow
def test_options_other_than_the_model_give_separate_comparisons() -> None:
    assert names("model=local", "position=none,rope", "seed=0,1") == [[*BASELINES, ("local", None)]] * 4
    (comparison_plan,), _ = comparison_plans([*SMALL, "model=local", "position=rope"], Path("results"))
    assert {candidate.config.position["_target_"] for candidate in comparison_plan.candidates} == {
        "lra_bench.models.positions.rope.RotaryPosition"
    }


@pytest.mark.slow
def test_models_that_do_not_support_the_task_are_listed_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(config: CellConfig, spec: TaskSpec) -> str | None:
        return "has no causal form" if "FNet" in config.model["mixer"]["_target_"] else None

    monkeypatch.setattr(status, "incompatible", refused)
    (comparison_plan,), _ = comparison_plans([*SMALL, "model=local,fnet"], Path("results"))
    assert [candidate.name for candidate in comparison_plan.candidates] == [
        "transformer",
        "transformer (math)",
        "local",
    ]
    assert comparison_plan.refused == (("fnet", "has no causal form"),)
    with pytest.raises(UserError, match="has no causal form"):
        comparison_plans([*SMALL, "model=fnet"], Path("results"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["model=perfomer"], ["perfomer", "did you mean performer"]),
        (["measure.speed_lengths=[]"], ["measure.speed_lengths=[]", "set at least one"]),
        (["measure.speed_lengths=[0,1024]"], ["measure.speed_lengths=[0,1024]", "at least 1"]),
        (["measure.speed_batches=[1,big]"], ["measure.speed_batches=[1,big]", LARGEST]),
        (["measure.memory_limit_gigabytes=-1"], ["measure.memory_limit_gigabytes=-1", "above 0"]),
        (["--output", "a_file/rows.csv"], ["--output a_file/rows.csv", "cannot be written"]),
        (["--results", "a_file"], ["--results", "a_file", "is a file; name a folder"]),
        (["performer"], ["performer: write model=performer"]),
    ],
)
def test_a_mistake_gives_one_sentence_before_the_measurement(
    folder: Folder,
    arguments: list[str],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (folder.root / "a_file").write_text("")
    monkeypatch.chdir(folder.root)
    for name, value in folder.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["lra-bench", "profile", *SMALL, *arguments])
    began = time.monotonic()
    with pytest.raises(SystemExit) as end:
        main.main()
    errors = capfd.readouterr().err
    assert end.value.code == 2, errors
    last = errors.strip().splitlines()[-1]
    assert all(word in last for word in named), last
    assert "Profile:" not in errors and time.monotonic() - began < 100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="subprocesses end with their parent only on Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_no_process_remains_after_a_profile_is_stopped(folder: Folder, number: signal.Signals) -> None:
    running = folder.start("profile", *SMALL, "model=local", "measure.speed_lengths=[1024]")
    try:
        parent = psutil.Process(running.pid)
        deadline = time.monotonic() + 120
        while len(children := timed_processes(parent)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(children) == 3, "the model and two baselines"
        time.sleep(1.0)
        parent.send_signal(number)
        output, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert "run the same command again" in output and "Traceback" not in output


def timed_processes(parent: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes of a profile that have finished their setup, so that they end with their parent."""
    return [
        child
        for child in parent.children()
        if "lra_bench.profiling.worker" in " ".join(child.cmdline())
        and Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"
    ]

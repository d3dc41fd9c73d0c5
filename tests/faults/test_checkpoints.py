"""Training resumed from damaged, half-written or wrongly dated checkpoints ends with the same weights."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lra_bench.data.digest import sha256_of_file
from lra_bench.runtime.files import ASIDE
from lra_bench.training.checkpoint import BEST, DAMAGED, LAST, NEXT, Checkpoints, State
from lra_bench.training.optimizer import Optimizer
from tests.training.test_loop import CPU, RECIPE, equal, fit, toy, weights

STEPS = 24


def interrupt(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), folder, stop_after=12, every_seconds=0, steps=STEPS, evaluate_every=3)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the folder of an uninterrupted run, its model and its result."""
    folder, model = tmp_path_factory.mktemp("whole"), toy()
    found, _ = fit(model, folder, steps=STEPS, evaluate_every=3)
    return folder, model, found


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """Return the folder of an interrupted run."""
    folder = tmp_path_factory.mktemp("cut")
    interrupt(folder)
    return folder


def truncated(folder: Path) -> None:
    content = (folder / LAST).read_bytes()
    (folder / LAST).write_bytes(content[: len(content) // 2])


def with_zeros(folder: Path) -> None:
    """Overwrite one block with zeros, as after a crash before the block was written to disk."""
    content = bytearray((folder / LAST).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 512] = bytes(512)
    (folder / LAST).write_bytes(content)


def without_best(folder: Path) -> None:
    for name in (BEST, NEXT):
        (folder / name).unlink(missing_ok=True)


def with_a_damaged_best(folder: Path) -> None:
    content = bytearray((folder / BEST).read_bytes())
    content[-1] ^= 1
    (folder / BEST).write_bytes(content)


def with_the_best_not_yet_renamed(folder: Path) -> None:
    (folder / BEST).rename(folder / NEXT)


def with_a_later_best(folder: Path) -> None:
    """Replace the best weights by later ones than those of the last checkpoint, from which training resumes."""
    Checkpoints(folder, 0).keep_best(toy(seed=7))


def with_leftovers(folder: Path) -> None:
    (folder / f".{'0' * 32}-{LAST}").write_bytes(b"half")
    (folder / f".123-{BEST}").write_bytes(b"half")


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return a function that changes the content of a checkpoint and writes it again as torch does."""

    def edit(folder: Path) -> None:
        content = torch.load(folder / LAST, weights_only=True)
        change(content)
        torch.save(content, folder / LAST)

    return edit


def with_foreign_names(content: dict[str, Any]) -> None:
    content["model"] = {f"other.{name}": tensor for name, tensor in content["model"].items()}


def with_nan(content: dict[str, Any]) -> None:
    for tensor in content["model"].values():
        tensor.mul_(float("nan") if tensor.is_floating_point() else 1)


def of_another_model(folder: Path) -> None:
    """Replace the checkpoint by an intact one of a model of another width."""
    model = torch.nn.Linear(3, 2)
    Checkpoints(folder, 0).save(State(step=3), model, Optimizer(model, RECIPE, CPU))


def of_another_cell(folder: Path) -> None:
    """Replace the checkpoint by an intact one of another cell with the same shapes."""
    model = toy(seed=7)
    Checkpoints(folder, 0, cell="another cell").save(State(step=3), model, Optimizer(model, RECIPE, CPU))


def a_folder(folder: Path) -> None:
    (folder / LAST).unlink()
    (folder / LAST).mkdir()


def a_pipe(folder: Path) -> None:
    (folder / LAST).unlink()
    os.mkfifo(folder / LAST)


def with_a_pipe_as_best(folder: Path) -> None:
    (folder / BEST).unlink()
    os.mkfifo(folder / BEST)


def with_wrong_dates(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (0, 0) if path.name == LAST else (2**32, 2**32))


@pytest.mark.parametrize(
    ("damage", "restarts"),
    [
        (truncated, True),
        (with_zeros, True),
        (without_best, True),
        (with_a_damaged_best, True),
        (edited(lambda content: content["state"].update(step=10**6)), True),
        (edited(lambda content: content["state"].pop("validations")), True),
        (edited(lambda content: content["state"].update(extra=1)), True),
        (edited(lambda content: content.pop("optimizer")), True),
        (edited(with_foreign_names), True),
        (edited(with_nan), True),
        (of_another_model, True),
        (of_another_cell, True),
        (a_folder, True),
        (a_pipe, True),
        (with_a_pipe_as_best, True),
        (with_the_best_not_yet_renamed, False),
        (with_a_later_best, False),
        (with_leftovers, False),
        (with_wrong_dates, False),
    ],
)
def test_a_run_with_a_damaged_checkpoint_gives_the_same_result(
    uninterrupted, interrupted, tmp_path, capsys, damage, restarts
):
    folder, expected, complete = uninterrupted
    shutil.copytree(interrupted, tmp_path / "cut")
    damage(tmp_path / "cut")
    model = toy(seed=3) if not restarts else toy()
    found, _ = fit(model, tmp_path / "cut", every_seconds=0, steps=STEPS, evaluate_every=3)
    assert equal(weights(model), weights(expected))
    assert found.state.curve == complete.state.curve and found.state.validations == complete.state.validations
    assert (found.state.best_step, found.state.best_value) == (complete.state.best_step, complete.state.best_value)
    assert (tmp_path / "cut" / BEST).read_bytes() == (folder / BEST).read_bytes()
    assert ("training starts again from step 0" in capsys.readouterr().err) == restarts
    left = [BEST, DAMAGED, LAST] if restarts else [BEST, LAST]
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == left
    Checkpoints(tmp_path / "cut", 0).ended(finished=True)
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [BEST]


@pytest.mark.parametrize("error", [MemoryError("no more"), OSError(5, "Input/output error")])
def test_a_read_error_does_not_remove_a_checkpoint(tmp_path, monkeypatch, error):
    interrupt(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def failing_load(*arguments, **options):
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(torch, "load", failing_load)
        fit(toy(), tmp_path, every_seconds=0, steps=STEPS, evaluate_every=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_at_any_time_the_best_weights_are_those_of_the_last_checkpoint(tmp_path, monkeypatch):
    """Check the files after every rename, which are the only states that another process can observe."""
    consistent = []
    rename = Path.replace

    def rename_and_check(self, target):
        rename(self, target)
        if (tmp_path / LAST).exists():
            state = torch.load(tmp_path / LAST, weights_only=True)["state"]
            kept = (tmp_path / BEST, tmp_path / NEXT)
            digests = {sha256_of_file(path) if path.exists() else "" for path in kept}
            consistent.append(state["best_digest"] in digests)
        return target

    monkeypatch.setattr(Path, "replace", rename_and_check)
    fit(toy(), tmp_path, every_seconds=0, steps=STEPS, evaluate_every=3, lr=0.05)
    assert len(consistent) > STEPS and all(consistent)


def test_a_new_attempt_resumes_only_from_its_own_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path / "cell", 0)
    interrupt(tmp_path / "cell")
    checkpoints.reset(2)
    assert not (tmp_path / "cell" / LAST).exists(), "the checkpoint of the first attempt must be removed"
    interrupt(tmp_path / "cell")
    checkpoints.reset(2)
    assert (tmp_path / "cell" / LAST).exists(), "the checkpoint of the second attempt must be kept"
    checkpoints.ended(finished=True)
    assert [path.name for path in (tmp_path / "cell").iterdir()] == [BEST]
    checkpoints.reset(3)
    assert not (tmp_path / "cell" / BEST).exists()


def test_only_names_of_temporary_files_match_their_pattern():
    assert not ASIDE.fullmatch(LAST) and not ASIDE.fullmatch(f".{LAST}.lock")
    assert ASIDE.fullmatch(f".{'a' * 32}-{LAST}")[1] == LAST

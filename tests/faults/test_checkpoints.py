"""Checkpoints that are damaged, left half-written, or of another time: training ends in the same weights."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from lra_bench.runtime.files import ASIDE
from lra_bench.training.checkpoint import BEST, LAST, NEXT, Checkpoints, checksum
from tests.training.test_loop import equal, fit, toy, weights

STEPS = 24


def cut_short(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), folder, stop_after=12, every_seconds=0, steps=STEPS, evaluate_every=3)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run that was left alone, its model, and what it found."""
    folder, model = tmp_path_factory.mktemp("whole"), toy()
    found, _ = fit(model, folder, steps=STEPS, evaluate_every=3)
    return folder, model, found


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """The folder that a run left which was cut short."""
    folder = tmp_path_factory.mktemp("cut")
    cut_short(folder)
    return folder


def truncated(folder: Path) -> None:
    content = (folder / LAST).read_bytes()
    (folder / LAST).write_bytes(content[: len(content) // 2])


def with_zeros(folder: Path) -> None:
    """As a file system leaves a file whose blocks never reached the disk."""
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
    """Evaluated after the last checkpoint, which is what resuming begins from."""
    Checkpoints(folder, 0).keep_best(toy(seed=7))


def with_leftovers(folder: Path) -> None:
    (folder / f".{'0' * 32}-{LAST}").write_bytes(b"half")
    (folder / f".123-{BEST}").write_bytes(b"half")


def of_another_time(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (0, 0) if path.name == LAST else (2**32, 2**32))


@pytest.mark.parametrize(
    ("harm", "begins_anew"),
    [
        (truncated, True),
        (with_zeros, True),
        (without_best, True),
        (with_a_damaged_best, True),
        (with_the_best_not_yet_renamed, False),
        (with_a_later_best, False),
        (with_leftovers, False),
        (of_another_time, False),
    ],
)
def test_whatever_became_of_a_checkpoint_the_run_ends_the_same(
    uninterrupted, interrupted, tmp_path, capsys, harm, begins_anew
):
    folder, expected, whole = uninterrupted
    shutil.copytree(interrupted, tmp_path / "cut")
    harm(tmp_path / "cut")
    model = toy(seed=3) if not begins_anew else toy()
    found, _ = fit(model, tmp_path / "cut", every_seconds=0, steps=STEPS, evaluate_every=3)
    assert equal(weights(model), weights(expected))
    assert found.state.curve == whole.state.curve and found.state.validations == whole.state.validations
    assert (found.state.best_step, found.state.best_score) == (whole.state.best_step, whole.state.best_score)
    assert (tmp_path / "cut" / BEST).read_bytes() == (folder / BEST).read_bytes()
    assert ("training starts again from step 0" in capsys.readouterr().err) == begins_anew
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [BEST, LAST]


@pytest.mark.parametrize("error", [MemoryError("no more"), OSError(5, "Input/output error")])
def test_what_hinders_reading_costs_no_checkpoint(tmp_path, monkeypatch, error):
    cut_short(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())

    def hindered(*arguments, **options):
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(torch, "load", hindered)
        fit(toy(), tmp_path, every_seconds=0, steps=STEPS, evaluate_every=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_at_any_time_the_best_weights_are_those_of_the_last_checkpoint(tmp_path, monkeypatch):
    """Looked at after every rename, which is all that another process can see."""
    seen = []
    rename = Path.replace

    def then_look(self, target):
        rename(self, target)
        if (tmp_path / LAST).exists():
            state = torch.load(tmp_path / LAST, weights_only=True)["state"]
            there = {checksum(tmp_path / name) for name in (BEST, NEXT)}
            seen.append(state["best_digest"] in there)
        return target

    monkeypatch.setattr(Path, "replace", then_look)
    fit(toy(), tmp_path, every_seconds=0, steps=STEPS, evaluate_every=3, lr=0.05)
    assert len(seen) > STEPS and all(seen)


def test_a_cell_that_begins_anew_goes_on_where_it_was_cut_short(tmp_path):
    checkpoints = Checkpoints(tmp_path / "cell", 0)
    cut_short(tmp_path / "cell")
    checkpoints.reset(2)
    assert not (tmp_path / "cell" / LAST).exists(), "what the first attempt left is dropped"
    cut_short(tmp_path / "cell")
    checkpoints.reset(2)
    assert (tmp_path / "cell" / LAST).exists(), "what the second left is not"
    checkpoints.ended(finished=True)
    assert [path.name for path in (tmp_path / "cell").iterdir()] == [BEST]
    checkpoints.reset(3)
    assert not (tmp_path / "cell" / BEST).exists()


def test_a_stray_name_is_no_leftover():
    assert not ASIDE.fullmatch(LAST) and not ASIDE.fullmatch(f".{LAST}.lock")
    assert ASIDE.fullmatch(f".{'a' * 32}-{LAST}")[1] == LAST

"""Random sequences of commands by two users, kills and full disks: no finished record is lost or changed.

Set $LRA_BENCH_INTERLEAVINGS for another number of sequences, and $LRA_BENCH_FAULT_SEED to choose them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.faults.outcome import assert_sound, left_behind
from tests.faults.test_disks import small_disk
from tests.support.command import TINY, Folder
from tests.support.forks import COLLEAGUE, Forks

SEQUENCES = int(os.environ.get("LRA_BENCH_INTERLEAVINGS") or 60)
STEPS = 8
OPTIONS = (
    *TINY,
    *("tracker=none", "train.steps=3", "train.evaluate_every=2", "hardware.checkpoint_seconds=0"),
    *("measure.extrapolation_ratios=[]", "task.rows.train=64", "task.rows.validation=32", "task.rows.test=32"),
)
OWN = """
from lra_bench.models.bag_of_tokens import BagOfTokens

class Own(BagOfTokens):
    version = {version}
"""
OWN_MODEL = "# @package _global_\n# Own model.\nmodel: {label: Own, network: {_target_: own_code.Own}}\n"
EXIT_CODES = (0, 1, 2, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)

models = st.sampled_from(["bag_of_tokens", "own"])
seeds = st.integers(0, 1)
users = st.booleans()


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a finished record that no command may change."""
    training = {name: record["training"][name] for name in ("steps", "final_weights_sha256", "best_weights_sha256")}
    return {**{name: record[name] for name in ("status", "key", "config", "metrics", "floors")}, "training": training}


def shared_folder(place: Path) -> Folder:
    """Create a folder that is writable for both users."""
    place.mkdir()
    os.chown(place, -1, COLLEAGUE["group"])
    place.chmod(0o2775)
    return Folder(place)


class Interleaving(RuleBasedStateMachine):
    """Commands of two users of a group over one results folder and one cache.

    ``finished`` contains what must remain of each finished record.
    """

    forks: Forks
    disk: Path
    other: Folder
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.place = self.disk / f"sequence{next(self.numbers)}"
        self.folder = shared_folder(self.place)
        shutil.copytree(self.other.cache, self.folder.cache)
        self.finished: dict[Path, dict[str, Any]] = {}
        self.version = 0
        (self.place / "own" / "model").mkdir(parents=True)
        (self.place / "own" / "model" / "own.yaml").write_text(OWN_MODEL)
        self.edit()

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    def call(self, colleague: bool, *arguments: str, own: bool = True) -> tuple[int, str]:
        """Run a command; return its exit code and output. No exit code but those documented, and no traceback."""
        model = ("--config-dir", "own") if own else ()
        done = self.forks.command(self.folder, *arguments, *model, check=False, colleague=colleague)
        output = done.stdout + done.stderr
        assert done.returncode in EXIT_CODES and "Traceback" not in output, output
        return done.returncode, output

    def bench(self, model: str, number: int) -> tuple[str, ...]:
        return "bench", *OPTIONS, f"model={model}", f"seed={number}"

    @rule()
    def edit(self) -> None:
        """Change the source of the user's model, so that its cells get another key."""
        self.version += 1
        (self.place / "own" / "own_code.py").write_text(OWN.format(version=self.version))

    @rule(colleague=users, model=models, number=seeds, again=st.booleans())
    def measure(self, colleague: bool, model: str, number: int, again: bool) -> None:
        code, output = self.call(colleague, *self.bench(model, number), *(["--rerun", "all"] if again else []))
        assert code == 0, output

    @rule(
        colleague=users,
        model=models,
        number=seeds,
        seconds=st.floats(0, 1.5),
        sent=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
        together=st.booleans(),
        again=st.booleans(),
    )
    def stop(
        self, colleague: bool, model: str, number: int, seconds: float, sent: int, together: bool, again: bool
    ) -> None:
        """Send a signal to the command, or to it and its cell, after some time."""
        arguments = *self.bench(model, number), *(["--rerun", "all"] if again else []), "--config-dir", "own"
        running = self.forks.start_command(self.folder, *arguments, colleague=colleague)
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            if running.poll() is None:
                (os.killpg if together else os.kill)(running.pid, sent)
        output, _ = running.communicate()
        assert running.returncode in EXIT_CODES and "Traceback" not in output, output

    @rule(colleague=users, options=st.sampled_from([(), ("--yes",), ("--keep-best", "--yes"), ("--data", "--yes")]))
    def clean(self, colleague: bool, options: tuple[str, ...]) -> None:
        code, output = self.call(colleague, "clean", *options, own=False)
        assert code == 0, output

    @rule(colleague=users)
    def import_records(self, colleague: bool) -> None:
        code, output = self.call(colleague, "results", "import", str(self.other.results), own=False)
        assert code == 0, output

    @rule(colleague=users, number=st.integers(0, 7))
    def evaluate(self, colleague: bool, number: int) -> None:
        """Test a finished record again. It is refused if its weights were removed or its model was edited.

        ``number`` selects the record. It is not drawn from ``finished``, whose content depends on timing.
        """
        if self.finished:
            path = sorted(self.finished)[number % len(self.finished)]
            code, output = self.call(colleague, "evaluate", str(path), "--lengths", "50")
            assert code == 0 or "lra-bench:" in output, output

    @rule(colleague=users)
    def read(self, colleague: bool) -> None:
        """Check that the table contains as many seeds as there are finished records."""
        arguments = ("--layout", "long", "--all", "--protocol", "smoke", "--json")
        code, output = self.call(colleague, "leaderboard", *arguments, own=False)
        if self.finished:
            assert code == 0, output
            rows = json.loads(output[output.index("[") : output.rindex("]") + 1])
            assert sum(row["seeds"] or 0 for row in rows) == len(self.finished)

    @rule(colleague=users, model=models, number=seeds, kibibytes=st.integers(0, 400))
    def measure_on_a_full_disk(self, colleague: bool, model: str, number: int, kibibytes: int) -> None:
        free = shutil.disk_usage(self.disk).free
        filler = self.disk / "filler"
        try:
            with filler.open("wb") as file:
                file.write(bytes(max(0, free - 1024 * kibibytes)))
            self.call(colleague, *self.bench(model, number))
        finally:
            filler.unlink()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert_sound(self.folder)
        assert not left_behind(self.folder)
        found = {path: json.loads(path.read_text()) for path in self.folder.results.glob("runs/*/*/*/*/seed*.json")}
        for path, expected in self.finished.items():
            assert path in found, f"{path} is lost"
            assert kept(found[path]) == expected, f"{path} has changed"
        self.finished = {path: kept(record) for path, record in found.items() if record["status"] == "ok"}


@pytest.mark.slow
def test_no_finished_record_is_lost(forks: Forks) -> None:
    with TemporaryDirectory() as place, small_disk(Path(place) / "disk", 64 * 1024) as disk:
        Path(place).chmod(0o755)  # the folders of pytest are closed to other users
        other = shared_folder(Path(place) / "other")
        forks.command(other, "bench", *OPTIONS, "model=bag_of_tokens", "seed=1,2")
        shutil.rmtree(other.cache / "checkpoints")
        bound = {"forks": forks, "disk": disk, "other": other}
        number = int(os.environ.get("LRA_BENCH_FAULT_SEED") or 1)
        chosen = settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        run_state_machine_as_test(seed(number)(type("Bound", (Interleaving,), bound)), settings=chosen)

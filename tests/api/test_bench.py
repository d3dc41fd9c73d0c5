"""``bench`` plans the cells of the command, and its results are a sequence of records that a notebook shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import lra_bench
from lra_bench.api import Results
from lra_bench.api.arguments import cells_of, seeds_in
from lra_bench.grid.plan import plan
from lra_bench.tables.query import tidy
from tests.faults.outcome import wait_for_step
from tests.support.command import Folder, alive
from tests.support.record_factory import make_record

FAST = {"train.steps": 2, "train.evaluate_every": 2, "measure.speed_lengths": [], "tracker": "none"}
FAST |= {"measure.flops": False, "measure.extrapolation_ratios": [1], "hardware.threads": 1}


def test_the_cells_are_those_of_the_command(tmp_path: Path) -> None:
    choices = {"protocol": "smoke", "search": None, "hardware": "cpu"}
    overrides = {"train.lr": 1e-3, "measure.speed_lengths": [64, 128], "tracker": "none"}
    own, _ = cells_of(["local", "performer"], "recall", choices, overrides, tmp_path, None)
    command = (
        "model=local,performer task=recall protocol=smoke hardware=cpu train.lr=0.001 measure.speed_lengths=[64,128]"
    )
    planned = plan([*own, f"seed={','.join(map(str, seeds_in(2)))}"], tmp_path)
    assert [each.cell.key for each in planned] == [
        each.cell.key for each in plan([*command.split(), "tracker=none", "seed=0,1"], tmp_path)
    ]
    assert seeds_in([5, 3]) == [5, 3] and seeds_in(range(2)) == [0, 1]


def test_results_are_a_sequence_with_a_table() -> None:
    records = [make_record("local"), make_record("performer"), make_record("luna", status="diverged")]
    results = Results(records, ["text/local/…: is not run; <no data>"])
    assert list(results) == records and results[1:2][0] is records[1] and len(results[:2]) == 2
    pd.testing.assert_frame_equal(results.frame, tidy(records))
    assert results.best is records[0]
    for text in (repr(results), results._repr_html_()):
        assert "0.352" in text and "diverged in the factory" in text
        assert "None" not in text and "nan" not in text.lower()
    assert repr(results).endswith("text/local/…: is not run; <no data>")
    assert results._repr_html_().endswith("<p>text/local/…: is not run; &lt;no data&gt;</p>")
    assert repr(Results([])) == "no records"


def test_the_best_record_of_a_language_model_has_the_lowest_score() -> None:
    records = [make_record(model) for model in ("local", "performer")]
    for record, score in zip(records, (2.5, 1.5), strict=True):
        record.metrics = {"test": {"bits_per_character": score}}  # type: ignore[typeddict-item]
    assert Results(records).best is records[1]


OWN = """
from lra_bench.models.mixer import HeadMixer, MixerSpec


class Broken(HeadMixer):
    spec = MixerSpec(family="own", paper="none")

    def attend(self, q, k, v, context):
        return nothing if self.training and len(q) == 8 else v  # in training, not in the check before it
"""


@pytest.mark.slow
def test_failed_cells_have_records_and_finished_ones_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ideas" / "model").mkdir(parents=True)
    (tmp_path / "ideas" / "broken.py").write_text(OWN)
    yaml = "# @package _global_\nmodel:\n  label: Broken\n  mixer: {_target_: broken.Broken}\n"
    (tmp_path / "ideas" / "model" / "broken.yaml").write_text(yaml)
    where = {"results": tmp_path / "results", "config_dir": tmp_path / "ideas"}
    call = {"protocol": "smoke", "hardware": "cpu", "overrides": FAST, **where}
    results = lra_bench.bench(["broken", "bag_of_tokens"], "listops", **call)
    assert [(record.key.model, record.status) for record in results] == [("broken", "failed"), ("bag_of_tokens", "ok")]
    assert results.best.key.model == "bag_of_tokens" and results.not_run == ()
    with pytest.raises(
        lra_bench.UserError, match=r"1 of 2 cells failed; listops/broken/.*name 'nothing' is not defined"
    ):
        lra_bench.bench(["broken", "bag_of_tokens"], "listops", raise_on_failure=True, **call)
    assert lra_bench.bench("bag_of_tokens", "listops", **call)[0].finished_at == results[1].finished_at
    model = lra_bench.load_model(results[1])
    assert not model.training and {each.device.type for each in model.parameters()} == {"cpu"}
    assert sum(each.numel() for each in model.parameters()) == results[1].parameters["total"]
    with pytest.raises(lra_bench.UserError, match="has status failed, so it has no tested weights"):
        lra_bench.load_model(results[0])
    assert list(lra_bench.evaluate(results[1], [50], write=False)["length"]) == [50]


SCRIPT = """
import lra_bench

fast = {options!r} | {{"train.steps": 400, "train.evaluate_every": 400, "hardware.checkpoint_seconds": 0}}
results = lra_bench.bench("bag_of_tokens", "listops", protocol="smoke", hardware="cpu", overrides=fast)
print(results[0].status, results[0].attempt)
"""


@pytest.mark.slow
def test_the_same_call_continues_after_ctrl_c(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT.format(options=FAST))

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "script.py"]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=folder.environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    process = start()
    wait_for_step(folder, alive(process), 3)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert printed.rstrip().endswith("KeyboardInterrupt"), printed
    record = folder.record()
    assert record["status"] == "interrupted" and "the same command resumes" in record["reason"]
    printed, _ = start().communicate(timeout=300)
    assert printed.splitlines()[-1] == "ok 2", printed
    assert json.loads(next(folder.results.rglob("seed0.json")).read_text())["training"]["steps"] == 400


OWN_MODEL = """
import lra_bench
from torch import nn

SCALE = 2

def layer(width):
    return nn.GRU(width, SCALE * width // 2, batch_first=True)

model = lra_bench.wrap(lambda width, heads: layer(width), causal=True)
rows = {{"text": [f"{{n}} is {{word}}" for n in range(120) for word in ("good", "bad")], "label": [1, 0] * 120}}
task = lra_bench.task_from(rows, max_length=16)
options = {options!r} | {{"train.batch_size": 8}}
results = lra_bench.bench(model, task, protocol="smoke", overrides=options, raise_on_failure=True)
again = lra_bench.bench([model, "bag_of_tokens"], task, protocol="smoke", overrides=options)
print([record.key.model for record in again])
again = [record for record in again if record.key.model == results[0].key.model]
print(results[0].path == again[0].path, results[0].finished_at == again[0].finished_at)
print(type(lra_bench.load_model(results[0]).mixers[0].module).__name__)
"""


@pytest.mark.slow
def test_a_module_and_a_table_of_a_script_are_measured_once_and_loaded(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "script.py").write_text(OWN_MODEL.format(options=FAST))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=folder.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["['bag_of_tokens', 'layer_wrapped']", "True True", "GRU"], done.stdout

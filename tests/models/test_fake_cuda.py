"""Training steps on a fake CUDA device: mistakes of placement are found, and the cost of a step is estimated."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_cuda.device import library, unavailable

ROOT = Path(__file__).parents[2]
PLANTED = "tests.support.fake_cuda.planted"
MISTAKES = {
    "TensorLeftOnHost": ("status", "FakeTensorDeviceMismatchError"),
    "MaskMadeOnHost": ("reason", "attention: tensors on cpu and cuda:0"),
    "ReadsNumber": ("waits", "aten::_local_scalar_dense"),
    "IndexesWithMask": ("waits", "aten::index_put with a mask"),
    "CopiesToHost": ("waits", "copy to the host"),
    "SharesKeysUnderMask": ("risks", "mask and shared keys"),
    "UploadsList": ("uploads", "planted.py"),
}
"""The section of the result in which each planted mistake appears, and a part of its text."""
CASES = [(name, task) for name in ("transformer", "mamba2", "bpt") for task in ("listops", "enwik8")]
CASES.append(("nystrom", "listops"))  # bidirectional only

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile the device before several processes need it."""
    library()


def process(*command, text=""):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(cases):
    lines = process("tests.support.fake_cuda", text=json.dumps([[case, "bf16"] for case in cases])).splitlines()
    return [json.loads(line) for line in lines]


def test_planted_mistakes_are_found_and_correct_attention_is_not():
    names = [*MISTAKES, "Correct"]
    common = ["task=listops", "protocol=smoke", "model=transformer"]
    found = run([[*common, f"model.mixer._target_={PLANTED}.{name}"] for name in names])
    results = dict(zip(names, found, strict=True))
    correct = results.pop("Correct")
    assert correct["status"] == "ok" and not correct["waits"] | correct["uploads"] | correct["risks"]
    for name, (section, text) in MISTAKES.items():
        assert text in str(results[name][section]), (name, results[name])


def test_systems_train_without_waits_uploads_and_risks():
    cases = [[f"task={task}", "protocol=smoke", f"model={name}"] for name, task in CASES]
    for case, found in zip(cases, run(cases), strict=True):
        assert found["status"] == "ok", (case, found)
        assert not found["waits"] | found["uploads"] | found["risks"], (case, found)


def costs(tmp_path, models, *options):
    file = tmp_path / "costs.json"
    process("benchmarks.step_cost", models, "--json", str(file), *options)
    return json.loads(file.read_text())


def test_cost_grows_with_length_as_the_mixer_does(tmp_path):
    sizes = {length: costs(tmp_path, "transformer,performer", "--length", str(length)) for length in (512, 1024)}
    for name in ("transformer", "performer"):
        short, long = (sizes[length][name] for length in sizes)
        assert short["launches"] == long["launches"]
        assert long["gigabytes"] / short["gigabytes"] == pytest.approx(2, rel=0.1)  # fused attention stores no scores
    flops = [sizes[length]["transformer"]["flops"]["bfloat16"] for length in sizes]
    assert flops[1] / flops[0] > 2.1  # those of attention grow with the square of the length


def test_stored_costs_of_the_grid_are_those_of_the_current_code(tmp_path):
    with (ROOT / "lra_bench/grid/gpu_step_costs.csv").open() as file:
        stored = {row["model"]: row for row in csv.DictReader(file) if row["task"] == "listops"}
    options = ("--protocol", "small", "--length", "2000", "--batch", "32")
    for name, found in costs(tmp_path, ",".join(stored), *options).items():
        assert found["seconds"] == pytest.approx(float(stored[name]["seconds"]), rel=0.1), (
            f"{name}: run python -m benchmarks.grid_cost reproduction"
        )

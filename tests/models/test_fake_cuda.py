"""Training steps on a fake CUDA device: mistakes of placement are found, and the cost of a step is estimated."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lra_bench import list_models
from tests.support.fake_cuda.allowed import ALLOWED
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
SYSTEMS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
SHORT = 256
"""Length of the rows; longer ones need more time and find the same mistakes."""

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


def run(precision="bf16", longest=SHORT, **cases):
    asked = {"precision": precision, "longest": longest, **cases}
    return [json.loads(line) for line in process("tests.support.fake_cuda", text=json.dumps(asked)).splitlines()]


def test_planted_mistakes_are_found_and_correct_attention_is_not():
    names = [*MISTAKES, "Correct"]
    common = ["task=listops", "protocol=smoke", "model=transformer"]
    found = run(cases=[[*common, f"model.mixer._target_={PLANTED}.{name}"] for name in names])
    results = dict(zip(names, found, strict=True))
    correct = results.pop("Correct")
    assert correct["status"] == "ok" and not correct["waits"] | correct["uploads"] | correct["risks"]
    for name, (section, text) in MISTAKES.items():
        assert text in str(results[name][section]), (name, results[name])


def mistakes(system, found):
    """Return what is wrong in the result of a case; waits of ``ALLOWED`` are not."""
    if found["status"] not in ("ok", "incompatible"):
        return [f"{system}: {found['status']} {found['reason']}"]
    wrong = [f"{system}: {kind} {place}" for kind in ("uploads", "risks") for place in found[kind]]
    counts = Counter()
    for place, count in found["waits"].items():
        counts[place.rpartition(" ")[2].rstrip(")")] += count
        if (system, place.rpartition(" ")[2].rstrip(")")) not in ALLOWED:
            wrong.append(f"{system}: waits for {place}")
    return wrong + [
        f"{system}: {count} waits in {function}"
        for function, count in counts.items()
        if (system, function) in ALLOWED and count > ALLOWED[system, function][0]
    ]


def check(systems, task, precision="bf16", longest=SHORT):
    """Train each system on the task, check what was recorded, and return the systems that support the task."""
    results = dict(zip(systems, run(precision, longest, systems=systems, tasks=[task]), strict=True))
    wrong = [mistake for system, found in results.items() for mistake in mistakes(system, found)]
    assert not wrong, "\n".join(wrong)
    return [system for system, found in results.items() if found["status"] == "ok"]


@pytest.mark.slow
def test_stem_and_patches_train_without_waits_uploads_and_risks():
    options = ["protocol=smoke", "model=transformer", "backbone.stem=3"]
    cases = [[*options, f"task={task}"] for task in ("listops", "image", "copy")]
    cases += [[*options, "backbone.patch=4", f"task={task}"] for task in ("listops", "retrieval_synthetic", "image")]
    for case, found in zip(cases, run(cases=cases), strict=True):
        assert found["status"] == "ok" and not mistakes("transformer", found), (case, found)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["listops", "enwik8"])
def test_every_system_trains_without_waits_uploads_and_risks(task):
    """Train every second causal system on language modelling, and all other systems on classification."""
    causal = sorted(set(SYSTEMS) & set(list_models(causal=True)))[::2]
    systems = causal if task == "enwik8" else sorted(set(SYSTEMS) - set(causal))
    refused = sorted(set(systems) - set(check(systems, task)))  # encoder_decoder is no language model
    assert check(refused, "listops") == refused


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "precision"),
    [*((task, "bf16") for task in ("image", "retrieval", "copy")), ("enwik8", "fp16"), ("listops", "fp32")],
)
def test_every_system_trains_on_every_kind_of_task_and_in_every_precision(task, precision):
    assert check(SYSTEMS, task, precision, None)


def costs(tmp_path, models, *options):
    file = tmp_path / "costs.json"
    process("benchmarks.step_cost", models, "--json", str(file), *options)
    return json.loads(file.read_text())


@pytest.mark.slow
def test_cost_grows_with_length_as_the_mixer_does(tmp_path):
    sizes = {length: costs(tmp_path, "transformer,performer", "--length", str(length)) for length in (512, 1024)}
    for name in ("transformer", "performer"):
        short, long = (sizes[length][name] for length in sizes)
        assert short["launches"] == long["launches"]
        assert long["gigabytes"] / short["gigabytes"] == pytest.approx(2, rel=0.1)  # fused attention stores no scores
    flops = [sizes[length]["transformer"]["flops"]["bfloat16"] for length in sizes]
    assert flops[1] / flops[0] > 2.1  # those of attention grow with the square of the length


@pytest.mark.slow
def test_stored_costs_of_the_grid_are_those_of_the_current_code(tmp_path):
    with (ROOT / "lra_bench/grid/gpu_step_costs.csv").open() as file:
        stored = {row["model"]: row for row in csv.DictReader(file) if row["task"] == "listops"}
    options = ("--protocol", "small", "--length", "2000", "--batch", "32")
    for name, found in costs(tmp_path, ",".join(stored), *options).items():
        assert found["seconds"] == pytest.approx(float(stored[name]["seconds"]), rel=0.1), (
            f"{name}: run python -m benchmarks.grid_cost reproduction"
        )

"""Origins of values, options in which cells differ, and why a cell with an older record must run."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from lra_bench.config.hashing import covered, digest
from lra_bench.config.listing import options
from lra_bench.config.origins import annotated, explained, origins
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import UserError
from lra_bench.grid.changes import Side, changed_since, differences
from lra_bench.grid.plan import plan
from tests.support.record_factory import make_record

CELL = ["task=listops", "model=performer", "hardware=cpu"]


def lines(tmp_path, *overrides, config_dir=None):
    (planned,) = plan([*CELL, *overrides], tmp_path, config_dir)
    config = as_dict(planned.cell.config)
    text = "\n".join(annotated(config, origins(planned.cell.overrides, config_dir)))
    assert yaml.safe_load(text) == config
    return {line.split(":")[0].strip(): " ".join(line.split()) for line in text.splitlines()}


def test_every_value_has_its_origin_and_the_values_that_it_overrides(tmp_path):
    shown = lines(tmp_path, "train.lr=5e-3", "train.clip=null", "task.max_depth=5")
    assert shown["steps"] == "steps: 4000 # protocol/quick.yaml: tasks.listops (common 2000, default 1000)"
    before = "protocol/quick.yaml: cells.listops/performer 0.001, protocol/quick.yaml: common 0.002, default 0.001"
    assert shown["lr"] == f"lr: 0.005 # override ({before})"
    assert shown["clip"] == "clip: null # override (default 1.0)"
    assert shown["betas"] == "betas: [0.9, 0.999] # default"
    assert shown["source"] == "source: generated # task/listops.yaml"
    assert shown["max_depth"] == "max_depth: 5 # override (task/listops.yaml 10)"
    assert shown["device"] == "device: cpu # hardware/cpu.yaml (default auto)"


def test_values_of_every_section_have_their_origin(tmp_path):
    given = origins(["protocol=lra_released", "task=pathfinder64", "model=sinkhorn"], None)
    block = explained(64, given["model.mixer.block"])
    assert block == "protocol/lra.yaml: cells.pathfinder/sinkhorn (cells.listops/sinkhorn 50)"
    assert explained(32, given["backbone.width"]) == "protocol/lra.yaml: tasks.pathfinder64 (common 512, default 64)"
    given = origins(["model=local"], None)
    assert explained(8, given["model.mixer.window"]) == "protocol/quick.yaml: models.local"
    assert explained(4, given["hardware.threads"]) == "chosen by lra-bench (default null)"


def test_interpolated_values_have_the_origin_of_the_interpolation(tmp_path):
    found = lines(tmp_path, "tracker.project=${protocol.name}")
    assert found["project"] == "project: quick # override (default lra-bench)"


def side(named):
    return Side.of(named, Path("no-results"), None, None)


def test_cells_differ_in_options_and_defaults_in_code():
    rows = {row["option"]: row for row in differences(side("model=local"), side("model=local train.steps=7"))}
    assert set(rows) == {"train.steps"}
    assert (rows["train.steps"]["A"], rows["train.steps"]["B"]) == ("4000", "7")
    assert rows["train.steps"]["origin of B"].startswith("override (protocol/quick.yaml: tasks.listops 4000")
    rows = {row["option"]: row for row in differences(side("model=local"), side("model=performer"))}
    assert rows["model.mixer.redraw_every"]["origin of A"] == "default or revision in code"
    assert differences(side("model=local seed=1"), side("model=local hardware=cpu")) == []
    with pytest.raises(UserError, match="no such record"):
        side("performer")


def write(cell, results, hash="00000000", fingerprint=None, **changes):
    """Write a record of a cell, with other values in the section ``train``."""
    config = as_dict(dataclasses.replace(cell.config, train=dataclasses.replace(cell.config.train, **changes)))
    parts = {name: getattr(cell.key, name) for name in ("model", "task", "seed", "hardware", "protocol")}
    made = make_record(hash=hash, config=config, **parts)
    made.data["fingerprint"] = fingerprint or cell.fingerprint
    path = results / "runs" / made.key.file("json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made.to_dict()))


def test_the_reason_names_the_options_that_differ_from_the_nearest_record(tmp_path):
    (planned,) = plan(CELL, tmp_path)
    assert changed_since(planned.cell, tmp_path, None) == ""
    write(planned.cell, tmp_path, steps=2000)
    reason = changed_since(planned.cell, tmp_path, None)
    assert reason == "differs from the record 00000000: train.steps 2000 → 4000, protocol/quick.yaml: tasks.listops"
    write(planned.cell, tmp_path)
    assert changed_since(planned.cell, tmp_path, None).endswith("a default or several revisions in code")
    write(planned.cell, tmp_path, fingerprint="aaaa")
    reason = changed_since(planned.cell, tmp_path, None)
    assert reason.endswith(f"fingerprint of the data aaaa → {planned.cell.fingerprint}")


@pytest.mark.parametrize(("model", "name"), [("lru", "LRU"), ("s4d", "S4D")])
def test_the_reason_names_a_class_whose_revision_has_risen(tmp_path, model, name):
    (planned,) = plan(["task=listops", f"model={model}", "hardware=cpu"], tmp_path)
    before = covered(planned.cell.config)
    before["model"]["mixer"]["_revisions_"].remove(2)
    hash = digest(before, planned.cell.fingerprint)
    assert hash != planned.cell.key.hash == digest(covered(planned.cell.config), planned.cell.fingerprint)
    write(planned.cell, tmp_path, hash)
    assert changed_since(planned.cell, tmp_path, None).endswith(f"{hash}: revision of {name} 1 → 2")


def test_cells_with_values_of_their_own_are_listed():
    rows = {row["name"]: row["description"] for row in options("cells")}
    assert "train.lr=0.01" in rows["protocol=published task=listops model=s4"].split()
    assert rows["protocol=small task=text model=nystrom"] == "model.mixer.landmarks=64 model.mixer.convolution=35"

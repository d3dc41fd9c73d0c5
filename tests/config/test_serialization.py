"""Conversion of configurations to dictionaries and back: round trips, older versions, malformed configurations."""

import json
from pathlib import Path

import pytest

from lra_bench.config import compose
from lra_bench.config.schema import CellConfig, TrackerOptions
from lra_bench.config.serialization import as_dict, from_dict, options_from
from lra_bench.contracts import UserError
from lra_bench.records.store import load_all

BOARD = Path(__file__).parents[2] / "results" / "reference" / "board2026"


@pytest.fixture(scope="module")
def composed():
    return compose.compose(["protocol=smoke", "task=listops", "model=performer", "measure.speed_lengths=[64]"]).config


def test_a_configuration_is_equal_after_a_json_round_trip(composed):
    assert from_dict(json.loads(json.dumps(as_dict(composed)))) == composed


def test_changing_the_dictionary_does_not_change_the_configuration(composed):
    raw = as_dict(composed)
    raw["train"]["betas"].append(1.0)
    raw["model"]["mixer"]["features"] = 3
    assert len(composed.train.betas) == 2 and composed.model["mixer"].get("features") != 3


def test_committed_records_keep_every_option():
    records = load_all(BOARD)
    assert records
    for record in records:
        found = as_dict(from_dict(record.config))
        for name, section in record.config.items():
            kept = {key: found[name][key] for key in section} if isinstance(section, dict) else found[name]
            assert kept == section, (record.path, name)


def test_missing_options_get_their_defaults(composed):
    raw = as_dict(composed)
    for name in ("protocol", "tracker", "launcher"):
        del raw[name]
    for section, option in (("train", "order"), ("measure", "flops_length"), ("hardware", "accelerated")):
        del raw[section][option]
    found = from_dict(raw)
    assert found.tracker == TrackerOptions() and found.measure.flops_length is None
    assert (found.train, found.hardware) == (composed.train, composed.hardware)


@pytest.mark.parametrize("section", ["train", "measure", "protocol", "tracker"])
def test_unknown_options_are_ignored(composed, section):
    raw = as_dict(composed)
    raw[section]["surprise"] = raw["surprise"] = [1]
    assert from_dict(raw) == composed


@pytest.mark.parametrize("section", ["backbone", "hardware"])
def test_unknown_options_of_closed_sections_are_refused(composed, section):
    raw = as_dict(composed)
    raw[section]["surprise"] = None
    with pytest.raises(UserError, match=rf"^{section}\.surprise: there is no such option$"):
        from_dict(raw)


@pytest.mark.parametrize("section", ["seed", "task", "model", "position", "backbone", "train", "measure", "hardware"])
def test_a_missing_section_is_named(composed, section):
    raw = as_dict(composed)
    del raw[section]
    with pytest.raises(UserError, match=f"no section {section}$"):
        from_dict(raw)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("train.steps", "many", "train.steps='many': must be int"),
        ("train.steps", True, "train.steps='True': must be int"),
        ("train.steps", 2.0, "must be int"),
        ("train.steps", 0, "train.steps=0: must be at least 1"),
        ("train.betas", [0.9, "x"], r"must be list\[float\]"),
        ("train.clip", [], r"must be float \| None"),
        ("train.lr", float("nan"), "train.lr=nan: must be above 0 and at most 1e100"),
        ("measure.memory_lengths", [-1], r"measure\.memory_lengths=\[-1\]: must be at least 0"),
        ("hardware.strategy", "zero", "hardware.strategy=zero: choose none, ddp or fsdp"),
        ("train.order", "sorted", "train.order=sorted: choose shuffled or stream"),
        ("measure.flops", 1, "must be bool"),
        ("hardware.threads", [2], r"hardware.threads='\[2\]': must be int \| None"),
        ("backbone._target_", 3, r"must be str \| None"),
        ("tracker.mode", {}, r"must be str \| None"),
        ("task", "listops", "task='listops': must be dict"),
        ("train", None, "train='None': must be dict"),
        ("seed", None, "seed='None': must be int"),
    ],
)
def test_an_invalid_value_is_named(composed, option, value, words):
    raw = as_dict(composed)
    *sections, last = option.split(".")
    (raw[sections[0]] if sections else raw)[last] = value
    with pytest.raises(UserError, match=words):
        from_dict(raw)


def test_integers_are_valid_for_float_options():
    assert from_dict({**as_dict(CellConfig()), "train": {"lr": 1, "betas": [0, 0.5]}}).train.lr == 1


def test_a_single_section_can_be_read():
    assert options_from(TrackerOptions, {"mode": "offline"}, "tracker") == TrackerOptions(mode="offline")
    with pytest.raises(UserError, match=r"tracker\.name='3': must be str"):
        options_from(TrackerOptions, {"name": 3}, "tracker")

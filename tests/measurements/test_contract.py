"""Measurements: their options, sections, columns and figures, also those of measurements of the user."""

import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest

from lra_bench.config import compose
from lra_bench.config.import_path import importable
from lra_bench.config.measurements import measurements, our_measurements
from lra_bench.config.schema import Measure
from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Measurement
from lra_bench.figures import all_figures
from lra_bench.measurements.subject import Subject
from lra_bench.page import facts
from lra_bench.records.schema import Record
from lra_bench.records.status import failure
from lra_bench.tables import columns
from lra_bench.tables.describe import describe
from lra_bench.tables.query import tidy
from lra_bench.tracking import contents
from tests.support.record_factory import make_record

OWN = """
from dataclasses import dataclass
from typing import TypedDict

from lra_bench.contracts.measurement import Column, Display, Measurement, Points, ScoreOver
from lra_bench.options.declaration import AT_LEAST_ONE, option

class Result(TypedDict):
    size: float

class Size(Measurement):
    name, stage, Result = "{name}", "measuring", Result
    columns = (Column(name="size", help="size", after=("score",), display=Display("size")),)
    title = "Sizes"
    points = (
        Points(name="sizes", path="sizes", of=lambda own: [own], columns={{"size": "the size"}}, numbers=("size",)),
    )
    figures = (ScoreOver(name="score_vs_size", help="Size.", values={{}}, label="", missing="", remedy=""),)

    @dataclass
    class Options:
        {option}: int = option(2, AT_LEAST_ONE)

    @classmethod
    def facts(cls, section):
        yield "size", str(section["size"])
"""


def folder_with(root, name="size", option="size_parts", target="own_size.Size"):
    (root / "measurement").mkdir()
    (root / "own_size.py").write_text(OWN.format(name=name, option=option))
    (root / "measurement" / "size.yaml").write_text(f"_target_: {target}" if target else "{}")
    return root


def test_each_measurement_declares_what_the_harness_reads():
    names = [each.name for each in fields(Measure)]
    for name, each in our_measurements().items():
        assert each.name == name and bool(each.stage) == (each.measure is not Measurement.measure)
        # The section of pretraining, which few cells have, is stored in ``Record.measured``.
        assert set(each.sections or [name]) <= {"pretraining", *(e.name for e in fields(Record))}
        assert set(each.needs) <= {entry.name for entry in fields(Subject)}
        assert {entry.name for entry in fields(each.Options)} <= set(names)
        assert {column.name for column in each.columns} <= {column.name for column in columns.long()}
    assert len(names) == len(set(names))


def test_a_measurement_of_the_user_has_options_columns_and_figures_like_ours(tmp_path):
    folder = folder_with(tmp_path)
    with importable(folder):
        assert list(measurements())[-1] == "size"
        assert compose.compose(["measure.size_parts=3"], folder).config.measure.size_parts == 3
        with pytest.raises(UserError, match="size_parts=0: must be at least 1"):
            compose.compose(["measure.size_parts=0"], folder)
        names = [column.name for column in columns.long()]
        assert names[names.index("score") + 1] == "size" and columns.view(columns.LONG_TEXT)[-1] == "size"
        assert "score_vs_size" in all_figures()
    with pytest.raises(UserError, match=r"measure\.size_parts: there is no such option"):
        compose.compose(["measure.size_parts=3"])
    assert "size" not in measurements() and "score_vs_size" not in all_figures()


def test_a_measurement_of_the_user_is_shown_like_ours(tmp_path, monkeypatch):
    records = [make_record(seed=seed, measured={"size": {"size": size}}) for seed, size in enumerate((2.0, 3.0))]
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Table=dict))
    with importable(folder_with(tmp_path)):
        assert list(tidy(records, "runs")["size"]) == list(tidy(records, "sizes")["size"]) == [2, 3]
        assert dict(facts.groups(records))["Sizes"] == [("size", "2.0 / 3.0")]
        assert "\n  size              3.0\n" in describe(records[1]) and contents.summary(records[1])["sizes/size"] == 3
        assert "tables/sizes" in contents.tables(records[1])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "state"}, "own_size.Size: state is a measurement of lra-bench; choose another name"),
        ({"target": ""}, "size.yaml: has no _target_; set it to the class of the measurement"),
        ({"target": "own_size.Result"}, "is no Measurement"),
    ],
)
def test_a_wrong_measurement_of_the_user_is_refused(given, words, tmp_path):
    with importable(folder_with(tmp_path, **given)), pytest.raises(UserError, match=words):
        measurements()


def test_an_option_that_exists_is_refused(tmp_path):
    exists = pytest.raises(UserError, match=r"measure\.energy: exists already; rename this option of the measurement")
    with importable(folder_with(tmp_path, option="energy")), exists:
        compose.compose([])


def test_a_section_of_the_user_is_stored_and_checked_where_its_class_is_known(tmp_path):
    record = make_record()
    assert "measured" not in record.to_dict() and record.section("size") is None
    record.add_section("size", {"size": "large"})
    assert Record.from_dict(record.to_dict()).section("size") == {"size": "large"}
    with (
        importable(folder_with(tmp_path)),
        pytest.raises(UserError, match=r"record: size\.size should be a valid"),
    ):
        Record.from_dict(record.to_dict())


def test_the_trace_of_a_failure_is_printed_for_debugging_only(monkeypatch, capsys):
    for value, printed in ((None, False), ("1", True)):
        monkeypatch.setenv("LRA_BENCH_DEBUG", value) if value else monkeypatch.delenv("LRA_BENCH_DEBUG", raising=False)
        try:
            raise ValueError("wrong\nlines")
        except ValueError as error:
            assert failure(error) == ("failed", "wrong")
        assert ("Traceback" in capsys.readouterr().err) is printed

"""Output formats: equal numbers, lossless round trips, LaTeX that compiles, and CSV without formulas."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra_bench.contracts import UserError
from lra_bench.figures.layout import Sheet, save
from lra_bench.page.page import write_page
from lra_bench.tables import export
from lra_bench.tables.describe import describe
from lra_bench.tables.formatting import rows_of
from lra_bench.tables.layouts import LAYOUTS, find_layout
from lra_bench.tables.profile import write_csv
from lra_bench.tables.sections import with_places
from tests.support.record_factory import make_record

ROOT = Path(__file__).parents[2]
NASTY = r"a|b & 50% #1 _x_ {y} ~ ^ \ <z> $é ünï 漢"


def records() -> list:
    return [
        *[
            make_record(model, task, seed, protocol="lra")
            for model in ("transformer", "local", "performer")
            for task in ("listops", "text")
            for seed in range(3)
        ],
        make_record("performer", hash="ffff0000", differences={"model.mixer.kind": NASTY}, protocol="lra"),
        make_record("transformer", hash="eeee0000", protocol_modified=["train.steps"], protocol="lra"),
        make_record("reformer", status="out_of_memory", protocol="lra"),
        *(
            make_record(model, task, protocol="small-v2")
            for model in ("transformer", "linformer", "performer", "reformer")
            for task in ("listops", "text", "retrieval")
        ),
    ]


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return {name: layout.make(records()) for name, layout in LAYOUTS.items()}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_read_back_unchanged(layout: str, tables: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    frame = tables[layout]
    paths = {path.suffix: path for path in export.write(frame, tmp_path, layout)}
    assert set(paths) == {".md", ".csv", ".json", ".parquet"}
    from_json = pd.DataFrame(json.loads(paths[".json"].read_text(), parse_constant=pytest.fail))
    words = {name: str for name in frame if not pd.api.types.is_numeric_dtype(frame[name])}
    for back in (pd.read_csv(paths[".csv"], dtype=words), pd.read_parquet(paths[".parquet"]), from_json):
        assert list(back.columns) == list(frame.columns) and len(back) == len(frame)
        for name in frame:
            original, restored = frame[name], back[name]
            if pd.api.types.is_numeric_dtype(original):
                np.testing.assert_array_equal(
                    pd.to_numeric(restored).astype("float64"), original.astype("float64"), err_msg=str(name)
                )
            else:
                # CSV does not distinguish empty strings from missing values.
                shown = [["" if pd.isna(value) else str(value) for value in column] for column in (restored, original)]
                assert shown[0] == shown[1], name


def numbers(text: str) -> list[str]:
    """Return all numbers with a decimal point in a text."""
    return re.findall(r"\d+\.\d+", text)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_readable_formats_contain_the_same_numbers(layout: str, tables: dict[str, pd.DataFrame]) -> None:
    found = {name: export.render(tables[layout], name, 2000, layout) for name in ("terminal", "markdown")}
    note = sorted(numbers(find_layout(layout).note))
    expected = sorted(numbers(found["markdown"]))
    assert len(expected) > 30
    # The tables of one task state the floor once, in their title; those of all tasks contain no interval.
    shown = {*numbers(found["terminal"]), *note}
    assert shown < set(expected) if layout == "wide" else shown == set(expected)
    if layout not in ("long", "wide"):
        assert sorted([*numbers(found["terminal"]), *note]) == expected


def test_best_scores_are_bold_and_scores_at_the_floor_are_marked() -> None:
    scores = {"transformer": 0.5, "local": 0.49, "performer": 0.3}
    frame = LAYOUTS["long"].make(
        [make_record(m, seed=s, accuracy=x + 0.01 * s) for m, x in scores.items() for s in range(3)]
    )
    # The second row has no predictions, so it is not tested against the best row.
    assert re.findall(r"\*\*([\d.]+)", export.render(frame, "markdown")) == ["51.0"]
    assert "31.0 (30.0, 31.0, 32.0) °" in export.render(frame, "terminal", 300)
    assert "| 31.0 % (30.0, 31.0, 32.0) ° " in export.render(frame, "markdown")
    assert json.loads(export.render(frame, "json"))[2]["learned"] == 0


@pytest.mark.one_in(3)
@pytest.mark.parametrize("format", export.READ)
def test_columns_are_selected_by_their_headings(format: str, tables: dict[str, pd.DataFrame]) -> None:
    text = export.render(tables["long"], format, 200, columns=["over", "score", "floor"])
    assert "variant" in text and "operator" in text  # the row name, and a heading selected by its last word
    assert re.search(r"over\W+score", text) and "tokens/s" not in text
    with pytest.raises(UserError, match="--columns scor: unknown column; did you mean score"):
        export.render(tables["long"], format, 200, columns=["scor"])


def test_written_tables_are_ignored_by_git(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    written = [path for name in LAYOUTS for path in export.write(LAYOUTS[name].make([]), tmp_path, name)]
    written.append(write_page([], {name: layout.make([]) for name, layout in LAYOUTS.items()}, tmp_path))
    names = sorted(f"results/{path.name}" for path in written)
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert sorted(ignored.stdout.split()) == names


def test_empty_tables_and_unknown_layouts() -> None:
    assert "No records yet" in export.render(LAYOUTS["long"].make([]), "terminal")
    with pytest.raises(UserError, match="--layout wid: unknown layout; did you mean wide"):
        find_layout("wid")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]


def test_csv_cells_do_not_begin_with_a_formula(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"=name": [*FORMULAS, None, "1\r=1"], "number": [-1.5] * 8, "mixed": ["=x", -2, None, "", True, 0.5, "y", "é"]}
    )
    before = frame.copy()
    save(Sheet(("quick", ""), [Figure()], frame), "Nothing.", tmp_path, "figure", pdf=False)
    write_csv([SimpleNamespace(task="=t", protocol="+p", hardware="h", rows=[{"speed": -1.5}])], tmp_path / "p.csv")  # type: ignore[list-item]
    pd.testing.assert_frame_equal(frame, before)
    for text in (export.render(frame, "csv"), (tmp_path / "figure-quick.csv").read_bytes().decode()):
        header, *rows = csv.reader(io.StringIO(text, newline=""))
        assert header == ["'=name", "number", "mixed"]
        assert [row[0] for row in rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\n=1", "", "1\n=1"]
        assert {row[1] for row in rows} == {"-1.5"}
        assert [row[2] for row in rows] == ["'=x", "-2", "", "", "True", "0.5", "y", "é"]
    assert (tmp_path / "p.csv").read_text() == "task,protocol,hardware,speed\n'=t,'+p,h,-1.5\n"


def test_records_add_no_formula_to_any_csv() -> None:
    record = make_record("performer", reason="=cmd()", differences={"model.mixer.kind": "x"}, floors={"x": 0.1})
    record.protocol_modified = ["=cmd()"]
    assert record.data is not None
    record.data["partial"] = "-cmd()"
    for name, layout in LAYOUTS.items():
        rows = csv.reader(io.StringIO(export.render(layout.make([record]), "csv", layout=name)))
        texts = [cell for row in rows for cell in row if not re.fullmatch(r"-[\d.e-]+", cell)]
        assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@"))]


@pytest.mark.slow
def test_a_record_with_unusual_values_is_rendered_in_every_format() -> None:
    strange = make_record("local", floors={"name": 0.2, "majority": 0.1})
    assert strange.extrapolation is not None
    strange.extrapolation["points"][2] |= {"low": None, "high": None}
    for name, layout in LAYOUTS.items():
        frame = layout.make([make_record(), strange])
        for format in (each for each in export.FORMATS if each != "latex" or name == "wide"):
            assert export.render(frame, format, layout=name)
    assert " over 1,000" in describe(strange)


def test_rows_with_the_same_name_are_told_apart_by_their_board_or_hardware() -> None:
    own = make_record("local", seed=0)
    boards = [make_record("local", reference="one"), make_record("local", reference="two", hardware="cpu-xeon-2t")]
    names = [row["variant"] for row in with_places(rows_of(LAYOUTS["long"].make([own, *boards])))]
    assert sorted(names) == ["local", "local @ one", "local @ two"]
    machines = [make_record("local"), make_record("local", hardware="cpu-xeon-2t"), make_record("performer")]
    names = [row["variant"] for row in with_places(rows_of(LAYOUTS["long"].make(machines)))]
    assert sorted(names) == ["local @ cpu-epyc-2t", "local @ cpu-xeon-2t", "performer"]

"""Published numbers: sources, flags of misprints, and the table of Long Range Arena as printed in 2020."""

from __future__ import annotations

import csv
import re
from io import StringIO
from pathlib import Path

import pytest

from lra_bench.cli.main import app
from lra_bench.contracts import UserError
from lra_bench.tables import export
from lra_bench.tables.published import (
    AVERAGES,
    COLUMNS,
    FLAGS,
    MARKS,
    averages,
    cite,
    has_flag,
    load_published,
    published_sections,
    recomputed_averages,
)

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "avg5")
# Tay et al. 2020, arXiv 2011.04006, Table 1; all models failed on Path-X.
TABLE_1 = {
    "Transformer": (36.37, 64.27, 57.46, 42.44, 71.40, 54.39),
    "Local Attention": (15.82, 52.98, 53.39, 41.46, 66.63, 46.06),
    "Sparse Transformer": (17.07, 63.58, 59.59, 44.24, 71.71, 51.24),
    "Longformer": (35.63, 62.85, 56.89, 42.22, 69.71, 53.46),
    "Linformer": (35.70, 53.94, 52.27, 38.56, 76.34, 51.36),
    "Reformer": (37.27, 56.10, 53.40, 38.07, 68.50, 50.67),
    "Sinkhorn Transformer": (33.67, 61.20, 53.83, 41.23, 67.45, 51.39),
    "Synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45, 52.88),
    "BigBird": (36.05, 64.02, 59.29, 40.83, 74.87, 55.01),
    "Linear Transformer": (16.13, 65.90, 53.09, 42.34, 75.30, 50.55),
    "Performer": (18.01, 65.40, 53.82, 42.77, 77.05, 51.41),
}
GOOD = {
    "model": "Performer",
    "task": "listops",
    "input_length": "",
    "metric": "accuracy",
    "value": "18.01",
    "unit": "%",
    "table": "Table 1",
    "source_title": "Long Range Arena",
    "arxiv": "2011.04006",
    "url": "",
    "year": "2020",
    "flags": "",
    "quotes": "",
    "note": "",
}


def folder_with(tmp_path: Path, *rows: dict[str, str]) -> Path:
    text = StringIO()
    writer = csv.DictWriter(text, list(COLUMNS))
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "some.csv").write_text(text.getvalue(), encoding="utf-8")
    return tmp_path


def test_the_table_of_2020_is_reproduced() -> None:
    frame = load_published()
    table = frame[(frame["arxiv"] == "2011.04006") & (frame["table"] == "Table 1")]
    wide = table.pivot(index="model", columns="task", values="value")
    assert {model: tuple(row[list(TASKS)]) for model, row in wide.iterrows()} == TABLE_1
    path_x = table[table["task"] == "pathfinder128"]
    assert has_flag(path_x, "failed").all() and len(path_x) == len(TABLE_1)
    assert list(table[has_flag(table, "misprint")]["model"]) == ["Sinkhorn Transformer"]


OF_2020 = {
    "text": {"validation-is-test", "mixed-lengths"},
    "listops": {"before-bracket-fix"},
    **{name: {"validation-is-test", "mixed-lengths", "before-bracket-fix"} for name in AVERAGES},
}
"""Flags of the scores of 2011.04006 by task; an average has the flags of the scores in it."""


def test_scores_of_2020_and_their_quotations_have_the_flags_of_its_code() -> None:
    frame = load_published()
    known = set().union(*OF_2020.values())
    of_2020 = (frame["arxiv"] == "2011.04006") | (frame["quotes"] == "2011.04006")
    scores = frame["metric"] == "accuracy"
    quoted = frame[frame["quotes"] == "2011.04006"]
    assert len(quoted) == 11 and has_flag(quoted, "second-hand").all()
    for flags, task, own in zip(frame["flags"], frame["task"], of_2020 & scores, strict=True):
        assert set(flags.split()) & known == (OF_2020.get(task, set()) if own else set())


@pytest.mark.parametrize("name", ["terminal", "markdown"])
def test_flags_of_2020_are_marked_at_the_scores_and_explained(name: str) -> None:
    frame = load_published()
    text = export.render(frame[frame["arxiv"] == "2011.04006"], name, 2000, "published")
    signs = "‡§¶"
    both, bracket = signs[0] + signs[1], signs[2]
    for number in (f"36.37{bracket}", f"64.27{both}", f"54.39{both}{bracket}"):
        assert number in text
    assert not re.search(rf"(57\.46|42\.44|71\.40)[{re.escape('†‡§¶$')}]", text)
    for sign, flag in zip(signs, ("validation-is-test", "mixed-lengths", "before-bracket-fix"), strict=True):
        meaning = FLAGS[flag][0].upper() + FLAGS[flag][1:]
        assert " ".join(text.split()).count(f"{sign} {meaning}.") == 1


def test_the_legend_of_a_table_explains_exactly_its_signs() -> None:
    assert len(set(MARKS.values())) == len(MARKS) and set(MARKS) < set(FLAGS)
    sections = list(published_sections(load_published()))
    for section in sections:
        cells = "".join(section.table.to_numpy().ravel())
        shown = {sign for sign in MARKS.values() if sign in cells}
        assert {sign for sign in MARKS.values() if f"{sign} " in section.remark} == shown
        listed = {flag for cell in section.table.get("flags", ()) for flag in cell.split(", ")}
        assert not listed & set(MARKS)
    assert {sign for section in sections for sign in MARKS.values() if sign in section.remark} == set(MARKS.values())


def test_printed_averages_match_their_row_or_are_flagged_as_misprints() -> None:
    rows = recomputed_averages(load_published())
    assert len(rows) > 60
    for row in rows.to_dict("records"):
        printed = {name: row[f"printed_{name}"] for name in ("avg5", "avg6_fail50")}
        off = [differs(value, row[name]) for name, value in printed.items() if value == value]
        assert row["misprint"] == any(off), row


def differs(printed: float, value: float) -> bool:
    """Return whether the numbers differ by more than one unit in the last printed digit.

    The tolerance is needed because some sources round and others truncate.
    """
    return abs(printed - value) > 10 ** -len(f"{printed:g}".partition(".")[2]) + 1e-9


def test_both_averages_of_2020() -> None:
    rows = {(row["file"], row["model"]): row for row in recomputed_averages(load_published()).to_dict("records")}
    transformer = rows["long_range_arena", "Transformer"]
    assert (transformer["avg5"], transformer["avg6_fail50"]) == pytest.approx((54.388, 53.6567), abs=1e-4)
    sinkhorn = rows["long_range_arena", "Sinkhorn Transformer"]
    assert (sinkhorn["avg5"], sinkhorn["printed_avg5"]) == pytest.approx((51.476, 51.39))


def test_averages_need_every_score() -> None:
    scores = {"listops": 0.4, "text": 0.6, "retrieval": 0.6, "image": 0.4, "pathfinder": 0.7}
    assert averages(scores) == {"avg5": pytest.approx(0.54), "avg6_fail50": None}
    assert averages(scores, path_x_failed=True)["avg6_fail50"] == pytest.approx((2.7 + 0.5) / 6)
    assert averages({**scores, "pathfinder128": 0.9})["avg6_fail50"] == pytest.approx(0.6)
    del scores["image"]
    assert averages(scores, path_x_failed=True) == {"avg5": None, "avg6_fail50": None}


def test_every_number_has_a_source_and_its_quoted_source() -> None:
    frame = load_published()
    assert len(frame) > 850
    assert (frame["source_title"] != "").all() and ((frame["arxiv"] != "") | (frame["url"] != "")).all()
    assert not frame["note"].str.contains("memory of|from memory", case=False).any()
    assert cite(frame[(frame["file"] == "lion") & (frame["model"] == "S5")].iloc[0].to_dict()) == (
        "arXiv 2502.16249, Table 7 (2025), quoting arXiv 2208.04933"
    )
    assert frame[frame["model"] == "LRU"].query("task == 'image'")["flags"].str.contains("colour").all()
    assert has_flag(frame[frame["value"].isna()], "failed").all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arxiv": ""}, "has no source"),
        ({"source_title": " "}, "has no source"),
        ({"arxiv": "2011.4"}, "not an arXiv id"),
        ({"quotes": "Tay"}, "not an arXiv id"),
        ({"url": "ftp://x"}, "https"),
        ({"value": "abc"}, "not a number"),
        ({"value": ""}, "value must be empty"),
        ({"flags": "failed"}, "value must be empty"),
        ({"value": "180.1"}, "out of range"),
        ({"value": "nan"}, "out of range"),
        ({"task": "listop"}, "task 'listop' is unknown"),
        ({"metric": "score"}, "metric 'score' is unknown"),
        ({"unit": "bits"}, "unit of accuracy must be %"),
        ({"flags": "second hand"}, "flag 'second' is unknown"),
        ({"year": "20"}, "is not a year"),
        ({"model": ""}, "model is empty"),
    ],
)
def test_an_invalid_row_raises_an_error_with_file_and_line(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    first = {**GOOD, "task": "text"}
    assert len(load_published(folder_with(tmp_path, first, GOOD))) == 2
    with pytest.raises(UserError, match=rf"some\.csv:3: .*{message}"):
        load_published(folder_with(tmp_path, first, GOOD | change))


def test_duplicates_and_unknown_columns_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"some\.csv:3: duplicates the number in line 2"):
        load_published(folder_with(tmp_path, GOOD, GOOD))
    (tmp_path / "some.csv").write_text("model,value\nA,1\n")
    with pytest.raises(UserError, match=r"some\.csv:1: the columns"):
        load_published(tmp_path)
    (tmp_path / "some.csv").write_text(",".join(COLUMNS) + "\nA,b\n")
    with pytest.raises(UserError, match=r"some\.csv:2: does not have 14 fields"):
        load_published(tmp_path)


def test_numbers_of_the_user_follow_those_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, {**GOOD, "model": "Mine"})
    arguments = ["leaderboard", "--layout", "published", "--format", "csv", "--reference", "none"]
    monkeypatch.setenv("LRA_BENCH_RESULTS", str(tmp_path / "results"))
    app([*arguments, "--published", str(folder)], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load_published()) + 2 and ",Mine," in lines[-1]
    for wrong in (tmp_path / "absent", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=f"--published {wrong}: there "):
            app([*arguments, "--published", str(wrong)], standalone_mode=False)

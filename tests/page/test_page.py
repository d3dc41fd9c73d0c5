"""The HTML page without a browser: a valid self-contained file with the numbers of the tables."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.figures.palette import FAMILIES, look
from lra_bench.measurement import Limit
from lra_bench.page import charts, facts
from lra_bench.page.colours import DARK_GROUND, READABLE, contrast, lightened
from lra_bench.page.page import page, write_page
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.badges import Badges, badges, badges_of_all
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.published import FLAGS
from lra_bench.tables.published_table import MARKS
from tests.support.page_records import study
from tests.support.record_factory import make_costs, make_curves, make_pairs, make_record

VOID = {"meta", "link", "input", "br", "line", "img"}
NASTY = "</script><img src=x onerror=alert(1)>"


class Parsed(HTMLParser):
    """The elements of a page with their attributes; asserts that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style", "h2", "option"):
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.elements
            if name == tag and all(found.get(key) == value for key, value in attributes.items())
        ]


def build(records: list[Record]) -> tuple[str, dict[str, pd.DataFrame]]:
    frames = {name: layout.make(records) for name, layout in LAYOUTS.items()}
    return page(records, frames), frames


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return study(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def built(records: list[Record]) -> tuple[str, dict[str, pd.DataFrame]]:
    return build(records)


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.mark.slow
def test_the_file_is_valid_and_loads_nothing(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, _ = built
    parsed = Parsed(text)
    assert parsed.open == []
    for _, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "action", "xlink:href", "poster", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/svg+xml;base64,"))
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert not re.search(r"@import|url\(|@font-face", parsed.text["style"])
    reaches_out = r"\bfetch\b|XMLHttpRequest|\bimport\b|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b"
    assert not re.search(reaches_out, text.rpartition("<script>")[2])
    identifiers = [found["id"] for _, found in parsed.elements if found.get("id")]
    assert len(identifiers) == len(set(identifiers))


def test_the_content_security_policy_allows_only_the_script_and_style_of_the_page(
    built: tuple[str, dict[str, pd.DataFrame]],
) -> None:
    text, _ = built
    [policy] = [found["content"] for found in Parsed(text).all("meta") if "http-equiv" in found]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    for tag in ("script", "style"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def rows_by_body(text: str, table: str) -> list[tuple[str, dict[str, str]]]:
    """Return for each row of a table the kind of its body and its sort values by column key."""
    board = text.partition(f'id="board-{table}"')[2].partition("</figure>")[0]
    keys = re.findall(r'<th scope="col" data-key="([^"]+)"', board)
    found = []
    for kind, body in re.findall(r'<tbody class="(\w+)">(.*?)</tbody>', board, re.DOTALL):
        for row in re.findall(r'<tr class="row.*?</tr>', body, re.DOTALL):
            cells = re.findall(r"<t[dh] [^>]*>", row)
            assert len(cells) == len(keys)
            values = [re.search(r'data-value="([^"]*)"', cell) for cell in cells]
            found.append((kind, {key: value[1] for key, value in zip(keys, values, strict=True) if value}))
    return found


def rows_of_all_tasks(text: str, protocol: str) -> list[tuple[str, dict[str, str]]]:
    """Return the rows of all tables of a protocol that have a column per task."""
    tables = re.findall(rf'id="board-({protocol}-all[^"]*)"', text)
    return [row for table in tables for row in rows_by_body(text, table)]


def test_sort_values_are_the_unrounded_numbers_of_the_tables(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    board = frames["long"]
    own = board[(board["protocol"] == "small") & (board["task"] == "listops")]
    shown = [values for kind, values in rows_by_body(text, "small-listops-2") if kind in ("ranked", "modified")]
    assert len(shown) == len(own) > 10
    for column in ("score", "floor", "score_4x", "train_tokens_per_second"):
        assert [float(row[column]) for row in shown] == own[column].tolist()
    ranked = own[(own["clears_floor"] == True) & (own["seeds"] >= 3)]  # noqa: E712
    assert [int(row["rank"]) for row in shown if "rank" in row] == ranked["rank"].tolist() != []
    overview = frames["wide"][frames["wide"]["protocol"] == "small"]
    for label in ("listops", "text", "image", "enwik8"):
        scores = [float(row[label]) for _, row in rows_of_all_tasks(text, "small") if label in row]
        assert sorted(scores) == sorted(overview[f"score_{label}"].dropna())


def test_the_page_shows_the_numbers_of_the_other_formats(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    readable = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    shown_numbers = set(re.findall(r"\d+\.\d+", re.sub(r"<[^>]*>", " ", readable)))
    for layout in ("wide", "published"):
        markdown = export.render(frames[layout], "markdown", layout=layout)
        assert set(re.findall(r"\d+\.\d+", markdown)) <= shown_numbers


def test_tracks_and_sections_have_separate_rows(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, _ = built
    tracks = re.findall(r'<section class="track[^"]*" data-track="([^"]+)"', text)
    assert tracks == ["quick", "small", "_published"]
    for table in re.findall(r'id="board-(small-all[^"]*)"', text):
        kinds = [kind for kind, _ in rows_by_body(text, table)]
        assert kinds == sorted(kinds, key=["ranked", "modified", "floor"].index)
    assert {kind for kind, _ in rows_of_all_tasks(text, "small")} == {"ranked", "modified", "floor"}
    for table in re.findall(r'id="board-([^"]+)"', text):
        published = [kind == "published" for kind, _ in rows_by_body(text, table)]
        assert published and all(each is table.startswith("_published") for each in published), table
    assert {row["variant"] for kind, row in rows_of_all_tasks(text, "quick") if kind == "ranked"} == {
        "transformer", "performer", "bag_of_tokens",
    }  # fmt: skip
    assert "arXiv 2102.03902, img/LRA.png (2021)" in text


def test_flags_of_published_scores_have_signs_and_a_legend(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, _ = built
    boards = re.findall(r'<figure class="board"[^>]*id="board-_published.*?</figure>', text, re.DOTALL)
    [board] = [each for each in boards if "arXiv 2011.04006, Table 1" in each]
    for number in ("36.37¶", "64.27‡§", "57.46"):
        assert f'<span class="figure">{number}</span>' in board
    for flag in ("validation-is-test", "mixed-lengths", "before-bracket-fix"):
        assert f"{MARKS[flag]} {FLAGS[flag][0].upper()}{FLAGS[flag][1:]}." in html.unescape(board)


def test_details_contain_every_seed_and_one_command(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    data = data_of(text)
    assert len(data["cells"]) == len(frames["long"])
    assert sum(len(cell["seeds"]) for cell in data["cells"]) == 64
    place = frames["long"].query("model == 'local' and task == 'text'").index[0]
    cell = data["cells"][place]
    assert [seed["status"] for seed in cell["seeds"]] == ["ok", "ok", "diverged"]
    assert cell["seeds"][2]["reason"] == "diverged in the factory" and cell["seeds"][2]["score"] == ""
    assert cell["command"] == "lra-bench bench task=text model=local protocol=small seed=0,1,2"
    titles = [data["pool"][at][0] for at in cell["facts"]]
    assert titles[:5] == ["Score", "Score by slice", "Training", "Parameters", "Growth and cost"]
    assert titles[5:] == ["Data", "Code", "Machine", "Software", "System"]
    assert "lr" not in cell["config"] and "steps: 500" in "".join(data["pool"][at] for at in cell["config"])


def test_details_contain_the_mean_score_and_the_floor_of_each_slice() -> None:
    made = [make_record("luna", seed=seed, accuracy=0.5 + 0.1 * seed) for seed in range(2)]
    found = dict(dict(facts.groups(made))["Score by slice"])
    assert found["length 100–500"] == "57.0 %, floor 31.0 %, 1,000 targets"
    assert list(found)[2:] == ["operator MIN", "operator MAX", "operator MED", "operator SM"]
    made[0].slices[0] |= {"floor": None}
    assert dict(dict(facts.groups(made[:1]))["Score by slice"])["length 20–99"] == "48.0 %, 1,000 targets"


def test_details_contain_rungs_and_the_mean_score_on_minimal_pairs() -> None:
    made = [
        make_record("luna", seed=seed, rungs={"two_levels": 0.719}, minimal_pairs=make_pairs(0.1 + 0.2 * seed, 0.0))
        for seed in range(2)
    ]
    found = {title: dict(pairs) for title, pairs in facts.groups([*made, make_record("luna", seed=2)])}
    assert found["Score"]["two levels (rung)"] == "71.9 %"
    assert found["Minimal pairs"] == {
        "level 1": "both right in 20.0 % of 100 pairs",
        "level 2": "both right in 0.0 % of 100 pairs",
        "all pairs": "both right in 10.0 % of 200 pairs",
    }


def test_charts_show_the_data_of_the_records(records: list[Record], built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    place = frames["long"].query("model == 'luna' and task == 'listops'").index[0]
    drawn = {chart["title"]: chart for chart in data_of(text)["cells"][place]["charts"]}
    assert list(drawn) == ["Learning curve", "Score over length", "Time of a step", "Memory of a step"]
    own = [record for record in records if record.key.model == "luna" and record.key.task == "listops"]
    assert [series["name"] for series in drawn["Learning curve"]["series"]] == ["seed 0", "seed 1"]
    lengths = {series["name"]: series["points"] for series in drawn["Score over length"]["series"]}
    assert list(lengths) == ["redrawn", "root operator floor", "transformer"]
    means = [
        100 * sum(record.extrapolation["points"][number]["score"] for record in own) / len(own) for number in range(5)
    ]
    assert [point[1] for point in lengths["redrawn"]] == pytest.approx(means, rel=1e-4)
    times = {series["name"]: series["points"] for series in drawn["Time of a step"]["series"]}
    expected = [1e3 * point["median_seconds"] for point in own[0].speed if point["mode"] == "train"]
    assert [point[1] for point in times["training"]] == pytest.approx(expected, rel=1e-4)
    # The transformer on this machine ran out of memory at the longest length; other machines are not used.
    assert [point[0] for point in times["transformer, training, in a run of its own"]] == [1024, 2048, 4096, 8192]


def test_a_subsampled_learning_curve_includes_its_last_step(tmp_path: Path) -> None:
    record = make_record()
    store.write(record, tmp_path, make_curves(1001, every=7))
    [series] = charts.learning(store.load_all(tmp_path))["series"]
    steps = [step for step, _ in series["points"]]
    assert len(steps) <= charts.POINTS and steps[-1] == 1001 and steps == sorted(steps)


def test_names_are_escaped() -> None:
    records = [
        make_record("local", differences={"model.mixer.kind": NASTY}, protocol_modified=[NASTY]),
        make_record("performer", status="failed", reason=NASTY, command=NASTY, config={"task": NASTY}),
    ]
    text, _ = build(records)
    assert "<img" not in text and text.count("</script>") == 2
    assert Parsed(text).open == []
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    cell = next(cell for cell in data_of(text)["cells"] if cell["command"] == NASTY)
    assert cell["seeds"][0]["reason"] == NASTY


@pytest.mark.slow
def test_the_page_without_records_states_how_to_create_one() -> None:
    text, _ = build([])
    parsed = Parsed(text)
    assert parsed.open == [] and "No records yet" in text
    assert data_of(text) == {"cells": [], "pool": []}
    assert re.findall(r'<section class="track[^"]*" data-track="([^"]+)"', text) == ["_published"]


@pytest.mark.slow
def test_a_record_without_results_has_a_row_and_details() -> None:
    bare = make_record("reformer", status="failed", parameters=None, data=None, speed=[], growth={}, flops=None,
                       energy=None, capability=None)  # fmt: skip
    text, frames = build([bare])
    assert len(frames["long"]) == 1
    [cell] = data_of(text)["cells"]
    assert cell["charts"] == [] and cell["seeds"][0]["status"] == "failed"
    assert '<span class="badge open" title="an error ended the cell' in text


@pytest.mark.slow
def test_the_page_is_independent_of_the_order_of_records(
    records: list[Record], built: tuple[str, dict[str, pd.DataFrame]]
) -> None:
    text, frames = built
    assert page(list(reversed(records)), frames) == text


@pytest.mark.slow
def test_leaderboard_command_prints_or_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(make_record("performer"), tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lra-bench", "leaderboard", *arguments, "--results", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    code, printed, _ = command("--format", "html")
    assert code == 0 and Parsed(printed).open == [] and len(data_of(printed)["cells"]) == 1
    code, printed, log = command("--write")
    assert code == 0 and "leaderboard.html" in log and "performer" in printed
    assert len(data_of((tmp_path / "leaderboard.html").read_text())["cells"]) == 1
    for arguments, message in (
        (("--format", "html", "--layout", "wide"), "--layout wide: an HTML page contains long, wide and published"),
        (("--format", "htm"), "--format htm: choose terminal, markdown, latex, csv, json, html"),
        (("--format", "html", "--task", "listop"), "did you mean listops"),
    ):
        code, _, error = command(*arguments)
        assert code == 2 and message in error


def test_an_unwritable_folder_raises_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--results"):
        write_page([], {name: layout.make([]) for name, layout in LAYOUTS.items()}, tmp_path / "file")


def test_badges_have_explanations() -> None:
    limits = {"train_limit": Limit("out_of_memory", 8192), "inference_limit": None, "unrestricted_at": 64}
    ended = badges({"statuses": {"ok": 1, "diverged": 1, "out_of_memory": 1}, **limits, "status_4x": "timeout"})
    assert str(ended) == "diverged 1/3, oom 1/3, oom@8k, no 4x, not restricted at 64"
    assert ended[0].help.startswith("1 of 3 seeds: the loss")
    assert ended[1].tone == "ended" and "too little memory" in ended[1].help
    assert ended[2].help == "the step benchmark failed at 8k tokens (out of memory)"
    assert ended[3].help == "no score at 4 times the training length"
    assert ended[4].help.startswith("the mechanism restricts no row of at most 64 tokens")
    alone = {"statuses": {"interrupted": 1}, "train_limit": None, "inference_limit": None}
    assert badges(alone)[0].tone == "open"
    merged = badges_of_all({"listops": Badges(ended[2:4]), "text": Badges(ended[2:3]), "image": None})
    assert str(merged) == "oom@8k (listops, text), no 4x (listops)"
    assert merged[0].help.endswith(": listops, text")


def test_commands_that_differ_in_more_than_the_seed_have_separate_lines() -> None:
    same = [make_record(seed=seed) for seed in (0, 4)]
    assert facts.command(same).endswith("seed=0,4")
    other = make_record(seed=5, command="lra-bench bench task=listops model=performer train.lr=1 seed=5")
    assert facts.command([*same, other]).count("\n") == 2


def test_every_colour_is_readable_on_the_dark_background() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    hues = {look("transformer", "full").colour, look("x", "control").colour}
    hues |= {family.hue for family in FAMILIES.values()}
    assert all(contrast(lightened(hue), DARK_GROUND) >= READABLE for hue in hues)
    assert len({lightened(hue) for hue in hues}) == len(hues)


def test_answers_name_the_best_row_above_the_floor_and_the_fastest_of_those_not_shown_to_be_worse() -> None:
    def rows(model: str, accuracy: float, speed: float, seeds: int = 3) -> list[Record]:
        made = [make_record(model, seed=seed, accuracy=accuracy + seed / 1e3) for seed in range(seeds)]
        for record in made:
            record.profiled = {**make_costs(1.0), "relative_speed": speed}
        return made

    records = [
        *rows("transformer", 0.3, 1.0),
        *rows("local", 0.9, 2.0),
        *rows("performer", 0.9, 9.0),
        *rows("fnet", 0.1, 20.0),
    ]
    text, _ = build(records)
    [answer] = re.findall(r'<article class="answer">(.*?)</article>', text, re.DOTALL)
    picks = dict(re.findall(r"<dt>(.*?)</dt><dd>.*?<b>(.*?)</b>", answer))
    assert picks["best score"] in ("local", "performer") and "fnet" not in picks.values()
    few, _ = build([record for record in records if record.key.seed == 0])
    [answer] = re.findall(r'<article class="answer">(.*?)</article>', few, re.DOTALL)
    assert "1 of 3 seeds" in answer and "fastest above the floor" in answer
    none, _ = build(rows("fnet", 0.01, 1.0))
    assert "no system exceeds the floor in every seed" in none

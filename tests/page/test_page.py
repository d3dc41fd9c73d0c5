"""The HTML page without a browser: a valid self-contained file with the numbers of the tables."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Limit
from lra_bench.figures.palette import FAMILIES, look
from lra_bench.page import charts, facts
from lra_bench.page.page import DARK_GROUND, READABLE, contrast, lightened, page, write_page
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.cell import Badges, badges, badges_of_all
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import systems
from lra_bench.tables.published import FLAGS, MARKS
from tests.support.page_records import data_of, study, table_of
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


def rows_by_kind(table: dict) -> list[tuple[str, dict]]:
    """Return for each row of a table the kind of its body, and the row."""
    columns = {column["key"] for column in table["columns"]}
    rows = [(body["kind"], row) for body in table["bodies"] for row in body["rows"]]
    assert all(set(row["cells"]) <= columns for _, row in rows)
    return rows


def test_sort_values_are_the_unrounded_numbers_of_the_tables(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    board = frames["long"]
    own = board[(board["protocol"] == "small") & (board["task"] == "listops")]
    shown = [row for kind, row in rows_by_kind(table_of(text, "small", "listops")) if kind in ("ranked", "modified")]
    assert len(shown) == len(own) > 10
    for column in ("score", "floor", "score_4x", "train_tokens_per_second"):
        assert [row["cells"][column]["value"] for row in shown] == own[column].tolist()
    ranked = own[(own["clears_floor"] == True) & (own["seeds"] >= 3)]  # noqa: E712
    ranks = [row["cells"]["rank"]["value"] for row in shown if "rank" in row["cells"]]
    assert ranks == ranked["rank"].tolist() != []
    wide = systems(frames["wide"], parts=True)
    overview = wide[(wide["protocol"] == "small") & (wide["section"] == "ranked")]
    for label in ("listops", "text", "image", "enwik8"):
        rows = [row["cells"][label] for _, row in rows_by_kind(table_of(text, "small")) if label in row["cells"]]
        assert sorted(cell["value"] for cell in rows if "value" in cell) == sorted(overview[f"skill_{label}"].dropna())


def test_costs_are_those_of_the_records(records: list[Record], built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    rows = {row["name"]: row["cells"] for _, row in rows_by_kind(table_of(text, "small", "listops"))}
    [record] = [each for each in records if each.key.model == "longformer" and each.key.seed == 2]
    assert record.training is not None and record.profiled is None
    assert rows["Longformer"]["seconds"]["value"] == record.training["train_seconds"]
    assert rows["Longformer"]["parameters"]["value"] == record.parameters["body_active"]
    assert "flops" not in rows["Longformer"]  # the number of tokens is unknown
    [length] = set(
        frames["long"].query("protocol == 'small' and model == 'longformer' and task == 'listops'").speed_length
    )
    [point] = [point for point in record.speed if (point["mode"], point["length"]) == ("inference", length)]
    per_sequence = 1e3 * point["median_seconds"] / point["batch_size"]
    assert rows["Longformer"]["milliseconds"]["value"] == pytest.approx(per_sequence, rel=1e-6)
    busy = make_record(training={**record.training, "steps": 10, "tokens_seen": 2_000_000})
    busy.environment["hardware"]["load_average_1_minute"] = 9.0
    busy.profiled = {**make_costs(1.0, ratio=4.0), "inference_seconds": 0.02}
    [(_, row), *_] = rows_by_kind(table_of(build([busy])[0], "quick", "listops"))
    assert "seconds" not in row["cells"] and row["cells"]["flops"]["value"] == 3e6 * 2_000_000 / 1e12
    assert row["cells"]["milliseconds"]["value"] == 20 and row["cells"]["step"]["value"] == 0.25


def test_the_page_shows_the_numbers_of_the_other_formats(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, frames = built
    shown_numbers = set(re.findall(r"\d+\.\d+", json.dumps(data_of(text))))
    for layout in ("wide", "published"):
        markdown = export.render(frames[layout], "markdown", layout=layout)
        tables = " ".join(line for line in markdown.splitlines() if line.startswith("|"))
        assert set(re.findall(r"\d+\.\d+", tables)) <= shown_numbers


def test_protocols_and_sections_have_separate_rows(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, _ = built
    data = data_of(text)
    assert [board["id"] for board in data["protocols"]] == ["quick", "small"]
    for board in data["protocols"]:
        assert {kind for kind, _ in rows_by_kind(board["systems"])} == {"ranked"}
    kinds = [kind for kind, _ in rows_by_kind(table_of(text, "small", "listops"))]
    assert kinds == sorted(kinds, key=["ranked", "floor", "modified"].index) and len(set(kinds)) == 3
    assert {kind for table in data["published"] for kind, _ in rows_by_kind(table)} == {"published"}
    assert {row["variant"] for _, row in rows_by_kind(table_of(text, "quick"))} == {
        "transformer", "performer", "bag_of_tokens",
    }  # fmt: skip
    assert any("arXiv 2102.03902, img/LRA.png (2021)" in table["title"] for table in data["published"])


def test_the_newest_version_of_a_protocol_is_first_and_modified_options_have_values() -> None:
    records = [make_record(protocol=protocol) for protocol in ("quick", "quick-v2", "small-v3", "small")]
    records.append(
        make_record(
            hash="eeee0000", protocol="quick-v2", protocol_modified=["train.steps"], config={"train": {"steps": 7}}
        )
    )
    text, _ = build(records)
    boards = data_of(text)["protocols"]
    assert [(board["id"], board["earlier"]) for board in boards] == [
        ("quick-v2", False), ("small-v3", False), ("quick", True), ("small", True),
    ]  # fmt: skip
    [modified] = [row for kind, row in rows_by_kind(boards[0]["tasks"][0]) if kind == "modified"]
    assert modified["modified"] == "train.steps=7"


def test_rows_of_several_machines_are_joined_in_the_table_of_systems() -> None:
    records = [make_record("local", task, hardware=machine) for task, machine in (("listops", "a"), ("recall", "b"))]
    records += [make_record("local", "listops", accuracy=0.7, hardware="b", seed=seed) for seed in range(2)]
    records += [make_record("performer", "recall", hardware="b"), make_record("local", reference="board", hardware="c")]
    rows = [row for _, row in rows_by_kind(data_of(build(records)[0])["protocols"][0]["systems"])]
    found = {(row["variant"], row["hardware"]): row for row in rows}
    assert len(rows) == len(found) == 5 == len({row["id"] for row in rows})
    parts = {("local", "a"), ("local", "b")}
    assert {key for key, row in found.items() if row["part"]} == parts
    joined = found["local", "several machines"]
    assert {"listops", "recall"} <= joined["cells"].keys() and len(joined["details"]) == 2
    assert "recall" not in found["local", "a"]["cells"]
    one_seed, two_seeds = (found["local", machine]["cells"]["listops"] for machine in ("a", "b"))
    assert joined["cells"]["listops"] == two_seeds != one_seed


def test_flags_of_published_scores_have_signs_and_a_legend(built: tuple[str, dict[str, pd.DataFrame]]) -> None:
    text, _ = built
    [table] = [each for each in data_of(text)["published"] if "arXiv 2011.04006, Table 1" in each["title"]]
    cells = {cell["text"] for _, row in rows_by_kind(table) for cell in row["cells"].values()}
    assert {"36.37¶", "64.27‡§", "57.46"} <= cells
    for flag in ("validation-is-test", "mixed-lengths", "before-bracket-fix"):
        assert f"{MARKS[flag]} {FLAGS[flag][0].upper()}{FLAGS[flag][1:]}." in " ".join(table["remarks"])


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
    titles = [title for title, _ in cell["facts"]]
    assert titles[:5] == ["Score", "Score by slice", "Training", "Parameters", "Growth and cost"]
    assert titles[5:] == ["Data", "Code", "Machine", "Software", "System"]
    assert "steps: 500" in cell["config"] and "seed" not in cell["config"]


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
        make_record("luna", differences={"model.mixer.kind": NASTY}),
    ]
    text, _ = build(records)
    assert "<img" not in text and text.count("</script>") == 2
    assert Parsed(text).open == []
    assert "&lt;img src=x" in text  # in the table without scripts
    cell = next(cell for cell in data_of(text)["cells"] if cell["command"] == NASTY)
    assert cell["seeds"][0]["reason"] == NASTY


@pytest.mark.slow
def test_the_page_without_records_states_how_to_create_one() -> None:
    text, _ = build([])
    parsed = Parsed(text)
    assert parsed.open == [] and "No records yet" in text
    data = data_of(text)
    assert (data["protocols"], data["cells"]) == ([], []) and data["published"]


@pytest.mark.slow
def test_a_record_without_results_has_a_row_and_details() -> None:
    bare = make_record("reformer", status="failed", parameters=None, data=None, speed=[], growth={}, flops=None,
                       energy=None, capability=None)  # fmt: skip
    text, frames = build([bare])
    assert len(frames["long"]) == 1
    [cell] = data_of(text)["cells"]
    assert cell["charts"] == [] and cell["seeds"][0]["status"] == "failed"
    [(_, row), *_] = rows_by_kind(table_of(text, "quick", "listops"))
    [badge] = row["cells"]["status"]["badges"]
    assert badge["tone"] == "open" and badge["help"].startswith("an error ended the cell")


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


def test_claims_of_rows_are_those_of_the_tables() -> None:
    records = [
        make_record(model, seed=seed, accuracy=accuracy)
        for model, accuracy, seeds in (("transformer", 0.6, 5), ("local", 0.8, 5), ("fnet", 0.1, 5), ("luna", 0.9, 2))
        for seed in range(seeds)
    ]
    text, frames = build(records)
    rows = {row["variant"]: row for _, row in rows_by_kind(table_of(text, "quick", "listops")) if "variant" in row}
    board = frames["long"].set_index("variant")
    for name, row in rows.items():
        assert (row["best"], row["clears"], row["seeds"]) == tuple(board.loc[name, ["best", "clears_floor", "seeds"]])
    places = {name: row["details"][0] for name, row in rows.items()}
    assert sorted(rows["local"]["beats"]) == sorted(places[name] for name in ("transformer", "fnet"))
    assert rows["transformer"]["beats"] == [places["fnet"]]
    assert rows["luna"]["beats"] == rows["luna"]["ties"] == rows["local"]["ties"] == rows["fnet"]["beats"] == []
    assert rows["transformer"]["compared"]["verdict"] == "reference"
    assert rows["local"]["compared"]["difference"].startswith("+20.0 points [")


def test_the_details_contain_the_bibtex_entry_of_the_paper() -> None:
    known = {"family": "linear", "paper": "Fast & {good} attention", "arxiv": "2009.14794"}
    text, _ = build([make_record(capability=known), make_record("local", capability={"family": "sparse"})])
    entries = {cell["name"]: cell["bibtex"] for cell in data_of(text)["cells"] if cell["bibtex"]}
    assert list(entries) == ["performer"]
    assert r"title = {{Fast \& \{good\} attention}}" in entries["performer"]
    assert "eprint = {2009.14794}" in entries["performer"] and "year = {2020}" in entries["performer"]

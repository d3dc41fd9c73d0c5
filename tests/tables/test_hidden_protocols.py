"""Records of the protocol smoke: hidden in tables, figures and Python unless the user names the protocol."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from lra_bench import load_records
from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.tables.claims import rankings
from lra_bench.tables.naming import explain_hidden, select
from lra_bench.tables.query import tables
from tests.support.page_records import data_of
from tests.support.record_factory import make_record

SENTENCE = "2 records of protocol smoke are hidden; --protocol smoke shows them"


@pytest.fixture
def smoke(tmp_path: Path) -> Path:
    """Return a results folder with two records, both of protocol smoke."""
    for model in ("luna", "reformer"):
        store.write(make_record(model, protocol="smoke"), tmp_path)
    return tmp_path


@pytest.fixture
def mixed(smoke: Path) -> Path:
    """Return a results folder with records of three protocols."""
    for protocol in ("quick", "small"):
        store.write(make_record("performer", protocol=protocol), smoke)
    return smoke


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs ``lra-bench`` on a results folder and returns its exit code and output."""

    def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
        where = ["--results", str(folder), "--reference", "none"]
        monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments, *where])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize("table", tables())
def test_tables_in_python_contain_smoke_only_if_it_is_named(mixed: Path, table: str) -> None:
    def protocols(protocol: str | None = None) -> set[str]:
        return set(load_records(mixed, table, reference="none", protocol=protocol)["protocol"])

    assert protocols() == {"quick", "small"}
    assert protocols("smoke") == {"smoke"} and protocols("small") == {"small"}


def test_an_unknown_protocol_is_an_error_that_names_the_argument(mixed: Path) -> None:
    with pytest.raises(UserError, match=r"^protocol=smalls: no record of that protocol; did you mean small\?"):
        load_records(mixed, reference="none", protocol="smalls")


def test_python_reports_that_all_records_are_hidden(smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_records(smoke, reference="none").empty
    assert "2 records of protocol smoke are hidden; protocol=smoke shows them." in capsys.readouterr().err
    assert len(load_records(smoke, reference="none", protocol="smoke")) == 2
    assert capsys.readouterr().err == ""


def test_records_are_reported_as_hidden_only_if_no_other_would_be_shown() -> None:
    own, other = make_record(protocol="smoke"), make_record("local", "text")
    assert explain_hidden([own]) == "1 record of protocol smoke is hidden; --protocol smoke shows it"
    assert explain_hidden([own, other], tasks="listops") and select([own, other], tasks="listops") == []
    assert explain_hidden([]) == explain_hidden([own, other]) == explain_hidden([own], protocol="smoke") == ""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("format", "layout"),
    [*itertools.product(["terminal", "markdown", "csv", "json"], ["long", "wide"]), ("latex", "wide")],
)
def test_the_leaderboard_states_how_to_show_hidden_records(command, smoke: Path, format: str, layout: str) -> None:
    code, printed, log = command(smoke, "leaderboard", "--format", format, "--layout", layout)
    assert code == 0 and (printed + log).count(SENTENCE) == 1
    assert "o records" not in printed + log and "luna" not in printed
    if format == "json":
        assert json.loads(printed) == []
    code, printed, log = command(smoke, "leaderboard", "--format", format, "--layout", layout, "--protocol", "smoke")
    assert code == 0 and "luna" in printed and "hidden" not in printed + log


def test_a_reference_row_is_not_searched_among_hidden_records(command, smoke: Path) -> None:
    assert command(smoke, "leaderboard", "--against", "luna") == (0, f"{SENTENCE}.\n", "")


def test_the_layout_of_published_numbers_does_not_mention_hidden_records(command, smoke: Path) -> None:
    code, printed, log = command(smoke, "leaderboard", "--layout", "published")
    assert code == 0 and "Performer" in printed and "hidden" not in printed + log


@pytest.mark.slow
def test_written_tables_and_the_page_state_how_to_show_hidden_records(command, smoke: Path) -> None:
    _, page, _ = command(smoke, "leaderboard", "--format", "html")
    assert command(smoke, "leaderboard", "--write")[0] == 0
    texts = [
        page,
        *(path.read_text() for path in smoke.glob("leaderboard*") if path.suffix in (".md", ".tex", ".html")),
    ]
    assert len(texts) == 5
    for text in texts:
        assert SENTENCE in text and "o records" not in text and "luna" not in text
    assert json.loads((smoke / "leaderboard.json").read_text()) == []


@pytest.mark.parametrize("arguments", [("plot",), ("plot", "heat_map"), ("compare", "luna", "reformer")])
def test_figures_and_comparisons_state_how_to_show_hidden_records(command, smoke: Path, arguments) -> None:
    code, printed, log = command(smoke, *arguments)
    assert code == 2 and printed == "" and log.strip() == f"lra-bench: {SENTENCE}"
    assert not (smoke / "figures").exists()


def test_named_figures_and_comparisons_contain_smoke(command, smoke: Path) -> None:
    assert command(smoke, "plot", "heat_map", "--protocol", "smoke")[0] == 0
    assert "luna" in next((smoke / "figures").glob("*.csv")).read_text()
    code, printed, _ = command(smoke, "compare", "luna", "reformer", "--protocol", "smoke")
    assert code == 0 and "smoke" in printed


@pytest.mark.slow
def test_mixed_folders_show_every_other_protocol_and_no_smoke(command, mixed: Path) -> None:
    code, page, _ = command(mixed, "leaderboard", "--format", "html")
    shown = json.dumps(data_of(page))
    assert code == 0 and "performer" in shown
    assert command(mixed, "leaderboard", "--write")[0] == command(mixed, "plot", "heat_map")[0] == 0
    written = [path for path in mixed.rglob("*") if path.suffix in (".md", ".tex", ".csv", ".json", ".html")]
    texts = [shown, *(path.read_text() for path in written if "runs" not in path.parts)]
    assert len(texts) > 10
    for text in texts:
        assert "luna" not in text and "are hidden" not in text
    assert "smoke" not in (mixed / "leaderboard.csv").read_text()


def test_versions_of_a_protocol_are_never_ranked_together(tmp_path: Path, command) -> None:
    for protocol, model, accuracy in (("small", "performer", 0.9), ("small-v2", "local", 0.6), ("base", "luna", 0.5)):
        for seed in range(3):
            store.write(make_record(model, protocol=protocol, seed=seed, accuracy=accuracy), tmp_path)
    records = store.load_all(tmp_path)
    places = {
        place[2]: {entry.name for entry in ranking.entries.values()} for place, ranking in rankings(records).items()
    }
    assert places == {"small": {"performer"}, "small-v2": {"local"}, "base": {"luna"}}
    assert {record.key.protocol for record in select(records, protocol="small")} == {"small", "small-v2"}
    assert {record.key.protocol for record in select(records, protocol="small-v2")} == {"small-v2"}
    with pytest.raises(UserError, match="small-v3: no record of that protocol"):
        select(records, protocol="small-v3")
    code, out, _ = command(tmp_path, "leaderboard", "--protocol", "small")
    assert code == 0 and "listops · small-v2 · " in out and "listops · small · " in out
    code, out, _ = command(tmp_path, "compare", "performer", "local", "--protocol", "small")
    assert code == 2


def test_records_of_smoke_with_a_version_are_hidden_too(tmp_path: Path) -> None:
    record = make_record("luna", protocol="smoke-v2")
    assert select([record]) == [] and select([record], protocol="smoke") == [record]

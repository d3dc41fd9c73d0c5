"""The card of a model: its claims, its safety, and a tiny one from the command line, which continues after a kill."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra_bench.cells.subprocess import write_unmeasured_record
from lra_bench.contracts import UserError
from lra_bench.grid.cost import estimates
from lra_bench.grid.plan import plan
from lra_bench.model_card import run
from lra_bench.model_card.page import card, claims, on_one_machine, results
from lra_bench.model_card.plan import CardRequest, plan_card
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.runtime.findings import Finding
from lra_bench.tables.comparison import compare, verdict
from tests.page.test_page import NASTY, Parsed
from tests.support.command import Folder
from tests.support.record_factory import make_record

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "results" / "reference" / "board2026"
COMPARES = re.compile(r"is better|is worse|no difference|no claim", re.IGNORECASE)


@pytest.fixture(scope="module")
def board() -> list[Record]:
    """Return the records of two systems of the board, as if they were the user's."""
    records = store.load_all(BOARD)
    tasks = ("listops", "s3", "enwik8")
    return [each for each in records if each.key.model in ("lstm", "transformer") and each.key.task in tasks]


def cells_of(records: list[Record], seeds: int) -> list[Record]:
    return [each for each in records if each.key.model == "lstm" and each.key.seed < seeds]


def build(cells: list[Record], records: list[Record], entries: str = "@misc{none}") -> str:
    findings = [Finding("causal: future tokens", "", True)]
    return card(cells, {"mqar": "<no data>"}, records, (), findings, None, {"This card": "lra-bench card"}, entries)


def section(text: str, name: str) -> str:
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_every_sentence_is_the_claim_of_compare(board: list[Record]) -> None:
    cells = cells_of(board, 3)
    found = claims(cells, board)
    name_a, name_b, expected = compare(board, "lstm", "transformer", ["enwik8", "listops", "s3"])
    assert {each.task: each.sentence.partition("; ")[2] for each in found} == {
        each.task: verdict(each, name_a, name_b) for each in expected
    }
    assert {each.task: each.group for each in found} == {"enwik8": "", "listops": "", "s3": "better"}
    page = re.sub("<h3>.*?</h3>", "", section(build(cells, board), "claims"))
    sentences = re.findall(r'<li data-task="(\w+)"><b>\w+</b>: (.*)\.</li>', page)
    assert sorted(sentences) == sorted((each.task, each.sentence.replace("<", "&lt;")) for each in found)
    assert len(COMPARES.findall(page)) == len(COMPARES.findall(" ".join(each.sentence for each in found)))


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_have_no_sentence(board: list[Record], seeds: int) -> None:
    few = [each for each in board if each.key.seed < seeds]
    assert claims(cells_of(few, seeds), few) == []
    page = section(build(cells_of(few, seeds), few), "claims")
    assert "<li" not in page and "3 are needed" in page
    assert not COMPARES.search(page)


def test_a_row_of_the_results_is_that_of_the_leaderboard(board: list[Record]) -> None:
    page = section(build(cells_of(board, 1), board), "results")
    for record in cells_of(board, 1):
        score = record.score()
        assert record.key.task in page and score is not None
        assert (f"{score:.3f}" if record.key.task == "enwik8" else f"{100 * score:.1f} %") in page
    assert "mqar" in page and "&lt;no data&gt;" in page


def test_the_transformer_is_that_of_one_machine_without_changes_and_pretraining() -> None:
    boards = [make_record("transformer", reference="one", accuracy=0.3, hardware="cpu-a", seed=seed) for seed in (0, 1)]
    boards += [make_record("transformer", reference="two", accuracy=0.4, hardware="cpu-b")]
    boards += [make_record("transformer", reference="one", accuracy=0.5, hash="1", differences={"causal": True})]
    boards += [
        make_record("transformer", reference="one", accuracy=0.6, hash="2", config={"pretrain": {"name": "masked"}})
    ]
    kept = on_one_machine(boards)
    assert {(each.key.hash, each.key.hardware) for each in kept} == {("0a1b2c3d", "cpu-a"), ("1", "cpu-epyc-2t")}
    assert results([make_record("mine")], kept).table["transformer"][0].startswith("30.0 %")


def test_names_and_texts_of_records_are_inert() -> None:
    label = {"label": NASTY, "differences": {"model.mixer.note": NASTY}, "position": None}
    records = [make_record("mine", seed=seed, variant=label) for seed in range(3)]
    records += [make_record("mine", "recall", status="failed", variant=label, reason=NASTY, command=f"echo {NASTY}")]
    text = build(records, [*records, *(make_record("transformer", seed=seed) for seed in range(3))], NASTY)
    page = Parsed(text)
    assert not page.open and not page.all("script") and "alert(1)" in text
    assert {(each["src"] or "").partition(";")[0] for each in page.all("img")} == {"data:image/svg+xml"}
    [policy] = [each["content"] for each in page.all("meta") if "http-equiv" in each]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    urls = [value or "" for _, each in page.elements for name, value in each.items() if name in ("href", "src")]
    assert all(url.startswith("data:image/") for url in urls)


def test_the_file_name_is_safe() -> None:
    label = {"label": "Mine", "differences": {"model.mixer.note": "../../$(touch x) <b>"}, "position": None}
    assert re.fullmatch(r"mine[\w.=-]+-quick", run._file_name(make_record("mine", variant=label)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "a card describes one model"),
        (["model=local,performer"], "a card describes one model"),
        (["model=local", "task=listops"], "task=: a card has a fixed grid"),
        (["model=local", "seed=3"], "use --seeds"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_card(CardRequest(overrides, [0], ["lstm"], tmp_path, None, None))


def test_the_transformer_is_measured_on_tasks_of_the_model_only(tmp_path: Path) -> None:
    request = CardRequest(["model=fnet"], [0, 1, 2], ["local"], tmp_path, None, None)
    first = plan_card(request)
    assert {each.cell.key.task for each in first.reference} == {"listops"}
    for each in first.own:
        if each.status == "incompatible":
            write_unmeasured_record(each.cell, 1, tmp_path, "incompatible", each.reason)
    assert {each.cell.key.task for each in plan_card(request).reference} == {"listops"}


def test_a_wrong_declaration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Finding("causal: future tokens", "outputs depend on later tokens", False)]
    monkeypatch.setattr(run, "check_overrides", lambda overrides, config_dir: wrong)
    with pytest.raises(UserError, match="future tokens: outputs depend on later tokens; correct what it declares"):
        run.check_model(["model=mine"], None)


def test_the_duration_of_a_new_model_is_that_of_others_on_the_boards(tmp_path: Path) -> None:
    record = make_record("local", "recall")
    assert record.training is not None and record.wall_seconds is not None
    store.write(record, tmp_path / "boards" / "one")
    cells = plan(["model=performer", "task=recall", "hardware=cpu"], tmp_path)
    assert [each.seconds for each in estimates(cells, tmp_path, tmp_path / "boards")] == [None]
    [found] = estimates(cells, tmp_path, tmp_path / "boards", others=True)
    more = cells[0].cell.config.train.steps / record.training["steps"] - 1
    assert found.seconds == pytest.approx(record.wall_seconds + more * record.training["train_seconds"])


def test_printing_without_chromium_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.print_pdf(tmp_path / "card.html") is None
    assert "--pdf: no Chromium is installed" in capsys.readouterr().err


def test_the_entry_of_this_software_is_that_of_the_citation_file() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    title = re.search(r'^title: "(.*)"$', text, re.MULTILINE)
    assert title is not None and f"{{{title[1]}}}" in run.SOFTWARE.format(version="1")


MODEL = """from lra_bench.models.mixer import HeadMixer, MixerSpec


class Mine(HeadMixer):
    spec = MixerSpec(family="own", paper="none", causal="exact")

    def attend(self, q, k, v, context):
        return q.sigmoid() * v
"""


@pytest.mark.slow
def test_a_tiny_card_continues_after_a_kill(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    own = tmp_path / "ideas"
    for name, text in {
        "mine.py": MODEL,
        "model/mine.yaml": "# @package _global_\nmodel: {label: <b>Mine</b>, mixer: {_target_: mine.Mine}}\n",
        "grid/card.yaml": "all: {hardware: cpu, hardware.threads: 1, measure.speed_lengths: '[]', train.steps: 4}\n"
        "parts: [{task: [parity, recall]}]\n",
    }.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    speed = ["measure.speed_lengths=[16,32]", "measure.speed_seconds=0.01"]
    options = ["protocol=smoke", "launcher.workers=1", "measure.flops=false", "tracker=none", *speed]
    command = ["card", "model=mine", *options, "--rivals", "local", "--config-dir", str(own), "--reference", "none"]
    planned = folder.run(*command, "--dry-run")
    assert planned.stdout.count("to run") == 2 and "Profile of transformer" in planned.stderr
    process = folder.start(*command)
    deadline = time.monotonic() + 900
    while not folder.records() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first = folder.records()[0]
    assert not list(folder.results.glob("cards/*"))
    printed = folder.run(*command, timeout=900).stdout
    records, profiles = folder.records(), list(folder.results.glob("profiles/*/*.json"))
    assert [each["key"]["task"] for each in records] == ["parity", "recall"] and len(profiles) == 1
    assert next(each for each in records if each["key"] == first["key"])["started_at"] == first["started_at"]
    [page] = folder.results.glob("cards/*.html")
    assert printed == f"Card: {page.relative_to(tmp_path)}\n"
    text = page.read_text()
    assert "<b>Mine</b>" not in text and "&lt;b&gt;Mine&lt;/b&gt;" in text and "3 are needed" in text
    assert {each["variant"] for each in json.loads(profiles[0].read_text())["rows"]} >= {"mine", "local", "transformer"}
    script = f"""
import lra_bench, yaml
options = {{name: yaml.safe_load(value) for name, value in (option.split("=") for option in {options[1:]!r})}}
common = dict(protocol="smoke", rivals="local", reference="none")
print(*lra_bench.card("mine", overrides=options, config_dir="ideas", **common))
"""
    python = [sys.executable, "-c", script]
    done = subprocess.run(python, cwd=tmp_path, env=folder.environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith(page.name), done.stderr
    assert folder.records() == records and list(folder.results.glob("profiles/*/*.json")) == profiles

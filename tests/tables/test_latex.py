"""The LaTeX table of systems and tasks, its citations, and the choice and order of systems and tasks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.cli import main
from lra_bench.config.groups import option_files
from lra_bench.contracts import UserError
from lra_bench.records.store import write
from lra_bench.tables import export
from lra_bench.tables.bibliography import bibliography, papers
from lra_bench.tables.latex import escape
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import task_columns
from tests.support.record_factory import make_record

MODELS = {"transformer": ("Transformer", 0.6), "local": ("Local", 0.5), "performer": ("Performer", 0.3)}
NASTY = r"a|b & 50% #1 _x_ {y} ~ ^ \ <z> $é ünï 漢"


def records() -> list:
    made = [
        make_record(model, task, seed, accuracy=score + 0.01 * seed)
        for model, (_, score) in MODELS.items()
        for task in ("listops", "text")
        for seed in range(3)
    ]
    bits = {"bits_per_character": 2.5, "loss": 1.7, "n": 900, "low": 2.4, "high": 2.6}
    made += [
        make_record("reformer", "text", status="out_of_memory"),
        make_record("s4d", "enwik8", metrics={"test": bits}),
    ]
    made += [make_record("local", protocol_modified=["train.steps"], hash="ffff0000")]
    return made


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs ``lra-bench`` and returns its exit code and output."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a results folder with ``records``, which commands read by default."""
    for record in records():
        write(record, tmp_path)
    monkeypatch.setenv("LRA_BENCH_RESULTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return LAYOUTS["wide"].make(records())


def table(frame: pd.DataFrame, tasks: list[str], models: list[str]) -> str:
    keys = {model: paper.key for model, paper in papers().items()}
    chosen = LAYOUTS["wide"].arranged(frame, tasks, models)
    return export.render(chosen, "latex", layout="wide", keys=keys)


def rows(text: str) -> list[list[str]]:
    """Return the cells of the lines of a tabular."""
    return [[cell.strip() for cell in line.removesuffix(r"\\").split("&")] for line in text.splitlines() if "&" in line]


def test_the_table_has_labels_citations_a_floor_and_bold_scores_above_it(frame: pd.DataFrame) -> None:
    text = table(frame, ["text", "listops"], ["performer", "transformer"])
    head, performer, transformer, floor = rows(text)
    assert head == ["{}", "{text}", "{listops}"] and floor[0] == "Strongest floor"
    assert performer == [r"Performer~\cite{choromanski2020rethinking}", "31.0", "31.0"]
    assert transformer == [r"Transformer~\cite{vaswani2017attention}", r"\bfseries 61.0", r"\bfseries 61.0"]
    assert float(floor[1]) < 61 and float(floor[2]) < 61
    for part in (r"\begin{table}", r"\toprule", r"\label{tab:lra-bench-quick}", "S[table-format=2.1]", "over 3 seeds"):
        assert part in text
    assert text.count(r"\midrule") == 2 and text.count(r"\begin{tabular}") == 1


def test_no_score_is_bold_without_enough_seeds_above_the_floor() -> None:
    frame = LAYOUTS["wide"].make([make_record(accuracy=0.9), make_record("local", accuracy=0.1)])
    text = table(frame, [], [])
    assert "bfseries" not in text and "No system is marked as best" in text


def test_statuses_bits_and_unmeasured_cells_are_explained(frame: pd.DataFrame) -> None:
    text = table(frame, [], [])
    by_name = {row[0].partition("~")[0]: row[1:] for row in rows(text)}
    tasks = [cell.strip("{}") for cell in by_name["{}"]]
    assert by_name["Reformer"][tasks.index("text")] == "{oom}" and "oom: out of memory." in text
    assert by_name["S4D"][tasks.index("enwik8")] == "2.500" and by_name["S4D"][tasks.index("text")] == ""
    assert "(enwik8: bits per character, lower is better)" in text and "modified" not in text


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_models_and_tasks_select_and_order_rows_and_columns(layout: str) -> None:
    made = LAYOUTS[layout].make(records())
    chosen = LAYOUTS[layout].arranged(made, ["text", "listops"], ["local", "performer"])
    measured = chosen[chosen["model"].notna()]
    if layout == "long":
        ranked = measured[measured["section"] == "ranked"]
        expected = [(task, model) for task in ("text", "listops") for model in ("local", "performer")]
        assert list(zip(ranked["task"], ranked["model"], strict=True)) == expected
    else:
        assert list(measured[measured["section"] == "ranked"]["model"]) == ["local", "performer"]
        assert task_columns(chosen)[:2] == ["text", "listops"]


def test_published_numbers_are_selected_by_the_labels_of_models() -> None:
    kind = LAYOUTS["published"]
    chosen = kind.arranged(kind.make([]), ["text", "listops"], ["performer", "transformer"])
    assert set(chosen["task"]) == {"text", "listops"} and set(chosen["model"].str.lower()) == {
        "performer",
        "transformer",
    }
    text = export.render(chosen, "markdown", layout="published")
    assert "| Performer" in text and "Linformer" not in text and re.search(r"\| model +\| text +\| listops", text)
    with pytest.raises(UserError, match="--models performr: no published number of that model; did you mean Performer"):
        kind.arranged(kind.make([]), [], ["performr"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "performr"), "--models performr: no record of that model; did you mean performer?"),
        (("--tasks", "text,listop"), "--tasks listop: no record of that task; did you mean listops?"),
        (("--format", "latex", "--layout", "long"), "--layout long: LaTeX contains one table of systems and tasks"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_names_are_one_sentence(command, arguments: tuple[str, ...], message: str) -> None:
    code, printed, log = command("leaderboard", *arguments)
    assert (code, printed) == (2, "") and message in log and log.count("\n") == 1


def test_the_command_writes_one_table_per_protocol_and_the_bibliography(command, folder: Path) -> None:
    code, printed, _ = command("leaderboard", "--format", "latex", "--models", "local,performer")
    assert code == 0 and printed.count(r"\begin{table") == 1 and "Transformer" not in printed
    cited = set(re.findall(r"\\cite\{(\w+)\}", printed))
    assert cited < set(re.findall(r"@misc\{(\w+),", (folder / "systems.bib").read_text())) and len(cited) == 2
    assert command("leaderboard", "--write")[0] == 0
    written = {path.name: path.read_text() for path in folder.glob("*.tex")}
    assert [text.count(r"\begin{table") for text in written.values()] == [1] * len(written)
    assert all(name.startswith("leaderboard-quick") for name in written)


def test_cite_prints_the_entries_of_models(command) -> None:
    code, printed, _ = command("cite", "s4d", "performer")
    assert code == 0 and re.findall(r"@misc\{(\w+),", printed) == [
        "choromanski2020rethinking",
        "gu2022parameterization",
    ]
    assert "  author = {Choromanski and others},\n  title = {{Rethinking Attention with Performers}},\n" in printed
    assert command("cite", "perfomer")[0] == 2


def test_every_system_of_a_paper_has_an_entry_with_a_key_of_its_own() -> None:
    found = papers()
    without = {model for model in option_files("model") if model not in found}
    assert without == {"bag_of_tokens"} or len(without) < 3
    by_key = {paper.key: paper for paper in found.values()}
    assert len(set(found.values())) == len(by_key) > 80
    assert len({paper.arxiv for paper in by_key.values() if paper.arxiv}) == sum(bool(p.arxiv) for p in by_key.values())
    assert [key for key, paper in by_key.items() if not paper.authors] == ["locality2025"]
    for paper in by_key.values():
        assert re.fullmatch(r"[a-z]+\d{4}[a-z0-9]*", paper.key) and paper.title and re.fullmatch(r"\d{4}", paper.year)
        assert not paper.arxiv or f"eprint = {{{paper.arxiv}}}" in paper.bibtex()


def test_special_characters_are_escaped() -> None:
    assert escape(r"50 % & #1_a {b} $c \ ~ ^ <|>") == (
        r"50 \% \& \#1\_a \{b\} \$c \textbackslash{} \textasciitilde{} \textasciicircum{} "
        r"\textless{}\textbar{}\textgreater{}"
    )
    assert escape("Nyström · ± × ° – … ≤ → Čech 漢\u200b") == (
        r"Nyström · ± × ° -- \dots{} $\le$ $\to$ Cech \texttt{U+6F22}"
    )


def test_an_empty_table_is_a_comment_in_the_signs_of_its_format() -> None:
    empty = LAYOUTS["wide"].make([])
    sentence = f"{export.NO_RECORDS}."
    assert export.render(empty, "latex", layout="wide") == f"% {sentence}\n"
    modified = LAYOUTS["wide"].make([make_record(protocol_modified=["train.steps"])])
    assert export.render(modified, "latex", layout="wide").startswith("% All rows are of modified protocols")
    assert export.render(empty, "markdown", layout="wide") == f"<!-- {sentence} -->\n"
    assert export.render(empty, "terminal", layout="wide") == f"{sentence}\n"


ARTICLE = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,siunitx}
\begin{document}
%s
\bibliographystyle{plain}
\bibliography{systems}
\end{document}
"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_table_fits_a_two_column_article_and_its_bibliography_is_found(frame: pd.DataFrame, tmp_path: Path) -> None:
    many = [
        *records(), make_record("performer", hash="ffff0001", differences={"model.mixer.kind": NASTY}),
        *(make_record("transformer", task) for task in ("key_to_door", "retrieval_synthetic", "pathfinder128", "copy")),
    ]  # fmt: skip
    tables = [
        table(frame, ["listops", "text"], ["performer", "transformer"]),
        table(LAYOUTS["wide"].make(many), [], []),
    ]
    (tmp_path / "article.tex").write_text(ARTICLE % "\n".join(tables), encoding="utf-8")
    (tmp_path / "systems.bib").write_text(bibliography(papers().values()), encoding="utf-8")
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "article.tex"]
    for program in (latex, ["bibtex", "article"], latex, latex):
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout[-3000:]
    log = (tmp_path / "article.log").read_text(errors="replace")
    assert [width for width in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(width) > 2] == []
    assert not re.findall(r"Citation .* undefined|Float too large|Missing character", log)

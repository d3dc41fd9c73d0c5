"""Help, version, completion and lists of the command line."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from lra_bench.cli import main
from lra_bench.cli.examples import EXAMPLES
from lra_bench.cli.options import complete
from lra_bench.config import sources
from lra_bench.config.effective import mixer_capability, network_capability
from lra_bench.config.listing import by_family, options
from lra_bench.config.sources import editable_files
from lra_bench.config.validation import check_override, option_names
from lra_bench.contracts import UserError
from lra_bench.records.names import LAST, find_paths

ROOT = Path(__file__).parents[2]


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out + printed.err


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


COMMANDS = dict(commands(get_group(main.app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_help_has_examples_whose_options_parse(words, monkeypatch, capsys, tmp_path):
    code, text = run(monkeypatch, capsys, *words, "-h")
    assert code == 0 and f"Usage: lra-bench {' '.join(words)}" in text
    examples = re.findall(r"^ +(lra-bench .*)$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        _, *given = shlex.split(example)
        assert tuple(given[: len(words)]) == words, example
        context = COMMANDS[words].make_context(example, given[len(words) :])
        for override in context.params.get("overrides") or []:
            check_override(override.partition(",")[0], None)
        if (record := context.params.get("record")) and record != LAST:
            assert find_paths(record, tmp_path, ROOT / "results" / "reference"), example


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_the_choices_are_named_with_commands_that_list_them(command, monkeypatch, capsys):
    _, text = run(monkeypatch, capsys, command, "--help")
    for group in ("task", "model", "position", "protocol", "hardware", "search", "launcher"):
        (kind,) = re.findall(rf"^ +{group}= +lra-bench list (\w+)$", text, re.MULTILINE)
        assert options(kind)
    assert re.search("^ +seed= ", text, re.MULTILINE)


def test_every_command_has_examples_and_every_example_a_command():
    assert set(EXAMPLES) == {" ".join(words) for words in COMMANDS}


def test_the_version(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version") == (0, f"lra-bench {version('lra-bench')}\n")


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "lra_bench", "bench", "model=performr"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("lra-bench: model=performr: ")


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("words", [[], ["data"], ["results"]])
def test_help_has_a_short_option(flag, words, monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, *words, flag)
    assert code == 0 and "Usage: lra-bench" in text and "-h, --help" in text


@pytest.mark.parametrize(
    ("incomplete", "completions"),
    [
        ("mod", ["model=performer", "model=ALL"]),
        ("model=perf", ["model=performer", "model=performer_relu"]),
        ("model=local,perf", ["model=local,performer", "model=local,performer_relu"]),
        ("protocol=sm", ["protocol=small", "protocol=smoke"]),
        ("", ["task=", "model=", "position="]),
        ("train.lr=", []),
    ],
)
def test_an_override_is_completed(incomplete, completions):
    found = complete(incomplete)
    assert set(completions) <= set(found) and all(each.startswith(incomplete) for each in found)
    assert bool(found) == bool(completions)


@pytest.mark.one_in(3)
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["bench", "model", "=", "perf"], ["performer", "performer_relu"]),
        (["profile", "task", "="], ["ALL", "copy", "enwik8"]),
        (["bench", "prot"], ["protocol=quick"]),
        (["doct"], ["doctor"]),
    ],
)
def test_bash_completes(words, completions, tmp_path):
    command = tmp_path / "lra-bench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lra_bench.cli.main "$@"\n')
    command.chmod(0o755)
    script = f"""eval "$({command} --show-completion bash)"
COMP_WORDS=(lra-bench {shlex.join(words)}); COMP_CWORD={len(words)}
_lra_bench_completion {command}
printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(completions) <= set(done.stdout.split()), done.stderr


def test_completion_loads_no_heavy_library():
    code = "import sys; from lra_bench.cli import main, options; options.complete('model='); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas", "hydra"} & set(loaded)


def test_models_are_listed_by_family(monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "list", "models")
    rows = options("models", declared=True)
    assert code == 0
    lines = text.splitlines()
    headings = [line for line in lines if not line.startswith(" ")]
    families = sorted(row["family"] for row in rows)
    assert headings == [f"{family} ({families.count(family)})" for family in dict.fromkeys(families)]
    assert "linear (6)" in headings and len(lines) == len(headings) + len(rows)
    assert lines[1].startswith("  ")


def test_models_are_filtered_by_family_and_direction(monkeypatch, capsys):
    _, text = run(monkeypatch, capsys, "list", "models", "--family", "low_rank", "--causal", "--json")
    rows = json.loads(text)
    family = [row for row in options("models", declared=True) if row["family"] == "low_rank"]
    assert [row["name"] for row in rows] == [row["name"] for row in family if row["causal"] == "exact"]
    assert 0 < len(rows) < len(family) and "growth" in rows[0]
    assert run(monkeypatch, capsys, "list", "--family", "liner")[0] == 2
    with pytest.raises(UserError, match="--family liner: there is no such family; did you mean linear"):
        options("models", family="liner")
    with pytest.raises(UserError, match="--causal: only applies to lra-bench list models"):
        options("tasks", causal=True)


def test_columns_of_tables_are_listed_with_their_meaning(monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "list", "columns")
    assert code == 0
    headings = [line for line in text.splitlines() if not line.startswith(" ")]
    assert headings[0].startswith("leaderboard --layout long (") and len(headings) == 6
    line = next(line for line in text.splitlines() if line.split()[:1] == ["train_peak_allocated_bytes"])
    assert "CUDA" in line
    rows = json.loads(run(monkeypatch, capsys, "list", "columns", "--json")[1])
    assert len(rows) == len(text.splitlines()) - len(headings)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (
            "models",
            "s4d",
            ["arXiv 2206.11893", "state-spaces/s4@", "Deviations from the authors' code:", "poles: Initial"],
        ),
        ("models", "capsule_em", ["Deviations of its options and base classes:"]),
        ("tasks", "listops", ["digits_of_children", "class          lra_bench.tasks.listops"]),
        ("position", "rope", ["Su et al. 2021"]),
        ("protocols", "smoke", ["steps: 20"]),
        ("figures", "ranks", ["pairs are tested"]),
        ("columns", "state_bytes", ["state_bytes"]),
        ("cells", "task=listops model=s4d", ["train.lr="]),
        ("options", "train.lr", ["(default: 0.001)"]),
    ],
)
def test_one_option_is_printed_with_everything_about_it(kind, name, words, monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "list", kind, name)
    assert code == 0 and [word for word in words if word not in text] == []


def test_an_unknown_option_is_one_sentence(monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "list", "models", "performr")
    assert code == 2 and "list models performr: there is no such model; did you mean performer" in text


def test_all_options_are_listed_with_default_and_description(monkeypatch, capsys):
    rows = {row["name"]: row for row in json.loads(run(monkeypatch, capsys, "list", "options", "--json")[1])}
    names = {name for name in option_names() if name.partition(".")[0] not in ("task", "model", "position")}
    assert {name for name in names if "." in name} <= set(rows)
    assert rows["backbone.hybrid.every"]["description"].startswith("Number k")
    assert rows["train.steps"]["default"] == 1000
    assert rows["measure.extrapolation_ratios"]["description"] == "Lengths divided by the training length."
    assert [name for name, row in rows.items() if not row["description"]] == []


def test_a_model_that_cannot_be_loaded_is_listed_without_a_family(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("# Broken.\nmodel: {mixer: {_target_: no.such.Thing}}\n")
    (tmp_path / "model" / "empty.yaml").write_text("# Empty.\n")
    assert [row["name"] for row in by_family(options("models", tmp_path), tmp_path)["no family"]] == [
        *("broken", "empty")
    ]


def test_capabilities_equal_those_of_the_classes_and_are_read_without_importing_them(monkeypatch):
    code = (
        "import sys; from lra_bench.config.listing import options; "
        "options('models', declared=True); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas"} & set(loaded)
    read = options("models", declared=True)
    monkeypatch.setattr(sources, "_edited", lambda: frozenset(editable_files()))  # so that the classes are imported
    assert options("models", declared=True) == read
    assert mixer_capability({"_target_": "lra_bench.models.full.softmax_attention.SoftmaxAttention"}).family == "full"
    assert network_capability("lra_bench.models.bag_of_tokens.BagOfTokens").family == "control"

"""What the command line tells of itself: help, version, completion, lists."""

import json
import subprocess
import sys

import pytest

from lra_bench import abilities, cli
from lra_bench.abilities import mixer_ability, network_ability
from lra_bench.contracts import UserError
from lra_bench.listing import by_family, options


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out + printed.err


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
    whole = [row for row in options("models", declared=True) if row["family"] == "low_rank"]
    assert [row["name"] for row in rows] == [row["name"] for row in whole if row["causal"] == "exact"]
    assert 0 < len(rows) < len(whole) and "growth" in rows[0]
    assert run(monkeypatch, capsys, "list", "--family", "liner")[0] == 2
    with pytest.raises(UserError, match="--family liner: there is no such family; did you mean linear"):
        options("models", family="liner")
    with pytest.raises(UserError, match="--causal: is for lra-bench list models"):
        options("tasks", causal=True)


def test_a_model_that_cannot_be_loaded_is_listed_without_a_family(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "broken.yaml").write_text("# Broken.\nmodel: {mixer: {_target_: no.such.Thing}}\n")
    (tmp_path / "model" / "empty.yaml").write_text("# Empty.\n")
    assert [row["name"] for row in by_family(options("models", tmp_path), tmp_path)["no family"]] == [
        *("broken", "empty")
    ]


def test_abilities_are_those_of_the_classes_and_read_without_loading_them(monkeypatch):
    code = "import sys; from lra_bench.listing import options; options('models', declared=True); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas"} & set(loaded)
    read = options("models", declared=True)
    monkeypatch.setattr(abilities, "_written", lambda target, attribute: None)
    assert options("models", declared=True) == read
    assert mixer_ability("lra_bench.models.full.softmax_attention.SoftmaxAttention").family == "full"
    assert network_ability("lra_bench.models.bag_of_tokens.BagOfTokens").family == "control"

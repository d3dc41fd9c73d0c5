"""The command ``lra-bench new``."""

import re
from pathlib import Path

import pytest

from lra_bench.cli.new import Kind, rendered
from tests.support.command import Folder

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = {
    Kind.model: ("adding-a-model.md", "my_mixer"),
    Kind.task: ("adding-a-task.md", "echo"),
    Kind.measurement: ("adding-a-measurement.md", "state_norm"),
}


@pytest.mark.parametrize("kind", Kind)
def test_the_files_are_those_of_the_guide(kind):
    guide, name = GUIDES[kind]
    text = (DOCS / guide).read_text(encoding="utf-8")
    for path, content in rendered(kind, name).items():
        assert re.search(rf'^```\w+ title="ideas/{path}"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[1] == content


@pytest.mark.parametrize("kind", Kind)
def test_the_name_replaces_that_of_the_guide(kind):
    files = rendered(kind, "red_fox")
    assert list(files) == ["red_fox.py", f"{kind}/red_fox.yaml"]
    text = "".join(files.values())
    assert "red_fox.RedFox" in text and "class RedFox" in text
    assert not re.search("echo|my_mixer|MyMixer|state_norm|StateNorm", text, re.IGNORECASE)
    compile(files["red_fox.py"], "red_fox.py", "exec")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "other"), [("model", "task=listops"), ("task", "model=transformer")])
def test_the_files_work_as_they_are(kind, other, tmp_path):
    folder = Folder(tmp_path)
    assert "Run it: lra-bench bench --config-dir ideas" in folder.run("new", kind, "red_fox").stdout
    folder.run("bench", "--config-dir", "ideas", f"{kind}=red_fox", other, "protocol=smoke", "hardware=cpu")
    assert folder.record()["status"] == "ok" and folder.record()["key"][kind] == "red_fox"
    again = folder.run("new", kind, "red_fox", check=False)
    assert again.returncode == 2 and "exists already; choose another name or --folder" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("red-fox", "red-fox: is no name of a Python module"),
        ("performer", "performer: is the name of a model of lra-bench; choose another, such as my_performer"),
        ("copy", "copy: is the name of an installed module; choose another, such as my_copy"),
    ],
)
def test_names_that_cannot_work_are_refused(name, words, tmp_path):
    folder = Folder(tmp_path)
    done = folder.run("new", "model", name, check=False)
    assert done.returncode == 2 and words in done.stderr and not list(tmp_path.glob("ideas/*"))

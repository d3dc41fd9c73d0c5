"""The command ``lra-bench new``."""

import re

import pytest

from lra_bench.cli.new import Kind, rendered
from tests.support.command import Folder


def test_a_name_may_contain_that_of_the_guide():
    assert "class MyEcho(Task)" in rendered(Kind.task, "my_echo")["my_echo.py"]


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

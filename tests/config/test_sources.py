"""The key of a cell covers the code of classes outside lra-bench, and of edited classes of lra-bench."""

from pathlib import Path

import pytest

from lra_bench.config import sources
from lra_bench.config.import_path import importable
from lra_bench.config.sources import differing, editable_files, libraries, manifest, outside_modules, source_digests
from lra_bench.grid.plan import plan
from tests.support.command import TINY

MIXER = '''"""A mixer."""
import torch
from helper import scale
import parts.inner

from lra_bench.models.mixer import HeadMixer, MixerSpec


class Mine(HeadMixer):
    """A mixer."""

    spec = MixerSpec(family="test", paper="a test")

    def attend(self, q, k, v, context):
        """Return the values."""
        return scale * v
'''
MODEL = "# @package _global_\nmodel: {label: Mine, mixer: {_target_: own_mixer.Mine}}\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "own_mixer.py": MIXER,
        "helper.py": "scale = 1\n",
        "parts/__init__.py": "",
        "parts/inner.py": "from . import deeper\n",
        "parts/deeper.py": "value = 1\n",
        "unrelated.py": "value = 1\n",
        "copy.py": "raise RuntimeError\n",
        "model/mine.yaml": MODEL,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def key(folder, *overrides):
    (planned,) = plan([*TINY, "model=mine", *overrides], folder / "results", folder)
    return planned.cell.key.hash


def edit(file, before, after):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.mark.parametrize(
    ("name", "before", "after", "changes"),
    [
        ("own_mixer.py", "scale * v", "2 * scale * v", True),
        ("helper.py", "scale = 1", "scale = 3", True),
        ("parts/deeper.py", "value = 1", "value = 2", True),
        ("own_mixer.py", "Return the values", "Return other values", False),
        ("own_mixer.py", "import torch", "import torch  # a comment\n", False),
        ("unrelated.py", "value = 1", "value = 2", False),
        ("copy.py", "RuntimeError", "ValueError", False),
    ],
)
def test_an_edit_of_the_users_code_is_another_cell(folder, name, before, after, changes):
    first = key(folder)
    assert key(folder) == first
    edit(folder / name, before, after)
    assert (key(folder) != first) == changes


def test_a_cell_contains_the_text_of_the_users_modules(folder):
    (planned,) = plan([*TINY, "model=mine"], folder / "results", folder)
    assert planned.cell.sources["own_mixer"] == MIXER
    assert set(planned.cell.sources) == {"own_mixer", "helper", "parts", "parts.inner", "parts.deeper"}
    (built_in,) = plan([*TINY, "model=local"], folder / "results")
    assert built_in.cell.sources == {}


def test_the_code_of_an_installed_package_of_models_is_covered_and_the_version_of_a_library(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    for name, requires in {
        "of_mixers": "Requires-Dist: lra.bench>=0.1\n",
        "of_modules": "Requires-Dist: torch\n",
    }.items():
        (installed / f"{name}-1.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2+cpu\n{requires}"
        (installed / f"{name}-1.dist-info" / "METADATA").write_text(metadata)
        (installed / f"{name}-1.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/inner.py,,\n")
        (installed / name).mkdir()
        (installed / name / "__init__.py").write_text("import neighbour\nfrom . import inner\n")
        (installed / name / "inner.py").write_text("")
    (installed / "neighbour.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    nodes = [{"_target_": f"{name}.Class"} for name in ("of_mixers", "of_modules")]
    assert [set(outside_modules(node)) for node in nodes] == [{"of_mixers", "of_mixers.inner"}, set()]
    assert libraries(nodes) == {"of_modules": "1.2"} == source_digests(nodes[1])
    assert libraries({"_target_": "own_mixer.Mine"}) == {}
    own = tmp_path / "own"
    own.mkdir()
    (own / "wrapping.py").write_text("import json, torch\n\n\ndef make():\n    import of_modules.inner\n")
    monkeypatch.syspath_prepend(str(own))
    assert libraries({"_target_": "wrapping.make"}) == {"of_modules": "1.2"}


def test_only_an_edit_of_the_code_differs_from_the_stored_digests(tmp_path):
    file = tmp_path / "performer.py"
    original = editable_files()["lra_bench.models.linear.performer"].read_text()
    for text, edited in (
        (original, False),
        (original.replace("class Performer", "# A comment.\nclass Performer"), False),
        (original.replace("FAVOR+", "FAVOR"), False),
        (original.replace("-0.5", "-0.25"), True),
        ("def", True),
    ):
        file.write_text(text)
        found = differing({"lra_bench.models.linear.performer": file}, manifest()["modules"])
        assert bool(found) == edited, text[:80]


def test_a_cell_with_an_edited_class_of_lra_bench_is_marked(tmp_path, monkeypatch):
    cells = {}
    for edited in ("", "lra_bench.models.kernels.linear", "lra_bench.models.kernels.tree"):
        monkeypatch.setattr(sources, "_edited", lambda name=edited: frozenset({name} - {""}))
        (planned,) = plan([*TINY, "model=performer"], tmp_path)
        cells[edited] = planned.cell
    plain, used, unused = cells.values()
    assert plain.key == unused.key and "edited" not in unused.differences
    assert used.key != plain.key and used.differences == {**plain.differences, "edited": True}
    assert list(used.sources) == ["lra_bench.models.kernels.linear"]


def test_modules_in_the_folder_of_the_user_do_not_hide_installed_ones(folder):
    with importable(folder):
        import copy

        assert Path(copy.__file__).parent != folder

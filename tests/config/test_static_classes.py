"""Classes are read from source code as Python imports them, or not at all."""

import subprocess
import sys

import pytest

from lra_bench.build import default_options, load_class
from lra_bench.config.effective import declared
from lra_bench.config.groups import option_files
from lra_bench.config.import_path import importable
from lra_bench.config.static_classes import Sources, Unreadable
from lra_bench.models.heads.choice import LOSSES, MERGES


def targets():
    """Return the class paths in all files of conf/ that name classes, and those that are selected by name."""
    import yaml

    def walk(node):
        values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        yield from (value for key, value in node.items() if key == "_target_") if isinstance(node, dict) else ()
        for value in values:
            yield from walk(value)

    files = [path for group in ("task", "model", "position") for path in option_files(group).values()]
    found = {target for path in files for target in walk(yaml.safe_load(path.read_text()))}
    return sorted(found | set(LOSSES.values()) | set(MERGES.values()) | {"lra_bench.models.backbone.SequenceModel"})


TARGETS = targets()


@pytest.mark.parametrize("target", TARGETS)
def test_a_class_is_read_as_it_is_imported(target):
    found = load_class(target, object, "test")
    ancestors = Sources().ancestry(target)
    modules = [f"{each.__module__}.{each.__qualname__}" for each in found.__mro__]
    assert [each.name for each in ancestors] == [name for name in modules if name.startswith("lra_bench")]
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in default_options(found).items()}
    assert declared(target, "test").defaults == plain


def test_no_class_of_conf_is_imported_to_read_it():
    code = (
        f"import sys; from lra_bench.config.effective import declared; "
        f"found = [declared(target, 'test') for target in {TARGETS!r}]; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(TARGETS) > 110
    assert not {"torch", "numpy", "pandas", "lra_bench.models.mixer", "lra_bench.tasks.copy"} & set(loaded)


DIAMOND = """
from typing import Generic, TypeVar
import math as m
from .constants import SCALE
from . import constants

T = TypeVar("T")
TWICE = 2 * SCALE

class Top:
    revision = 2
    def __init__(self, *, a=1, b=-2.5, c=(1, [2]), shadowed=0): pass

class Left(Top):
    def __init__(self, x, y=5, *, a=TWICE, d=constants.SCALE, **common): super().__init__(a=a, **common)

class Right(Top, Generic[T]):
    revision: int = 3
    def __init__(self, shadowed, *, e=2 * m.pi, f={"k": None}, **common): super().__init__(**common)

class Bottom(Left, Right[int]):
    pass

class Closed(Bottom):
    def __init__(self, *, only=4**0.5): super().__init__(0, 0)
"""


@pytest.fixture
def package(tmp_path):
    """Return a function that writes the module ``code`` of the package ``static_example`` and its class paths."""
    folder = tmp_path / "static_example"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "again.py").write_text("from .code import Closed as Renamed\n")
    (folder / "constants.py").write_text("SCALE = 0.5\n")

    def write(text):
        (folder / "code.py").write_text(text)
        return "static_example.code"

    with importable(tmp_path):
        yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "static_example"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["code.Top", "code.Left", "code.Right", "code.Bottom", "code.Closed", "again.Renamed"])
def test_bases_defaults_and_revisions_equal_those_of_python(package, name):
    package(DIAMOND)
    target = f"static_example.{name}"
    read = declared(target, "test")
    assert "static_example.code" not in sys.modules
    found = load_class(target, object, "test")
    assert [each.body.name for each in Sources().ancestry(target)] == [
        each.__name__ for each in found.__mro__ if each.__module__ == "static_example.code"
    ]
    imported = {key: [1, [2]] if isinstance(value, tuple) else value for key, value in default_options(found).items()}
    assert read.defaults == imported
    assert read.revisions == [vars(each)["revision"] for each in found.__mro__ if "revision" in vars(each)]


@pytest.mark.parametrize(
    "code",
    [
        "def default(): return 3\nclass Example:\n    def __init__(self, *, size=default()): pass",
        "from dataclasses import dataclass\n@dataclass\nclass Example:\n    size: int = 3",
        "class Example:\n    if 1:\n        def __init__(self, *, size=3): pass",
        "try:\n    from missing import Base\nexcept ImportError:\n    Base = object\n"
        "class Example(Base):\n    def __init__(self, *, size=3): pass",
        "class First:\n    def __init__(self, *, size=3): pass\nExample = First",
        "SIZE = 2\nSIZE += 1\nclass Example:\n    def __init__(self, *, size=SIZE): pass",
        "class Example:\n    pass\nclass Example:\n    def __init__(self, *, size=3): pass",
    ],
    ids=["computed default", "dataclass", "conditional", "computed base", "alias", "changed constant", "defined twice"],
)
def test_a_class_that_cannot_be_read_is_imported(package, code):
    target = f"{package(code)}.Example"
    found = declared(target, "test")
    assert "static_example.code" in sys.modules
    assert found.defaults == {"size": 3} and list(found.revisions) == []


def test_a_changed_file_is_read_again(package):
    code = "from .constants import SCALE\nclass Example:\n    def __init__(self, *, size=SCALE, other={}): pass"
    target = f"{package(code.format(1))}.Example"
    assert declared(target, "test").defaults == {"size": 0.5, "other": 1}
    package(code.format(22))
    assert declared(target, "test").defaults["other"] == 22
    constants = Sources().ancestry(target)[0].module.file.with_name("constants.py")
    constants.write_text("SCALE = 0.125\n")
    assert declared(target, "test").defaults["size"] == 0.125


def test_base_classes_in_an_impossible_order_cannot_be_read(package):
    code = "class A: pass\nclass B(A): pass\nclass Example(A, B): pass"
    with pytest.raises(Unreadable, match="inconsistent order"):
        Sources().ancestry(f"{package(code)}.Example")

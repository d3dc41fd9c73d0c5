"""Declarations, docstrings and markers of tests state how each system agrees with its paper and its authors' code."""

from __future__ import annotations

from importlib import import_module
from inspect import getmembers, isclass, isfunction
from pathlib import Path

import pytest

from lra_bench.config.details import details, deviations, shown, stated_deviations, stated_in_comments
from lra_bench.config.schema import ADDED
from lra_bench.contracts import Capability
from lra_bench.models.depth.universal import Universal
from lra_bench.models.map import systems
from lra_bench.models.memory.knn_lm import KnnLM
from lra_bench.models.memory.spalm import Spalm
from tests.support.agreements import ROOT, Agreement, agreements, read
from tests.support.fidelity import CODE, OPTIONS, TITLES, escaped, families, number, page, rows
from tests.support.mixer_cases import POSITIONS

ROWS = rows()
MARKERS = agreements()


def test_every_model_file_position_and_option_has_one_section() -> None:
    files = [file.stem for file in (ROOT / "conf" / "model").glob("*.yaml")]
    others = [*(f"position={name}" for name in POSITIONS), *OPTIONS]
    assert sorted(row.key for row in ROWS) == sorted([*files, *others])
    pages = "".join(page(family, found) for family, found in families().items())
    for row in ROWS:
        assert pages.count(f"\n## `{row.key}`\n") == 1, row.key
        assert (ROOT / row.file).is_file(), row.file
        assert all(escaped(text) in pages for text in row.deviations), row.key


def test_every_family_has_one_page() -> None:
    assert list(families()) == [*sorted({capability.family for *_, capability in systems()}), *TITLES]


def test_the_command_prints_the_deviations_of_every_system() -> None:
    for row in ROWS:
        if row.family not in TITLES:
            text = shown(details("model", row.key))
            assert row.paper in text and all(
                stated in text or stated in stated_deviations(text) for stated in row.deviations
            ), row.key


def test_every_option_of_the_backbone_that_a_paper_describes_has_a_row() -> None:
    named = {option.partition("=")[0].split(".")[1] for option in OPTIONS if option.startswith("backbone.")}
    assert named == set(ADDED) - {"hybrid", "share_every", "token_order"}


def test_rows_are_those_of_the_class_around_a_mixer() -> None:
    rows_by_key = {row.key: row for row in ROWS}
    for key, kind in {"knn_lm": KnnLM, "spalm": Spalm, "universal": Universal}.items():
        row = rows_by_key[key]
        assert ROOT / row.file == ROOT / "models" / Path(*kind.__module__.split(".")[2:]).with_suffix(".py")
        assert row.deviations == deviations(kind) != ()
        assert not row.has_oracle


def test_every_system_is_compared() -> None:
    assert {row.key for row in ROWS if not row.agreements} == {"position=none"}


def test_markers_name_systems() -> None:
    keys = {row.key for row in ROWS}
    assert [each for each in MARKERS if not keys.issuperset(each.systems)] == []


def test_markers_state_what_is_compared_in_one_line() -> None:
    assert [each for each in MARKERS if not each.compared.strip() or "\n" in each.compared or each.within < 0] == []


def test_tests_use_the_tolerance_of_their_marker() -> None:
    assert [f"{each.file}: {each.test}" for each in MARKERS if not each.is_used] == []


def test_all_marked_tests_are_found() -> None:
    """A marker in a place that ``read`` does not parse would be missing on the page."""
    found = {(each.file, each.test) for each in MARKERS}
    paths = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.name != Path(__file__).name]
    marked = [path for path in paths if "mark.agrees(" in path.read_text(encoding="utf-8")]
    for file in (path.relative_to(ROOT).as_posix() for path in marked):
        module = import_module(file.removesuffix(".py").replace("/", "."))
        kinds = [kind for _, kind in getmembers(module, isclass) if kind.__module__ == module.__name__]
        functions = [function for holder in (module, *kinds) for _, function in getmembers(holder, isfunction)]
        for function in functions:
            marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "agrees"]
            assert not marks or (file, function.__name__) in found


def test_code_names_repository_commit_and_file() -> None:
    assert [row.key for row in ROWS if row.code is not None and CODE.fullmatch(row.code) is None] == []


def test_code_is_not_inherited_from_the_system_of_another_paper() -> None:
    for key, _, system, _ in systems():
        declared = [
            base.__dict__["spec"] for base in system.__mro__ if isinstance(base.__dict__.get("spec"), Capability)
        ]
        for other in declared[1:]:
            assert declared[0].code is None or declared[0].code != other.code or declared[0].paper == other.paper, key


@pytest.mark.parametrize(
    "code",
    [
        "owner/repository@1234567",
        "owner/repository:file.py",
        "owner/repository@main:file.py",
        "owner/repository@1234567:",
        "https://github.com/owner/repository@1234567:file.py",
    ],
)
def test_incomplete_code_is_rejected(code: str) -> None:
    assert CODE.fullmatch(code) is None


SOURCE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.agrees("a", compared="module", within=1)]
named = pytest.mark.agrees("b", compared="name", within=2e-3)
def test_of_module(within): ...
@named
def test_of_name(within): ...
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.agrees("c", "d", compared="parameter", within=0))])
def test_of_parameter(n): ...
@pytest.mark.agrees(compared="class", within=1)
class TestClass:
    def test_of_class(self, within): ...
    @pytest.mark.agrees("e", compared="method", within=1)
    def test_of_method(self, *, within): ...
    def helper(self): ...
"""


def test_markers_of_modules_classes_names_and_parameters_are_read() -> None:
    assert read(SOURCE, "f.py") == [
        Agreement(("a",), "module", 1.0, "f.py", "test_of_module", True),
        Agreement(("b",), "name", 0.002, "f.py", "test_of_name", True),
        Agreement(("c", "d"), "parameter", 0.0, "f.py", "test_of_parameter", False),
        Agreement((), "class", 1.0, "f.py", "test_of_class", True),
        Agreement(("e",), "method", 1.0, "f.py", "test_of_method", True),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("NAME, compared='x', within=1", "must be literals"),
        ("'a', within=1", "compared and within"),
        ("'a', compared='x', within=1, causal=True", "compared and within"),
    ],
)
def test_invalid_markers_raise(arguments: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"f\.py:2: .*{words}"):
        read(f"import pytest\n@pytest.mark.agrees({arguments})\ndef test_x(within): ...", "f.py")


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (
            "Sum.\n\nDeviations from the paper: ``x`` is\n2 * y; z.\n\nArgs:\n    x: X.",
            ["from the paper: ``x`` is 2 * y; z."],
        ),
        ("Sum.\n\nDeviation: one.\n\nDeviations from the code: two.", ["one.", "from the code: two."]),
        ("Sum.\n\nIt is fast. Deviation from the paper: one.", ["from the paper: one."]),
        (
            "Sum.\n\nDeviations from the paper:\n\n- A is\n  one.\n- B.\n\nMore.",
            ["from the paper:\n  - A is one.\n  - B."],
        ),
        ("Sum.\n\nDeviations from the paper:\n- A.\n- B.", ["from the paper:\n  - A.\n  - B."]),
        ("Sum of deviations.\n\nOther deviations as in ``X``.", []),
    ],
)
def test_stated_deviations(docstring: str, expected: list[str]) -> None:
    assert stated_deviations(docstring) == expected


def test_comments_of_model_files_state_deviations() -> None:
    text = "# A: b\nmodel:\n  # Deviations from the paper: one,\n  # two.\n  # Defaults of the mixer: x: 1\n  mixer: {}"
    assert stated_in_comments(text) == ["from the paper: one, two."]


class TestInheritedDeviations:
    """The classes of this test are treated like those of ``lra_bench.models``."""

    @staticmethod
    def kind(docstring: str | None, *bases: type) -> type:
        return type("Kind", bases, {"__doc__": docstring, "__module__": "lra_bench.models.test"})

    def test_nearest_class_that_states_any(self) -> None:
        base = self.kind("Sum.\n\nDeviations from the paper: one.")
        assert deviations(self.kind("Mean.", base)) == ("from the paper: one.",)
        assert deviations(self.kind(None, base)) == ("from the paper: one.",)
        assert deviations(self.kind("Mean.\n\nDeviations: two.", base)) == ("two.",)

    def test_none_replaces_those_of_the_base_class(self) -> None:
        base = self.kind("Sum.\n\nDeviations from the paper: one.")
        assert deviations(self.kind("Mean.\n\nDeviations from the paper: none.", base)) == ()

    def test_named_base_class_is_added(self) -> None:
        base = self.kind("Sum.\n\nDeviations from the paper: one.")
        base.__name__ = "Base"
        text = "Mean. Options and\ndeviations as in ``Base``.\n\nDeviations: two."
        assert deviations(self.kind(text, base)) == ("two.", "from the paper: one.")


@pytest.mark.parametrize(("value", "expected"), [(1e-10, "10⁻¹⁰"), (5e-5, "5 · 10⁻⁵"), (2.0, "2 · 10⁰")])
def test_number(value: float, expected: str) -> None:
    assert number(value) == expected

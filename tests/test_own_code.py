"""Classes and functions of notebooks and scripts: their stored code computes the same, an edit is another key."""

import linecache
import subprocess
import sys
from functools import partial
from itertools import count
from types import ModuleType

import pytest
from torch import nn

from lra_bench.api.own_code import _Module, carried, wrap
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.models.linear.performer import Performer
from tests.support.command import TINY, Folder

CELLS = count()

IMPORTS = "import math\nimport functools as tools\nfrom math import floor as down\nfrom dataclasses import dataclass\n"
HELPERS = """
SCALE = 2.0
NAMES = {"a": (1, float("inf")), "b": [None, True]}
kept = lambda value: value  # a lambda function

def twice(function):
    def inside(*arguments):
        return 2 * function(*arguments)
    return inside

@twice
def area(radius: "Anything") -> "Nothing":
    return math.pi * radius

def checked(function):
    @tools.wraps(function)
    def inside(self):
        return function(self)
    return inside

@tools.lru_cache
def cached(value): return down(value)

def scaled(factor, offset=kept(1)):
    return lambda value: factor * value + offset

triple, shift = scaled(3), (lambda value: scaled(1, 5)(value))

@dataclass
class Pair:
    left: int = 1

class Base:
    limit = 7
    def shown(self):
        return kept(Pair().left), NAMES

def even(value): return value == 0 or odd(value - 1)
def odd(value): return value != 0 and even(value - 1)
"""
MODEL = """
class Mine(Base):
    def __init__(self):
        super().__init__()
        self.value = SCALE * area(1.0) + triple(2) + shift(1) + cached(2.5)
    @checked
    def shown(self):
        math_value = 3  # a comment
        return (*super().shown(), self.limit, even(4), [SCALE for SCALE in range(2)])
"""


def run_cell(code, namespace):
    """Run code as a cell of a notebook is run: its source is in ``linecache``, under a name that is not a file."""
    name = f"<ipython-input-{next(CELLS)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    exec(compile(code, name, "exec"), namespace)
    return namespace


def notebook(*cells):
    sys.modules["__main__"] = ModuleType("__main__")
    for cell in cells:
        run_cell(cell, vars(sys.modules["__main__"]))
    return vars(sys.modules["__main__"])


@pytest.fixture(autouse=True)
def main(monkeypatch):
    """Restore the main module, which a notebook replaces."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def code_of(name, namespace):
    module = _Module("model")
    module.add(name, namespace[name])
    return module.text()


def test_the_code_of_cells_computes_the_same():
    here = notebook("unused = object()\n", IMPORTS, HELPERS, MODEL)
    text, again = code_of("Mine", here), {"__name__": "__main__"}
    exec(text, again)
    assert again["Mine"]().value == here["Mine"]().value and again["Mine"]().shown() == here["Mine"]().shown()
    assert "unused" not in text and "Anything" not in again


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("math.pi * radius", "math.tau * radius", True),
        ("2 * function", "3 * function", True),
        ("scaled(3)", "scaled(4)", True),
        ("SCALE = 2.0", "SCALE = 2.5", True),
        ("left: int = 1", "left: int = 2", True),
        ("lambda value: value  #", "lambda value: -value  #", True),
        ("value - 1)", "value - 1 + 0)", True),
        ("# a lambda function", "# another comment", False),
        ("def area(radius", "\n\ndef area(radius", None),
    ],
)
def test_an_edit_of_a_helper_is_an_edit_of_the_model(before, after, differs):
    assert before in HELPERS
    first = code_of("Mine", notebook(IMPORTS, HELPERS, MODEL))
    assert code_of("Mine", notebook(IMPORTS, HELPERS, MODEL)) == first
    if differs is not None:
        edited = code_of("Mine", notebook(IMPORTS, HELPERS.replace(before, after), MODEL))
        assert (edited != first) == differs


def test_a_cell_that_is_run_again_replaces_the_helper_but_not_other_cells():
    here = notebook(IMPORTS, HELPERS, MODEL)
    first = code_of("Mine", here)
    run_cell(HELPERS.replace("math.pi", "math.tau"), here)
    assert "math.tau" in code_of("Mine", here) and "math.tau" not in first


def test_submodules_that_the_code_names_are_imported():
    here = notebook("import xml.dom.minidom\nmine = lambda text: xml.dom.minidom.parseString(text)\n")
    script = f"{code_of('mine', here)}\nprint(mine('<a/>').documentElement.tagName)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "a\n"


def test_lambdas_on_one_line_are_told_apart():
    here = notebook("pairs = [(lambda x: x + 1), (lambda x: x + 2)]\nfirst, second = pairs\n")
    for name in ("first", "second"):
        exec(code_of(name, here), again := {})
        assert again[name](1) == here[name](1)


def test_a_decorated_function_is_decorated_once():
    here = notebook(HELPERS[: HELPERS.index("def checked")].replace("math.pi", "3"), "alias = area\n")
    exec(code_of("alias", here), again := {})
    assert again["alias"](1) == here["area"](1) == 6


REFUSED = {
    "an object": ("import threading\nlock = threading.Lock()\ndef f(): return lock\n", "uses lock, a lock"),
    "an instance": ("class A: pass\na = A()\ndef f(): return a\n", "uses a, an A, which cannot be stored"),
    "a closure over an object": ("def g(o):\n    return lambda: o\nf = g(object())\n", "uses o, an object"),
    "a decorated alias": ("import functools\ndef g(): return 1\nf = functools.lru_cache(g)\n", "uses f, a _lru_cache"),
    "code without source": ("f = eval('lambda: 1')\n", "uses f, the function <lambda>"),
    "a local variable of a class": (
        "def g(base):\n    class f(base):\n        pass\n    return f\nf = g(dict)\n",
        "f uses base, a variable of the function in which it is defined",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stored_is_named(case):
    cell, words = REFUSED[case]
    with pytest.raises(UserError, match=r"^model: ") as error:
        code_of("f", notebook(cell))
    assert words in str(error.value) and "; " in str(error.value)


def test_a_module_in_a_file_is_stored_with_the_files_that_it_imports(tmp_path, monkeypatch):
    (tmp_path / "one_helper.py").write_text("import second_helper\n\ndef f():\n    return second_helper.VALUE\n")
    (tmp_path / "second_helper.py").write_text("VALUE = 3  # a comment\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    here = notebook("from one_helper import f\ndef model(): return f()\n")
    module = _Module("model")
    module.add("model", here["model"])
    assert {str(path) for path in module.files} == {"one_helper.py", "second_helper.py"}
    before = module.text()
    (tmp_path / "second_helper.py").write_text("VALUE = 4\n")
    assert code_of("model", here) != before
    for name in ("one_helper", "second_helper"):
        sys.modules.pop(name)


def test_a_wrapped_module_is_written_to_a_folder_named_by_its_content(tmp_path):
    def folder(cell, **options):
        here = notebook("import math as nn\n", cell)
        return carried(wrap(here["f"], **options), tmp_path)

    chosen, first = folder("f = lambda width, heads: nn.GRU(width)\n", padding="packed", causal=True)
    assert chosen == "gru_wrapped" and first.parent == tmp_path
    assert {path.name for path in first.rglob("*.*")} == {"gru_wrapped_code.py", "gru_wrapped.yaml"}
    model = (first / "model" / "gru_wrapped.yaml").read_text()
    assert "padding: packed" in model and "causal: exact" in model and "label: GRU" in model
    assert folder("f = lambda width, heads: nn.GRU(width)  # again\n", padding="packed", causal=True)[1] == first
    assert folder("f = lambda width, heads: nn.GRU(heads)\n", padding="packed", causal=True)[1] != first
    assert folder("def f(width): return nn.GRU(width)\n")[0] == "f_wrapped"


@pytest.mark.slow
def test_a_class_of_an_installed_package_is_named(tmp_path):
    chosen, folder = carried(partial(Performer, features=8), tmp_path)
    assert chosen == "performer_own" and [path.name for path in folder.rglob("*.*")] == ["performer_own.yaml"]
    model = (folder / "model" / "performer_own.yaml").read_text()
    assert "lra_bench.models.linear.performer.Performer" in model and "features: 8" in model
    for wrong in (nn.GRU, nn.GRU(2, 2), 3):
        with pytest.raises(UserError, match=r"^model: takes the name of a model, .* not (the class|a|an) (GRU|int)$"):
            carried(wrong, tmp_path)


SCRIPT = """
import math as nn
from pathlib import Path

from lra_bench.api.own_code import carried, wrap


def helper(width):
    return nn.GRU(width)


if __name__ == "__main__":
    print(carried(wrap(lambda width, heads: helper(width)), Path("models"))[1].name)
"""


def test_the_main_module_of_a_script_is_stored(tmp_path):
    printed = []
    for text in (SCRIPT, SCRIPT.replace("GRU(width)", "GRU(2 * width)")):
        (tmp_path / "script.py").write_text(text)
        done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        printed.append(done.stdout.strip())
    assert printed[0] != printed[1]
    assert "def helper(width)" in (tmp_path / "models" / printed[0] / "helper_wrapped_code.py").read_text()


def test_a_cell_of_a_notebook_is_stored(tmp_path):
    shell = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed").InteractiveShell()
    for cell in (IMPORTS, HELPERS, MODEL):
        shell.run_cell(cell).raise_error()
    exec(code_of("Mine", shell.user_ns), again := {"__name__": "__main__"})
    assert again["Mine"]().shown() == shell.user_ns["Mine"]().shown()


MIXER = """
from torch import nn
from lra_bench.models.mixer import HeadMixer, MixerSpec

def gate(q): return q.sigmoid()

class Mine(HeadMixer):
    spec = MixerSpec(family="own", paper="none", causal="exact")
    def __init__(self, width, heads, *, scale=1.0, **common):
        super().__init__(width, heads, **common)
        self.scale = scale
    def attend(self, q, k, v, context):
        return self.scale * gate(q) * v
"""
FORMS = {
    "class": "model = Mine",
    "partial": "from functools import partial\nmodel = partial(Mine, scale=2.0)",
    "function": "model = lambda **common: Mine(scale=2.0, **common)",
    "wrap": "from lra_bench.api.own_code import wrap\nmodel = wrap(lambda width: nn.GRU(width, width), causal=True)",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_an_edited_cell_has_another_key(form, tmp_path):
    def hashed(*cells):
        name, folder = carried(notebook(*cells)["model"], tmp_path)
        (planned,) = plan([*TINY, f"model={name}"], tmp_path / "results", folder)
        return planned.cell.key.hash, "".join(planned.cell.sources.values())

    first, text = hashed(MIXER, FORMS[form])
    assert hashed(f"# a comment\n{MIXER}", FORMS[form]) == (first, text)
    edited = [MIXER.replace("q.sigmoid()", "q.tanh()"), FORMS[form]]
    if form == "wrap":
        edited = [MIXER, FORMS[form].replace("width, width", "width, width, 2")]
    assert hashed(*edited)[0] != first
    assert ("nn.GRU" if form == "wrap" else "q.sigmoid()") in text


@pytest.mark.slow
def test_the_same_cell_is_measured_once(tmp_path, forks):
    folder = Folder(tmp_path)
    for attempt, cell in enumerate((MIXER, MIXER, MIXER.replace("q.sigmoid()", "q.tanh()"))):
        name, written = carried(notebook(cell, FORMS["function"])["model"], tmp_path)
        forks.command(folder, "bench", *TINY, "tracker=none", "--config-dir", str(written), f"model={name}")
        assert len(folder.records()) == (1, 1, 2)[attempt]
    assert {record["status"] for record in folder.records()} == {"ok"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: wrap(3), r"^wrap: takes a function .* not an int"),
        (lambda folder: wrap(dict), r"^wrap: takes a function .* not the class dict"),
        (
            lambda folder: wrap(lambda width: 1, paddings="mask"),
            r"^wrap: there is no option paddings; did you mean",
        ),
        (lambda folder: carried(wrap(lambda: 1, output=object()), folder), r"^model\.mixer\.output: .* not JSON"),
        (lambda folder: carried(lambda width, heads: 1, folder), r"^model: the function must accept \*\*common"),
        (lambda folder: carried(lambda **common: 1 / 0, folder), r"^model: the function fails .*division by zero"),
    ],
)
def test_a_wrong_model_is_one_sentence(call, message, tmp_path):
    with pytest.raises(UserError, match=message):
        call(tmp_path)

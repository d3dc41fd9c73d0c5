"""The command ``lra-bench new``: a model, task or measurement of one's own that works as it is."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lra_bench.contracts import UserError
from lra_bench.errors import CHECKOUT
from lra_bench.runtime.files import why


class Kind(StrEnum):
    """What can be written."""

    model = "model"
    task = "task"
    measurement = "measurement"


EXAMPLES = {
    Kind.model: ("my_mixer", "model={name} task=listops"),
    Kind.task: ("echo", "task={name} model=transformer"),
    Kind.measurement: ("state_norm", "model=gru task=listops backbone.causal=true"),
}
"""Names of the examples in ``docs/adding-a-<kind>.md``, in a wheel ``guides/``, and options that run them."""


def new(
    kind: Annotated[Kind, typer.Argument(help="model, task or measurement")],
    name: Annotated[str, typer.Argument(help="Name on the command line and of the Python file, such as my_mixer")],
    folder: Annotated[Path, typer.Option("--folder", help="Folder for --config-dir")] = Path("ideas"),
) -> None:
    """Write the two files of a model, task or measurement of your own, which work as they are."""
    import importlib.util

    from lra_bench.config.groups import option_files
    from lra_bench.config.measurements import our_measurements

    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise UserError(f"{name}: is no name of a Python module; use letters, digits and _, such as my_{kind}")
    taken = {*option_files(kind), *(our_measurements() if kind is Kind.measurement else ())}
    if name in taken or importlib.util.find_spec(name) is not None:
        what = f"a {kind} of lra-bench" if name in taken else "an installed module"
        raise UserError(f"{name}: is the name of {what}; choose another, such as my_{name}")
    files = rendered(kind, name)
    for path in files:
        if (folder / path).exists():
            raise UserError(f"{folder / path}: exists already; choose another name or --folder")
    for path, text in files.items():
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--folder {folder}: {why(error)}; choose another folder") from error
        print(folder / path)
    options = EXAMPLES[kind][1].format(name=name)
    print(f"Run it: lra-bench bench --config-dir {folder} {options} protocol=smoke")


def rendered(kind: Kind, name: str) -> dict[str, str]:
    """Return the text of the Python file and of the YAML file, by path.

    They are the example of the guide ``docs/adding-a-<kind>.md``, renamed to ``name``.
    """
    folder = next(filter(Path.is_dir, (Path(__file__).parents[1] / "guides", CHECKOUT / "docs")))
    text, original = (folder / f"adding-a-{kind}.md").read_text(encoding="utf-8"), EXAMPLES[kind][0]
    found = dict(re.findall(r'^```\w+ title="ideas/(.+?)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL))
    pairs = list(zip(_spellings(original), _spellings(name), strict=True))
    names = dict(reversed(pairs))  # if class and words have the same spelling, that of the class is used

    def renamed(part: str) -> str:
        return re.sub("|".join(names), lambda match: names[match[0]], part)

    return {renamed(path): renamed(found[path]) for path in (f"{original}.py", f"{kind}/{original}.yaml")}


def _spellings(name: str) -> tuple[str, str, str]:
    """Return a name in the spelling of modules, of classes and of labels: ``my_mixer``, ``MyMixer``, ``My mixer``."""
    parts = name.split("_")
    return name, "".join(map(str.capitalize, parts)), " ".join(parts).capitalize()

"""``python -m tests.support.manifest`` stores what planning needs of the code of models/ and tasks/.

Cells of a module that differs from its stored digest have another key and are marked as edited; its classes are
imported when cells are planned.
"""

import importlib
import json
from dataclasses import asdict

import yaml

from lra_bench.build import load_class
from lra_bench.config.effective import Declared, of_class
from lra_bench.config.groups import GROUPS, option_files
from lra_bench.config.sources import MANIFEST, current_digests, editable_files, targets

COMMAND = "python -m tests.support.manifest"
EMPTY = asdict(Declared())


def named():
    """Return the paths of the measured classes that files of conf/ name or that their options select by name."""
    files = [file for group in GROUPS if group != "launcher" for file in option_files(group).values()]
    found = {target for file in files for target in targets(yaml.safe_load(file.read_text(encoding="utf-8")))}
    options = [each for target in found for each in of_class(load_class(target, object, "")).named_classes.values()]
    return found | {target for choices in options for target in choices.values()}


def defined():
    """Return the paths of the classes of models/ and tasks/ that have a revision, which is part of the key of cells."""
    return {
        f"{name}.{each.__qualname__}"
        for name in editable_files()
        for each in vars(importlib.import_module(name)).values()
        if isinstance(each, type) and each.__module__ == name and hasattr(each, "revision")
    }


def current():
    """Return the manifest of the current code."""
    found = {target: asdict(of_class(load_class(target, object, ""))) for target in sorted(named() | defined())}
    return {
        "modules": current_digests(),
        "classes": {
            target: {name: value for name, value in fields.items() if value != EMPTY[name]}
            for target, fields in found.items()
        },
    }


def main():
    """Store the current manifest, with one line for each module and class."""
    sections = current()
    lines = [
        f'"{section}": {{\n' + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in entries.items())
        for section, entries in sections.items()
    ]
    MANIFEST.write_text("{" + "},\n".join(lines) + "}}\n", encoding="utf-8")
    print(f"{MANIFEST}: {' and '.join(f'{len(entries)} {section}' for section, entries in sections.items())}")


if __name__ == "__main__":
    main()

"""Outputs of every class that a cell is built from, stored in ``tests/golden/outputs.json``.

``python -m tests.support.golden_outputs`` stores the outputs of classes with changed defaults or a raised ``revision``.
It refuses to replace the output of an unchanged class. With ``--replace`` it replaces all outputs, for example after an
upgrade of torch that generates other random numbers.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lra_bench.build import load_class
from lra_bench.config.effective import effective
from lra_bench.data.digest import settings_digest
from tests.support import golden_models, golden_tasks

FILE = Path(__file__).parents[1] / "golden" / "outputs.json"
COMMAND = "python -m tests.support.golden_outputs"
TOLERANCE = 1e-6
"""Largest accepted difference, as a fraction of the norm of the output.

The largest measured differences are 2e-8 for S5, whose eigenvectors depend on the order of sums, and 1e-11 for all
others, with one to three threads and with AVX-512, AVX2 or no vector instructions.
"""


@dataclass(frozen=True)
class Golden:
    """Output of a class.

    Attributes:
        revision: Revision of the class.
        covered: Digest of the effective arguments and of all revisions, which the hash of a cell covers.
        output: By name, a digest of exact values, or the norm of a tensor followed by projections of it.
    """

    revision: int
    covered: str
    output: dict[str, str | list[float]]


CASES: dict[str, tuple[dict, Callable]] = {**golden_models.CASES, **golden_tasks.CASES}
"""Configuration node and function that computes the output, by name of the case."""


def computed(name):
    """Return the output that the current code computes."""
    node, compute = CASES[name]
    revision = load_class(node["_target_"], object, name).revision
    return Golden(revision, settings_digest(effective(node, name)), compute())


def stored():
    """Return the stored outputs by name."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {name: Golden(**entry) for name, entry in content.items()}


def fault(name, expected, found):
    """Return what is wrong with a stored output, or None if it is that of the current code."""
    if expected is None:
        return f"{name}: has no stored output; run {COMMAND}"
    if expected.covered != found.covered:
        return f"{name}: its options, their defaults or a revision changed; run {COMMAND} to store its output"
    if changed := [part for part in {**expected.output, **found.output} if not _equal(part, expected, found)]:
        return (
            f"{name}: the output changed ({', '.join(changed)}), but not the key of its cells; raise `revision` of "
            f"{CASES[name][0]['_target_']}, or of the base class that changed, and run {COMMAND} to store the output"
        )
    return None


def _equal(part, expected, found):
    first, second = expected.output.get(part), found.output.get(part)
    if isinstance(first, str) or not first or not second:
        return first == second
    return max(abs(a - b) for a, b in zip(first, second, strict=True)) <= TOLERANCE * abs(first[0])


def main(replace):
    """Store the outputs whose class has changed defaults or revisions; return the exit code."""
    known, results, refused = stored(), {}, []
    for name in CASES:
        found = computed(name)
        problem = fault(name, known.get(name), found)
        if problem and name in known and known[name].covered == found.covered and not replace:
            refused.append(problem)
        # An equal output is kept as it is stored, so that rounding on another machine changes no line of the file.
        results[name] = found if problem and problem not in refused else known[name]
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(each))}" for name, each in sorted(results.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(*refused, f"{len(results)} outputs in {FILE}", sep="\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main("--replace" in sys.argv[1:]))

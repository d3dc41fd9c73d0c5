"""Corrupted and malicious input: strategies that damage bytes and JSON, and checks of how commands end."""

import copy
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from hypothesis import strategies as st

from lra_bench.cli import main
from lra_bench.contracts import UserError

STRANGE = [
    *(None, True, -1, 0, 2**63, 10**400, 1e308, -1e-308, float("nan"), float("inf")),
    *("", "x" * 5000, "\x00", "\ud800", "../../up", "a\nb", "os.system", [], {}, [[]], {"a": {"b": []}}, [1, "x"]),
]

GARBAGE = [b"", b"\x00" * 64, b"\xff\xfe\xfd" * 9, b"[" * 100_000, b"{}", b"null", b'{"a": NaN}', b"\xef\xbb\xbf{}"]


@st.composite
def spoiled_bytes(draw, content: bytes) -> bytes:
    """Draw a damaged ``content``: truncated, with flipped bits, a repeated, inserted or removed piece, or garbage."""
    kind = draw(st.sampled_from(["cut", "flip", "drop", "double", "insert", "garbage"]))
    if kind == "garbage":
        return draw(st.sampled_from(GARBAGE))
    start = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        return content[:start]
    if kind == "flip":
        spoiled = bytearray(content)
        for position in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
            spoiled[position] ^= 1 << draw(st.integers(0, 7))
        return bytes(spoiled)
    size = draw(st.integers(1, 200))
    piece = draw(st.binary(min_size=1, max_size=40)) if kind == "insert" else content[start : start + size]
    return content[:start] + (b"" if kind == "drop" else piece) + content[start + (size if kind == "drop" else 0) :]


@st.composite
def spoiled_tree(draw, tree, beginning=()):
    """Draw a copy of a JSON-like value in which one value at or below the path ``beginning`` is replaced or removed.

    In a mapping a key may be added instead.
    """
    spoiled = copy.deepcopy(tree)
    parent, name, node = None, None, spoiled
    for step in beginning:
        parent, name, node = node, step, node[step]
    while isinstance(node, dict | list) and node and (parent is None or draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        parent, node = node, node[name]
    if parent is None:
        return draw(st.sampled_from(STRANGE))
    kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if kind == "remove":
        del parent[name]
    elif kind == "add" and isinstance(parent, dict):
        parent["surprise"] = draw(st.sampled_from(STRANGE))
    else:
        parent[name] = draw(st.sampled_from(STRANGE))
    return spoiled


def as_json(tree) -> bytes:
    """Return JSON as written by Python, including NaN and lone surrogates."""
    return json.dumps(tree).encode()


def error_message(action) -> str:
    """Return the message of the ``UserError`` raised by ``action``, checked to be one sentence, or "" without error."""
    try:
        action()
    except UserError as error:
        sentence = str(error)
        assert sentence.strip() and "\n" not in sentence and len(sentence) < 2000, sentence
        return sentence
    return ""


def command(*arguments: str) -> tuple[int, str]:
    """Run a command in this process and return its exit code and stderr."""
    errors, argv = io.StringIO(), sys.argv
    sys.argv = ["lra-bench", *map(str, arguments)]
    try:
        with redirect_stderr(errors), redirect_stdout(io.StringIO()):
            main.main()
    except SystemExit as end:
        return int(end.code or 0), errors.getvalue()
    finally:
        sys.argv = argv
    return 0, errors.getvalue()


def is_refused(code: int, errors: str) -> bool:
    """Return whether a command rejected its input; check that it exits with 0 or 2 and without a traceback."""
    assert code in (0, 2), (code, errors)
    assert "Traceback" not in errors
    if code == 2:
        assert errors.strip().splitlines()[-1].startswith("lra-bench: "), errors
    return code == 2


def disk(*folders: Path) -> dict[Path, bytes | None]:
    """Return all paths below ``folders`` with the contents of files, without lock files, which reading creates."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix != ".lock"
    }

"""Tokenizers of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra_bench.contracts import UserError, install_command
from lra_bench.data.columns import Integers, ListColumn
from lra_bench.data.download import OFFLINE_VARIABLES
from lra_bench.data.examples import Examples

from ..documents.bytes import ROWS_PER_CHUNK, joined, to_bytes, to_tokens


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a file tokenizer.json, of a folder that contains one, or of a repository of the Hub.

    Padding and truncation that it may contain are disabled.

    Raises ``UserError`` if the package tokenizers is not installed or there is no such tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError(
            f"task.tokenizer={name}: needs the package tokenizers; install it with {install_command('tokenizers')}, or "
            "leave the option out to read bytes"
        ) from error
    path = Path(name).expanduser()
    try:
        if path.exists():
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        elif any(os.environ.get(variable) for variable in OFFLINE_VARIABLES):
            raise OSError("network access is disabled")
        else:
            tokenizer = Tokenizer.from_pretrained(name)
    except Exception as error:  # tokenizers raises Exception itself
        fault = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"task.tokenizer={name}: cannot be loaded ({fault}); set it to the path of a file tokenizer.json, to a "
            "repository of the Hugging Face Hub that has one, or leave it out to read bytes"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encoded(tokenizer: Any, column: ListColumn, targets: Integers, rows: Integers, length: int) -> Iterator[Examples]:
    """Yield the first ``length`` tokens, without special ones, of each text of the rows with the given indices.

    A text without any token becomes the token 0, so that no example is empty.
    """
    documents: tuple[int | None, ...] = (None,) if column.lengths.ndim == 1 else (0, 1)
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        texts = [to_bytes(column.row(row, document)).decode() for row in chunk.tolist() for document in documents]
        found = tokenizer.encode_batch(texts, add_special_tokens=False)
        tokens = [np.array(each.ids[:length] or [0], np.int32) for each in found]
        yield joined([tokens[n : n + len(documents)] for n in range(0, len(tokens), len(documents))], targets[chunk])


def decoded(tokenizer: Any, examples: Examples) -> Examples:
    """Return the texts of tokens as bytes + 1; an empty text becomes one space."""
    ends = np.cumsum(examples.lengths.ravel())[:-1]
    ids = [each.tolist() for each in np.split(examples.values, ends)]
    texts = [to_tokens(text.encode() or b" ") for text in tokenizer.decode_batch(ids)]
    documents = examples.lengths.ndim
    return joined([texts[n : n + documents] for n in range(0, len(texts), documents)], examples.targets)

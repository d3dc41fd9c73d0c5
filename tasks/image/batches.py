"""Read the CIFAR-10 batches of the authors: pickles of colour planes and labels, in a folder or archive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.archives import read_files

from .pixels import ROWS_PER_PART, SIDE, Part, checked_labels
from .unpickle import load_batch

# md5 of each batch, as in torchvision.datasets.CIFAR10.
BATCHES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
TEST_BATCH = "test_batch"


def read_batches(root: Path) -> Iterator[Part]:
    """Yield all pictures of the batches in a folder or archive.

    Raises ``UserError`` if a batch is damaged, contains something else or occurs twice. The message names the batch.
    """
    names = set()
    for member, content in read_files(root, lambda member: PurePosixPath(member).name in BATCHES):
        name, where = PurePosixPath(member).name, f"{member} of {root}"
        if name in names:
            raise UserError(f"task.source: {root} contains {name} twice")
        names.add(name)
        colours, labels = _unpacked(load_batch(content, where), where)
        for start in range(0, len(labels), ROWS_PER_PART):
            part = slice(start, start + ROWS_PER_PART)
            yield Part(name == TEST_BATCH, colours[part], labels[part], np.zeros(len(labels[part]), dtype=bool))


def md5_of_batches(root: Path) -> dict[str, str]:
    """Return the md5 of each batch in a folder or archive by name."""
    return {
        PurePosixPath(member).name: hashlib.md5(content, usedforsecurity=False).hexdigest()
        for member, content in read_files(root, lambda member: PurePosixPath(member).name in BATCHES)
    }


def _unpacked(batch: Mapping[Any, Any], where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return colours (R, 32, 32, 3) and labels (R,) of a batch, which stores each picture as three planes."""
    planes, labels = batch.get("data"), batch.get("labels")
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.shape[1:] != (3 * SIDE * SIDE,):
        raise UserError(f"task.source: {where} does not contain pictures of 32 x 32 pixels in three colours")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if not isinstance(labels, list) or len(labels) != len(planes):
        raise UserError(f"task.source: {where} does not contain one label per picture")
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), checked_labels(labels, where)

"""Images of the original Pathfinder generator."""

import functools
import io
import tarfile

import numpy as np
from PIL import Image

from lra_bench.tasks.pathfinder.parameters import CONTOUR_LENGTHS

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}


@functools.cache
def originals(shared_data, resolution, difficulty):
    """Return images (n, R, R), labels (n,) and lines of metadata."""
    archive = shared_data / "pathfinder" / f"original_generator_pathfinder{resolution}.tar.gz"
    prefix = f"pathfinder{resolution}/{FOLDERS[difficulty]}/"
    files = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and member.name.startswith(prefix):
                files[member.name.removeprefix(prefix)] = opened.extractfile(member).read()
    lines = [
        line.split()
        for name in sorted(files)
        if name.startswith("metadata/")
        for line in files[name].decode().splitlines()
    ]
    assert {int(line[5]) for line in lines} == {CONTOUR_LENGTHS[difficulty]}
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(files[f"{line[0]}/{line[1]}"]))) for line in lines])
    return pictures, np.array([int(line[3]) for line in lines]), lines

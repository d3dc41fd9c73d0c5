"""A small Pathfinder release in all supported file formats."""

import io
import tarfile

import numpy as np
from PIL import Image

from lra_bench.data.cache import Cache
from lra_bench.tasks.pathfinder.drawing import LABEL, MARGIN
from lra_bench.tasks.pathfinder.generation import draw_pictures
from lra_bench.tasks.pathfinder.parameters import published
from lra_bench.tasks.pathfinder.task import Pathfinder
from tests.support.pathfinder_originals import FOLDERS

EASY = published(32, "easy")
SPLITS = ("train", "validation", "test")


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def release(count=120, parts=(0, 1, 2, 10), labels=None, difficulty="easy"):
    """Return the files of a set by name; images are distributed to ``parts`` in order."""
    drawn = draw_pictures(EASY, seed=9, first=0, count=count)
    labels = drawn.about[:, LABEL] if labels is None else labels
    files = {}
    for part, rows in zip(parts, np.array_split(np.arange(count), len(parts)), strict=True):
        lines = []
        for number, row in enumerate(rows):
            name = f"sample_{number}.png"
            files[f"imgs/{part}/{name}"] = png(drawn.pixels[row])
            margin = drawn.about[row, MARGIN]
            lines.append(f"imgs/{part} {name} {number} {labels[row]} 1.0 6 2 2 0.5 {margin} 1\n")
        files[f"metadata/{part}.npy"] = "".join(lines).encode()
    return {f"{FOLDERS[difficulty]}/{name}": content for name, content in files.items()}


def write_folder(files, root):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_archive(files, path, prefix="lra_release/lra_release/pathfinder32/"):
    """Write a tar whose members are not sorted."""
    with tarfile.open(path, "w:gz") as archive:
        for name in sorted(files, key=lambda name: name[::-1]):
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return path


def prepared(cache_folder, **options):
    task = Pathfinder(**{"difficulty": "easy", "extrapolation_rows": 8, **options})
    task.prepare(Cache(cache_folder))
    return task


def read_release(source, cache_folder, **options):
    return prepared(cache_folder, source=str(source), allow_partial=True, **options)

"""A small random CIFAR-10 in all supported file formats."""

import io
import pickle
import tarfile

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet

from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256
from lra_bench.tasks.image.batches import BATCHES
from lra_bench.tasks.image.task import Image

SPLITS = ("train", "validation", "test")


class World:
    """Random images: ``colours`` (R, 32, 32, 3) and ``labels`` (R,), by default 60 for training and 30 for testing."""

    def __init__(self, seed=0, train=60, test=30):
        generator = np.random.default_rng(seed)
        self.train = train
        self.colours = generator.integers(0, 256, (train + test, 32, 32, 3), dtype=np.uint8)
        self.labels = np.concatenate([generator.permutation(np.arange(rows) % 10) for rows in (train, test)])

    def split(self, test):
        rows = slice(self.train, None) if test else slice(None, self.train)
        return self.colours[rows], self.labels[rows]


def batch(colours, labels, **changed):
    planes = colours.transpose(0, 3, 1, 2).reshape(len(colours), -1)
    return {
        b"batch_label": b"a batch",
        b"labels": labels.tolist(),
        b"data": planes,
        b"filenames": [b"x.png"],
        **changed,
    }


def pickled(content):
    return pickle.dumps(content, protocol=2)


def batch_contents(world):
    """Return the pickle of every batch by name."""
    colours, labels = world.split(test=False)
    parts = zip(np.array_split(colours, 5), np.array_split(labels, 5), strict=True)
    every = [*parts, world.split(test=True)]
    return {name: pickled(batch(*part)) for name, part in zip(BATCHES, every, strict=True)}


def write_batches(world, root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, content in batch_contents(world).items():
        (folder / name).write_bytes(content)
    (folder / "batches.meta").write_bytes(pickled({b"label_names": [b"airplane"]}))
    return root


def write_archive(world, root, extra=()):
    """Write the tar.gz archive; ``extra`` are further members as (TarInfo, content)."""
    root.mkdir(parents=True, exist_ok=True)
    members = []
    for name, content in batch_contents(world).items():
        member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
        member.size = len(content)
        members.append((member, content))
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as archive:
        for member, content in (*members, *extra):
            archive.addfile(member, io.BytesIO(content))
    return root


def encoded_image(picture, form="PNG"):
    buffer = io.BytesIO()
    PIL.Image.fromarray(picture).save(buffer, form)
    return buffer.getvalue()


def write_tables(world, root, form="PNG", column="img", names="{}-00000-of-00001.parquet"):
    root.mkdir(parents=True, exist_ok=True)
    for test, split in ((False, "train"), (True, "test")):
        colours, labels = world.split(test)
        codes = [encoded_image(picture, form) for picture in colours]
        cells = (
            [{"bytes": code, "path": f"{place}.png"} for place, code in enumerate(codes)] if column == "img" else codes
        )
        pyarrow.parquet.write_table(pyarrow.table({column: cells, "label": labels}), root / names.format(split))
    return root


def prepared(source, tmp_path, **options):
    task = Image(source=str(source), **{"allow_partial": True, **options})
    task.prepare(Cache(tmp_path / "cache"))
    return task


def digests(task):
    return [content_sha256(task.split(name)) for name in SPLITS]

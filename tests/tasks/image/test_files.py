"""Tests of reading CIFAR-10: every format gives the same examples, invalid files give a one-line message."""

import hashlib
import tarfile

import numpy as np
import pytest

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.data.columns import numbers
from lra_bench.data.download import Remote
from lra_bench.tasks.image import batches as image_batches
from lra_bench.tasks.image import files
from lra_bench.tasks.image.pixels import grey, to_tokens
from lra_bench.tasks.image.rows import rows_of
from lra_bench.tasks.image.task import Image
from tests.support.cifar_files import (
    SPLITS,
    World,
    batch,
    batch_contents,
    digests,
    encoded_image,
    pickled,
    prepared,
    write_archive,
    write_batches,
    write_tables,
)
from tests.support.command import Folder
from tests.support.file_host import serving


@pytest.fixture(autouse=True)
def no_external_data(monkeypatch):
    """Disable downloads and the data folder of the user."""
    monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "1")


WRITERS = {
    "batches": write_batches,
    "archive": write_archive,
    "tables of the Hub": write_tables,
    "tables in a folder": lambda world, root: write_tables(world, root / "plain_text").parent,
    "plain tables": lambda world, root: write_tables(world, root, column="image", names="{}.parquet"),
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_same_examples(form, tmp_path):
    world = World()
    task = prepared(WRITERS[form](world, tmp_path / "data"), tmp_path)
    assert digests(task) == digests(prepared(write_batches(world, tmp_path / "other"), tmp_path))
    expected = {(to_tokens(grey(c[None])).tobytes(), int(y)) for c, y in zip(world.colours, world.labels, strict=True)}
    found = [
        (row.tobytes(), int(label))
        for name in SPLITS
        for row, label in zip(rows_of(task.split(name)), numbers(task.split(name), "target"), strict=True)
    ]
    assert set(found) == expected and len(found) == len(world.labels)
    assert [len(task.split(name)) for name in SPLITS] == [54, 6, 30]
    test_rows = {to_tokens(grey(colours[None])).tobytes() for colours in world.split(test=True)[0]}
    assert {row.tobytes() for row in rows_of(task.split("test"))} == test_rows


def test_path_of_the_archive_is_accepted(tmp_path):
    root = write_archive(World(), tmp_path / "data")
    assert prepared(root / "cifar-10-python.tar.gz", tmp_path)._identity == prepared(root, tmp_path)._identity


def test_official_files_are_recognised_by_checksum_in_every_format(tmp_path, monkeypatch):
    world = World(train=60, test=30)
    archive, tables_ = write_archive(world, tmp_path / "a"), write_tables(world, tmp_path / "t")
    batches, lossy = write_batches(world, tmp_path / "b"), write_tables(world, tmp_path / "j", "JPEG", "jpeg")
    monkeypatch.setattr(files, "OFFICIAL_PICTURES", {"train": 60, "test": 30})
    fingerprint = Image().fingerprint()  # without files: that of the official files
    for source in (archive, tables_, batches, lossy):
        with pytest.raises(UserError, match="JPEG" if source is lossy else "not that of the official files"):
            prepared(source, tmp_path, allow_partial=False)
        assert Image(source=str(source)).fingerprint() != fingerprint
    packed = (archive / files.ARCHIVE).read_bytes()
    monkeypatch.setattr(files, "ARCHIVE_SHA256", hashlib.sha256(packed).hexdigest())
    sums = {name: hashlib.md5(content).hexdigest() for name, content in batch_contents(world).items()}
    monkeypatch.setattr(files, "BATCHES", sums)
    remotes = tuple(
        Remote(remote.file, remote.file, sha256=hashlib.sha256((tables_ / remote.file).read_bytes()).hexdigest())
        for remote in files.REMOTES
    )
    monkeypatch.setattr(files, "REMOTES", remotes)
    again = tmp_path / "again.tar"  # the same batches in another archive
    with tarfile.open(again, "w") as packed_again:
        packed_again.add(batches / "cifar-10-batches-py", "cifar-10-batches-py")
    for number, source in enumerate((archive, tables_, batches, again)):
        task = prepared(source, tmp_path / str(number), allow_partial=False)
        assert task.fingerprint() == fingerprint
        assert (task.provenance().partial, task.provenance().lossy) == ("", "")


def test_constants_of_official_files_are_valid():
    assert all(remote.sha256 and remote.address.startswith("https://") for remote in files.REMOTES)
    assert list(image_batches.BATCHES)[-1] == image_batches.TEST_BATCH


def _cut_archive(root):
    path = write_archive(World(), root) / "cifar-10-python.tar.gz"
    path.write_bytes(path.read_bytes()[:-2000])


def _with_member(name, kind=tarfile.REGTYPE):
    def write(root):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        write_archive(World(), root, [(member, b"")])

    return write


def _with_batch(change):
    def write(root):
        write_batches(World(), root)
        path = root / "cifar-10-batches-py" / "data_batch_2"
        path.write_bytes(change(path.read_bytes()))

    return write


def _changed(name, value):
    return _with_batch(lambda _: pickled({**batch(*World().split(test=True)), name: value}))


def _with_table(change):
    def write(root):
        write_tables(World(), root)
        path = root / "train-00000-of-00001.parquet"
        path.write_bytes(change(path.read_bytes()))

    return write


def _with_picture(code):
    def write(root):
        import pyarrow
        import pyarrow.parquet

        write_tables(World(), root)
        table = pyarrow.table({"img": [{"bytes": code, "path": "0.png"}] * 20, "label": list(range(10)) * 2})
        pyarrow.parquet.write_table(table, root / "test-00000-of-00001.parquet")

    return write


class Call:
    """An object whose pickle calls a function when it is loaded."""

    def __reduce__(self):
        return print, ("this must not be printed",)


SMALL = np.zeros((16, 16, 3), dtype=np.uint8)
DAMAGED = {
    "a truncated archive": (_cut_archive, "truncated"),
    "an archive with a path outside": (_with_member("../data_batch_1"), "leads out"),
    "an archive with a link": (_with_member("data_batch_1", tarfile.SYMTYPE), "link"),
    "an archive with a batch twice": (_with_member("data_batch_1"), "twice"),
    "a pickle with a call": (
        _with_batch(lambda _: pickled({b"data": Call(), b"labels": []})),
        "names __builtin__.print",
    ),
    "a truncated pickle": (_with_batch(lambda content: content[:-100]), "damaged"),
    "a pickle of something else": (_with_batch(lambda _: pickled([1, 2])), "a list instead of a dict"),
    "pictures of another shape": (
        _changed(b"data", np.zeros((30, 100), np.uint8)),
        "does not contain pictures of 32 x 32",
    ),
    "pictures of floats": (_changed(b"data", np.zeros((30, 3072))), "an array of 'f8' instead of integers"),
    "too few labels": (_changed(b"labels", [1]), "does not contain one label per picture"),
    "an invalid label": (_changed(b"labels", [10] * 30), "has the label 10"),
    "a truncated table": (_with_table(lambda content: content[:-300]), "cannot be read"),
    "a table damaged inside": (_with_table(lambda content: content[:200] + bytes(4000) + content[4200:]), "train"),
    "a picture that is not an image": (_with_picture(b"nothing"), "row 0 of .* is not a valid PNG or JPEG"),
    "a picture that is missing": (_with_picture(None), "is not a valid PNG or JPEG"),
    "a truncated picture": (_with_picture(encoded_image(World().colours[0])[:900]), "not a valid PNG or JPEG"),
    "a picture of another size": (_with_picture(encoded_image(SMALL)), "does not have 32 x 32 pixels"),
    "an empty folder": (lambda root: root.mkdir(), "does not contain cifar-10-python.tar.gz"),
    "nothing": (lambda root: None, "does not exist"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_invalid_files_give_a_one_line_message_and_no_data(damage, tmp_path, capsys):
    write, fault = DAMAGED[damage]
    write(tmp_path / "data")
    with pytest.raises(UserError, match=fault) as caught:
        prepared(tmp_path / "data", tmp_path)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("task.source")
    assert str(tmp_path / "data") in str(caught.value)
    assert not [path for path in (tmp_path / "cache").glob("data/*") if path.is_dir()]
    assert "printed" not in capsys.readouterr().out


@pytest.mark.slow
def test_invalid_file_ends_the_command_with_a_one_line_message_and_exit_code_2(tmp_path):
    _with_batch(lambda _: pickled(Call()))(tmp_path / "data")
    done = Folder(tmp_path / "work").run(
        "data", "prepare", "image", f"task.source={tmp_path / 'data'}", "task.allow_partial=true", check=False
    )
    assert done.returncode == 2 and "printed" not in done.stdout
    # A slow machine also prints the progress.
    (message,) = [line for line in done.stderr.splitlines() if not line.startswith("reading CIFAR-10")]
    assert "names __builtin__.print" in message


def test_without_data_and_network_the_message_names_the_files(tmp_path):
    task = Image()
    assert task.fingerprint() == Image().fingerprint()
    with pytest.raises(UserError, match=r"LRA_BENCH_OFFLINE.*huggingface.*cifar10.*task\.source=PATH"):
        task.prepare(Cache(tmp_path))
    assert not (tmp_path / "data").exists()


def test_missing_files_are_downloaded_and_checked(tmp_path, monkeypatch):
    root = write_tables(World(), tmp_path / "data")
    monkeypatch.delenv("LRA_BENCH_OFFLINE")
    with serving() as host:
        host.files = {path.name: path.read_bytes() for path in root.iterdir()}
        remotes = [
            Remote(host.url(remote.file), remote.file, hashlib.sha256(host.files[remote.file]).hexdigest())
            for remote in files.REMOTES
        ]
        monkeypatch.setattr(files, "REMOTES", tuple(remotes))
        planned = Image(allow_partial=True)
        before = planned.fingerprint()
        planned.prepare(Cache(tmp_path / "cache"))
    assert len(host.requests) == 2 and planned.fingerprint() == before
    assert digests(planned) == digests(prepared(root, tmp_path))

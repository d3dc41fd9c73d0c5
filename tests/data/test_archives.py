"""Archives and folders are read in one pass; unsafe or damaged ones are user errors of one sentence."""

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data import archives
from lra_bench.data.archives import open_compressed, open_inside, read_files

FILES = {"neg/10.txt": b"ten", "neg/2.txt": b"", "pos/1.txt": bytes(range(256)) * 9, "readme": b"not wanted"}
FORMS = ["folder", "w:", "w:gz", "w:bz2", "w:xz", "zip"]


def everything(name):
    return True


def write(path, form, files):
    """Write ``files`` in one of the forms and return the path."""
    if form == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, form) as archive:
            for name, content in files.items():
                add(archive, name, content)
    return path


def add(archive, name, content=b"", **header):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in header.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def refused(path, message):
    with pytest.raises(UserError, match=message) as caught:
        list(read_files(path, lambda name: False))
    sentence = str(caught.value)
    assert sentence.startswith("task.source: ") and str(path) in sentence and "\n" not in sentence


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_files(tmp_path, form):
    path = write(tmp_path / "data", form, FILES)
    assert dict(read_files(path, everything)) == FILES
    assert [name for name, _ in read_files(path, lambda name: name.endswith(".txt"))] == (
        ["neg/2.txt", "neg/10.txt", "pos/1.txt"] if form == "folder" else ["neg/10.txt", "neg/2.txt", "pos/1.txt"]
    )


@given(
    files=st.dictionaries(
        st.from_regex(r"[a-z]{1,3}/[a-z0-9]{1,4}", fullmatch=True),
        st.binary(max_size=2000).map(b"\0".__add__),
        min_size=1,
    ),
    form=st.sampled_from(FORMS),
)
@settings(max_examples=30, deadline=None)
def test_written_files_are_read(tmp_path_factory, files, form):
    path = write(tmp_path_factory.mktemp("any") / "data", form, files)
    assert dict(read_files(path, everything)) == files


def test_names_are_normalised(tmp_path):
    with tarfile.open(tmp_path / "dot.tar", "w") as archive:
        add(archive, ".", type=tarfile.DIRTYPE)
        add(archive, "./a//b", b"1")
    assert dict(read_files(tmp_path / "dot.tar", everything)) == {"a/b": b"1"}


def test_members_that_are_not_selected_are_not_read(tmp_path, monkeypatch):
    path = write(tmp_path / "data.tar", "w:", FILES)
    opened = []
    extract = tarfile.TarFile.extractfile
    monkeypatch.setattr(
        tarfile.TarFile, "extractfile", lambda self, member: opened.append(member.name) or extract(self, member)
    )
    assert dict(read_files(path, lambda name: name == "neg/2.txt")) == {"neg/2.txt": b""}
    assert opened == ["neg/2.txt"]


@pytest.mark.slow
def test_reading_an_archive_of_many_members_takes_little_memory(tmp_path):
    path = write(tmp_path / "many.tar", "w:", {f"{number}": b"" for number in range(5_000)})
    # Python's table of interned strings may be resized during one of the readings, which allocates megabytes.
    assert min(_peak_of_reading(path), _peak_of_reading(path)) < 2 << 20


def _peak_of_reading(path):
    """Return the peak in bytes of the memory allocated while 5,000 members are read."""
    import tracemalloc

    tracemalloc.start()
    assert sum(1 for _ in read_files(path, everything)) == 5_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/out", "..\\out", "C:\\out", "C:/out"])
@pytest.mark.parametrize("form", ["w:", "w:gz", "zip"])
def test_names_that_lead_out_of_the_archive_are_refused(tmp_path, name, form):
    refused(write(tmp_path / "bad", form, {"good": b"1", name: b"2"}), "leads out")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        add(archive, "good", b"1")
        add(archive, "evil", type=kind, linkname="good")
    refused(tmp_path / "bad.tar", "evil, which is a link or device")


def test_links_and_encryption_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        link = zipfile.ZipInfo("evil")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    refused(tmp_path / "bad.zip", "evil, which is a link or device")
    content = bytearray(write(tmp_path / "secret.zip", "zip", {"a": b"1"}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "secret.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"secret.zip cannot be read .*encrypted"):
        list(read_files(tmp_path / "secret.zip", everything))


@pytest.mark.parametrize("form", FORMS[1:])
def test_a_truncated_archive_is_refused(tmp_path, form):
    files = {f"{number}.bin": random.Random(number).randbytes(700) for number in range(20)}
    whole = write(tmp_path / "whole", form, files).read_bytes()
    end = len(whole) if form != "w:" else len(whole.rstrip(b"\0"))
    cut = tmp_path / "cut"
    # A plain tar is also cut between members, which only the missing end block reveals.
    for size in {*range(1, end, max(1, end // 60)), *(range(1024, end, 512) if form == "w:" else ()), end - 1}:
        cut.write_bytes(whole[:size])
        refused(cut, "task.source")


@pytest.mark.parametrize("form", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_a_flipped_bit_is_a_user_error(tmp_path, form):
    files = {f"{number}.bin": random.Random(number).randbytes(700) for number in range(20)}
    whole = write(tmp_path / "whole", form, files).read_bytes()
    for position in range(len(whole) // 8, len(whole) * 7 // 8, len(whole) // 40):
        (tmp_path / "bad").write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        try:
            assert dict(read_files(tmp_path / "bad", everything)) == files  # a bit without effect
        except UserError as error:
            assert str(tmp_path / "bad") in str(error)


def test_a_damaged_header_is_not_treated_as_the_end(tmp_path):
    whole = bytearray(write(tmp_path / "whole.tar", "w:", FILES).read_bytes())
    second = whole.index(b"neg/2.txt")
    whole[second] ^= 1
    (tmp_path / "bad.tar").write_bytes(whole)
    refused(tmp_path / "bad.tar", f"truncated or damaged after {second:,} bytes")


@pytest.mark.parametrize(
    "content",
    [b"x", b"no archive at all" * 100, gzip.compress(b"no tar in it" * 100)],
    ids=["a byte", "text", "zipped text"],
)
def test_other_files_are_user_errors(tmp_path, content):
    (tmp_path / "data").write_bytes(content)
    refused(tmp_path / "data", "is not a folder, tar or zip")


PLACEHOLDERS = {
    "is empty; download it again": b"",
    "is a pointer of Git LFS; replace it by the file": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n",
    "is an HTML page instead of the file": b"\n<!DOCTYPE html>\n<html><head><title>404</title>",
}


@pytest.mark.parametrize("message", PLACEHOLDERS)
def test_placeholders_are_named(tmp_path, message):
    path = tmp_path / "data.tar.gz"
    path.write_bytes(PLACEHOLDERS[message])
    refused(path, message)
    with pytest.raises(UserError, match=message), open_compressed(path):
        pass
    if PLACEHOLDERS[message]:
        with pytest.raises(UserError, match=f"data.tar.gz {message}"):
            list(read_files(tmp_path, everything))


def test_a_missing_archive_is_a_user_error(tmp_path):
    refused(tmp_path / "absent", "does not exist")


def test_an_empty_folder_contains_no_files(tmp_path):
    assert list(read_files(tmp_path, everything)) == []


def test_links_in_folders_are_followed_once(tmp_path):
    """The content of a store, such as that of git-annex, DVC or nix, is outside the folder that the user names."""
    store = write(tmp_path / "store", "folder", {"1": b"1", "more/2": b"2"})
    root = write(tmp_path / "root", "folder", {"a/b": b"b"})
    (root / "inside").symlink_to(root / "a" / "b")
    (root / "file").symlink_to(store / "1")
    (root / "folder").symlink_to(store / "more")
    for loop in (root / "again", root / "a" / "up", store / "more" / "self"):
        loop.symlink_to(store / "more" if loop.name == "self" else root)
    (store / "more" / "back").symlink_to(root)
    (tmp_path / "alias").symlink_to(root)
    expected = {"a/b": b"b", "inside": b"b", "file": b"1", "folder/2": b"2"}
    assert dict(read_files(tmp_path / "alias", everything)) == dict(read_files(root, everything)) == expected


def test_a_link_whose_content_is_missing_is_named(tmp_path):
    (tmp_path / "a").symlink_to("../.git/annex/objects/a")
    with pytest.raises(
        UserError, match=r"a is a link to ../.git/annex/objects/a, which does not exist; .*git annex get"
    ):
        list(read_files(tmp_path, everything))


def test_a_pipe_in_a_folder_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        list(read_files(tmp_path, everything))
    assert list(read_files(tmp_path, lambda name: False)) == []


PACKERS = {"plain": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def packed(path, form, content):
    path.write_bytes(PACKERS[form](content)) if form in PACKERS else write(
        path, "zip", {"dir/": b"", "enwik8": content}
    )
    return path


@pytest.mark.parametrize("form", [*PACKERS, "zip"])
def test_a_compressed_file_is_a_stream(tmp_path, form):
    content = random.Random(0).randbytes(1_100_000)
    with open_compressed(packed(tmp_path / "data", form, content)) as stream:
        assert stream.read(10) == content[:10]
        assert stream.readline() == content[10 : content.index(b"\n", 10) + 1]
        rest = stream.read()
    assert rest == content[content.index(b"\n", 10) + 1 :]


@pytest.mark.parametrize("form", ["gz", "bz2", "xz", "zip"])
def test_a_truncated_compressed_file_is_a_user_error(tmp_path, form):
    whole = packed(tmp_path / "whole", form, random.Random(0).randbytes(50_000)).read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 12):
        (tmp_path / "cut").write_bytes(whole[:size])
        with (
            pytest.raises(UserError, match=f"task.source: {tmp_path / 'cut'}"),
            open_compressed(tmp_path / "cut") as file,
        ):
            file.read()


def test_errors_of_the_calling_code_are_unchanged(tmp_path):
    with pytest.raises(OSError, match="mine"), open_compressed(packed(tmp_path / "a", "gz", b"1")):
        raise OSError("mine")


def test_a_zip_of_several_files_is_not_opened_as_a_stream(tmp_path):
    with (
        pytest.raises(UserError, match="contains 2 files instead of one"),
        open_compressed(write(tmp_path / "two.zip", "zip", {"a": b"", "b": b""})),
    ):
        pass
    with pytest.raises(UserError, match="does not exist"), open_compressed(tmp_path / "absent"):
        pass


@pytest.mark.parametrize("form", ["w:", "w:gz", "w:xz", "zip"])
def test_a_large_file_of_an_archive_is_a_stream(tmp_path, form):
    content = random.Random(0).randbytes(1 << 20)
    path = write(tmp_path / "archive", form, {"first": b"no", "large": content, "last": b"no"})
    with open_inside(path, lambda name: name == "large") as stream:
        assert stream is not None and stream.readline() + stream.read() == content
    with open_inside(path, lambda name: name == "missing") as stream:
        assert stream is None
    with pytest.raises(KeyError), open_inside(path, everything) as stream:
        raise KeyError("the reader's own")
    path.write_bytes(path.read_bytes()[: len(content) // 2])
    with (
        pytest.raises(UserError, match=rf"task\.source: {path}"),
        open_inside(path, lambda name: name == "large") as stream,
    ):
        assert stream is not None
        stream.read()


def test_a_file_after_an_unsafe_name_is_not_opened(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        add(archive, "../large")
        add(archive, "large", b"content")
    with pytest.raises(UserError, match="leads out of the archive"), open_inside(tmp_path / "archive", everything):
        pass


def decompression_bomb(path, form, size):
    """Write an archive of zeros that unpacks to ``size`` bytes, without keeping them in memory."""
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a", "w") as inside:
            for _ in range(size >> 20):
                inside.write(bytes(1 << 20))
        return path
    opener = {"w:gz": gzip.open, "w:bz2": bz2.open, "w:xz": lzma.open}[form]
    member = tarfile.TarInfo("a")
    member.size = size
    with opener(path, "wb") as stream:
        stream.write(member.tobuf())
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
        stream.write(bytes(1024))
    return path


@pytest.mark.parametrize("form", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_a_decompression_bomb_is_refused(tmp_path, form, monkeypatch):
    monkeypatch.setattr(archives, "SMALL_BYTES", 1 << 20)
    path = decompression_bomb(tmp_path / "bomb", form, 16 << 20)
    refused(path, "unpacks to more than 250 times its size")  # skipping the member decompresses it too
    with pytest.raises(UserError, match="unpacks to more"):
        list(read_files(path, everything))


def test_a_compressed_file_of_extreme_ratio_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL_BYTES", 1 << 20)
    (tmp_path / "line.gz").write_bytes(gzip.compress(bytes(16 << 20)))
    with open_compressed(tmp_path / "line.gz") as stream, pytest.raises(UserError, match="unpacks to more"):
        stream.readline()


@pytest.mark.parametrize("form", ["folder", "w:", "zip"])
def test_a_member_that_is_too_large_is_refused_before_it_is_read(tmp_path, form, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_MEMBER_BYTES", 1000)
    path = write(tmp_path / "data", form, {"large": bytes(1001), "small": bytes(1000)})
    assert dict(read_files(path, lambda name: name == "small")) == {"small": bytes(1000)}
    with pytest.raises(UserError, match=r"large in .* is larger \(1,001 bytes\) than any known file"):
        list(read_files(path, everything))


def sparse(size):
    """Return a member of a tar in the old GNU format that claims ``size`` bytes and contains none."""
    header = tarfile.TarInfo(f"{size}")
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[386:398] = b"%011o\0" % size  # one hole, from the end on
    block[398:410] = b"%011o\0" % 0
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("form", ["w:", "w:gz"])
def test_sparse_members_are_refused(tmp_path, form):
    """An archive of a few kilobytes with 120 members of the largest accepted size."""
    content = sparse(archives.LARGEST_MEMBER_BYTES) * 120 + bytes(1024)
    (tmp_path / "sparse.tar").write_bytes(content if form == "w:" else gzip.compress(content))
    with tarfile.open(tmp_path / "sparse.tar") as archive:
        assert sum(member.size for member in archive) == 120 << 30
    refused(tmp_path / "sparse.tar", "sparse file")
    with pytest.raises(UserError, match="sparse file"), open_inside(tmp_path / "sparse.tar", everything):
        pass


def test_sparse_members_of_pax_are_refused(tmp_path):
    with tarfile.open(tmp_path / "pax.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
        add(archive, "a", b"0\n" + bytes(510), pax_headers={**fields, "GNU.sparse.name": "a"})
    refused(tmp_path / "pax.tar", "sparse file")


def test_zips_whose_files_claim_too_large_a_total_size_are_refused(tmp_path, monkeypatch):
    """Each file alone is small enough."""
    monkeypatch.setattr(archives, "SMALL_BYTES", 1 << 20)
    path = write(tmp_path / "many.zip", "zip", {f"{number}": bytes(1 << 19) for number in range(20)})
    refused(path, "unpacks to more than 250 times its size")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zips_that_are_not_deflated_are_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("a", bytes(1000))
    refused(tmp_path / "a.zip", "a, which is not compressed by deflate")


def test_an_absolute_limit_applies_to_the_unpacked_size(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_TOTAL_BYTES", 1 << 20)
    files = {"a": random.Random(0).randbytes(1 << 20), "b": b"b"}
    for form in FORMS[1:]:
        refused(write(tmp_path / f"data {form}", form, files), "unpacks to more than")


def member(name, size, **fields):
    header = tarfile.TarInfo(name)
    header.size = size
    for field, value in fields.items():
        setattr(header, field, value)
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("form", PACKERS)
@pytest.mark.parametrize(
    "content",
    [
        member("a", 1 << 30) + b"a" * 512,
        member("a", 1 << 40, type=tarfile.GNUTYPE_LONGNAME) + b"a" * 512,
        member("a", 1 << 40, type=tarfile.XHDTYPE) + b"a" * 512,
        member("a", -512) + bytes(1024),
        member("a", -512, type=tarfile.XHDTYPE) + bytes(1024),
    ],
    ids=["a file", "a long name", "a header of pax", "a negative size", "a negative size of a header"],
)
def test_sizes_claimed_by_a_tar_are_not_allocated(tmp_path, form, content):
    import tracemalloc

    (tmp_path / "data").write_bytes(PACKERS[form](content))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"^task\.source: "):
        list(read_files(tmp_path / "data", everything))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < archives.SMALL_BYTES + (16 << 20)

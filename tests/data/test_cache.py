"""The cache: data sets are complete, built once, and rebuilt if they are damaged."""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest

from lra_bench.contracts import UserError
from lra_bench.data.cache import MANIFEST, Cache, default_root
from lra_bench.data.digest import sha256_of_file, sha256_of_folder


def rows(count=5):
    return datasets.Dataset.from_dict({"tokens": [[i] * (i + 1) for i in range(count)], "target": list(range(count))})


class Maker:
    """A builder that counts its calls."""

    def __init__(self, count=5):
        self.count, self.calls = count, 0

    def __call__(self, advance):
        self.calls += 1
        for _ in range(self.count):
            advance(1)
        return rows(self.count)


def get(cache, maker, name="toy", key="k1"):
    return cache.dataset(name, key, maker, maker.count, "making toys")


def arrow_file(cache, name="toy", key="k1"):
    return next(cache.path(name, key).glob("*.arrow"))


def test_a_data_set_is_built_once(tmp_path):
    cache, maker = Cache(tmp_path), Maker()
    first = get(cache, maker)
    second = get(Cache(tmp_path), maker)
    assert maker.calls == 1
    assert first.to_dict() == second.to_dict() == rows().to_dict()
    assert get(cache, maker, key="k2").to_dict() == rows().to_dict()
    assert maker.calls == 2


def test_the_manifest_contains_size_and_checksum_of_every_file(tmp_path):
    cache = Cache(tmp_path)
    get(cache, Maker())
    folder = cache.path("toy", "k1")
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["rows"] == 5
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {MANIFEST}
    for name, known in manifest["files"].items():
        assert known == {"bytes": (folder / name).stat().st_size, "sha256": sha256_of_file(folder / name)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("half", r"toy-k1: data.*\.arrow has [\d,]+ bytes instead of [\d,]+; rebuilding it"),
        ("missing", r"toy-k1: data.*\.arrow is missing; rebuilding it"),
        ("no manifest", r"toy-k1: manifest\.json is missing or damaged; rebuilding it"),
        ("pipe as manifest", r"toy-k1: manifest\.json is missing or damaged; rebuilding it"),
        ("cut manifest", r"toy-k1: manifest\.json is missing or damaged; rebuilding it"),
    ],
)
def test_a_damaged_folder_is_rebuilt_with_a_message(tmp_path, capfd, damage, message):
    cache, maker = Cache(tmp_path), Maker(200)
    get(cache, maker)
    capfd.readouterr()
    data, manifest = arrow_file(cache), cache.path("toy", "k1") / MANIFEST
    if damage == "half":
        os.truncate(data, data.stat().st_size // 2)
    elif damage == "missing":
        data.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "pipe as manifest":
        manifest.unlink()
        os.mkfifo(manifest)
    else:
        os.truncate(manifest, 20)
    assert get(cache, maker).to_dict() == rows(200).to_dict()
    assert maker.calls == 2
    assert re.fullmatch(message, capfd.readouterr().err.strip())
    get(cache, maker)
    assert maker.calls == 2


def test_an_unreadable_file_of_the_same_size_is_rebuilt(tmp_path, capfd):
    cache, maker = Cache(tmp_path), Maker()
    get(cache, maker)
    arrow_file(cache).write_bytes(b"x" * arrow_file(cache).stat().st_size)
    assert get(cache, maker).to_dict() == rows().to_dict()
    assert maker.calls == 2 and "cannot be read" in capfd.readouterr().err


def test_verify_detects_a_flipped_bit(tmp_path):
    cache = Cache(tmp_path)
    get(cache, Maker(200))
    assert cache.verify("toy", "k1") == []
    file = arrow_file(cache)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    assert cache.verify("toy", "k1") == [file.name]
    assert get(cache, Maker(200)).num_rows == 200  # sizes are equal, so opening does not detect it
    file.unlink()
    assert cache.verify("toy", "k1") == [file.name]
    assert cache.verify("toy", "unknown") == [MANIFEST]


@pytest.mark.slow
def test_tables_are_saved_one_at_a_time(tmp_path):
    """Saving 64 tables of 4 MiB takes much less memory than their sum, including pages of mapped files."""
    code = """
import resource, sys, numpy, pyarrow, datasets
from pathlib import Path
from lra_bench.data.cache import Cache
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
def tables(advance):
    for number in range(64):
        yield pyarrow.table({"tokens": [numpy.full(2**20, number, dtype=numpy.int32)]})
def save(name, make):
    return Cache(Path(sys.argv[1])).dataset(name, "k", make, 64, "making tables")
save("few", lambda advance: (table for table in [pyarrow.table({"tokens": [[1]]})]))
before = peak()
saved = save("many", tables)
print(peak() - before, len(saved), saved[63]["tokens"][-1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    grown_mb, rows, last = map(int, done.stdout.split())
    assert (rows, last) == (64, 63) and grown_mb < 64


def test_numbers_of_names_with_dots_are_stored_separately(tmp_path):
    cache = Cache(tmp_path)
    names = ["mine-0.5-floors-test-64", "mine-0.5-floors-test-128", "mine-0.25-floors-test-64"]
    for number, name in enumerate(names):
        numbers = {"majority": float(number)}
        assert cache.note(name, "k1", numbers.copy) == numbers
    assert cache.note(names[0], "k2.x", lambda: {"majority": 7}) == {"majority": 7}
    assert cache.note(names[0], "k2.y", lambda: {"majority": 8}) == {"majority": 8}


def test_numbers_are_stored_as_json_under_name_and_key(tmp_path):
    Cache(tmp_path).note("listops-floors", "k1", lambda: {"majority": 0.1})
    assert (tmp_path / "data" / "listops-floors-k1.json").exists()


def test_a_failed_build_leaves_nothing(tmp_path):
    cache = Cache(tmp_path)

    def fail(advance):
        raise UserError("task.source: is invalid")

    with pytest.raises(UserError, match="is invalid"):
        cache.dataset("toy", "k1", fail, 1, "making toys")
    assert cache.entries() == []
    assert [path.name for path in (tmp_path / "data").iterdir() if not path.name.endswith(".lock")] == []
    assert len(get(cache, Maker())) == 5


def test_files_of_a_killed_builder_are_removed_and_not_listed(tmp_path):
    cache = Cache(tmp_path)
    get(cache, Maker())
    temporary = cache.path("toy", "k2").with_name("toy-k2.building-dead")
    temporary.mkdir()
    (temporary / MANIFEST).write_text((cache.path("toy", "k1") / MANIFEST).read_text())
    assert [(entry.name, entry.key) for entry in cache.entries()] == [("toy", "k1")]
    get(cache, Maker(), key="k2")
    assert not temporary.exists()


def test_entries_are_listed_by_name(tmp_path):
    cache = Cache(tmp_path)
    assert cache.entries() == []
    get(cache, Maker(), name="b-toy")
    get(cache, Maker(7), name="a-toy")
    entries = cache.entries()
    assert [(e.name, e.key, e.rows, e.description) for e in entries] == [
        ("a-toy", "k1", 7, "making toys"),
        ("b-toy", "k1", 5, "making toys"),
    ]
    on_disk = sum(path.stat().st_size for path in entries[0].path.iterdir() if path.name != MANIFEST)
    assert entries[0].size_bytes == on_disk


def build_slowly(root, built, results):
    def make(advance):
        with built.get_lock():
            built.value += 1
        time.sleep(0.5)
        return rows()

    results.put(len(Cache(root).dataset("toy", "k1", make, 5, "making toys")))


def test_two_processes_build_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    built, results = context.Value("i", 0), context.Queue()
    both = [context.Process(target=build_slowly, args=(tmp_path, built, results)) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60) for _ in both] == [5, 5]
    for process in both:
        process.join()
    assert built.value == 1


def test_an_unusable_root_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="LRA_BENCH_CACHE="):
        get(Cache(tmp_path / "file"), Maker())


def test_progress_bars_of_datasets_are_disabled_and_restored(tmp_path, capfd):
    datasets.enable_progress_bars()
    get(Cache(tmp_path), Maker())
    assert not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    get(Cache(tmp_path), Maker(), key="k2")
    assert datasets.are_progress_bars_disabled()
    datasets.enable_progress_bars()
    assert capfd.readouterr().err == ""


def test_names_outside_the_folder_are_refused(tmp_path):
    for name, key in [("../x", "k"), ("x", "a/b"), ("", "k")]:
        with pytest.raises(ValueError, match="file name"):
            Cache(tmp_path).path(name, key)


def test_default_root(monkeypatch, tmp_path):
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    assert Cache().root == default_root() == tmp_path
    monkeypatch.delenv("LRA_BENCH_CACHE")
    assert "lra-bench" in str(default_root())


def test_import_is_cheap():
    code = "import sys, lra_bench.data.cache; print([m for m in ('torch', 'datasets', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("digest_of", [sha256_of_file, sha256_of_folder])
def test_digests_are_cached_until_a_file_changes(tmp_path, digest_of):
    file, memory = tmp_path / "folder" / "file", tmp_path / "memory"
    path = file if digest_of is sha256_of_file else file.parent
    file.parent.mkdir()

    def digest_after_writing(content, modified):
        file.write_bytes(content)
        os.utime(file, ns=(0, modified))
        return digest_of(path, memory)

    first = digest_after_writing(b"one", 1)
    assert first == digest_of(path, tmp_path / "other")
    assert digest_after_writing(b"two", 1) == first  # not read again, as size and time are the same
    second = digest_after_writing(b"two", 2)
    assert second != first and digest_after_writing(b"three", 2) not in (first, second)
    digest_after_writing(b"one", 2)
    next(memory.iterdir()).write_text("{")
    assert digest_of(path, memory) == first
    assert digest_of(path, file) == first  # a cache that is not a folder is not an error


@pytest.fixture
def shared() -> Iterator[Path]:
    """Yield a folder that all users may write; the tests run as other users in child processes."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def as_user(user: int, mask: int, folder: Path, group: int | None = None) -> str:
    """Read or prepare a data set as another user in a child process; return the error, empty if there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        error = ""
        try:
            os.umask(mask)
            os.setgroups([])
            os.setgid(group or user)
            os.setuid(user)
            get(Cache(folder), Maker(), key="key")
        except BaseException as caught:
            error = f"{type(caught).__name__}: {caught}"
        os.write(writing, error.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        return stream.read()


def test_a_cache_that_only_another_user_may_read_is_named(shared: Path) -> None:
    assert as_user(54321, 0o077, shared) == ""
    found = as_user(54322, 0o022, shared)
    assert found.startswith(f"UserError: LRA_BENCH_CACHE={shared}: cannot be accessed (Permission denied); set ")


def test_a_cache_is_shared_by_the_users_of_a_group(shared: Path) -> None:
    os.chown(shared, 0, 777)
    shared.chmod(0o2770)
    assert as_user(54321, 0o002, shared, 777) == "" == as_user(54322, 0o002, shared, 777)
    (data,) = (shared / "data").glob("toy-key/*.arrow")
    assert data.stat().st_uid == 54321
    os.truncate(data, 1)
    assert as_user(54322, 0o002, shared, 777) == ""  # the damaged data set of the other user is replaced
    (data,) = (shared / "data").glob("toy-key/*.arrow")
    assert data.stat().st_uid == 54322


def test_a_mask_that_forbids_everything_is_reported_in_one_sentence(shared: Path) -> None:
    assert as_user(54321, 0o777, shared).startswith("UserError: LRA_BENCH_CACHE=")

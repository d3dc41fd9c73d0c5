"""Raw data is searched in the documented order; missing data is a user error of one sentence."""

import hashlib

import pytest

from lra_bench.contracts import UserError
from lra_bench.data import download
from lra_bench.data.cache import Cache
from lra_bench.data.download import Remote
from lra_bench.data.sources import locate
from tests.support.file_host import serving

MISSING = "letters.txt, or the folder letters"


def find(place):
    """Return the text of letters.txt, given the file or its folder."""
    if place.is_dir():
        place = place / "letters.txt"
    return place.read_text() if place.is_file() and place.name == "letters.txt" else None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("LRA_BENCH_DATA", "HF_ENDPOINT", "HF_HUB_OFFLINE", "LRA_BENCH_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    return Cache(tmp_path / "cache")


@pytest.fixture
def host():
    with serving() as host:
        host.files["letters.txt"] = b"fetched"
        yield host


def located(cache, source=None, remotes=(), folders=("letters", "old-letters")):
    return locate("alphabet", source, folders, find, remotes, cache, MISSING)


def put(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "letters.txt").write_text(text)
    return folder


def remote(host, content=b"fetched", file="letters.txt"):
    return Remote(host.url(file), file, sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("source", [None, "official"])
def test_locations_are_searched_in_order(cache, tmp_path, monkeypatch, host, source):
    remotes = [remote(host)]
    official = tmp_path / "official"
    official.mkdir()
    monkeypatch.setenv("LRA_BENCH_DATA", str(official))
    assert located(cache, source, remotes) == "fetched"
    assert located(cache, source, remotes) == "fetched" and len(host.requests) == 1
    for folder, text in ((official, "root"), (official / "old-letters", "second"), (official / "letters", "first")):
        put(folder, text)
        assert located(cache, source, remotes) == text
    given = put(tmp_path / "given", "given")
    assert located(cache, str(given), remotes) == located(cache, str(given / "letters.txt"), remotes) == "given"
    assert len(host.requests) == 1


def test_the_folder_in_the_cache_is_used_offline(cache, monkeypatch, host):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    put(cache.root / "raw" / "alphabet", "by hand")
    assert located(cache) == "by hand"
    with pytest.raises(UserError, match=r"raw/alphabet/letters.txt has sha256 .* move it away"):
        located(cache, remotes=[remote(host)])
    assert host.requests == []


def test_a_path_may_contain_the_folder_of_the_task_and_a_tilde(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "mine" / "old-letters", "below")
    assert located(cache, "~/mine") == "below"


def test_a_path_is_the_only_location(cache, tmp_path, monkeypatch, host):
    monkeypatch.setenv("LRA_BENCH_DATA", str(put(tmp_path / "official", "official")))
    empty = tmp_path / "empty"
    with pytest.raises(UserError, match=f"^task.source={empty}: does not exist; set it to {MISSING}$"):
        located(cache, str(empty), [remote(host)])
    empty.mkdir()
    with pytest.raises(UserError, match=f"^task.source={empty}: does not contain {MISSING}$"):
        located(cache, str(empty), [remote(host)])
    assert host.requests == [] and not cache.root.exists()


def test_a_link_without_content_is_named(cache, tmp_path):
    (tmp_path / "letters.txt").symlink_to(".git/annex/objects/letters")
    with pytest.raises(UserError, match=r"letters.txt is a link to .git/annex/objects/letters, which does not exist"):
        located(cache, str(tmp_path))


def test_a_missing_folder_of_official_data_is_a_user_error(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path / "typo"))
    with pytest.raises(UserError, match=f"^LRA_BENCH_DATA={tmp_path / 'typo'}: is not a folder"):
        located(cache)


def test_without_a_download_the_error_names_the_folder(cache):
    with pytest.raises(UserError) as caught:
        located(cache)
    message = str(caught.value)
    folder = cache.root / "raw" / "alphabet"
    assert message.startswith(f"task.source: alphabet needs {MISSING}; put the data into {folder}")
    assert "letters or old-letters" in message and "task.source=PATH" in message


def test_all_missing_files_are_in_one_error(cache, monkeypatch, host):
    host.files["b.txt"] = b"b"
    remotes = [remote(host), remote(host, b"b", "b.txt"), remote(host, b"c", "c.txt")]
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "yes")
    raw = cache.root / "raw" / "alphabet"
    for present, missing in ((0, "letters.txt and b.txt and c.txt"), (2, "c.txt")):
        for file in remotes[:present]:
            raw.mkdir(parents=True, exist_ok=True)
            (raw / file.file).write_bytes(host.files[file.file])
        with pytest.raises(UserError, match=f"^task.source: {missing} cannot be downloaded") as caught:
            locate("alphabet", None, (), lambda place: None, remotes, cache, MISSING)
        assert all(file.address in str(caught.value) for file in remotes[present:])
        assert f"into {raw}" in str(caught.value)
    monkeypatch.delenv("LRA_BENCH_OFFLINE")
    with pytest.raises(UserError, match=r"^task.source: c.txt cannot be downloaded .the host returned 404"):
        locate("alphabet", None, (), lambda place: None, remotes, cache, MISSING)

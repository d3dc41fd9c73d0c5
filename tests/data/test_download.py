"""Downloads are complete and verified or absent, under all network failures."""

import hashlib
import random
import socket
import subprocess
import sys
import time

import pytest

from lra_bench.contracts import UserError
from lra_bench.data import download as module
from lra_bench.data.download import NotFetched, Remote, download
from tests.support.file_host import serving

CONTENT = random.Random(0).randbytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def host():
    with serving() as host:
        host.files["data.bin"] = CONTENT
        yield host


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    for name, value in {"PAUSE_SECONDS": 0.0, "CONNECT_SECONDS": 0.5, "READ_SECONDS": 0.5}.items():
        monkeypatch.setattr(module, name, value)
    for name in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "LRA_BENCH_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def refused(message, remote, folder):
    with pytest.raises(UserError, match=message) as caught:
        download(remote, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def start(remote, folder):
    """Start a subprocess that downloads a file and prints its path."""
    code = "import sys; from pathlib import Path; from lra_bench.data.download import Remote, download\n"
    code += "print(download(Remote(sys.argv[1], sys.argv[2], sys.argv[3]), Path(sys.argv[4])))"
    command = [sys.executable, "-c", code, remote.url, remote.file, remote.sha256, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("known", [{}, {"sha256": SHA256}, {"size_bytes": len(CONTENT)}])
def test_a_file_is_downloaded_once(host, tmp_path, known):
    remote = Remote(host.url("data.bin"), "here.bin", **known)
    path = download(remote, tmp_path / "raw")
    assert path == tmp_path / "raw" / "here.bin" and path.read_bytes() == CONTENT
    assert download(remote, tmp_path / "raw") == path
    assert host.requests == [("data.bin", 0)] and visible(path.parent) == ["here.bin"]


def test_a_known_file_is_not_read_again(host, tmp_path, monkeypatch):
    remote = Remote(host.url("data.bin"), "data.bin", sha256=SHA256)
    path = download(remote, tmp_path / "raw", tmp_path / "memory")
    download(remote, tmp_path / "raw", tmp_path / "memory")
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file was read again"))
    assert download(remote, tmp_path / "raw", tmp_path / "memory") == path


def test_an_interrupted_connection_is_resumed(host, tmp_path):
    host.breaks, host.break_after = 7, 6 << 14
    assert download(Remote(host.url("data.bin"), "data.bin", sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", (6 << 14) * number) for number in range(8)]


def test_a_partial_file_of_an_earlier_run_is_resumed(host, tmp_path, monkeypatch):
    host.breaks, host.break_after = 1, 18 << 14
    remote = Remote(host.url("data.bin"), "data.bin", sha256=SHA256)
    with monkeypatch.context() as patch:
        patch.setattr(module, "ATTEMPTS", 1)
        refused("the connection was interrupted", remote, tmp_path)
    assert visible(tmp_path) == ["data.bin.part"]
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", 0), ("data.bin", 18 << 14)] and visible(tmp_path) == ["data.bin"]


def test_a_killed_download_is_resumed(host, tmp_path):
    host.trickle_seconds = 0.05
    remote = Remote(host.url("data.bin"), "data.bin", sha256=SHA256)
    child = start(remote, tmp_path)
    part = tmp_path / "data.bin.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.communicate()
    have = part.stat().st_size
    assert 0 < have < len(CONTENT) and not (tmp_path / "data.bin").exists()
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", 0), ("data.bin", have)]


def test_without_range_support_the_download_starts_over(host, tmp_path):
    host.ranges, host.breaks, host.break_after = False, 2, 600_000
    assert download(Remote(host.url("data.bin"), "data.bin", sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert len(host.requests) == 3


def test_a_partial_file_is_resumed_only_if_a_checksum_verifies_it(host, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"old" * 1000)
    assert download(Remote(host.url("data.bin"), "data.bin"), tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", 0)]


@pytest.mark.parametrize("content", [CONTENT, CONTENT + b"x"])
def test_a_partial_file_as_long_as_the_file_or_longer(host, tmp_path, content):
    (tmp_path / "data.bin.part").write_bytes(content)
    assert download(Remote(host.url("data.bin"), "data.bin", sha256=SHA256), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("known", [{"sha256": SHA256}, {"size_bytes": len(CONTENT)}])
def test_a_wrong_file_is_deleted(host, tmp_path, known):
    host.files["data.bin"] = b"x" + CONTENT[: -1 if "size_bytes" not in known else None]
    (kind,) = known
    message = refused(
        rf"the file from {host.url('data.bin')} has .* and was deleted",
        Remote(host.url("data.bin"), "a", **known),
        tmp_path,
    )
    assert (kind in message or "1,000,001 bytes instead of 1,000,000" in message) and visible(tmp_path) == []
    host.files["data.bin"] = CONTENT
    assert download(Remote(host.url("data.bin"), "a", **known), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("known", [{}, {"size_bytes": len(CONTENT)}, {"sha256": SHA256}])
@pytest.mark.parametrize("excess", [1, 1 << 40])
def test_a_body_longer_than_its_reported_length_is_rejected(host, tmp_path, known, excess):
    host.excess = excess
    remote = Remote(host.url("data.bin"), "a", **known)
    message = refused("has more than 1,000,000 bytes and was deleted", remote, tmp_path)
    assert host.url("data.bin") in message and visible(tmp_path) == [] and len(host.requests) == 1
    assert host.sent < len(CONTENT) + (32 << 20)  # allowance for network buffers
    host.excess = 0
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_body_without_length_is_limited_by_the_known_size(host, tmp_path):
    host.excess, host.lengths = 1 << 40, False
    remote = Remote(host.url("data.bin"), "a", size_bytes=len(CONTENT))
    refused("has more than 1,000,000 bytes and was deleted", remote, tmp_path)
    assert visible(tmp_path) == [] and host.sent < len(CONTENT) + (32 << 20)
    host.excess = 0
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_body_of_unknown_size_is_limited(host, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_BYTES", 2 * len(CONTENT))
    host.excess, host.lengths = 1 << 40, False
    refused("has more than 2,000,000 bytes and was deleted", Remote(host.url("data.bin"), "a"), tmp_path)
    assert visible(tmp_path) == [] and host.sent < len(CONTENT) + (32 << 20)


def test_a_file_with_a_larger_reported_length_is_not_downloaded(host, tmp_path):
    host.trickle_seconds = 0.05
    remote = Remote(host.url("data.bin"), "a", size_bytes=1000)
    refused("has 1,000,000 bytes instead of 1,000 and was deleted", remote, tmp_path)
    assert visible(tmp_path) == [] and host.sent < len(CONTENT) // 2


@pytest.mark.parametrize("span", ["bytes 0-699999/1000000", "nonsense"])
def test_another_range_than_requested_is_discarded(host, tmp_path, span):
    (tmp_path / "a.part").write_bytes(b"x" * 300_000)
    host.spans = span
    assert download(Remote(host.url("data.bin"), "a", sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", 300_000), ("data.bin", 0)]


def test_part_of_a_file_that_was_requested_whole_is_discarded(host, tmp_path):
    host.statuses = [206, 416]
    assert download(Remote(host.url("data.bin"), "a", sha256=SHA256), tmp_path).read_bytes() == CONTENT
    assert host.requests == [("data.bin", 0)] * 3


def test_a_resumed_download_is_limited_by_the_total_size(host, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT[:300_000])
    host.excess = 1 << 40
    host.spans = f"bytes 300000-999999/{len(CONTENT)}"
    refused("has more than 1,000,000 bytes and was deleted", Remote(host.url("data.bin"), "a", SHA256), tmp_path)
    assert visible(tmp_path) == [] and host.requests == [("data.bin", 300_000)]


def test_a_wrong_partial_file_is_deleted(host, tmp_path):
    (tmp_path / "a.part").write_bytes(b"wrong")
    refused("was deleted", Remote(host.url("data.bin"), "a", sha256=SHA256), tmp_path)
    assert download(Remote(host.url("data.bin"), "a", sha256=SHA256), tmp_path).read_bytes() == CONTENT


def test_a_different_file_of_the_same_name_is_kept(host, tmp_path):
    (tmp_path / "a").write_bytes(b"mine")
    refused(f"{tmp_path / 'a'} has sha256 .* move it away", Remote(host.url("data.bin"), "a", sha256=SHA256), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"mine" and host.requests == []


def test_content_encoding_is_ignored(host, tmp_path):
    host.headers["Content-Encoding"] = "gzip"
    assert download(Remote(host.url("data.bin"), "a.gz", sha256=SHA256), tmp_path).read_bytes() == CONTENT


def test_transient_errors_are_retried_and_others_reported(host, tmp_path):
    remote = Remote(host.url("data.bin"), "a", sha256=SHA256)
    host.statuses = [503, 429, 500]
    assert download(remote, tmp_path).read_bytes() == CONTENT
    host.statuses = [503] * 99
    refused("a cannot be downloaded .the host returned 503", remote, tmp_path / "second")
    assert len(host.requests) == 4 + module.ATTEMPTS
    host.statuses = []
    message = refused("the host returned 404", Remote(host.url("gone"), "a"), tmp_path / "third")
    assert f"download {host.url('gone')} (as a) into {tmp_path / 'third'}" in message and "task.source=PATH" in message
    assert len(host.requests) == 4 + module.ATTEMPTS + 1


def test_the_number_of_attempts_is_limited(host, tmp_path):
    host.breaks, host.break_after = 999, 0
    refused("the connection was interrupted", Remote(host.url("data.bin"), "a"), tmp_path)
    assert len(host.requests) == module.ATTEMPTS


def test_a_closed_port_is_reported_immediately(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/data.bin"
        began = time.monotonic()
        refused("127.0.0.1 cannot be reached", Remote(url, "a"), tmp_path)
    assert time.monotonic() - began < 2


def test_a_host_that_does_not_respond_is_a_timeout(host, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/data.bin"
        began = time.monotonic()
        refused("127.0.0.1 does not respond", Remote(url, "a"), tmp_path)
        assert 0.4 < time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "LRA_BENCH_OFFLINE"])
def test_offline_variables_disable_network_access(host, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(NotFetched, match=f"{name} disables network access.*download {host.url('data.bin')}"):
        download(Remote(host.url("data.bin"), "a"), tmp_path / "raw")
    assert host.requests == [] and not (tmp_path / "raw").exists()
    monkeypatch.setenv(name, "0")
    assert download(Remote(host.url("data.bin"), "a"), tmp_path).read_bytes() == CONTENT
    monkeypatch.setenv(name, "1")
    assert download(Remote(host.url("data.bin"), "a"), tmp_path).read_bytes() == CONTENT


def test_a_file_of_the_hub(host, tmp_path, monkeypatch):
    remote = Remote("plain text/a.parquet", "train.parquet", SHA256, repository="stanfordnlp/imdb", revision="e62")
    assert remote.address == "https://huggingface.co/datasets/stanfordnlp/imdb/resolve/e62/plain%20text/a.parquet"
    monkeypatch.setenv("HF_ENDPOINT", host.url(""))
    host.redirects["datasets/stanfordnlp/imdb/resolve/e62/plain%20text/a.parquet"] = host.url("data.bin")
    host.breaks, host.break_after = 1, 1 << 14
    assert download(remote, tmp_path).name == "train.parquet"
    assert host.requests[-1] == ("data.bin", 1 << 14)
    with pytest.raises(ValueError, match="pinned revision"):
        _ = Remote("a", "a", repository="b/c").address


@pytest.mark.parametrize(
    "endpoint", ["http://mirror.example.org", "mirror.example.org", "me:secret@mirror.example.org"]
)
def test_an_unsafe_mirror_is_a_user_error(tmp_path, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    remote = Remote("a", "a", sha256=SHA256, repository="b/c", revision="e62")
    message = refused(r"^HF_ENDPOINT=.*mirror.example.org: only https is supported", remote, tmp_path)
    assert "secret" not in message


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:{port}", "http://me:secret@127.0.0.1:{port}", "nonsense://proxy"])
def test_an_unreachable_proxy_is_named(tmp_path, monkeypatch, proxy):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", proxy.format(port=taken.getsockname()[1]))
        message = refused(
            r"example.org cannot be reached through the proxy", Remote("https://example.org/a", "a"), tmp_path
        )
    assert "secret" not in message and proxy.partition("://")[0] in message


def test_a_proxy_that_does_not_respond_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        refused(
            "example.org does not respond through the proxy http://127", Remote("https://example.org/a", "a"), tmp_path
        )


@pytest.mark.parametrize("url", ["http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "a"])
def test_only_https_is_supported(host, tmp_path, url):
    refused(f"{url}: only https is supported", Remote(url, "a"), tmp_path)
    if url.startswith("http"):
        host.redirects["moved"] = url.replace("example.org", f"127.0.0.2:{host.port}")
        refused("not encrypted", Remote(host.url("moved"), "a"), tmp_path)
    assert visible(tmp_path) == []


def test_a_full_disk_is_a_user_error(host, tmp_path):
    (tmp_path / "a.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=f"LRA_BENCH_CACHE: {tmp_path} is full"):
        download(Remote(host.url("data.bin"), "a", SHA256), tmp_path)


def test_a_file_in_place_of_the_folder_is_a_user_error(host, tmp_path):
    (tmp_path / "raw").write_bytes(b"")
    with pytest.raises(UserError, match=r"LRA_BENCH_CACHE: .*raw/text cannot be written"):
        download(Remote(host.url("data.bin"), "a"), tmp_path / "raw" / "text")


def test_two_processes_download_once(host, tmp_path):
    host.pause_seconds = 2.5
    remote = Remote(host.url("data.bin"), "data.bin", sha256=SHA256)
    children = [start(remote, tmp_path) for _ in range(2)]
    outputs = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in outputs] == [f"{tmp_path / 'data.bin'}\n"] * 2
    assert sorted("waiting for the lock of another process" in error for _, error in outputs) == [False, True]
    assert host.requests == [("data.bin", 0)] and (tmp_path / "data.bin").read_bytes() == CONTENT

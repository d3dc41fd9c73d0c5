"""Pickled batches of every protocol are read, and no function that a pickle names is called."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import UserError
from lra_bench.data.archives import read_files
from lra_bench.tasks.image.unpickle import LARGEST_BYTES, load_batch

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DATA = np.arange(6, dtype=np.uint8).reshape(2, 3)


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array", [DATA, np.asfortranarray(DATA), DATA.T, np.arange(4, dtype=">i2"), DATA[:0], np.arange(3) > 1], ids=str
)
def test_arrays_of_every_layout_are_read(protocol, array):
    batch = {
        b"data": array,
        "labels": [3, np.int64(7)],
        b"filenames": [b"a.png", b"\xff"],
        "batch_label": "testing",
        "empty": b"",
    }
    read = load_batch(pickle.dumps(batch, protocol), "here")
    assert same(np.asarray(read.pop("data")), array)
    assert read == {"labels": [3, 7], "filenames": [b"a.png", b"\xff"], "batch_label": "testing", "empty": b""}


def test_pickles_of_old_and_new_numpy_and_of_python_2():
    new = pickle.dumps({"data": np.arange(4, dtype=np.uint8)}, 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    for content in (new, old):
        assert load_batch(content, "here")["data"].tolist() == [0, 1, 2, 3]
    python_2 = (  # output of cPickle for {'data': array([7, 8], dtype=uint8), 'labels': [6]}: strings of bytes
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"U\x02\x07\x08tbU\x06labels]K\x06au."
    )
    read = load_batch(python_2, "here")
    assert read["data"].tolist() == [7, 8] and read["labels"] == [6]


def test_the_official_batches_are_read(shared_data):
    folder = shared_data / "cifar10" / "cifar-10-batches-py"
    for name, content in read_files(folder, lambda name: "_batch" in name):
        batch = load_batch(content, name)
        assert batch["data"].shape == (len(batch["labels"]), 3072) and batch["data"].dtype == np.uint8


class Calls:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("wrap", [lambda call: call, lambda call: {"data": DATA, "labels": [call]}])
def test_no_function_is_called(tmp_path, protocol, wrap):
    for number, make in enumerate(
        (
            lambda path: Calls(os.system, f"touch {path}"),
            lambda path: Calls(os.mkdir, str(path)),
            lambda path: Calls(eval, f"__import__('pathlib').Path({str(path)!r}).touch()"),
            lambda path: Calls(np.save, str(path), 1),
        )
    ):
        path = tmp_path / f"{number}.npy"
        content = pickle.dumps(wrap(make(path)), protocol)
        with pytest.raises(UserError, match=r"^task.source: the_batch is refused, as it names "):
            load_batch(content, "the_batch")
        assert not path.exists()
        pickle.loads(content)  # the standard unpickler makes the call
        assert path.exists()


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(a=1),
        {1, 2},
        np.datetime64("2020-01-01"),
        np.array([object()]),
        np.array(["text"]),
        np.array([1.5]),
        np.array([(1, 2)], dtype=[("a", "u1"), ("b", "u1")]),
        np.ma.array([1]),
        np.array([1]).view(np.recarray),
        {(1, 2): 3},
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_other_types_are_refused(value, protocol):
    for content in (value, {"data": value}):
        with pytest.raises(UserError, match=r"^task.source: here is (refused, as it|not a pickle or is damaged)"):
            load_batch(pickle.dumps(content, protocol), "here")


def test_other_contents_are_refused():
    with pytest.raises(UserError, match="contains a list instead of a dict"):
        load_batch(pickle.dumps([1]), "here")
    with pytest.raises(UserError, match=r"is refused, as it has 268,435,457 bytes, more than 268,435,456"):
        load_batch(bytes(LARGEST_BYTES + 1), "here")


def test_truncated_pickles_are_user_errors():
    content = pickle.dumps({"data": np.arange(100), "labels": list(range(9))})
    for size in range(len(content)):
        with pytest.raises(UserError, match=r"^task.source: here is not a pickle or is damaged"):
            load_batch(content[:size], "here")


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_loaded_or_a_user_error(content):
    try:
        load_batch(content, "here")
    except UserError as error:
        assert str(error).startswith("task.source: here is ") and "\n" not in str(error)


def of_size(code, size, width=8):
    return b"\x80\x05" + code + size.to_bytes(width, "little")


def repeated(before, piece, count, after=b""):
    return b"\x80\x02" + before + piece * count + after + b"."


# 100 lists, each of which contains the previous one twice, stored in the memo from 0 to 99.
SHARED = b"]q\x000" + b"".join(b"]q" + bytes([n]) + (b"h" + bytes([n - 1]) + b"a") * 2 + b"0" for n in range(1, 100))
HUGE = {
    "a number of the memo": b"\x80\x02Nr\xff\xff\xff\x3f.",
    "a number of the memo in letters": b"Np2147483000\n.",
    "a byte array": of_size(b"\x96", 1 << 32),
    "a byte array beyond all": of_size(b"\x96", (1 << 64) - 1),
    "bytes": of_size(b"\x8e", 1 << 32),
    "text": of_size(b"\x8d", 1 << 32),
    "a frame": of_size(b"\x95", 1 << 32),
    "short bytes": of_size(b"B", 0xFFFFFFFF, 4),
    "a string": of_size(b"T", 0x7FFFFFFF, 4),
    "a long": of_size(b"\x8b", 0x7FFFFFFF, 4),
    "nested lists": repeated(b"", b"]", 200_000, b"a" * 199_999),
    "nested tuples as a name": repeated(b"})", b"\x85", 200_000, b"Ns"),
    "shared tuples as a name": repeated(b"})", b"2\x86", 60, b"Ns"),
    "shared lists as a type": b"\x80\x02" + SHARED + b"cnumpy\ndtype\nh\x63\x85R.",
    "encoded again and again": repeated(
        b"c_codecs\nencode\nq\x00X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"U\x06latin1\x86q\x01]", b"h\x00h\x01Ra", 6000
    ),
    "endless marks": repeated(b"", b"(", 6_000_000),
    "endless lists": repeated(b"", b"]", 20_000_000),
}

LIMITED = r"""
import json, os, pickle, re, resource, sys, time
from lra_bench.contracts import UserError
from lra_bench.tasks.image.unpickle import load_batch

def load(kind, content):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
    began, message = time.process_time(), ""
    try:
        load_batch(content, "here")
    except UserError as error:
        message = str(error)
    # VmHWM, unlike ru_maxrss, does not include the memory of the parent process.
    peak = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
    print(json.dumps([kind, message, time.process_time() - began, peak]), flush=True)

for kind, content in pickle.load(sys.stdin.buffer).items():
    process = os.fork()
    if not process:
        load(kind, content)
        os._exit(0)
    os.waitpid(process, 0)
"""


@pytest.fixture(scope="module")
def limited():
    """Return message, seconds and peak memory (KiB) of loading each of ``HUGE`` in a fork with limited memory."""
    started = [sys.executable, "-c", LIMITED]
    done = subprocess.run(started, input=pickle.dumps(HUGE), capture_output=True, timeout=300, check=True)
    return {kind: found for kind, *found in map(json.loads, done.stdout.decode().splitlines())}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", HUGE)
def test_time_and_memory_are_limited(kind, limited):
    """A small pickle cannot allocate the memory that it claims or overflow the stack."""
    assert kind in limited, "the process was ended by a signal"
    message, seconds, peak = limited[kind]
    assert message.startswith("task.source: here is ") and "MemoryError" not in message, message
    assert seconds < 10 and peak < 900 << 10, (seconds, peak)

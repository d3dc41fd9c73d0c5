"""Output in narrow encodings, without a reader, and the environment variable of the configuration folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lra_bench.cli import main
from tests.support.command import COMMAND


def listed(kind: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "list", kind], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_characters_that_an_encoding_lacks_are_replaced() -> None:
    done = listed("models", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout


def test_a_reader_that_ends_early_gives_no_traceback() -> None:
    with subprocess.Popen([*COMMAND, "list", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_closed_output_is_no_error() -> None:
    done = subprocess.run(["sh", "-c", f"{COMMAND[0]} -m lra_bench.cli.main list models >&-"], check=False)
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("kind", ["hardware", "models"])  # less and more than the buffer of stdout
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_gives_one_message(kind: str, unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*COMMAND, "list", kind], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2 and "is full" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_configuration_folder_can_be_an_environment_variable(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "mine.yaml").write_text("# My own protocol.\n# @package _global_\n", encoding="utf-8")
    assert "mine" not in listed("protocols").stdout
    assert "My own protocol" in listed("protocols", LRA_BENCH_CONFIG_DIR=str(tmp_path)).stdout


@pytest.mark.parametrize(("command", "continues"), [("bench", True), ("plot", False)])
def test_only_commands_that_resume_say_so_after_an_interruption(
    command: str, continues: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["lra-bench", command])
    monkeypatch.setattr(main, "app", interrupted)
    monkeypatch.setattr(main, "ignore_all", lambda: None)  # subprocesses of later tests would ignore signals, too
    with pytest.raises(SystemExit, match="130"):
        main.main()
    assert ("the same command continues" in capsys.readouterr().err) == continues


def test_an_interruption_in_a_finalizer_ends_the_command() -> None:
    program = """
import signal, time
from lra_bench.cli import main

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run(**_):
    Finalized()
    time.sleep(30)

main.app = run
main.in_bash = lambda _: None
main.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "plot"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "lra-bench: interrupted.\n")

"""Progress: bars on a terminal, lines elsewhere, nothing for short steps."""

import os
import pty
import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from lra_bench import progress

PROGRAM = """
import time
from lra_bench import progress
progress.QUIET_SECONDS, progress.LINE_SECONDS, progress.REDRAW_SECONDS = {quiet}, 0.2, 0.02
with progress.bar(20, "Outer", unit="steps") as outer:
    for step in range(20):
        time.sleep(0.01)
        outer(1)
        if step == 10:
            with progress.bar(10, "Inner", unit="rows") as inner:
                for _ in range(10):
                    time.sleep(0.02)
                    inner(1)
print("done")
"""


def on_a_terminal(program: str) -> str:
    """Run a program on a pseudo-terminal and return its output, without escape sequences except cursor movements."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=follower, stderr=follower, close_fds=True)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*m", "", seen.decode())


def test_nested_bars_are_on_separate_lines():
    shown = on_a_terminal(PROGRAM.format(quiet=0.0))
    assert re.search(r"Outer .*11/20 steps [\d.,]+ steps/s", shown)
    assert re.search(r"Inner .*/10 rows", shown)
    for line in re.split(r"[\r\n]+|\x1b\[\d*A", shown):
        assert not ("Outer" in line and "Inner" in line), line
    assert shown.rstrip().endswith("done")


def test_an_unknown_total_is_not_shown(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with progress.bar(0, "Reading") as advance:
        advance(5)
    assert re.match(r"Reading: 5, [\d.,]+/s$", capsys.readouterr().err.strip())


def test_short_steps_show_nothing():
    assert on_a_terminal(PROGRAM.format(quiet=60.0)).split() == ["done"]
    piped = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(quiet=60.0)], capture_output=True, text=True, check=True
    )
    assert piped.stderr == ""


def test_without_a_terminal_lines_are_printed():
    piped = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(quiet=0.0)], capture_output=True, text=True, check=True
    )
    assert re.search(r"^Outer: \d+ of 20 steps, [\d.,]+ steps/s, \d+ s left$", piped.stderr, re.MULTILINE)
    assert "\x1b" not in piped.stderr


def test_rates_have_three_digits():
    rates = {0: "0 steps/s", 1: "1.00 steps/s", 3.14159: "3.14 steps/s"}
    rates |= {35.25: "35.2 steps/s", 480.4: "480 steps/s", 1234567: "1,234,567 steps/s"}
    assert {rate: progress._pace(rate, "steps") for rate in rates} == rates
    assert progress._pace(2.0, "") == "2.00/s"


def test_low_rates_are_shown_as_seconds_per_unit():
    paces = {0.9999: "1.00 s/cell", 0.5: "2.00 s/cell", 1 / 12.345: "12.3 s/cell", 1 / 1234: "1,234 s/cell"}
    assert {rate: progress._pace(rate, "cells") for rate in paces} == paces
    assert progress._pace(1 / 15.9, "lengths") == "15.9 s/length"
    assert progress._pace(0.25, "") == "4.00 s each"


SLOW = """
import time
from lra_bench import progress
progress.QUIET_SECONDS, progress.LINE_SECONDS, progress.REDRAW_SECONDS = 0.0, 0.0, 0.0
with progress.bar(3, "Measuring", unit="cells") as advance:
    time.sleep(1.2)
    advance(1)
"""


def test_low_rates_on_a_terminal_and_in_lines():
    assert re.search(r"Measuring .*1/3 cells [\d.]+ s/cell", on_a_terminal(SLOW))
    piped = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=True)
    assert re.search(r"^Measuring: 1 of 3 cells, [\d.]+ s/cell, \d+ s left$", piped.stderr, re.MULTILINE)


def test_a_line_contains_the_current_operation(capsys, monkeypatch) -> None:
    from lra_bench import progress

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.bar(3, "Profile", unit="measurements") as advance:
        advance(0, "warming up performer")
        advance(1)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Profile: 0 of 3 measurements, 0 measurements/s; warming up performer"
    assert second.startswith("Profile: 1 of 3 measurements") and "performer" not in second


def test_control_characters_in_a_message_are_replaced(capsys):
    progress.say("a\x1b[31mb\x9bc\u202ed\x7f\ud800\n\te")
    assert capsys.readouterr().err == "a\ufffd[31mb\ufffdc\ufffdd\ufffd\ufffd\n\te\n"


def test_control_characters_in_a_description_are_replaced():
    shown = on_a_terminal(PROGRAM.format(quiet=0.0).replace("Outer", r"Ou\x1b]0;t\x07er"))
    assert "Ou\ufffd]0;t\ufffder" in shown and "\x1b]" not in shown


@pytest.fixture
def notebook(monkeypatch):
    """Replace IPython by a stub of a notebook kernel, and return the list of displayed texts."""
    shown = []
    handle = SimpleNamespace(update=lambda content, raw: shown.append(content["text/plain"]))

    def display(content, raw, display_id):
        assert raw and display_id
        shown.append(content["text/plain"])
        return handle

    python, output = ModuleType("IPython"), ModuleType("IPython.display")
    python.get_ipython, output.display = lambda: SimpleNamespace(kernel=object()), display
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", output)
    return shown


def test_a_notebook_shows_one_line_which_is_removed_at_the_end(notebook, monkeypatch, capsys):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    with progress.bar(3, "Training", unit="steps") as advance:
        advance(1)
        advance(1, "evaluating")
    assert [line.partition(",")[0] for line in notebook] == ["Training: 1 of 3 steps", "Training: 2 of 3 steps", ""]
    assert notebook[1].endswith("; evaluating")
    with progress.bar(1, "Testing") as advance:
        advance(1)
    assert notebook[3].startswith("Testing: 1 of 1") and notebook[4:] == [""]
    assert capsys.readouterr() == ("", "")


def test_the_bars_of_a_child_process_are_the_line_of_the_notebook(notebook, capsys):
    environment = os.environ | progress.child_variables()
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(quiet=0.0) + "progress.say('a message')"],
        env=environment,
        capture_output=True,
        check=True,
    )
    to = progress.Forwarded()
    for start in range(0, len(child.stderr), 7):  # parts of lines
        to.write(child.stderr[start : start + 7])
    to.close()
    assert {line.partition(":")[0] for line in notebook} == {"Outer", "Inner", ""} and notebook[-1] == ""
    assert capsys.readouterr().err == "a message\n"


def test_messages_of_a_child_process_reach_a_replaced_stderr(capsys):
    to = progress.Forwarded()
    to.write("é\nhalf a ".encode()[:1])
    to.write("é\nhalf a ".encode()[1:])
    to.write(b"line")
    to.close()
    assert capsys.readouterr().err == "é\nhalf a line\n"

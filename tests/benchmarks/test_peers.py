"""The comparison with other packages: interleaved timing, table and files, tested with fake peers."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks.peers import __main__ as command
from benchmarks.peers import worker
from benchmarks.peers.figure import draw
from benchmarks.peers.measure import times
from benchmarks.peers.pair import Pair, Sizes
from benchmarks.peers.pairs import PAIRS
from benchmarks.peers.table import Row, as_table, as_text, geometric_means
from lra_bench.contracts import UserError
from lra_bench.figures.style import PAGE_INCHES, style

SIZES = Sizes(32, 16, 2)


class Identity(nn.Module):
    """A peer that scales its input and counts its calls."""

    def __init__(self, sizes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(sizes.width))
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return self.scale * x


def failing(sizes):
    raise MemoryError("16384 tokens are too many")


FAKE = Pair("pytest", "linear", Identity, differs="it returns its input")
BROKEN = Pair("pytest", "performer", failing)
CAUSAL = Pair("pytest", "linear", Identity, causal=True)
ABSENT = Pair("no-such-package", "linear", Identity)


def row(pair, length=1024, ours=1.0, theirs=(2.0, 4.0, 3.0), peaks=(2**20, 2**22, 2**19), failure=""):
    seconds = {"ours": [ours] * len(theirs), "theirs": list(theirs), "floor": [0.5] * len(theirs)}
    return Row(pair, Sizes(length), seconds, dict(zip(seconds, peaks, strict=True)), failure)


def failed(pair, length=1024):
    return Row(pair, Sizes(length), {"ours": [1.0], "floor": [0.5]}, {"ours": 2**20, "floor": None}, "theirs: no")


@pytest.mark.parametrize("pair", [FAKE, CAUSAL])
def test_all_contenders_keep_the_shape_of_rows(pair):
    x = torch.randn(1, SIZES.length, SIZES.width)
    for contender in ("ours", "theirs", "floor"):
        assert pair.layer(contender, SIZES)(x).shape == x.shape
    assert pair.layer("ours", SIZES).mixer.causal == pair.causal


def test_mixers_have_the_sizes_and_options_of_the_pair():
    (pair,) = (pair for pair in PAIRS if pair.name == "linformer/linformer")
    mixer = pair.mixer(SIZES)
    assert (mixer.width, mixer.heads, mixer.max_length) == (SIZES.width, SIZES.heads, SIZES.length)
    assert mixer.weights.shape == (2, 1, 128, SIZES.length)


def test_names_of_pairs_are_unique():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_mixer_of_every_pair_can_be_built(pair):
    assert pair.mixer(Sizes(1024)).causal == pair.causal


def test_step_clears_gradients():
    layer = Identity(SIZES)
    worker.training_step(layer, SIZES)()
    assert layer.runs == 1 and layer.scale.grad is None


def test_blocks_are_interleaved_in_alternating_order(monkeypatch):
    monkeypatch.setattr(worker, "BLOCK_SECONDS", 0.0)
    ran, now = [], iter(range(100))
    steps = {name: lambda name=name: ran.append(name) for name in ("ours", "theirs", "floor")}
    found = worker.alternate(steps, 2, clock=lambda: float(next(now)))
    assert ran[-6:] == ["ours", "theirs", "floor", "floor", "theirs", "ours"]
    assert found == {name: [1.0, 1.0] for name in steps}


def test_failed_contender_is_named(monkeypatch):
    job = {"contenders": ["ours", "theirs"], "blocks": 1, "threads": torch.get_num_threads()}
    job["sizes"] = {"length": 32, "width": 16, "heads": 2}
    monkeypatch.setattr(worker, "PAIRS", (BROKEN, ABSENT))
    assert worker.result({**job, "pair": BROKEN.name}) == {
        "failed": ["theirs", "out_of_memory: 16384 tokens are too many"]
    }
    contender, reason = worker.result({**job, "pair": ABSENT.name})["failed"]
    assert contender == "theirs" and "pip install" in reason


def test_peer_that_is_not_installed_raises_user_error():
    with pytest.raises(UserError, match="no-such-package is not installed"):
        ABSENT.layer("theirs", SIZES)


@pytest.mark.slow
def test_worker_process_returns_seconds():
    (pair,) = (pair for pair in PAIRS if pair.name == "transformers/fnet")
    seconds, failure = times(pair, SIZES, ("ours", "floor"), 1, 1)
    assert not failure
    assert set(seconds) == {"ours", "floor"} and all(len(found) == 1 and found[0] > 0 for found in seconds.values())


def test_ratios_are_computed_from_neighbouring_blocks():
    line = as_table([row(FAKE)]).iloc[0]
    assert (line["time_ratio"], line["time_ratio_low"], line["time_ratio_high"]) == (3, 2, 4)
    assert (line["ours_ms"], line["theirs_ms"], line["floor_ms"], line["blocks"]) == (1000, 3000, 500, 3)
    assert (line["ours_mib"], line["theirs_mib"], line["floor_mib"], line["memory_ratio"]) == (1, 4, 0.5, 4)


def test_table_contains_failures_and_the_other_results():
    data = as_table([row(FAKE), failed(BROKEN)])
    assert data["ours_ms"].tolist() == [1000, 1000] and np.isnan(data["time_ratio"][1])
    lines = as_text(data).splitlines()
    assert len(lines) == 4
    assert "3 (2 to 4)" in lines[2] and "it returns its input" in lines[2]
    assert "theirs: no" in lines[3] and "nan" not in lines[3].lower()


def test_geometric_means_exclude_causal_pairs_and_report_the_number_of_pairs():
    double, eightfold = row(FAKE, theirs=(2.0,)), row(FAKE, theirs=(8.0,), peaks=(2**20, 2**20, 2**20))
    data = as_table([double, eightfold, row(CAUSAL, theirs=(100.0,)), failed(BROKEN), failed(BROKEN, 4096)])
    first, second = geometric_means(data)
    assert first == (
        "length 1024, bidirectional, geometric mean of peer/lra-bench: "
        "time 4.00 (2 of 3 pairs), memory 2.00 (2 of 3 pairs)"
    )
    assert second.endswith("unknown")


def test_command_prints_the_table_and_writes_files(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "PAIRS", (FAKE, BROKEN))
    monkeypatch.setattr(command, "measure", lambda pair, sizes, blocks, threads: row(pair, sizes.length, 1 / blocks))
    arguments = ["--lengths", "1024", "4096", "--pairs", "linear", "--blocks", "2", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("pytest/linear") == 2 and "pytest/performer" not in printed
    data = pd.read_csv(tmp_path / "peers.csv")
    assert data["length"].tolist() == [1024, 4096] and data["time_ratio"].tolist() == [6, 6]
    assert {path.name for path in tmp_path.iterdir()} == {"peers.csv", "peers.png", "peers.pdf"}


def test_command_fails_if_no_peer_was_measured(monkeypatch):
    monkeypatch.setattr(command, "PAIRS", (BROKEN,))
    monkeypatch.setattr(command, "measure", lambda pair, sizes, *_: failed(pair, sizes.length))
    monkeypatch.setattr(sys, "argv", ["peers", "--lengths", "1024"])
    assert command.main() == 1


def test_figure_shows_every_contender_and_fits_the_page():
    figure = draw(as_table([row(pair, length) for length in (1024, 4096) for pair in PAIRS]))
    with style():
        figure.draw_without_rendering()
    assert len(figure.axes) == 4
    for ax in figure.axes:
        assert [len(line.get_xdata()) for line in ax.lines] == [len(PAIRS)] * 3
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01 and box.x1 <= PAGE_INCHES + 0.01

"""The benchmark of recurrences: all contenders compute the same function, and missing packages are reported."""

import sys

import pytest
import torch

from benchmarks import scans
from benchmarks.peers.pair import Sizes

SIZES = Sizes(length=16, width=8, heads=2)


def test_contenders_with_different_results_are_rejected_and_missing_packages_skipped(monkeypatch, capsys):
    monkeypatch.setattr(scans, "find_spec", lambda package: None)
    groups = dict(scans.kernels(2, SIZES))
    assert {name: list(steps) for name, steps in groups.items()} == {
        "scan": ["scan", "loop", "torch associative_scan"],
        "decay_attention": ["decay_attention", "loop"],
    }
    assert "mambapy pscan: skipped, mambapy is not installed" in capsys.readouterr().out
    assert dict(scans.layers(2, SIZES)) == {}
    assert capsys.readouterr().out.count("skipped") == len(scans.PEERS)
    with pytest.raises(AssertionError, match="the result of wrong differs"):
        scans.steps({"scan": scans.scan, "wrong": torch.mul}, [torch.rand(1, 4, 2, requires_grad=True) for _ in "ab"])


def test_package_with_a_missing_requirement_is_skipped(monkeypatch, capsys):
    def failing(sizes):
        raise ModuleNotFoundError("No module named 'einops'", name="einops")

    monkeypatch.setattr(scans, "PEERS", {"s5": ("Other", "json", failing)})
    assert dict(scans.layers(2, SIZES)) == {}
    assert "Other: skipped, json requires einops, which is not installed" in capsys.readouterr().out


def test_ratios_are_relative_to_lra_bench(monkeypatch, capsys):
    monkeypatch.setattr(scans, "find_spec", lambda package: None)
    monkeypatch.setattr(scans, "alternate", lambda steps, blocks: {name: [0.25, 0.5] for name in steps})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(sys, "argv", ["scans", "--length", "16", "--width", "8", "--heads", "2"])
    scans.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if " ms " in line]
    assert len(lines) == 5 and all("375.0 ms     1.00 x lra-bench" in line for line in lines)

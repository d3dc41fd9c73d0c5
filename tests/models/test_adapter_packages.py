"""Modules of other packages, as docs/python.md passes them to ``wrap``: outputs, declarations, and a short training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lra_bench
from lra_bench.models.adapters import ModuleMixer
from lra_bench.models.mixer import Context, Padding
from tests.test_own_code import main as main
from tests.test_own_code import notebook

TABLE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| [\w-]+ \| [\d.post]+ \| `(.+)` \| (.+) \|$", TABLE, re.MULTILINE)
CASES = {re.search(r": ([\w.]+)\(", code)[1]: (code, result) for code, result in ROWS}
WORKS = [name for name, (_, result) in CASES.items() if result.startswith("works")]
LENGTHS = (9, 5, 1)
FAST = {"train.steps": 4, "train.evaluate_every": 4, "measure.speed_lengths": [], "measure.flops": False}
FAST |= {"measure.extrapolation_ratios": [1], "tracker": "none", "hardware.threads": 1}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def wrapped(name: str) -> Any:
    """Return the model of a row, defined in a cell of a notebook; skip the test if its package is not installed."""
    code, _ = CASES[name]
    modules = sorted(set(re.findall(r"([a-z_]+(?:\.[a-z_]+)*)\.[A-Z]", code)))
    for module in modules:
        package = module.partition(".")[0]
        pytest.importorskip(package, reason=f"{package} cannot be imported", exc_type=ImportError)
    cell = "\n".join(
        ["import lra_bench", *(f"import {module}" for module in modules), f"model = lra_bench.wrap({code})"]
    )
    return notebook(cell)["model"]


def mixer_of(model: Any, causal: bool) -> ModuleMixer:
    torch.manual_seed(0)
    cls = type("WrappedModule", (ModuleMixer,), {"make": staticmethod(model.factory)})
    return cls(width=16, heads=2, causal=causal, **model.options).eval()


def direct(name: str, module: Any, x: torch.Tensor, valid: torch.Tensor | None, causal: bool) -> torch.Tensor:
    """Call a module as its documentation shows, with tokens where ``valid`` (B, N) is true; None: everywhere."""
    visible = None if valid is None else valid[:, None, None, :]
    if causal:
        earlier = torch.ones(len(x[0]), len(x[0]), dtype=torch.bool).tril()
        visible = earlier if visible is None else earlier & visible
    if name.endswith("BertSelfAttention"):
        least = torch.finfo(x.dtype).min
        return module(x, None if visible is None else torch.zeros(visible.shape).masked_fill(~visible, least))[0]
    if name.startswith("timm"):
        return module(x, attn_mask=visible)
    return module(x, mask=valid) if name.startswith("x_transformers") else module(x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", WORKS)
def test_the_output_equals_that_of_the_module_by_a_bit(name: str, causal: bool) -> None:
    mixer = mixer_of(wrapped(name), causal)
    x, positions = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(1)), torch.arange(9)
    with torch.no_grad():
        y = mixer(x, Context(None, positions))[0]
        assert torch.equal(y, direct(name, mixer.module, x, None, causal))
        padding = Padding.from_lengths(torch.tensor(LENGTHS), 9)
        padded = mixer(x, Context(padding, positions))[0]
        expected = direct(name, mixer.module, padding.zero(x), padding.valid, causal)
        assert torch.equal(padded[padding.valid], expected[padding.valid])


@pytest.mark.parametrize("name", WORKS)
def test_a_right_declaration_passes_the_checks(name: str) -> None:
    findings = lra_bench.check(wrapped(name), "listops", overrides={"protocol": "smoke"})
    assert [each for each in findings if each.ok is False] == []
    assert {"causal: future tokens", "causal: content of padding"} <= {each.what for each in findings}


@pytest.mark.parametrize("name", WORKS)
def test_a_cell_trains_it(name: str, tmp_path: Path) -> None:
    results = lra_bench.bench(
        wrapped(name), "recall", protocol="smoke", hardware="cpu", overrides=FAST, results=tmp_path
    )
    assert [(record.status, record.reason) for record in results] == [("ok", "")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", sorted(set(CASES) - set(WORKS)))
def test_a_module_that_needs_cuda_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(lra_bench.UserError, match=r"^model: \w+ in [^\n]+$"):
        lra_bench.check(wrapped(name), "listops", overrides={"protocol": "smoke"})

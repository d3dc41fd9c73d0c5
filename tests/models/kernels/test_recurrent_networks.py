"""Torch's recurrent networks under autocast, on a CPU without AVX-512 and on this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lra_bench.models.kernels import recurrent as kernels

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
PROGRAM = """
import torch
from lra_bench.models.recurrent.seq2seq import Seq2Seq
from tests.support.mixer_cases import make, rows, run
from tests.support.model_cases import batch_for, task

torch.manual_seed(0)
for name, causal in (("lstm", False), ("lstm", True), ("gru", True), ("sac", False)):
    mixer, x = make(name, causal=causal, dtype=torch.float32).train(), rows(2, 12, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = run(mixer, x.requires_grad_())
    y.float().square().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all() and x.grad.any(), name
network = Seq2Seq(spec=task(), width=8, depth=1, ff_width=12, cell="lstm")
with torch.autocast("cpu", torch.bfloat16):
    logits = network(batch_for(task(), (14, 9))).logits
logits.float().sum().backward()
"""


@pytest.mark.slow
def test_lstms_run_in_bf16_autocast_without_avx512():
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, env={**os.environ, **AVX2}, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "dtype", "without_kernel"),
    [
        (nn.LSTM, torch.bfloat16, True),
        (nn.LSTM, torch.float16, False),
        (nn.GRU, torch.float16, False),
        (nn.GRU, torch.bfloat16, None),
    ],
)
def test_single_precision_is_used_and_named_without_a_kernel(monkeypatch, kind, dtype, without_kernel):
    from lra_bench.profiling.attention_backend import _BackendTracer

    if without_kernel:
        monkeypatch.setattr(kernels, "LSTM_TYPES", ())
    network, x = kind(4, 6, batch_first=True), torch.randn(2, 5, 4)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    for inputs in (x, packed):
        exact = network(inputs)
        with _BackendTracer() as tracer, torch.autocast("cpu", dtype):
            found = kernels.recurrent(network, inputs, None)
            again = kernels.recurrent(network, inputs, found[1])
        assert tracer.names == (set() if without_kernel is None else {"rnn_fp32"})
        if without_kernel is not None:
            torch.testing.assert_close(found, exact, rtol=0, atol=0)
            torch.testing.assert_close(again, network(inputs, exact[1]), rtol=0, atol=0)

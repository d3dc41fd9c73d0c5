"""The matrix-product throughput: the highest of several sizes, in the configured precision."""

from dataclasses import replace

import pytest
import torch

from lra_bench.profiling import peak_matmul as measured
from lra_bench.profiling.peak_matmul import peak_matmul_flops
from lra_bench.runtime.hardware import resolve
from tests.profiling.test_profile import config, hardware


def test_throughput_is_the_highest_of_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SIDES", {"cpu": (10, 100, 50)})
    called: list[torch.dtype] = []

    def block(step, device, n):
        called.append(step.__closure__[0].cell_contents.dtype)
        return [0.5, 0.001, 0.002]

    monkeypatch.setattr(measured, "block", block)
    assert peak_matmul_flops(hardware(), seconds=1.0) == pytest.approx(2 * 100**3 / 0.002)
    assert set(called) == {torch.float32}
    peak_matmul_flops(resolve(replace(config().hardware, precision="bf16")), seconds=0.1)
    assert called[-1] == torch.bfloat16


def test_throughput_is_close_to_a_product_timed_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SIDES", {"cpu": (256,)})
    threads = torch.get_num_threads()
    hardware().apply()
    try:
        found = peak_matmul_flops(hardware(), seconds=0.1)
        a = torch.randn(256, 256)
        fastest = min(measured.block(lambda: a @ a, torch.device("cpu"), 200))
    finally:
        torch.set_num_threads(threads)
    assert found <= 1.5 * 2 * 256**3 / fastest
    assert found > 1e8

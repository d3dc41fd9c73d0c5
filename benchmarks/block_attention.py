"""Cost of the block kernel's design choices on a CPU: layout, mask, contiguity, and masked keys of a window.

Run: ``python benchmarks/block_attention.py [length] [rounds] [batch]``. Each variant runs one forward and backward pass
on the same numbers, in one thread. All variants run interleaved within a round, so that other processes affect them
alike. The output is the median over rounds of the ratio of two variants in the same round, with its quartiles. The
fraction of masked keys of a window is computed, not timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lra_bench.models.kernels.block import block_attention
from lra_bench.models.kernels.layout import Keep, Layout
from lra_bench.models.kernels.patterns import in_window
from lra_bench.models.kernels.softmax import fused

HEADS, HEAD_DIM, WINDOW = 4, 32, 64
Inputs = tuple[Tensor, Tensor, Tensor]
Run = Callable[[], Tensor]


def make_inputs(batch: int, length: int, contiguous: bool) -> Inputs:
    """Return random queries, keys and values (B, H, N, D): contiguous, or transposed as a projection returns them."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, HEADS, length, HEAD_DIM) if contiguous else (batch, length, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3))
    return (q, k, v) if contiguous else (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def in_layout(inputs: Inputs, block: int, neighbours: tuple[int, int], keep: Keep | None, by_row: bool) -> Tensor:
    """Run the steps of the block kernel with a given layout."""
    q, k, v = inputs
    layout = Layout(q, block, neighbours, by_row, None)
    mask = layout.visible(q.shape[2], keep, None)
    folded = None if mask is None else layout.fold_mask(mask)
    queries, keys, values = layout.fold(layout.blocks(q)), layout.gather(k), layout.gather(v)
    return layout.unfold(fused(queries, keys, values, folded, scale=HEAD_DIM**-0.5, dropout=0.0))


def everything(queries: Tensor, keys: Tensor) -> Tensor:
    """Return a mask that masks no key."""
    return (queries >= 0) & (keys >= 0)


def window(inputs: Inputs, block: int) -> Tensor:
    """Compute attention in a window of ``WINDOW`` keys on each side, in blocks of ``block``."""
    q, k, v = inputs
    reach = -(-WINDOW // block)
    keep = in_window(WINDOW, causal=False)
    return block_attention(q, k, v, block=block, neighbours=(reach, reach), keep=keep)


def masked_fraction(block: int) -> float:
    """Return the fraction of gathered keys that are masked by the window, away from the ends of the row."""
    gathered = (2 * -(-WINDOW // block) + 1) * block
    return 1 - (2 * WINDOW + 1) / gathered


def seconds(run: Run, inputs: Inputs) -> float:
    """Return the seconds of one forward and backward pass."""
    started = time.perf_counter()
    torch.autograd.grad(run().sum(), inputs)
    return time.perf_counter() - started


def main() -> None:
    """Time all variants interleaved and print their ratios."""
    length, rounds, batch = (
        int(sys.argv[place]) if len(sys.argv) > place else default for place, default in ((1, 1024), (2, 15), (3, 4))
    )
    torch.set_num_threads(1)
    transposed, contiguous = make_inputs(batch, length, contiguous=False), make_inputs(batch, length, contiguous=True)
    keep = in_window(WINDOW, causal=False)
    runs: dict[str, tuple[Run, Inputs]] = {
        "window, blocks next to rows": (lambda: in_layout(transposed, WINDOW, (1, 1), keep, True), transposed),
        "window, rows next to heads": (lambda: in_layout(transposed, WINDOW, (1, 1), keep, False), transposed),
        "window, contiguous heads": (lambda: in_layout(contiguous, WINDOW, (1, 1), keep, False), contiguous),
        "same block, no mask": (lambda: in_layout(transposed, WINDOW, (0, 0), None, False), transposed),
        "same block, no mask, blocks next to rows": (
            lambda: in_layout(transposed, WINDOW, (0, 0), None, True),
            transposed,
        ),
        "same block, bool mask": (lambda: in_layout(transposed, WINDOW, (0, 0), everything, False), transposed),
        **{
            f"window in blocks of {block}": (partial(window, transposed, block), transposed)
            for block in (WINDOW, WINDOW // 2, WINDOW // 4)
        },
    }
    pairs = [
        ("window, blocks next to rows", "window, rows next to heads"),
        ("window, contiguous heads", "window, rows next to heads"),
        ("same block, no mask, blocks next to rows", "same block, no mask"),
        ("same block, bool mask", "same block, no mask"),
        (f"window in blocks of {WINDOW // 2}", f"window in blocks of {WINDOW}"),
        (f"window in blocks of {WINDOW // 4}", f"window in blocks of {WINDOW}"),
    ]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (run, inputs) in runs.items():
            duration = seconds(run, inputs)
            if number:  # the first round is a warm-up
                times[name].append(duration)
    print(f"batch {batch}, {HEADS} heads of {HEAD_DIM}, length {length}, window {WINDOW}, {rounds} rounds")
    for name, other in pairs:
        low, middle, high = np.quantile(np.array(times[name]) / np.array(times[other]), [0.25, 0.5, 0.75])
        print(f"{name} / {other}: {middle:.2f} [{low:.2f}, {high:.2f}]")
    for block in (WINDOW, WINDOW // 2, WINDOW // 4):
        print(f"window in blocks of {block}: {100 * masked_fraction(block):.0f} % of the gathered keys are masked")


if __name__ == "__main__":
    main()

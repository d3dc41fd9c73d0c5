"""What the block kernel's choices cost on CPU: layout, mask, contiguity, the waste of a window; ratios of one run.

Run: ``python benchmarks/block_attention.py [length] [rounds] [batch]``. Each pair is one forward and backward pass of
either choice, on the same numbers, in one thread. All choices take turns within a round, so that what else the machine
does falls on each alike; printed is the median over rounds of the ratio of two turns of one round, with its quartiles.
The share of keys that a window's mask hides is counted, not timed.
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


def draw(batch: int, length: int, contiguous: bool) -> Inputs:
    """Queries, keys and values (B, H, N, D): each head by itself in memory, or as a projection leaves them."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, HEADS, length, HEAD_DIM) if contiguous else (batch, length, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3))
    return (q, k, v) if contiguous else (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def in_layout(inputs: Inputs, block: int, neighbours: tuple[int, int], keep: Keep | None, by_row: bool) -> Tensor:
    """The kernel's own steps in the layout of the caller's choice."""
    q, k, v = inputs
    layout = Layout(q, block, neighbours, by_row, None)
    mask = layout.visible(q.shape[2], keep, None)
    folded = None if mask is None else layout.fold_mask(mask)
    queries, keys, values = layout.fold(layout.blocks(q)), layout.gather(k), layout.gather(v)
    return layout.unfold(fused(queries, keys, values, folded, scale=HEAD_DIM**-0.5, dropout=0.0))


def everything(queries: Tensor, keys: Tensor) -> Tensor:
    """A mask that hides nothing."""
    return (queries >= 0) & (keys >= 0)


def window(inputs: Inputs, block: int) -> Tensor:
    """A window of ``WINDOW`` in blocks of ``block``."""
    q, k, v = inputs
    reach = -(-WINDOW // block)
    keep = in_window(WINDOW, causal=False)
    return block_attention(q, k, v, block=block, neighbours=(reach, reach), keep=keep)


def hidden_share(block: int) -> float:
    """The share of gathered keys that the mask of a window hides, away from the borders of the row."""
    gathered = (2 * -(-WINDOW // block) + 1) * block
    return 1 - (2 * WINDOW + 1) / gathered


def seconds(run: Run, inputs: Inputs) -> float:
    """Seconds of one forward and backward pass."""
    began = time.perf_counter()
    torch.autograd.grad(run().sum(), inputs)
    return time.perf_counter() - began


def main() -> None:
    """Time all choices in turns and print their ratios."""
    length, rounds, batch = (
        int(sys.argv[place]) if len(sys.argv) > place else default for place, default in ((1, 1024), (2, 15), (3, 4))
    )
    torch.set_num_threads(1)
    split, whole = draw(batch, length, contiguous=False), draw(batch, length, contiguous=True)
    near = in_window(WINDOW, causal=False)
    runs: dict[str, tuple[Run, Inputs]] = {
        "window, blocks beside rows": (lambda: in_layout(split, WINDOW, (1, 1), near, True), split),
        "window, rows beside heads": (lambda: in_layout(split, WINDOW, (1, 1), near, False), split),
        "window, contiguous heads": (lambda: in_layout(whole, WINDOW, (1, 1), near, False), whole),
        "own block, no mask": (lambda: in_layout(split, WINDOW, (0, 0), None, False), split),
        "own block, no mask, blocks beside rows": (lambda: in_layout(split, WINDOW, (0, 0), None, True), split),
        "own block, bool mask": (lambda: in_layout(split, WINDOW, (0, 0), everything, False), split),
        **{
            f"window in blocks of {block}": (partial(window, split, block), split)
            for block in (WINDOW, WINDOW // 2, WINDOW // 4)
        },
    }
    pairs = [
        ("window, blocks beside rows", "window, rows beside heads"),
        ("window, contiguous heads", "window, rows beside heads"),
        ("own block, no mask, blocks beside rows", "own block, no mask"),
        ("own block, bool mask", "own block, no mask"),
        (f"window in blocks of {WINDOW // 2}", f"window in blocks of {WINDOW}"),
        (f"window in blocks of {WINDOW // 4}", f"window in blocks of {WINDOW}"),
    ]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (run, inputs) in runs.items():
            taken = seconds(run, inputs)
            if number:  # the first round warms up
                times[name].append(taken)
    print(f"batch {batch}, {HEADS} heads of {HEAD_DIM}, length {length}, window {WINDOW}, {rounds} rounds")
    for name, other in pairs:
        low, middle, high = np.quantile(np.array(times[name]) / np.array(times[other]), [0.25, 0.5, 0.75])
        print(f"{name} / {other}: {middle:.2f} [{low:.2f}, {high:.2f}]")
    for block in (WINDOW, WINDOW // 2, WINDOW // 4):
        print(f"window in blocks of {block}: {100 * hidden_share(block):.0f} % of the gathered keys are hidden")


if __name__ == "__main__":
    main()

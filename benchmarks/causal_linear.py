"""Causal linear attention, forward and backward: ours against packages that offer it, in turns in one process.

    python benchmarks/causal_linear.py [--length 4096] [--width 256] [--heads 4] [--blocks 9] [--threads 1]

A peer sums keys and values into one state for every token, where ours keeps one for every chunk. Both run one layer
with its projections on the same rows, batch 1, single precision. Printed are the times of a step and the ratio, peer
over ours, as the median over neighbouring blocks with the smallest and the largest. A peer that is not installed is
named with how to install it; exit code 1 where none is.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.models.linear.linear_transformer import LinearTransformer
from lra_bench.models.linear.orthogonal_features import default_features
from lra_bench.models.linear.performer import Performer
from lra_bench.models.mixer import Context, Mixer

SECONDS_PER_BLOCK = 1.0


@dataclass(frozen=True)
class Peer:
    """A layer of another package, and the mixer of ours that computes the like."""

    package: str
    module: str
    ours: type[Mixer]
    options: dict[str, Any]

    def layer(self, width: int, heads: int) -> nn.Module | None:
        """The peer's causal layer, None where its package is not installed."""
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError:
            return None
        layer: nn.Module = module.SelfAttention(dim=width, heads=heads, causal=True, **self.options)
        return layer


def peers(width: int, heads: int) -> list[Peer]:
    """Every peer, with as many random features as ours."""
    features = {"nb_features": default_features(width // heads)}
    return [
        Peer(
            "linear-attention-transformer",
            "linear_attention_transformer.linear_attention_transformer",
            LinearTransformer,
            {},
        ),
        Peer("performer-pytorch", "performer_pytorch.performer_pytorch", Performer, features),
    ]


def block(forward: Callable[[], Tensor], steps: int) -> float:
    """Seconds of one forward and backward pass, the mean of so many."""
    began = time.perf_counter()
    for _ in range(steps):
        forward().sum().backward()
    return (time.perf_counter() - began) / steps


def compare(ours: Mixer, theirs: nn.Module, x: Tensor, blocks: int) -> list[tuple[float, float]]:
    """Seconds of a step, ours and theirs, of neighbouring blocks."""
    context = Context(None, torch.arange(x.shape[1]))
    rivals: tuple[Callable[[], Tensor], ...] = (lambda: ours(x, context)[0], lambda: theirs(x))
    steps = []
    for forward in rivals:
        block(forward, 1)
        steps.append(max(1, round(SECONDS_PER_BLOCK / block(forward, 1))))
    return [(block(rivals[0], steps[0]), block(rivals[1], steps[1])) for _ in range(blocks)]


def main() -> int:
    """Measure against every peer that is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"length": 4096, "width": 256, "heads": 4, "blocks": 9, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    x = torch.randn(1, asked.length, asked.width, requires_grad=True)
    compared = 0
    for peer in peers(asked.width, asked.heads):
        theirs = peer.layer(asked.width, asked.heads)
        if theirs is None:
            print(f"{peer.package} is not installed: pip install {peer.package}")
            continue
        ours = peer.ours(asked.width, asked.heads, causal=True, max_length=asked.length)
        times = compare(ours, theirs, x, asked.blocks)
        ratios = [their / our for our, their in times]
        our, their = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{peer.ours.__name__}: ours {our:.0f} ms, {peer.package} {their:.0f} ms, "
            f"ratio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        )
        compared += 1
    return 0 if compared else 1


if __name__ == "__main__":
    sys.exit(main())

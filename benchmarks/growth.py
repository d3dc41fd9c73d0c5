"""Growth of time and of the largest tensor of each mixer with length, for forward and backward pass on a CPU.

Run from the repository: ``python -m benchmarks.growth [linear performer ...] [--rounds 5] [--threads 1]``

Each mixer has its projections and the options of its model file; inputs are random with batch size 1, in single
precision, without dropout. Time: the exponent between the shortest and the longest rows, computed from the fastest
round of each, which other processes disturb least. Lengths run interleaved; the smallest and the largest exponent of a
single round are printed in brackets. Tensor: the exponent of the largest tensor that any operator returns, including
the backward pass, with dropout 0.1. Without names, all mixers that declare less than quadratic growth are measured.
The exit code is 1 if a mixer exceeds its declared growth by more than 0.25 in time or 0.1 in the largest tensor.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch

from lra_bench.build import build
from lra_bench.models.mixer import Context, Mixer, name_modules
from lra_bench.progress import bar
from tests.support.mixer_cases import NODES, SPECS, first_direction
from tests.support.storage import exponents

TIMED, PROBED = (2_048, 4_096, 8_192, 16_384), (512, 1_024, 2_048, 4_096)
SECONDS_PER_ROUND = 0.3


def mixer_of(name: str, length: int, options: argparse.Namespace, dropout: float = 0.0) -> Mixer:
    """Build the mixer of a model file for rows of ``length`` tokens."""
    common = {"width": options.width, "heads": options.heads, "max_length": length, "dropout": dropout}
    mixer: Mixer = build(NODES[name], Mixer, name, causal=first_direction(name), **common)
    name_modules(mixer)
    return mixer


def rows(length: int, width: int) -> tuple[torch.Tensor, Context]:
    """Return random rows (1, N, E) and their context."""
    return torch.randn(1, length, width, requires_grad=True), Context(None, torch.arange(length), train_length=length)


def time_exponent(name: str, options: argparse.Namespace) -> tuple[float, list[float], float]:
    """Measure the exponent of the fastest times, the exponent of each round, and the fastest seconds at the longest."""
    mixers = {length: mixer_of(name, length, options) for length in TIMED}
    inputs = {length: rows(length, options.width) for length in TIMED}

    def seconds(length: int, steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            mixers[length](*inputs[length])[0].sum().backward()
        return (time.perf_counter() - started) / steps

    def exponent(times: dict[int, float]) -> float:
        return math.log(times[TIMED[-1]] / times[TIMED[0]]) / math.log(TIMED[-1] / TIMED[0])

    steps = {length: max(1, round(SECONDS_PER_ROUND / min(seconds(length, 1) for _ in range(2)))) for length in TIMED}
    rounds = [{length: seconds(length, steps[length]) for length in TIMED} for _ in range(options.rounds)]
    fastest = {length: min(each[length] for each in rounds) for length in TIMED}
    return exponent(fastest), [exponent(each) for each in rounds], fastest[TIMED[-1]]


def storage_exponent(name: str, options: argparse.Namespace) -> float:
    """Measure the exponent of the largest tensor between the shortest and the longest rows."""
    mixer = mixer_of(name, PROBED[-1], options, dropout=0.1)
    mixer.train()

    def forward(length: int) -> torch.Tensor:
        return mixer(*rows(length, options.width))[0]

    _, sizes = exponents(forward, PROBED)
    return math.log(sizes[-1] / sizes[0]) / math.log(PROBED[-1] / PROBED[0])


def main() -> int:
    """Measure the requested mixers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of model files")
    for option, default in {"width": 256, "heads": 4, "rounds": 5, "threads": 1}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    if unknown := set(options.models) - set(NODES):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; see lra-bench list models")
    torch.set_flush_denormal(True)  # as in every process of lra-bench
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    names = options.models or [name for name, spec in SPECS.items() if spec.growth < 2]
    exceeding = []
    print(f"{'model':28s} declared  tensor  time (of one round)  step at {TIMED[-1]:,} tokens")
    with bar(len(names), "Mixers") as advance:
        for name in names:
            storage, (time_growth, in_rounds, longest) = storage_exponent(name, options), time_exponent(name, options)
            growth = SPECS[name].growth
            exceeds = storage > growth + 0.1 or time_growth > growth + 0.25
            exceeding += [name] * exceeds
            span = f"({min(in_rounds):.2f} to {max(in_rounds):.2f})"
            verdict = "  exceeds its declared growth" if exceeds else ""
            print(f"{name:28s} {growth:8.2f} {storage:7.2f} {time_growth:5.2f} {span}{1e3 * longest:20.0f} ms{verdict}")
            advance(1)
    return 1 if exceeding else 0


if __name__ == "__main__":
    sys.exit(main())

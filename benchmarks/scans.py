"""Recurrences of lra-bench compared with those of other packages: interleaved times of forward and backward pass.

    python -m benchmarks.scans [--batch 2] [--length 4096] [--width 256] [--heads 4] [--blocks 15] [--threads 2]

``scan`` and ``decay_attention`` run on rows (B, N, D) in single precision, the latter with keys and values of dimension
D / heads. They are compared with implementations of the same function: a loop over time with torch's operators, torch's
generic associative scan, and the scan of mambapy. Layers of width D are compared with those of minGRU-pytorch,
s5-pytorch, mambapy and Mega-pytorch. The output is the median time of each, and the median over neighbouring blocks of
its ratio to lra-bench. Packages that are not installed are skipped with a message; nothing else needs them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from lra_bench.models.kernels.decay import decay_attention
from lra_bench.models.kernels.scan import scan

from .peers.pair import Pair, Sizes
from .peers.worker import alternate

Contenders = dict[str, Callable[..., Tensor]]


def loop(factors: Tensor, inputs: Tensor) -> Tensor:
    """Compute the recurrence h = factor * h + input by a loop over time."""
    h, steps = torch.zeros_like(inputs[:, 0]), []
    for factor, step_input in zip(factors.unbind(1), inputs.unbind(1), strict=True):
        h = factor * h + step_input
        steps.append(h)
    return torch.stack(steps, 1)


def associative(factors: Tensor, inputs: Tensor) -> Tensor:
    """Compute the recurrence by torch's associative scan, in the mode that runs on a CPU."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def join(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return a[0] * b[0], b[0] * a[1] + b[1]

    h: Tensor = associative_scan(join, (factors, inputs), 1, combine_mode="generic")[1]
    return h


def blelloch(factors: Tensor, inputs: Tensor) -> Tensor:
    """Compute the recurrence by mambapy's scan, with states of size 1."""
    from mambapy.pscan import pscan

    h: Tensor = pscan(factors[..., None], inputs[..., None])[..., 0]
    return h


def decay_loop(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Compute the matrix recurrence of decay attention by a loop over time."""
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for query, key, value, decay in zip(*(x.unbind(2) for x in (q, k, v, log_decay.exp())), strict=True):
        state = decay[..., None, None] * state + key[..., None] * value[..., None, :]
        outputs.append((query[..., None, :] @ state)[..., 0, :])
    return torch.stack(outputs, 2)


def installed(contenders: Contenders, packages: dict[str, str]) -> Contenders:
    """Return the contenders whose package is installed, and print a message for each of the others."""
    missing = {name: package for name, package in packages.items() if find_spec(package) is None}
    for name, package in missing.items():
        print(f"{name}: skipped, {package} is not installed")
    return {name: each for name, each in contenders.items() if name not in missing}


def steps(contenders: Contenders, inputs: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Return the forward and backward pass of each contender; raises ``AssertionError`` if their results differ."""
    by_name: dict[str, Callable[[], object]] = {}

    def step(compute: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y = compute(*inputs)
        return y.detach(), *torch.autograd.grad(y, inputs, torch.ones_like(y))

    expected = None
    for name, compute in contenders.items():
        y = step(compute)
        expected = y if expected is None else expected
        for reference, found in zip(expected, y, strict=True):
            assert (reference - found).abs().max() <= 1e-3 * reference.abs().max(), f"the result of {name} differs"
        by_name[name] = partial(step, compute)
    return by_name


def kernels(batch: int, sizes: Sizes) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """Yield the kernels of each group, those of lra-bench first."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator)

    length, heads = sizes.length, sizes.heads
    inputs = [random(length, sizes.width).requires_grad_() for _ in range(2)]
    contenders: Contenders = {
        "scan": scan,
        "loop": loop,
        "torch associative_scan": associative,
        "mambapy pscan": blelloch,
    }
    yield "scan", steps(installed(contenders, {"mambapy pscan": "mambapy"}), inputs)
    inputs = [random(heads, length, sizes.head_dim).requires_grad_() for _ in range(3)]
    inputs.append((-random(heads, length)).requires_grad_())
    contenders = {"decay_attention": lambda *each: decay_attention(*each)[0], "loop": decay_loop}
    yield "decay_attention", steps(contenders, inputs)


def layers(batch: int, sizes: Sizes) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """Yield layers of lra-bench, each with the layer of another package."""
    x = torch.randn(batch, sizes.length, sizes.width, generator=torch.Generator().manual_seed(1), requires_grad=True)

    def step(layer: nn.Module) -> Callable[[], object]:
        def run() -> None:
            y = layer(x)
            (y[0] if isinstance(y, tuple) else y).sum().backward()
            layer.zero_grad(set_to_none=True)
            x.grad = None

        return run

    for key, (name, package, peer) in PEERS.items():
        pair = Pair(package, key, peer, causal=True)
        if find_spec(package) is None:
            print(f"{name}: skipped, {package} is not installed")
            continue
        try:
            other = peer(sizes)
        except ModuleNotFoundError as error:
            print(f"{name}: skipped, {package} requires {error.name}, which is not installed")
            continue
        yield key, {key: step(pair.layer("ours", sizes)), name: step(other)}


def min_gru(sizes: Sizes) -> nn.Module:
    """Return minGRU with the inner width of lra-bench's layer."""
    from minGRU_pytorch import minGRU

    layer: nn.Module = minGRU(sizes.width, expansion_factor=4 / 3)
    return layer


def s5(sizes: Sizes) -> nn.Module:
    """Return S5 with the number of states of lra-bench's layer."""
    from s5 import S5

    layer: nn.Module = S5(sizes.width, 3 * sizes.width // 2)
    return layer


def mamba(sizes: Sizes) -> nn.Module:
    """Return a Mamba block with the inner width and the states of lra-bench's layer."""
    from mambapy.mamba import MambaBlock, MambaConfig

    layer: nn.Module = MambaBlock(MambaConfig(d_model=sizes.width, n_layers=1, expand_factor=1))
    return layer


def mega(sizes: Sizes) -> nn.Module:
    """Return a Mega layer with the moving averages and the widths of lra-bench's layer."""
    from mega_pytorch.mega_pytorch import MegaLayer

    width = sizes.width
    layer: nn.Module = MegaLayer(
        dim=width, ema_heads=width // 16, attn_dim_qk=width // 4, attn_dim_value=width // 2, causal=True
    )
    return layer


PEERS: dict[str, tuple[str, str, Callable[[Sizes], nn.Module]]] = {
    "min_gru": ("minGRU-pytorch minGRU", "minGRU_pytorch", min_gru),
    "s5": ("s5-pytorch S5", "s5", s5),
    "mamba": ("mambapy MambaBlock", "mambapy", mamba),
    "mega": ("Mega-pytorch MegaLayer", "mega_pytorch", mega),
}


def main() -> None:
    """Measure all groups and print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"batch": 2, "length": 4096, "width": 256, "heads": 4, "blocks": 15, "threads": 2}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_flush_denormal(True)  # as in every process of lra-bench
    torch.set_num_threads(options.threads)
    sizes = Sizes(options.length, options.width, options.heads)
    for make in (kernels, layers):
        for group, contenders in make(options.batch, sizes):
            seconds = alternate(contenders, options.blocks)
            reference, *_ = seconds
            for name, blocks in seconds.items():
                ratio = statistics.median(other / own for own, other in zip(seconds[reference], blocks, strict=True))
                print(
                    f"{group:16} {name:24} {1e3 * statistics.median(blocks):9.1f} ms {ratio:8.2f} x lra-bench",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""A stack that keeps no activations: each block's inputs are computed back from its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra_bench.contracts import UserError

from .block import Block
from .mixer import Context


def run_reversibly(blocks: Sequence[Block], x: Tensor, context: Context) -> tuple[Tensor, Context]:
    """x (B, N, E) through all blocks in two streams, and their mean (B, N, E), with the context of the last.

    Gomez et al. 2017, arXiv 1707.04585, as in Reformer, arXiv 2001.04451: y₁ = x₁ + mixer(x₂), y₂ = x₂ + feed-forward
    (y₁), beginning with x₁ = x₂ = x. The backward pass subtracts in turn, with the random draws of the forward pass:
    memory holds the activations of one branch whatever the depth, and a step takes one forward pass longer.
    Raises ``UserError`` where a mixer returns what the backward pass could not reach.
    """
    walk = _Walk(blocks, x, context)
    parameters = list(dict.fromkeys(p for block in blocks for p in block.parameters() if p.requires_grad))
    first, second = _Reversible.apply(walk, parameters, x, *parameters)
    return (first + second) / 2, walk.context


class _Walk:
    """What one pass through the blocks must remember beside its last two streams."""

    def __init__(self, blocks: Sequence[Block], x: Tensor, context: Context) -> None:
        self.blocks, self.context = blocks, context
        self.before: list[Context] = []
        self.draws: list[list[Tensor]] = []
        self.device = x.device
        kind = "cpu" if x.device.type == "meta" else x.device.type
        self.autocast: dict[str, Any] = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            # Weights cast without gradients in the forward pass must not be met again in the backward pass.
            "cache_enabled": False,
        }

    def note_draws(self) -> None:
        """Remember where the random generators stand."""
        state = [torch.get_rng_state()]
        if self.device.type == "cuda":
            state.append(torch.cuda.get_rng_state(self.device))
        self.draws.append(state)

    @contextmanager
    def again(self, branch: int) -> Iterator[None]:
        """As it was before the branch of that number: random generators, autocast; and with gradients."""
        state = self.draws[branch]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), torch.autocast(**self.autocast):
            torch.set_rng_state(state[0])
            if devices:
                torch.cuda.set_rng_state(state[1], self.device)
            yield

    def mix(self, depth: int, x: Tensor) -> Tensor:
        """The mixer's branch; its context goes on to the next."""
        self.before.append(self.context.replace(depth=depth))
        y, self.context = self.blocks[depth].mix(x, self.before[-1])
        if self.context.losses or self.context.carry or self.context.memory is not None:
            name = type(self.blocks[depth].mixer).__name__
            raise UserError(
                f"backbone.reversible=true: {name} returns losses, a memory, or something for the next layer, which "
                "would be lost; set backbone.reversible=false"
            )
        return y

    def transform(self, depth: int, x: Tensor) -> Tensor:
        """The feed-forward network's branch."""
        return self.blocks[depth].transform(x, self.before[depth])[0]


class _Reversible(torch.autograd.Function):
    """Both streams in, both streams out; only what comes out is kept."""

    @staticmethod
    def forward(ctx: Any, walk: _Walk, parameters: list[Tensor], x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        first = second = x
        for depth in range(len(walk.blocks)):
            walk.note_draws()
            first = first + walk.mix(depth, second)
            walk.note_draws()
            second = second + walk.transform(depth, first)
        ctx.walk, ctx.parameters = walk, parameters
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_first: Tensor, of_second: Tensor) -> tuple[Tensor | None, ...]:
        walk: _Walk = ctx.walk
        first, second = ctx.saved_tensors
        gradients: dict[Tensor, Tensor] = {}

        def step(number: int, branch: Any, at: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
            """A branch's output again, and the gradient that comes back through it; those of weights are summed."""
            weights = [p for p in walk.blocks[number // 2].parameters() if p.requires_grad]
            with walk.again(number):
                at = at.detach().requires_grad_()
                y = branch(at.view_as(at))  # no leaf: hooks on a module's inputs, as of FLOP counters, refuse leaves
            back, *found = torch.autograd.grad(y, [at, *weights], gradient, allow_unused=True)
            for weight, more in zip(weights, found, strict=True):
                if more is not None:
                    gradients[weight] = gradients[weight] + more if weight in gradients else more
            return y.detach(), back

        for depth in reversed(range(len(walk.blocks))):
            block, before = walk.blocks[depth], walk.before[depth]
            y, back = step(2 * depth + 1, lambda at, depth=depth: walk.transform(depth, at), first, of_second)
            second, of_first = second - y, of_first + back
            y, back = step(2 * depth, lambda at, mix=block.mix, before=before: mix(at, before)[0], second, of_first)
            first, of_second = first - y, of_second + back
        return None, None, of_first + of_second, *(gradients.get(each) for each in ctx.parameters)

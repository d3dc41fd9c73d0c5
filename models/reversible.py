"""Reversible blocks: the inputs of each block are recomputed from its outputs instead of stored."""

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
    """Run x (B, N, E) through all blocks in two residual streams; return their mean (B, N, E) and the last context.

    Gomez et al. 2017, arXiv 1707.04585, used as in Reformer, arXiv 2001.04451: y₁ = x₁ + mixer(x₂), y₂ = x₂ +
    feed_forward(y₁), starting from x₁ = x₂ = x. The backward pass recomputes each branch with the random state of the
    forward pass and subtracts it. Memory is that of the activations of one branch, independent of depth; a training
    step costs one more forward pass. Raises ``UserError`` if a mixer returns losses, a memory or values for the next
    layer, for which no gradient would be computed.
    """
    run = _ReversiblePass(blocks, x, context)
    parameters = list(dict.fromkeys(p for block in blocks for p in block.parameters() if p.requires_grad))
    first, second = _Reversible.apply(run, parameters, x, *parameters)
    return (first + second) / 2, run.context


class _ReversiblePass:
    """State of one forward pass through the blocks that its backward pass needs, except the two streams."""

    def __init__(self, blocks: Sequence[Block], x: Tensor, context: Context) -> None:
        self.blocks, self.context = blocks, context
        self.contexts: list[Context] = []
        self.rng_states: list[list[Tensor]] = []
        self.device = x.device
        kind = "cpu" if x.device.type == "meta" else x.device.type
        self.autocast: dict[str, Any] = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            # The forward pass caches casts of weights without gradients, which the backward pass must not reuse.
            "cache_enabled": False,
        }

    def save_rng_state(self) -> None:
        """Save the states of the random generators."""
        state = [torch.get_rng_state()]
        if self.device.type == "cuda":
            state.append(torch.cuda.get_rng_state(self.device))
        self.rng_states.append(state)

    @contextmanager
    def replay(self, branch: int) -> Iterator[None]:
        """Restore the random and autocast state of a branch, with gradients enabled.

        Branch 2d is the mixer of block d, branch 2d + 1 its feed-forward network.
        """
        state = self.rng_states[branch]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), torch.autocast(**self.autocast):
            torch.set_rng_state(state[0])
            if devices:
                torch.cuda.set_rng_state(state[1], self.device)
            yield

    def mix(self, depth: int, x: Tensor) -> Tensor:
        """Return the output of the mixer branch and keep its context for the next block."""
        self.contexts.append(self.context.replace(depth=depth))
        y, self.context = self.blocks[depth].mix(x, self.contexts[-1])
        if self.context.losses or self.context.carry or self.context.memory is not None:
            name = type(self.blocks[depth].mixer).__name__
            raise UserError(
                f"backbone.reversible=true: {name} returns losses, a memory or values for the next layer, which "
                "reversible blocks do not support; set backbone.reversible=false"
            )
        return y

    def transform(self, depth: int, x: Tensor) -> Tensor:
        """Return the output of the feed-forward branch."""
        return self.blocks[depth].transform(x, self.contexts[depth])[0]


class _Reversible(torch.autograd.Function):
    """Autograd function of the two streams; it stores only their final values."""

    @staticmethod
    def forward(
        ctx: Any, run: _ReversiblePass, parameters: list[Tensor], x: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor]:
        first = second = x
        for depth in range(len(run.blocks)):
            run.save_rng_state()
            first = first + run.mix(depth, second)
            run.save_rng_state()
            second = second + run.transform(depth, first)
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first_gradient: Tensor, second_gradient: Tensor) -> tuple[Tensor | None, ...]:
        run: _ReversiblePass = ctx.run
        first, second = ctx.saved_tensors
        gradients: dict[Tensor, Tensor] = {}

        def step(number: int, branch: Any, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
            """Recompute a branch and return its output and the gradient with respect to its input.

            Gradients with respect to its weights are added to ``gradients``.

            Args:
                number: Index of the branch, see ``_ReversiblePass.replay``.
                branch: Function of the branch.
                x: Input of the branch.
                gradient: Gradient with respect to the output of the branch.
            """
            weights = [p for p in run.blocks[number // 2].parameters() if p.requires_grad]
            with run.replay(number):
                x = x.detach().requires_grad_()
                # A view, because hooks on the inputs of a module, such as those of FLOP counters, reject leaf tensors.
                y = branch(x.view_as(x))
            x_gradient, *found = torch.autograd.grad(y, [x, *weights], gradient, allow_unused=True)
            for weight, added in zip(weights, found, strict=True):
                if added is not None:
                    gradients[weight] = gradients[weight] + added if weight in gradients else added
            return y.detach(), x_gradient

        for depth in reversed(range(len(run.blocks))):
            block, context = run.blocks[depth], run.contexts[depth]
            y, x_gradient = step(2 * depth + 1, lambda x, depth=depth: run.transform(depth, x), first, second_gradient)
            second, first_gradient = second - y, first_gradient + x_gradient
            y, x_gradient = step(
                2 * depth, lambda x, mix=block.mix, context=context: mix(x, context)[0], second, first_gradient
            )
            first, second_gradient = first - y, second_gradient + x_gradient
        return None, None, first_gradient + second_gradient, *(gradients.get(each) for each in ctx.parameters)

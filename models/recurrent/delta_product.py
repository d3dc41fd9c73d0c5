"""Linear attention with several steps of the delta rule per token."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import Context, MixerSpec, Padding
from .delta_net import DeltaNet
from .matrix_recurrence import still
from .short_filter import ShortFilter


class DeltaProduct(DeltaNet):
    """Linear attention with n steps of the delta rule per token, each with its own key, value and strength.

    S_(t,j) = S_(t,j−1) + β_(t,j) k_(t,j) (v_(t,j) − S_(t,j−1)ᵀ k_(t,j))ᵀ for j = 1 … n, with S_(t,0) = S_(t−1,n), read
    by q_t after the last step, so that the state is multiplied by a product of n generalised Householder matrices.
    Siems et al. 2025, arXiv 2502.10297. x (B, N, E) -> (B, N, E). O(n N E (C + E / H)) time and O(n N E) memory: the
    recurrence of ``DeltaNet`` over n N steps, in chunks of C. β is a sigmoid, doubled by ``negative``. Bidirectional
    form as in ``MatrixRecurrence``.

    Deviations from the authors' code: values are as wide as x and keys half as wide, a quarter if ``gated``, which
    gives about as many parameters as attention with two steps; there is no output gate by default; the others as in
    ``DeltaNet``.

    Args:
        width: Number of features E.
        heads: Number of heads H of the backbone.
        steps: Number of steps n per token.
        key_width: Total width of the queries, and of the keys of one step, of all heads; by default E / 2, or E / 4 if
            ``gated``, rounded to a multiple of the number of recurrences.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate follows the norm of the outputs.
        negative: Whether to double β, so that the state transition can have negative eigenvalues.
        state_heads: Number of heads H of the state; by default as in ``MatrixRecurrence``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products",
        arxiv="2502.10297",
        causal="exact",
        memory=True,
        code="fla-org/flash-linear-attention@bc3b101:fla/layers/gated_deltaproduct.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        steps: int = 2,
        key_width: int | None = None,
        filter: int = 4,
        filter_bias: bool = False,
        gated: bool = False,
        negative: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        if steps < 1:
            raise UserError(f"model.mixer.steps={steps}: must be at least 1")
        if key_width is None:
            streams = (state_heads or heads) * (1 if common.get("causal", False) else 2)
            key_width = max(width // ((4 if gated else 2) * streams), 1) * streams
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated, "negative": negative}
        super().__init__(width, heads, key_width=key_width, state_heads=state_heads, **matrix, **common)
        self.steps = steps
        # Channels of keys, values and strengths are ordered by head, then by step.
        self.key, self.value = linear(width, steps * key_width), linear(width, steps * width)
        self.strength = linear(width, steps * self.streams)
        for number, size in ((1, key_width), (2, width)):
            if filter:
                self.filters[number] = ShortFilter(steps * size, filter, bias=filter_bias)

    def features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, N, K), and keys and values of all steps (B, H, n N, K) and (B, H, n N, V)."""
        return super().features(q, *(each.unflatten(-1, (self.steps, -1)).flatten(2, 3) for each in (k, v)))

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence over all steps; shapes as in ``MatrixRecurrence.recall``, keys and values (B, H, n N, ·).

        The state decays before the first step of a token, and queries read it after the last step.
        """
        log_decay, strength = self.decays(x, context)
        log_decay = F.pad(log_decay[..., None], (0, self.steps - 1)).flatten(2)
        q = F.pad(q[:, :, :, None], (0, 0, self.steps - 1, 0)).flatten(2, 3)
        if context.padding is not None:
            padding = Padding.from_lengths(self.steps * context.padding.lengths, k.shape[2])
            k, log_decay, strength = padding.zero_heads(k), still(log_decay, padding), still(strength, padding)
        o, state = self.decay_attention(q, k, v, log_decay, strength=strength, state=state)
        return o[:, :, self.steps - 1 :: self.steps], state

    def decays(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return log decays of zero (B, H, N), and β of all steps (B, H, n N)."""
        strength = self.by_stream(self.strength(x), context).sigmoid() * (2 if self.negative else 1)
        strength = strength.unflatten(1, (self.streams, self.steps))
        return strength.new_zeros(strength[:, :, 0].shape), strength.mT.flatten(2)

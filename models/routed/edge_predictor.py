"""Edge predictor of SAC: an LSTM that samples walks over the tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..kernels.devices import uses_gpu_form
from ..kernels.recurrent import recurrent
from ..kernels.sorting import take

CHUNK = 64
"""Number of choices for which a distribution over all tokens is in memory at the same time."""
GPU_CHUNK = 512
"""The same on GPUs, where few launches matter more than the cache."""


class EdgePredictor(nn.Module):
    """LSTM that reads the current node of a walk and predicts the distribution of the next node.

    The logit of a node is its inner product with the LSTM state, divided by √P, plus a learned bias for its offset from
    the current node. Nodes are linear projections of tokens.

    Args:
        width: Width E of tokens.
        hidden: Width P of nodes and of the LSTM state.
        distance: Largest offset, on either side, with its own bias; larger ones share it.
        starts: Whether walks start from a learned vector instead of from a node.
    """

    def __init__(self, width: int, hidden: int, distance: int, starts: bool) -> None:
        super().__init__()
        self.nodes, self.lstm = nn.Linear(width, hidden), nn.LSTM(hidden, hidden, batch_first=True)
        self.near = nn.Parameter(torch.zeros(2 * distance + 1))
        self.start = nn.Parameter(torch.randn(hidden) * hidden**-0.5) if starts else None

    @torch.no_grad()
    def walk(self, nodes: Tensor, begin: Tensor | None, draws: Tensor, valid: Tensor | None) -> Tensor:
        """Sample K walks of T steps and return the indices of the chosen nodes.

        Args:
            nodes: Nodes (B, N, P).
            begin: Indices of the first nodes (B, K), which are not part of the result; None for the learned vector.
            draws: Uniform numbers (B or 1, K, T) in [0, 1), from which choices are made by inverting the cumulative
                distribution over nodes.
            valid: Mask (B, N) of the nodes that can be chosen; None for all.

        Returns:
            Indices (B, K, T).
        """
        parts, chunk = [], _chunk(nodes)
        for start in range(0, draws.shape[1], chunk):
            part = slice(start, start + chunk)
            parts.append(self._walk(nodes, None if begin is None else begin[:, part], draws[:, part], valid))
        return torch.cat(parts, 1)

    def log_chances(self, nodes: Tensor, begin: Tensor | None, chosen: Tensor, valid: Tensor | None) -> Tensor:
        """Return the log-probability (B, K, T) of each choice in ``chosen`` (B, K, T).

        The other arguments are those of ``walk``. Takes O(B K T P) memory in addition to the logits of one chunk, which
        are computed again in the backward pass.
        """
        current, inputs = self._visited(nodes, begin, chosen)
        log_probabilities, size = [], _chunk(nodes)
        for part in zip(*(x.split(size, 1) for x in (inputs, current, chosen)), strict=True):
            states = recurrent(self.lstm, part[0].flatten(0, 1))[0]
            flat = states.reshape(len(nodes), -1, nodes.shape[-1]), part[1].flatten(1), part[2].flatten(1)
            for chunk in zip(*(x.split(size, 1) for x in flat), strict=True):
                log_probabilities.append(checkpoint(self._score, nodes, *chunk, valid, use_reentrant=False))
        return torch.cat(log_probabilities, 1).view(chosen.shape)

    def _walk(self, nodes: Tensor, begin: Tensor | None, draws: Tensor, valid: Tensor | None) -> Tensor:
        """Sample the walks of one chunk; arguments and result are those of ``walk``."""
        batch, walks = len(nodes), draws.shape[1]
        counts = torch.full((batch,), nodes.shape[1], device=nodes.device) if valid is None else valid.sum(1)
        last = counts.sub(1).clamp(min=0)[:, None, None]
        state, current, inputs = None, *self._begin(nodes, begin, walks)
        chosen = []
        for draw in draws.expand(batch, -1, -1).split(1, -1):
            out, state = recurrent(self.lstm, inputs.flatten(0, 1)[:, None], state)
            cdf = self._logits(nodes, out.view(batch, walks, -1), current, valid).softmax(-1).cumsum(-1)
            current = torch.searchsorted(cdf, draw.to(cdf.dtype).contiguous(), right=True).minimum(last)[..., 0]
            inputs = _gather(nodes, current)
            chosen.append(current)
        return torch.stack(chosen, -1)

    def _begin(self, nodes: Tensor, begin: Tensor | None, walks: int) -> tuple[Tensor, Tensor]:
        """Return the first node index of each walk (B, K) and the first input of the LSTM (B, K, P)."""
        if begin is not None:
            return begin, _gather(nodes, begin)
        assert self.start is not None
        # An index so far before all nodes that their offsets share one bias.
        nowhere = torch.full((len(nodes), walks), -(self.near.shape[0] // 2), device=nodes.device)
        return nowhere, self.start.to(nodes.dtype).expand(len(nodes), walks, -1)

    def _visited(self, nodes: Tensor, begin: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the current node index before each choice (B, K, T) and the LSTM inputs (B, K, T, P)."""
        first, read = self._begin(nodes, begin, chosen.shape[1])
        earlier = chosen[..., :-1]
        inputs = _gather(nodes, earlier.flatten(1)).view(*earlier.shape, nodes.shape[-1])
        return torch.cat((first[..., None], earlier), -1), torch.cat((read[:, :, None], inputs), 2)

    def _logits(self, nodes: Tensor, states: Tensor, current: Tensor, valid: Tensor | None) -> Tensor:
        """Return the logits (B, R, N) of all nodes for LSTM states (B, R, P) at the node indices ``current`` (B, R)."""
        scale = math.sqrt(nodes.shape[-1])
        if uses_gpu_form(nodes):
            logits = torch.baddbmm(self._rows_of_biases(nodes, current), states, nodes.mT, alpha=1 / scale)
        else:
            logits = states @ nodes.mT / scale
            reach = self.near.shape[0] // 2
            offsets = torch.arange(nodes.shape[1], device=nodes.device) - current[..., None]
            bias = self.near.index_select(0, (offsets.clamp(-reach, reach) + reach).flatten()).view(offsets.shape)
            logits = logits + bias.to(logits.dtype)
        # The mask is finite, so that the distribution is defined even if no node is valid.
        return logits if valid is None else logits.masked_fill(~valid[:, None], torch.finfo(logits.dtype).min)

    def _rows_of_biases(self, nodes: Tensor, current: Tensor) -> Tensor:
        """Return the biases (B, R, N) of all nodes at the node indices ``current``: rows of a view of one table."""
        length, reach = nodes.shape[1], self.near.shape[0] // 2
        # An index before all nodes is at least −reach.
        offsets = torch.arange(1 - length, length + reach, device=nodes.device).clamp(-reach, reach) + reach
        windows = self.near.index_select(0, offsets).to(nodes.dtype).unfold(0, length, 1)
        return windows.index_select(0, (length - 1 - current).flatten()).view(*current.shape, length)

    def _score(self, nodes: Tensor, states: Tensor, current: Tensor, chosen: Tensor, valid: Tensor | None) -> Tensor:
        """Return the log-probabilities (B, R) of the node indices ``chosen`` (B, R)."""
        logits = self._logits(nodes, states, current, valid)
        return logits.gather(-1, chosen[..., None])[..., 0] - logits.logsumexp(-1)


def _chunk(nodes: Tensor) -> int:
    return GPU_CHUNK if uses_gpu_form(nodes) else CHUNK


def _gather(nodes: Tensor, indices: Tensor) -> Tensor:
    """Return the nodes (B, K, P) with ``indices`` (B, K), of nodes (B, N, P)."""
    return take(nodes[:, None], indices[:, None])[:, 0]

"""A recurrent network that walks from token to token, each chosen by chance among all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..kernels.sorting import take

AT_ONCE = 64  # choices among all tokens whose chances are held at once


class EdgePredictor(nn.Module):
    """Walks over nodes: an LSTM reads the node where it stands and says how likely each is to be the next.

    A node's logit is its product with the LSTM's state, over √P, and a learned number for how far it lies from the node
    before, the same for all beyond ``distance``. ``width`` of tokens, ``hidden`` P of nodes and state. ``starts`` says
    that walks begin at no node but at a learned vector.
    """

    def __init__(self, width: int, hidden: int, distance: int, starts: bool) -> None:
        super().__init__()
        self.nodes, self.lstm = nn.Linear(width, hidden), nn.LSTM(hidden, hidden, batch_first=True)
        self.near = nn.Parameter(torch.zeros(2 * distance + 1))
        self.start = nn.Parameter(torch.randn(hidden) * hidden**-0.5) if starts else None

    @torch.no_grad()
    def walk(self, nodes: Tensor, begin: Tensor | None, draws: Tensor, valid: Tensor | None) -> Tensor:
        """The nodes chosen (B, K, T) by K walks over nodes (B, N, P), of which (B, N) are ``valid``, by default all.

        Walks start from ``begin`` (B, K), or from the learned vector. ``draws`` (B or 1, K, T) in [0, 1) say how far
        along the heaped-up chances of all nodes a choice lies.
        """
        parts = []
        for start in range(0, draws.shape[1], AT_ONCE):
            part = slice(start, start + AT_ONCE)
            parts.append(self._walk(nodes, None if begin is None else begin[:, part], draws[:, part], valid))
        return torch.cat(parts, 1)

    def log_chances(self, nodes: Tensor, begin: Tensor | None, chosen: Tensor, valid: Tensor | None) -> Tensor:
        """The logarithm of the chance of each choice (B, K, T), O(B K T P) in memory beside slices."""
        stood, inputs = self._stood(nodes, begin, chosen)
        found = []
        for part in zip(*(x.split(AT_ONCE, 1) for x in (inputs, stood, chosen)), strict=True):
            states = self.lstm(part[0].flatten(0, 1))[0]
            flat = states.reshape(len(nodes), -1, nodes.shape[-1]), part[1].flatten(1), part[2].flatten(1)
            for some in zip(*(x.split(AT_ONCE, 1) for x in flat), strict=True):
                found.append(checkpoint(self._chances_of, nodes, *some, valid, use_reentrant=False))
        return torch.cat(found, 1).view(chosen.shape)

    def _walk(self, nodes: Tensor, begin: Tensor | None, draws: Tensor, valid: Tensor | None) -> Tensor:
        batch, walks = len(nodes), draws.shape[1]
        counts = torch.full((batch,), nodes.shape[1], device=nodes.device) if valid is None else valid.sum(1)
        last = counts.sub(1).clamp(min=0)[:, None, None]
        state, stood, inputs = None, *self._begin(nodes, begin, walks)
        chosen = []
        for draw in draws.expand(batch, -1, -1).split(1, -1):
            out, state = self.lstm(inputs.flatten(0, 1)[:, None], state)
            heap = self._logits(nodes, out.view(batch, walks, -1), stood, valid).softmax(-1).cumsum(-1)
            stood = torch.searchsorted(heap, draw.to(heap.dtype).contiguous(), right=True).minimum(last)[..., 0]
            inputs = _at(nodes, stood)
            chosen.append(stood)
        return torch.stack(chosen, -1)

    def _begin(self, nodes: Tensor, begin: Tensor | None, walks: int) -> tuple[Tensor, Tensor]:
        """Where walks stand at first (B, K), and what the LSTM reads there (B, K, P)."""
        if begin is not None:
            return begin, _at(nodes, begin)
        assert self.start is not None
        # As far from all nodes, so that distances make none of them more likely.
        nowhere = torch.full((len(nodes), walks), -(self.near.shape[0] // 2), device=nodes.device)
        return nowhere, self.start.to(nodes.dtype).expand(len(nodes), walks, -1)

    def _stood(self, nodes: Tensor, begin: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Where walks stood before each choice (B, K, T), and what the LSTM read there (B, K, T, P)."""
        first, read = self._begin(nodes, begin, chosen.shape[1])
        earlier = chosen[..., :-1]
        inputs = _at(nodes, earlier.flatten(1)).view(*earlier.shape, nodes.shape[-1])
        return torch.cat((first[..., None], earlier), -1), torch.cat((read[:, :, None], inputs), 2)

    def _logits(self, nodes: Tensor, states: Tensor, stood: Tensor, valid: Tensor | None) -> Tensor:
        """Logits of all nodes (B, R, N) for states (B, R, P) of walks that stand at nodes ``stood`` (B, R)."""
        logits = states @ nodes.mT / math.sqrt(nodes.shape[-1])
        reach = self.near.shape[0] // 2
        apart = torch.arange(nodes.shape[1], device=nodes.device) - stood[..., None]
        near = self.near.index_select(0, (apart.clamp(-reach, reach) + reach).flatten()).view(apart.shape)
        logits = logits + near.to(logits.dtype)
        # Finite, so that a row without tokens has chances too.
        return logits if valid is None else logits.masked_fill(~valid[:, None], torch.finfo(logits.dtype).min)

    def _chances_of(self, nodes: Tensor, states: Tensor, stood: Tensor, chosen: Tensor, valid: Tensor | None) -> Tensor:
        logits = self._logits(nodes, states, stood, valid)
        return logits.gather(-1, chosen[..., None])[..., 0] - logits.logsumexp(-1)


def _at(nodes: Tensor, places: Tensor) -> Tensor:
    return take(nodes[:, None], places[:, None])[:, 0]

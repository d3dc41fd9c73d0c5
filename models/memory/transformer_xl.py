"""Transformer-XL: attention to the current segment and the stored hidden states of the segments before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Context, MixerSpec
from .segments import SegmentMixer, Stored, Strip


class TransformerXL(SegmentMixer):
    """Softmax attention to the current segment and the M = ``memory`` tokens before it, in every layer.

    Dai et al. 2019, arXiv 1901.02860. The memory of a layer are its inputs, so that n layers reach n M tokens back.
    O(N (S + M) E) time for segments of S tokens, and a state of at most (M + S − 1) E numbers per layer: the memory,
    and the part of the current segment that has been read. Positions must be relative, such as ``transformer_xl``.

    ``same_length`` lets every token attend to exactly M tokens, itself included, instead of M tokens and the part of
    the segment before it. Requires a causal model.

    Deviations from the paper: the memory holds the inputs of the mixer, which with ``norm_place=pre`` are normalised
    with the weights of the time when they were stored; gradients flow across the segments of a batch unless ``detach``
    is ``segment``; inside a segment attention is bidirectional if the model is.

    Deviations from the authors' code: projections begin Xavier-uniform, there with a deviation of 0.02; the sinusoids
    have no dropout.
    """

    spec = MixerSpec(
        family="memory",
        paper="Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
        arxiv="1901.02860",
        code="kimiyoung/transformer-xl@44781ed:pytorch/mem_transformer.py",
        causal="exact",
        positions=("embed", "rotate", "bias", "scores", "weight"),
        memory=True,
        full_config={"segment": 512, "same_length": False, "kv_heads": None, "merge": None},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        segment: int = 512,
        memory: int = 512,
        detach: str = "none",
        same_length: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, segment=segment, memory=memory, detach=detach, **common)
        if same_length and not self.causal:
            raise UserError("model.mixer.same_length=true: requires a causal model; set it to false")
        self.same_length = same_length

    def slots(self, read: int) -> Mapping[str, int]:
        """Return how many inputs are stored: the memory and the part of the segment that has been read."""
        if self.same_length:
            return {"states": min(read, max(self.memory_length, 1) - 1)}
        return {"states": min(read, self.memory_length + read % self.segment)}

    def capacity(self) -> Mapping[str, int]:
        """Return the largest number of stored inputs."""
        if self.same_length:
            return {"states": max(self.memory_length, 1) - 1}
        return {"states": self.memory_length + self.segment - 1}

    def restricts_from(self) -> int:
        """Return the length at which the first token is outside the memory, or a segment later, if bidirectional."""
        return max(self.memory_length, 1) + 1 if self.same_length else super().restricts_from()

    def read(self, x: Tensor, stored: Stored, start: int, context: Context) -> tuple[Tensor, Stored, Context]:
        """Attend segment by segment to its tokens and those in the memory."""
        length, before = x.shape[1], stored["states"]
        before = before.detach() if self.detach == "segment" else before
        first, end = start - before.shape[1], start + length
        states = torch.cat((before.to(x.dtype), x), 1)
        bounds = self.bounds(start, length)
        ends = [stop for _, stop in bounds]
        k, v = (Strip(each, first, [start, *ends]) for each in self.keys_and_values(states))
        old_k, old_v = k, v
        if self.detach == "segment" and len(bounds) > 1:
            old_k, old_v = (Strip(each, first, [start, *ends]) for each in self.keys_and_values(states.detach()))
        q = self.split(self.query(x))
        positions = self.positions_from(first, start, length, context)
        outputs = []
        for (begin, stop), rows in zip(bounds, q.split([stop - begin for begin, stop in bounds], 2), strict=True):
            low = self._lowest(begin)
            own = max(low, begin // self.segment * self.segment)
            keys = old_k.joined(k, low, own, stop)
            values = old_v.joined(v, low, own, stop)
            weights = self.weigh(
                rows,
                keys,
                positions[..., begin - first : stop - first],
                positions[..., low - first : stop - first],
                self.visible(low, begin, stop, context),
            )
            outputs.append(self.combine(weights, values))
        o = torch.cat(outputs, 2)
        y, context = self.finish(o, q, k.window(start, end), v.window(start, end), context)
        return y, {"states": states[:, states.shape[1] - self.slots(end)["states"] :]}, context

    def visible(self, low: int, first: int, end: int, context: Context) -> Tensor | None:
        """Return which tokens may be attended to, at most the last M with ``same_length``."""
        mask = super().visible(low, first, end, context)
        if mask is None or not self.same_length:
            return mask
        return mask.triu(first - low - max(self.memory_length, 1) + 1)

    def _lowest(self, begin: int) -> int:
        """Return the first token that the tokens from ``begin`` on may attend to."""
        if self.same_length:
            return max(begin - max(self.memory_length, 1) + 1, 0)
        return max(begin // self.segment * self.segment - self.memory_length, 0)

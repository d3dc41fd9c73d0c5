"""Control model that uses which tokens a sequence contains, but not their order."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from lra_bench.contracts import Batch, Capability, Output, TaskSpec

from .feedforward import FeedForward
from .mixer import Padding
from .readout import Head, pool


class BagOfTokens(nn.Module):
    """Bag of tokens: the mean of the token embeddings, a feed-forward network with a residual connection, and the head.

    This is the control for the use of order: a score that is not above this one shows no use of token order. O(N E)
    time and memory. Tokens (B, N) or values (B, N, C) to logits (B, classes). Does not support tasks that score every
    token.
    """

    capability = Capability(
        family="control",
        paper="none: the control of this benchmark",
        equivariant=True,
        positions=(),
    )

    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(self, *, spec: TaskSpec, width: int = 64, hidden: int = 128, dropout: float = 0.1) -> None:
        super().__init__()
        self.spec = spec
        self.embedding: nn.Module = (
            nn.Embedding(spec.vocabulary_size, width)
            if spec.vocabulary_size is not None
            else nn.Linear(spec.channels or 1, width)
        )
        self.body = FeedForward(width, hidden, "gelu", dropout)
        self.head = Head(spec, width, hidden, "gelu", dropout)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits (B, classes)."""
        inputs, lengths = batch.inputs, batch.lengths
        if lengths.dim() == 2:
            inputs, lengths = inputs.flatten(0, 1), lengths.flatten()
        padding = None if batch.full else Padding.from_lengths(lengths, inputs.shape[1])
        mean: Tensor = pool(self.embedding(inputs), "mean", 0, padding)
        return Output(self.head(mean + self.body(mean)))

    def supports(self, spec: TaskSpec) -> str | None:
        """Return a reason if the task scores every token, otherwise None."""
        return f"BagOfTokens has one output per sequence, {spec.name} needs one per token" if spec.per_token else None

    def restricts_from(self) -> int:
        """Return 0: tokens do not attend to each other."""
        return 0

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters in total and by part."""
        counts = {name: sum(p.numel() for p in part.parameters()) for name, part in self.named_children()}
        return {
            "total": sum(counts.values()),
            "body": counts["body"],
            "body_active": counts["body"],
            "embeddings": counts["embedding"],
            "positions": 0,
            "head": counts["head"],
        }

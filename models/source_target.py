"""Division of batches into a source, which an encoder reads, and a target, which a decoder generates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, TaskSpec


class SourceTarget(NamedTuple):
    """Sources and target inputs of a batch.

    Attributes:
        inputs: Tokens (S, N) or values (S, N, C) that begin with the source; S is twice the batch size for pairs of
            documents, with the documents of a pair adjacent.
        lengths: Numbers of positions of the sources, (S,); 0 for an empty document.
        tokens: Tokens that the decoder reads, (S, N): the separator and the answer. None if the target is one class,
            before which the decoder reads a start symbol.
        target_lengths: Numbers of these tokens, (S,); None if ``tokens`` is.
    """

    inputs: Tensor
    lengths: Tensor
    tokens: Tensor | None = None
    target_lengths: Tensor | None = None

    def in_rows(self, logits: Tensor) -> Tensor:
        """Return logits (B, N, classes) of the decoder's positions at the positions of its tokens in the rows.

        Those of the source have no meaning, and no target.
        """
        places = torch.arange(logits.shape[1], device=logits.device) - self.lengths[:, None]
        return logits.gather(1, places.clamp(min=0)[..., None].expand_as(logits))


def source_and_target(batch: Batch, spec: TaskSpec) -> SourceTarget:
    """Divide a batch at the first separator of each row, in ``generation``; for other kinds it is the source."""
    if spec.separator is None:
        inputs, lengths = batch.inputs, batch.lengths
        return (
            SourceTarget(inputs.flatten(0, 1), lengths.flatten())
            if lengths.dim() == 2
            else SourceTarget(inputs, lengths)
        )
    tokens = batch.inputs
    ends = (tokens == spec.separator).int().argmax(1)
    places = ends[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    targets = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1))
    return SourceTarget(tokens, ends, targets, batch.lengths - ends)


def one_output_only(name: str, spec: TaskSpec) -> str | None:
    """Return a reason if the task scores every token of its input, otherwise None."""
    if not spec.per_token or spec.kind == "generation":
        return None
    return f"{name} has one output per sequence, {spec.name} needs one per token"


def parameter_parts(network: nn.Module, embedding: nn.Module, head: nn.Module) -> dict[str, int]:
    """Return the number of parameters in total and by part; the body is all but the embeddings and the head."""
    total, embeddings, of_head = (
        sum(parameter.numel() for parameter in part.parameters()) for part in (network, embedding, head)
    )
    body = total - embeddings - of_head
    return {
        "total": total,
        "body": body,
        "body_active": body,
        "embeddings": embeddings,
        "positions": 0,
        "head": of_head,
    }

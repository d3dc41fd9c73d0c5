"""Output heads that score every token: linear, tied, adaptive softmax and mixture of softmaxes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lra_bench.contracts import TaskSpec, UserError
from lra_bench.options.backbone import OutputHead

from .clusters import AdaptiveSoftmax
from .feedforward import linear
from .readout import StateDecoder
from .token_embedding import EmbeddingTable


class MixtureOfSoftmaxes(nn.Module):
    """Weighted sum of several softmaxes of different maps of a hidden state.

    Yang et al. 2017, arXiv 1711.03953. Hidden states (..., E) -> log probabilities (..., V): the logarithm of
    Σ_k π_k softmax(C tanh(W_k h) + b), with weights π = softmax(W h). O(K V) memory per token. The matrix of log
    probabilities can have a higher rank than E. Code: zihangdai/mos@a7e60f5:model.py.

    Deviation from the authors' code: the maps of hidden states have no dropout.

    Args:
        width: Number of features E.
        classes: Number of classes V.
        components: Number of softmaxes K.
    """

    def __init__(self, width: int, classes: int, components: int) -> None:
        super().__init__()
        self.weights, self.maps = linear(width, components, bias=False), linear(width, components * width)
        self.classes = linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log probabilities (..., V) of x (..., E)."""
        states = self.maps(x).unflatten(-1, (-1, x.shape[-1])).tanh()
        logs = self.classes(states).log_softmax(-1)
        return (logs + self.weights(x).log_softmax(-1).unsqueeze(-1)).logsumexp(-2)


class TiedOutput(nn.Module):
    """Logits that are inner products with the input embeddings, divided by √E: (..., E) to (..., V).

    Press, Wolf 2016, arXiv 1608.05859. The embedding is not a child of this module, because its parameters are those of
    the input.

    Deviation from the paper: inner products are divided by √E, as in T5 (Raffel et al. 2019, arXiv 1910.10683).
    """

    def __init__(self, embedding: EmbeddingTable) -> None:
        super().__init__()
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (..., V) of x (..., E)."""
        table = self._embedding[0].table()
        return (x * x.shape[-1] ** -0.5) @ table.mT.to(x.dtype)


def output_layers(
    spec: TaskSpec,
    width: int,
    output: OutputHead,
    embedding: nn.Module | None,
    order: Sequence[int] | None,
) -> nn.Module | None:
    """Return the layers that map hidden states (..., E) to logits, or None for those of ``Head``.

    Args:
        spec: Specification of the task.
        width: Number of features E.
        output: Options of ``backbone.output``.
        embedding: The embedding with which the output is tied, or None.
        order: Token ids by frequency.

    Raises:
        UserError: If the options do not suit the task or each other.
    """
    kind = output.kind
    if embedding is not None:
        if kind != "softmax":
            raise UserError(f"backbone.embedding.tied=true: is not used with backbone.output.kind={kind}")
        if spec.kind != "language_modeling":
            raise UserError(f"backbone.embedding.tied=true: {spec.name} does not predict tokens; leave it out")
        assert isinstance(embedding, EmbeddingTable)
        return TiedOutput(embedding)
    if spec.decodes_state:
        if kind != "softmax":
            raise UserError(f"backbone.output.kind={kind}: {spec.name} has a decoder of its own; leave it out")
        return StateDecoder(width, spec.classes)
    if kind == "softmax":
        return None
    if not spec.per_token:
        raise UserError(f"backbone.output.kind={kind}: {spec.name} does not score every token; leave it out")
    if kind == "mixture":
        return MixtureOfSoftmaxes(width, spec.classes, output.components)
    return AdaptiveSoftmax(width, spec.classes, output.cutoffs, output.factor, order)

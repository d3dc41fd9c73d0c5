"""Self-pretraining: a network with a head that restores its inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, Output, Pretrainable, TaskSpec, UserError

from .embedding import DEVIATION
from .feedforward import linear


class HiddenInputs(nn.Module):
    """Embedding of inputs of which some are hidden, which have a learned vector instead.

    Tokens (B, N), of which those with the id V are hidden, or values (B, N, C + 1), of which those with a 1 in the last
    channel are hidden and 0 in the others -> (B, N, E). The vector is equal to one more row of a table of embeddings,
    and to one more column of a linear layer of values.

    Args:
        shown: Embedding of inputs that are not hidden.
        width: Number of features E.
        vocabulary: Number of token ids V; None for values.
    """

    def __init__(self, shown: nn.Module, width: int, vocabulary: int | None) -> None:
        super().__init__()
        self.shown, self.vocabulary = shown, vocabulary
        self.vector = nn.Parameter(torch.randn(width) * DEVIATION)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embeddings (B, N, E) of inputs."""
        if self.vocabulary is None:
            shown: Tensor = self.shown(inputs[..., :-1])
            return shown + inputs[..., -1:] * self.vector
        hidden = inputs == self.vocabulary
        shown = self.shown(inputs.masked_fill(hidden, 0))
        return torch.where(hidden[..., None], self.vector.to(shown.dtype), shown)


class SelfPretraining(nn.Module):
    """Restore the inputs of the training examples from the hidden states of a network, before it learns the task.

    Amos et al. 2023, arXiv 2310.02980. A linear layer maps the hidden state of each position to the vocabulary
    (cross-entropy), or to one value per channel (absolute error). With ``masked`` it restores hidden inputs, otherwise
    it predicts the next input. Code: IdoAmos/not-from-scratch@f919137.

    The head of the task is not a part of this module while it exists, and is as it was after ``remove``.

    Deviation from the authors' code: pixels are classes if the task inputs them as tokens, and values otherwise. There,
    those of Pathfinder are always classes, and those of Image values.

    Args:
        network: The network.
        spec: Specification of the task.
        masked: Whether inputs are hidden.
    """

    revision: ClassVar[int] = 1

    def __init__(self, *, network: nn.Module, spec: TaskSpec, masked: bool) -> None:
        super().__init__()
        option, name = f"pretrain={'masked' if masked else 'causal'}", type(network).__name__
        if not isinstance(network, Pretrainable):
            raise UserError(
                f"{option}: {name} returns no hidden states of tokens; leave it out or choose another model"
            )
        if reason := network.refuses_pretraining():
            raise UserError(f"{option}: is not supported, because {reason}; leave it out or choose another model")
        if not (masked or network.causal):
            raise UserError(f"{option}: the network is bidirectional; set backbone.causal=true")
        self._kept = network.embedding, network.head
        self.network: Any = network
        classes = spec.channels if spec.vocabulary_size is None else spec.vocabulary_size
        assert classes is not None
        if masked:
            network.embedding = HiddenInputs(network.embedding, network.width, spec.vocabulary_size)
        network.head = nn.Identity()
        self.head = linear(network.width, classes)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits of all tokens (B, N, V), or the values (B, N, C)."""
        output: Output = self.network.states(batch)
        return output._replace(logits=self.head(output.logits))

    @property
    def shards(self) -> list[nn.Module]:
        """Parts of the network that can be sharded."""
        return list(getattr(self.network, "shards", ()))

    def remove(self) -> None:
        """Remove the learned vector and the head of this module, and restore the head of the task."""
        self.network.embedding, self.network.head = self._kept

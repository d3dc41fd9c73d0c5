"""Base class of networks that look up training examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, Capability, TaskSpec, UserError

from ..backbone import SequenceModel
from .datastore import Datastore
from .search import Index


class Retrieval(nn.Module):
    """Base class of networks around a backbone that also use its nearest training examples.

    A subclass sets ``source`` and defines ``forward``. The backbone is the submodule ``network``.

    Args:
        network: The backbone.
        another: Function that builds another backbone with the same configuration, except the given options.
        restore: Function of a network, the key of a record and the name of an option, which loads the weights of that
            record into the network.
        spec: Specification of the task.
        seed: Seed of the choice of training examples.
        keys: Largest number of examples, or tokens if each has a target, in the datastore.
        neighbours: Number of neighbours.
        backend: Backend of the search, as in ``Index``.

    Raises:
        UserError: If an option has an invalid value.
    """

    source: ClassVar[Capability]
    """Family, paper and arXiv id of the system."""
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self,
        *,
        network: SequenceModel,
        another: Callable[..., SequenceModel],
        restore: Callable[[nn.Module, str, str], None] | None = None,
        spec: TaskSpec,
        seed: int = 0,
        keys: int = 250_000,
        neighbours: int = 1024,
        backend: str = "torch",
    ) -> None:
        super().__init__()
        for name, number in {"keys": keys, "neighbours": neighbours}.items():
            if number < 1:
                raise UserError(f"model.retrieval.{name}={number}: must be at least 1")
        if network.controller is not None:
            raise UserError("model.retrieval: is not supported with model.controller; leave out one of them")
        Index(torch.zeros(1, 1), backend)  # reports a backend that is not available before training
        self.network, self.another, self.restore, self.spec, self.seed = network, another, restore, spec, seed
        self.keys, self.neighbours, self.backend = keys, neighbours, backend
        self.datastore: Datastore | None = None

    @property
    def capability(self) -> Capability:
        """The capabilities of the backbone, with the source of this system."""
        source = self.source
        return replace(
            self.network.capability, family=source.family, paper=source.paper, arxiv=source.arxiv, code=source.code
        )

    @property
    def mixers(self) -> list[Any]:
        """Mixers of all layers of the backbone."""
        return list(self.network.mixers)

    @property
    def shards(self) -> list[nn.Module]:
        """Blocks of the backbone whose weights can be sharded."""
        return self.network.shards

    def supports(self, spec: TaskSpec) -> str | None:
        """Return the reason why the backbone does not support the task, None if it does."""
        return self.network.supports(spec)

    def supports_length(self, length: int) -> str | None:
        """Return the reason why the backbone does not support sequences of ``length`` tokens, None if it does."""
        return self.network.supports_length(length)

    def restricts_from(self) -> int | None:
        """Return the smallest length at which a layer of the backbone restricts what a token can attend to."""
        return self.network.restricts_from()

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states of the backbone."""
        return self.network.hidden(batch)

    @property
    def readers(self) -> list[SequenceModel]:
        """Networks that read the tokens: the backbone, and that of a subclass if it computes features."""
        return [self.network]

    def refuses_steps(self) -> str | None:
        """Return why a network cannot read a sequence in parts, None if all can."""
        return next(filter(None, (reader.refuses_steps() for reader in self.readers)), None)

    def read(self, batch: Batch, memory: Any = None) -> tuple[Tensor, Any]:
        """Read tokens that follow those of ``memory``; None is the start of a sequence.

        Returns the hidden states of the backbone (B, N, E), and the memory: that of each network, and the datastore,
        without which the next token cannot be predicted.
        """
        before = [None] * len(self.readers) if memory is None else memory[0]
        found = [reader.read(batch, own) for reader, own in zip(self.readers, before, strict=True)]
        stored = [] if self.datastore is None else list(self.datastore.buffers())
        return found[0][0], ([own for _, own in found], stored)

    def random_datastore(self, dimensions: int | None) -> Datastore:
        """Return a datastore of random numbers with ``keys`` keys of ``dimensions`` features, None for all features."""
        width = self.network.mixers[0].width * (2 if self.spec.kind == "matching" else 1)
        size = min(dimensions or width, width)
        example = next(self.network.parameters())
        projection = None if size == width else torch.randn(width, size).to(example)
        targets = torch.randint(self.spec.classes, (self.keys,), device=example.device)
        return Datastore(Index(torch.randn(self.keys, size).to(example), self.backend), targets, projection)

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters of the backbone in total and by part."""
        return self.network.parameter_parts()

"""SPALM: the state before the output layer is mixed with the output embeddings of neighbours' targets by a gate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import NOT_SCORED, Batch, Capability, Output, UserError

from ..backbone import SequenceModel
from .datastore import Datastore
from .features import Split, chosen_examples, described, described_examples
from .retrieval import Retrieval
from .search import Index


class Spalm(Retrieval):
    """SPALM: z = (1 − g) m + g h, where m is computed from the targets of the nearest training examples.

    Yogatama, de Masson d'Autume, Kong 2021, arXiv 2102.02557. h is the input of the output layer with weights W, y_i is
    the row of W of the target of neighbour i, m = Σ softmax_i(y_i · h) y_i, and g = sigmoid(w · h) is a scalar. The
    logits are those of z. Neighbours have the nearest features under a frozen network, the retriever, which is trained
    before the model or was trained by another run, so that they do not change. An example is never its own neighbour,
    and a token has no neighbours among later tokens of its own document. O(T D) time for each target with T keys of D
    features.

    Deviations from the paper: by default the retriever is a shallower network of the same kind, trained for a few
    steps; the datastore is a random sample of the training split; the short memory is that of the backbone, if it has
    one; the output layer has its own weights, where the paper's are those of the input embeddings (as with
    ``backbone.embedding.tied``, which this system does not support); if examples have one target, the same formula
    applies to pooled features and labels.

    Args:
        retriever: Key of the record whose weights are those of the retriever, the path of the record's file between
            ``runs/`` and ``.json``. The run must have been one of ``retriever_depth`` layers with the other options of
            the backbone. None to train the retriever.
        retriever_depth: Number of layers of the retriever.
        retriever_steps: Number of its training steps, each with at most 32 examples (``features.chosen_examples``).
        retriever_lr: Its learning rate, which falls linearly to zero.
        **common: Arguments of ``Retrieval``.
    """

    source = Capability(family="memory", paper="Adaptive Semiparametric Language Models", arxiv="2102.02557")

    def __init__(
        self,
        *,
        neighbours: int = 4,
        retriever: str | None = None,
        retriever_depth: int = 1,
        retriever_steps: int = 500,
        retriever_lr: float = 2e-3,
        **common: Any,
    ) -> None:
        super().__init__(neighbours=neighbours, **common)
        if retriever_steps < 1:
            raise UserError(f"model.retrieval.retriever_steps={retriever_steps}: must be at least 1")
        if retriever_lr <= 0:
            raise UserError(f"model.retrieval.retriever_lr={retriever_lr}: must be above 0")
        self.retriever_steps, self.retriever_lr, self.record = retriever_steps, retriever_lr, retriever
        # Created after the backbone, so that its initial weights are those of the same model without neighbours.
        self.retriever: SequenceModel = self.another(depth=retriever_depth).requires_grad_(False)
        self.output = _output_layer(self.network)
        self.gate = nn.Linear(self.output.in_features, 1, bias=False)
        nn.init.zeros_(self.gate.weight)
        self.places: Tensor | None = None
        """Example or document, and position in it, of each key (T, 2); None if training examples are unknown."""

    @property
    def readers(self) -> list[SequenceModel]:
        """The backbone and the retriever."""
        return [self.network, self.retriever]

    @property
    def preparation_steps(self) -> int:
        """Number of steps of ``prepare``."""
        return self.retriever_steps if self.record is None else 0

    def train(self, mode: bool = True) -> Spalm:
        """Set the mode of the model; the retriever remains in evaluation mode."""
        super().train(mode)
        self.retriever.eval()
        return self

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the output of the backbone, with logits of z once there is a datastore."""
        if self.datastore is None:
            output: Output = self.network(batch, memory)
            return output
        targets, found = self.find(batch)
        states: list[Tensor] = []
        handle = self.output.register_forward_pre_hook(lambda module, arguments: states.append(arguments[0]))
        try:
            output = self.network(batch, memory)
        finally:
            handle.remove()
        return output._replace(logits=self.logits(states[0], targets, found))

    def logits(self, h: Tensor, targets: Tensor, found: Tensor) -> Tensor:
        """Return the logits of z.

        Args:
            h: Inputs of the output layer, (B, F) or (B, N, F).
            targets: Targets of the neighbours, (B, k) or (B, N, k).
            found: Which of the neighbours exist, bool, of the same shape. Without any, z is h.
        """
        y = self.output.weight.to(h.dtype)[targets]
        scores = (y @ h[..., None])[..., 0].masked_fill(~found, torch.finfo(h.dtype).min)
        m = (scores.softmax(-1)[..., None, :] @ y)[..., 0, :]
        gate = torch.where(found.any(-1, keepdim=True), self.gate(h).sigmoid(), 1)
        return self.output((1 - gate) * m + gate * h)

    @torch.no_grad()
    def find(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return targets of the neighbours of a batch, and which exist: (B, k), or (B, N, k) if tokens have targets.

        In training mode, ``extra`` of the batch names the examples, which have no neighbours among themselves.
        """
        assert self.datastore is not None
        _, features = described(self.retriever, batch)
        rows = features.flatten(0, -2) if features.dim() == 3 else features
        hidden = None
        if self.training and self.places is not None and "row" in batch.extra:
            own = batch.extra["row"], batch.extra["start"]
            steps = torch.arange(features.shape[1] if features.dim() == 3 else 1, device=features.device)
            examples = own[0][:, None].expand(-1, len(steps)).flatten()
            # Outside language modelling, all targets of an example are hidden from each other.
            from_start = (own[1][:, None] + steps).flatten()
            positions = from_start if self.spec.kind == "language_modeling" else torch.zeros_like(from_start)
            hidden = _later_in_the_same(examples, positions, self.places)
        distances, targets = self.datastore.search(rows, self.neighbours, hidden)
        shape = (*features.shape[:-1], self.neighbours)
        return targets.view(shape), distances.isfinite().view(shape)

    def prepare(self, train: Split, fresh: bool, advance: Callable[[int], None]) -> None:
        """Train or load the retriever if training begins (``fresh``), and store the features of training examples."""
        if any(hasattr(parameter, "device_mesh") for parameter in self.retriever.parameters()):
            raise UserError("hardware.strategy=fsdp: Spalm trains a first network on every rank; set it to ddp or none")
        if fresh and self.record is not None:
            assert self.restore is not None
            self.restore(self.retriever, self.record, "model.retrieval.retriever")
        elif fresh:
            self._train_retriever(train, advance)
        self._fill(train)

    @torch.no_grad()
    def finish(self, train: Split, validation: Split) -> None:
        """Store the features of training examples, unless ``prepare`` has."""
        if self.datastore is None:
            self._fill(train)

    def finish_for_benchmark(self) -> None:
        """Fill the datastore with random numbers, so that the step benchmark includes the search."""
        self.datastore, self.places = self.random_datastore(None), None

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters; ``body`` includes the gate and the retriever."""
        own = sum(parameter.numel() for part in (self.gate, self.retriever) for parameter in part.parameters())
        counts = self.network.parameter_parts()
        return {**counts, **{name: counts[name] + own for name in ("total", "body", "body_active")}}

    def _train_retriever(self, train: Split, advance: Callable[[int], None]) -> None:
        """Train the retriever on random training examples; the result depends on the seed and the data only."""
        retriever, device = self.retriever, next(self.retriever.parameters()).device
        torch.manual_seed(self.seed)
        retriever.requires_grad_(True).train()
        optimizer = torch.optim.AdamW(retriever.parameters(), lr=self.retriever_lr, weight_decay=0.0)
        step = 0
        for epoch in count():
            for batch in chosen_examples(train, self.spec, None, self.seed + epoch, ordered=False):
                batch = batch.to(device)
                for group in optimizer.param_groups:
                    group["lr"] = self.retriever_lr * (1 - step / self.retriever_steps)
                logits = retriever(batch).logits
                loss = F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten(), ignore_index=NOT_SCORED)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(retriever.parameters(), 1.0)
                optimizer.step()
                step += 1
                advance(1)
                if step == self.retriever_steps:
                    optimizer.zero_grad(set_to_none=True)
                    retriever.requires_grad_(False).eval()
                    return

    def _fill(self, train: Split) -> None:
        found = described_examples(self.retriever, train, self.spec, self.keys, self.seed)
        self.datastore, self.places = Datastore(Index(found.features, self.backend), found.targets, None), found.places


def _output_layer(network: SequenceModel) -> nn.Linear:
    """Return the linear layer that computes the logits. Raises ``UserError`` if the output head has none."""
    layers = [module for module in network.head.modules() if isinstance(module, nn.Linear)]
    if not layers or layers[-1].out_features != network.spec.classes:
        raise UserError(
            "model.retrieval: SPALM needs an output layer with a weight for each class; leave out "
            "backbone.embedding.tied and backbone.output.kind"
        )
    return layers[-1]


def _later_in_the_same(examples: Tensor, positions: Tensor, places: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return which keys are not before a query in its own example, for ``Index.search``.

    Args:
        examples: Example of each query, (Q,).
        positions: Position of each query in its example, (Q,).
        places: Example and position of each key, (T, 2), in increasing order.
    """
    # In this order the keys are one range for each query.
    stride = int(places[:, 1].max()) + 1
    keys = places[:, 0] * stride + places[:, 1]
    begin = torch.searchsorted(keys, examples * stride + positions.clamp(max=stride)).int()
    end = torch.searchsorted(keys, (examples + 1) * stride).int()
    return lambda queries, numbers: (numbers >= begin[queries]) & (numbers < end[queries])

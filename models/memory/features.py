"""Features by which a trained network compares training examples, and the choice of these examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, Output, TaskSpec

from ..backbone import SequenceModel
from ..block import Block
from ..draws import generator_of

EXAMPLES_AT_ONCE = 32
TOKENS_AT_ONCE = 65_536


class Split(Protocol):
    """The examples of a split, as ``lra_bench.data.batches.Rows``."""

    @property
    def lengths(self) -> Any:
        """Number of tokens of each example, (R,) or (R, 2)."""

    @property
    def row_lengths(self) -> Any:
        """Number of tokens of the longest document of each example, (R,)."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Any:
        """Return the tokens of an example, (N,)."""

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return examples as a padded batch."""


def described(network: SequenceModel, batch: Batch, memory: Any = None) -> tuple[Output, Tensor]:
    """Return the output of a network and the features of each target, (B, D), or (B, N, D) if tokens have targets.

    The features of a token are the input of the last feed-forward network, after its norm (Khandelwal et al. 2020,
    arXiv 1911.00172), or of the output head if there is none or if it
    decodes one state. Those of a sequence are its pooled vector, and those of a
    pair of documents both vectors, 2 E numbers.
    """
    last = network.blocks[-1]
    feed_forward = last.feed_forward if isinstance(last, Block) else None
    of_tokens = network.spec.per_token and not network.spec.decodes_state
    tapped = feed_forward if feed_forward is not None and of_tokens else network.head
    inputs: list[Tensor] = []
    handle = tapped.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0].detach()))
    try:
        output: Output = network(batch, memory)
    finally:
        handle.remove()
    features = torch.cat(inputs, 1) if network.spec.per_token else inputs[0]
    if network.spec.per_token:
        features = features[:, features.shape[1] - batch.width :]
    elif network.spec.kind == "matching":
        features = features.unflatten(0, (-1, 2)).flatten(1)
    return output, features.float() if features.dtype.itemsize < 4 else features


def chosen_examples(
    rows: Split, spec: TaskSpec, targets: int | None, seed: int, ordered: bool = True
) -> Iterator[Batch]:
    """Yield batches of examples, chosen at random, with about ``targets`` targets in total; None means all.

    In language modelling examples are windows of the training length that do not overlap, otherwise rows. The choice
    depends on the seed; the examples are in the order of the split, or in random order if not ``ordered``. A batch has
    at most ``EXAMPLES_AT_ONCE`` examples, or as many of the longest one in the split as have ``TOKENS_AT_ONCE`` tokens
    (of a pair, one document counts), but at least one.
    """
    if spec.kind == "language_modeling":
        places = [
            (document, start)
            for document, length in enumerate(rows.lengths.tolist())
            for start in range(0, length - 1, spec.train_length)
        ]
        total, each, longest = len(places), spec.train_length, spec.train_length
    else:
        places, total, longest = None, len(rows), int(rows.row_lengths.max())
        each = max(1, int(rows.row_lengths.mean())) if spec.per_token else 1
    wanted = total if targets is None else min(total, math.ceil(targets / each))
    chosen = torch.randperm(total, generator=generator_of("retrieval", seed, 0))[:wanted]
    numbers = (chosen.sort().values if ordered else chosen).tolist()
    at_once = max(1, min(EXAMPLES_AT_ONCE, TOKENS_AT_ONCE // longest))
    for start in range(0, wanted, at_once):
        part = numbers[start : start + at_once]
        yield rows.batch(part) if places is None else _windows(rows, [places[number] for number in part], spec)


def _windows(rows: Split, places: list[tuple[int, int]], spec: TaskSpec) -> Batch:
    """Return windows of the training length that begin at (document, position)."""
    texts = [rows.row(document)[start : start + spec.train_length + 1] for document, start in places]
    lengths = torch.tensor([len(text) - 1 for text in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()), dtype=torch.int64)
    targets = torch.full_like(tokens, NOT_SCORED)
    for row, text in enumerate(texts):
        values = torch.as_tensor(text.astype("int64"))
        tokens[row, : len(text) - 1], targets[row, : len(text) - 1] = values[:-1], values[1:]
    documents, starts = torch.tensor(places).unbind(1)
    return Batch(lengths, targets, tokens=tokens, extra={"row": documents, "start": starts})


class Described(NamedTuple):
    """Features (T, D), logits (T, classes), targets (T,) and places (T, 2) of T examples or tokens.

    A place is the index of the example or document in its split, and the position in it, 0 if examples have one target.
    """

    features: Tensor
    logits: Tensor
    targets: Tensor
    places: Tensor


@torch.no_grad()
def described_examples(network: SequenceModel, rows: Split, spec: TaskSpec, targets: int, seed: int) -> Described:
    """Describe examples of a split with at most ``targets`` targets; the network is in evaluation mode meanwhile."""
    was_training, device = network.training, next(network.parameters()).device
    network.eval()
    parts: list[list[Tensor]] = [[], [], [], []]
    for batch in chosen_examples(rows, spec, targets, seed):
        batch = batch.to(device)
        output, features = described(network, batch)
        scored = batch.targets != NOT_SCORED
        examples = scored.nonzero()
        row, start = (batch.extra[name][examples[:, 0]] for name in ("row", "start"))
        position = start + examples[:, 1] if spec.per_token else start
        found = features[scored], output.logits[scored], batch.targets[scored], torch.stack((row, position), 1)
        for part, each in zip(parts, found, strict=True):
            part.append(each)
    network.train(was_training)
    return Described(*(torch.cat(part)[:targets] for part in parts))

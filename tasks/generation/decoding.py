"""Greedy decoding: a model generates the answers of examples, symbol by symbol."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lra_bench.contracts import NOT_SCORED, Batch
from lra_bench.progress import bar

from .tokens import BLANK, FIRST, SEPARATOR


def generated(model: nn.Module, tokens: NDArray[Any], targets: NDArray[Any], batch_size: int) -> NDArray[Any]:
    """Return the classes (R, N) that the model generates in place of the scored targets of examples.

    The model reads rows in which the answer is replaced by the symbols that it has generated, followed by blanks. It
    must be causal.

    Args:
        model: The model, in evaluation mode.
        tokens: Examples (R, N): source, separator, answer, blanks.
        targets: Targets (R, N), of which only the positions of the scored ones are used.
        batch_size: Number of examples that are read side by side.

    Returns:
        The classes; −1 at targets that are not scored.
    """
    device, found = next(model.parameters()).device, []
    with bar(len(tokens), "Generating", unit="answers") as advance, torch.inference_mode():
        for start in range(0, len(tokens), batch_size):
            rows = slice(start, start + batch_size)
            found.append(_generated(model, tokens[rows], targets[rows] != NOT_SCORED, device))
            advance(len(found[-1]))
    return np.concatenate(found)


def _generated(model: nn.Module, tokens: NDArray[Any], scored: NDArray[np.bool_], device: torch.device) -> NDArray[Any]:
    count, width = tokens.shape
    ends = (tokens == SEPARATOR).argmax(axis=1)
    known = torch.from_numpy(np.where(np.arange(width) <= ends[:, None], tokens, BLANK)).long()
    batch = Batch(torch.full((count,), width), torch.full_like(known, NOT_SCORED), known).to(device)
    assert batch.tokens is not None
    written, classes = batch.tokens, torch.full_like(batch.tokens, -1)
    place = torch.from_numpy(ends).to(device)[:, None]
    for _ in range(int(scored.sum(axis=1).max())):
        logits = model(batch).logits
        at = place.clamp(max=width - 1)
        best = logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1])).argmax(-1)
        classes.scatter_(1, at, torch.where(place < width, best, classes.gather(1, at)))
        # The last class is the end, which has no token.
        token, after = torch.where(best < logits.shape[-1] - 1, FIRST + best, BLANK), (place + 1).clamp(max=width - 1)
        written.scatter_(1, after, torch.where(place + 1 < width, token, written.gather(1, after)))
        place = place + 1
    return np.where(scored, classes.cpu().numpy(), -1)

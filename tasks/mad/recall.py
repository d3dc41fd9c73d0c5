"""In-context recall, without and with noise, as in MAD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import UserError

from ..options import at_least
from ..synthetic.base import Common
from .next_token import NextTokenRecall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.rows import Block


class MadRecall(NextTokenRecall):
    """In-context recall of MAD: predict the value of each key that was shown before in the sequence.

    An example with ``symbols=8``, ``length=12`` (a to d are keys, W to Z values)::

        input    b Y a W b Y d Y a W b Y
        target   - - - - Y - - - W - Y -

    Pairs of a random key and its value fill the sequence. The value of a key is random, and the same each time that the
    key is shown. The last key is one of the shown ones, each with the same probability. Tests score the value of a key
    that was shown before, at the key. In training the target is the next token at every place. Half of the symbols are
    keys and half values; classes are all symbols, and token ids are symbols plus 1.

    ``noise`` is the probability that a pair is replaced by two of ``noise_symbols`` random symbols, which are among the
    ``symbols``; one random pair never is. The task is then named ``mad_noisy``. Longer sequences have more pairs.

    Floors (baselines without a model): ``majority``; ``value_shown``, a random one of the values shown so far, and
    ``commonest_value``, the most frequent of them.

    Source: Poli et al. 2024 (MAD), arXiv 2403.17844, and athms/mad-lab@0f49a45:mad/data/instances.py, with several
    queries. The defaults are its baseline; it varies symbols (32, 64, 128), length (256, 512, 1,024) and training rows
    (6,400 to 800), with noise also its probability (0.4, 0.6, 0.8). Deviates: the sequence contains the last value,
    which no target follows; an example whose pairs are all noise is drawn again; no example occurs twice. The code
    averages the accuracies of the classes, here all targets have the same weight.
    """

    def __init__(
        self,
        *,
        length: int = 128,
        symbols: int = 16,
        noise: float = 0.0,
        noise_symbols: int = 0,
        **common: Unpack[Common],
    ) -> None:
        at_least(0, noise=noise, noise_symbols=noise_symbols)
        if noise >= 1:
            raise UserError(f"task.noise={noise}: must be below 1")
        if noise > 0 and noise_symbols == 0:
            raise UserError(f"task.noise={noise}: needs noise symbols; set task.noise_symbols to 1 or more")
        self.symbols, self.noise, self.noise_symbols = symbols, noise, noise_symbols
        self.declare("mad_noisy" if noise_symbols else "mad_recall", length, symbols, noise_symbols, 1)
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``symbols``, ``noise`` and ``noise_symbols``."""
        return {"symbols": self.symbols, "noise": self.noise, "noise_symbols": self.noise_symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if ``length`` is odd or below 4, otherwise None."""
        return None if length >= 4 and length % 2 == 0 else "an example needs an even number of tokens, at least 4"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_recalls

        block = unfilled(self.spec, count, length)
        sizes = self.keys, self.values, self.noise_symbols
        draw_recalls(np.uint64(key), first, *sizes, float(self.noise), block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        In a valid example each pair is a key and its value or two noise symbols, and the last key was shown before.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        pairs = (block.tokens.astype(np.int64) - 1).reshape(len(block.tokens), -1, 2)
        targets, valid = np.full(block.tokens.shape, NOT_SCORED), np.ones(len(pairs), dtype=bool)
        value_of, rows = np.full((len(pairs), self.keys), NOT_SCORED), np.arange(len(pairs))
        is_pair = (pairs[..., 0] >= 0) & (pairs[..., 0] < self.keys)
        is_pair &= (pairs[..., 1] >= self.keys) & (pairs[..., 1] < self.keys + self.values)
        for place in range(pairs.shape[1]):
            key, value = np.clip(pairs[:, place, 0], 0, self.keys - 1), pairs[:, place, 1]
            known, own = value_of[rows, key], is_pair[:, place]
            noise = (pairs[:, place] >= self.keys + self.values).all(axis=1)
            targets[:, 2 * place] = np.where(own, known, NOT_SCORED)
            valid &= noise | (own & ((known == NOT_SCORED) | (known == value)))
            value_of[rows[own], key[own]] = value[own]
        return Block(block.tokens, targets), valid & (targets[:, -2] != NOT_SCORED)

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the ``distance`` of each target from the first value of its key, (T,)."""
        from ..synthetic.sources import distance_after_first

        return {"distance": distance_after_first(block)}

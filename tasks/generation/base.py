"""Base class of tasks whose answer is a sequence that the model generates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import TaskScore, TaskSpec
from lra_bench.data.digest import settings_digest

from ..options import at_least
from ..synthetic.base import Common, SelfScoredTask
from .tokens import BLANK, FIRST, SEPARATOR

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ..synthetic.rows import Block


class GenerationTask(SelfScoredTask):
    """Base class of tasks with a source sequence, a separator and an answer sequence in each example.

    An example with a source of three symbols and an answer of three, in eleven tokens (· is the blank, ! the end)::

        input    B A C | C A B · · · ·
        target   - - - C A B ! - - - -

    The target at the separator and at each symbol of the answer is the next symbol of the answer, or the end, so that
    the true answer is read in training (teacher forcing); all other positions (``-``) are not scored. Blanks fill the
    row. The source has at least half as many symbols as the longest one that fits into ``length`` tokens, so that the
    sources of twice the training length are longer than those of training.

    The score is the share of test examples whose answer and end are all correct when the model generates them: at each
    step it reads the source and the symbols that it has generated, and the class with the largest logit is the next
    one (greedy decoding). The score is computed from the first ``decoded`` examples, at other lengths too. The loss,
    and the accuracy on validation examples, are those with teacher forcing.

    Floors of the test split are shares of answers that are entirely correct: ``majority``, always the most frequent
    class, and those of the task. Floors of the other splits are accuracies of symbols.

    Args:
        name: Name of the task.
        length: Number of tokens of an example.
        symbols: Number of symbols that an answer consists of.
        others: Number of further symbols, which only occur in sources.
        decoded: Number of test examples for which an answer is generated.
        common: Options of ``SyntheticTask``.
    """

    def __init__(
        self, name: str, *, length: int, symbols: int, others: int = 0, decoded: int, **common: Unpack[Common]
    ) -> None:
        at_least(2, symbols=symbols)
        at_least(1, decoded=decoded)
        self.symbols, self.decoded = symbols, decoded
        self.spec = TaskSpec(
            name=name,
            version="1",
            kind="generation",
            direction="causal",
            vocabulary_size=FIRST + symbols + others,
            classes=symbols + 1,
            train_length=length,
            separator=SEPARATOR,
        )
        super().__init__(**common)

    @abstractmethod
    def longest(self, length: int) -> int:
        """Return the largest size of a source (its number of symbols or digits) in examples of ``length`` tokens."""

    @abstractmethod
    def sources(self, drawn: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return sources (R, S) as symbols from 0 on, and their numbers of symbols (R,).

        ``drawn`` (R, 2 M) are random symbols, ``sizes`` (R,) the sizes of the sources, of which M is the largest.
        """

    @abstractmethod
    def answers(self, sources: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the answers (R, A) to sources as in ``sources``, their lengths (R,), and which sources are valid (R,).

        Numbers after the end of a source or an answer have no meaning.
        """

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if not even a source of size 2 fits into ``length`` tokens, otherwise None."""
        return None if self.longest(length) >= 2 else f"{length:,} tokens are too few for a source and its answer"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.drawing import draw_numbers

        longest = self.longest(length)
        shortest = (longest + 1) // 2
        drawn = np.empty((count, 1 + 2 * longest), dtype=np.int64)
        draw_numbers(np.uint64(key), first, longest - shortest + 1, self.symbols, drawn)
        return self._laid_out(*self.sources(drawn[:, 1:], shortest + drawn[:, 0]), length)[0]

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example consists of a valid source, one separator, the answer to the source, and blanks.
        """
        import numpy as np

        lengths = (block.tokens == SEPARATOR).argmax(axis=1)
        sources = np.where(
            np.arange(block.tokens.shape[1]) < lengths[:, None], block.tokens.astype(np.int64) - FIRST, 0
        )
        expected, valid = self._laid_out(sources, lengths, block.tokens.shape[1])
        return expected, valid & (expected.tokens == block.tokens).all(axis=1)

    def _laid_out(self, sources: NDArray[Any], lengths: NDArray[Any], length: int) -> tuple[Block, NDArray[Any]]:
        """Return the examples with these sources and their answers, and whether each of them is valid."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import unfilled

        answers, sizes, valid = self.answers(sources, lengths)
        block = unfilled(self.spec, len(sources), length)
        block.tokens[:], block.targets[:] = BLANK, NOT_SCORED
        rows, places = np.arange(len(sources)), np.arange(length)
        valid = valid & (lengths + sizes < length)
        sizes = np.minimum(sizes, length - 1 - lengths)
        after = places - lengths[:, None]  # number of positions after the separator
        block.tokens[after < 0] = FIRST + sources[np.arange(sources.shape[1]) < lengths[:, None]]
        block.tokens[rows, lengths] = SEPARATOR
        shown = answers[np.arange(answers.shape[1]) < sizes[:, None]]
        block.tokens[(after > 0) & (after <= sizes[:, None])] = FIRST + shown
        block.targets[(after >= 0) & (after < sizes[:, None])] = shown
        block.targets[rows, lengths + sizes] = self.symbols
        return block, valid

    def fingerprint(self) -> str:
        """Return a digest of the settings of the data and of the number of generated answers."""
        return settings_digest(super().fingerprint(), self.decoded)

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the floors: shares of correct answers for the test split, accuracies of symbols for the others."""
        from ..synthetic.floors import SCORED

        if split != "test":
            return super().floors(split, length)
        rows = self._floor_columns(split, length)
        return {name: float((correct == rows[SCORED]).mean()) for name, correct in rows.items() if name != SCORED}

    def score(
        self,
        model: torch.nn.Module,
        *,
        length: int | None = None,
        variant: str | None = None,
        seed: int = 0,
        batch_size: int = 32,
    ) -> TaskScore:
        """Return the share of test examples for which the model generates the correct answer.

        Args:
            model: The trained model, in evaluation mode.
            length: Number of tokens of an example; None for the training length.
            variant: Not used.
            seed: Not used: nothing is drawn.
            batch_size: Number of answers that are generated side by side.

        Returns:
            The share, with the part ``generated``, the accuracies of entire answers and of their symbols; at the
            training length also with ``length``, the shares of correct answers by their numbers of symbols.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED
        from lra_bench.data.slicing import in_bins

        from ..synthetic.rows import blocks
        from .decoding import generated

        rows = self.split("test", length)
        parts = list(blocks(rows.select(range(min(self.decoded, len(rows))))))
        tokens, targets = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "targets"))
        scored = targets != NOT_SCORED
        correct = generated(model, tokens, targets, batch_size) == targets
        exact = (correct | ~scored).all(axis=1)
        score = float(exact.mean())
        accuracies = {"answers": score, "symbols": float(correct[scored].mean())}
        if length is not None:
            return TaskScore(score, len(exact), {"generated": accuracies})
        sizes = in_bins(scored.sum(axis=1) - 1)
        members = {label: sizes.label_of == number for number, label in enumerate(sizes.labels)}
        members = {label: mask for label, mask in members.items() if mask.any()}
        return TaskScore(
            score,
            len(exact),
            parts={
                "generated": accuracies,
                "length": {label: float(exact[mask].mean()) for label, mask in members.items()},
            },
            trials={
                "generated": {"answers": len(exact), "symbols": int(scored.sum())},
                "length": {label: int(mask.sum()) for label, mask in members.items()},
            },
        )

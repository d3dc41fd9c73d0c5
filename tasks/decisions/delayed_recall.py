"""Delayed recall: the observations of an episode of key to door, and the colour of its key as class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import TaskSpec, UserError

from ..synthetic.base import Common, SyntheticTask
from .rooms import DIRECTIONS, check_rooms, observation_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block
    from .environment import KeyToDoor

FIRST = 1
"""Token of the first observation; 0 is the padding."""


class DelayedRecallTask(SyntheticTask):
    """Predict the colour of the key from the observations of an agent that acts randomly.

    The supervised counterpart of ``key_to_door_memory`` (``task.KeyToDoorTask``): the same rooms and observations, but
    one token per step, no actions and no roll-outs. The first observation, and those until the key is taken, show the
    key. At another length the middle phase is longer.

    Floors (baselines without a model): ``majority``.

    Args:
        size: Cells per side of a room.
        phases: Number of steps in each room.
        colours: Number of colours of the key, which are the classes, 2 to 4.
    """

    citation = "after Hung et al. 2019, Optimizing Agent Behavior over Long Time Scales, arXiv 1810.06721"

    def __init__(
        self, *, size: int = 5, phases: Sequence[int] = (10, 100, 10), colours: int = 4, **common: Unpack[Common]
    ) -> None:
        check_rooms("memory", size, phases, colours)
        self.size, self.phases, self.colours = size, tuple(phases), colours
        self.spec = TaskSpec(
            name="delayed_recall",
            version="1",
            kind="classification",
            direction="either",
            vocabulary_size=FIRST + observation_count("memory", size, colours),
            classes=colours,
            train_length=sum(phases),
            chance=1 / colours,
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``size``, ``phases`` and ``colours``."""
        return {"size": self.size, "phases": list(self.phases), "colours": self.colours}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None."""
        needed = self.phases[0] + 1 + self.phases[2]
        return None if length >= needed else f"an episode with all three phases needs at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N), targets (R,) and the column ``episode`` of episodes of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import Block
        from .policies import play, random_policy

        episodes = np.arange(first, first + count, dtype=np.uint64)
        env = self._env(count, length)
        tokens = FIRST + play(env, random_policy, key, episodes).observations
        small = np.min_scalar_type(self.spec.vocabulary_size - 1)  # type: ignore[operator]
        return Block(tokens.astype(small), env.colour.astype(np.int8), {"episode": episodes.astype(np.int64)})

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the colours of the keys that the first tokens show, and whether each example is valid, (R,).

        A valid example begins with a key, and no later token shows a key of another colour.
        """
        import numpy as np

        from ..synthetic.rows import Block

        seen = (block.tokens.astype(np.int64) - FIRST - 1) // DIRECTIONS - 1
        keys = (seen >= 0) & (seen < self.colours)
        colours = seen[:, 0]
        valid = keys[:, 0] & (~keys | (seen == colours[:, None])).all(1)
        return Block(block.tokens, colours), valid

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return nothing: without the first phase the colour can only be guessed."""
        return {}

    def slices(self, split: str) -> Mapping[str, Any]:
        """Return nothing: all examples have the same phases."""
        return {}

    def _env(self, episodes: int, length: int) -> KeyToDoor:
        from .environment import KeyToDoor

        middle = length - self.phases[0] - self.phases[2]
        phases = (self.phases[0], middle, self.phases[2])
        if middle < 1:
            raise UserError(f"task.phases: {length:,} tokens leave no step for the middle phase")
        return KeyToDoor(episodes, variant="memory", size=self.size, phases=phases, colours=self.colours)

"""Key to door as offline reinforcement learning: predict the actions of trajectories, scored by roll-outs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import TaskScore, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import at_least
from ..synthetic.base import Common, SelfScoredTask
from .rooms import ACTIONS, FIRST_OBSERVATION, PER_STEP, check_rooms, observation_count

if TYPE_CHECKING:
    import datasets
    import torch
    from numpy.typing import NDArray

    from lra_bench.contracts import DataCache

    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block
    from .environment import KeyToDoor
    from .policies import Policy

BEST = 0.05
"""Share of the trajectories with the highest returns from which the floor ``best_5_percent`` is computed."""


class KeyToDoorTask(SelfScoredTask):
    """Sequences of decisions: take a key, cross a room, open a door (``environment.KeyToDoor``).

    An example is an episode of a policy as the tokens return-to-go, observation and action of each step; two steps::

        input    R o a  R o a
        target   - a -  - a -

    The target at an observation is the action that follows; all other positions (``-``) are not scored. This is the
    Decision Transformer (Chen et al. 2021, arXiv 2106.01345) around any causal system: the tokens are part of the task
    and the network is that of ``model``. Token ids: 0 padding, 1 unknown return, 2 and 3 returns 0 and 1, then the
    actions and observations. Deviations from the paper: all tokens are embedded by one table without a norm, and the
    position encoding is that of the network, with a position per token instead of one per step.

    The score is the success rate in roll-outs that ask for a return of 1 (``score``), at other lengths too: the middle
    phase is as many steps longer as the sequence. Validation and test examples are the held-out episodes with a reward,
    and only the actions in the first and the third room are scored: the loss of all actions would be that of mostly
    random ones, and the weights with the lowest such loss need not depend on the return at all. The weights with the
    highest validation accuracy are tested, because the loss of random actions rises while success rates improve.

    Floors of the test split, all success rates in the episodes of the roll-outs: ``random``; ``majority``, always the
    most frequent action; ``cloning``, the most frequent action at each observation; in the variant ``memory`` also
    ``best_5_percent``, the same, computed from the 5 % of the episodes of train with the highest returns. In ``credit``
    that policy solves the task, so it is no floor. Floors of the other splits: accuracy of the
    actions of ``majority`` and ``cloning``.

    Args:
        variant: ``credit``: one door, which opens only with the key; an agent must find out from the returns that the
            key matters. ``memory``: a door of each colour; an agent must remember the colour of the key.
        size: Cells per side of a room.
        phases: Number of steps in each room.
        colours: Number of colours of the key.
        expert_fraction: Share of the episodes of an expert; the others take uniformly random actions.
        noise: Probability that the expert takes a random action.
        returns: Whether returns are known; otherwise all return tokens are equal, which is behaviour cloning.
        best: Share of the episodes of train, those with the highest returns, that is used; None for all.
            Floors use all episodes. With ``returns=false`` this is the baseline of the paper that clones the best x %.
        context: Number of steps that the network sees, K in the paper; None for whole episodes. Examples are then K
            steps from a random step on, and roll-outs read the last K steps; other lengths are not supported.
        greedy: Whether roll-outs take the most probable action, or one sampled from the predicted probabilities.
        rollouts: Number of episodes of the roll-outs for each asked return and length.
    """

    citation = (
        "after Mesnard et al. 2021, Counterfactual Credit Assignment in Model-Free Reinforcement Learning, "
        "arXiv 2011.09464; Chen et al. 2021, Decision Transformer, arXiv 2106.01345"
    )

    def __init__(
        self,
        *,
        variant: str = "credit",
        size: int = 5,
        phases: Sequence[int] = (10, 30, 10),
        colours: int = 1,
        expert_fraction: float = 0.0,
        noise: float = 0.2,
        returns: bool = True,
        best: float | None = None,
        context: int | None = None,
        greedy: bool = True,
        rollouts: int = 1000,
        **common: Unpack[Common],
    ) -> None:
        check_rooms(variant, size, phases, colours)
        for name, share in {"expert_fraction": expert_fraction, "noise": noise}.items():
            if not 0 <= share <= 1:
                raise UserError(f"task.{name}={share}: must be a share between 0 and 1")
        if best is not None and not 0 < best <= 1:
            raise UserError(f"task.best={best}: must be above 0 and at most 1, or null")
        at_least(1, rollouts=rollouts)
        if context is not None and not 1 <= context <= sum(phases):
            raise UserError(f"task.context={context}: must be 1 to {sum(phases)}, the number of steps of an episode")
        self.variant, self.size, self.phases, self.colours = variant, size, tuple(phases), colours
        self.expert_fraction, self.noise, self.returns, self.best = expert_fraction, noise, returns, best
        self.context, self.greedy, self.rollouts = context, greedy, rollouts
        self._best_rows: dict[int | None, datasets.Dataset] = {}
        self.observations = observation_count(variant, size, colours)
        self.spec = TaskSpec(
            name="key_to_door" if variant == "credit" else "key_to_door_memory",
            version="1",
            kind="tagging",
            direction="causal",
            vocabulary_size=FIRST_OBSERVATION + self.observations,
            classes=ACTIONS,
            train_length=PER_STEP * (context or sum(phases)),
            chance=None,
            select_by="metric",
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return the options that determine an example."""
        return {
            "size": self.size,
            "phases": list(self.phases),
            "colours": self.colours,
            "expert_fraction": self.expert_fraction,
            "noise": self.noise,
            "returns": self.returns,
            "context": self.context,
        }

    def fingerprint(self) -> str:
        """Return a digest of the settings of the data and the roll-outs."""
        return settings_digest(super().fingerprint(), self.best, self.greedy, self.rollouts)

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if ``length`` is not that of an episode with a middle phase, otherwise None."""
        if self.context is not None:
            same = length == self.spec.train_length
            return None if same else f"task.context={self.context}: examples have this number of steps in all episodes"
        if length % PER_STEP:
            return f"{length:,} tokens are no whole number of steps of {PER_STEP} tokens"
        needed = PER_STEP * (self.phases[0] + 1 + self.phases[2])
        return None if length >= needed else f"an episode with all three phases needs at least {needed:,} tokens"

    def middle_phase(self, length: int) -> int:
        """Return the number of steps of the middle phase in sequences of ``length`` tokens."""
        return self.phases[1] + (length - self.spec.train_length) // PER_STEP

    def env_options(self, length: int) -> dict[str, Any]:
        """Return the options of ``KeyToDoor`` for sequences of ``length`` tokens."""
        phases = (self.phases[0], self.middle_phase(length), self.phases[2])
        return {"variant": self.variant, "size": self.size, "phases": phases, "colours": self.colours}

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens and targets (R, N), scored at observations, and the columns ``episode`` and ``reward`` (R,).

        The episodes do not depend on ``key`` but on the options other than ``returns`` and ``context``, so that systems
        with and without returns are trained on the same episodes.
        """
        import numpy as np

        from .policies import mixture, play

        episodes = np.arange(first, first + count, dtype=np.uint64)
        env = self._env(count, length)
        trajectories = play(env, mixture(self.expert_fraction, self.noise), self._key(length), episodes)
        return self._block(episodes, *trajectories, length)

    def in_split(self, block: Block, split: str) -> Block:
        """Return the examples of a split: outside of train the actions in the second room are not scored."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        if split == "train" or self.context is not None:
            return block
        first, _, last = (PER_STEP * steps for steps in self.phases)
        targets = np.array(block.targets)
        targets[:, first : targets.shape[1] - last] = NOT_SCORED
        return Block(block.tokens, targets, block.extra)

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example has the observations and returns of its actions in its episode. With ``context`` only the range
        of the tokens and the order of the returns are checked.
        """
        import numpy as np

        from ..synthetic.rows import Block
        from .policies import play
        from .tokens import separate

        length = block.tokens.shape[1]
        steps = separate(block.tokens)
        known = (steps.actions >= 0) & (steps.actions < ACTIONS)
        known &= (steps.observations >= 0) & (steps.observations < self.observations)
        valid = np.asarray(known.all(1))
        if self.context is not None:
            valid &= (np.isin(steps.returns, (0, 1)) if self.returns else steps.returns == -1).all(1)
            valid &= (np.diff(steps.returns, axis=1) <= 0).all(1)
            return Block(block.tokens, self._targets(steps.actions)), valid
        episodes, actions = block.extra["episode"].astype(np.uint64), np.clip(steps.actions, 0, ACTIONS - 1)
        env = self._env(len(actions), length)
        again = play(env, lambda env, seen: actions[:, env.time], self._key(length), episodes)
        expected = self._block(episodes, *again, length)
        return Block(block.tokens, expected.targets, expected.extra), valid & (expected.tokens == block.tokens).all(1)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return nothing; the floors are success rates of policies, computed by ``floors``."""
        return {}

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the floors: success rates for the test split, accuracies of actions for the others."""
        from ..floor_rows import noted

        length = length or self.spec.train_length
        name = f"{self.spec.name}-floors-{split}-{length}"
        key = settings_digest(super().fingerprint(), self.rollouts, split, length)
        if split == "test":
            return noted(self._prepared(), name, key, lambda: self._success_floors(length))
        return noted(self._prepared(), name, key, lambda: self._action_floors(split, length))

    def score(
        self,
        model: torch.nn.Module,
        *,
        length: int | None = None,
        variant: str | None = None,
        seed: int = 0,
        batch_size: int = 32,
    ) -> TaskScore:
        """Return the success rate in roll-outs that ask for a return of 1.

        Args:
            model: The trained model, in evaluation mode.
            length: Number of tokens of an episode; None for the training length.
            variant: Not used.
            seed: Seed of the episodes and the sampled actions.
            batch_size: Number of episodes that run side by side.

        Returns:
            The success rate. At the training length with the parts ``actions``, the success rates with the most
            probable and with sampled actions, and if returns are known ``asked return``, those if 0 and 1 are asked
            for (calibration).
        """
        from .roll_out import successes

        key = self._roll_out_key(seed)
        options = self.env_options(length or self.spec.train_length)

        def rate(asked: int, greedy: bool) -> float:
            found = successes(
                *(model, options),
                asked=asked if self.returns else None,
                key=key,
                episodes=self.rollouts,
                batch_size=batch_size,
                context=self.context,
                greedy=greedy,
            )
            return float(found.mean())

        score = rate(1, self.greedy)
        if length is not None:
            return TaskScore(score, self.rollouts)
        greedy, sampled = (score if each is self.greedy else rate(1, each) for each in (True, False))
        parts = {"actions": {"most probable": greedy, "sampled": sampled}}
        if self.returns:
            parts["asked return"] = {"0": rate(0, self.greedy), "1": score}
        return TaskScore(score, self.rollouts, parts)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split; of train the share ``best``."""
        every = super().split(name, length)
        if name != "train" or self.best is None:
            return every
        if length not in self._best_rows:
            import numpy as np

            from lra_bench.data.columns import numbers

            order = np.argsort(-numbers(every, "reward"), kind="stable")
            self._best_rows[length] = every.select(np.sort(order[: max(1, round(self.best * len(order)))]))
        return self._best_rows[length]

    def _generate(self, cache: DataCache, name: str, length: int) -> datasets.Dataset:
        """Generate a split; of all but train keep the episodes with a reward."""
        import numpy as np

        from lra_bench.data.columns import numbers

        split = super()._generate(cache, name, length)
        if name == "train":
            return split
        rewards = numbers(split, "reward")
        if not rewards.any():
            option = f"rows.{name}" if length == self.spec.train_length else "extrapolation_rows"
            raise UserError(f"task.{option}={len(rewards):,}: none of the episodes has a reward; raise it")
        return split.select(np.flatnonzero(rewards))

    def _train_blocks(self) -> Iterator[Block]:
        """Yield all episodes of train, so that the floors do not depend on ``best``."""
        from ..synthetic.rows import blocks

        return blocks(super().split("train"), 1)

    def _success_floors(self, length: int) -> dict[str, float]:
        """Return the success rates of the floors at a length, in the episodes of the roll-outs."""
        import numpy as np

        from .policies import constant, most_frequent, play, random_policy
        from .tokens import separate

        parts = list(self._train_blocks())
        steps = separate(np.concatenate([block.tokens for block in parts]))
        totals = np.concatenate([block.extra["reward"] for block in parts])
        majority = int(np.bincount(steps.actions.ravel()).argmax())
        policies: dict[str, Policy] = {
            "random": random_policy,
            "majority": constant(majority),
            "cloning": most_frequent(steps.observations, steps.actions, self.observations),
        }
        if self.variant == "memory":
            best = np.argsort(-totals, kind="stable")[: max(1, round(BEST * len(totals)))]
            policies["best_5_percent"] = most_frequent(steps.observations[best], steps.actions[best], self.observations)
        episodes, key = np.arange(self.rollouts, dtype=np.uint64), self._roll_out_key(0)
        return {
            name: float(play(self._env(self.rollouts, length), policy, key, episodes).rewards.sum(1).mean())
            for name, policy in policies.items()
        }

    def _action_floors(self, split: str, length: int) -> dict[str, float]:
        """Return the accuracies of the floors on the actions of a split."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .policies import most_frequent
        from .tokens import separate

        train = separate(np.concatenate([block.tokens for block in self._train_blocks()]))
        parts = list(self.blocks(split, length))
        seen = separate(np.concatenate([block.tokens for block in parts])).observations
        targets = np.concatenate([block.targets for block in parts])[:, 1::PER_STEP]
        scored = targets != NOT_SCORED
        env = self._env(1, self.spec.train_length)
        cloning = most_frequent(train.observations, train.actions, self.observations)(env, seen)
        majority = np.bincount(train.actions.ravel()).argmax()
        return {
            "majority": float((targets[scored] == majority).mean()),
            "cloning": float((targets[scored] == cloning[scored]).mean()),
        }

    def _block(
        self,
        episodes: NDArray[Any],
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        length: int,
    ) -> Block:
        """Return trajectories (R, T) as examples of ``length`` tokens."""
        import numpy as np

        from ..synthetic.rows import Block
        from .environment import WINDOW_DRAW, draws
        from .policies import returns_to_go
        from .tokens import interleave

        returns = returns_to_go(rewards)
        if self.context is not None:
            starts = draws(self._key(self.spec.train_length), episodes, WINDOW_DRAW) * (
                observations.shape[1] - self.context + 1
            )
            steps = starts.astype(np.int64)[:, None] + np.arange(length // PER_STEP)
            returns, observations, actions = (
                np.take_along_axis(part, steps, axis=1) for part in (returns, observations, actions)
            )
        tokens = interleave(returns if self.returns else None, observations, actions)
        extra = {"episode": episodes.astype(np.int64), "reward": rewards.sum(1).astype(np.int64)}
        smallest = np.min_scalar_type(FIRST_OBSERVATION + self.observations - 1)
        return Block(tokens.astype(smallest), self._targets(actions), extra)

    def _targets(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the targets (R, 3 T) of actions (R, T): each is that of the observation before it."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        targets = np.full((*actions.shape, 3), NOT_SCORED, dtype=np.int8)
        targets[..., 1] = actions
        return targets.reshape(len(actions), -1)

    def _env(self, episodes: int, length: int) -> KeyToDoor:
        from .environment import KeyToDoor

        return KeyToDoor(episodes, **self.env_options(length))

    def _key(self, length: int) -> int:
        """Return the seed of the episodes of the data at a length."""
        options = {name: value for name, value in self.settings().items() if name not in ("returns", "context")}
        middle = self.phases[1] if self.context is not None else self.middle_phase(length)
        return int(settings_digest(self.spec.name, options, middle, self.seed), 16)

    def _roll_out_key(self, seed: int) -> int:
        """Return the seed of the episodes of roll-outs, which differs from those of the data."""
        return int(settings_digest("roll-outs", self.seed, seed), 16)

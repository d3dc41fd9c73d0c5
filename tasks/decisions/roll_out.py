"""Roll-outs of a trained network in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch
from lra_bench.progress import bar

from .environment import KeyToDoor
from .rooms import FIRST_ACTION, FIRST_OBSERVATION, FIRST_RETURN, PER_STEP, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACTION_SAMPLE = 0


class Agent:
    """A network that acts in several episodes at once.

    It reads the tokens of a step as far as the observation and returns the logits of the action. A network that can
    read a sequence in parts keeps its state between the steps; any other one, or one with a context, reads the visible
    steps again at each step.

    Args:
        model: The network, in evaluation mode.
        context: Number of steps that the network sees, the current one included; None for all.
    """

    def __init__(self, model: nn.Module, context: int | None) -> None:
        refuses = getattr(model, "refuses_steps", None)
        self.keeps_state = context is None and hasattr(model, "head") and refuses is not None and refuses() is None
        self.model, self.context = model, context
        self.memory: Any = None
        self.tokens: list[Tensor] = []
        self.device = next(model.parameters()).device

    def logits(self, new: NDArray[np.int64]) -> Tensor:
        """Return the logits of the next action, (B, A), after the new tokens (B, n)."""
        tokens = torch.from_numpy(new).to(self.device)
        if self.keeps_state:
            hidden, self.memory = self.model.read(_batch(tokens), self.memory)  # type: ignore[operator]
            return self.model.head(hidden[:, -1:])[:, -1]  # type: ignore[operator]
        self.tokens.append(tokens)
        read = torch.cat(self.tokens, 1)
        if self.context is not None:
            read = read[:, -(PER_STEP * self.context - 1) :]
        logits: Tensor = self.model(_batch(read)).logits[:, -1]
        return logits


def successes(
    model: nn.Module,
    env_options: dict[str, Any],
    *,
    asked: int | None,
    key: int,
    episodes: int,
    batch_size: int,
    context: int | None = None,
    greedy: bool = False,
) -> NDArray[np.bool_]:
    """Return whether a network reaches the reward in each of the episodes 0 to ``episodes`` − 1, (E,).

    Args:
        model: The network, in evaluation mode.
        env_options: Options of ``KeyToDoor``.
        asked: The return that the first return token asks for; after a reward the rest is asked for, at least 0. None
            for networks that read no returns.
        key: Seed of the episodes and of the sampled actions.
        episodes: Number of episodes.
        batch_size: Number of episodes that run side by side; it does not affect them.
        context: As in ``Agent``.
        greedy: Whether the most probable action is taken instead of one sampled from the probabilities.
    """
    found = []
    with bar(episodes, "Roll-outs", unit="episodes") as advance, torch.inference_mode():
        for first in range(0, episodes, batch_size):
            numbers = np.arange(first, min(first + batch_size, episodes), dtype=np.uint64)
            env = KeyToDoor(len(numbers), **env_options)
            rewards = sum(_rewards(env, Agent(model, context), asked, key, numbers, greedy))
            found.append(np.asarray(rewards) > 0)
            advance(len(numbers))
    return np.concatenate(found)


def _rewards(
    env: KeyToDoor, agent: Agent, asked: int | None, key: int, numbers: NDArray[np.uint64], greedy: bool
) -> Iterator[NDArray[np.float64]]:
    """Run a batch of episodes and yield the rewards of each step, (B,)."""
    observation, _ = env.reset(seed=key, options={"episodes": numbers})
    rest = np.full(env.num_envs, asked or 0, dtype=np.int64)
    action: NDArray[np.int64] | None = None
    for _ in range(env.steps):
        returns = np.full(env.num_envs, UNKNOWN) if asked is None else FIRST_RETURN + rest
        new = [returns, FIRST_OBSERVATION + observation]
        if action is not None:
            new.insert(0, FIRST_ACTION + action)
        logits = agent.logits(np.stack(new, axis=1)).double().cpu()
        action = logits.argmax(1).numpy() if greedy else sample(logits, env.policy_draws(ACTION_SAMPLE))
        observation, reward, _, _, _ = env.step(action)
        rest = np.maximum(rest - reward.astype(np.int64), 0)
        yield reward


def sample(logits: Tensor, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return classes sampled from softmax(logits), (B, A) to (B,), with uniform numbers ``draws`` (B,) in [0, 1)."""
    cumulative = torch.softmax(logits, 1).cumsum(1).numpy()
    classes: NDArray[np.int64] = (cumulative[:, :-1] <= draws[:, None]).sum(1)
    return classes


def _batch(tokens: Tensor) -> Batch:
    """Return a batch of sequences without padding or targets."""
    lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    return Batch(lengths, targets=torch.full_like(tokens, -100), tokens=tokens, full=True)

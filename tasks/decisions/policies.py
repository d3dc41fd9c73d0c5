"""Policies without a network, and roll-outs of policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .environment import EXPERT_DRAW, MOVES, KeyToDoor, draws
from .rooms import ACTIONS

Policy = Callable[[KeyToDoor, "NDArray[np.int64]"], "NDArray[np.int64]"]
"""Function that returns the actions (E,) for an environment and its observations (E,)."""


class Trajectories(NamedTuple):
    """Episodes: observations, actions and rewards, (E, T) each."""

    observations: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]


def play(env: KeyToDoor, policy: Policy, key: int, episodes: NDArray[np.uint64]) -> Trajectories:
    """Run the given episodes of the seed ``key`` with ``policy``."""
    observation, _ = env.reset(seed=key, options={"episodes": episodes})
    observations, actions, rewards = [], [], []
    for _ in range(env.steps):
        action = policy(env, observation)
        observations.append(observation)
        actions.append(action)
        observation, reward, _, _, _ = env.step(action)
        rewards.append(reward)
    return Trajectories(np.stack(observations, 1), np.stack(actions, 1), np.stack(rewards, 1))


def returns_to_go(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the rewards from each step on: R_t = r_t + R_{t+1}, (E, T)."""
    return np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]


def random_policy(env: KeyToDoor, observations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return uniformly random actions."""
    return (env.policy_draws(0) * ACTIONS).astype(np.int64)


def optimal_policy(env: KeyToDoor, observations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return actions that shorten the way to the key, or to the door that pays; random ones if there is no target.

    Uses the state of the environment and not only the observations.
    """
    target = env.target()
    row, column = np.divmod(env.agent, env.size)
    rows, columns = np.array(np.divmod(np.maximum(target, 0), env.size)) - (row, column)
    # Walk along one of the two axes, at random if the target is away on both.
    vertical = (rows != 0) & ((columns == 0) | (env.policy_draws(0) < 0.5))
    along_rows, along_columns = np.where(rows < 0, 0, 2), np.where(columns < 0, 3, 1)
    moves = np.where(vertical, along_rows, along_columns)
    if env.variant == "memory" and env.room == 2:
        moves = np.where(_enters_wrong_door(env, moves), np.where(vertical, along_columns, along_rows), moves)
    return np.where(target < 0, random_policy(env, observations), moves)


def mixture(expert_fraction: float, noise: float) -> Policy:
    """Return the policy of the data: in some episodes an expert, in the others uniformly random actions.

    Args:
        expert_fraction: Probability that an episode is one of the expert.
        noise: Probability that the expert takes a random action.
    """

    def policy(env: KeyToDoor, observations: NDArray[np.int64]) -> NDArray[np.int64]:
        expert = draws(env.key, env.episodes, EXPERT_DRAW) < expert_fraction
        acts = expert & (env.policy_draws(1) >= noise)
        return np.where(acts, optimal_policy(env, observations), (env.policy_draws(2) * ACTIONS).astype(np.int64))

    return policy


def constant(action: int) -> Policy:
    """Return the policy that always takes the same action."""
    return lambda env, observations: np.full(env.num_envs, action)


def most_frequent(observations: NDArray[np.int64], actions: NDArray[np.int64], count: int) -> Policy:
    """Return the policy that takes the most frequent action of some trajectories at each of ``count`` observations.

    Behaviour cloning without memory, the first action on a tie.
    """
    table = np.zeros((count, ACTIONS), dtype=np.int64)
    np.add.at(table, (observations.ravel(), actions.ravel()), 1)
    best = table.argmax(1)
    return lambda env, seen: best[seen]


def _enters_wrong_door(env: KeyToDoor, moves: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a move leads to a corner with a door other than that of the key."""
    place = np.clip(np.stack(np.divmod(env.agent, env.size), 1) + MOVES[moves], 0, env.size - 1)
    cell = place[:, 0] * env.size + place[:, 1]
    return np.isin(cell, env.corners) & (cell != env.corners[env.colour])

"""The environment of key to door, its policies, and trajectories as tokens."""

import sys

import numpy as np
import pytest

from lra_bench.contracts import UserError
from lra_bench.tasks.decisions.environment import KeyToDoor
from lra_bench.tasks.decisions.policies import (
    mixture,
    most_frequent,
    optimal_policy,
    play,
    random_policy,
    returns_to_go,
)
from lra_bench.tasks.decisions.rooms import ACTIONS, observation_count
from lra_bench.tasks.decisions.tokens import interleave, separate
from tests.oracles.key_to_door import Episode

ROOMS = [
    {"variant": "credit", "size": 4, "phases": (6, 9, 5), "colours": 1},
    {"variant": "credit", "size": 3, "phases": (2, 1, 4), "colours": 6},
    {"variant": "memory", "size": 4, "phases": (6, 7, 8), "colours": 4},
    {"variant": "memory", "size": 3, "phases": (3, 1, 3), "colours": 2},
]
EPISODES = np.arange(5, 405, dtype=np.uint64)


@pytest.mark.parametrize("rooms", ROOMS)
def test_many_episodes_equal_single_ones(rooms):
    env = KeyToDoor(len(EPISODES), **rooms)
    found = play(env, mixture(0.6, 0.2), 2**63 + 11, EPISODES)
    assert found.rewards.sum() > 10
    for index, number in enumerate(EPISODES):
        episode = Episode(2**63 + 11, int(number), **rooms)
        observation = episode.observe()
        for time in range(env.steps):
            assert observation == found.observations[index, time]
            observation, reward = episode.step(int(found.actions[index, time]))
            assert reward == found.rewards[index, time]


@pytest.mark.parametrize("rooms", ROOMS)
def test_observations_are_in_their_space(rooms):
    found = play(KeyToDoor(400, **rooms), random_policy, 1, EPISODES)
    count = observation_count(rooms["variant"], rooms["size"], rooms["colours"])
    assert found.observations.min() == 0 and found.observations.max() < count
    assert set(np.unique(found.actions)) == set(range(ACTIONS))


@pytest.mark.parametrize("variant", ["credit", "memory"])
def test_the_optimal_policy_always_succeeds(variant):
    colours = 1 if variant == "credit" else 4
    env = KeyToDoor(2000, variant=variant, size=5, phases=(8, 6, 8), colours=colours)
    assert (play(env, optimal_policy, 3, np.arange(2000, dtype=np.uint64)).rewards.sum(1) == 1).all()


def test_without_the_key_there_is_no_reward():
    env = KeyToDoor(500, variant="memory", size=4, phases=(1, 1, 8), colours=4)
    env.reset(seed=3)
    env.step(optimal_policy(env, None))
    missed = ~env.has_key
    env.step(random_policy(env, None))
    rewards = sum(env.step(optimal_policy(env, None))[1] for _ in range(8))
    assert missed.any() and (rewards[missed] == 0).all() and (rewards[~missed] == 1).all()


def test_the_door_of_another_colour_ends_the_episode_without_a_reward():
    def to_another_door(env, seen):
        colour, env.colour = env.colour, (env.colour + (env.time in (7, 8, 9, 10))) % 4
        actions = optimal_policy(env, seen)
        env.colour = colour
        return actions

    env = KeyToDoor(500, variant="memory", size=3, phases=(6, 1, 12), colours=4)
    assert (play(env, to_another_door, 3, np.arange(500, dtype=np.uint64)).rewards == 0).all()
    assert env.has_key.all() and env.ended.all()


def test_the_same_seed_gives_the_same_episodes_in_any_batch():
    rooms = ROOMS[2]
    whole = play(KeyToDoor(400, **rooms), random_policy, 7, EPISODES)
    part = play(KeyToDoor(30, **rooms), random_policy, 7, EPISODES[100:130])
    assert all(np.array_equal(a[100:130], b) for a, b in zip(whole, part, strict=True))
    assert not np.array_equal(play(KeyToDoor(400, **rooms), random_policy, 8, EPISODES).actions, whole.actions)


def test_a_reset_without_a_seed_continues_with_the_next_episodes():
    env = KeyToDoor(10, **ROOMS[0])
    first, _ = env.reset(seed=4)
    second, _ = env.reset()
    expected, _ = KeyToDoor(20, **ROOMS[0]).reset(seed=4)
    assert np.array_equal(np.concatenate([first, second]), expected)


def test_an_episode_ends_after_its_steps_and_rejects_impossible_actions():
    env = KeyToDoor(3, **ROOMS[1])
    env.reset(seed=0)
    for actions in ([0, 1], [0, 1, 4], [-1, 0, 0]):
        with pytest.raises(ValueError, match="actions must be 3 integers from 0 to 3"):
            env.step(np.array(actions))
    ends = [env.step(np.zeros(3, dtype=int))[2:4] for _ in range(env.steps)]
    assert [over.all() for over, _ in ends] == [False] * (env.steps - 1) + [True]
    assert not any(truncated.any() for _, truncated in ends)
    with pytest.raises(ValueError, match="call reset"):
        env.step(np.zeros(3, dtype=int))


def test_spaces_need_gymnasium(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"install lra-bench\[rl\]"):
        _ = KeyToDoor(2).single_action_space


def test_spaces_contain_observations_and_actions():
    pytest.importorskip("gymnasium")
    env = KeyToDoor(4, **ROOMS[2])
    observations, _ = env.reset(seed=1)
    actions = random_policy(env, observations)
    assert env.observation_space.contains(observations) and env.action_space.contains(actions)
    assert env.single_observation_space.contains(observations[0])
    assert env.single_action_space.n == ACTIONS


def test_returns_to_go_are_the_reward_plus_those_of_the_next_step():
    rewards = np.random.default_rng(0).normal(size=(7, 20))
    returns = returns_to_go(rewards)
    assert np.allclose(returns[:, :-1], rewards[:, :-1] + returns[:, 1:]) and np.allclose(
        returns[:, -1], rewards[:, -1]
    )
    assert np.allclose(returns[:, 0], rewards.sum(1))


def test_tokens_interleave_and_separate_again():
    found = play(KeyToDoor(400, **ROOMS[0]), mixture(1.0, 0.3), 1, EPISODES)
    returns = returns_to_go(found.rewards)
    tokens = interleave(returns, found.observations, found.actions)
    assert tokens.shape == (400, 60) and tokens.min() > 0
    again = separate(tokens)
    assert np.array_equal(again.returns, returns) and set(np.unique(again.returns)) == {0, 1}
    assert np.array_equal(again.observations, found.observations) and np.array_equal(again.actions, found.actions)
    unknown = interleave(None, found.observations, found.actions)
    assert len(np.unique(unknown[:, ::3])) == 1 and (separate(unknown).returns == -1).all()
    assert np.array_equal(np.delete(unknown, np.s_[::3], 1), np.delete(tokens, np.s_[::3], 1))


def test_cloning_takes_the_most_frequent_action():
    random = np.random.default_rng(0)
    observations, actions = random.integers(5, size=(30, 9)), random.integers(ACTIONS, size=(30, 9))
    policy = most_frequent(observations, actions, 6)
    for seen in range(5):
        counts = [int(((observations == seen) & (actions == action)).sum()) for action in range(ACTIONS)]
        assert policy(None, np.array([seen]))[0] == counts.index(max(counts))

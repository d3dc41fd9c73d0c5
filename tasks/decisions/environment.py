"""Key to door: a room with a key, a room with distractors and a room with doors, for many episodes at once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.splitmix import STEP, mix

from .rooms import ACTIONS, DIRECTIONS, check_rooms, observation_count

MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
NOTHING = 0
"""The observation of an agent that sees no object."""

# Numbers of the random draws of an episode; those of step t have the number FIRST_OF_STEPS + DRAWS_PER_STEP * t + k.
START, OBJECT, COLOUR, EXPERT_DRAW, WINDOW_DRAW = 0, 3, 6, 7, 8
FIRST_OF_STEPS, DRAWS_PER_STEP = 9, 4
PELLET_DRAW, POLICY_DRAW = 0, 1


def draws(key: int, episodes: NDArray[np.uint64], number: int) -> NDArray[np.float64]:
    """Return a random number in [0, 1) for each episode (E,), a function of key, episode and ``number`` only."""
    with np.errstate(over="ignore"):
        counters = mix(np.uint64(key) + (episodes + np.uint64(1)) * STEP) + np.uint64(number + 1) * STEP
    return (mix(counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class KeyToDoor:
    """Episodes of three rooms: take the key in the first, pass the second, open the door in the third.

    The interface is that of ``gymnasium.vector.VectorEnv`` without automatic resets; all episodes end after the same
    number of steps. The package gymnasium is needed only for the spaces (``single_observation_space`` and others).

    Each room has ``size`` × ``size`` cells, and the agent starts in a random cell of each. An action moves it up,
    right, down or left, or leaves it where it is if there is a wall.

    - First room: the agent takes the key of a random colour when it enters the key's cell.
    - Second room: a pellet, which is worth nothing, is in a random cell; if the agent takes it, another one appears.
    - Third room, variant ``credit``: one door in a random cell. The reward is 1 if the agent enters it with the key.
    - Third room, variant ``memory``: a door of each colour, that of colour c in corner c. The reward is 1 if the agent
      has the key and the first door that it enters has the colour of the key.

    There is no other reward; after the first door nothing happens any more. The agent sees the kind of the object in
    the room and in which of eight directions it is, and the colour only of the key; in the third room of ``memory`` it
    sees the cell that it is in. An observation is one integer:

    - 0: nothing (the key is taken, or a door was entered);
    - 1 to 8: a pellet, by direction;
    - the next 8 for each colour: the key of that colour, by direction;
    - the next 8 in ``credit``: the door, by direction; the next ``size``² in ``memory``: the cell of the agent.

    All random draws of an episode are functions of the seed and the number of the episode.

    After Mesnard et al. 2021, arXiv 2011.09464, and Hung et al. 2019, arXiv 1810.06721; the task of Chen et al. 2021,
    arXiv 2106.01345. Deviates: directions and cells instead of images, pellets without reward, and the variant
    ``memory``.

    Args:
        num_envs: Number E of episodes that run side by side.
        variant: ``credit`` or ``memory``.
        size: Cells per side of a room.
        phases: Number of steps in each room.
        colours: Number of colours of the key; 2 to 4 in ``memory``.

    Raises:
        UserError: If an option is out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": "disabled", "render_modes": []}
    render_mode = None
    spec = None

    def __init__(
        self,
        num_envs: int,
        *,
        variant: str = "credit",
        size: int = 5,
        phases: tuple[int, int, int] = (10, 30, 10),
        colours: int = 1,
    ) -> None:
        check_rooms(variant, size, phases, colours)
        self.num_envs, self.variant, self.size, self.phases, self.colours = num_envs, variant, size, phases, colours
        self.steps = sum(phases)
        self.corners = np.array([0, size - 1, size * size - 1, size * (size - 1)])[:colours]
        self.key, self.episodes = 0, np.arange(num_envs, dtype=np.uint64)
        self.agent: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.thing: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    @property
    def single_observation_space(self) -> Any:
        """The space of one observation; needs the package gymnasium."""
        return _spaces().Discrete(observation_count(self.variant, self.size, self.colours))

    @property
    def single_action_space(self) -> Any:
        """The space of one action; needs the package gymnasium."""
        return _spaces().Discrete(ACTIONS)

    @property
    def observation_space(self) -> Any:
        """The space of the observations of all episodes; needs the package gymnasium."""
        count = observation_count(self.variant, self.size, self.colours)
        return _spaces().MultiDiscrete(np.full(self.num_envs, count))

    @property
    def action_space(self) -> Any:
        """The space of the actions of all episodes; needs the package gymnasium."""
        return _spaces().MultiDiscrete(np.full(self.num_envs, ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Start new episodes and return their first observations (E,) and an empty dictionary.

        Args:
            seed: Seed of all draws; None continues with the next episodes of the previous seed.
            options: ``episodes`` (E,) are the numbers of the episodes, by default 0 to E − 1 for a new seed.
        """
        given = (options or {}).get("episodes")
        if given is not None:
            self.episodes = np.asarray(given, dtype=np.uint64)
        elif seed is None:
            self.episodes = self.episodes + np.uint64(self.num_envs)
        else:
            self.episodes = np.arange(self.num_envs, dtype=np.uint64)
        self.key = self.key if seed is None else seed
        self.time = 0
        self.colour = (self._draw(COLOUR) * self.colours).astype(np.int64)
        self.has_key = np.zeros(self.num_envs, dtype=bool)
        self.ended = np.zeros(self.num_envs, dtype=bool)
        self._enter_room()
        return self.observe(), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Move all agents and return observations, rewards, terminations, truncations (E,) and an empty dictionary.

        All episodes terminate together, after the last step of the third room. Raises ``ValueError`` if an action does
        not exist or the episodes are over.
        """
        actions = np.asarray(actions)
        if self.time >= self.steps:
            raise ValueError("the episodes are over; call reset")
        if actions.shape != (self.num_envs,) or ((actions < 0) | (actions >= ACTIONS)).any():
            raise ValueError(f"actions must be {self.num_envs} integers from 0 to {ACTIONS - 1}")
        place = np.stack(np.divmod(self.agent, self.size), 1) + MOVES[actions]
        row, column = np.clip(place, 0, self.size - 1).T
        self.agent = row * self.size + column
        rewards = self._touch()
        self.time += 1
        if self.time in (self.phases[0], self.phases[0] + self.phases[1]):
            self._enter_room()
        over = np.full(self.num_envs, self.time == self.steps)
        return self.observe(), rewards, over, np.zeros(self.num_envs, dtype=bool), {}

    def close(self) -> None:
        """Do nothing; there is nothing to close."""

    @property
    def room(self) -> int:
        """The room of the current step: 0, 1 or 2."""
        return int(self.time >= self.phases[0]) + int(self.time >= self.phases[0] + self.phases[1])

    def target(self) -> NDArray[np.int64]:
        """Return the cell that an agent with full knowledge moves to, (E,), −1 if there is none."""
        if self.room == 0:
            return np.where(self.has_key, -1, self.thing)
        if self.room == 1:
            return np.full(self.num_envs, -1)
        return np.where(self.ended, -1, self.thing if self.variant == "credit" else self.corners[self.colour])

    def policy_draws(self, number: int) -> NDArray[np.float64]:
        """Return random numbers (E,) of the current step for a policy; ``number`` is 0, 1 or 2."""
        return self._draw(FIRST_OF_STEPS + DRAWS_PER_STEP * self.time + POLICY_DRAW + number)

    def observe(self) -> NDArray[np.int64]:
        """Return the current observations (E,)."""
        direction = self._direction()
        if self.room == 0:
            seen = 1 + DIRECTIONS * (1 + self.colour) + direction
            return np.where(self.has_key, NOTHING, seen)
        if self.room == 1:
            return 1 + direction
        seen = 1 + DIRECTIONS * (1 + self.colours) + (direction if self.variant == "credit" else self.agent)
        return np.where(self.ended, NOTHING, seen)

    def _draw(self, number: int) -> NDArray[np.float64]:
        return draws(self.key, self.episodes, number)

    def _enter_room(self) -> None:
        """Place the agent and the object of the room; the agent is never in the cell of an object."""
        cells, start = self.size * self.size, self._draw(START + self.room)
        self.agent = (start * cells).astype(np.int64)
        if self.variant == "memory" and self.room == 2:
            free = np.setdiff1d(np.arange(cells), self.corners)
            self.agent = free[(start * len(free)).astype(np.int64)]
        self.thing = self._other_cell(self._draw(OBJECT + self.room))

    def _other_cell(self, draw: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a random cell other than that of the agent."""
        cells = self.size * self.size
        return (self.agent + 1 + (draw * (cells - 1)).astype(np.int64)) % cells

    def _touch(self) -> NDArray[np.float64]:
        """Apply the effects of the cells that the agents are in, and return the rewards (E,)."""
        at_thing = self.agent == self.thing
        if self.room == 0:
            self.has_key |= at_thing
        elif self.room == 1:
            again = self._other_cell(self._draw(FIRST_OF_STEPS + DRAWS_PER_STEP * self.time + PELLET_DRAW))
            self.thing = np.where(at_thing, again, self.thing)
        else:
            if self.variant == "credit":
                opened, right = at_thing, at_thing
            else:
                opened, right = np.isin(self.agent, self.corners), self.agent == self.corners[self.colour]
            rewards = (right & self.has_key & ~self.ended).astype(np.float64)
            self.ended |= opened
            return rewards
        return np.zeros(self.num_envs)

    def _direction(self) -> NDArray[np.int64]:
        """Return the direction (0 to 7) from each agent to the object of the room; 0 if it is in the same cell."""
        row, column = np.divmod(self.agent, self.size)
        row_of, column_of = np.divmod(self.thing, self.size)
        nine = 3 * (np.sign(row_of - row) + 1) + np.sign(column_of - column) + 1
        return np.where(nine > 4, nine - 1, nine % 4)


def _spaces() -> Any:
    """Return ``gymnasium.spaces``; raise ``UserError`` if the package is not installed."""
    try:
        from gymnasium import spaces
    except ImportError:
        raise UserError("spaces of key_to_door: need the package gymnasium; install lra-bench[rl]") from None
    return spaces

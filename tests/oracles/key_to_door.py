"""One episode of key to door at a time, with plain loops."""

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
MOVES = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}
DIRECTIONS = [(-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]


def _mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draw(key, episode, number):
    """Return the random number of an episode with this number, in [0, 1)."""
    start = _mix((key + (episode + 1) * STEP) & MASK)
    return (_mix((start + (number + 1) * STEP) & MASK) >> 11) / 2**53


def _sign(number):
    return (number > 0) - (number < 0)


class Episode:
    """One episode; ``step`` returns the next observation and the reward."""

    def __init__(self, key, episode, variant, size, phases, colours):
        self.random = lambda number: draw(key, episode, number)
        self.variant, self.size, self.phases, self.colours = variant, size, phases, colours
        self.colour = int(self.random(6) * colours)
        self.corners = [(0, 0), (0, size - 1), (size - 1, size - 1), (size - 1, 0)][:colours]
        self.time, self.has_key, self.ended = 0, False, False
        self._enter()

    @property
    def room(self):
        first, middle, _ = self.phases
        return 0 if self.time < first else 1 if self.time < first + middle else 2

    def _cell(self, number):
        return divmod(number, self.size)

    def _other(self, number):
        agent = self.agent[0] * self.size + self.agent[1]
        return self._cell((agent + 1 + int(self.random(number) * (self.size**2 - 1))) % self.size**2)

    def _enter(self):
        start = self.random(self.room)
        cells = [self._cell(number) for number in range(self.size**2)]
        if self.variant == "memory" and self.room == 2:
            cells = [cell for cell in cells if cell not in self.corners]
        self.agent = cells[int(start * len(cells))]
        self.thing = self._other(3 + self.room)

    def observe(self):
        away = _sign(self.thing[0] - self.agent[0]), _sign(self.thing[1] - self.agent[1])
        direction = DIRECTIONS.index(away) if away != (0, 0) else 0
        if self.room == 0:
            return 0 if self.has_key else 9 + 8 * self.colour + direction
        if self.room == 1:
            return 1 + direction
        if self.ended:
            return 0
        own = direction if self.variant == "credit" else self.agent[0] * self.size + self.agent[1]
        return 9 + 8 * self.colours + own

    def step(self, action):
        row, column = self.agent[0] + MOVES[action][0], self.agent[1] + MOVES[action][1]
        if 0 <= row < self.size and 0 <= column < self.size:
            self.agent = row, column
        reward = 0.0
        if self.room == 0 and self.agent == self.thing:
            self.has_key = True
        elif self.room == 1 and self.agent == self.thing:
            self.thing = self._other(9 + 4 * self.time)
        elif self.room == 2 and not self.ended:
            doors = [self.thing] if self.variant == "credit" else self.corners
            right = self.thing if self.variant == "credit" else self.corners[self.colour]
            if self.agent in doors:
                self.ended, reward = True, float(self.has_key and self.agent == right)
        self.time += 1
        if self.time in (self.phases[0], self.phases[0] + self.phases[1]):
            self._enter()
        return self.observe(), reward

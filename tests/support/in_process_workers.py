"""Workers in this process instead of one of their own, so that a test may shorten the rule and count calls."""

import json
from collections import deque
from typing import Any, ClassVar

from lra_bench.profiling.comparison.worker import answers


class InProcess:
    """In place of ``worker_pool.WorkerProcess``: works a command off when its answer is heard."""

    commands: ClassVar[list[tuple[str, str]]] = []
    """What was told, in order: who, by the network's name or its forced kernel, and the command."""

    def __init__(self, module: str, job: dict[str, Any], variables: dict[str, str] | None = None) -> None:
        self.name = job["attention"] or job["config"]["model"]["network"]["_target_"].rpartition(".")[2]
        self.lines = deque([json.dumps(job)])
        self.answers = answers(self)

    def readline(self) -> str:
        return self.lines.popleft()

    def __iter__(self) -> "InProcess":
        return self

    def __next__(self) -> str:
        return self.lines.popleft()

    def tell(self, command: str, **arguments: Any) -> None:
        self.commands.append((self.name, command))
        self.lines.append(json.dumps({"command": command, **arguments}))

    def hear(self, seconds: float) -> dict[str, Any]:
        return json.loads(json.dumps(next(self.answers)))

    def end(self) -> None:
        self.answers.close()

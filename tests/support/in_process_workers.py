"""Workers in the test process instead of separate processes, so that tests can patch settings and count calls."""

import json
from collections import deque
from typing import Any, ClassVar

from lra_bench.profiling.worker import answers
from lra_bench.runtime.subprocesses import WorkerFailed


class InProcess:
    """A ``subprocesses.WorkerProcess`` without a process: ``receive`` executes the command."""

    commands: ClassVar[list[tuple[str, str]]] = []
    """Pairs of worker and command in the order sent; the worker's name is its network or its forced kernel."""

    def __init__(self, module: str, job: dict[str, Any], variables: dict[str, str] | None = None) -> None:
        network = job["config"]["model"].get("network", {"_target_": ""})
        self.name = job["attention"] or network["_target_"].rpartition(".")[2]
        self.lines = deque([json.dumps(job)])
        self.answers = answers(self)

    def readline(self) -> str:
        return self.lines.popleft()

    def __iter__(self) -> "InProcess":
        return self

    def __next__(self) -> str:
        return self.lines.popleft()

    def send(self, command: str, **arguments: Any) -> None:
        self.commands.append((self.name, command))
        self.lines.append(json.dumps({"command": command, **arguments}))

    def receive(self, timeout: float) -> dict[str, Any]:
        answer = json.loads(json.dumps(next(self.answers)))
        if "failed" in answer:
            raise WorkerFailed(*answer["failed"])
        return answer

    def end(self) -> None:
        self.answers.close()

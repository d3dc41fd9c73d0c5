"""A user-defined model that fails in a chosen way in training; configurations refer to it as ``faulty.Faulty``."""

import datetime
import os
import signal
import sys
import time
from pathlib import Path

import torch

from lra_bench.cells import run
from lra_bench.contracts import UserError
from lra_bench.models.bag_of_tokens import BagOfTokens
from lra_bench.records import store

BLOCK_NUMBERS = 1 << 25  # 128 MiB


class Faulty(BagOfTokens):
    """A bag-of-tokens model that calls the method ``how`` at training step ``at``."""

    def __init__(self, *, how: str, at: int = 3, **options) -> None:
        super().__init__(**options)
        self.how, self.at, self.steps = how, at, 0
        if how == "ignores_timeout":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def forward(self, batch, memory=None):
        output = super().forward(batch, memory)
        self.steps += self.training
        if not self.training or self.steps != self.at:
            return output
        return getattr(self, self.how)(output) or output

    def counted(self, output):
        with Path("counted.txt").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def memory(self, output):
        """Allocate and write memory until an allocation fails."""
        blocks = []
        while len(blocks) < 64:  # at most 8 GiB, in case no limit is enforced
            blocks.append(torch.ones(BLOCK_NUMBERS))

    def error(self, output):
        raise IndexError("one too far")

    def mistake(self, output):
        raise UserError("model.mixer: invalid on purpose")

    def not_a_number(self, output):
        return output._replace(logits=output.logits * float("nan"))

    def gradient(self, output):
        """Return a finite loss whose gradient is not finite."""
        zero = output.logits.flatten()[0] * 0
        return output._replace(losses={"root": torch.sqrt(zero)})

    def slow(self, output):
        time.sleep(600)

    def ignores_timeout(self, output):
        """Sleep and ignore SIGALRM, by which the timeout is enforced."""
        time.sleep(600)

    def killed(self, output):
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self, output):
        sys.stderr.write("\x1b[2KTraining 3 of 20\rmy last words\n")
        sys.stderr.flush()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)

    def aborted(self, output):
        """Abort like a C++ program in which std::bad_alloc is not caught."""
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    def sigint_while_the_record_is_written(self, output):
        put = store._put

        def interrupted(*arguments, **options):
            os.kill(os.getpid(), signal.SIGINT)
            put(*arguments, **options)

        store._put = interrupted

    def two_signals_while_the_record_is_written(self, output):
        self.sigint_while_the_record_is_written(output)
        os.kill(os.getpid(), signal.SIGTERM)

    def a_long_step(self, output):
        """Create a file when the step begins, then sleep for ten minutes."""
        Path("started.txt").touch()
        time.sleep(600)

    def a_slow_step(self, output):
        """Create a file when the step begins, then sleep for one second."""
        Path("started.txt").touch()
        time.sleep(1)

    def a_long_record(self, output):
        """Make writing the record take two seconds, and create a file when it begins."""
        put = store._put

        def slowly(*arguments, **options):
            Path("started.txt").touch()
            time.sleep(2)
            put(*arguments, **options)

        store._put = slowly

    def clock(self, output):
        """Set the system clock of this process back to 1970."""
        past = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        time.time = lambda: 0.0
        run.now = lambda: past.isoformat(timespec="seconds")

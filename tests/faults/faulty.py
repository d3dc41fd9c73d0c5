"""A model of a user's own that goes wrong in one way in training: ``python`` finds it as ``faulty``."""

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
    """Trains as the control does until step ``at``, then does ``how``."""

    def __init__(self, *, how: str, at: int = 3, **options) -> None:
        super().__init__(**options)
        self.how, self.at, self.steps = how, at, 0
        if how == "deaf":
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
        """Take memory and write into it until there is no more."""
        taken = []
        while len(taken) < 64:  # an end, in case nothing refuses it
            taken.append(torch.ones(BLOCK_NUMBERS))

    def error(self, output):
        raise IndexError("one too far")

    def mistake(self, output):
        raise UserError("model.mixer: no such luck")

    def not_a_number(self, output):
        return output._replace(logits=output.logits * float("nan"))

    def gradient(self, output):
        """The loss is finite, its gradient is not."""
        zero = output.logits.flatten()[0] * 0
        return output._replace(losses={"root": torch.sqrt(zero)})

    def slow(self, output):
        time.sleep(600)

    def deaf(self, output):
        """Neither ends nor hears that its time is up."""
        time.sleep(600)

    def killed(self, output):
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self, output):
        sys.stderr.write("\x1b[2KTraining 3 of 20\rmy last words\n")
        sys.stderr.flush()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)

    def aborted(self, output):
        """As C++ ends where nothing catches that there is no memory."""
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    def ctrl_c_while_the_record_is_written(self, output):
        put = store._put

        def interrupted(*arguments, **options):
            os.kill(os.getpid(), signal.SIGINT)
            put(*arguments, **options)

        store._put = interrupted

    def told_to_stop_again_while_the_record_is_written(self, output):
        self.ctrl_c_while_the_record_is_written(output)
        os.kill(os.getpid(), signal.SIGTERM)

    def a_long_step(self, output):
        """Wait for ten minutes, once a file tells that the step has begun."""
        Path("begun.txt").touch()
        time.sleep(600)

    def a_slow_step(self, output):
        """As a long step, but of one second."""
        Path("begun.txt").touch()
        time.sleep(1)

    def a_long_record(self, output):
        """Take two seconds to write the record, and tell by a file that it has begun."""
        put = store._put

        def slowly(*arguments, **options):
            Path("begun.txt").touch()
            time.sleep(2)
            put(*arguments, **options)

        store._put = slowly

    def clock(self, output):
        """The clock of the wall falls back to another century."""
        past = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        time.time = lambda: 0.0
        run.now = lambda: past.isoformat(timespec="seconds")

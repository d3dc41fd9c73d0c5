"""Small networks for tests of measurements; separate processes build them by name."""

import os
import signal
import time
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import Batch, Output, TaskSpec, UserError
from lra_bench.profiling.synthetic import spec_at


class Network(nn.Module):
    """Embedding, ``mix`` of (B, N, E), feed-forward and classifier, after mean pooling unless every token is scored."""

    def __init__(self, *, spec: TaskSpec, width: int = 8, heads: int = 2, ff_width: int = 16) -> None:
        super().__init__()
        self.task, self.width, self.heads = spec, width, heads
        self.embed = (
            nn.Linear(spec.channels, width) if spec.channels else nn.Embedding(spec.vocabulary_size or 1, width)
        )
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ff_width), nn.Linear(ff_width, width)
        self.head = nn.Linear(width, spec.classes)

    def forward(self, batch: Batch, memory: Tensor | None = None) -> Output:
        x = self.embed(batch.inputs)
        folded = x.flatten(0, -3)
        x = (folded + self.mix(folded)).view_as(x)
        x = x + self.down(F.gelu(self.up(x)))
        if self.task.kind == "matching":
            x = x.mean(1)
        return Output(self.head(x if self.task.per_token else x.mean(-2)))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return q, k, v

    def mix(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Attention(Network):
    def mix(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class LinearAttention(Network):
    def mix(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.out((q @ (k.transpose(-1, -2) @ v)).transpose(1, 2).flatten(2))


class LooksAtNumbers(Attention):
    """Cannot run on meta tensors."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) if float(x.detach().abs().sum()) >= 0 else x


class Cumulative(Network):
    """A Fourier transform and a cumulative sum, whose FLOPs are not counted, in addition to counted matrix products."""

    def mix(self, x: Tensor) -> Tensor:
        return self.out(torch.fft.fft(x, dim=1).real + x.cumsum(1))


class HandCounted(nn.Module):
    """Declares FLOPs that the counter does not count."""

    class spec:
        extra_flops: ClassVar[Callable[[int, int, int], int]] = staticmethod(
            lambda length, width, heads: 7 * length * width
        )

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class TwiceByHand(Network):
    """Uses one module with declared FLOPs twice."""

    def __init__(self, *, spec: TaskSpec) -> None:
        super().__init__(spec=spec)
        self.mixer = HandCounted(self.width, self.heads)

    def mix(self, x: Tensor) -> Tensor:
        return self.mixer(self.mixer(x))


class Failing(LinearAttention):
    """Fails from length ``limit`` on in the way ``how``; with ``training_only`` not in inference."""

    def __init__(self, *, spec: TaskSpec, how: str, limit: int, training_only: bool = False) -> None:
        super().__init__(spec=spec)
        self.how, self.limit, self.training_only = how, limit, training_only
        if how == "build" and spec.train_length >= limit:
            raise UserError(f"model=failing: fixed to {limit - 1} positions")

    def supports_length(self, length: int) -> str | None:
        return f"takes at most {self.limit - 1}" if self.how == "refuses" and length >= self.limit else None

    def mix(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.limit or (self.training_only and not self.training):
            return super().mix(x)
        if self.how == "memory":
            torch.empty(1 << 60)
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "error":
            raise ValueError("shapes do not match\nsecond line")
        if self.how == "hangs":
            time.sleep(60)
        if self.how == "slow":
            time.sleep(0.6)
        return super().mix(x)


def spec(kind: str = "classification", length: int = 64, **changes: object) -> TaskSpec:
    """Return a task spec with a vocabulary of 12 tokens, or the given channels, and 5 classes."""
    options: dict = {"vocabulary_size": None if "channels" in changes else 12, **changes}
    return TaskSpec(
        name="toy",
        version="1",
        kind=kind,
        direction="either",
        classes=5,
        train_length=length,
        **options,  # type: ignore[arg-type]
    )


__all__ = ["spec", "spec_at"]

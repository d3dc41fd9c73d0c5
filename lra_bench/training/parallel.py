"""What the processes that train one model share: rows, sums, weights, and when to stop.

A model is wrapped by torch's own DDP or FSDP2. Losses are sums over a rank's rows divided by the count of the whole
batch, so sums over ranks are those of one process; DDP and FSDP2 take means, hence the factor ``world`` in ``scaled``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only

from lra_bench.contracts import Batch, Output, UserError

T = TypeVar("T")

Statistics = dict[str, dict[str, Tensor]]


def share(count: int, part: int, parts: int) -> tuple[int, int]:
    """Where the ``part``-th of ``parts`` nearly equal shares of ``count`` begins and ends; the first are larger."""
    least, more = divmod(count, parts)
    start = part * least + min(part, more)
    return start, start + least + (part < more)


def micro_batches(size: int, cap: int | None, rank: int = 0, world: int = 1) -> list[tuple[int, int]]:
    """A rank's rows of a batch in parts of at most ``cap``, as many parts on every rank.

    FSDP gathers weights at each part, so a rank must not have one less; where ``cap`` is 1 and shares are uneven it
    does have.
    """
    start, stop = share(size, rank, world)
    largest = -(-size // world)
    parts = min(-(-largest // (cap or largest)), stop - start)
    return [(start + first, start + last) for first, last in (share(stop - start, n, parts) for n in range(parts))]


@dataclass(frozen=True)
class Group:
    """The processes that train one model, seen from ``rank`` of ``world``; by default one that is alone.

    ``sharded`` tells FSDP2, where weights are spread over ranks, from DDP, where each has all. What is called on one
    rank must be called on all, but for ``first``, ``scaled``, ``turns`` and ``own``.
    """

    rank: int = 0
    world: int = 1
    connected: bool = False
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.rank == 0

    def wrap(self, model: nn.Module, run: nn.Module) -> nn.Module:
        """What to call in training in place of ``run``, which calls ``model``; FSDP2 replaces its weights by shards."""
        if self.sharded:
            shard(model)
        if not self.connected or self.sharded:
            return run
        # Buffers change between steps alone and alike on all ranks. Looking for parameters without a gradient keeps
        # the order of sums fixed too, so that a resumed run adds up as the uninterrupted one did.
        with warnings.catch_warnings():
            # Newer releases have another name for broadcast_buffers, which older ones do not know.
            warnings.simplefilter("ignore", FutureWarning)
            return nn.parallel.DistributedDataParallel(
                _Memoryless(run), broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
            )

    def reducing(self, run: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """The context of a micro-batch: gradients are summed over ranks with those of the ``last`` alone."""
        if self.sharded:
            sharded = next(module for module in run.modules() if hasattr(module, "set_requires_gradient_sync"))
            sharded.set_requires_gradient_sync(last)  # type: ignore[operator]
        elif self.connected and not last:
            return cast(nn.parallel.DistributedDataParallel, run).no_sync()
        return nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss whose gradients, averaged over ranks, are the sum of those of ``loss``."""
        return loss * self.world if self.world > 1 else loss

    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor``, of any shape, summed over ranks."""
        if self.connected:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def sum_in_order(self, tensor: Tensor) -> Tensor:
        """``tensor``, of any shape, summed over ranks by their order.

        In ``sum`` the order depends on where in the tensor a number stands, which is not the same after a resumption.
        """
        if not self.connected:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor.contiguous())
        for part in parts[1:]:
            parts[0] += part
        return parts[0]

    def sum_statistics(self, statistics: Statistics) -> Statistics:
        """Statistics of modules summed over ranks, each of which must report the same."""
        return {
            name: {key: self.sum(value) for key, value in sorted(values.items())}
            for name, values in sorted(statistics.items())
        }

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true where it is on any rank."""
        if not self.connected:
            return flags
        # On the host, so that a device that still computes is not waited for.
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(map(bool, raised.tolist()))

    def gather(self, value: T) -> list[T]:
        """The picklable ``value`` of every rank, by rank."""
        if not self.connected:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def turns(self, count: int) -> list[int]:
        """Which of ``count`` batches this rank evaluates: as many on every rank, so that FSDP2 can gather weights.

        Ranks without a batch left do the last one again.
        """
        return [min(first + self.rank, count - 1) for first in range(0, count, self.world)]

    def own(self, memory: Any) -> Any:
        """The rows of this rank of a pytree of tensors, batch first."""
        return tree_map_only(Tensor, lambda tensor: tensor[slice(*share(len(tensor), self.rank, self.world))], memory)

    def join(self, memory: Any) -> Any:
        """The rows of all ranks in a pytree of tensors, batch first, on the host; the inverse of ``own``."""
        if not self.connected or memory is None:
            return memory
        return tree_map(lambda *parts: torch.cat(parts), *self.gather(tree_map(lambda each: each.cpu(), memory)))


ALONE = Group()


class _Memoryless(nn.Module):
    """A model whose memory carries no gradient: what leads to the memory alone has none, and DDP would wait for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        output: Output = self.model(batch, memory)
        return output._replace(memory=tree_map_only(Tensor, Tensor.detach, output.memory))


def shard(model: nn.Module) -> None:
    """Spread the weights of ``model`` over all ranks: its ``shards`` each by itself, where it has any, then the rest.

    Raises ``UserError`` where a weight cannot be cut.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise UserError(
                f"hardware.strategy=fsdp: the parameter {name} is a single number without a dimension to cut; give it "
                "the shape (1,) or set hardware.strategy=ddp"
            )
        # Initialisers leave transposed matrices behind, which FSDP2 refuses.
        parameter.data = parameter.data.contiguous()
    # Blocks may end in a view of their sum; nothing changes it in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in separable(model, getattr(model, "shards", ())):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def separable(model: nn.Module, parts: Iterable[nn.Module]) -> list[nn.Module]:
    """Those of ``parts`` that share no weight with the rest of ``model``."""
    uses = _uses(model)
    return [part for part in parts if all(uses[each] == count for each, count in _uses(part).items())]


def _uses(module: nn.Module) -> dict[nn.Parameter, int]:
    """In how many places each parameter stands."""
    uses: dict[nn.Parameter, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[parameter] = uses.get(parameter, 0) + 1
    return uses


def gather_full(tree: Any) -> Any:
    """A pytree whose sharded tensors are whole; all ranks must ask at once."""
    return tree_map_only(Tensor, lambda tensor: tensor.full_tensor() if _sharded(tensor) else tensor, tree)


def shard_like(tensor: Any, mine: Tensor) -> Any:
    """The part of a whole ``tensor`` that this rank has of ``mine``, where that is sharded and of the same shape."""
    if not _sharded(mine) or tensor.shape != mine.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    mine = cast(DTensor, mine)
    return distribute_tensor(tensor.to(mine.device), mine.device_mesh, mine.placements)


def _sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, found without importing what training in one process needs not."""
    return hasattr(tensor, "full_tensor")


def named_once(model: nn.Module) -> Mapping[str, Tensor]:
    """The saved tensors of ``model``, whole, each under one name although modules may share it."""
    state = model.state_dict(keep_vars=True)
    once = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: gather_full(state[name].detach()) for name in once.values()}

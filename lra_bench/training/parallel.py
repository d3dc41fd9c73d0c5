"""Training of one model by several processes: collective operations and the distribution of rows and weights.

A model is wrapped by torch's DDP or FSDP2. The loss of a rank is a sum over its rows divided by the count of the full
batch. DDP and FSDP2 average gradients over ranks, hence the factor ``world`` in ``scaled``.
"""

from __future__ import annotations

import warnings
from collections import Counter
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
    """Return start and end of part ``part`` when ``count`` items are split into ``parts`` nearly equal parts.

    Sizes differ by at most one; the first parts are the larger ones.
    """
    least, more = divmod(count, parts)
    start = part * least + min(part, more)
    return start, start + least + (part < more)


def micro_batches(size: int, cap: int | None, rank: int = 0, world: int = 1) -> list[tuple[int, int]]:
    """Split a rank's rows of a batch of ``size`` rows into micro-batches of at most ``cap`` rows.

    Returns start and end of each. Every rank has the same number of micro-batches, because FSDP2 gathers weights in
    each of them. The exception is a rank with fewer rows than micro-batches, for example with ``cap`` 1 and uneven
    shares.
    """
    start, stop = share(size, rank, world)
    largest = -(-size // world)
    parts = min(-(-largest // (cap or largest)), stop - start)
    return [(start + first, start + last) for first, last in (share(stop - start, n, parts) for n in range(parts))]


@dataclass(frozen=True)
class Group:
    """The processes that train one model, from the view of ``rank`` out of ``world``; by default a single process.

    ``connected`` is whether a process group is initialised. ``sharded`` is true for FSDP2, which distributes weights
    over ranks, and false for DDP, which replicates them. All methods but ``first``, ``scaled``, ``turns`` and ``own``
    are collective: all ranks must call them.
    """

    rank: int = 0
    world: int = 1
    connected: bool = False
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only rank that writes files."""
        return self.rank == 0

    def wrap(self, model: nn.Module, run: nn.Module) -> nn.Module:
        """Return the module to call in training in place of ``run``, which calls ``model``.

        DDP wraps ``run``. FSDP2 replaces the weights of ``model`` by shards in place.
        """
        if self.sharded:
            shard(model)
        if not self.connected or self.sharded:
            return run
        # Buffers change only between steps and identically on all ranks, so they need no broadcast.
        # find_unused_parameters also fixes the order of sums, so that a resumed run gives the same sums.
        with warnings.catch_warnings():
            # Newer releases of torch rename broadcast_buffers; older ones have only this name.
            warnings.simplefilter("ignore", FutureWarning)
            return nn.parallel.DistributedDataParallel(
                _DetachedMemory(run), broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
            )

    def reducing(self, run: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Return the context manager of a micro-batch; gradients are summed over ranks only in the ``last`` one."""
        if self.sharded:
            sharded = next(module for module in run.modules() if hasattr(module, "set_requires_gradient_sync"))
            sharded.set_requires_gradient_sync(last)  # type: ignore[operator]
        elif self.connected and not last:
            return cast(nn.parallel.DistributedDataParallel, run).no_sync()
        return nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """Scale ``loss`` such that the average of its gradients over ranks is the sum of those of ``loss``."""
        return loss * self.world if self.world > 1 else loss

    def sum_in_order(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor``, of any shape, over ranks, added in the order of ranks.

        The order of additions in ``all_reduce`` can differ in a resumed run.
        """
        if not self.connected:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor.contiguous())
        for part in parts[1:]:
            parts[0] += part
        return parts[0]

    def sum_statistics(self, statistics: Statistics) -> Statistics:
        """Return the statistics of modules summed over ranks; all ranks must report the same names."""
        return {
            name: {key: self.sum_in_order(value) for key, value in sorted(values.items())}
            for name, values in sorted(statistics.items())
        }

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is true on any rank."""
        if not self.connected:
            return flags
        # On the host, to avoid a synchronisation with the device.
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(map(bool, raised.tolist()))

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks; ``value`` must be picklable."""
        if not self.connected:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def turns(self, count: int) -> list[int]:
        """Return the indices of the batches, out of ``count``, that this rank evaluates.

        Every rank evaluates the same number of batches, because FSDP2 gathers weights in each of them. Ranks without a
        batch of their own repeat the last one.
        """
        return [min(first + self.rank, count - 1) for first in range(0, count, self.world)]

    def own(self, memory: Any) -> Any:
        """Return the rows of this rank of a pytree of tensors, batch first."""
        return tree_map_only(Tensor, lambda tensor: tensor[slice(*share(len(tensor), self.rank, self.world))], memory)

    def join(self, memory: Any) -> Any:
        """Concatenate all ranks' rows of a pytree of tensors, batch first, on the host; the inverse of ``own``."""
        if not self.connected or memory is None:
            return memory
        return tree_map(lambda *parts: torch.cat(parts), *self.gather(tree_map(lambda each: each.cpu(), memory)))


ALONE = Group()


class _DetachedMemory(nn.Module):
    """A model whose memory is detached.

    Parameters that contribute to the memory alone receive no gradient, and DDP would wait for their gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        output: Output = self.model(batch, memory)
        return output._replace(memory=tree_map_only(Tensor, Tensor.detach, output.memory))


def shard(model: nn.Module) -> None:
    """Shard the weights of ``model`` over all ranks, in place.

    Each module of ``model.shards`` that shares no weight with others is sharded separately, then the rest. Raises
    ``UserError`` if a parameter has no dimension.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise UserError(
                f"hardware.strategy=fsdp: the parameter {name} is a scalar and cannot be sharded; give it "
                "the shape (1,) or set hardware.strategy=ddp"
            )
        # Some initialisers leave transposed matrices; FSDP2 requires contiguous parameters.
        parameter.data = parameter.data.contiguous()
    # The output of a block may be a view, of which FSDP2 warns; it is not modified in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for part in separable(model, getattr(model, "shards", ())):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def separable(model: nn.Module, parts: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules of ``parts`` that share no parameter with the rest of ``model``."""

    def uses(module: nn.Module) -> Counter[nn.Parameter]:
        return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))

    total = uses(model)
    return [part for part in parts if all(total[each] == count for each, count in uses(part).items())]


def gather_full(tree: Any) -> Any:
    """Return a pytree with its sharded tensors gathered to full tensors; all ranks must call it."""
    return tree_map_only(Tensor, lambda tensor: tensor.full_tensor() if _sharded(tensor) else tensor, tree)


def shard_like(tensor: Any, like: Tensor) -> Any:
    """Shard a full ``tensor`` as ``like`` is sharded; return it unchanged if ``like`` is not, or the shapes differ."""
    if not _sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    like = cast(DTensor, like)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def _sharded(tensor: Tensor) -> bool:
    """Return whether it is a DTensor, without importing modules that training in a single process does not need."""
    return hasattr(tensor, "full_tensor")


def named_once(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the tensors of the state dictionary of ``model``, gathered; a shared tensor has one name only."""
    state = model.state_dict(keep_vars=True)
    once = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: gather_full(state[name].detach()) for name in once.values()}

"""Exact search of nearest neighbours: in torch by blocks, or with faiss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError, install_command

from ..kernels.softmax import grouped

BACKENDS = ("torch", "faiss")
QUERIES_AT_ONCE = 1024
KEYS_AT_ONCE = 16_384
GROUP = 64  # keys of which first only the largest score is compared


class Index(nn.Module):
    """Exact index of keys (N, D) under the squared Euclidean distance.

    O(Q N D) time for Q queries. At most ``QUERIES_AT_ONCE`` × ``KEYS_AT_ONCE`` scores are in memory at a time. The
    found keys are those with the largest q · k − |k|² / 2; their distances are then computed from the differences,
    because that formula loses digits if a key is close to its query.

    Args:
        keys: The keys (N, D), at least one.
        backend: ``torch``, or ``faiss``, which needs the package faiss-cpu and computes in single precision on the CPU.

    Raises:
        UserError: If the backend is unknown or not installed.
    """

    def __init__(self, keys: Tensor, backend: str = "torch") -> None:
        if backend not in BACKENDS:
            raise UserError(f"model.retrieval.backend={backend}: must be one of {', '.join(BACKENDS)}")
        super().__init__()
        self.keys: Tensor
        self.half_norms: Tensor
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("half_norms", keys.square().sum(-1) / 2, persistent=False)
        self._faiss: Any = _faiss_index(keys) if backend == "faiss" else None

    def __len__(self) -> int:
        return len(self.keys)

    def search(
        self, queries: Tensor, k: int, hidden: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices, (Q, k) each, of the k keys that are nearest to each query.

        Args:
            queries: Queries (Q, D).
            k: Number of keys; if there are fewer, the remaining places have the index −1 and an infinite distance.
            hidden: Function ``hidden(queries, keys)`` of indices (q, 1) and (1, n) that returns which keys a query must
                not find, bool (q, n). Only with the backend ``torch``.

        Returns:
            The distances in increasing order, and the indices of their keys.
        """
        if self._faiss is not None and hidden is None:
            found = self._faiss.search(queries.float().cpu().contiguous().numpy(), k)[1]
            return self._nearest(queries, torch.from_numpy(found).to(queries.device))
        parts = [
            self._nearest(part, self._candidates(part, k, start, hidden))
            for start, part in zip(range(0, len(queries), QUERIES_AT_ONCE), queries.split(QUERIES_AT_ONCE), strict=True)
        ]
        if not parts:
            return queries.new_zeros(0, k), torch.zeros(0, k, dtype=torch.int64, device=queries.device)
        return torch.cat([distances for distances, _ in parts]), torch.cat([ids for _, ids in parts])

    def _candidates(
        self, queries: Tensor, k: int, start: int, hidden: Callable[[Tensor, Tensor], Tensor] | None
    ) -> Tensor:
        """Return the indices (q, k) of the keys with the largest scores; −1 if there are fewer."""
        best = queries.new_full((len(queries), k), -torch.inf)
        ids = torch.full((len(queries), k), -1, device=queries.device)
        numbers = torch.arange(start, start + len(queries), device=queries.device)[:, None]
        for first in range(0, len(self.keys), KEYS_AT_ONCE):
            keys = self.keys[first : first + KEYS_AT_ONCE]
            scores = torch.addmm(-self.half_norms[None, first : first + len(keys)], queries, keys.mT)
            if hidden is not None:
                places = torch.arange(first, first + len(keys), dtype=torch.int32, device=queries.device)[None]
                scores.masked_fill_(hidden(numbers, places), -torch.inf)
            top, where = largest(scores, min(k, len(keys)))
            joined, choice = torch.cat((best, top), 1).topk(k)
            ids = torch.cat((ids, where + first), 1).gather(1, choice).masked_fill(joined == -torch.inf, -1)
            best = joined
        return ids

    def _nearest(self, queries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances of found keys, in increasing order, and their indices (q, k)."""
        distances = torch.empty(ids.shape, dtype=queries.dtype, device=queries.device)
        rows = max(1, KEYS_AT_ONCE * 16 // max(1, ids.shape[1]))
        for start in range(0, len(queries), rows):
            part = slice(start, start + rows)
            differences = self.keys[ids[part].clamp(min=0)] - queries[part, None]
            distances[part] = differences.square().sum(-1)
        distances, order = distances.masked_fill(ids < 0, torch.inf).sort(dim=-1, stable=True)
        return distances, ids.gather(1, order)


@torch.no_grad()
def best_products(q: Tensor, k: Tensor, count: int) -> Tensor:
    """Return the indices (B, H, N, ``count``) of the keys with the largest inner product with each query.

    O(N M D) time; the inner products of at most ``QUERIES_AT_ONCE`` queries and ``KEYS_AT_ONCE`` keys of each head are
    in memory at a time.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, G, M, D), where G divides H and M is at least ``count``.
        count: Number of keys.
    """
    found = []
    for part in q.split(QUERIES_AT_ONCE, 2):
        best = part.new_zeros(*part.shape[:3], 0)
        ids = torch.zeros(*part.shape[:3], 0, dtype=torch.int64, device=q.device)
        for first in range(0, k.shape[2], KEYS_AT_ONCE):
            keys = k[:, :, first : first + KEYS_AT_ONCE]
            top, where = largest(grouped(part, keys.mT), min(count, keys.shape[2]))
            best, choice = torch.cat((best, top), -1).topk(min(count, best.shape[-1] + top.shape[-1]))
            ids = torch.cat((ids, where + first), -1).gather(-1, choice)
        found.append(ids)
    return torch.cat(found, 2)


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of scores (..., N) in decreasing order, and their indices, (..., k) each.

    The k largest elements are in the k groups of ``GROUP`` elements with the largest maxima; only the elements of these
    groups are sorted, because finding maxima is much faster than sorting.
    """
    length = scores.shape[-1]
    if length <= 2 * GROUP * k:
        return scores.topk(k)
    groups = -(-length // GROUP)
    padded = torch.nn.functional.pad(scores, (0, groups * GROUP - length), value=-torch.inf)
    grouped = padded.unflatten(-1, (groups, GROUP))
    chosen = grouped.amax(-1).topk(k).indices
    members = grouped.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP))
    top, where = members.flatten(-2).topk(k)
    return top, chosen.gather(-1, where // GROUP) * GROUP + where % GROUP


def _faiss_index(keys: Tensor) -> Any:
    """Return faiss's exact index of the keys. Raises ``UserError`` if the package is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "model.retrieval.backend=faiss: the package faiss-cpu is not installed; set model.retrieval.backend=torch "
            f"or install it ({install_command('retrieval')})"
        ) from error
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(keys.float().cpu().contiguous().numpy())
    return index

"""Full softmax attention with a prior added to the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..full.by_rows import Prior, adds_terms, attend_by_rows, attend_with_added
from ..full.softmax_attention import SoftmaxAttention
from ..kernels.devices import uses_gpu_form
from ..mixer import Context


class AddedPrior(SoftmaxAttention):
    """Base class of softmax attention with a term, the prior, added to the scores.

    A subclass defines ``prior``, which may return None in some layers. O(N^2 D) time. O(N D) memory: scores are
    computed for slices of queries and again in the backward pass; layers without a prior do not materialise scores.
    """

    spec = replace(
        SoftmaxAttention.spec, family="prior", equivariant=False, materialises="rows", full_config=None, code=None
    )

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if self.normalizer != "softmax":
            raise UserError(f"model.mixer.normalizer={self.normalizer}: the prior is one of softmax; leave it out")

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """Return the prior and its tensors to be split by queries, as in ``attend_by_rows``; None for no prior."""
        raise NotImplementedError(f"{type(self).__name__} defines no prior")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention over all keys, with the prior if there is one."""
        terms = self.prior(q, k, context)
        return super().attend(q, k, v, context) if terms is None else self.attend_with(*terms, q, k, v, context)

    def attend_with(
        self, prior: Prior, per_query: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, context: Context
    ) -> Tensor:
        """Compute softmax attention over all keys, with the results of ``prior`` as the first two arguments."""
        compared = self.compared(q, k, context)
        if uses_gpu_form(q) and adds_terms(self):
            return attend_with_added(self, q, k, v, context, compared, self.scale, prior, per_query)
        return attend_by_rows(self, q, k, v, context, self._products, compared, prior=prior, per_query=per_query)

"""Full attention whose scores have a prior added to them."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..full.by_rows import Prior, attend_by_rows
from ..full.softmax_attention import SoftmaxAttention
from ..mixer import Context


class AddedPrior(SoftmaxAttention):
    """What such systems share: a variant defines ``prior``, and may leave it out in some layers.

    O(N^2 D) time; O(N D) memory, by rows of scores that are computed again in the backward pass, and without scores
    in layers that have no prior.
    """

    spec = replace(SoftmaxAttention.spec, family="prior", equivariant=False, materialises="rows", full_config=None)

    def prior(self, q: Tensor, k: Tensor, context: Context) -> tuple[Prior, tuple[Tensor, ...]] | None:
        """What to add to scores, and the tensors beside it, as ``attend_by_rows`` takes them; None for nothing."""
        raise NotImplementedError(f"{type(self).__name__} defines no prior")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention over all keys, with the prior where there is one."""
        found = self.prior(q, k, context)
        return super().attend(q, k, v, context) if found is None else self.attend_with(*found, q, k, v, context)

    def attend_with(
        self, prior: Prior, beside: tuple[Tensor, ...], q: Tensor, k: Tensor, v: Tensor, context: Context
    ) -> Tensor:
        """Softmax attention over all keys, with a prior."""
        compared = self.compared(q, k, context)
        return attend_by_rows(self, q, k, v, context, self._products, compared, prior=prior, beside=beside)

"""Mixers with one mistake each, which the checks on the fake CUDA device must find."""

from typing import Any

import torch
from torch import Tensor

from lra_bench.models.kernels.softmax import softmax_attention
from lra_bench.models.mixer import Context, HeadMixer, MixerSpec


class _Softmax(HeadMixer):
    spec = MixerSpec(family="full", paper="none", causal="exact")


class Correct(_Softmax):
    """Control without a mistake."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return softmax_attention(q, k, v, padding=context.padding, causal=self.causal)


class TensorLeftOnHost(_Softmax):
    """Multiplies queries by a tensor that is neither a parameter nor a buffer."""

    def __init__(self, width: int, heads: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        self.scales = torch.full((self.head_dim,), 2.0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return softmax_attention(q * self.scales, k, v, padding=context.padding, causal=self.causal)


class MaskMadeOnHost(_Softmax):
    """Creates its mask without a device."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return softmax_attention(q, k, v, visible=visible)


class ReadsNumber(_Softmax):
    """Chooses a branch by a value on the device."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return v / v.detach().abs().max() if v.detach().abs().max().item() > 1 else v


class IndexesWithMask(_Softmax):
    """Writes to the positions of a boolean index, whose number the host must know."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return v * torch.ones_like(v).index_put((v.detach() > 3,), v.new_zeros(()))


class CopiesToHost(_Softmax):
    """Computes a statistic of the values on the CPU."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return v - v.detach().cpu().mean().to(v.device)


class SharesKeysUnderMask(_Softmax):
    """Passes shared keys and a mask to torch's attention, which then stores all scores."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        k, v = k[:, :1], v[:, :1]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class UploadsList(_Softmax):
    """Creates a tensor on the device from a Python list in every forward pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return v * torch.tensor([1.0] * self.head_dim, device=v.device)

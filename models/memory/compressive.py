"""Compressive Transformer: states that leave the memory are compressed into a second memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import grouped
from ..mixer import Context, MixerSpec
from .compression import Compression
from .segments import SegmentMixer, Stored, Strip

RECONSTRUCTIONS = ("none", "states", "attention")
PLACES = ("span", "slot")


class Compressive(SegmentMixer):
    """Softmax attention to the segment, a memory of M states before it, and C slots that compress the states before.

    Rae et al. 2019, arXiv 1911.05507. At the end of a segment all states but the last M leave the memory: each block of
    c = ``rate`` of them becomes one slot, and states that fill no block stay. The last C = ``compressed`` slots are
    kept, so that a layer reaches M + c C tokens back. O(N (S + M + C) E) time for segments of S tokens, and a state of
    at most (M + c + S − 2 + C) E numbers per layer.

    ``reconstruction`` trains the compression: ``attention`` minimises the squared difference of the outputs of the
    attention heads, without positions, to the old states and to their slots; ``states`` that of the old states and
    those that a transposed convolution reconstructs from the slots. Gradients of this loss reach only the compression
    (and that convolution), and the compression has no other gradient, unless ``bptt`` lets the loss of the task train
    it. ``memory_length`` is the number of slots and states together; the share of the states is that of the options.

    Deviations from the paper: the compression is trained by the optimizer of the model, so that gradient clipping
    takes both losses together; a slot has the position of the last token of its span, that of its index in the
    memory with ``places=slot``, as in the paper; states are inputs of the mixer and gradients flow across the segments
    of a batch, as in Transformer-XL.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        segment: Number S of tokens of a segment.
        memory: Number M of states in the memory.
        detach: As in ``SegmentMixer``.
        compressed: Number C of compressed slots.
        rate: Number c of states per slot.
        compression: One of ``COMPRESSIONS``.
        reconstruction: The loss that trains the compression; must be ``none`` if it has no parameters.
        bptt: Whether the loss of the task trains the compression.
        places: Positions of the slots, ``span`` or ``slot``.
        **common: Arguments of ``HeadMixer``.
    """

    spec = MixerSpec(
        family="memory",
        paper="Compressive Transformers for Long-Range Sequence Modelling",
        arxiv="1911.05507",
        causal="exact",
        positions=("embed", "rotate", "bias", "scores", "weight"),
        memory=True,
        full_config={"segment": 512, "kv_heads": None, "merge": None},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        segment: int = 512,
        memory: int = 512,
        detach: str = "none",
        compressed: int = 512,
        rate: int = 4,
        compression: str = "convolution",
        reconstruction: str = "attention",
        bptt: bool = False,
        places: str = "span",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, segment=segment, memory=memory, detach=detach, **common)
        if compressed < 0:
            raise UserError(f"model.mixer.compressed={compressed}: must be at least 0")
        if reconstruction not in RECONSTRUCTIONS:
            raise UserError(f"model.mixer.reconstruction={reconstruction}: must be one of {', '.join(RECONSTRUCTIONS)}")
        if places not in PLACES:
            raise UserError(f"model.mixer.places={places}: must be one of {', '.join(PLACES)}")
        self.compress = Compression(compression, rate, width)
        trained = any(True for _ in self.compress.parameters())
        if reconstruction == "attention" and not trained:
            raise UserError(
                f"model.mixer.reconstruction=attention: compression={compression} has no parameters to train; set "
                "model.mixer.reconstruction=none"
            )
        if compression == "most_used" and memory < segment:
            raise UserError(
                f"model.mixer.memory={memory}: with compression=most_used every state needs a segment of queries; set "
                f"it to at least model.mixer.segment={segment}"
            )
        self.memory_length, self.rate = memory + compressed, rate
        self.share = memory / max(memory + compressed, 1)
        self.reconstruction, self.bptt, self.places = reconstruction, bptt, places
        self.expand = nn.ConvTranspose1d(width, width, rate, rate) if reconstruction == "states" else None

    @property
    def states(self) -> int:
        """Number M of states in the memory."""
        return round(self.memory_length * self.share)

    @property
    def compressed(self) -> int:
        """Number C of compressed slots."""
        return self.memory_length - self.states

    def made(self, read: int) -> int:
        """Return how many slots have been made after ``read`` tokens, of which the last C are kept."""
        return max(read // self.segment * self.segment - self.states, 0) // self.rate

    def slots(self, read: int) -> Mapping[str, int]:
        """Return how many states, slots, and sums of attention are stored."""
        made = self.made(read)
        return self._counts(read - made * self.rate, min(made, self.compressed))

    def capacity(self) -> Mapping[str, int]:
        """Return the largest numbers of them."""
        return self._counts(self.states + self.rate - 1 + self.segment - 1, self.compressed)

    def row_shape(self, name: str) -> tuple[int, ...]:
        """Return (E,) for states and slots, () for the attention that a state has received."""
        return () if name == "used" else super().row_shape(name)

    def restricts_from(self) -> int:
        """Return the length at which the first token is in no memory as it is, or a segment later, if bidirectional."""
        if not self.causal:
            return self.segment + 1
        segments = -(-(self.states + self.rate) // self.segment)
        return segments * self.segment + 1

    def read(self, x: Tensor, stored: Stored, start: int, context: Context) -> tuple[Tensor, Stored, Context]:
        """Attend segment by segment to its tokens, the memory and the slots, and compress after each segment."""
        length, before, slots = x.shape[1], stored["states"].to(x.dtype), stored["slots"].to(x.dtype)
        if self.detach == "segment":
            before, slots = before.detach(), slots.detach()
        first, end = start - before.shape[1], start + length
        states = torch.cat((before, x), 1)
        bounds = self.bounds(start, length)
        ends = [start, *(stop for _, stop in bounds)]
        rows = Strip(states, first, ends)
        k, v = (Strip(each, first, ends) for each in self.keys_and_values(states))
        old_k, old_v = k, v
        if self.detach == "segment" and len(bounds) > 1:
            old_k, old_v = (Strip(each, first, ends) for each in self.keys_and_values(states.detach()))
        slot_k, slot_v = self.keys_and_values(slots)
        q = self.split(self.query(x))
        positions = self.positions_from(first, start, length, context)
        if first:  # slots before the first state must have positions of at least 0, which mark tokens
            positions = positions + self.compressed * self.rate
        used = None
        if "used" in stored:
            used = torch.cat((stored["used"], x.new_zeros(x.shape[:2])), 1)
        outputs, losses = [], []
        for (begin, stop), part in zip(bounds, q.split([stop - begin for begin, stop in bounds], 2), strict=True):
            made = self.made(begin)
            low, of_segment = made * self.rate, begin // self.segment * self.segment
            own = max(low, of_segment)
            weights = self.weigh(
                part,
                torch.cat((slot_k, old_k.joined(k, low, own, stop)), 2),
                positions[..., begin - first : stop - first],
                torch.cat(
                    (
                        self._slot_positions(positions, first, made, slot_k.shape[2]),
                        positions[..., low - first : stop - first],
                    ),
                    -1,
                ),
                self._visible_with_slots(slot_k.shape[2], low, begin, stop, context),
            )
            outputs.append(self.combine(weights, torch.cat((slot_v, old_v.joined(v, low, own, stop)), 2)))
            if used is not None:
                received = weights.detach()[..., slot_k.shape[2] : slot_k.shape[2] + of_segment - low].mean(1).sum(1)
                used[:, low - first : of_segment - first] += received
            new = self.made(stop) - made
            if new:
                high = low + new * self.rate
                old = rows.window(low, high)
                taken = None if used is None else self._mean_use(used[:, low - first : high - first], low, stop)
                if self.training and self.reconstruction != "none":
                    segment = rows.window(begin, stop)
                    losses.append(self._loss(segment.detach(), old.detach(), taken, stop, context))
                source = old.detach() if self.detach == "segment" else old
                made_now = self.compress(source, taken) if self.bptt else self.compress.frozen(source, taken)
                slots = torch.cat((slots, made_now), 1)
                slots = slots[:, max(slots.shape[1] - self.compressed, 0) :]
                slot_k, slot_v = self.keys_and_values(slots)
        o = torch.cat(outputs, 2)
        if losses:
            context = context.add_loss("compression", torch.stack(losses).mean())
        y, context = self.finish(o, q, k.window(start, end), v.window(start, end), context)
        counts = self.slots(end)
        after = {"states": states[:, states.shape[1] - counts["states"] :], "slots": slots}
        if used is not None:
            after["used"] = used[:, used.shape[1] - counts["used"] :]
        return y, after, context

    def _counts(self, states: int, slots: int) -> dict[str, int]:
        used = {"used": states} if self.compress.kind == "most_used" else {}
        return {"states": states, "slots": slots, **used}

    def _visible_with_slots(self, slots: int, low: int, first: int, end: int, context: Context) -> Tensor | None:
        """Return ``visible`` with all slots in front."""
        mask = self.visible(low, first, end, context)
        return None if mask is None else F.pad(mask, (slots, 0), value=True)

    def _slot_positions(self, positions: Tensor, first: int, made: int, count: int) -> Tensor:
        """Return the positions (…, ``count``) of the last slots of ``made``."""
        numbers = torch.arange(made - count, made, device=positions.device)
        own_span = self.places == "span"
        at = numbers * self.rate + self.rate - 1 if own_span else made * self.rate - made + numbers
        return positions[..., at] if not first else positions[..., :1] + at - first

    def _mean_use(self, used: Tensor, low: int, read: int) -> Tensor:
        """Return the mean attention per query that states from ``low`` on received since they are in the memory."""
        places = torch.arange(low, low + used.shape[1], device=used.device)
        entered = (places // self.segment + 1) * self.segment
        return used / (read - entered).clamp(min=1)

    def _loss(self, segment: Tensor, old: Tensor, used: Tensor | None, read: int, context: Context) -> Tensor:
        """Return the reconstruction loss of the slots of ``old`` (B, c K, E), the mean over rows without padding.

        ``segment`` (B, S, E) is the current segment; both must be detached.
        """
        slots = self.compress(old, used)
        if self.expand is not None:
            found, wanted = self.expand(slots.mT).mT, old
        else:
            q = self._frozen(self.query, segment)
            found, wanted = (
                grouped(
                    (grouped(q * self.head_dim**-0.5, self._frozen(self.key, each).mT)).softmax(-1),
                    self._frozen(self.value, each),
                )
                for each in (slots, old)
            )
        errors = (found - wanted).square().flatten(1).mean(1)
        if context.padding is None:
            return errors.mean()
        whole = context.padding.lengths >= read
        return (errors * whole).sum() / whole.sum().clamp(min=1)

    def _frozen(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return the heads of a projection of x whose weights get no gradient."""
        bias = None if layer.bias is None else layer.bias.detach()
        return self.split(F.linear(x, layer.weight.detach(), bias))

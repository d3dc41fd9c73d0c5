"""Base classes of token mixers: their interface, declared capabilities and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.build import build
from lra_bench.contracts import Capability, UserError

from .heads.choice import LOSSES, MERGES, Choice, loss_nodes, merge_node
from .positions.position import Position


@dataclass(frozen=True)
class MixerSpec(Capability):
    """Capabilities of a mixer, and two fields that are not stored in records.

    Attributes:
        full_config: Constructor options with which the mixer computes full softmax attention. A test compares both.
            None if there are no such options.
        extra_flops: ``extra_flops(length, width, heads)`` returns the forward FLOPs of one layer per example for the
            operations that the FLOP counter does not register. None if it registers all operations.
    """

    full_config: Mapping[str, Any] | None = None
    extra_flops: Callable[[int, int, int], int] | None = None


@dataclass(frozen=True)
class Padding:
    """Padding mask of a right-padded batch.

    Attributes:
        valid: (B, N) bool, true at positions that are not padding.
        lengths: (B,), number of valid positions of each sequence, prefix positions included.
        host_lengths: ``lengths`` on the CPU; None if unknown, or if ``lengths`` are on the CPU themselves.
    """

    valid: Tensor
    lengths: Tensor
    host_lengths: Tensor | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor, padded_length: int, host_lengths: Tensor | None = None) -> Padding:
        """Return the padding of sequences with ``lengths`` (B,), right-padded to ``padded_length`` positions."""
        return cls(torch.arange(padded_length, device=lengths.device) < lengths[:, None], lengths, host_lengths)

    def lengths_on_host(self) -> Tensor:
        """Return ``lengths`` on the CPU; waits for the GPU only if ``host_lengths`` is unknown."""
        return self.lengths.cpu() if self.host_lengths is None else self.host_lengths

    def key_mask(self) -> Tensor:
        """Return ``valid`` as (B, 1, 1, N), which broadcasts against attention scores."""
        return self.valid[:, None, None, :]

    def zero(self, x: Tensor) -> Tensor:
        """Return ``x`` (B, N, ...) with padding set to zero, even where it contains NaN or inf."""
        return x.masked_fill(~self.valid.reshape(*self.valid.shape, *[1] * (x.dim() - 2)), 0)

    def zero_heads(self, x: Tensor) -> Tensor:
        """Return ``x`` (B, H, N, D) with padding set to zero."""
        return x.masked_fill(~self.valid[:, None, :, None], 0)


@dataclass(frozen=True)
class Context:
    """Inputs and outputs of a mixer other than the hidden states.

    A mixer receives a context and returns it with its outputs: ``memory``, ``carry``, ``losses`` and ``statistics``. A
    context is never changed in place; its methods return a modified copy.

    Attributes:
        padding: Padding of the batch; None if no sequence is padded.
        positions: (N,) or (B, N), absolute position of each token, counted from 0; −1 at prefix positions.
        prefix: Number of leading positions that are not tokens of the input, such as CLS.
        depth: Index of the current layer, from 0. (``Mixer.depth`` is the number of layers.)
        memory: State of the current layer for streams of batches. The layer receives the state that it returned for the
            previous batch, and returns the new one. A layer whose state needs positions or a mask stores them in it.
            None, or zeros in all tensors, is the empty state.
        carry: Values that one layer passes to the next, by name of the system.
        losses: Auxiliary losses by name, already weighted, summed over the layers so far.
        statistics: Detached tensors for ``after_step``, by qualified name of the module and name of the tensor.
        grid: (rows, columns) if the sequence is an image, otherwise None.
        train_length: Length of the longest training example in tokens; None if unknown.
        keeps_memory: Whether the network passes the memory of its layers on; otherwise layers may return None.
        residual: Input (B, N, E) of the block, to which the output of the mixer is added: that of the mixer before the
            norm, if the norm is placed before the mixer. Set during ``Block.mix`` only, otherwise None.
    """

    padding: Padding | None
    positions: Tensor
    prefix: int = 0
    depth: int = 0
    memory: Any = None
    carry: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    grid: tuple[int, int] | None = None
    train_length: int | None = None
    keeps_memory: bool = False
    residual: Tensor | None = None

    def clamped_positions(self) -> Tensor:
        """Return ``positions`` with those of padding replaced by the position of the last token: (B, N).

        Without padding the result is ``positions`` itself. For position encodings that compute the length of a sequence
        from its largest position (``Position.depends_on_length``).
        """
        if self.padding is None:
            return self.positions
        last = self.positions.masked_fill(~self.padding.valid, -1).amax(-1, keepdim=True)
        return torch.minimum(self.positions, last)

    def replace(self, **changes: Any) -> Context:
        """Return a copy with the given fields replaced."""
        return replace(self, **changes)

    def with_carry(self, system: str, value: Any) -> Context:
        """Return a copy that passes ``value`` to the next layer as ``carry[system]``."""
        return replace(self, carry={**self.carry, system: value})

    def add_loss(self, name: str, loss: Tensor) -> Context:
        """Return a copy with ``loss`` added to ``losses[name]``, which is zero if not set."""
        return replace(self, losses={**self.losses, name: self.losses[name] + loss if name in self.losses else loss})

    def report(self, module: nn.Module, **statistics: Tensor) -> Context:
        """Return a copy with statistics of ``module``, which ``after_step`` receives after the optimizer step.

        Tensors are detached. If the module has already reported a statistic in this forward pass, both are summed.
        """
        name = str(module.statistics_name)
        before = self.statistics.get(name, {})
        summed = {key: value.detach() + before.get(key, 0) for key, value in statistics.items()}
        return replace(self, statistics={**self.statistics, name: {**before, **summed}})


def name_modules(model: nn.Module) -> None:
    """Set ``statistics_name`` of each module with ``after_step`` to its qualified name."""
    for name, module in model.named_modules():
        if hasattr(module, "after_step"):
            module.statistics_name = name


class Mixer(nn.Module):
    """Token mixer: x (B, N, E) to y (B, N, E), without residual connection, norm or feed-forward network.

    Raises ``UserError`` if the mixer does not support the direction (causal or bidirectional) or a hook of the position
    encoding other than ``embed``, which the backbone applies. If ``causal`` is true, ``spec.causal`` must be ``exact``:
    ``pseudo`` and ``none`` are refused.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        layer: Index of this layer, from 0.
        depth: Number of layers of the model. (``Context.depth`` is the index of the current one.)
        max_length: Longest expected sequence in positions, including the CLS position if there is one.
        causal: If true, the output at a position depends on that position and earlier ones only.
        dropout: Dropout probability in training mode; see ``drop_rate``.
        seed: Seed of random numbers that are not parameters, such as random attention patterns.
        position: Position encoding whose hooks, except ``embed``, the mixer applies; None if it applies none.
    """

    spec: MixerSpec
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""
    drops_output: ClassVar[bool] = False
    """Whether ``forward`` applies the dropout at the output of the branch, which the block then does not apply."""
    has_step_form: ClassVar[bool] = False
    """Whether the causal form returns its state as memory if ``Context.keeps_memory`` is set, though not for streams.

    A class does not inherit the value, because it may compute something else. Mixers with ``spec.memory`` always can.
    """
    separates_cls: ClassVar[bool] = False
    """Whether a CLS row and the tokens attend to each other at every length; ``restricts_from`` then counts tokens."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        layer: int = 0,
        depth: int = 1,
        max_length: int = 1024,
        causal: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.layer, self.depth = width, heads, layer, depth
        self.max_length, self.causal, self.dropout, self.seed = max_length, causal, dropout, seed
        self.position = position
        if causal and self.spec.causal != "exact":
            raise UserError(f"model.mixer: {type(self).__name__} has no exact causal form; choose a bidirectional task")
        if not causal and not self.spec.bidirectional:
            raise UserError(f"model.mixer: {type(self).__name__} has no bidirectional form; choose a causal task")
        if position is not None and (unsupported := position.hooks - {"embed"} - set(self.spec.positions)):
            raise UserError(
                f"position={position.name}: {type(self).__name__} does not support its "
                f"{' and '.join(sorted(unsupported))} hook; choose a position that has no hooks other than "
                f"{', '.join(sorted({'embed', *self.spec.positions}))} (lra-bench list positions)"
            )

    @classmethod
    def spec_of(cls, options: Mapping[str, Any]) -> MixerSpec:
        """Return the capabilities with these options of the constructor, by default those of the class."""
        return cls.spec

    def restricts_from(self) -> int | None:
        """Return the smallest length at which the mixer restricts what a token can attend to.

        Below it, every token attends to every visible one, and no summary has fewer vectors than there are tokens.
        Lengths are in positions with the CLS row, unless ``separates_cls``, and without ``prefix_rows``. The result is
        0 for a mixer that is not attention to tokens at any length, such as a recurrence, a convolution, or a sum of
        all keys and values, and None for attention that is unrestricted at every length.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no restricts_from")

    def refuses_steps(self) -> str | None:
        """Return why a sequence cannot be read in parts with the state as memory in between, None if it can."""
        name = type(self).__name__
        if not self.causal:
            return f"{name} is bidirectional here"
        return None if self.spec.memory or vars(type(self)).get("has_step_form") else f"{name} has no step form"

    @property
    def drop_rate(self) -> float:
        """Current dropout probability: ``dropout`` in training mode, zero in evaluation mode.

        It applies to attention weights. Mixers without attention weights apply it to an equivalent, such as the outputs
        of a convolution.
        """
        return self.dropout if self.training else 0.0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Mix x (B, N, E) into y (B, N, E) and return y with the updated context."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def apply_rotation(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys with the ``rotate`` hook of the position encoding, if it has one.

        Args:
            q: Queries (B, H, N, D) of the first N positions of the sequence.
            k: Keys (B, G, M, D) of the first M positions of the sequence.
            context: Context with the positions.

        Returns:
            The rotated queries and keys, or q and k if there is no ``rotate`` hook.
        """
        if self.position is None or "rotate" not in self.position.hooks:
            return q, k
        positions = context.clamped_positions() if self.position.depends_on_length else context.positions
        length = positions.shape[-1]
        # The tensor is sliced only if necessary: for identical tensors, ``rotate`` computes the angles once.
        q_positions, k_positions = (positions if x.shape[2] == length else positions[..., : x.shape[2]] for x in (q, k))
        return self.position.rotate(q, k, q_positions, k_positions)

    def prefix_rows(self, x: Tensor, context: Context) -> Tensor | None:
        """Return P vectors (B, P, E), such as global tokens, to insert in front of the tokens x (B, N, E), or None.

        The backbone calls this once per forward pass, on the mixer of the first layer.
        """
        return None


class HeadMixer(Mixer):
    """Multi-head mixer with query, key, value and output projections.

    A typical subclass defines ``attend`` only: q (B, H, N, D), k and v (B, G, N, D) to (B, H, N, D). Weights are
    initialised Xavier-uniform, biases to zero. Raises ``UserError`` if ``heads`` does not divide ``width`` and
    ``head_dim`` is not set, or if ``kv_heads`` does not divide ``heads``.

    Args:
        width: Number of features E.
        heads: Number of query heads H.
        head_dim: Number of features per head D; by default width / heads.
        kv_heads: Number of key and value heads G, a divisor of ``heads``; by default ``heads``.
        qkv_bias: Whether the query, key and value projections have a bias.
        output_bias: Whether the output projection has a bias.
        merge: Module that the method ``merge`` applies to the outputs of the heads: a name in ``heads.choice.MERGES``,
            or a mapping with ``name`` and options. None for a linear output projection.
        head_losses: One or more auxiliary losses on the heads: names in ``heads.choice.LOSSES``, or mappings with
            ``name`` and options. None for no loss.
        **common: Arguments of ``Mixer``.
    """

    shows_heads: ClassVar[bool] = True
    """Whether ``forward`` calls ``finish``, which computes the head losses.

    A class that overrides ``forward`` must set this attribute itself. ``HeadLoss`` ignores an inherited value.
    """
    named_classes: ClassVar[Mapping[str, Mapping[str, str]]] = {"merge": MERGES, "head_losses": LOSSES}
    """Classes by name, for each option that selects classes by name; the hash of cells covers their defaults too."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        qkv_bias: bool = True,
        output_bias: bool = True,
        merge: Choice | None = None,
        head_losses: Choice | Sequence[Choice] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if head_dim is None and width % heads:
            raise UserError(f"backbone.heads={heads}: does not divide width {width}; set backbone.head_dim")
        self.head_dim = head_dim or width // heads
        self.kv_heads = kv_heads or heads
        if heads % self.kv_heads:
            raise UserError(f"model.mixer.kv_heads={kv_heads}: does not divide backbone.heads={heads}")
        self.query = nn.Linear(width, heads * self.head_dim, bias=qkv_bias)
        self.key = nn.Linear(width, self.kv_heads * self.head_dim, bias=qkv_bias)
        self.value = nn.Linear(width, self.kv_heads * self.head_dim, bias=qkv_bias)
        # Created even if ``merge`` replaces it, so that ``merge`` does not change the other initial weights.
        self.output: nn.Module = nn.Linear(heads * self.head_dim, width, bias=output_bias)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if merge is not None:
            sizes = {"heads": heads, "head_dim": self.head_dim, "width": width}
            self.output = build(merge_node(merge), nn.Module, "model.mixer.merge", **sizes)
        self.head_losses = nn.ModuleList(
            build(node, nn.Module, "model.mixer.head_losses", mixer=self) for node in loss_nodes(head_losses)
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (B, N, E) to queries (B, H, N, D), keys and values (B, G, N, D)."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))

    def split(self, x: Tensor) -> Tensor:
        """Split (B, N, H·D) into heads (B, H, N, D)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def merge(self, o: Tensor) -> Tensor:
        """Combine the outputs of the heads (B, H, N, D) into (B, N, E), by default with a linear projection."""
        return self.output(o.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x (B, N, E), attend and merge the heads into (B, N, E)."""
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        return self.finish(self.attend(q, k, v, context), q, k, v, context)

    def finish(self, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Merge the outputs of the heads; in training mode also add the head losses to the context.

        Args:
            o: Outputs of the heads (B, H, N, D).
            q: Queries given to ``attend``, (B, H, N, D).
            k: Keys given to ``attend``, (B, G, N, D).
            v: Values given to ``attend``, (B, G, N, D).
            context: Context to which losses are added.
        """
        if self.training:
            for loss in self.head_losses:
                context = loss(self, o, q, k, v, context)
        return self.merge(o), context

    def bias(self, context: Context) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return a function that computes the position bias of blocks of scores, or None if there is no ``bias`` hook.

        The arguments of the function are the indices in the sequence of the r queries (X, r) and the K keys (X, K) of
        each of X blocks. It returns the bias (1 or B, H, X, r, K) to add to the scores; its first axis is 1 if all
        examples have the same positions.
        """
        position, positions = self.position, context.positions
        if position is None or "bias" not in position.hooks:
            return None

        def block_bias(queries: Tensor, keys: Tensor) -> Tensor:
            q_positions, k_positions = (positions[..., index].flatten(0, -2) for index in (queries, keys))
            return position.bias(q_positions, k_positions).unflatten(0, (-1, len(queries))).transpose(1, 2)

        return block_bias

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend with q (B, H, N, D) to k and v (B, G, N, D); return (B, H, N, D)."""
        raise NotImplementedError(f"{type(self).__name__} defines no attend")

    def use_weights(
        self,
        q: Tensor,
        k: Tensor,
        context: Context,
        use: Callable[[Tensor, int, Tensor | None], Tensor],
        heads: int | None = None,
    ) -> Tensor:
        """Apply ``use`` to the attention weights of ``attend``, one slice of queries at a time.

        For head losses on attention weights. Subclasses without attention weights do not define it.

        Args:
            q: Queries (B, H, N, D) given to ``attend``.
            k: Keys (B, G, N, D) given to ``attend``.
            context: Context with the padding and positions.
            use: Function ``use(weights, start, mask)`` that returns the results (B, X, r, Y) for r queries from index
                ``start`` on. ``weights`` (B, H, r, K) are their attention weights for the first K keys. ``mask``
                broadcasts to them and is true for visible keys; it is None if all are visible. See ``weights_by_rows``.
            heads: Number of first heads whose weights ``use`` needs, by default all. It may receive those of all heads.

        Returns:
            The concatenated results (B, X, N, Y).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no use_weights")

"""Recurrent encoder-decoder: an encoder reads the sequence and a decoder outputs its label, or generates an answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from ..embedding import DEVIATION, embedding
from ..feedforward import linear
from ..kernels.dropout import Dropout
from ..kernels.recurrent import recurrent
from ..mixer import Padding
from ..readout import Head
from ..source_target import one_output_only, parameter_parts, source_and_target
from .lstm import open_forget_gates
from .network import draw_gates

Cell = Literal["lstm", "gru"]
NETWORKS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"lstm": 4, "gru": 3}


class Seq2Seq(nn.Module):
    """Recurrent encoder-decoder: a bidirectional encoder, and a decoder of one step, or one step per symbol.

    Sutskever, Vinyals, Le 2014, arXiv 1409.3215; Cho et al. 2014, arXiv 1406.1078. A label is a target sequence of one
    symbol, so that the decoder takes one step, from a learned start symbol. With ``attention`` a small network compares
    the decoder's initial state with every state of the encoder, and their weighted mean is an additional input of the
    step and of the output head (Bahdanau, Cho, Bengio 2015, arXiv 1409.0473). Without it all information passes through
    the last state.

    In tasks of kind ``generation`` the encoder reads the source, and the decoder one symbol of the answer per step,
    from the separator on. With ``attention`` its state before a step is compared with the states of the encoder.

    Tokens (B, N) or values (B, N, C) to logits (B, classes), or (B, N, classes) in generation. O(N S^2) time, in N
    sequential steps; O(N S) memory. Does not support other tasks that score every token. Raises ``UserError`` for an
    invalid ``cell`` or ``hidden``.

    Deviations from the papers: the encoder is bidirectional also without attention; the decoder's initial state is
    computed from the states of the encoder's last layer only, by a projection and tanh.

    Args:
        spec: Specification of the task.
        width: Number of features of the embeddings E.
        depth: Number of encoder layers.
        ff_width: Hidden width of the output head.
        dropout: Dropout probability.
        hidden: State size S of both directions together, an even number; by default the largest with which the network
            has no more parameters than a Transformer of this ``width``, ``depth`` and ``ff_width``.
        cell: ``lstm`` or ``gru``.
        attention: Whether the decoder attends to the states of the encoder.
    """

    capability = Capability(
        family="recurrent",
        paper="Sequence to Sequence Learning with Neural Networks",
        arxiv="1409.3215",
        positions=(),
    )
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self,
        *,
        spec: TaskSpec,
        width: int = 64,
        depth: int = 2,
        ff_width: int = 128,
        dropout: float = 0.1,
        hidden: int | None = None,
        cell: Cell = "gru",
        attention: bool = False,
    ) -> None:
        super().__init__()
        if cell not in get_args(Cell):
            raise UserError(f"model.network.cell={cell}: must be one of {', '.join(get_args(Cell))}")
        if hidden is not None and (hidden < 2 or hidden % 2):
            raise UserError(f"model.network.hidden={hidden}: must be even, for two directions, and at least 2")
        if hidden is None:
            budget = depth * width * (4 * width + 2 * ff_width)
            hidden = _largest_hidden(budget, width=width, depth=depth, gates=GATES[cell], attention=attention)
        self.spec, self.cell = spec, cell
        self.embedding, self.drop = embedding(spec, width), Dropout(dropout)
        layer_dropout = dropout if depth > 1 else 0.0
        kind = NETWORKS[cell]
        self.encoder = kind(width, hidden // 2, depth, batch_first=True, bidirectional=True, dropout=layer_dropout)
        self.begin, symbol = linear(hidden, hidden), nn.Parameter(torch.randn(width) * DEVIATION)
        self.symbol = symbol if spec.separator is None else None  # a source ends in a separator
        self.attend = AdditivePooling(hidden) if attention else None
        self.decoder = kind(width + hidden * attention, hidden, batch_first=True)
        for network in (self.encoder, self.decoder):
            draw_gates(network)
            if cell == "lstm":
                open_forget_gates(network)
        self.head = Head(spec, hidden * (1 + attention), ff_width, "gelu", dropout)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the logits: (B, classes), or (B, N, classes) in generation."""
        rows = source_and_target(batch, self.spec)
        known = batch.host_lengths if self.spec.separator is None else None
        host = (rows.lengths.cpu() if known is None else known).flatten()
        # Packed sequences cannot be empty: a sequence without tokens is read as one padding token.
        lengths = rows.lengths.clamp(min=1)
        states, last, cells = self.encode(self.drop(self.embedding(rows.inputs)), host.clamp(min=1))
        state = self.begin(last).tanh()[None]
        before = (state, cells[None]) if cells is not None else state
        if rows.tokens is None:
            assert self.symbol is not None
            symbols = self.symbol.to(states.dtype).expand(len(states), 1, -1)
        else:
            symbols = self.drop(self.embedding(rows.tokens))
        outputs = self.decode(symbols, before, states, Padding.from_lengths(lengths, states.shape[1]))
        if rows.tokens is None:
            return Output(self.head(self.drop(outputs[:, 0])))
        return Output(rows.in_rows(self.head(self.drop(outputs))))

    def decode(self, symbols: Tensor, before: Any, states: Tensor, padding: Padding) -> Tensor:
        """Run the decoder on symbols (B, T, E), and return its outputs (B, T, S), or (B, T, 2 S) with attention.

        ``before`` is its initial state, ``states`` (B, N, S) and ``padding`` are those of the encoder.
        """
        if self.attend is None:
            outputs: Tensor = recurrent(self.decoder, symbols, before)[0]
            return outputs
        steps, projected = [], self.attend.for_rows(states)
        for symbol in symbols.split(1, 1):
            hidden = before[0] if self.cell == "lstm" else before
            attended = self.attend(states, projected, hidden[0], padding)[:, None]
            output, before = recurrent(self.decoder, torch.cat((symbol, attended), -1), before)
            steps.append(torch.cat((output, attended), -1))
        return torch.cat(steps, 1)

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Encode x (B, N, E) with ``lengths`` (B,) on the CPU.

        Returns the states of the last layer (B, N, S), the final states of both directions (B, S), and for an LSTM
        their cells (B, S), otherwise None.
        """
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_states, ends = recurrent(self.encoder, packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(packed_states, batch_first=True, total_length=x.shape[1])
        last, cells = (torch.cat((end[-2], end[-1]), -1) for end in (ends if self.cell == "lstm" else (ends, ends)))
        return states, last, cells if self.cell == "lstm" else None

    def supports(self, spec: TaskSpec) -> str | None:
        """Return a reason if the task scores every token of its input, otherwise None."""
        return one_output_only("Seq2Seq", spec)

    def restricts_from(self) -> int:
        """Return 0: the tokens are in states of fixed size, also with attention to the encoder."""
        return 0

    def parameter_parts(self) -> dict[str, int]:
        """Return the number of parameters in total and by part."""
        return parameter_parts(self, self.embedding, self.head)


class AdditivePooling(nn.Module):
    """Mean of hidden states weighted by softmax(v · tanh(W x_j + U s)): states (B, N, S) and s (B, S) to (B, S)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.for_rows, self.for_state = linear(width, width), linear(width, width, bias=False)
        self.weigh = linear(width, 1, bias=False)

    def forward(self, rows: Tensor, projected: Tensor, state: Tensor, padding: Padding) -> Tensor:
        """Return the weighted mean of ``rows`` over the valid positions, at least one in each sequence.

        ``projected`` is ``for_rows(rows)``, so that it is computed once for several states.
        """
        scores = self.weigh((projected + self.for_state(state)[:, None]).tanh())[..., 0]
        weights = scores.masked_fill(~padding.valid, -torch.inf).softmax(-1)
        return (weights[:, None].to(rows.dtype) @ rows)[:, 0]


def _largest_hidden(budget: int, *, width: int, depth: int, gates: int, attention: bool) -> int:
    """Return the largest even state size (at least 2) with which the network has at most ``budget`` parameters.

    Counts the parameters of encoder, decoder and attention, not those of the embeddings and the head.
    """

    def weights(hidden: int) -> int:
        # Each direction has half of the state; each gate has two biases.
        layers = sum(gates * hidden * (size + hidden // 2 + 2) for size in (width, *[hidden] * (depth - 1)))
        step = gates * hidden * (width + hidden * attention + hidden + 2)
        return layers + step + hidden * (hidden + 1) + attention * hidden * (2 * hidden + 2) + width

    hidden = 2
    while weights(hidden + 2) <= budget:
        hidden += 2
    return hidden

"""An encoder that reads the row and a decoder that writes its label."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError

from ..embedding import DEVIATION, embedding
from ..feedforward import linear
from ..kernels.dropout import Dropout
from ..mixer import Padding
from ..readout import Head
from .lstm import open_forget_gates
from .network import draw_gates

Cell = Literal["lstm", "gru"]
NETWORKS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"lstm": 4, "gru": 3}


class Seq2Seq(nn.Module):
    """Recurrent layers read the row in both directions; one step of another cell begins where they end and is read out.

    Sutskever, Vinyals, Le 2014, arXiv 1409.3215; Cho et al. 2014, arXiv 1406.1078. A label is a target of one symbol:
    the decoder takes one step, from a learned symbol of beginning. ``attention`` lets it look back: a small network
    compares its state with every state of the encoder, and their mean by softmax is read beside the symbol and beside
    what the step comes to (Bahdanau, Cho, Bengio 2015, arXiv 1409.0473); without, all must pass through the last state.
    Tokens (B, N) or values (B, N, C) -> logits (B, classes). O(N S^2) time, one row after the other, O(N S) memory.
    ``hidden`` is S, the width of the state of both directions together, by default the largest with which the network
    has no more weights than a Transformer of this ``width``, ``depth`` and ``ff_width``. No task that scores every
    token: the decoder writes one symbol. Raises ``UserError`` where an option does not fit.
    Deviates: the encoder reads both ways, also without attention, where the papers read one way; its last layer's
    states alone begin the decoder, through a projection and tanh.
    """

    capability = Capability(
        family="recurrent",
        paper="Sequence to Sequence Learning with Neural Networks",
        arxiv="1409.3215",
        positions=(),
    )

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
            raise UserError(f"model.network.cell={cell}: is none of {', '.join(get_args(Cell))}")
        if hidden is not None and (hidden < 2 or hidden % 2):
            raise UserError(f"model.network.hidden={hidden}: must be even and at least 2, for two directions")
        if hidden is None:
            budget = depth * width * (4 * width + 2 * ff_width)
            hidden = _widest(budget, width=width, depth=depth, gates=GATES[cell], attention=attention)
        self.spec, self.cell = spec, cell
        self.embedding, self.drop = embedding(spec, width), Dropout(dropout)
        inner = dropout if depth > 1 else 0.0
        kind = NETWORKS[cell]
        self.encoder = kind(width, hidden // 2, depth, batch_first=True, bidirectional=True, dropout=inner)
        self.begin, self.symbol = linear(hidden, hidden), nn.Parameter(torch.randn(width) * DEVIATION)
        self.attend = AdditivePooling(hidden) if attention else None
        self.decoder = kind(width + hidden * attention, hidden, batch_first=True)
        for network in (self.encoder, self.decoder):
            draw_gates(network)
            if cell == "lstm":
                open_forget_gates(network)
        self.head = Head(spec, hidden * (1 + attention), ff_width, "gelu", dropout)

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Logits (B, classes)."""
        inputs, lengths = batch.inputs, batch.lengths
        if lengths.dim() == 2:
            inputs, lengths = inputs.flatten(0, 1), lengths.flatten()
        # A row without tokens is read as one of padding, for there is nothing else to read.
        lengths = lengths.clamp(min=1)
        rows, last, cells = self.encode(self.drop(self.embedding(inputs)), lengths)
        state = self.begin(last).tanh()
        found: tuple[Tensor, ...] = ()
        if self.attend is not None:
            found = (self.attend(rows, state, Padding.from_lengths(lengths, rows.shape[1])),)
        symbol = self.symbol.to(rows.dtype).expand(len(rows), -1)
        before = (state[None], cells[None]) if cells is not None else state[None]
        after, _ = self.decoder(torch.cat((symbol, *found), -1)[:, None], before)
        return Output(self.head(self.drop(torch.cat((after[:, 0], *found), -1))))

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """States of the last layer (B, N, S), those at which both directions end (B, S), and the cells of these."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, ends = self.encoder(packed)
        rows, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        last, cells = (torch.cat((end[-2], end[-1]), -1) for end in (ends if self.cell == "lstm" else (ends, ends)))
        return rows, last, cells if self.cell == "lstm" else None

    def supports(self, spec: TaskSpec) -> str | None:
        """A reason where tokens are scored one by one: the decoder writes one label."""
        return f"Seq2Seq has one answer per row, {spec.name} wants one per token" if spec.per_token else None

    def parameter_parts(self) -> dict[str, int]:
        """Parameters in total and by part."""
        total, embeddings, head = (
            sum(p.numel() for p in part.parameters()) for part in (self, self.embedding, self.head)
        )
        body = total - embeddings - head
        return {
            "total": total,
            "body": body,
            "body_active": body,
            "embeddings": embeddings,
            "positions": 0,
            "head": head,
        }


class AdditivePooling(nn.Module):
    """The mean of rows by softmax(v · tanh(W x_j + U s)): rows (B, N, S) and a state s (B, S) to (B, S)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.for_rows, self.for_state = linear(width, width), linear(width, width, bias=False)
        self.weigh = linear(width, 1, bias=False)

    def forward(self, rows: Tensor, state: Tensor, padding: Padding) -> Tensor:
        """Of real rows, at least one."""
        scores = self.weigh((self.for_rows(rows) + self.for_state(state)[:, None]).tanh())[..., 0]
        weights = scores.masked_fill(~padding.valid, -torch.inf).softmax(-1)
        return (weights[:, None].to(rows.dtype) @ rows)[:, 0]


def _widest(budget: int, *, width: int, depth: int, gates: int, attention: bool) -> int:
    """The largest even state with which encoder, decoder and attention have at most ``budget`` weights; at least 2."""

    def weights(hidden: int) -> int:
        # Either direction has half of the state, and every gate two biases.
        layers = sum(gates * hidden * (size + hidden // 2 + 2) for size in (width, *[hidden] * (depth - 1)))
        step = gates * hidden * (width + hidden * attention + hidden + 2)
        return layers + step + hidden * (hidden + 1) + attention * hidden * (2 * hidden + 2) + width

    hidden = 2
    while weights(hidden + 2) <= budget:
        hidden += 2
    return hidden

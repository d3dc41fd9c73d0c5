"""Evaluate a language model with contexts of different lengths, always scored on the same tokens.

A position is the index of a token in its document; the model predicts the token after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.windows import Windows, cut, join
from lra_bench.progress import bar
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.evaluation import Evaluation, evaluating, summarise, target_figures

CONTEXT_VARIANTS = ("context", "sliding", "stateful")
"""Ways to provide the context.

``context``: windows that do not overlap. ``sliding``: windows that overlap by half and whose second half is scored.
``stateful``: consecutive segments between which the model's memory is passed on.
"""

PER_DOUBLING = 2
"""Number of bins of the numbers of tokens read, per doubling."""


@dataclass(frozen=True)
class Region:
    """The positions on which every context is scored: ``runs`` of (document, begin, end).

    At least ``piece`` positions precede each run, so that the longest context is available for all scored positions.
    The length of a run is a multiple of ``piece``, and ``piece`` is a multiple of ``unit``. The results of ``unit``
    consecutive positions are summed as one row, for every context.
    """

    runs: tuple[tuple[int, int, int], ...]
    piece: int
    unit: int

    @property
    def positions(self) -> int:
        """Number of positions in all runs."""
        return sum(end - begin for _, begin, end in self.runs)

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """The predicted tokens as (document, start, stop); the token after each position is predicted."""
        return [(document, begin + 1, end + 1) for document, begin, end in self.runs]


def region_of(rows: Rows, longest: int, tokens: int) -> Region:
    """Choose a region of about ``tokens`` positions for contexts of up to ``longest`` tokens.

    Documents contribute the positions after their first ``longest`` positions, in order, until there are enough. If no
    document is twice as long as ``longest``, half of the longest document is used instead of ``longest``. Raises
    ``UserError`` if every document has fewer than three tokens.
    """
    positions = rows.lengths - 1
    half = int(positions.max()) // 2
    if half < 1:
        raise UserError(f"task={rows.spec.name}: the test text is too short to compare contexts on it")
    unit = min(rows.spec.train_length, longest, half)
    piece = min(-(-longest // unit), half // unit) * unit
    missing = max(1, round(tokens / piece))
    runs = []
    for document in np.flatnonzero(positions >= 2 * piece).tolist():
        pieces = min(missing, int(positions[document]) // piece - 1)
        runs.append((document, piece, piece + pieces * piece))
        missing -= pieces
        if not missing:
            break
    return Region(tuple(runs), piece, unit)


@dataclass(frozen=True)
class ContextResult:
    """The evaluation with one context.

    ``losses`` (P,) are the losses in nats at the positions of the region. ``seen`` (P,) is the number of tokens of its
    window that the model has read at each position, None for other variants than ``context``.
    """

    evaluation: Evaluation
    losses: NDArray[np.float64]
    seen: NDArray[np.int64] | None


def evaluate_context(
    model: nn.Module,
    rows: Rows,
    region: Region,
    variant: str,
    context: int,
    hardware: Hardware,
    batch_size: int,
    description: str = "Context",
) -> ContextResult:
    """Evaluate ``model`` on ``region`` with a context of ``context`` tokens.

    Args:
        model: The model; it is switched to evaluation mode during the evaluation.
        rows: The documents of the test split.
        region: The scored positions.
        variant: How the context is provided, one of ``CONTEXT_VARIANTS``. ``stateful`` reads each piece of the region
            after the piece before it, so that the memory covers at least as many tokens as the longest context.
        context: The number of tokens of a window or segment.
        hardware: The device and precision.
        batch_size: A batch has as many tokens as ``batch_size`` windows of the training length. The scored tokens and
            their contexts do not depend on it.
        description: The label of the progress bar.

    Returns:
        The evaluation, in which a row is one unit of the region and ``mean_tokens`` the mean length of the windows,
        with the losses by position.

    Raises:
        UserError: If the text is too short for the context, or the model has no memory for ``stateful``.
    """
    if context > region.piece:
        raise UserError(
            f"the test text is too short for a context of {context:,} tokens; "
            f"at most {region.piece:,} tokens are possible"
        )
    windows_per_batch = max(1, round(batch_size * rows.spec.train_length / context))
    results = _PositionResults(region)
    with evaluating(model), bar(region.positions, description, unit="tokens") as advance:
        if variant == "stateful":
            _evaluate_stateful(model, rows, results, context, hardware, windows_per_batch, advance)
            lengths = np.diff([*range(0, region.piece, context), region.piece])
        else:
            stride = context if variant == "context" else max(1, context // 2)
            windows = join([cut(document, begin, end, context, stride) for document, begin, end in region.runs])
            for indices, batch in windows.batches(rows, windows_per_batch):
                batch = batch.to(hardware.device)
                with hardware.autocast():
                    output = model(batch)
                advance(results.write(windows.select(indices), *target_figures(output, batch)))
            lengths = windows.lengths
    evaluation = summarise(results.rows(), rows.spec, float(lengths.mean()))
    if variant != "context":
        return ContextResult(evaluation, results.losses, None)
    offsets = [np.arange(end - begin) % context for _, begin, end in region.runs]  # in windows without overlap
    return ContextResult(evaluation, results.losses, np.concatenate(offsets) + 1)


def _evaluate_stateful(
    model: nn.Module,
    rows: Rows,
    results: _PositionResults,
    context: int,
    hardware: Hardware,
    pieces_per_batch: int,
    advance: Callable[[int], None],
) -> None:
    """Evaluate every piece of the region in segments of ``context`` tokens, and pass memory from segment to segment.

    As many full segments as fit into a piece are read before each piece and not scored.
    """
    piece = results.region.piece
    pieces = [(document, start) for document, begin, end in results.region.runs for start in range(begin, end, piece)]
    for first in range(0, len(pieces), pieces_per_batch):
        documents, begins = np.array(pieces[first : first + pieces_per_batch]).T
        memory = None
        for offset in range(-(piece // context) * context, piece, context):
            starts = begins + offset
            segment = Windows(documents, starts, starts, begins + min(offset + context, piece))
            batch = segment.batch(rows).to(hardware.device)
            with hardware.autocast():
                output = model(batch, memory)
            memory = output.memory
            if memory is None:
                raise UserError("the model has no memory to pass from one segment to the next")
            if offset >= 0:
                advance(results.write(segment, *target_figures(output, batch)))


class _PositionResults:
    """Loss and correctness at every position of a region; ``losses`` (P,) in nats."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.losses, self._correct = np.full((2, region.positions), np.nan)
        # By document, the difference between the index in ``losses`` and the position in the document.
        self._shift, before = {}, 0
        for document, begin, end in region.runs:
            self._shift[document] = before - begin
            before += end - begin

    def write(self, windows: Windows, losses: Tensor, correct: Tensor) -> int:
        """Store losses and correctness (W, N) of the positions that the windows score; return their number."""
        figures = zip(losses.double().cpu().numpy(), correct.cpu().numpy(), strict=True)
        columns = (windows.documents, windows.starts, windows.firsts, windows.stops)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        for (loss, is_correct), (document, start, first, stop) in zip(figures, spans, strict=True):
            inside = slice(first - start, stop - start)
            target = slice(first + self._shift[document], stop + self._shift[document])
            self.losses[target], self._correct[target] = loss[inside], is_correct[inside]
        return int((windows.stops - windows.firsts).sum())

    def rows(self) -> np.ndarray:
        """Return the figures (5, R) of the region's units, as input of ``summarise``."""
        losses, correct = (column.reshape(-1, self.region.unit).sum(1) for column in (self.losses, self._correct))
        none = np.full(len(losses), -1)
        return np.stack([none, none, correct, losses, np.full(len(losses), self.region.unit)])


def bins(context: int, train_length: int) -> list[tuple[int, int]]:
    """Return bins (first, last) of the numbers of tokens read, from 1 to ``context``, two per doubling.

    One bin ends at ``train_length``. Bins near 1 that contain no integer are left out.
    """
    low = math.floor(-PER_DOUBLING * math.log2(train_length)) if train_length > 1 else 0
    high = math.ceil(PER_DOUBLING * math.log2(context / train_length))
    ends = {round(train_length * 2 ** (step / PER_DOUBLING)) for step in range(low, high + 1)}
    lasts = sorted({min(end, context) for end in ends if end >= 1} | {context})
    return [(before + 1, last) for before, last in zip([0, *lasts], lasts, strict=False)]


def loss_by_position(
    losses: NDArray[np.float64], seen: NDArray[np.int64], context: int, train_length: int
) -> list[tuple[int, int, int, float]]:
    """Compute the mean loss per bin from ``losses`` (P,) in nats of tokens predicted after ``seen`` (P,) tokens.

    Returns first, last, number of scored tokens and mean loss in bits of each bin that is not empty.
    """
    found = []
    for first, last in bins(context, train_length):
        inside = losses[(seen >= first) & (seen <= last)]
        if len(inside):
            found.append((first, last, len(inside), float(inside.mean()) / math.log(2)))
    return found

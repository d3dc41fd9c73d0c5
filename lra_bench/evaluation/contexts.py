"""Language modelling with more and less context, always scored on the same tokens."""

from __future__ import annotations

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
"""How a context is given: in windows that do not overlap; in windows that advance by half of themselves, of which the
second half is scored; in segments that follow each other, between which the model's memory is handed on."""


@dataclass(frozen=True)
class Region:
    """The places that every context is scored on: ``runs`` of (document, begin, end).

    Before each run lie at least ``piece`` places, so that the longest context can be given to all. A run is a multiple
    of ``piece``, and that of ``unit``: the places whose figures are summed as one row, whatever the context.
    """

    runs: tuple[tuple[int, int, int], ...]
    piece: int
    unit: int

    @property
    def places(self) -> int:
        """Places in all runs."""
        return sum(end - begin for _, begin, end in self.runs)

    def places_in_windows(self, context: int) -> NDArray[np.int64]:
        """Where each place (P,) stands in its window, where each run is cut into windows that do not overlap."""
        return np.concatenate([np.arange(end - begin) % context for _, begin, end in self.runs])

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """The tokens that are predicted, as (document, start, stop): each place predicts the token after its own."""
        return [(document, begin + 1, end + 1) for document, begin, end in self.runs]


def region_of(rows: Rows, longest: int, tokens: int) -> Region:
    """The region of about ``tokens`` places for contexts of up to ``longest`` tokens.

    Documents give what they have behind their first ``longest`` places, in order, until that is enough. Where none is
    twice as long, half of the longest document stands for ``longest``. Raises ``UserError`` where that is nothing.
    """
    places = rows.lengths - 1
    half = int(places.max()) // 2
    if half < 1:
        raise UserError(f"task={rows.spec.name}: the test text is too short to compare contexts on it")
    unit = min(rows.spec.train_length, longest, half)
    piece = min(-(-longest // unit), half // unit) * unit
    missing = max(1, round(tokens / piece))
    runs = []
    for document in np.flatnonzero(places >= 2 * piece).tolist():
        pieces = min(missing, int(places[document]) // piece - 1)
        runs.append((document, piece, piece + pieces * piece))
        missing -= pieces
        if not missing:
            break
    return Region(tuple(runs), piece, unit)


@dataclass(frozen=True)
class ContextRead:
    """The score with one context, the losses (P,) in nats of the places of the region, and after how many tokens of
    their window these were predicted (P,): None where places are read in several ways.
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
) -> ContextRead:
    """The score on ``region`` where ``model`` reads ``context`` tokens at once, in the way that ``variant`` names.

    As many tokens are read at once as are in ``batch_size`` windows of the training length. A row of the result is one
    unit of the region; ``mean_tokens`` is the mean length of the windows. ``stateful`` reads each piece of the region
    after the piece before it, so that the memory has seen at least as much as the longest context. What is scored, and
    after what, does not depend on ``batch_size``. Raises ``UserError`` where the text is too short for the context, or
    the model keeps no memory to hand on.
    """
    if context > region.piece:
        raise UserError(
            f"the test text has no places behind {context:,} others that all contexts could be scored on "
            f"(at most {region.piece:,})"
        )
    at_once = max(1, round(batch_size * rows.spec.train_length / context))
    sheet = _Sheet(region)
    with evaluating(model), bar(region.places, description, unit="tokens") as advance:
        if variant == "stateful":
            _read_on(model, rows, sheet, context, hardware, at_once, advance)
            lengths = np.diff([*range(0, region.piece, context), region.piece])
        else:
            stride = context if variant == "context" else max(1, context // 2)
            windows = join([cut(document, begin, end, context, stride) for document, begin, end in region.runs])
            for indices, batch in windows.batches(rows, at_once):
                batch = batch.to(hardware.device)
                with hardware.autocast():
                    output = model(batch)
                advance(sheet.write(windows.select(indices), *target_figures(output, batch)))
            lengths = windows.lengths
    evaluation = summarise(sheet.rows(), rows.spec, float(lengths.mean()))
    seen = region.places_in_windows(context) + 1 if variant == "context" else None
    return ContextRead(evaluation, sheet.losses, seen)


def _read_on(
    model: nn.Module,
    rows: Rows,
    sheet: _Sheet,
    context: int,
    hardware: Hardware,
    at_once: int,
    advance: Callable[[int], None],
) -> None:
    """Read every piece of the region in segments of ``context`` tokens with memory, after whole segments before it."""
    piece = sheet.region.piece
    places = [(document, place) for document, begin, end in sheet.region.runs for place in range(begin, end, piece)]
    for some in range(0, len(places), at_once):
        documents, begins = np.array(places[some : some + at_once]).T
        memory = None
        for offset in range(-(piece // context) * context, piece, context):
            starts = begins + offset
            segment = Windows(documents, starts, starts, begins + min(offset + context, piece))
            batch = segment.batch(rows).to(hardware.device)
            with hardware.autocast():
                output = model(batch, memory)
            memory = output.memory
            if memory is None:
                raise UserError("the model keeps no memory that could be handed from one segment to the next")
            if offset >= 0:
                advance(sheet.write(segment, *target_figures(output, batch)))


class _Sheet:
    """Loss and correctness of every place of a region; ``losses`` (P,) in nats."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.losses, self._correct = np.full((2, region.places), np.nan)
        # What to add to a place of a document for its place on the sheet.
        self._shift, before = {}, 0
        for document, begin, end in region.runs:
            self._shift[document] = before - begin
            before += end - begin

    def write(self, windows: Windows, losses: Tensor, correct: Tensor) -> int:
        """Note figures (W, N) of windows at the places that they score; how many these are."""
        figures = zip(losses.double().cpu().numpy(), correct.cpu().numpy(), strict=True)
        columns = (windows.documents, windows.starts, windows.firsts, windows.stops)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        for (loss, right), (document, start, first, stop) in zip(figures, spans, strict=True):
            inside = slice(first - start, stop - start)
            place = slice(first + self._shift[document], stop + self._shift[document])
            self.losses[place], self._correct[place] = loss[inside], right[inside]
        return int((windows.stops - windows.firsts).sum())

    def rows(self) -> np.ndarray:
        """Figures (5, R) of the region's units, as ``summarise`` wants them."""
        losses, correct = (column.reshape(-1, self.region.unit).sum(1) for column in (self.losses, self._correct))
        none = np.full(len(losses), -1)
        return np.stack([none, none, correct, losses, np.full(len(losses), self.region.unit)])

"""Memory lengths: scores of a language model with memories of different lengths, on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from lra_bench.contracts import Remembering
from lra_bench.contracts.measurement import Measurement
from lra_bench.options.declaration import NOT_NEGATIVE, option

from .points import Scored

if TYPE_CHECKING:
    from torch import nn

    from lra_bench.contracts import TaskSpec
    from lra_bench.data.batches import Rows
    from lra_bench.runtime.hardware import Hardware

    from .subject import Context, Subject


class MemoryPoint(Scored):
    """The test score of a language model, in bits per character, with one memory length.

    Attributes:
        memory_length: Tokens, or slots, before the current segment that the memory of each layer holds.
        state_bytes: Size of the full memory of one document, in bytes.
    """

    memory_length: int
    state_bytes: int


class Memory(TypedDict):
    """Test scores of a language model by memory length, all on the same windows of ``window_length`` tokens.

    Each window is read after the windows before it in its document, with the memory of the model in between.
    ``trained_length`` is the memory length in training; ``attempt`` the number of the attempt that measured them.
    """

    trained_length: int
    window_length: int
    points: list[MemoryPoint]
    attempt: int


class MemoryLengths(Measurement):
    """Test scores of a language model with memory, by memory length."""

    name = "memory"
    stage = "evaluating memory lengths"
    needs = ("model", "rows")
    Result = Memory
    figures = ("lra_bench.figures.lengths:score_vs_memory",)

    @dataclass
    class Options:
        """Options of the test with several memory lengths.

        Attributes:
            memory_lengths: Memory lengths with which a language model with memory is tested; ``[]`` means none.
        """

        memory_lengths: list[int] = option(lambda: [0, 128, 512, 2048], NOT_NEGATIVE)

    def measure(self, subject: Subject, context: Context) -> Memory | None:
        """Evaluate all windows of the test split in the order of the documents, with each memory length.

        All lengths, also 0, are scored on the same windows of the training length, each read after the window before
        it; a batch has one window of each of several documents. The result is None in other tasks, without lengths,
        and for models without a memory whose length can be changed.
        """
        from lra_bench.training.evaluation import evaluate

        from .extrapolation import scores
        from .knobs import with_attribute

        assert subject.rows is not None
        model, rows, spec = subject.model, subject.rows["test"], subject.task.spec
        points: list[MemoryPoint] = []
        lengths = sorted(set(self.options.memory_lengths)) if spec.kind == "language_modeling" else []
        if not lengths or not remembering(model):
            return None
        for length in lengths:
            with with_attribute(remembering(model), "memory_length", length):
                label = f"Memory of {length:,}"
                result = evaluate(model, rows, spec, context.hardware, context.batch_size, label, stream=True)
                bytes_of_state = _full_state(model, rows, spec, length, context.hardware)
            points.append({"memory_length": length, **scores(result, spec), "state_bytes": bytes_of_state})
        return {
            "trained_length": max(module.memory_length for module in remembering(model)),
            "window_length": spec.train_length,
            "points": points,
            "attempt": context.attempt,
        }


def remembering(model: nn.Module) -> list[Any]:
    """Return the modules of ``model`` whose memory length can be changed."""
    return [module for module in model.modules() if isinstance(module, Remembering)]


def state_bytes(memory: Any) -> int:
    """Return the total size of all tensors in ``memory``, in bytes."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(memory) if isinstance(leaf, Tensor))


def _full_state(model: nn.Module, rows: Rows, spec: TaskSpec, length: int, hardware: Hardware) -> int:
    """Return the size of the memory of one document after ``length`` tokens and two windows, in bytes."""
    from lra_bench.data.windows import cut_all
    from lra_bench.training.evaluation import evaluating

    windows = cut_all(rows.lengths, spec.train_length)
    first = windows.select(windows.documents == windows.documents[0])
    memory = None
    with evaluating(model):
        for number in range(min(len(first), -(-length // spec.train_length) + 2)):
            batch = first.select(slice(number, number + 1)).batch(rows).to(hardware.device)
            with hardware.autocast():
                memory = model(batch, memory).memory
    return state_bytes(memory)

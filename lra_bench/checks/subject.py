"""The network that is checked: built from a configuration, in one direction, with inputs of a small task."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra_bench.build import load_class
from lra_bench.config.objects import build_model
from lra_bench.config.schema import CellConfig
from lra_bench.config.sources import is_outside, outside_modules, targets
from lra_bench.contracts import Batch, Capability, Output, TaskSpec, UserError
from lra_bench.runtime.hardware import first_line
from lra_bench.runtime.limits import is_out_of_memory

CLASSES = 5
SHORT = 37
"""Number of positions of inputs: prime, so that no block divides it."""

FORMS: tuple[Mapping[str, Any], ...] = (
    {"kind": "tagging", "channels": 3, "vocabulary_size": None, "classes": CLASSES, "decodes_state": False},
    {"kind": "tagging", "channels": None, "vocabulary_size": 11, "classes": CLASSES, "decodes_state": False},
    {"kind": "language_modeling", "channels": None, "vocabulary_size": 11, "classes": 11, "decodes_state": False},
    {"kind": "classification", "channels": None, "vocabulary_size": 11, "classes": CLASSES, "decodes_state": False},
    {},
)
"""Changes of the task, of which the first that the network supports is used. The last is the task itself.

Continuous inputs have gradients, and an output per token shows the influence of each token on each other.
"""

TOLERANCES = {torch.float64: 1e-7, **dict.fromkeys((torch.float32, torch.complex64), 2e-3)}
TOLERANCES |= dict.fromkeys((torch.bfloat16, torch.float16), 5e-2)
"""Largest relative difference of equal outputs: rounding errors, for example of Fourier transforms."""


class Types(TorchDispatchMode):
    """Record the types of the results of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record the types of its results."""
        result = func(*args, **(kwargs or {}))
        self.types |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@dataclass
class Subject:
    """A network in evaluation mode, and random inputs of a task that it supports.

    Attributes:
        network: The network, with float64 weights if it supports them.
        spec: The task for which it was built.
        capability: Its declarations.
        length: Number of positions of the inputs.
        tolerance: Largest relative difference of equal outputs.
    """

    network: nn.Module
    spec: TaskSpec
    capability: Capability
    length: int
    tolerance: float

    def inputs(self, rows: int, length: int | None = None, seed: int = 0) -> Tensor:
        """Return random token ids of shape (B, N), or random values of shape (B, N, C)."""
        generator, shape = torch.Generator().manual_seed(seed), (rows, length or self.length)
        if self.spec.vocabulary_size is not None:
            return torch.randint(1, self.spec.vocabulary_size, shape, generator=generator).to(self.device)
        values = torch.randn(*shape, self.spec.channels or 1, generator=generator, dtype=torch.float64)
        return values.to(self.dtype).to(self.device)

    def batch(self, x: Tensor, lengths: Sequence[int] | None = None) -> Batch:
        """Return a batch of inputs with random targets."""
        generator = torch.Generator().manual_seed(len(x))
        shape = x.shape[:2] if self.spec.per_token else x.shape[:1]
        held = torch.tensor([x.shape[1]] * len(x) if lengths is None else list(lengths))
        extra = {"reset": torch.zeros(len(x), dtype=torch.bool)} if self.spec.kind == "language_modeling" else {}
        return Batch(
            lengths=held,
            targets=torch.randint(self.spec.classes, shape, generator=generator),
            tokens=None if self.continuous else x,
            values=x if self.continuous else None,
            extra=extra,
        ).to(self.device)

    def output(self, x: Tensor, lengths: Sequence[int] | None = None) -> Output:
        """Return the output for inputs x, with the same random numbers in every call."""
        torch.manual_seed(0)
        result = self.network(self.batch(x, lengths))
        if not isinstance(result, Output):
            raise UserError(f"{definition(type(self.network))}: returns {_kind(result)}; write `return Output(logits)`")
        expected = (*(x.shape[:2] if self.spec.per_token else x.shape[:1]), self.spec.classes)
        if result.logits.shape != expected:
            raise UserError(
                f"{definition(type(self.network))}: returns logits of {_kind(result.logits)} for inputs of shape "
                f"{tuple(x.shape)}; they must have shape {expected}"
            )
        return result

    def run(self, x: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Return the logits for inputs x."""
        return self.output(x, lengths).logits

    @property
    def continuous(self) -> bool:
        """Whether inputs are real numbers, with respect to which outputs have gradients."""
        return self.spec.vocabulary_size is None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next((each.dtype for each in self.network.parameters() if each.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next((each.device for each in self.network.parameters()), torch.device("cpu"))


def subject(config: CellConfig, task: TaskSpec, causal: bool, device: torch.device, precise: bool = True) -> Subject:
    """Build the network of a configuration for a small task in one direction.

    Args:
        config: The configuration.
        task: The task of the configuration.
        causal: Direction of the small task.
        device: Device of the weights.
        precise: Whether to use float64 weights, if the network supports them, in which parameters that are zero
            initially are random, because they could hide an influence.

    Returns:
        The network and its inputs.

    Raises:
        UserError: If the network cannot be built or raises an exception for every form of the task.
    """
    faults: list[UserError] = []
    for form in FORMS if task.kind != "matching" else FORMS[:-1]:
        spec = replace(task, direction="causal" if causal else "bidirectional", metric="accuracy", **form)
        try:
            return _built(config, spec, device, precise)
        except UserError as error:
            faults.append(error)
    raise faults[-1]


def _built(config: CellConfig, spec: TaskSpec, device: torch.device, precise: bool) -> Subject:
    undirected = replace(config, backbone=replace(config.backbone, causal=None))
    for double in (True, False) if precise else (False,):
        with located(config):
            network: nn.Module = build_model(undirected, spec, initial_seed=0)
        if (supports := getattr(network, "supports", None)) and (reason := supports(spec)):
            raise UserError(f"model: {reason}")
        if precise:
            fill_zeros(network)
        network = (network.double() if double else network).to(device).eval()
        capability = getattr(network, "capability", None) or Capability(family="", paper="", padding="none")
        length = SHORT
        refuses = getattr(network, "supports_length", None)
        if spec.grid is not None or capability.length == "fixed" or (refuses and refuses(SHORT)):
            length = spec.train_length
        found = Subject(network, spec, capability, length, TOLERANCES[torch.float64])
        try:
            with torch.no_grad(), located(config), contract(network), Types() as used:
                found.run(found.inputs(2))
            found.tolerance = max(TOLERANCES.get(each, 0) for each in used.types)
        except UserError:
            if double:
                continue  # a class may create float32 tensors, which cannot be multiplied with float64 ones
            raise
        return found
    raise AssertionError


def fill_zeros(network: nn.Module) -> None:
    """Replace parameters whose elements are all zero by random ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() and (parameter == 0).all():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


@contextmanager
def filled_padding(network: nn.Module, seed: int) -> Iterator[None]:
    """Replace the padding of the inputs of all mixers by random numbers inside the context.

    The backbone sets the padding of its inputs to zero, so that different inputs do not show what mixers do with it.
    """

    def fill(mixer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(arguments) < 2 or arguments[1].padding is None:
            return arguments
        x, context = arguments[:2]
        other = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
        return torch.where(context.padding.valid[..., None], x, 10 * other), *arguments[1:]

    with ExitStack() as hooks:
        for each in mixers_of(network):
            hooks.enter_context(each.register_forward_pre_hook(fill))
        yield


def mixers_of(network: nn.Module) -> list[nn.Module]:
    """Return the modules that declare capabilities, which receive hidden states and a context."""
    return [each for each in network.modules() if isinstance(getattr(type(each), "spec", None), Capability)]


@contextmanager
def contract(network: nn.Module) -> Iterator[None]:
    """Raise ``UserError`` inside the context if a mixer does not return y (B, N, E) and the context."""

    def compare(mixer: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if len(arguments) < 2:
            return  # a depth controller
        x, context = arguments[:2]
        where = definition(type(mixer))
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], type(context)):
            raise UserError(f"{where}: returns {_kind(result)}; write `return y, context`")
        if not isinstance(result[0], Tensor) or result[0].shape != x.shape:
            raise UserError(
                f"{where}: returns y of {_kind(result[0])} for x of shape {tuple(x.shape)}; y must have the shape of x"
            )

    with ExitStack() as hooks:
        for each in mixers_of(network):
            hooks.enter_context(each.register_forward_hook(compare))
        yield


def _kind(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def definition(cls: type) -> str:
    """Return the method with which a class mixes tokens, with its file and line."""
    for name in ("forward", "attend"):
        method = vars(cls).get(name)
        if inspect.isfunction(method):
            code = method.__code__
            return f"{cls.__name__}.{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return cls.__name__


@contextmanager
def located(config: CellConfig) -> Iterator[None]:
    """Convert exceptions to ``UserError`` with file and line of the code outside lra-bench that caused them.

    Exceptions of models without such code are not converted.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_users(config) or is_out_of_memory(error):
            raise
        files = {str(file): file.name for file in outside_modules(_nodes(config)).values()}
        calls = traceback.extract_tb(error.__traceback__)
        own = [f"{files[call.filename]}, line {call.lineno}" for call in calls if call.filename in files]
        classes = (load_class(target, object, "model") for target in targets(_nodes(config)) if is_outside(target))
        where = own[-1] if own else ", ".join(map(definition, classes))
        raise UserError(f"model: {type(error).__name__} in {where}: {first_line(error)}") from error


def is_users(config: CellConfig) -> bool:
    """Return whether a class of a model is not part of lra-bench."""
    return any(map(is_outside, targets(_nodes(config))))


def _nodes(config: CellConfig) -> list[Any]:
    return [config.model, config.position, asdict(config.backbone)]

"""Tensors that torch believes to be on ``cuda:0`` and whose operators are computed on the CPU, with real numbers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MEMORY_BYTES = 64 << 30
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::set_")
WITH_HOST_TENSORS = (
    *("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
    *("aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward", "aten::_pad_packed_sequence"),
)
"""Operators that accept indices or lengths on the CPU if the first tensor is on the GPU."""


class OnGpu(Tensor):
    """A tensor with the device ``cuda:0`` and the data of ``data_on_cpu``."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        made: OnGpu = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=GPU,
        )
        made.data_on_cpu = inner
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied: Tensor = OnGpu(self.data_on_cpu.clone())
            is_parameter = getattr(self, "_is_param", False)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnGpu({self.data_on_cpu!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


class CreateOnGpu(TorchDispatchMode):
    """Lets functions create tensors with ``device="cuda"``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the data of its tensors; the results are on the GPU if an input is, or ``device`` says so.

    Raises ``RuntimeError`` if tensors of both devices are mixed, except as CUDA permits it: numbers without dimensions
    and indices may be on the CPU.
    """
    name = func.name().partition(".")[0]
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_gpus = {id(each.data_on_cpu): each for each in given if isinstance(each, OnGpu)}
    target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if on_gpus and name not in COPIES:
        others = [each for each in given if not isinstance(each, OnGpu) and each.dim()]
        if others and not (name in WITH_HOST_TENSORS and isinstance(args[0], OnGpu)):
            raise RuntimeError(f"{name}: tensors on cuda:0 and cpu, of shape {tuple(others[0].shape)}")
    on_gpu = target.type == "cuda" if target is not None else bool(on_gpus)
    if name == "aten::copy_":
        on_gpu = isinstance(args[0], OnGpu)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": CPU if target is not None else None}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    out = func(*inner_args, **inner_kwargs)
    if not on_gpu:
        return out
    if name == "aten::_pack_padded_sequence":
        return OnGpu(out[0]), out[1]

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        # An operator in place returns its input.
        return on_gpus[id(leaf)] if id(leaf) in on_gpus else OnGpu(leaf.resolve_conj().resolve_neg())

    return tree_map(place, out)


def _inner(leaf: Any) -> Any:
    if isinstance(leaf, OnGpu):
        return leaf.data_on_cpu
    return CPU if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Event) -> float:
        return 1000 * (other.at - self.at)


class _NoGradients(torch.no_grad):
    """In place of inference mode, in which torch does not track what subclasses of tensors need."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = mode

    def __enter__(self) -> None:
        self.prev = torch.is_grad_enabled()
        if self.mode:
            torch.set_grad_enabled(False)

    def clone(self) -> _NoGradients:
        return _NoGradients(self.mode)


def _compute_networks_on_the_cpu() -> None:
    """Compute LSTM and GRU with copies of inputs and weights, because their operators on CUDA do not exist here."""
    from torch import nn

    def on(device: torch.device, values: Any) -> Any:
        if isinstance(values, nn.utils.rnn.PackedSequence):
            return values.to(device)
        return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, values)

    def as_type(dtype: torch.dtype, values: Any) -> Any:
        if isinstance(values, nn.utils.rnn.PackedSequence):
            return values._replace(data=values.data.to(dtype))
        return tree_map(lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) else leaf, values)

    def replace(kind: type[nn.RNNBase]) -> None:
        plain = kind.forward

        def forward(self: nn.RNNBase, inputs: Any, state: Any = None) -> Any:
            weights = self._flat_weights
            if not isinstance(weights[0], OnGpu):
                return plain(self, inputs, state)
            self._flat_weights = on(CPU, weights)
            # Under autocast cuDNN converts inputs and weights to 16 bits; here both are in 32 bits.
            plain_inputs, plain_state = (as_type(weights[0].dtype, on(CPU, each)) for each in (inputs, state))
            try:
                with torch.autocast("cuda", enabled=False):
                    out, after = plain(self, plain_inputs, plain_state)
            finally:
                self._flat_weights = weights
            return on(GPU, out), on(GPU, after)

        kind.forward = forward  # type: ignore[method-assign]

    replace(nn.LSTM)
    replace(nn.GRU)


def _copy_files() -> None:
    """Let functions that read or write the data of a tensor use the data on the CPU."""
    import safetensors.torch

    to_list, pointer, save = Tensor.tolist, Tensor.data_ptr, torch.save
    Tensor.tolist = lambda tensor: to_list(_inner(tensor))  # type: ignore[method-assign, assignment]
    Tensor.data_ptr = lambda tensor: pointer(_inner(tensor))  # type: ignore[method-assign, assignment]
    for name in ("storage_ptr", "storage_size"):
        function = getattr(safetensors.torch, name)
        vars(safetensors.torch)[name] = lambda tensor, function=function: function(_inner(tensor))
    vars(torch)["save"] = lambda values, *others, **options: save(tree_map(_inner, values), *others, **options)


def install() -> None:
    """Replace functions of ``torch.cuda`` that call the driver, and enter ``CreateOnGpu`` until the process ends."""
    vars(torch)["inference_mode"] = _NoGradients
    from lra_bench.profiling import peak_matmul
    from lra_bench.runtime import hardware

    stream = SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
    properties = SimpleNamespace(
        name="NVIDIA fake", total_memory=MEMORY_BYTES, major=9, minor=0, uuid="", multi_processor_count=1
    )
    for module in (torch.cuda.amp.common, torch.amp.autocast_mode):
        vars(module)["amp_definitely_not_available"] = lambda: False
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "get_device_name": lambda *_: "NVIDIA fake",
        "get_device_properties": lambda *_: properties,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "max_memory_allocated": lambda *_: 1 << 30,
        "max_memory_reserved": lambda *_: 1 << 30,
        "memory_allocated": lambda *_: 1 << 29,
        "set_per_process_memory_fraction": lambda *_: None,
        "set_sync_debug_mode": lambda _: None,
        "manual_seed_all": lambda _: None,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "current_stream": lambda *_: stream,
        "Event": _Event,
    }
    vars(torch.cuda).update(answers)
    Tensor.pin_memory = lambda tensor, *_: tensor.clone()  # type: ignore[method-assign, assignment]
    # Otherwise Module.to would copy the shape of a tensor on the GPU into the parameter, without its data.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    peak_matmul.SIDES["cuda"] = peak_matmul.SIDES["cpu"]  # the larger products of a GPU take minutes
    _copy_files()
    _compute_networks_on_the_cpu()
    hardware.has_cuda = lambda: True
    CreateOnGpu().__enter__()

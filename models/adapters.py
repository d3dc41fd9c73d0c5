"""Any module (B, N, E) -> (B, N, E) as a mixer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lra_bench.build import build
from lra_bench.contracts import UserError

from .mixer import Context, Mixer, MixerSpec, Padding

CHOICES = {"padding": ("none", "mask", "packed"), "mask": ("keep", "hide", "add"), "mask_dims": (2, 4)}
SIZES = ("width", "heads", "head_dim", "layer", "depth", "max_length", "causal", "dropout", "seed")
"""Values of the backbone that the constructor of a module can receive."""


class ModuleMixer(Mixer):
    """Mixer that calls a module: x (B, N, E) -> (B, N, E). Its cost is that of the module.

    Padding of x is set to zero. A module that takes a mask receives it in batches with padding only; in it, the first
    position of a row without tokens counts as a token, so that a softmax over its row is defined.

    Args:
        width: Number of features E.
        heads: Number of heads, for modules that have heads.
        module: Mapping with the dotted path of a class that derives from ``torch.nn.Module`` in ``_target_``, and
            arguments of its constructor.
        sizes: Names in ``SIZES`` by argument of the constructor, such as ``{input_size: width}``.
        padding: What the module receives of the padding: ``none``; ``mask``, in the argument ``mask_argument``;
            ``packed``, a ``PackedSequence`` in place of x.
        mask: Form of masks: ``keep`` (bool, true at tokens), ``hide`` (bool, true at padding) or ``add`` (zero at
            tokens, the smallest number at padding).
        mask_dims: Shape of the mask of padding: 2 for (B, N), 4 for (B, 1, 1, N).
        mask_argument: Name of the argument with the mask of padding.
        causal_argument: Name of the argument that receives a mask (N, N) of later tokens, of the form ``mask``, if the
            model is causal; None if there is none. It can equal ``mask_argument``: padding is after the tokens, so this
            mask hides it, too.
        inputs: Number of arguments that receive x, 3 for query, key and value.
        output: Index or name of y in an output that is not a tensor.
        fixed: Whether the module takes exactly ``max_length`` positions. Shorter sequences are padded.
        declares: Fields of ``MixerSpec`` with values that differ from those of this class, such as ``{causal: exact}``.
        **common: Arguments of ``Mixer``.

    Raises:
        UserError: If an option has a wrong value, or the module cannot be built.
    """

    spec = MixerSpec(family="wrapped", paper="Module outside lra-bench", padding="content")
    make: ClassVar[Callable[..., Any] | None] = None
    """Function that returns the module, in place of ``module``. Its arguments have names in ``SIZES`` or defaults."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        module: Mapping[str, Any] | None = None,
        sizes: Mapping[str, str] | None = None,
        padding: str = "none",
        mask: str = "keep",
        mask_dims: int = 2,
        mask_argument: str = "mask",
        causal_argument: str | None = None,
        inputs: int = 1,
        output: int | str = 0,
        fixed: bool = False,
        declares: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> None:
        for name, value in {"padding": padding, "mask": mask, "mask_dims": mask_dims}.items():
            if value not in CHOICES[name]:
                raise UserError(f"model.mixer.{name}={value}: choose {', '.join(map(str, CHOICES[name]))}")
        self.spec = self.spec_of({"padding": padding, "fixed": fixed, "declares": declares})
        super().__init__(width, heads, **common)
        self.padding, self.mask, self.mask_dims, self.mask_argument = padding, mask, mask_dims, mask_argument
        self.causal_argument, self.inputs, self.output, self.fixed = causal_argument, inputs, output, fixed
        values = {**vars(self), "head_dim": width // heads}
        if self.make is None:
            named = {argument: _size(str(name)) for argument, name in (sizes or {}).items()}
            given = {argument: values[name] for argument, name in named.items()}
            self.module = build(module or {}, nn.Module, "model.mixer.module", **given)
        else:
            arguments = inspect.signature(self.make).parameters
            for name, argument in arguments.items():
                if name not in SIZES and argument.default is argument.empty and "*" not in str(argument):
                    raise UserError(
                        f"model.mixer: the function has the argument {name}; name its arguments after the values that "
                        f"they receive ({', '.join(SIZES)}), or give them defaults"
                    )
            self.module = self.make(**{name: values[name] for name in arguments if name in SIZES})
        if not isinstance(self.module, nn.Module):
            raise UserError(f"model.mixer: the function returns {type(self.module).__name__}; return a torch.nn.Module")

    @classmethod
    def spec_of(cls, options: Mapping[str, Any]) -> MixerSpec:
        """Return the declared capabilities: padding and length follow from the options, unless they are declared."""
        derived = {
            "padding": "content" if options.get("padding", "none") == "none" else "amount",
            "length": "maximum" if options.get("fixed") else "any",
        }
        return cls.spec.declaring({**derived, **(options.get("declares") or {})})

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Call the module with x (B, N, E), and return the first N positions of its output."""
        length, padding = x.shape[1], context.padding
        if padding is not None:
            x = padding.zero(x)
        if self.fixed and length < self.max_length:
            lengths = x.new_full(x.shape[:1], length, dtype=torch.long) if padding is None else padding.lengths
            x = F.pad(x, (0, 0, 0, self.max_length - length))
            padding = Padding.from_lengths(lengths, self.max_length)
        rows = x.shape[1]
        masks: dict[str, Tensor] = {}
        if padding is not None and self.padding == "mask":
            valid = Padding.from_lengths(padding.lengths.clamp(min=1), rows).valid
            masks[self.mask_argument] = self._as_mask(valid if self.mask_dims == 2 else valid[:, None, None, :], x)
        if self.causal and self.causal_argument is not None:
            earlier = torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril()
            masks[self.causal_argument] = self._as_mask(earlier, x)
        packed: Tensor | PackedSequence = x
        if padding is not None and self.padding == "packed":
            lengths = padding.lengths_on_host().clamp(min=1)
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y = self.module(*[packed] * self.inputs, **masks)
        if not isinstance(y, Tensor | PackedSequence):
            y = y[self.output]
        if isinstance(y, PackedSequence):
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=rows)
        return y[:, :length], context

    def _as_mask(self, visible: Tensor, x: Tensor) -> Tensor:
        """Return a bool mask, true where a token is visible, in the form of the option ``mask``."""
        if self.mask == "add":
            return torch.zeros(visible.shape, dtype=x.dtype, device=x.device).masked_fill(
                ~visible, torch.finfo(x.dtype).min
            )
        return visible if self.mask == "keep" else ~visible


def _size(name: str) -> str:
    """Return a name in ``SIZES``. Raises ``UserError`` for any other."""
    if name not in SIZES:
        raise UserError(f"model.mixer.sizes: there is no size {name}; choose {', '.join(SIZES)}")
    return name

"""Options of a trained model that may be set for evaluation on longer rows, by name, and are put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from lra_bench.contracts import Adjustable, UserError


def declared(model: nn.Module) -> list[str]:
    """The knobs that the modules of ``model`` declare, as ``option=value``, in the order of its modules."""
    return list(_found(model))


def chosen(model: nn.Module, asked: Sequence[str] | None, option: str = "measure.extrapolation_knobs") -> list[str]:
    """The knobs to measure: those asked for by ``option``, or with None all that ``model`` declares.

    Raises ``UserError`` where it declares no such knob.
    """
    known = declared(model)
    for knob in asked or ():
        if knob not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{option}: the model has no knob {knob}; {has}")
    return known if asked is None else list(dict.fromkeys(asked))


@contextmanager
def turned(model: nn.Module, knob: str) -> Iterator[None]:
    """Every module of ``model`` that declares ``knob`` with its option so set, until the context ends.

    An empty ``knob`` sets nothing.
    """
    option, value = _found(model)[knob] if knob else ("", None)
    name = option.rpartition(".")[2]
    before = [(module, getattr(module, name)) for module in _adjustable(model) if option in module.evaluation_knobs()]
    try:
        for module, _ in before:
            setattr(module, name, value)
        yield
    finally:
        for module, old in before:
            setattr(module, name, old)


def _found(model: nn.Module) -> dict[str, tuple[str, Any]]:
    return {
        f"{option}={spelled(value)}": (option, value)
        for module in _adjustable(model)
        for option, values in module.evaluation_knobs().items()
        for value in values
    }


def spelled(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _adjustable(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Adjustable)]

"""Knobs: options of a trained model that can be changed temporarily for evaluation on longer rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from lra_bench.contracts import Adjustable, UserError


def declared_knobs(model: nn.Module) -> dict[str, tuple[str, Any]]:
    """Return option and value of the knobs that modules of ``model`` declare, by ``option=value``, in their order."""
    return {
        # As in an override on the command line.
        f"{option}={str(value).lower() if isinstance(value, bool) or value is None else value}": (option, value)
        for module in _adjustable(model)
        for option, values in module.evaluation_knobs().items()
        for value in values
    }


def select_knobs(
    model: nn.Module, requested: Sequence[str] | None, option: str = "measure.extrapolation_knobs"
) -> list[str]:
    """Return the knobs to measure: the requested ones without duplicates, by default all that ``model`` declares.

    Raises ``UserError``, which names ``option``, if the model does not declare a requested knob.
    """
    known = list(declared_knobs(model))
    for knob in requested or ():
        if knob not in known:
            available = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"{option}: the model has no knob {knob}; {available}")
    return known if requested is None else list(dict.fromkeys(requested))


def with_knob(model: nn.Module, knob: str) -> AbstractContextManager[None]:
    """Set the option of ``knob`` in every module of ``model`` that declares it; restore it when the context exits.

    An empty ``knob`` sets nothing.
    """
    option, value = declared_knobs(model)[knob] if knob else ("", None)
    modules = [module for module in _adjustable(model) if option in module.evaluation_knobs()]
    return with_attribute(modules, option.rpartition(".")[2], value)


@contextmanager
def with_attribute(modules: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Set an attribute of modules; restore its values when the context exits."""
    before = [(module, getattr(module, name)) for module in modules]
    try:
        for module, _ in before:
            setattr(module, name, value)
        yield
    finally:
        for module, old in before:
            setattr(module, name, old)


def _adjustable(model: nn.Module) -> list[Any]:
    """Return the modules of ``model`` that declare knobs."""
    return [module for module in model.modules() if isinstance(module, Adjustable)]

"""Numbers of trainable parameters by part of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from lra_bench.contracts.measurement import Column, Display, Measurement, listed, number

if TYPE_CHECKING:
    from torch import nn

PARTS = ("body_active", "body", "embeddings", "positions", "head", "total")


class CheckedParameters(TypedDict, total=False):
    """Number of trainable parameters without a gradient; only of models with classes outside lra-bench."""

    without_gradient: int


class Parameters(CheckedParameters):
    """Numbers of trainable parameters; ``body`` excludes embeddings, position tables and head.

    A complex number counts as two.
    """

    total: int
    body: int
    body_active: int
    embeddings: int
    positions: int
    head: int


class ParameterCounts(Measurement):
    """Numbers of trainable parameters of the built model, which are known before training."""

    name = "parameters"
    title = "Parameters"
    Result = Parameters
    columns = (
        Column(
            name="parameters_body",
            help="number of trainable parameters of the body, without embeddings, position tables and head",
            source="parameters.body",
            dtype="Int64",
        ),
        Column(
            name="parameters_body_active",
            help="number of trainable body parameters that one token uses, without embeddings, position tables and "
            "head",
            source="parameters.body_active",
            dtype="Int64",
            display=Display("parameters", "{:,.0f}", key="parameters", first="ascending"),
        ),
        Column("parameters_total", "number of trainable parameters", "parameters.total", dtype="Int64"),
    )

    @staticmethod
    def of(model: nn.Module) -> Parameters:
        """Return the numbers of a built model.

        If the model defines no ``parameter_parts``, the tables of its ``nn.Embedding`` modules count as embeddings and
        all other parameters as body.
        """
        from torch import nn

        if (count_parts := getattr(model, "parameter_parts", None)) is not None:
            return cast(Parameters, count_parts())
        total = sum(parameter.numel() * (1 + parameter.is_complex()) for parameter in model.parameters())
        tables = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding))
        body = total - tables
        return {"total": total, "body": body, "body_active": body, "embeddings": tables, "positions": 0, "head": 0}

    @classmethod
    def facts(cls, section: Parameters) -> Iterator[tuple[str, str]]:
        """Yield all numbers."""
        yield "parameters", listed(section)

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield each number of the last seed."""
        yield from ((name.replace("_", " "), number(sections[-1][name])) for name in PARTS)

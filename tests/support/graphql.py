"""The subset of GraphQL that W&B clients use: documents are parsed and resolved from dictionaries.

An object is a dict of its fields; a field with arguments is a function of them. Unknown fields, arguments and fragments
are errors, and responses contain requested fields only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(r'[\s,]+|#[^\n]*|(\.\.\.|[{}()\[\]:=!@$]|-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*)')
INTERFACES = {"ArtifactCollection": ("ArtifactSequence",)}


class GraphQLError(Exception):
    """The document is invalid or requests an unknown field."""


@dataclass
class Field:
    """A requested field, or, without a name, a fragment ``on`` a type."""

    name: str
    alias: str
    arguments: dict[str, Any] = field(default_factory=dict)
    directives: dict[str, dict[str, Any]] = field(default_factory=dict)
    inner: list[Field] = field(default_factory=list)
    on: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable, whose value is part of the request."""

    name: str


class Document:
    """One operation with its fragments.

    Attributes:
        kind: ``query`` or ``mutation``.
        name: Name of the operation.
        defaults: Default values of its variables.
        fields: The requested fields.
        fragments: Fragments by name.
    """

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self.kind, self.name = "query", ""
        self.defaults: dict[str, Any] = {}
        self.fields: list[Field] = []
        self.fragments: dict[str, Field] = {}
        while self._tokens:
            self._definition()

    def resolve(self, root: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the operation on the fields of ``root``."""
        return self._select(root, self.fields, {**self.defaults, **variables})

    def _definition(self) -> None:
        if self._tokens[0] == "{":
            self.fields = self._selection()
            return
        kind = self._take()
        if kind == "fragment":
            name = self._take()
            self._take("on")
            self.fragments[name] = Field("", "", on=self._take(), inner=self._selection())
            return
        if kind not in ("query", "mutation"):
            raise GraphQLError(f"{kind} is neither a query nor a mutation")
        self.kind, self.name = kind, self._take()
        if self._is("("):
            while not self._is(")"):
                self._variable()
        self.fields = self._selection()

    def _variable(self) -> None:
        self._take("$")
        name = self._take()
        self._take(":")
        while self._tokens[0] not in (")", "$", "="):
            self._take()
        if self._is("="):
            self.defaults[name] = self._value()

    def _selection(self) -> list[Field]:
        self._take("{")
        found = []
        while not self._is("}"):
            found.append(self._spread() if self._is("...") else self._field())
        return found

    def _spread(self) -> Field:
        if self._is("on"):
            kind = self._take()
            return Field("", "", directives=self._directives(), on=kind, inner=self._selection())
        return Field("...", self._take(), directives=self._directives())

    def _field(self) -> Field:
        alias = name = self._take()
        if self._is(":"):
            name = self._take()
        arguments, directives = self._arguments(), self._directives()
        inner = self._selection() if self._tokens[0] == "{" else []
        return Field(name, alias, arguments, directives, inner)

    def _directives(self) -> dict[str, dict[str, Any]]:
        found = {}
        while self._is("@"):
            name = self._take()
            found[name] = self._arguments()
        return found

    def _arguments(self) -> dict[str, Any]:
        return self._pairs(")") if self._is("(") else {}

    def _pairs(self, end: str) -> dict[str, Any]:
        found = {}
        while not self._is(end):
            name = self._take()
            self._take(":")
            found[name] = self._value()
        return found

    def _value(self) -> Any:
        token = self._take()
        if token == "$":
            return Variable(self._take())
        if token == "{":
            return self._pairs("}")
        if token == "[":
            found = []
            while not self._is("]"):
                found.append(self._value())
            return found
        if token in ("true", "false", "null") or token[0] in '"-0123456789':
            return json.loads(token)
        return token  # a value of an enumeration

    def _take(self, expected: str = "") -> str:
        token = self._tokens.pop(0)
        if expected and token != expected:
            raise GraphQLError(f"{expected} is expected, not {token}")
        return token

    def _is(self, token: str) -> bool:
        if self._tokens[0] != token:
            return False
        self._tokens.pop(0)
        return True

    def _select(self, parent: Mapping[str, Any], fields: list[Field], variables: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in fields:
            conditions = {name: _substitute(value, variables)["if"] for name, value in each.directives.items()}
            if not conditions.get("include", True) or conditions.get("skip", False):
                continue
            if each.name == "...":
                each = self.fragments[each.alias]
            if each.on:
                if parent.get("__typename", each.on) in (each.on, *INTERFACES.get(each.on, ())):
                    found |= self._select(parent, each.inner, variables)
            else:
                found[each.alias] = self._resolve_field(parent, each, variables)
        return found

    def _resolve_field(self, parent: Mapping[str, Any], requested: Field, variables: Mapping[str, Any]) -> Any:
        if requested.name not in parent:
            raise GraphQLError(f"{self.name}: {parent.get('__typename', 'an object')} has no field {requested.name}")
        value = parent[requested.name]
        if callable(value):
            value = value(**_substitute(requested.arguments, variables))
        elif requested.arguments:
            raise GraphQLError(f"{self.name}: {requested.name} takes no arguments")
        return self._shape(value, requested, variables)

    def _shape(self, value: Any, requested: Field, variables: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._shape(entry, requested, variables) for entry in value]
        if isinstance(value, Mapping) != bool(requested.inner) and value is not None:
            raise GraphQLError(
                f"{self.name}: {requested.name} is {'an object' if not requested.inner else 'not an object'}"
            )
        return self._select(value, requested.inner, variables) if isinstance(value, Mapping) else value


def _substitute(value: Any, variables: Mapping[str, Any]) -> Any:
    """Return a value of a document with variables replaced by their values."""
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, dict):
        return {name: _substitute(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [_substitute(each, variables) for each in value]
    return value


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise GraphQLError(f"cannot be read from {text[position : position + 20]!r} on")
        position = match.end()
        if match[1]:
            found.append(match[1])
    return found

"""The part of GraphQL that clients of W&B use: documents are parsed and answered field by field from plain objects.

An object is a dict of its fields; a field with arguments is a function of them. A field, argument or fragment that is
not there is an error, so an answer never holds what was not asked for, and no question is answered by chance.
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
    """The document is wrong, or asks for what is not there."""


@dataclass
class Field:
    """One thing that is asked for; without a name a fragment, ``on`` a type."""

    name: str
    alias: str
    arguments: dict[str, Any] = field(default_factory=dict)
    directives: dict[str, dict[str, Any]] = field(default_factory=dict)
    inner: list[Field] = field(default_factory=list)
    on: str = ""


@dataclass(frozen=True)
class Variable:
    """A value that comes with the request."""

    name: str


class Document:
    """One operation with its fragments: ``kind``, ``name``, and the defaults of its variables."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self.kind, self.name = "query", ""
        self.defaults: dict[str, Any] = {}
        self.fields: list[Field] = []
        self.fragments: dict[str, Field] = {}
        while self._tokens:
            self._definition()

    def answer(self, root: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to the operation from the fields of ``root``."""
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
            raise GraphQLError(f"{kind} is no query and no mutation")
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
        return token  # a word of an enumeration

    def _take(self, wanted: str = "") -> str:
        token = self._tokens.pop(0)
        if wanted and token != wanted:
            raise GraphQLError(f"{wanted} is expected, not {token}")
        return token

    def _is(self, token: str) -> bool:
        if self._tokens[0] != token:
            return False
        self._tokens.pop(0)
        return True

    def _select(self, thing: Mapping[str, Any], fields: list[Field], variables: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in fields:
            conditions = {name: _given(given, variables)["if"] for name, given in each.directives.items()}
            if not conditions.get("include", True) or conditions.get("skip", False):
                continue
            if each.name == "...":
                each = self.fragments[each.alias]
            if each.on:
                if thing.get("__typename", each.on) in (each.on, *INTERFACES.get(each.on, ())):
                    found |= self._select(thing, each.inner, variables)
            else:
                found[each.alias] = self._ask(thing, each, variables)
        return found

    def _ask(self, thing: Mapping[str, Any], asked: Field, variables: Mapping[str, Any]) -> Any:
        if asked.name not in thing:
            raise GraphQLError(f"{self.name}: {thing.get('__typename', 'an object')} has no field {asked.name}")
        value = thing[asked.name]
        if callable(value):
            value = value(**_given(asked.arguments, variables))
        elif asked.arguments:
            raise GraphQLError(f"{self.name}: {asked.name} takes no arguments")
        return self._shape(value, asked, variables)

    def _shape(self, value: Any, asked: Field, variables: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._shape(entry, asked, variables) for entry in value]
        if isinstance(value, Mapping) != bool(asked.inner) and value is not None:
            raise GraphQLError(f"{self.name}: {asked.name} is {'an object' if not asked.inner else 'none'}")
        return self._select(value, asked.inner, variables) if isinstance(value, Mapping) else value


def _given(value: Any, variables: Mapping[str, Any]) -> Any:
    """A value of a document with the request's variables in it."""
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, dict):
        return {name: _given(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [_given(each, variables) for each in value]
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

"""Models from Python: names, classes and functions, of which those of a notebook or script are stored as a file."""

from __future__ import annotations

import ast
import builtins
import copy
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import yaml

from lra_bench.build import load_class, suggest
from lra_bench.config.definitions import (
    Definition,
    closure_of,
    definition,
    literal,
    namespace_of,
    origin,
    original,
    submodules,
    used_names,
)
from lra_bench.config.effective import declared
from lra_bench.config.groups import option_files
from lra_bench.config.sources import is_installed, outside_modules
from lra_bench.errors import UserError
from lra_bench.runtime.files import replacing

MIXER = "lra_bench.models.mixer.Mixer"
MODULE_MIXER = "lra_bench.models.adapters.ModuleMixer"
EXAMPLE = "lambda width, heads: nn.GRU(width, width, batch_first=True)"


@dataclass(frozen=True)
class Wrapped:
    """A function that returns a module, and the options of ``ModuleMixer`` with which the module is called."""

    factory: FunctionType
    options: Mapping[str, Any]


def wrap(
    factory: Callable[..., Any],
    *,
    padding: str = "none",
    causal: bool = False,
    declares: Mapping[str, Any] | None = None,
    **options: Any,
) -> Wrapped:
    """Describe a model that mixes tokens with a module (B, N, E) -> (B, N, E).

    Args:
        factory: Function that returns a new ``torch.nn.Module``. Its arguments are named ``width``, ``heads``,
            ``head_dim``, ``layer``, ``depth``, ``max_length``, ``causal``, ``dropout`` or ``seed``, or have defaults.
        padding: What the module receives of the padding: ``none``, ``mask`` or ``packed``.
        causal: Whether outputs do not depend on later tokens, so that the model can be used in causal tasks. A module
            that needs to know the direction takes it as the argument ``causal`` of ``factory``, or as a mask
            (``causal_argument``).
        declares: Other declared capabilities, such as ``{"growth": 2, "materialises": "maps"}`` for attention.
        **options: Further options of ``lra_bench.models.adapters.ModuleMixer``, such as ``mask="hide"``.

    Returns:
        The model, for ``lra_bench.bench`` and ``lra_bench.check``.

    Raises:
        UserError: If ``factory`` is not a function, or there is no such option.

    Examples:
        >>> from torch import nn
        >>> gru = lra_bench.wrap(lambda width, heads: nn.GRU(width, width, batch_first=True), causal=True)
        >>> findings = lra_bench.check(gru, "recall", overrides={"protocol": "smoke"})
        >>> [finding.what for finding in findings if finding.ok is False]
        []
    """
    if not isinstance(factory, FunctionType):
        raise UserError(
            f"wrap: takes a function that returns a module, because each layer has its own, such as {EXAMPLE}, "
            f"not {_kind(factory)}"
        )
    known = set(declared(MODULE_MIXER, "wrap").defaults) - {"module", "sizes"}
    if unknown := [name for name in options if name not in known]:
        raise UserError(f"wrap: there is no option {unknown[0]}{suggest(unknown[0], known)}")
    if not isinstance(declares or {}, Mapping):
        raise UserError(f"wrap: declares={declares!r}: must map capabilities to values, such as {{'growth': 2}}")
    declarations = {**({"causal": "exact"} if causal else {}), **(declares or {})}
    return Wrapped(factory, {"padding": padding, **options, "declares": declarations})


def carried(model: object, folder: Path) -> tuple[str, Path]:
    """Return the name under which a model can be chosen, and the folder of its files, for ``--config-dir``.

    A class or function of a notebook or script is written to a file, with the functions, classes, imports and plain
    values that it uses, so that the process of a cell can import it and the key of the cell covers its code. Classes of
    installed packages are imported from there.

    Args:
        model: Class that derives from ``Mixer``, a ``functools.partial`` of it or a function that returns an instance;
            or the result of ``wrap``.
        folder: The files are written to a new folder in it, whose name contains a digest of them.

    Returns:
        The name, and the new folder.

    Raises:
        UserError: If ``model`` is something else, or uses a value that cannot be stored.
    """
    code = _of_module(model) if isinstance(model, Wrapped) else _of_mixer(model)
    for option, value in code.options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise UserError(f"model.mixer.{option}: {error}; give numbers, texts, lists or dictionaries") from error
    name = f"{code.name}_own" if code.name in option_files("model") else code.name
    module = f"{name}_code"
    target = f"{module}.{code.target}" if code.module.lines else code.target
    mixer = {"_target_": target, **json.loads(json.dumps(code.options))}
    content = yaml.safe_dump({"model": {"label": code.label, "mixer": mixer}})
    files = {
        f"model/{name}.yaml": f"# @package _global_\n# {code.label}, defined in Python\n{content}",
        **({f"{module}.py": code.module.text()} if code.module.lines else {}),
        **{str(path): text for path, text in code.module.files.items()},
    }
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    root = folder / f"{name}-{digest}"
    for path, text in files.items():
        if not (root / path).is_file():
            with replacing(root / path) as temporary:
                temporary.write_text(text, encoding="utf-8")
    return name, root


class _Code(NamedTuple):
    """A model from Python: its name, label, class, options, and the module in which the class is defined.

    The class is a dotted path if the module has no lines.
    """

    name: str
    label: str
    target: str
    options: Mapping[str, Any]
    module: _Module


def _of_module(model: Wrapped) -> _Code:
    """Return the code of a mixer that calls the module that a function returns."""
    called, (package, _, base) = _called(model.factory), MODULE_MIXER.rpartition(".")
    module = _Module(f"wrap ({called})")
    module.add("_new_module", model.factory)
    module.lines.append(f"from {package} import {base}")
    module.lines.append(f"class WrappedModule({base}):\n    make = staticmethod(_new_module)")
    return _Code(f"{_snake(called)}_wrapped", called, "WrappedModule", model.options, module)


def _of_mixer(model: object) -> _Code:
    """Return the code of a mixer class, a partial of it, or a function that returns a mixer."""
    given, options = (model.func, model.keywords) if isinstance(model, partial) and not model.args else (model, {})
    cls = type(_instance(given)) if isinstance(given, FunctionType) else given
    if not isinstance(cls, type) or not issubclass(cls, load_class(MIXER, object, "model")):
        raise UserError(
            "model: takes the name of a model, a class that derives from lra_bench.models.mixer.Mixer, a function that "
            f"returns an instance of one, or lra_bench.wrap({EXAMPLE}), not {_kind(cls)}"
        )
    label, name, module = cls.__name__, _snake(cls.__name__), _Module(f"model ({cls.__name__})")
    if given is cls and (found := origin(cls)) and is_installed(found[0]):
        return _Code(name, label, ".".join(found), options, module)
    module.add(label, cls)
    if given is cls:
        return _Code(name, label, label, options, module)
    module.add("_new_mixer", given)
    module.lines.append(
        f"class FromFunction({label}):\n    def __new__(cls, *arguments, **options):\n"
        "        return _new_mixer(*arguments, **options)"
    )
    return _Code(name, label, "FromFunction", options, module)


class _Module:
    """The code of a module in which objects of a notebook or script are defined again.

    Args:
        subject: What the code is for, for error messages.

    Attributes:
        lines: Statements, in an order in which each name is bound before a class or decorator uses it.
        files: Code of imported modules that are not installed, by path.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.lines: list[str] = []
        self.files: dict[Path, str] = {}
        self._bound: set[str] = set()

    def text(self) -> str:
        """Return the code. The text of ``files`` is part of it, so that the key of a cell covers them."""
        stored = {str(path): text for path, text in sorted(self.files.items())}
        first = ["from __future__ import annotations", *([f"IMPORTED = {stored!r}"] if stored else [])]
        return "\n\n".join([*first, *self.lines]) + "\n"

    def add(self, name: str, value: Any) -> None:
        """Define a name in the module, after the names that its value uses."""
        if name not in self._bound:
            self._bound.add(name)
            self.lines.append(self._binding(name, value))

    def _binding(self, name: str, value: Any) -> str:
        """Return a statement that binds a name to a value."""
        if (text := literal(value)) is not None:
            return f"{name} = {text}"
        if isinstance(value, ModuleType) and value.__name__ != "__main__":
            self._carry(value.__name__)
            return f"import {value.__name__} as {name.replace('.', '_')}"
        if found := origin(value):
            self._carry(found[0])
            first, _, rest = found[1].partition(".")
            return f"from {found[0]} import {first} as {name}" + (f"\n{name} = {name}.{rest}" if rest else "")
        inner = original(value, name)
        node = definition(inner) if isinstance(inner, FunctionType | type) else None
        if node is None or (inner is not value and not getattr(node, "decorator_list", None)):
            raise UserError(
                f"{self.subject}: uses {name}, {_kind(value)}, which cannot be stored with the code; use numbers, "
                "texts, lists or dictionaries, or define it in a file that is imported, or by def or class in a script "
                "or notebook (code that is given to python -c or typed into the interpreter cannot be read)"
            )
        return self._definition(name, value, inner, node)

    def _definition(self, name: str, value: Any, inner: FunctionType | type, node: Definition) -> str:
        """Add the names that a function or class uses to the module, and return its definition.

        Args:
            name: The name.
            value: Its value.
            inner: The function or class without decorators.
            node: Its syntax tree.
        """
        namespace, closure = namespace_of(inner), closure_of(inner)
        closure = {key: each for key, each in closure.items() if each is not value}
        own = name if isinstance(node, ast.Lambda) else node.name
        if own != name and namespace.get(own) is value:
            self.add(own, value)
            return f"{name} = {own}"
        if isinstance(node, ast.FunctionDef) and inner is value and own in namespace and namespace[own] is not value:
            node = copy.copy(node)  # the function to which the decorators are applied
            node.decorator_list = []
        for key in sorted(used_names(node) - set(closure) - {own}):
            if key in namespace:
                self.add(key, namespace[key])
                for module in submodules(node, key, namespace[key]):
                    self.add(module, sys.modules[module])
            elif "<locals>" in inner.__qualname__ and not hasattr(builtins, key):
                raise UserError(
                    f"{self.subject}: {own} uses {key}, a variable of the function in which it is defined, whose value "
                    "is not stored; define both outside of functions"
                )
        code = f"{name} = {ast.unparse(node)}" if isinstance(node, ast.Lambda) else ast.unparse(node)
        if not closure and own == name:
            return code
        lines = "\n".join([*(self._binding(key, each) for key, each in closure.items()), code, f"return {own}"])
        return f"def _scope_of_{name}():\n{indent(lines, '    ')}\n{name} = _scope_of_{name}()"

    def _carry(self, module: str) -> None:
        """Add the files of a module that is not installed, and of those in its folder that it imports."""
        if is_installed(module):
            return
        for name, file in outside_modules({"_target_": f"{module}.name"}).items():
            path = Path(*name.split("."))
            path = path / "__init__.py" if file.name == "__init__.py" else path.with_suffix(".py")
            self.files[path] = ast.unparse(ast.parse(file.read_bytes())) + "\n"


def _instance(factory: FunctionType) -> Any:
    """Return the mixer that a function returns, with a small width."""
    parameters = inspect.signature(factory).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        raise UserError(
            "model: the function must accept **common and pass it to the class, because the backbone sets causal, "
            "dropout and others; to call a module, pass lra_bench.wrap(function)"
        )
    try:
        return factory(width=16, heads=2)
    except Exception as error:
        raise UserError(f"model: the function fails with width=16 and heads=2 ({error}); call it to see why") from error


def _called(factory: FunctionType) -> str:
    """Return the name of the class that a lambda function calls, otherwise the name of the function."""
    node = definition(factory)
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
        return ast.unparse(node.body.func).rpartition(".")[2]
    return factory.__name__.strip("<>")


def _snake(name: str) -> str:
    """Return ``my_mixer`` for ``MyMixer``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", words).strip("_").lower()


def _kind(value: Any) -> str:
    """Return a description of a value for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"

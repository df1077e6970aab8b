"""The type stub of the native module names all that is there, with the parameters it has."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import seqshift
from seqshift import _native

STUB = Path(seqshift.__file__).with_name("_native.pyi")


def described(body, path=""):
    """The names that statements of a stub define, with their parameters where they define a function."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[path + node.name] = None
            found.update(described(node.body, f"{path}{node.name}."))
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
            parameters = [argument.arg for argument in every if argument is not None]
            is_property = any(getattr(decorator, "id", "") == "property" for decorator in node.decorator_list)
            found[path + node.name] = None if is_property else parameters
        elif isinstance(node, ast.AnnAssign):
            found[path + node.target.id] = None
    return found


STATED = described(ast.parse(STUB.read_text()).body)


def public(owner):
    return {name for name in vars(owner) if not name.startswith("_")}


@pytest.mark.parametrize("name", list(STATED))
def test_what_the_stub_names_is_there(name):
    owner, _, attribute = name.rpartition(".")
    found = getattr(getattr(_native, owner) if owner else _native, attribute)
    if STATED[name] is None or attribute.startswith("__"):
        return
    parameters = list(inspect.signature(found).parameters)
    assert parameters == [parameter for parameter in STATED[name] if not (owner and parameter == "cls")]


def test_the_stub_leaves_nothing_out():
    names = public(_native)
    classes = [name for name in names if isinstance(getattr(_native, name), type)]
    names |= {f"{name}.{member}" for name in classes for member in public(getattr(_native, name))}
    assert names - set(STATED) == set()

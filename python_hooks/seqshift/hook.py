"""Hooks on the methods of a class, removable in any order.

```python
@hook.before(LLMEngine, "step")
def count(self, *args, **kwargs): ...

count.remove()
```

What a hook is called with, where `self` is the class for a class method and absent for a static method:

* `before(self, *args, **kwargs)` may return `Args(args, kwargs)` (without `self`) to replace the arguments.
* `after(self, result, *args, **kwargs)` gets the arguments that the method got, and may return `Result(value)`.
* `around(call, self, *args, **kwargs)` runs in place of the method; `call(self, *args, **kwargs)` goes on inwards.

`None` changes nothing. A bare `(args, kwargs)` from `before` and any value but `None` from `after` work as well.

One call runs all `before` hooks, then the `around` hooks from the outermost inwards, the method, and all `after`
hooks; each group in the order of registration. An exception, from a hook or from the method, ends the call.

All hooks on an attribute share one wrapper. With the last hook gone, the attribute is again the very object that was
there before (or is deleted where it was inherited), unless somebody has put another object on top: then the wrapper
stays where it is and only passes calls on. Hooks registered on top of a foreign object get a wrapper of their own.

Registration and removal are safe from any thread; a call that is under way keeps the hooks it started with.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Args", "Hook", "Result", "after", "around", "before"]

_lock = threading.RLock()


class Args(NamedTuple):
    """The arguments, without `self`, that a `before` hook hands on."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The value that an `after` hook returns in place of the method's own; it may be None."""

    value: Any


class Hook:
    """A registered callback. Still callable as the function that it decorates."""

    def __init__(self, site: _Site, kind: str, callback: Callable[..., Any]) -> None:
        functools.update_wrapper(self, callback)
        # A function under two decorators is called without the detour over the inner one.
        self.callback = callback.callback if isinstance(callback, Hook) else callback
        self.kind = kind
        self._site = site

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.callback(*args, **kwargs)

    def remove(self) -> None:
        """Takes this hook out; the other hooks of the method stay. A second call does nothing."""
        self._site.remove(self)

    def __repr__(self) -> str:
        return f"<{self.kind} hook on {self._site.owner.__qualname__}.{self._site.name}>"


class _Site:
    """One patched attribute of a class: the object found there, the wrapper in its place, and its hooks."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner = owner
        self.name = name
        self.inherited = name not in vars(owner)
        self.found = _find(owner, name)
        static = isinstance(self.found, staticmethod) or not hasattr(self.found, "__get__")
        bound_to_class = isinstance(self.found, classmethod)
        self.function = self.found.__func__ if isinstance(self.found, (staticmethod, classmethod)) else self.found
        if not callable(self.function):
            raise TypeError(f"{owner.__qualname__}.{name} is {self.found!r}, which is not a method")
        # Looked up at each call, so that a base class patched later is still in the chain.
        self.call = self.function
        if self.inherited:
            self.call = self._call_inherited_static if static else self._call_inherited
        self.hooks: tuple[Hook, ...] = ()
        self._compose()

        def wrapper(self_or_class: Any, /, *args: Any, **kwargs: Any) -> Any:
            if (call := self.direct) is not None:
                return call(self_or_class, *args, **kwargs)
            return self._run((self_or_class,), args, kwargs)

        def static_wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._run((), args, kwargs)

        outer: Any = functools.wraps(self.function)(static_wrapper if static else wrapper)
        outer._seqshift_site = self
        self.installed = staticmethod(outer) if static else classmethod(outer) if bound_to_class else outer
        setattr(owner, name, self.installed)

    def _call_inherited(self, self_or_class: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(self.owner, self_or_class), self.name)(*args, **kwargs)

    def _call_inherited_static(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(self.owner, self.owner), self.name)(*args, **kwargs)

    def _run(self, bound: tuple[Any, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        befores, call, afters = self.chain
        for callback in befores:
            changed = callback(*bound, *args, **kwargs)
            if changed is not None:
                args, kwargs = self._arguments(callback, changed)
        result = call(*bound, *args, **kwargs)
        for callback in afters:
            changed = callback(*bound, result, *args, **kwargs)
            if changed is not None:
                result = changed.value if isinstance(changed, Result) else changed
        return result

    def _arguments(self, callback: Callable[..., Any], changed: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
        if isinstance(changed, tuple) and len(changed) == 2:
            args, kwargs = changed
            if isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
                return args, kwargs
        raise TypeError(
            f"before hook {callback!r} on {self.owner.__qualname__}.{self.name} returned {changed!r}: "
            "return None to leave the arguments, or hook.Args(args, kwargs) to replace them"
        )

    def _compose(self) -> None:
        call = self.call
        for hook in reversed(self.hooks):
            if hook.kind == "around":
                call = functools.partial(hook.callback, call)
        befores = tuple(hook.callback for hook in self.hooks if hook.kind == "before")
        afters = tuple(hook.callback for hook in self.hooks if hook.kind == "after")
        # One assignment each: a concurrent call sees the old chain or the new one. `direct` is the short way where
        # nothing runs before or after: the step of an engine is hot.
        self.chain = (befores, call, afters)
        self.direct = None if befores or afters else call

    def add(self, hook: Hook) -> None:
        self.hooks = (*self.hooks, hook)
        self._compose()

    def remove(self, hook: Hook) -> None:
        with _lock:
            remaining = tuple(other for other in self.hooks if other is not hook)
            if len(remaining) == len(self.hooks):
                return
            self.hooks = remaining
            self._compose()
            if remaining or vars(self.owner).get(self.name) is not self.installed:
                return
            if self.inherited:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.found)


def _find(owner: type, name: str) -> Any:
    """The attribute as it stands in the class or in its nearest base, unbound."""
    for base in owner.__mro__:
        if name in vars(base):
            return vars(base)[name]
    raise AttributeError(f"{owner.__qualname__} has no attribute {name!r}: nothing to hook")


def _site(owner: type, name: str) -> _Site:
    """The site whose wrapper stands at the attribute now, or a new one."""
    current = vars(owner).get(name)
    site = getattr(getattr(current, "__func__", current), "_seqshift_site", None)
    # functools.wraps copies our mark to foreign wrappers, so the mark alone proves nothing.
    return site if site is not None and site.installed is current else _Site(owner, name)


def _decorator(owner: type, name: str, kind: str) -> Callable[[Callable[..., Any]], Hook]:
    if not isinstance(owner, type):
        raise TypeError(f"hook.{kind} got {owner!r}: its first argument is the class whose method is hooked")
    _find(owner, name)

    def register(callback: Callable[..., Any]) -> Hook:
        if not callable(callback):
            raise TypeError(f"hook.{kind} on {owner.__qualname__}.{name} got {callback!r}, which is not callable")
        with _lock:
            site = _site(owner, name)
            hook = Hook(site, kind, callback)
            site.add(hook)
        return hook

    return register


def before(cls: type, name: str) -> Callable[[Callable[..., Any]], Hook]:
    """Decorator: runs the function before each call of `cls.name`."""
    return _decorator(cls, name, "before")


def after(cls: type, name: str) -> Callable[[Callable[..., Any]], Hook]:
    """Decorator: runs the function after each call of `cls.name` that returned."""
    return _decorator(cls, name, "after")


def around(cls: type, name: str) -> Callable[[Callable[..., Any]], Hook]:
    """Decorator: runs the function in place of each call of `cls.name`, with the callable to go on with."""
    return _decorator(cls, name, "around")

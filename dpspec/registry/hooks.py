"""A plugin's hooks, checked before it is registered, so that nothing is ever half registered.

pluggy ignores a misspelt hook and a hook without its marker in silence, and lets wrappers change what other
plugins return. All three are refused here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Any

import pluggy

from dpspec.contract import DpspecHooks


def _arguments(function: Any) -> tuple[str, ...]:
    return tuple(p for p in inspect.signature(function).parameters if p != "self")


#: The arguments of every hook, by its name.
HOOKS: dict[str, tuple[str, ...]] = {
    name: _arguments(member) for name, member in vars(DpspecHooks).items() if name.startswith("dpspec_")
}


def hook_problems(plugin: object, manager: pluggy.PluginManager) -> Iterator[str]:
    """Say what is wrong with a plugin's hooks: unknown, unmarked, wrapping, asking for what is not given, or none."""
    found = False
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name in HOOKS and callable(getattr(plugin, name)):
                yield f"hook {name} is not marked with @dpspec.contract.hookimpl"
            continue
        found = True
        hook = options.get("specname") or name
        if hook not in HOOKS:
            yield _unknown(hook)
        elif options.get("wrapper") or options.get("hookwrapper"):
            yield f"hook {hook} is a wrapper; a plugin may not change what others offer"
        else:
            yield from _argument_problems(hook, getattr(plugin, name))
    if not found:
        yield f"it implements no hook (hooks: {', '.join(sorted(HOOKS))})"


def _unknown(hook: str) -> str:
    close = difflib.get_close_matches(hook, HOOKS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown hook {hook!r}{hint} (hooks: {', '.join(sorted(HOOKS))})"


def _argument_problems(hook: str, function: Any) -> Iterator[str]:
    given = HOOKS[hook]
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and (name not in given or parameter.kind in _VARIADIC):
            yield f"hook {hook} asks for {name!r}, which it is not given (given: {', '.join(given) or 'nothing'})"


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

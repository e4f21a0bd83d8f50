"""Which plugin is at work while plugins are loaded: one that hangs or ends the process takes every command with it.

Nothing can go on then, but the plugin can be named, with the way to leave it out: after five seconds, when Ctrl-C is
pressed, and when it ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dpspec.errors import ExitCode, UsageError
from dpspec.text import listed, plain, quoted

#: Seconds after which a plugin that is still at work is named.
PATIENCE = 5.0

#: Names of plugins or distributions, separated by commas, that are not loaded.
VARIABLE = "DPSPEC_WITHOUT_PLUGINS"

_at_work = ""


def at_work() -> str:
    """The way out for whoever ended a plugin that is being loaded, in one sentence; empty where none is."""
    return _at_work


@contextmanager
def watched(plugin: str, distribution: str, version: str) -> Iterator[None]:
    """Within it, foreign code of a plugin runs: it is named when it takes long and when it ends the process."""
    global _at_work
    who = f"plugin {plain(plugin)!r} of {plain(distribution)} {plain(version)}"
    name = shlex.quote(plain(distribution))
    way_out = f"`dpspec --without-plugin {name} ...` or {VARIABLE}={name} leaves it out"
    _at_work = f"It was loading {who}; {way_out}."
    slow = threading.Timer(PATIENCE, _tell, (f"loading {who} takes more than {PATIENCE:.0f} s; {way_out}",))
    slow.daemon = True
    slow.start()
    traced = faulthandler.is_enabled() or not _enable_traces()
    try:
        with exits_told(f"{who} ended the process while it was loaded; {way_out}"):
            yield
    except KeyboardInterrupt:
        raise  # what it interrupted is told at the end
    except BaseException:
        _at_work = ""
        raise
    else:
        _at_work = ""
    finally:
        slow.cancel()
        if not traced:
            faulthandler.disable()


def _enable_traces() -> bool:
    """Have a crash say in which file it was; False where stderr is no file."""
    try:
        faulthandler.enable(all_threads=False)
    except (OSError, ValueError, RuntimeError, AttributeError):
        return False
    return True


def _tell(text: str) -> None:
    """Write a line to stderr, past whatever the plugin made of it."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))


@contextmanager
def exits_told(why: str) -> Iterator[None]:
    """Within it, whoever ends the process at once (``os._exit``) does not end it as if all were well."""
    leave, process = os._exit, os.getpid()

    def told_exit(status: int) -> None:
        if os.getpid() == process:  # and not in a child that was forked
            _tell(f"error: {why} (exit {status})")
            status = int(ExitCode.PLUGIN)
        leave(status)

    os._exit = told_exit  # type: ignore[assignment]
    try:
        yield
    finally:
        if os._exit is told_exit:
            os._exit = leave


def leave_out(names: Sequence[str]) -> None:
    """Load no plugins of these names, here and in processes that are started from here.

    Raises ``UsageError`` where no plugin has a name: it would be loaded.
    """
    from dpspec.registry.discover import discover, normalise

    candidates, _ = discover()
    foreign = {n for c in candidates if normalise(c.distribution) != "dpspec" for n in (c.plugin, c.distribution)}
    for name in names:
        if normalise(name) not in map(normalise, foreign):
            known = f" (installed: {listed(sorted(foreign))})" if foreign else " (none is installed beside dpspec)"
            raise UsageError(f"--without-plugin: no plugin {quoted(name)}{known}; dpspec's own cannot be left out")
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = ",".join(filter(None, [before, *names]))


def left_out(plugin: str, distribution: str) -> bool:
    """Whether the user wants to go on without a plugin, by its own name or its distribution's."""
    from dpspec.registry.discover import normalise

    wanted = {normalise(name.strip()) for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    return bool(wanted & {normalise(plugin), normalise(distribution)})

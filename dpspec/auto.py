"""Record this process from here on: ``import dpspec.auto`` at the top of a script or a worker.

A notebook writes ``%load_ext dpspec.auto``, and ``%unload_ext dpspec.auto`` ends its recordings.

The environment variable ``DPSPEC_RECORD`` names the folder of the recordings; ``run`` by default. Training N is in its
subfolder N. ``DPSPEC_CLIENT=1`` is the option ``--client`` of ``dpspec record``. Each process that imports this module
records, also into the same folder. It is the same as ``dpspec record`` for processes that the command cannot start: see
``docs/how-to/record-a-script.md``.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any


def _start() -> Any:
    folder = Path(os.environ.get("DPSPEC_RECORD") or "run")
    client = bool(os.environ.get("DPSPEC_CLIENT"))
    return import_module("dpspec_recording.scripts.session").start(folder, whole=False, client=client)


_session = _start()


def end() -> None:
    """End all recordings of this process, and put back the names of libraries. The process ends them by itself."""
    _session.end()


def load_ipython_extension(shell: Any) -> None:
    """Record the cells from here on: the magic ``%load_ext dpspec.auto``, also after :func:`end`."""
    global _session
    _session = _start()
    shell.events.register("post_run_cell", _session.after_cell)


def unload_ipython_extension(shell: Any) -> None:
    """End all recordings, as :func:`end`."""
    shell.events.unregister("post_run_cell", _session.after_cell)
    end()

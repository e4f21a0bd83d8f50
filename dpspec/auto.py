"""Record this process from here on: ``import dpspec.auto`` at the top of a script, a notebook or a worker.

The environment variable ``DPSPEC_RECORD`` names the folder of the recordings; ``run`` by default. Training N is in its
subfolder N. ``DPSPEC_CLIENT=1`` is the option ``--client`` of ``dpspec record``. Each process that imports this module
records, also into the same folder. It is the same as ``dpspec record`` for processes that the command cannot start: see
``docs/how-to/record-a-script.md``.
"""

import os
from importlib import import_module
from pathlib import Path

_session = import_module("dpspec_recording.scripts.session").start(
    Path(os.environ.get("DPSPEC_RECORD") or "run"), whole=False, client=bool(os.environ.get("DPSPEC_CLIENT"))
)


def end() -> None:
    """End all recordings of this process, and put back the names of libraries. The process ends them by itself."""
    _session.end()

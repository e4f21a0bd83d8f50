"""``python -m dpspec`` is ``dpspec``: where the program begins and ends.

The commands take a tenth of a second to import, and Ctrl-C may come before they are; it is answered here.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path and len(sys.path) > 1:
    # ``python -m`` looks for modules in the current folder first. The program of that name does not, and so it goes on
    # without, unless that is where dpspec itself is.
    import os

    import dpspec

    if sys.path[0] not in map(os.path.dirname, dpspec.__path__):
        del sys.path[0]

from dpspec.cli.terminal import interrupt


def main() -> int:
    """Run the process's command line and return its exit code."""
    interrupt.listen()
    try:
        from dpspec.cli.app import main as command

        return command()
    except BaseException:
        if not interrupt.heard():
            raise
        return 130  # dpspec.errors may not have been imported
    finally:
        interrupt.leave()


if __name__ == "__main__":
    sys.exit(main())

"""``python -m dpspec`` is ``dpspec``: where the program begins and ends.

The commands take a tenth of a second to import, and Ctrl-C may come before they are; it is answered here.
"""

from __future__ import annotations

import sys

from dpspec.cli import interrupt


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

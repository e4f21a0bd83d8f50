"""Entry point of ``dpspec`` and ``python -m dpspec``. It handles Ctrl-C already while the commands are imported."""

import gc
import sys

if __name__ == "__main__" and not sys.flags.safe_path and len(sys.path) > 1:
    # ``python -m`` searches the current folder first. ``dpspec`` does not, so remove it unless dpspec itself is there.
    import os

    import dpspec

    if sys.path[0] not in map(os.path.dirname, dpspec.__path__):
        del sys.path[0]

from dpspec.cli import interrupt
from dpspec.cli.handover import Handover


def main() -> int:
    """Run the process's command line and return its exit code."""
    interrupt.listen()
    try:
        from dpspec.cli.app import main as command

        return command()
    except Handover as handover:
        program = handover.program
    except BaseException:
        number = interrupt.heard()
        if number is None:
            raise
        print(f"Stopped by {number.name} before the run began.", file=sys.stderr)
        return 128 + number  # dpspec.errors may not have been imported
    finally:
        interrupt.leave()
        gc.freeze()  # the operating system frees all memory at once: to collect costs 0.1 to 0.2 CPU seconds
    return program()


if __name__ == "__main__":
    sys.exit(main())

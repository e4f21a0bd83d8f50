"""``python -m dpspec`` is ``dpspec``."""

from __future__ import annotations

import sys

from dpspec.cli.app import main

if __name__ == "__main__":
    sys.exit(main())

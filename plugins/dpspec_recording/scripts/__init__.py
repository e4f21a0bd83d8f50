"""Recording of scripts that nobody edited: ``dpspec record`` and ``import dpspec.auto``."""

"""Recording of unedited scripts: ``dpspec record`` and ``import dpspec.auto``."""

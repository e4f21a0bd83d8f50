"""The commands of ``dpspec``, one module each."""

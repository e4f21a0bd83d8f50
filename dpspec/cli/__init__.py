"""The command line: one file per command; commands import their dependencies when they run."""

"""Where trials are kept: a folder, or an object store that fsspec speaks to."""

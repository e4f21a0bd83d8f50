"""A recorded run in the pipeline: the spec of ``dpspec check``, the bounds, and the section of the result."""

"""What it costs to publish the best of several runs on the same data: the audit of the mechanism ``selection``."""

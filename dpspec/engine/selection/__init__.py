"""The audit of the mechanism ``selection``: the privacy cost of publishing the best of several runs."""

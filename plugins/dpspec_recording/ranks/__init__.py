"""The ranks of a training in several processes: their meeting point, and the observations of each."""

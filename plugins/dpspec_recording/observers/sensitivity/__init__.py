"""The effect of one record on a sum: contributions, clipping, and records that affect each other."""

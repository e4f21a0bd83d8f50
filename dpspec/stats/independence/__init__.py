"""Lower bounds from one run that hold if its canaries are independent, and tests of that on the same run."""

"""What runs: the steps on real rows, the check of the declared collection, and the private mechanisms."""

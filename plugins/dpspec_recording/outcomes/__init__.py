"""What a judge says of a recorded run: the conditions of a proof, the faults that tests look for, and outcomes."""

"""The conditions of a proof, the faults that tests look for, and the outcomes of the judges of a recorded run."""

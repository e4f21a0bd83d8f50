"""Rules on a recorded training: one file for each observation, ``builtin`` lists them, ``observed`` runs them."""

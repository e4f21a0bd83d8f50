"""The folder of a recorded run: its header, steps and journals. Nothing here imports torch."""

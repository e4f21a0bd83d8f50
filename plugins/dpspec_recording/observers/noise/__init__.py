"""The noise that is added: its size, shape, independence and secrecy."""

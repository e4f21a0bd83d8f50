"""Tables of external scores."""

"""Files to start from: a whole small plugin, as text with placeholders."""

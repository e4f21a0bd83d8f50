"""Which plugins are installed, what they offer, and which of them cannot be used."""

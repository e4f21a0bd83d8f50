"""The part of lightning-bolts that an official example uses; its releases do not import with Lightning 2."""

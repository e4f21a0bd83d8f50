"""What the generated pages of docs/reference are made with; ``docs/generate.py`` writes them."""

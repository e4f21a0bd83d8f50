"""Private mechanisms and their divergences, sensitivities of steps, composition, and conversion to epsilon."""

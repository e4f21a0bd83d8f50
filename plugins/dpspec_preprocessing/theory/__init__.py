"""What is proved: private mechanisms and their curves, sensitivities of steps, and how both compose to epsilon."""

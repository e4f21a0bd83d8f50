"""T-fold composition of measures on a grid by an exponentially tilted FFT, with every error bounded."""

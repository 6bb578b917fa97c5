"""The energies that are minimised, and the methods that minimise them."""

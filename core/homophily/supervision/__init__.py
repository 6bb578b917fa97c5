"""Labels, class shares and links, and calibrated probabilities."""

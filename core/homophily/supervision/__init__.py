"""What users say about points: labels, class shares and links; and probabilities in answer to them."""

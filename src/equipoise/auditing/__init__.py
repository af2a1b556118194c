"""Lower bounds of epsilon by experiment: an attack on the product's own border."""

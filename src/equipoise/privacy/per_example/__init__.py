"""Clipped sums of a network's gradients, example by example."""

"""What exists only because of the paper: Lemma 1, its bounds, its grid, its observations, its
networks and five data sets."""

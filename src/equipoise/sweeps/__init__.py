"""Many runs: grids, the store, the sweep, the search."""

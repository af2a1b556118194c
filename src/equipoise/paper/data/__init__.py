"""How the paper's data sets lie on disk."""

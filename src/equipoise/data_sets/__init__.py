"""Data sets as they lie on disk: reading them, keeping them prepared, fetching them. Nothing here knows what is learnt."""

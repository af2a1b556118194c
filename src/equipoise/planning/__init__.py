"""How much of each: the paper's bounds as printed and corrected, and the planner that works."""

"""What is noised, for which unit, and what that costs: one file for each mechanism."""

"""The command: one file for each part of it."""

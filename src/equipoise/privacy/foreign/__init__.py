"""What other programs spend, read from their own files. Nothing of them is ever run."""

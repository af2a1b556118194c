"""One run between separate machines: what the parties agree on, what a silo answers, what the lead
asks."""

"""What is shown of results. Reads them, never trains."""

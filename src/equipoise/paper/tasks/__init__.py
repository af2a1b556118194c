"""The paper's five tasks."""

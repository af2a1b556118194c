"""The paper's observations, checked on a store."""

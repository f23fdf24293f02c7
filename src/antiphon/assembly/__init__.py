"""Composition root: from names and configuration to a node that decides. Knows no device or clock."""

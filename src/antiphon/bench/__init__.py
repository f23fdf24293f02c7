"""Experiments: people over the wire against any realtime server, their log, tables, comparisons, plots."""

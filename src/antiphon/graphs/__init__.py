"""Stage graphs, one family a file, data only."""

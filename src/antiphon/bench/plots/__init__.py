"""Plots of what was measured, one a file. Only here is matplotlib imported (the extra `antiphon[plot]`)."""

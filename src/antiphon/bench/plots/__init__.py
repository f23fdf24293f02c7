"""Plots of what was measured, one a file. The only room that imports matplotlib (`pip install "antiphon[plot]"`)."""

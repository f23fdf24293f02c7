"""The wall-time driver: turns the deciding half's node over real executors, and links processes.

Owns clocks, processes and links; makes no choice of its own.
"""

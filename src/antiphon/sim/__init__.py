"""The server on virtual time: the node as it is, with simulated executors, links and people, in the order
(time, rank, seq). The same seed gives the same log, byte for byte.
"""

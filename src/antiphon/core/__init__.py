"""Names and shapes that every room shares: ids, errors, the conversation, facts, plans, ports.

Knows nothing of any room above it, of devices, sockets, clocks or threads.
"""

"""People as generators without I/O: they speak, type, listen, read, interrupt and report playback."""

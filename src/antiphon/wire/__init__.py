"""The realtime protocol without I/O: client frames and engine outputs in, effects out.

Knows no socket, clock, thread, device or random source: time and ids are handed in, media and text are
decoded by injected functions. A refusal is an `error` event; nothing here ever closes a connection.
"""

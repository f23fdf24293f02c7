"""The only room with the web framework: sockets and HTTP outside, `wire` and an engine client inside.

It makes no protocol decision: frames go to `wire.session`, effects come back and are carried out.
"""

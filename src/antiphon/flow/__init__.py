"""Turns across stages: the conversation record, hand-offs over edges, and every response's one end.

Knows no device, socket or clock; stages below it, drivers above it.
"""

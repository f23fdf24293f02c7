"""Torch step runners behind `core.ports`: they carry a plan out as it stands and report what came of it.

Knows models and tensors; knows no policy, queue, session or clock, and makes no choice.
"""

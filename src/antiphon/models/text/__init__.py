"""Decoders that read and write text: `model` has sizes, weights and arithmetic, `family` the functions."""

"""Qwen3, dense, text only: `model` has its sizes, weights and arithmetic, `family` its functions."""

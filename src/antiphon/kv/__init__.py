"""Bookkeeping of KV without tensors: which block holds what, for whom. Knows no device and no policy."""

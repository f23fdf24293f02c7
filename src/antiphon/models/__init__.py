"""Model families as torch code in reading order: decoder first, then one folder a family.

Weights come in as a stream of named tensors; what a step contains comes in as flat batches. This room knows
no request, no schedule, no socket and no file.
"""

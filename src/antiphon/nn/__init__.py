"""The torch building blocks every decoder is made of: norms, rotary positions, experts, paged attention.

Plain functions over plain tensors, free of device and dtype, and without autograd. This room knows no model
family, no checkpoint, no request and no schedule: what a step contains comes in as a `PagedBatch`.
"""

"""One stage's step scheduler: queues, rows and KV of a stage, and the plan of its next step.

Knows no device; a policy decides, the scheduler makes the plan true and keeps the ledgers.
"""

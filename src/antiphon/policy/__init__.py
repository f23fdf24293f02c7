"""Policies: one decision a file, `decide(view, now) -> choice` with a reason. They own no state of others."""

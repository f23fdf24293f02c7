"""Workloads: arrivals, and what each person says, hears, reads and interrupts. Laws, traces, no clock."""

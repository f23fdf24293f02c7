"""How long steps and copies take: features of a step, models of them, their fit, and profiles of engines.

Pure arithmetic: what is measured comes in as numbers, and no clock is read here.
"""

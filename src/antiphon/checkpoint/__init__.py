"""Model files: opening and checking a checkpoint, and making small ones to try things with.

Knows files, names and shapes; must not know the engine, the stages or the model code that reads the tensors.
"""

"""Pictures, clips and sound as Qwen's omni families take them: what encoders are given, and where media stand
in a prompt.

`preprocess_shapes`, `media_spans` and `positions` are free of torch: a scheduler may ask them.
"""

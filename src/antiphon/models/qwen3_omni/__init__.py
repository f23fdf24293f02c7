"""Qwen3-Omni in reading order: config, encoders, thinker, talker prompt, talker, code predictor, vocoder,
weights.

`config` and `talker_prompt` are free of torch: a scheduler may ask them.
"""

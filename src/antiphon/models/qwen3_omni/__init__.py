"""Qwen3-Omni in reading order: config, counts, positions, encoders, thinker, talker prompt, talker, code
predictor, vocoder, weights.

`config`, `counts`, `positions` and `talker_prompt` are free of torch: a scheduler may ask them.
"""

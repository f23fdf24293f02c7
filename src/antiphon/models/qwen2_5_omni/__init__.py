"""Qwen2.5-Omni: a dense thinker, a talker that is shown the thinker's states, DiT and BigVGAN for the sound.

What it has in common with Qwen3-Omni (positions, pictures, how media stand in a prompt) is in `qwen_media`.
"""

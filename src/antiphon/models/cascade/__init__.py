"""A cascade: a transcriber (Whisper), a text model of any family that is served, and a voice (VITS)."""

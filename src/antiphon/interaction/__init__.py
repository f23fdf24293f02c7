"""What people do while they are being served: speaking, listening, interrupting; decided from probabilities
and playback, without a clock or a device."""

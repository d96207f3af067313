"""What decides: machines and plans. No I/O, no clock, no randomness, no logging."""

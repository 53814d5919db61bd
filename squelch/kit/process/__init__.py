"""What a process of Squelch does besides its work: signals, its end, the terminal, progress, compiled code."""

"""What the terminal shows of runs."""

"""Files, locks, processes and clocks of the machine."""

"""The federation on this machine and its runs: the SuperLink, and submitting a run to one."""

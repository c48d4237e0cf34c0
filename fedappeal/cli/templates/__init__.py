"""Files from which an author starts: `fedappeal new` copies one, and renames its class ``Mine``."""

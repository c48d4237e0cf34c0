"""Forms in which clients train side by side, or one after another."""

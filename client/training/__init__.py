"""How a client trains: the base of local rules, SGD, AdamW, the arithmetic."""

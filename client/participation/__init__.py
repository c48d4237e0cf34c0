"""How a client decides: the base of policies, and those of no algorithm."""

"""What all strategies share: the base class, rounds, messages, members, replies and sums."""

"""Local training: SGD, AdamW, and a client's arithmetic."""

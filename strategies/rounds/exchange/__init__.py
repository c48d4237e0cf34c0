"""Messages to clients, their replies, and the clients themselves."""

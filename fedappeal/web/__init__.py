"""The ground of pages on this machine: access, server, server-sent events, token."""

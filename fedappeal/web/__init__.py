"""The ground of pages on this machine: access, server, buttons."""

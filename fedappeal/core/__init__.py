"""Contracts that server and clients derive from: plug-ins, local rules, policies, measurements."""

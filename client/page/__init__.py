"""The volunteer's page, a process of its own.

It reads the state folder, and does what `fedappeal client` does.
"""

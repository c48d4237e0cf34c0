"""The `fedappeal` command."""

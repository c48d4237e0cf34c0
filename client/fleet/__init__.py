"""The connection of one long-lived client to a SuperLink, through the calls of `fedappeal.flower.node.fleet`."""

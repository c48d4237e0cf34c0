"""The Python interface: own models and data, runs as objects, sweeps. `fedappeal` exports its names."""

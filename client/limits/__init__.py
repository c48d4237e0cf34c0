"""An owner's limits on what a run may ask of the device, and what enforces them."""

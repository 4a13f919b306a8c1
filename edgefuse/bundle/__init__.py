"""What leaves the machine: the bundle's manifest, its evidence, its signature, and their checks."""

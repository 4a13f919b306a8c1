"""What each layer of an int8 file costs, and what is wrong with it."""

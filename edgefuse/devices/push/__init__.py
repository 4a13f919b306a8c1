"""A bundle's way onto a device and back: what lies there, the lock, the trial, the switch."""

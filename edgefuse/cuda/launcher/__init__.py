"""The C program that runs a planned program on the NVIDIA driver alone."""

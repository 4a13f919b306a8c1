"""Triton source of every launch: generated text, one file a kernel, no GPU library needed."""

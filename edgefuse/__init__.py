"""edgefuse: from a PyTorch model to a gated int8 bundle for edge devices."""

__version__ = "0.7.0"

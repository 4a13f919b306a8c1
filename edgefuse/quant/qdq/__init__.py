"""Models that bring their own scales as QuantizeLinear and DequantizeLinear."""

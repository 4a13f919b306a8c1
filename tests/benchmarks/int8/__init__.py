"""The int8 benchmark: peers, judging, and one module for each kind of model."""

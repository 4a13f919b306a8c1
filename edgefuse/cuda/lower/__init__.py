"""Lowering: a fused graph as a :class:`edgefuse.cuda.program.Program`."""

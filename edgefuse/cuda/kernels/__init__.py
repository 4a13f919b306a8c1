"""The NumPy reference of every kernel of :mod:`edgefuse.cuda.contract`, one file a kernel.

Each module has ``reference(call) -> accumulator``, see :class:`edgefuse.cuda.call.Reference`.
"""

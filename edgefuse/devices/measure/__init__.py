"""Figures of a model on a device: latency, memory, cost, agreement of kernels; workers beside.

Every ``*_worker`` is a process of its own, so that one measurement does not touch the next.
"""

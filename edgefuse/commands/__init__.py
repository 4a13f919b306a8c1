"""What each command of the command line does: one module a command, free of Typer and of exits.

``edgefuse/cli.py`` and its neighbours take the words and tell the results.
"""

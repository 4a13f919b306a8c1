"""Registration by decorator, discovery by folder.

A registry belongs to one folder: every module in it registers exactly one entry under its own
file name. Adding a stage or a pass is adding a file.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Generic[Entry]):
    """The entries of one package folder, sorted by name."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._entries: dict[str, Entry] = {}
        self._discovered = False

    def add(self, entry: Entry, module: str) -> Entry:
        """Register ``entry``, defined in ``module``.

        Raises:
            ValueError: when the name is taken or is not the module's file name.
        """
        file_name = module.rsplit(".", 1)[-1]
        if entry.name != file_name:
            raise ValueError(f"{module} registers {entry.name!r}: it must be named {file_name!r}")
        if entry.name in self._entries:
            raise ValueError(f"{self.package}: {entry.name!r} is registered twice")
        self._entries[entry.name] = entry
        return entry

    def all(self) -> dict[str, Entry]:
        """Every entry by name, importing the folder's modules on first use."""
        if not self._discovered:
            package = importlib.import_module(self.package)
            for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"{self.package}.{module}")
            self._discovered = True
        return dict(sorted(self._entries.items()))

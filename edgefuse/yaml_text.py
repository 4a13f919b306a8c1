"""Plain data out of YAML text, with the line of every key.

YAML can say what nobody means. Refused are tags that build objects, keys given twice, which plain
loaders drop silently, numbers in base 8 or 60, integers of more than 64 bits, and aliases of
aliases that ask for more values than any memory holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from edgefuse.errors import RecipeError

KeyPath = tuple[str | int, ...]
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_ODD_NUMBER = re.compile(r"[-+]?(?P<octal>0[0-7_]+)|[-+]?[\d_]+(:[\d_]+)+(\.[\d_]*)?")
_MOST_VALUES = 100_000
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class TextReader:
    """Builds plain data of one YAML text.

    Attributes:
        place: the file, or the option that holds the text.
        places: whether ``place`` has lines.
        lines: 1-based line by key path.
        written: by mapping, its own keys: all but those that ``<<`` merged into it.
        count: values built. Aliases of aliases can ask for more than any memory holds.
    """

    place: str
    places: bool = True
    loader: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    written: dict[int, set[int]] = field(default_factory=dict)
    count: int = 0

    def read(self, text: str) -> Any:
        """Raises: RecipeError: no YAML, no plain data, or a key given twice."""
        try:
            self.loader = _Loader(text)
            node = self.loader.get_single_node()
            return self._build(node, ()) if node is not None else None
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or " ".join(str(error).split())
            hint = "indent with spaces: YAML takes no tabs there" if _at_tab(text, mark) else ""
            raise self._refused(f"not valid YAML: {problem}", mark, hint) from None
        except RecursionError:
            raise self._refused("YAML nested too deeply, or an alias of itself") from None
        finally:
            if self.loader is not None:
                self.loader.dispose()

    def _refused(self, message: str, mark: yaml.Mark | None = None, hint: str = "") -> RecipeError:
        line = f":{mark.line + 1}" if mark and self.places else ""
        return RecipeError(message, where=f"{self.place}{line}", hint=hint)

    def _build(self, node: yaml.Node, path: KeyPath) -> Any:
        mark = node.start_mark
        self.lines.setdefault(path, mark.line + 1)
        self.count += 1
        if self.count > _MOST_VALUES:
            raise self._refused(f"more than {_MOST_VALUES:,} values, aliases followed", mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in _PLAIN:
            raise self._refused(f"not valid YAML: the tag {node.tag} is no plain data", mark)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(n, (*path, i)) for i, n in enumerate(node.value)]
        if id(node) not in self.written:  # An alias meets its mapping again, merged by then.
            self.written[id(node)] = {id(key_node) for key_node, _ in node.value}
            self.loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = self.loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise self._refused(f"a key must be text, not {key!r}", key_node.start_mark)
            if key in seen:
                raise self._refused(f"key {key!r} is given twice", key_node.start_mark)
            if id(key_node) in self.written[id(node)]:  # Merged keys may be overridden.
                seen.add(key)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self._build(value_node, (*path, key))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _NUMBERS and (odd := _ODD_NUMBER.fullmatch(node.value)):
            base = 8 if odd["octal"] else 60
            raise self._refused(
                f"{node.value!r} is a number in base {base} to YAML: write it in base 10, or text "
                "in quotes",
                node.start_mark,
            )
        value = self.loader.construct_object(node, deep=True)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self._refused("an integer that does not fit 64 bits", node.start_mark)
        return value


def _at_tab(text: str, mark: yaml.Mark | None) -> bool:
    """Whether the line that YAML stumbles over is indented with a tab."""
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return False
    line = lines[mark.line]
    return "\t" in line[: len(line) - len(line.lstrip())]


def written(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, ASCII alone, its keys in their order."""
    return str(yaml.safe_dump(data, sort_keys=False, width=1000))

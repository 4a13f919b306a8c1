"""The catalogue of passes, read from the passes themselves: summary, algebra, example, refusals.

Refusals are found by parsing: the sentences given to ``Refusal(...)`` or ``_refuse(...)``, in the
pass and, when it keeps an answer from there, in the modules that passes share (:data:`_SHARED`).
What a sentence fills in at run time is shown as ``<name>``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType

from edgefuse.graph.example import shown
from edgefuse.graph.pipeline import ordered_passes
from edgefuse.graph.rule import PHASES, Pass

_SHARED = tuple(
    f"edgefuse.graph.{m}"
    for m in ("activation", "batch_norm", "fold", "group_norm", "linear", "norm", "padding")
)
_TRANSPARENT = ("describe", "list", "str")
_INTRODUCTION = (
    "Passes run phase by phase; inside a phase, a pass runs after those it names, ties by name, "
    "and only while those before it find nothing more. "
    "The whole sequence is repeated until nothing fires. A pass answers for every candidate node: "
    "it fires, or it refuses and says why. Both are in the ledger of the report. `edgefuse passes` "
    "prints this order."
)
_SAID = {
    "what": "is computed at run time, or may be overridden",
    "why_shared": "is read elsewhere too, or is a graph output",
    "origin": "is something else",
    "line": "what the library says",
}
_PHASES = {
    "normalise": "one spelling for what exporters write in many ways",
    "fold": "arithmetic that is done once, while the model is built",
    "fuse": "several operators become one group",
    "clean": "what the other phases leave behind",
}


def catalogue() -> str:
    """``edgefuse/passes/README.md``, without its heading."""
    passes = ordered_passes()
    lines = [
        textwrap.fill(_INTRODUCTION, 100),
        "",
        "| # | phase | pass | what it does |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {place} | {entry.phase} | [{entry.name}]({entry.name}.py) | {entry.summary} |"
        for place, entry in enumerate(passes, 1)
    ]
    used = {entry.phase for entry in passes}
    lines += ["", *(f"- `{p}`: {_PHASES[p]}." for p in PHASES if p in used)]
    for entry in passes:
        lines += ["", *_section(entry)]
    return "\n".join(lines)


def _section(entry: Pass) -> Iterator[str]:
    module = importlib.import_module(f"edgefuse.passes.{entry.name}")
    after = f" Runs after {', '.join(f'`{name}`' for name in entry.after)}." if entry.after else ""
    anchors = ", ".join(entry.anchors) if entry.anchors != ("*",) else "every operator"
    yield f"## {entry.name}"
    yield ""
    yield f"Candidates: {anchors}.{after} Source: [{entry.name}.py]({entry.name}.py)."
    yield ""
    yield "```text"
    yield from _algebra(module)
    yield "```"
    yield ""
    yield from _before_and_after(entry)
    limit = f"{entry.tolerance:g} of the largest output" if entry.tolerance else "none, bit for bit"
    yield ""
    yield f"Tolerance in float32: {limit}. Each application is checked."
    if reasons := sorted(set(refusals(module))):
        yield ""
        yield "Refuses when:"
        yield ""
        yield from (f"- {reason}" for reason in reasons)


def _before_and_after(entry: Pass) -> Iterator[str]:
    found = shown(entry)
    yield "| before | after |"
    yield "|---|---|"
    before, after = ("<br>".join(f"`{x}`" for x in lines) for lines in (found.before, found.after))
    yield f"| {before} | {after} |"


def _algebra(module: ModuleType) -> Iterator[str]:
    """The docstring's paragraph that starts with ``Rewrite``."""
    text = inspect.getdoc(module) or ""
    found = re.search(r"^Rewrite(?:, with |: ?)(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{module.__name__}: its docstring has no paragraph 'Rewrite: ...'")
    prefix = "with " if found[0].startswith("Rewrite, with") else ""
    yield from (prefix + found[1]).strip().splitlines()


def refusals(module: ModuleType) -> Iterator[str]:
    """The sentences of a pass's refusals."""
    tree = ast.parse(inspect.getsource(module))
    yield from _sentences(tree, module)
    for name in _SHARED:
        if _keeps_shared_answer(tree, name):
            shared = importlib.import_module(name)
            yield from _sentences(ast.parse(inspect.getsource(shared)), shared)


def _keeps_shared_answer(tree: ast.AST, module: str) -> bool:
    """Whether the pass returns what a shared function answers, and so may refuse with it."""
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == module)
    names = {alias.name for node in imports for alias in node.names}
    returns = (n for n in ast.walk(tree) if isinstance(n, ast.Return))
    answers = {name for node in returns for name in _names(node.value)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.NamedExpr)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and (call.func.id in names and ast.unparse(target) in answers)
        ):
            return True
    return False


def _names(returned: ast.expr | None) -> Iterator[str]:
    """The variables of which a return hands one on."""
    if isinstance(returned, ast.IfExp):
        yield from (*_names(returned.body), *_names(returned.orelse))
    elif isinstance(returned, ast.Name):
        yield returned.id


def _sentences(tree: ast.AST, module: ModuleType) -> Iterator[str]:
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ("Refusal", "_refuse"):
            continue
        for argument in node.args:
            choices = (
                assigned.get(argument.id, []) if isinstance(argument, ast.Name) else [argument]
            )
            texts = [c for c in choices if isinstance(c, (ast.JoinedStr, ast.Constant))]
            if texts:
                yield from (_written(text, module) for text in texts)
                break


def _written(text: ast.JoinedStr | ast.Constant, module: ModuleType) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    said = ""
    for piece in text.values:
        if isinstance(piece, ast.Constant):
            said += str(piece.value)
        elif isinstance(piece, ast.FormattedValue):
            said += _placeholder(piece.value, module)
    return said


def _placeholder(value: ast.expr, module: ModuleType) -> str:
    """What stands in a sentence for a value: ``<layer>``; a joined constant in full."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        joined = value.args[0] if value.args else None
        names = getattr(module, joined.id, ()) if isinstance(joined, ast.Name) else ()
        if isinstance(value.func.value, ast.Constant) and names:
            return str(value.func.value.value).join(names)
        return _placeholder(value.func.value, module)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id in _TRANSPARENT and value.args:
            return _placeholder(value.args[0], module)
        return _angled(value.func.id)
    if isinstance(value, ast.Attribute):
        owner = value.value.id if isinstance(value.value, ast.Name) else ""
        return _angled(value.attr if owner in ("", "context") else f"{owner} {value.attr}")
    return _angled(value.id) if isinstance(value, ast.Name) else "`<...>`"


def _angled(name: str) -> str:
    name = name.strip("_")
    return _SAID.get(name, f"`<{name.replace('_', ' ')}>`")

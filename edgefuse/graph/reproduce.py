"""The smallest graph on which a pass is wrong: cut out, saved, and run again.

usage: python -m edgefuse.graph.reproduce FOLDER

A reproducer is a folder with ``graph.onnx`` (the graph just before the wrong application, cut down
to the nodes around it), ``inputs.npz`` (what flowed into them) and ``reproducer.json`` (the passes,
what went wrong, and the command above). The command ends with 1 while the passes are still wrong
on it, with 0 once they are right, and with 2 when the folder is no reproducer.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.errors import EdgefuseError
from edgefuse.graph.proof import SAYS, Application, Failure, failure_of
from edgefuse.graph.rule import PASSES, Pass
from edgefuse.graph.snapshot import Snapshot, subgraphs
from edgefuse.graph.verify import Feed

if TYPE_CHECKING:
    import onnx

SCHEMA = 1
COMMAND = "python -m edgefuse.graph.reproduce"
HOPS = (0, 1, 2, 4)
GRAPH, INPUTS, ABOUT = "graph.onnx", "inputs.npz", "reproducer.json"


@dataclass(frozen=True)
class Case:
    """A graph, and one sample for it."""

    proto: onnx.ModelProto
    feed: Feed


def smallest(
    state: Snapshot,
    passes: Sequence[Pass],
    application: Application,
    feeds: Sequence[Feed],
    *,
    kind: str,
    fold_size_limit_bytes: int,
) -> Case:
    """The smallest cut of a graph on which the passes fail as they did on the whole.

    The nodes of the application alone, then with their neighbours, up to four steps away; the
    whole graph where no cut fails alike.
    """
    whole = state.whole()
    for hops in HOPS:
        for feed in feeds:
            try:
                case = cut(state, whole, application.nodes, hops, feed)
                failure = case and failure_of(
                    case.proto, passes, [case.feed], fold_size_limit_bytes=fold_size_limit_bytes
                )
            except EdgefuseError:
                continue
            if case and failure and failure.kind == kind:
                return case
    for feed in feeds[:-1]:
        failure = failure_of(whole, passes, [feed], fold_size_limit_bytes=fold_size_limit_bytes)
        if failure and failure.kind == kind:
            return Case(whole, feed)
    return Case(whole, feeds[-1])


def cut(
    state: Snapshot, whole: onnx.ModelProto, names: Sequence[str], hops: int, feed: Feed
) -> Case | None:
    """The nodes of the main graph with these names and their neighbours, as a model of their own.

    Nodes inside a subgraph stand for the node that holds it. Values that come from outside become
    inputs, with what flowed there on ``feed``; values read outside become outputs.
    """
    import onnx

    nodes = list(whole.graph.node)
    inside = {i for i, node in enumerate(nodes) if _holds(node, set(names))}
    if not inside:
        return None
    for _ in range(hops):
        inside = _grown(nodes, inside)
    chosen = [nodes[i] for i in sorted(inside)]
    made = {name for node in chosen for name in node.output if name}
    read = {name for node in chosen for name in _reads(node)}
    beside = {name for i, n in enumerate(nodes) if i not in inside for name in _reads(n)}
    beside |= {output.name for output in whole.graph.output}
    constants = [t for t in whole.graph.initializer if t.name in read]
    overridable = {i.name for i in whole.graph.input} & {t.name for t in constants}
    inputs = sorted(read - made - {t.name for t in constants})
    outputs = sorted(made & beside) or sorted(set(chosen[-1].output) - {""})
    given = {i.name for i in whole.graph.input}
    flowed = state.run([feed], [n for n in (*inputs, *outputs) if n not in given])[0]
    arrays = {**flowed, **feed}
    infos = {
        name: onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(arrays[name].dtype), arrays[name].shape
        )
        for name in (*inputs, *outputs)
    }
    infos |= {i.name: i for i in whole.graph.input if i.name in overridable}
    graph = onnx.helper.make_graph(
        chosen,
        "reproducer",
        [infos[name] for name in (*inputs, *sorted(overridable))],
        [infos[name] for name in outputs],
        constants,
        value_info=[i for i in whole.graph.value_info if i.name in made and i.name not in infos],
    )
    used = {(node.domain, node.op_type) for node in chosen}
    proto = onnx.helper.make_model(
        graph,
        opset_imports=list(whole.opset_import),
        ir_version=whole.ir_version,
        functions=[f for f in whole.functions if (f.domain, f.name) in used],
    )
    return Case(proto, {name: arrays[name] for name in inputs})


def _grown(nodes: Sequence[onnx.NodeProto], inside: set[int]) -> set[int]:
    read = {name for i in inside for name in _reads(nodes[i])}
    made = {name for i in inside for name in nodes[i].output}
    return inside | {
        i
        for i, node in enumerate(nodes)
        if read.intersection(node.output) or made.intersection(_reads(node))
    }


def _holds(node: onnx.NodeProto, names: set[str]) -> bool:
    return node.name in names or any(
        _holds(inner, names) for graph in subgraphs(node) for inner in graph.node
    )


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those its subgraphs capture included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        captured = {output.name for output in graph.output}
        for inner in graph.node:
            own.update(inner.output)
            captured |= _reads(inner)
        names |= captured - own
    return names


def save(
    folder: Path,
    case: Case,
    passes: Sequence[Pass],
    failure: Failure,
    application: Application,
    fold_size_limit_bytes: int,
) -> None:
    """Write a reproducer: the whole folder or nothing; an older one is replaced."""
    import onnx

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-reproducer-", dir=folder.parent))
    try:
        onnx.save(case.proto, str(temporary / GRAPH))
        _write_arrays(temporary / INPUTS, case.feed)
        about = {
            "schema": SCHEMA,
            "command": f"{COMMAND} {folder.name}",
            "passes": [entry.name for entry in passes],
            "failure": failure.text,
            "kind": failure.kind,
            "module": application.module,
            "nodes": list(application.nodes),
            "fold_size_limit_bytes": fold_size_limit_bytes,
        }
        (temporary / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        temporary.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_arrays(path: Path, feed: Feed) -> None:
    """An npz file; numpy.savez takes no array called ``file``."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in feed.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array))  # type: ignore[no-untyped-call]


def repeat(folder: Path) -> Failure | None:
    """Run a reproducer's passes on its graph; what is still wrong, if anything is.

    Raises:
        ValueError, OSError, KeyError: the folder is no reproducer, or a pass is no more.
    """
    import numpy as np
    import onnx

    about = json.loads((folder / ABOUT).read_text())
    if about["schema"] != SCHEMA:
        raise ValueError(f"schema is {about['schema']}, not {SCHEMA}")
    known = PASSES.all()
    if gone := [name for name in about["passes"] if name not in known]:
        raise ValueError(f"there is no pass {gone[0]!r}")
    with np.load(folder / INPUTS) as arrays:
        feed = dict(arrays)
    return failure_of(
        onnx.load(str(folder / GRAPH)),
        [known[name] for name in about["passes"]],
        [feed],
        fold_size_limit_bytes=int(about["fold_size_limit_bytes"]),
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(f"usage: {COMMAND} FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        names = ", ".join(json.loads((folder / ABOUT).read_text())["passes"])
        failure = repeat(folder)
    except (OSError, ValueError, KeyError, TypeError, EdgefuseError) as error:
        print(f"{folder} cannot be repeated: {error}", file=sys.stderr)
        return 2
    if failure is None:
        print(f"{names}: right on {folder / GRAPH}")
        return 0
    place = f" ({failure.where})" if failure.where else ""
    print(f"{names} {SAYS[failure.kind]}: {failure.text}{place}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

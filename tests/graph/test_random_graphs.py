"""200 random small graphs through the whole pipeline; ``make bench`` runs 2,000 others.

A failure names its seed: ``random_graph(seed)`` makes the graph again.
"""

from collections import Counter
from pathlib import Path

import onnx
import pytest

from graph.random_graphs import fuse_and_compare, random_graph

SEEDS = range(200)
CHUNK = 25
TOUCHED = (
    "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "ConvTranspose",
    "Div", "Dropout", "Erf", "Flatten", "Gemm", "HardSigmoid", "HardSwish", "Identity", "If",
    "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Loop", "MatMul", "Max", "MaxPool",
    "Min", "Mul", "PRelu", "Pad", "Pow", "ReduceMean", "Relu", "Reshape", "Shape", "Sigmoid",
    "Softmax", "Softplus", "Split", "Sqrt", "Sub", "Tanh", "Transpose",
)  # fmt: skip


@pytest.mark.parametrize("start", SEEDS[::CHUNK])
def test_fused_graphs_agree_with_the_unfused(start: int, tmp_path: Path) -> None:
    for seed in range(start, start + CHUNK):
        try:
            evidence = fuse_and_compare(random_graph(seed), tmp_path)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}")
        assert evidence["saved"]["intermediate_bytes"] >= 0, seed


def test_the_graphs_hold_everything_that_passes_touch() -> None:
    operators: Counter[str] = Counter()
    opsets: Counter[int] = Counter()
    types: Counter[int] = Counter()
    outputs: Counter[bool] = Counter()
    for seed in SEEDS:
        case = random_graph(seed)
        operators.update(node.op_type for node in case.proto.graph.node)
        opsets[case.proto.opset_import[0].version] += 1
        types[case.proto.graph.input[0].type.tensor_type.elem_type] += 1
        outputs[len(case.proto.graph.output) > 1] += 1
    assert sorted(opsets) == list(range(11, 22))
    assert set(types) == {1, 10, 11}
    assert min(outputs.values()) >= 20
    assert not [kind for kind in TOUCHED if not operators[kind]]


def test_equal_seeds_give_equal_graphs() -> None:
    first, second = random_graph(7), random_graph(7)
    assert first.proto.SerializeToString() == second.proto.SerializeToString()
    assert all((a["x"] == b["x"]).all() for a, b in zip(first.feeds, second.feeds))
    assert first.proto != random_graph(8).proto
    onnx.checker.check_model(first.proto, full_check=True)

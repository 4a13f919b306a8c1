"""Random small convolution graphs through the whole pipeline."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefuse.graph.fuse import fuse_file
from edgefuse.graph.group import inline_groups
from edgefuse.graph.verify import compare

STEPS = st.lists(
    st.sampled_from(
        ["conv", "depthwise", "up", "bn", "relu", "max0", "min6", "clip", "swish", "add", "tap",
         "identity", "pool", "leaky", "scale"]
    ),
    min_size=2,
    max_size=10,
)  # fmt: skip


class Net:
    """Builds a graph of [1,4,6,6] tensors step by step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values = ["x"]
        self.taps: list[str] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        self.values.append(name)

    def const(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) * 0.5)

    def step(self, kind: str) -> None:
        x = self.values[-1]
        if kind == "conv":
            bias = [self.normal(4)] if self.rng.random() < 0.5 else []
            self.op("Conv", x, self.normal(4, 4, 3, 3), *bias, pads=[1, 1, 1, 1])
        elif kind == "depthwise":
            self.op("Conv", x, self.normal(4, 1, 3, 3), pads=[1, 1, 1, 1], group=4)
        elif kind == "up":
            self.op("ConvTranspose", x, self.normal(4, 2, 3, 3), pads=[1, 1, 1, 1], group=2)
        elif kind == "bn":
            variance = self.const(self.rng.uniform(0.5, 2, 4))
            self.op("BatchNormalization", x, *(self.normal(4) for _ in range(3)), variance)
        elif kind == "clip":
            self.op("Clip", x, self.const(np.array(-1.0)), self.const(np.array(1.0)))
        elif kind in ("max0", "min6"):
            self.op(kind[:3].title(), x, self.const(np.array(float(kind[3]))))
        elif kind == "add":
            self.op("Add", x, self.values[int(self.rng.integers(len(self.values)))])
        elif kind == "pool":
            self.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "scale":
            self.op("Mul", x, self.normal(4, 1, 1))
        elif kind == "tap":
            self.taps.append(x)
        else:
            names = {"relu": "Relu", "swish": "HardSwish", "identity": "Identity"}
            self.op(names.get(kind, "LeakyRelu"), x)

    def model(self) -> onnx.ModelProto:
        outputs = dict.fromkeys([*self.taps, self.values[-1]])
        infos = [
            onnx.helper.make_tensor_value_info(n, 1, [1, 4, 6, 6]) for n in outputs if n != "x"
        ]
        image = onnx.helper.make_tensor_value_info("x", 1, [1, 4, 6, 6])
        graph = onnx.helper.make_graph(self.nodes, "net", [image], infos, self.constants)
        imports = [onnx.helper.make_opsetid("", 18)]
        return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_numbers_stay_and_the_result_is_a_fixed_point(steps: list[str], seed: int) -> None:
    net = Net(seed)
    for kind in [*steps, "relu"]:
        net.step(kind)
    feed = {"x": np.random.default_rng(seed).standard_normal((1, 4, 6, 6)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        source, fused, again, plain = (Path(folder) / f"{n}.onnx" for n in "abcd")
        onnx.save(net.model(), str(source))
        evidence = fuse_file(source, fused, feeds=[feed], max_relative_error=1e-5)
        assert evidence["saved"]["intermediate_bytes"] >= 0
        second = fuse_file(fused, again, feeds=[feed], max_relative_error=0.0)
        assert all(p["fired"] == 0 for p in second["passes"])
        assert fused.read_bytes() == again.read_bytes()
        inline_groups(fused, plain)
        compare(fused, plain, [feed], max_relative_error=0.0)
        names = [o for n in onnx.load(str(fused)).graph.node for o in n.output]
        assert len(set(names)) == len(names)

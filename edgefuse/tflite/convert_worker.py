"""Worker: a plain ONNX file to a float .tflite with TensorFlow and onnx2tf. Never on the network.

onnx2tf resets seeds, overwrites its input and may call sys.exit: it lives in this process only,
on private copies. Saving its Keras model takes most of its time, so the model's function is saved
as a plain ``tf.Module`` that holds the variables alone; the signature is keyed by the ONNX names.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

from edgefuse.child import serve
from edgefuse.errors import StageError
from edgefuse.tflite.read import parse_model
from edgefuse.tflite.signature import KEY, with_signature
from edgefuse.tflite.spelling import spell_hard_sigmoids, spell_picture_means


def _no_network(*_: Any, **__: Any) -> None:
    raise OSError("the converter has no network: no stage may reach it")


def load() -> None:
    """Close the network, then import what takes seconds."""
    socket.socket.connect = _no_network  # type: ignore[method-assign]
    socket.socket.connect_ex = _no_network  # type: ignore[method-assign, assignment]
    import onnx2tf  # noqa: F401


def convert(request: dict[str, Any]) -> dict[str, Any]:
    """Convert.

    Request: ``onnx`` path; ``tflite`` path to write; ``inputs`` [{name, channels_first}];
    ``outputs`` [name]. Reply: ``inputs`` [{name, shape}] as the signature has them.
    """
    import onnx2tf
    import tensorflow as tf

    inputs = [i["name"] for i in request["inputs"]]
    outputs = list(request["outputs"])
    _with_plain_names(request["onnx"], "plain.onnx", inputs, outputs)
    as_they_are = [f"input_{k}" for k, i in enumerate(request["inputs"]) if not i["channels_first"]]
    keras_model = onnx2tf.convert(
        input_onnx_file_path="plain.onnx",
        output_folder_path=str(Path("onnx2tf").absolute()),
        keep_shape_absolutely_input_names=as_they_are or None,
        disable_model_save=True,
        not_use_onnxsim=True,
        non_verbose=True,
        verbosity="error",
    )
    found = {tensor.name.split(":")[0]: tensor for tensor in keras_model.inputs}
    wanted = [f"input_{k}" for k in range(len(inputs))]
    if sorted(found) != sorted(wanted) or len(keras_model.outputs) != len(outputs):
        raise RuntimeError(
            f"the converter changed the signature: inputs {sorted(found)} for {inputs}, "
            f"{len(keras_model.outputs)} outputs for {outputs}"
        )
    shapes = [list(found[name].shape) for name in wanted]
    if any(size is None for shape in shapes for size in shape):
        raise RuntimeError(f"the converter made dynamic input shapes {shapes}")
    order = [wanted.index(tensor.name.split(":")[0]) for tensor in keras_model.inputs]

    def predict(*tensors: Any) -> dict[str, Any]:
        results = keras_model([tensors[k] for k in order])
        results = results if isinstance(results, list | tuple) else [results]
        return {
            _signature_name(n, "output", k): r for k, (n, r) in enumerate(zip(outputs, results))
        }

    module = tf.Module()
    module.predict = tf.function(
        predict,
        autograph=False,
        input_signature=[
            tf.TensorSpec(shape, tf.float32, name=_signature_name(name, "input", k))
            for k, (shape, name) in enumerate(zip(shapes, inputs))
        ],
    )
    concrete = module.predict.get_concrete_function()
    # The layers of grouped convolutions are none of the model's: the function knows them all.
    module.held = [*keras_model.variables, *concrete.graph.variables]
    tf.saved_model.save(module, "saved_model", signatures={KEY: concrete})
    data = _to_tflite(tf)
    Path(request["tflite"]).write_bytes(_named(data, inputs, outputs))
    return {"inputs": [{"name": n, "shape": s} for n, s in zip(inputs, shapes)]}


def _to_tflite(tf: Any) -> bytes:
    try:
        data: bytes = tf.lite.TFLiteConverter.from_saved_model("saved_model").convert()
    except Exception as error:
        # The converter gives its reason as text only.
        missing = sorted(set(re.findall(r"'(tf\.\w+)' op is neither", str(error))))
        if not missing:
            raise
        raise StageError(
            f"TFLite has no operator for {', '.join(missing)}; as Flex operators they would need "
            "TensorFlow's kernels, which a plain runtime does not have",
            hint="replace them in the model; GELU is one operator from export.opset: 20 on",
        ) from error
    return data


def _with_plain_names(source: str, destination: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename graph inputs and outputs to ``input_0``, ``output_0``...: foreign code rewrites
    names with special characters, each in its own way. Fill in the optional attributes that it
    takes for given, and drop absent inputs at the end of a node, which it looks up."""
    import onnx

    proto = onnx.load(source)
    spell_hard_sigmoids(proto)
    spell_picture_means(proto)
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    names = {name: f"input_{k}" for k, name in enumerate(inputs)}
    names |= {name: f"output_{k}" for k, name in enumerate(outputs)}
    for plain in names.values():
        if plain in taken and plain not in names:
            names[plain] = f"inner_{plain}"
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        while node.input and not node.input[-1]:
            del node.input[-1]
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    weights = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        named = {attribute.name for attribute in node.attribute}
        if (
            node.op_type in ("Conv", "ConvTranspose")
            and "kernel_shape" not in named
            and node.input[1] in weights
        ):
            sizes = list(weights[node.input[1]][2:])
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", sizes))
    onnx.save(proto, destination)


def _signature_name(name: str, role: str, index: int) -> str:
    """The name itself where TensorFlow takes it, else a plain one that is put right afterwards."""
    return name if name.isidentifier() else f"{role}_{index}"


def _named(data: bytes, inputs: list[str], outputs: list[str]) -> bytes:
    """The .tflite with the signature's names and their order put right."""
    model = parse_model(data)
    sides = []
    for role, names, held in (
        ("input", inputs, model.signature_inputs),
        ("output", outputs, model.signature_outputs),
    ):
        tensors = dict(held)
        sides.append({n: tensors[_signature_name(n, role, k)] for k, n in enumerate(names)})
    return with_signature(data, *sides)


if __name__ == "__main__":
    serve(convert, load)

"""Worker: a plain ONNX file to a float .tflite with TensorFlow and onnx2tf. Never on the network.

onnx2tf resets seeds, overwrites its input and may call sys.exit: it lives in this process only,
on private copies. Saving its Keras model takes most of its time, so the model's function is saved
as a plain ``tf.Module`` that holds the variables alone; the signature is keyed by the ONNX names.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from edgefuse.child import serve


def _no_network(*_: Any, **__: Any) -> None:
    raise OSError("the converter has no network: no stage may reach it")


def convert(request: dict[str, Any]) -> dict[str, Any]:
    """Convert.

    Request: ``onnx`` path; ``tflite`` path to write; ``inputs`` [{name, channels_first}];
    ``outputs`` [name]. Reply: ``inputs`` [{name, shape}] as the signature has them.
    """
    socket.socket.connect = _no_network  # type: ignore[method-assign, assignment]
    socket.socket.connect_ex = _no_network  # type: ignore[method-assign, assignment]
    import onnx2tf
    import tensorflow as tf

    inputs = [i["name"] for i in request["inputs"]]
    outputs = list(request["outputs"])
    _with_plain_names(request["onnx"], "plain.onnx", inputs, outputs)
    as_they_are = [
        f"input_{k}" for k, i in enumerate(request["inputs"]) if not i["channels_first"]
    ]
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
        return {_signature_name(n, "output", k): r for k, (n, r) in enumerate(zip(outputs, results))}

    module = tf.Module()
    module.held = list(keras_model.variables)
    module.predict = tf.function(
        predict,
        autograph=False,
        input_signature=[
            tf.TensorSpec(shape, tf.float32, name=_signature_name(name, "input", k))
            for k, (shape, name) in enumerate(zip(shapes, inputs))
        ],
    )
    tf.saved_model.save(
        module, "saved_model", signatures={"serving_default": module.predict.get_concrete_function()}
    )
    data = tf.lite.TFLiteConverter.from_saved_model("saved_model").convert()
    names = {_signature_name(n, "input", k): n for k, n in enumerate(inputs)}
    names |= {_signature_name(n, "output", k): n for k, n in enumerate(outputs)}
    Path(request["tflite"]).write_bytes(_renamed(data, names))
    return {"inputs": [{"name": n, "shape": s} for n, s in zip(inputs, shapes)]}


def _with_plain_names(source: str, destination: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename graph inputs and outputs to ``input_0``, ``output_0``...: foreign code rewrites
    names with special characters, each in its own way."""
    import onnx

    proto = onnx.load(source)
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    names = {name: f"input_{k}" for k, name in enumerate(inputs)}
    names |= {name: f"output_{k}" for k, name in enumerate(outputs)}
    for plain in names.values():
        if plain in taken and plain not in names:
            names[plain] = f"inner_{plain}"
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    onnx.save(proto, destination)


def _signature_name(name: str, role: str, index: int) -> str:
    """The name itself where TensorFlow takes it, else a plain one that is put right afterwards."""
    return name if name.isidentifier() else f"{role}_{index}"


def _renamed(data: bytes, names: dict[str, str]) -> bytes:
    """The .tflite with the signature's names put right; the same bytes when nothing changes."""
    if all(plain == name for plain, name in names.items()):
        return data
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    for definition in model.signatureDefs:
        for entry in (*definition.inputs, *definition.outputs):
            plain = entry.name.decode()
            entry.name = names.get(plain, plain)
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


if __name__ == "__main__":
    serve(convert)

"""The zoo: parameters as published, torchvision's names, outputs, and the way through export."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cases import pipeline  # noqa: E402

from edgefuse.recipe import TorchModel  # noqa: E402
from edgefuse.sources import torch_callable  # noqa: E402

from .models import MODELS, ZooModel, build, by_name, write_recipe  # noqa: E402

NAMES = [model.name for model in MODELS]

PARAMETERS = {
    "mobilenet_v2": 3_504_872,
    "efficientnet_lite0": 4_652_008,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v3_large": 5_483_032,
    "mobilenet_v3_small": 2_542_856,
    "shufflenet_v2": 2_278_604,
    "unet": 7_763_554,
    "convnext_tiny": 28_589_128,
    "vit_tiny": 5_717_416,
    "vit_tiny_scaled_dot_product": 5_717_416,
    "ds_cnn": 23_756,
    "detector": 1_384_476,
}

# Of torchvision's checkpoints; for vit_tiny, of its VisionTransformer at this size.
TORCHVISION = {
    "resnet18": {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.num_batches_tracked": (),
        "layer4.1.bn2.bias": (512,),
        "fc.weight": (1000, 512),
    },
    "resnet50": {
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer3.5.conv2.weight": (256, 256, 3, 3),
        "layer4.2.bn3.running_var": (2048,),
        "fc.bias": (1000,),
    },
    "mobilenet_v3_large": {
        "features.0.0.weight": (16, 3, 3, 3),
        "features.1.block.0.0.weight": (16, 1, 3, 3),
        "features.1.block.1.0.weight": (16, 16, 1, 1),
        "features.4.block.2.fc1.weight": (24, 72, 1, 1),
        "features.4.block.2.fc2.bias": (72,),
        "features.4.block.3.1.running_mean": (40,),
        "features.15.block.1.0.weight": (960, 1, 5, 5),
        "features.16.0.weight": (960, 160, 1, 1),
        "classifier.0.weight": (1280, 960),
        "classifier.3.weight": (1000, 1280),
    },
    "mobilenet_v3_small": {
        "features.1.block.0.0.weight": (16, 1, 3, 3),
        "features.1.block.1.fc1.weight": (8, 16, 1, 1),
        "features.11.block.2.fc2.weight": (576, 144, 1, 1),
        "features.12.0.weight": (576, 96, 1, 1),
        "classifier.3.bias": (1000,),
    },
    "shufflenet_v2": {
        "conv1.0.weight": (24, 3, 3, 3),
        "stage2.0.branch1.0.weight": (24, 1, 3, 3),
        "stage2.0.branch1.2.weight": (58, 24, 1, 1),
        "stage2.0.branch2.3.weight": (58, 1, 3, 3),
        "stage3.7.branch2.6.running_var": (116,),
        "conv5.0.weight": (1024, 464, 1, 1),
        "fc.weight": (1000, 1024),
    },
    "convnext_tiny": {
        "features.0.0.weight": (96, 3, 4, 4),
        "features.0.1.bias": (96,),
        "features.1.0.layer_scale": (96, 1, 1),
        "features.1.0.block.0.weight": (96, 1, 7, 7),
        "features.1.2.block.2.weight": (96,),
        "features.2.1.weight": (192, 96, 2, 2),
        "features.5.8.block.3.weight": (1536, 384),
        "features.7.2.block.5.bias": (768,),
        "classifier.0.weight": (768,),
        "classifier.2.weight": (1000, 768),
    },
    "vit_tiny": {
        "class_token": (1, 1, 192),
        "conv_proj.weight": (192, 3, 16, 16),
        "encoder.pos_embedding": (1, 197, 192),
        "encoder.layers.encoder_layer_0.ln_1.weight": (192,),
        "encoder.layers.encoder_layer_0.self_attention.in_proj_weight": (576, 192),
        "encoder.layers.encoder_layer_0.self_attention.in_proj_bias": (576,),
        "encoder.layers.encoder_layer_11.self_attention.out_proj.weight": (192, 192),
        "encoder.layers.encoder_layer_11.mlp.0.weight": (768, 192),
        "encoder.layers.encoder_layer_11.mlp.3.bias": (192,),
        "encoder.ln.bias": (192,),
        "heads.head.weight": (1000, 192),
    },
}
# Entries of the whole state dict, buffers included.
ENTRIES = {
    "resnet18": 122,
    "resnet50": 320,
    "mobilenet_v3_large": 312,
    "mobilenet_v3_small": 244,
    "shufflenet_v2": 338,
    "convnext_tiny": 182,
    "vit_tiny": 152,
}


def _whole(model: ZooModel) -> Any:
    """The whole model without storage."""
    with torch.device("meta"):
        return build(model, small=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_model_has_the_published_count_of_parameters(name: str) -> None:
    module = _whole(by_name(name))
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]
    assert not module.training


@pytest.mark.parametrize("name", TORCHVISION)
def test_names_and_shapes_are_torchvisions(name: str) -> None:
    state = {key: tuple(value.shape) for key, value in _whole(by_name(name)).state_dict().items()}
    assert TORCHVISION[name].items() <= state.items()
    assert len(state) == ENTRIES[name]


@pytest.mark.parametrize("name", NAMES)
def test_small_and_whole_models_answer_with_the_outputs_of_the_table(name: str) -> None:
    model = by_name(name)
    module = build(model)
    feeds = [torch.from_numpy(v) for v in pipeline.samples(model.shapes(), 2, 0).values()]
    with torch.no_grad():
        first, second = _tuple(module(*feeds)), _tuple(module(*feeds))
        other = _tuple(build(model, seed=1)(*feeds))
        again = _tuple(build(model)(*feeds))
    assert len(first) == len(model.outputs)
    for a, b, c, d in zip(first, second, again, other):
        assert torch.isfinite(a).all() and a.shape[0] == 2
        assert torch.equal(a, b) and torch.equal(a, c)
        assert not torch.equal(a, d)
        assert not torch.allclose(a[0], a[1], rtol=1e-3), "the answer ignores the input"
    whole = [torch.empty(1, *shape, device="meta") for shape in model.shapes(False).values()]
    assert len(_tuple(_whole(model)(*whole))) == len(model.outputs)


def test_outputs_have_the_stated_shapes() -> None:
    def shapes(name: str) -> list[tuple[int, ...]]:
        model = by_name(name)
        feeds = [torch.empty(1, *shape, device="meta") for shape in model.shapes(False).values()]
        return [tuple(out.shape) for out in _tuple(_whole(model)(*feeds))]

    assert shapes("resnet50") == shapes("vit_tiny") == [(1, 1000)]
    assert shapes("unet") == [(1, 2, 256, 256)]
    assert shapes("ds_cnn") == [(1, 12)]
    assert shapes("detector") == [
        (1, 4800, 4),
        (1, 4800, 80),
        (1, 1200, 4),
        (1, 1200, 80),
        (1, 300, 4),
        (1, 300, 80),
    ]


def test_both_spellings_of_attention_agree_with_torchs_own() -> None:
    from edgefuse.zoo.vit import SelfAttention

    torch.manual_seed(0)
    written, called = SelfAttention(24, 3, False).eval(), SelfAttention(24, 3, True).eval()
    torchs = torch.nn.MultiheadAttention(24, 3, batch_first=True).eval()
    torch.nn.init.normal_(written.in_proj_bias)
    called.load_state_dict(written.state_dict())
    torchs.load_state_dict(written.state_dict())
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        expected = torchs(x, x, x, need_weights=False)[0]
        assert torch.allclose(written(x), expected, atol=1e-6)
        assert torch.allclose(called(x), expected, atol=1e-6)


def test_channel_shuffle_puts_the_groups_in_turn() -> None:
    from edgefuse.zoo.shufflenet_v2 import channel_shuffle

    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert channel_shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_what_cannot_be_built_is_refused() -> None:
    from edgefuse.zoo.shufflenet_v2 import shufflenet_v2
    from edgefuse.zoo.vit import vit_tiny

    with pytest.raises(ValueError, match=r"width must be one of \[0.5, 1.0, 1.5, 2.0\], not 3"):
        shufflenet_v2(3)
    with pytest.raises(ValueError, match="multiple"):
        vit_tiny(image=30)


@pytest.mark.parametrize("name", NAMES)
def test_random_weights_follow_the_seed(name: str, tmp_path: Path) -> None:
    model = by_name(name)
    context: Any = SimpleNamespace(base=tmp_path, warn=pytest.fail, local=None)
    source = TorchModel.model_validate(
        {"callable": model.callable, "arguments": model.arguments(), "weights": "random"}
    )
    states = [torch_callable.load(source, seed, context).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])


@pytest.mark.parametrize("name", ["ds_cnn", "detector"])
def test_exports_as_it_predicts(name: str, tmp_path: Path) -> None:
    model = by_name(name)
    done = pipeline.run(write_recipe(model, tmp_path), until="export")
    assert not done.error
    session_outputs = pipeline.run_onnx(
        done.file(f"{name}.onnx"), pipeline.batches(pipeline.samples(model.shapes(), 1, 5))
    )[0]
    feeds = [torch.from_numpy(v) for v in pipeline.samples(model.shapes(), 1, 5).values()]
    with torch.no_grad():
        expected = dict(zip(model.outputs, _tuple(build(model)(*feeds))))
    assert session_outputs.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(torch.from_numpy(session_outputs[key]), value, rtol=1e-4, atol=1e-5)


def _tuple(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)

"""Well-known networks as compact torch modules, for planning their memory: shapes, not weights.

Each has the layers, sizes and connections of the network that it is named after, so that its
tensors have those lifetimes. Weights are random, and what leaves no mark on inference (auxiliary
heads, dropout, stochastic depth) is not there. ``NETS`` is the table: build a module, and the
side of its picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from .torch_attention import Swin, VisionTransformer
from .torch_layers import Branches, Residual, SqueezeExcite, classifier, conv


def alexnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU()),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)),
    )


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    dense = (nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(4096, 1000))


def squeezenet() -> nn.Module:
    def fire(inputs: int, squeeze: int, expand: int) -> nn.Module:
        one = nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU())
        three = nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU())
        return nn.Sequential(nn.Conv2d(inputs, squeeze, 1), nn.ReLU(), Branches(one, three))

    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool, fire(64, 16, 64), fire(128, 16, 64)),
        *(pool, fire(128, 32, 128), fire(256, 32, 128), pool, fire(256, 48, 192)),
        *(fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)),
        *(nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def resnet(
    repeats: Sequence[int], *, bottleneck: bool = True, groups: int = 1, base: int = 64
) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for level, count in enumerate(repeats):
        for index in range(count):
            stride = 2 if level and not index else 1
            plain = 64 << level
            width = plain * base // 64 * groups
            outputs = plain * 4 if bottleneck else plain
            if bottleneck:
                body = nn.Sequential(
                    conv(channels, width, 1),
                    conv(width, width, 3, stride, groups),
                    conv(width, outputs, 1, activation=None),
                )
            else:
                body = nn.Sequential(
                    conv(channels, outputs, 3, stride), conv(outputs, outputs, activation=None)
                )
            same = stride == 1 and channels == outputs
            shortcut = None if same else conv(channels, outputs, 1, stride, activation=None)
            layers.append(Residual(body, shortcut, activation=True))
            channels = outputs
    return nn.Sequential(*layers, classifier(channels))


class Dense(nn.Module):
    """A block of DenseNet: every layer reads all earlier results, joined."""

    def __init__(self, channels: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(channels + k * growth), nn.ReLU()),
                nn.Conv2d(channels + k * growth, 4 * growth, 1, bias=False),
                *(nn.BatchNorm2d(4 * growth), nn.ReLU()),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


def densenet(repeats: Sequence[int] = (6, 12, 24, 16), growth: int = 32) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for level, count in enumerate(repeats):
        layers.append(Dense(channels, count, growth))
        channels += count * growth
        if level < len(repeats) - 1:
            between = (nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1))
            layers += [*between, nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), classifier(channels))


def googlenet() -> nn.Module:
    def inception(inputs: int, one: int, *pairs: int) -> nn.Module:
        three, three_out, five, five_out, pooled = pairs
        return Branches(
            conv(inputs, one, 1),
            nn.Sequential(conv(inputs, three, 1), conv(three, three_out)),
            nn.Sequential(conv(inputs, five, 1), conv(five, five_out)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, pooled, 1)),
        )

    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(
        *(conv(3, 64, 7, 2), pool, conv(64, 64, 1), conv(64, 192), pool),
        *(inception(192, 64, 96, 128, 16, 32, 32), inception(256, 128, 128, 192, 32, 96, 64)),
        *(pool, inception(480, 192, 96, 208, 16, 48, 64)),
        *(inception(512, 160, 112, 224, 24, 64, 64), inception(512, 128, 128, 256, 24, 64, 64)),
        *(inception(512, 112, 144, 288, 32, 64, 64), inception(528, 256, 160, 320, 32, 128, 128)),
        *(pool, inception(832, 256, 160, 320, 32, 128, 128)),
        *(inception(832, 384, 192, 384, 48, 128, 128), classifier(1024)),
    )


def inception_v3() -> nn.Module:
    def chain(*parts: nn.Module) -> nn.Module:
        return nn.Sequential(*parts)

    def first(inputs: int, pooled: int) -> nn.Module:
        return Branches(
            conv(inputs, 64, 1),
            chain(conv(inputs, 48, 1), conv(48, 64, 5)),
            chain(conv(inputs, 64, 1), conv(64, 96), conv(96, 96)),
            chain(nn.AvgPool2d(3, 1, 1), conv(inputs, pooled, 1)),
        )

    def second(c: int) -> nn.Module:
        wide, high = (1, 7), (7, 1)
        return Branches(
            conv(768, 192, 1),
            chain(conv(768, c, 1), conv(c, c, wide), conv(c, 192, high)),
            chain(
                *(conv(768, c, 1), conv(c, c, high), conv(c, c, wide)),
                *(conv(c, c, high), conv(c, 192, wide)),
            ),
            chain(nn.AvgPool2d(3, 1, 1), conv(768, 192, 1)),
        )

    def third(inputs: int) -> nn.Module:
        split = Branches(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))
        again = Branches(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))
        return Branches(
            conv(inputs, 320, 1),
            chain(conv(inputs, 384, 1), split),
            chain(conv(inputs, 448, 1), conv(448, 384), again),
            chain(nn.AvgPool2d(3, 1, 1), conv(inputs, 192, 1)),
        )

    smaller = Branches(
        conv(288, 384, 3, 2, padding=0),
        chain(conv(288, 64, 1), conv(64, 96), conv(96, 96, 3, 2, padding=0)),
        nn.MaxPool2d(3, 2),
    )
    smallest = Branches(
        chain(conv(768, 192, 1), conv(192, 320, 3, 2, padding=0)),
        chain(
            *(conv(768, 192, 1), conv(192, 192, (1, 7)), conv(192, 192, (7, 1))),
            conv(192, 192, 3, 2, padding=0),
        ),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        *(conv(3, 32, 3, 2, padding=0), conv(32, 32, padding=0), conv(32, 64)),
        *(nn.MaxPool2d(3, 2), conv(64, 80, 1), conv(80, 192, padding=0), nn.MaxPool2d(3, 2)),
        *(first(192, 32), first(256, 64), first(288, 64), smaller),
        *(second(128), second(160), second(160), second(192), smallest),
        *(third(1280), third(2048), classifier(2048)),
    )


def inverted(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    expand: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    squeeze: bool = False,
) -> nn.Module:
    """Expand, depthwise, squeeze and excite, project."""
    hidden = inputs * expand
    parts = [conv(inputs, hidden, 1, activation=activation)] if expand != 1 else []
    parts.append(conv(hidden, hidden, kernel, stride, hidden, activation))
    if squeeze:
        parts.append(nn.Sequential(SqueezeExcite(hidden, max(1, inputs // 4), activation)))
    body = nn.Sequential(*parts, conv(hidden, outputs, 1, activation=None))
    return Residual(body) if stride == 1 and inputs == outputs else body


def _stages(
    rows: Sequence[tuple[int, int, int, int, int]],
    channels: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    squeeze: bool = False,
) -> tuple[list[nn.Module], int]:
    """Rows of: expansion, outputs, repeats, stride, kernel."""
    layers: list[nn.Module] = []
    for expand, outputs, count, stride, kernel in rows:
        for index in range(count):
            step = stride if index == 0 else 1
            layers.append(inverted(channels, outputs, kernel, step, expand, activation, squeeze))
            channels = outputs
    return layers, channels


def mnasnet() -> nn.Module:
    rows = ((3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3))
    layers, channels = _stages((*rows, (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)), 16)
    stem = (conv(3, 32, 3, 2), conv(32, 32, groups=32), conv(32, 16, 1, activation=None))
    return nn.Sequential(*stem, *layers, conv(channels, 1280, 1), classifier(1280))


def efficientnet_b0() -> nn.Module:
    rows = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3))
    rows = (*rows, (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
    layers, channels = _stages(rows, 32, nn.SiLU, squeeze=True)
    head = conv(channels, 1280, 1, activation=nn.SiLU)
    return nn.Sequential(conv(3, 32, 3, 2, activation=nn.SiLU), *layers, head, classifier(1280))


def mobilenet_v1() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2)]
    channels = 32
    for outputs, stride in (
        *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
        *((512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
    ):
        layers += [conv(channels, channels, 3, stride, channels), conv(channels, outputs, 1)]
        channels = outputs
    return nn.Sequential(*layers, classifier(channels))


def regnet(
    widths: Sequence[int], repeats: Sequence[int], group_width: int, *, squeeze: bool
) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 32, 3, 2)]
    channels = 32
    for width, count in zip(widths, repeats, strict=True):
        for index in range(count):
            stride = 1 if index else 2
            parts = [conv(channels, width, 1), conv(width, width, 3, stride, width // group_width)]
            if squeeze:
                parts.append(nn.Sequential(SqueezeExcite(width, channels // 4, nn.ReLU)))
            body = nn.Sequential(*parts, conv(width, width, 1, activation=None))
            same = stride == 1 and channels == width
            shortcut = None if same else conv(channels, width, 1, stride, activation=None)
            layers.append(Residual(body, shortcut, activation=True))
            channels = width
    return nn.Sequential(*layers, classifier(channels))


class Segmentation(nn.Module):
    """Dilated pyramid over a ResNet's features, resized to the picture (DeepLabV3)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*list(resnet((2, 2, 2, 2), bottleneck=False))[:-1])
        rates = [
            nn.Sequential(nn.Conv2d(512, 256, 3, padding=r, dilation=r), nn.ReLU())
            for r in (12, 24, 36)
        ]
        self.pyramid = Branches(conv(512, 256, 1), *rates)
        self.head = nn.Sequential(conv(1024, 256, 1), conv(256, 256), nn.Conv2d(256, 21, 1))

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(self.pyramid(self.features(x)))
        return interpolate(found, size=x.shape[-2:], mode="bilinear", align_corners=False)


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (alexnet, 224),
    "vgg16": (vgg16, 224),
    "squeezenet1_1": (squeezenet, 224),
    "resnet34": (lambda: resnet((3, 4, 6, 3), bottleneck=False), 224),
    "resnet101": (lambda: resnet((3, 4, 23, 3)), 224),
    "resnext50_32x4d": (lambda: resnet((3, 4, 6, 3), groups=32, base=4), 224),
    "wide_resnet50_2": (lambda: resnet((3, 4, 6, 3), base=128), 224),
    "densenet121": (densenet, 224),
    "googlenet": (googlenet, 224),
    "inception_v3": (inception_v3, 299),
    "mnasnet1_0": (mnasnet, 224),
    "mobilenet_v1": (mobilenet_v1, 224),
    "efficientnet_b0": (efficientnet_b0, 224),
    "regnet_x_400mf": (lambda: regnet((32, 64, 160, 400), (1, 2, 7, 12), 16, squeeze=False), 224),
    "regnet_y_400mf": (lambda: regnet((48, 104, 208, 440), (1, 3, 6, 6), 8, squeeze=True), 224),
    "vit_b_16": (lambda: VisionTransformer(768, 12, 12), 224),
    "swin_t": (Swin, 224),
    "deeplabv3_resnet18": (Segmentation, 224),
}


def build(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The network in eval mode, seeded, and the shape of its input."""
    make, side = NETS[name]
    torch.manual_seed(0)
    return make().eval(), (1, 3, side, side)

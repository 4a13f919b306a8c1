"""What a recipe says: frozen models that forbid unknown keys, one class a section.

A recipe is plain data. ``load`` (in :mod:`edgefuse.yaml_file`) turns a file into a
:class:`Recipe`; the stages read its sections. Field descriptions are the documentation: the JSON
Schema (``edgefuse schema``) and ``configs/README.md`` are generated from them.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from edgefuse.recipe_cuda import Cuda
from edgefuse.recipe_fusion import Contract, Fuse
from edgefuse.recipe_memory import Memory
from edgefuse.recipe_quantize import Goal, Quantize
from edgefuse.recipe_shapes import Shapes, resolve, static_sizes
from edgefuse.section import NAME, SHA256, Number, Section


def _mirror(value: str) -> str:
    if re.fullmatch(r"https://\S+|file:\S+|wheel:[\w.-]+==[\w.!+-]+#\S+", value):
        return value
    raise ValueError(
        f"a mirror is https://..., file:PATH or wheel:PACKAGE==VERSION#PATH/IN/WHEEL, not {value!r}"
    )


Mirror = Annotated[str, Field(min_length=1)]


class Blob(Section):
    """A file known by its content, with the places it may be downloaded from."""

    file: str = Field(description="File name, for messages; {file} in a mirror stands for it.")
    sha256: SHA256
    mirrors: tuple[Mirror, ...] = Field(
        min_length=1,
        description="Tried in order: https://..., file:PATH, wheel:PACKAGE==VERSION#PATH/IN/WHEEL.",
    )

    @field_validator("mirrors")
    @classmethod
    def _known_schemes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_mirror(mirror) for mirror in value)


class LocalFile(Section):
    """A file on this machine. Its bytes enter the cache key."""

    path: str = Field(description="Relative to the recipe's folder, or absolute; ${VARIABLES} ok.")
    sha256: SHA256 | None = Field(None, description="Checked when given.")


class TorchModel(Section):
    """A PyTorch module built by an importable callable."""

    callable: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="module:callable; the recipe's folder and the working folder are importable.",
    )
    arguments: dict[str, Any] = Field({}, description="Keyword arguments of the callable.")
    weights: Blob | LocalFile | Literal["random", "callable"] = Field(
        description="A state dict by content or by path; 'random' (seeded, never releasable); "
        "'callable': the callable loads them itself (then the export is never cached).",
    )


class TensorShape(Section):
    """One model input."""

    name: str = Field(min_length=1, description="As the samples, the ONNX and the TFLite call it.")
    shape: tuple[Annotated[int, Field(gt=0, strict=True)], ...] = Field(
        min_length=1, description="Static shape, batch first, in the source model's layout."
    )
    dtype: Literal["float32"] = Field("float32", description="Of the source model's input.")

    @field_validator("shape", mode="before")
    @classmethod
    def _static(cls, value: Any) -> Any:
        return static_sizes(value)


class Model(Section):
    """Where the model comes from: exactly one of torch, onnx, tflite."""

    torch: TorchModel | None = None
    onnx: LocalFile | None = Field(None, description="An .onnx file.")
    tflite: LocalFile | None = Field(None, description="A float .tflite file: convert only checks.")
    inputs: tuple[TensorShape, ...] = Field(
        min_length=1,
        description="Names and static shapes, in the order of forward(); dynamic sizes of an "
        "ONNX file are pinned to these.",
    )
    outputs: tuple[str, ...] = Field((), description="Names of the outputs; needed for torch.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [k for k in ("torch", "onnx", "tflite") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of torch, onnx, tflite (found: {given or 'none'})")
        if self.torch and not self.outputs:
            raise ValueError("a torch model needs the names of its outputs")
        names = [i.name for i in self.inputs] + list(self.outputs)
        if len(set(names)) != len(names):
            raise ValueError(f"input and output names must differ: {names}")
        return self

    @property
    def source(self) -> str:
        return "torch" if self.torch else "onnx" if self.onnx else "tflite"

    @property
    def batch(self) -> int:
        """The static batch: the first axis of the first input."""
        return self.inputs[0].shape[0]

    @property
    def random_weights(self) -> bool:
        return self.torch is not None and self.torch.weights == "random"


class Preprocess(Section):
    """The one contract from a picture to the model's input, used everywhere and shipped."""

    resize: int | None = Field(
        None, gt=0, description="Short side in pixels, bilinear with antialiasing; null: as it is."
    )
    crop: tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]] = Field(
        description="Height and width of the centre crop, in pixels."
    )
    colour: Literal["RGB", "BGR"] = Field("RGB", description="Order of the colour channels.")
    scale: Number = Field(1 / 255, gt=0, description="Factor on the pixel values 0..255; 1/255.")
    mean: tuple[float, float, float] = Field(
        (0.0, 0.0, 0.0), description="Per channel, in the given colour order, after scaling."
    )
    std: tuple[float, float, float] = Field((1.0, 1.0, 1.0), description="As mean; positive.")
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="Of the source model's input.")

    @field_validator("std")
    @classmethod
    def _positive(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0:
            raise ValueError("every standard deviation must be positive")
        return value


class Crops(Section):
    """Seeded square crops of each picture, spread evenly over the pictures."""

    count: int = Field(gt=0, description="Crops in all.")
    seed: int = Field(0, ge=0, description="Places the crops.")
    min_fraction: float = Field(
        0.5, gt=0, le=1, description="Least side of a crop, as a fraction of the short side."
    )


class Split(Section):
    """A part of a seeded shuffle of a folder: the first N, all after N, or the first M after N."""

    seed: int = Field(0, ge=0, description="Shuffles; all parts need the same.")
    first: int | None = Field(None, gt=0, description="Take the first N of what is left.")
    after: int | None = Field(None, ge=0, description="Leave out the first N.")

    @model_validator(mode="after")
    def _one_part(self) -> Self:
        if self.first is None and self.after is None:
            raise ValueError("give first, after, or both")
        return self


class Samples(Section):
    """A set of samples: exactly one of manifest, folder, arrays."""

    manifest: str | None = Field(
        None, description="YAML list of pictures by content, relative to the recipe's folder."
    )
    folder: str | None = Field(
        None, description="A folder of pictures, with labels.csv (file, class_index) or without."
    )
    arrays: str | None = Field(
        None, description="An .npz keyed by input name (first axis: samples), or an .npy."
    )
    crops: Crops | None = Field(None, description="Pictures only; null: each picture once.")
    split: Split | None = Field(None, description="Folders only; null: every picture.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [k for k in ("manifest", "folder", "arrays") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of manifest, folder, arrays (found: {given or 'none'})"
            )
        if self.split and not self.folder:
            raise ValueError("split needs a folder")
        if self.crops and self.arrays:
            raise ValueError("crops need pictures, not arrays")
        return self


class Data(Section):
    """The sample sets, by what they are for."""

    calibration: Samples = Field(description="Sets the quantisation ranges.")
    evaluation: Samples = Field(description="Judged by the accuracy gate; also parity checks.")
    report: Samples | None = Field(None, description="Labelled; reported beside, never gated.")
    validation: Samples | None = Field(
        None,
        description="Decides between techniques of quantize.goal; neither calibrated on nor gated.",
    )
    training: Samples | None = Field(None, description="What quantize.qat learns from.")
    labels: Blob | LocalFile | None = Field(
        None, description="Class names, one a line, shipped in the bundle."
    )


SAMPLE_ROLES = tuple(name for name in Data.model_fields if name != "labels")


class Export(Section):
    """Torch (or a given ONNX file) to the unfused ONNX graph."""

    opset: int = Field(18, ge=13, le=21, description="ONNX operator set.")
    parity_samples: int = Field(4, gt=0, description="Real samples compared with eager PyTorch.")
    max_relative_error: float = Field(1e-4, gt=0, description="Of the largest |output|.")


class Convert(Section):
    """Fused ONNX to float TFLite."""

    parity_samples: int = Field(4, gt=0, description="Real samples compared with the fused ONNX.")
    max_relative_error: float = Field(1e-4, gt=0, description="Of the largest |output|.")
    timeout_s: int = Field(600, gt=0, description="Limit of the converter's child process.")


class Check(Section):
    """The fusion contract on the int8 file."""

    permit_float: tuple[str, ...] = Field(
        (), description="TFLite operators that may stay float; recorded as evidence."
    )
    fused_activations: Literal["required", "reported"] = Field(
        "required", description="Whether an activation fused in ONNX must be fused in TFLite."
    )


class AccuracyGate(Section):
    """On data.evaluation, judged by the one-sided 95% bound, resampled by source picture."""

    min_agreement_percent: float | None = Field(
        None, gt=0, le=100, description="Samples whose first class is the float model's."
    )
    min_sqnr_db: float | None = Field(
        None, description="Signal of a float output to the error of the int8 one; the least of all."
    )
    max_drop_points: float | None = Field(None, ge=0, description="Top-1; needs labels.")
    resamples: int = Field(2000, ge=200, description="Bootstrap resamples.")

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        limits = (self.min_agreement_percent, self.min_sqnr_db, self.max_drop_points)
        if all(limit is None for limit in limits):
            raise ValueError("a gate without a threshold decides nothing: give at least one")
        return self


class MemoryGate(Section):
    """Bytes the target's runtime needs for the int8 model."""

    max_arena_bytes: int = Field(gt=0, description="Activations, built-in kernels.")
    max_model_bytes: int | None = Field(None, gt=0, description="Size of the .tflite file.")


class LatencyGate(Section):
    """Int8 on the target, beside the float file and an earlier bundle, interleaved.

    A machine or a board is timed in milliseconds, an emulated CPU counted in instructions, an NPU
    estimated in cycles: ratios are of whatever the target gives.
    """

    max_ratio_to_float: float | None = Field(
        None, gt=0, description="Median of int8 over float, round by round."
    )
    max_ratio_without_int8_dot: float | None = Field(
        None,
        gt=0,
        description="Instead of max_ratio_to_float on a CPU without an int8 dot product (VNNI, "
        "AMX, ARM dotprod or i8mm), where int8 arithmetic is no faster than float. Which of the "
        "two was applied is recorded as evidence.",
    )
    max_p90_ms: float | None = Field(None, gt=0, description="Only sensible on one known board.")
    max_instructions: int | None = Field(
        None, gt=0, description="Of one invoke; targets that count instructions."
    )
    max_cycles: int | None = Field(None, gt=0, description="Of one invoke; targets with an NPU.")
    baseline: LocalFile | None = Field(
        None, description="An earlier bundle of the same model, e.g. the one released last."
    )
    max_ratio_to_baseline: float | None = Field(
        None, gt=0, description="Of the int8 file to the baseline's."
    )
    processes: int = Field(5, ge=2, le=50, description="Fresh processes.")
    rounds: int = Field(40, ge=10, description="Interleaved rounds a process.")
    repeats: int = Field(
        3,
        ge=1,
        le=20,
        description="How often it is measured at most while a check is inconclusive; all rounds "
        "count together.",
    )
    sustained_s: int = Field(
        0,
        ge=0,
        le=86400,
        description="Measure for so long, and judge the second half: a board that grows hot slows "
        "down.",
    )

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        if self.max_ratio_without_int8_dot is not None and self.max_ratio_to_float is None:
            raise ValueError("max_ratio_without_int8_dot needs max_ratio_to_float beside it")
        if (self.baseline is None) != (self.max_ratio_to_baseline is None):
            raise ValueError("baseline and max_ratio_to_baseline need each other")
        limits = (
            *(self.max_ratio_to_float, self.max_p90_ms, self.max_instructions),
            *(self.max_cycles, self.max_ratio_to_baseline),
        )
        if all(limit is None for limit in limits):
            raise ValueError("a gate without a threshold decides nothing: give at least one")
        return self


class TargetGates(Section):
    """Gates on one target instead of the recipe's own; null: none there, which is recorded."""

    accuracy: AccuracyGate | None = None
    memory: MemoryGate | None = None
    latency: LatencyGate | None = None


class Gates(Section):
    """What the model must pass before it is packaged."""

    accuracy: AccuracyGate | None = None
    memory: MemoryGate | None = None
    latency: LatencyGate | None = None
    targets: dict[NAME, TargetGates] = Field(
        default_factory=dict,
        description="Other thresholds on a target, by its name: a gate given here replaces the "
        "recipe's as a whole.",
    )

    def on(self, target: str) -> Self:
        """The gates as they are on a target."""
        own = self.targets.get(target)
        if own is None:
            return self
        return self.model_copy(update={n: getattr(own, n) for n in own.model_fields_set})


class Package(Section):
    """The bundle."""

    golden_samples: int = Field(2, gt=0, le=64, description="Golden vectors.")


def _goal_reaches_gate(goal: Goal, gate: AccuracyGate) -> None:
    """Refuse a goal that is met where the gate's own threshold is not."""
    agreement = None if goal.min_agreement is None else 100 * goal.min_agreement
    for key, own, theirs, sign in (
        ("max_drop_points", goal.max_drop_points, gate.max_drop_points, -1),
        ("min_sqnr_db", goal.min_sqnr_db, gate.min_sqnr_db, 1),
        ("min_agreement", agreement, gate.min_agreement_percent, 1),
    ):
        if own is not None and theirs is not None and sign * (own - theirs) < -1e-9:
            raise ValueError(
                f"quantize.goal.{key} is met at {own:g}, where gates.accuracy still fails "
                f"({theirs:g}): ask of the goal at least what the gate asks"
            )


class Recipe(Section):
    """One model's way from source to a gated bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_version: Literal[1] = Field(alias="schema", description="Always 1.")
    name: NAME = Field(description="Names the artifacts and build/<name>/.")
    description: str = Field("", description="For people: what this recipe can and cannot show.")
    release: bool = Field(False, description="Built by `make release`.")
    seed: int = Field(0, ge=0, description="Seeds every random choice.")
    target: str = Field("host", description="A target of `edgefuse targets`.")
    model: Model
    preprocess: Preprocess | None = Field(None, description="Needed for picture data.")
    data: Data
    export: Export = Export()
    fuse: Fuse = Fuse()
    contract: Contract = Contract()
    shapes: Shapes | None = None
    convert: Convert = Convert()
    quantize: Quantize = Quantize()
    memory: Memory | None = Field(None, description="null: the int8 file stays as quantised.")
    cuda: Cuda | None = Field(None, description="Needed by targets with runtime cuda.")
    check: Check = Check()
    gates: Gates = Gates()
    package: Package = Package()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.release and self.model.random_weights:
            raise ValueError("random weights can never be released: set release: false")
        if self.model.tflite and (self.contract.fused or self.fuse.skip):
            raise ValueError("a tflite source runs no passes: drop fuse.skip, contract.fused")
        gates = self.gates
        if self.release and not (gates.accuracy and gates.memory and gates.latency):
            raise ValueError("release: true needs all gates: accuracy, memory, latency")
        sets = [getattr(self.data, role) for role in SAMPLE_ROLES]
        if self.preprocess is None and any(s and not s.arrays for s in sets):
            raise ValueError("picture data needs a preprocess section")
        if self.quantize.goal and self.data.validation is None:
            raise ValueError(
                "quantize.goal is judged on samples that are neither calibrated on nor gated: give "
                "data.validation (a folder's split knows first and after together)"
            )
        if self.quantize.goal and gates.accuracy:
            _goal_reaches_gate(self.quantize.goal, gates.accuracy)
        if self.quantize.qat and self.data.training is None:
            raise ValueError("quantize.qat learns from data.training: give it")
        if self.shapes is not None:
            if self.model.tflite is not None:
                raise ValueError("shapes needs a graph to plan: a .tflite file has one shape")
            resolve(self.shapes.buckets, self.model.inputs)
        if self.cuda is not None and self.model.tflite is not None:
            raise ValueError("cuda needs a graph to lower: a .tflite source has none")
        if self.cuda and self.cuda.precision == "int8" and self.quantize.format != "int8":
            raise ValueError("cuda.precision: int8 takes its scales from quantize.format: int8")
        return self

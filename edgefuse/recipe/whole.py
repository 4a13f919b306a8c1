"""A recipe as a whole, and its smallest sections.

A recipe is plain data. ``load`` (in :mod:`edgefuse.yaml_file`) turns a file into a
:class:`Recipe`; the stages read its sections. Field descriptions are the documentation: the JSON
Schema (``edgefuse schema``) and ``configs/README.md`` are generated from them.
"""

from typing import Literal

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from edgefuse.recipe.cuda import Cuda
from edgefuse.recipe.fusion import Contract, Fuse
from edgefuse.recipe.gates import Gates, check_goal_reaches
from edgefuse.recipe.memory import Memory
from edgefuse.recipe.model import Model
from edgefuse.recipe.quantize import Quantize
from edgefuse.recipe.samples import SAMPLE_ROLES, Data, Preprocess
from edgefuse.recipe.shapes import Shapes, resolve
from edgefuse.section import NAME, Section


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


class Package(Section):
    """The bundle."""

    golden_samples: int = Field(2, gt=0, le=64, description="Golden vectors.")


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
            check_goal_reaches(self.quantize.goal, gates.accuracy)
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

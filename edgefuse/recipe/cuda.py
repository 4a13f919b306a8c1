"""What a recipe says about the CUDA path: the same fused graph as a GPU program."""

from typing import Literal

from pydantic import Field

from edgefuse.section import Section


class Cuda(Section):
    """The fused graph as a few kernels in one planned arena, on targets with runtime cuda.

    The buckets of `shapes` are planned each by itself; without it the shape of model.inputs is.
    """

    precision: Literal["fp32", "fp16", "bf16", "int8"] = Field(
        "fp16",
        description="Of activations and matrix weights; sums are float32, int32 for int8, which "
        "takes its scales from the quantised file.",
    )
    interpreted_samples: int = Field(
        1,
        gt=0,
        description="Real samples on which Triton's interpreter runs the kernels themselves, on "
        "the CPU: that takes seconds to minutes each.",
    )
    max_relative_error: float | None = Field(
        None,
        gt=0,
        description="Of the kernels against the fused ONNX, of the largest |output|. null: 1e-4 "
        "for fp32, 2e-2 for fp16, 1e-1 for bf16 and, against the int8 TFLite file, for int8.",
    )

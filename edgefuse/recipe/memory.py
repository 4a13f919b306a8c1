"""What a recipe says about memory: how the int8 file is rewritten so that its arena shrinks."""

from typing import Literal

from pydantic import Field

from edgefuse.section import Bytes, Section


class Tiles(Section):
    """A tiling by hand, where the search for the goal's cheapest one is not wanted."""

    rows: int = Field(gt=0, description="Tiles down the picture.")
    columns: int = Field(gt=0, description="Tiles across the picture.")
    last: int | None = Field(
        None,
        ge=0,
        description="Place, in the int8 file, of the last operator that runs tile by tile; null: "
        "the cheapest that keeps to arena_bytes.",
    )


class Memory(Section):
    """Rewrites of the int8 file that lower its arena and leave every output bit as it is.

    The stage `shrink` makes them where a recipe has this section, and judges them by the arena that
    the target's runtime will need. `edgefuse memory RECIPE` shows what each would save.
    """

    padding: Literal["auto", "keep", "wider_kernels", "turned"] = Field(
        "auto",
        description="What becomes of PAD in front of convolutions. wider_kernels: zero taps; "
        "turned: the network turned by 180 degrees; auto: the form that is cheaper on the "
        "target's kernels, where it helps; keep: nothing.",
    )
    reverse_input: bool = Field(
        True,
        description="Whether a turned network turns its picture itself, by REVERSE_V2. false: "
        "whoever feeds it gives the picture turned, which preprocessing.json, the manifest and "
        "the file's own metadata say.",
    )
    order: bool = Field(
        True, description="Whether operators may run in another order where that lowers the arena."
    )
    edges: bool = Field(
        True,
        description="Whether the last row and column of a depthwise convolution of 3 x 3 with "
        "stride 2 may be computed apart, where the rest then runs in a faster kernel (builtin and "
        "legacy) and the arena stays.",
    )
    arena_bytes: Bytes | None = Field(
        None,
        description="Goal for what activations need, in bytes or as 512KiB (tflite-micro: the "
        "arena's head; the memory gate measures the interpreter's structures too, which grow with "
        "tiles, as the file does). The cheapest rewrites that reach it are made; when none does, "
        "exit code 1 names the least and what blocks it. null: the target's limits.arena_bytes, "
        "if it has one.",
    )
    judged_by: Literal["litert", "tflite_micro"] | None = Field(
        None, description="Whose arena decides what helps; null: that of the target's runtime."
    )
    kernels: Literal["auto", "builtin", "legacy", "xnnpack", "reference", "micro", "npu"] = Field(
        "auto",
        description="Whose convolutions the rewrites are chosen for. builtin: LiteRT's without a "
        "delegate; legacy: tflite-runtime's; xnnpack: LiteRT's own choice; reference; micro: "
        "tflite-micro's; npu: a compiler's; auto: the target's.",
    )
    max_extra_multiply_adds: float = Field(
        0.15, ge=0, le=10, description="What the goal may cost, as a share of the multiply-adds."
    )
    tiles: Tiles | None = Field(
        None, description="Run the first operators tile by tile; null: where the goal needs it."
    )
    parity_samples: int = Field(
        8, gt=0, description="Real samples on which every output must keep every bit."
    )

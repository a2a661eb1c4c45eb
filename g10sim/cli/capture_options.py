"""Options of ``g10sim trace capture``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from g10sim.capture.options import Attention, Autocast, Cache, Dtype, Optimizer, OptimizerForm

Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="hf:NAME, diffusers:NAME, timm:NAME, torchvision:NAME, or module:function, which returns "
        "(model, inputs), a step or a generator of steps.",
    ),
]
Gpu: TypeAlias = Annotated[
    str, typer.Option(help="GPU whose kernel times are modelled: a name, or a YAML file.")
]
BatchSize: TypeAlias = Annotated[int | None, typer.Option(help="Samples in a step.", show_default="8")]
SeqLen: TypeAlias = Annotated[
    int | None, typer.Option(help="Tokens in a sample.", show_default="512, or the model's most")
]
ImageSize: TypeAlias = Annotated[
    int | None, typer.Option(help="Height and width of an image in pixels.", show_default="the model's")
]
DtypeOption: TypeAlias = Annotated[Dtype, typer.Option(help="Format of weights and activations.")]
AutocastOption: TypeAlias = Annotated[
    Autocast | None,
    typer.Option(help="Mixed precision: weights in float32, products cast to this.", show_default="none"),
]
MasterWeights: TypeAlias = Annotated[
    bool, typer.Option("--master-weights", help="The optimizer updates float32 copies of 16-bit weights.")
]
OptimizerOption: TypeAlias = Annotated[
    Optimizer | None, typer.Option(help="Optimizer, with PyTorch's settings.", show_default="adamw")
]
OptimizerFormOption: TypeAlias = Annotated[
    OptimizerForm | None,
    typer.Option(
        help="One kernel for all operations of the optimizer, or one for each.", show_default="fused"
    ),
]
Momentum: TypeAlias = Annotated[float | None, typer.Option(help="Momentum of sgd.", show_default="0")]
AttentionOption: TypeAlias = Annotated[
    Attention, typer.Option(help="Attention as one kernel, or with scores and softmax as tensors.")
]
ActivationCheckpointing: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--activation-checkpointing", help="Keep inputs of blocks only, and run blocks again in backward."
    ),
]
CudnnPooling: TypeAlias = Annotated[
    bool,
    typer.Option("--cudnn-pooling", help="Max pooling keeps no indices, its gradient reads its output."),
]
ChannelsLast: TypeAlias = Annotated[
    bool,
    typer.Option("--channels-last", help="Weights and images lie in memory channels last, as NHWC."),
]
Tf32: TypeAlias = Annotated[
    bool, typer.Option("--tf32", help="Tensor cores may round float32 matrix products to tf32.")
]
CudaGraph: TypeAlias = Annotated[
    bool,
    typer.Option("--cuda-graph", help="A CUDA graph replays the step: no kernel waits for the host."),
]
Inference: TypeAlias = Annotated[
    bool, typer.Option("--inference", help="A forward pass in evaluation mode, without gradients.")
]
Steps: TypeAlias = Annotated[int, typer.Option(min=1, help="Steps in the trace, one after the other.")]
Workspace: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Scratch space of each product, such as '8 MiB'.", show_default="none"),
]
Generate: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Tokens that a language model generates, one after another.", show_default="none"),
]
CacheOption: TypeAlias = Annotated[
    Cache | None,
    typer.Option(
        help="Keys and values with --generate: grow by a copy, or have full length.", show_default="dynamic"
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a key of an hf: model's configuration, such as hidden_size=64.",
        metavar="KEY=VALUE",
    ),
]
Routing: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Experts of tokens: uniform, zipf:EXPONENT, grouped, or a file.",
        show_default="uniform for hf:, none for one's own",
    ),
]
RoutingSeed: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Seed of a routing that is drawn.", show_default="0")
]
Measure: TypeAlias = Annotated[
    bool, typer.Option("--measure", help="Measure the times on the CUDA device of this computer.")
]
Strict: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a step in which operators of unknown cost are more than 1% of bytes or time.",
    ),
]

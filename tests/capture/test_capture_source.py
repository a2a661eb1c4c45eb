import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from g10sim.capture.source import capture_source
from g10sim.cli.capture import capture
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace
from g10sim.trace.model import TensorKind

HERE = str(Path(__file__).parent)


@pytest.fixture
def transformers(torch):
    return pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'g10sim[capture]'"
    )


@pytest.fixture
def here(models, monkeypatch):
    monkeypatch.chdir(HERE)


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_a_hugging_face_model_is_captured(transformers, attention):
    trace = capture_source(
        "hf:distilbert-base-uncased", gpu="a100-40g", batch_size=4, seq_len=32, attention=attention
    )
    check_trace(trace)
    assert trace.batch_size == 4
    assert ("attention" in {kernel.name for kernel in trace.kernels}) == (attention == "fused")
    assert trace.origin["transformers"] == transformers.__version__
    assert trace.origin["command"] == (
        "g10sim trace capture hf:distilbert-base-uncased --batch-size 4 --seq-len 32 --dtype float32 "
        f"--optimizer adamw --attention {attention} --gpu a100-40g"
    )


def test_a_model_of_images_takes_an_image_size(transformers):
    options = {"gpu": "h100", "batch_size": 2, "optimizer": "sgd"}
    small = capture_source("hf:vit-base-patch16-224", image_size=64, **options)
    check_trace(small)
    pixels = [tensor.size_bytes for tensor in small.tensors if tensor.name == "input.pixel_values"]
    assert pixels == [2 * 3 * 64 * 64 * 4]


def test_a_function_of_ones_own_is_captured_with_the_options_it_takes(here):
    trace = capture_source("capture_models:language", gpu="v100", batch_size=6, seq_len=10)
    assert (trace.model, trace.batch_size) == ("capture_models:language", 6)
    assert [t.size_bytes for t in trace.tensors if t.kind is TensorKind.INPUT] == [6 * 10 * 8]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("hf:my-model", {}, "hf:my-model: found a model whose configuration would have to be downloaded"),
        ("hf:bert-base-uncase", {}, "did you mean 'bert-base-uncased'?"),
        ("hf:gpt2", {"seq_len": 1025}, "hf:gpt2: found --seq-len 1025; allowed: 1 to 1024"),
        ("hf:gpt2", {"image_size": 8}, "found --image-size 8 for a model of text; allowed: --seq-len"),
        ("hf:vit-base-patch16-224", {"seq_len": 8}, "found --seq-len 8 for a model of images"),
        ("hf:gpt2", {"batch_size": 0}, "--batch-size: found 0; allowed: at least 1"),
        (
            "nonsense",
            {},
            "found source 'nonsense'; allowed: hf:NAME, diffusers:NAME, timm:NAME, torchvision:NAME or",
        ),
        ("no_such_module:build", {}, "No module named 'no_such_module'"),
        ("capture_models:languag", {}, "found no function 'languag' (did you mean 'language'?)"),
        ("capture_models:NOT_CALLABLE", {}, "found no function 'NOT_CALLABLE'"),
        ("capture_models:not_a_pair", {}, "found Linear; allowed: a pair (torch.nn.Module, inputs)"),
        (
            "capture_models:frozen",
            {"seq_len": 4},
            "--seq-len: found 4, but capture_models:frozen has no parameter",
        ),
    ],
)
def test_a_wrong_source_is_refused_with_what_is_allowed(transformers, here, source, options, message):
    with pytest.raises(ConfigError) as refused:
        capture_source(source, gpu="a100-40g", **options)
    assert message in str(refused.value)


def test_a_value_dependent_model_is_refused_by_its_source_and_line(here):
    with pytest.raises(
        TraceError, match=r"^capture_models:undecided: the training step stopped at .*:\d+ \(forward\)"
    ):
        capture_source("capture_models:undecided", gpu="a100-40g")


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_library_is_named_with_the_extra_to_install(monkeypatch, missing):
    if missing == "transformers":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"capture needs {missing}.*pip install 'g10sim\[capture\]'"):
        capture_source("hf:bert-base-uncased", gpu="a100-40g")


def _run(*arguments):
    app = typer.Typer()
    app.command()(capture)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_a_trace_and_tells_its_footprint(here, tmp_path):
    out = tmp_path / "small.g10t"
    result = _run("capture_models:conv_net", "--gpu", "a100-40g", "--optimizer", "sgd", "-o", out)
    assert result.exit_code == 0, result.output
    assert "kernels" in result.output
    assert "footprint" in result.output
    assert load_trace(out).origin["optimizer"] == "sgd"


def test_the_command_twice_writes_the_same_file(here, tmp_path):
    files = [tmp_path / "one.g10t", tmp_path / "two.g10t"]
    for file in files:
        assert _run("capture_models:language", "--gpu", "a100-40g", "-o", file).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_command_tells_which_operators_have_no_known_cost(here, tmp_path):
    result = _run("capture_models:unusual", "--gpu", "a100-40g", "-o", tmp_path / "x.g10t")
    assert "no cost known, priced by the bytes they move: _fft_" in result.output


def test_a_refused_command_leaves_no_file(here, tmp_path):
    result = _run("capture_models:undecided", "--gpu", "a100-40g", "-o", tmp_path / "x.g10t")
    assert isinstance(result.exception, TraceError)
    assert list(tmp_path.iterdir()) == []

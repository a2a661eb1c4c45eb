"""Models of transformers by file, cache, family and settings; each is captured or refused in one line."""

import json
from pathlib import Path

import pytest
import yaml
from tiny_models import DECODER, TINY

transformers = pytest.importorskip("transformers", reason="needs pip install 'g10sim[capture]'")
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

from g10sim.capture.hugging_face import build_hugging_face
from g10sim.capture.known_models import known_models
from g10sim.capture.options import Sizes, StepOptions
from g10sim.capture.source import capture_source, make_torchvision_importable
from g10sim.errors import ConfigError
from g10sim.trace.check import check_trace
from g10sim.trace.model import Phase

pytestmark = pytest.mark.slow

QUICK_FAMILIES = ("gpt-oss", "qwen2", "t5")
OF_A_FILE = [
    pytest.param(name, marks=() if name in QUICK_FAMILIES else pytest.mark.nightly)
    for name in TINY
    if name not in ("gemma3_text",)
]
COUNTED = (
    "bert-base-uncased",
    "Qwen3-8B",
    "Mixtral-8x7B-v0.1",
    "gpt-oss-20b",
    "whisper-tiny",
    "clip-vit-base-patch32",
)
OPTIONS = {"gpu": "h100", "batch_size": 2}


@pytest.fixture(autouse=True)
def _torchvision():
    make_torchvision_importable()


def configuration(settings):
    """Return the data that settings stand for."""
    data = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        *above, last = key.split(".")
        part = data
        for name in above:
            part = part.setdefault(name, {})
        part[last] = yaml.safe_load(text)
    return data


def written(directory, family, settings=DECODER, **more):
    data = {"model_type": family.replace("-", "_"), **configuration(settings), **more}
    (directory / "config.json").write_text(json.dumps(data))
    return directory


@pytest.mark.parametrize("family", OF_A_FILE)
def test_a_family_is_captured_from_a_file(tmp_path, family):
    trace = capture_source(f"hf:{written(tmp_path, family, TINY[family])}", seq_len=32, **OPTIONS)
    check_trace(trace)
    assert {kernel.phase for kernel in trace.kernels} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in COUNTED else pytest.mark.nightly) for name in known_models()],
)
def test_a_known_model_has_its_published_number_of_parameters(name):
    published = known_models()[name][1].parameters
    build = build_hugging_face(name, Sizes(1), StepOptions())
    with torch.device("meta"):
        network = getattr(transformers, build.args[1].value).from_config(build.args[0])
    assert not published or sum(weight.numel() for weight in network.parameters()) == published


def test_every_known_model_says_where_it_is_published():
    assert len(known_models()) > 80
    for _, model in known_models().values():
        assert model.source.startswith("https://huggingface.co/")


def test_a_family_takes_settings():
    trace = capture_source("hf:qwen3", seq_len=32, settings=TINY["qwen3"], inference=True, **OPTIONS)
    embedding = next(t for t in trace.tensors if t.name == "model.embed_tokens.weight")
    assert embedding.size_bytes == 512 * 64 * 4
    assert "--set hidden_size=64 " in trace.origin["command"]


def test_a_known_model_takes_settings_that_its_published_configuration_has():
    build = build_hugging_face(
        "Qwen3-30B-A3B", Sizes(1), StepOptions(), ["head_dim=64", "num_hidden_layers=2"]
    )
    assert (build.args[0].head_dim, build.args[0].num_hidden_layers) == (64, 2)


def test_a_model_of_the_local_cache_is_found(tmp_path, monkeypatch):
    cache = tmp_path / "models--me--mine"
    (cache / "snapshots" / "abc").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    written(cache / "snapshots" / "abc", "llama")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    build = build_hugging_face("me/mine", Sizes(1), StepOptions())
    assert build.args[0].hidden_size == 64


def test_weights_have_the_format_of_the_step_whatever_the_file_says(tmp_path):
    place = written(tmp_path, "llama", dtype="bfloat16")
    trace = capture_source(f"hf:{place}", seq_len=16, inference=True, **OPTIONS)
    assert next(t for t in trace.tensors if t.name == "lm_head.weight").size_bytes == 512 * 64 * 4


def test_an_image_takes_as_many_tokens_as_it_has_features():
    trace = capture_source("hf:gemma3", seq_len=32, settings=TINY["gemma3"], inference=True, **OPTIONS)
    sizes = {tensor.name: tensor.size_bytes for tensor in trace.tensors}
    assert sizes["input.input_ids"] == 2 * (16 + 32) * 8
    assert sizes["input.pixel_values"] == 2 * 3 * 224 * 224 * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "found no JSON"),
        ("[]", "found list; allowed: the configuration of a model, a JSON object with a model_type"),
        ("null", "found NoneType; allowed: the configuration of a model, a JSON object with a model_type"),
        ("{}", "found no model_type"),
        ('{"model_type": "quen3"}', "model_type: found 'quen3' (did you mean 'qwen3'?)"),
        ('{"model_type": "qwen3", "hidden_size": "big"}', "'hidden_size' expected int, got str"),
        (
            '{"model_type": "qwen3", "architectures": ["Mine"]}',
            "architectures: found Mine; allowed: Qwen3For",
        ),
        ('{"model_type": "dac"}', "is made for none of the tasks that capture knows"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        capture_source(f"hf:{tmp_path}", **OPTIONS)
    assert message in str(refused.value)
    assert str(Path(tmp_path, "config.json")) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "qwen3",
            ["hidden_sise=64"],
            "--set hidden_sise=64: found no such key (did you mean 'hidden_size'?)",
        ),
        ("qwen3", ["hidden_size"], "--set: found 'hidden_size'; allowed: KEY=VALUE"),
        ("gemma3", ["text_config.hiden_size=64"], "found no such key (did you mean 'hidden_size'?)"),
        ("gpt2", ["n_head=7"], "allowed: a"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(name, settings, message):
    with pytest.raises(Exception) as refused:  # noqa: PT011
        capture_source(f"hf:{name}", settings=settings, seq_len=8, **OPTIONS)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_are_for_models_of_transformers():
    with pytest.raises(ConfigError, match=r"--set: found depth=2 for timm:resnet18; allowed: models of hf:"):
        capture_source("timm:resnet18", settings=["depth=2"], **OPTIONS)


@pytest.mark.parametrize(
    ("name", "near"), [("Qwen3-9B", True), ("lama-3.2-1b", True), ("my-model", False), ("xyz", False)]
)
def test_a_suggestion_is_made_only_where_one_is_near(name, near):
    with pytest.raises(ConfigError) as refused:
        capture_source(f"hf:{name}", **OPTIONS)
    assert ("did you mean" in str(refused.value)) == near

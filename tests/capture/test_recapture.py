import shutil

import pytest
import yaml
from typer.testing import CliRunner

from g10sim.capture.manifest import MANIFEST, Entry, read_manifest
from g10sim.capture.source import make_torchvision_importable
from g10sim.cli.commands import app
from g10sim.config.data import data_path
from g10sim.errors import ConfigError
from g10sim.trace.format import load_trace

COMMAND = "g10sim trace capture capture_models:conv_net --batch-size 4 --optimizer sgd --gpu a100-40g"


def run(*arguments):
    return CliRunner().invoke(app, ["trace", "recapture", *map(str, arguments)])


@pytest.fixture
def manifest(models, tmp_path, monkeypatch):
    """A manifest of one small trace that is not there yet, beside the models it names."""
    shutil.copy(models.__file__, tmp_path / "capture_models.py")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / MANIFEST
    path.write_text(yaml.safe_dump({"traces": [{"file": "small.g10t", "command": COMMAND}]}))
    return path


def test_file_and_command_are_enough_to_make_a_trace(manifest):
    result = run(manifest)
    assert result.exit_code == 0, result.output
    assert "new" in result.output
    entry = read_manifest(manifest).traces[0]
    trace = load_trace(manifest.parent / "small.g10t")
    assert (entry.kernels, entry.tensors, entry.gpu) == (len(trace.kernels), len(trace.tensors), "a100-40g")
    assert entry.versions["torch"] == trace.origin["torch"]
    assert entry.kernel_time_ns == sum(kernel.duration for kernel in trace.kernels)


def test_a_trace_is_made_again_byte_for_byte(manifest):
    run(manifest)
    before = {path.name: path.read_bytes() for path in manifest.parent.iterdir() if path.is_file()}
    result = run(manifest)
    assert "the same, byte for byte" in result.output
    after = {path.name: path.read_bytes() for path in manifest.parent.iterdir() if path.is_file()}
    assert before == after


def test_a_trace_that_comes_out_different_is_said_to(manifest):
    run(manifest)
    manifest.write_text(manifest.read_text().replace("--batch-size 4", "--batch-size 5"))
    result = run(manifest)
    assert "changed" in result.output
    assert load_trace(manifest.parent / "small.g10t").batch_size == 5


def test_other_versions_are_named_where_a_trace_comes_out_different(manifest):
    run(manifest)
    data = yaml.safe_load(manifest.read_text())
    data["traces"][0] |= {"versions": {"torch": "1.0.0", "no-such-library": "2"}, "sha256": "0"}
    manifest.write_text(yaml.safe_dump(data))
    result = run(manifest)
    assert "no-such-library not installed instead of 2; torch " in result.output


def test_another_directory_gets_traces_and_a_manifest_of_its_own(manifest):
    before = manifest.read_bytes()
    (manifest.parent / "out").mkdir()
    assert run(manifest, "-o", manifest.parent / "out").exit_code == 0
    assert manifest.read_bytes() == before
    assert {path.name for path in (manifest.parent / "out").iterdir()} == {MANIFEST, "small.g10t"}


def test_traces_are_made_for_another_gpu_beside_those_there(manifest):
    run(manifest)
    before = manifest.read_bytes()
    out = manifest.parent / "out"
    out.mkdir()
    result = run(manifest, "--gpu", "H100", "-o", out)
    assert result.exit_code == 0, result.output
    assert manifest.read_bytes() == before
    (entry,) = read_manifest(out / MANIFEST).traces
    assert entry.gpu == "h100"
    assert entry.command == COMMAND.replace("a100-40g", "H100")
    first, second = (load_trace(place / "small.g10t") for place in (manifest.parent, out))
    assert [kernel.name for kernel in first.kernels] == [kernel.name for kernel in second.kernels]
    assert first.tensors == second.tensors
    assert sum(one.duration for one in second.kernels) < sum(one.duration for one in first.kernels)


def test_a_command_without_a_gpu_gets_the_one_given():
    start = "g10sim trace capture a:b"
    assert Entry(file="x.g10t", command=start).on("h100").command == f"{start} --gpu h100"
    measured = Entry(file="x.g10t", command=f"{start} --gpu=v100 --steps 2", time_source="measured").on("a b")
    assert measured.command == f"{start} --gpu 'a b' --steps 2"
    assert measured.is_measured


def test_measured_times_are_not_made_again(manifest):
    data = yaml.safe_load(manifest.read_text())
    data["traces"][0]["time_source"] = "measured"
    manifest.write_text(yaml.safe_dump(data))
    result = run(manifest)
    assert "left: measured on a GPU" in result.output
    assert not (manifest.parent / "small.g10t").exists()


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("", "vit-base-b512.g10t"),
        ("", "vit-base-bf16-b1024.g10t"),
        pytest.param("", "llama-3.2-1b-lora-b1-s512.g10t", marks=pytest.mark.nightly),
        pytest.param("g10", "vit-small-b1280.g10t", marks=pytest.mark.nightly),
    ],
)
def test_a_bundled_trace_is_made_again_byte_for_byte(torch, tmp_path, place, file):
    make_torchvision_importable()  # timm imports it
    for library in ("timm", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'g10sim[capture]'")
    source = data_path("traces", place, MANIFEST)
    (entry,) = [entry for entry in read_manifest(source).traces if entry.file == file]
    from g10sim.capture.manifest import other_versions

    if other_versions(entry):
        pytest.skip(f"the bundled traces were made with other versions: {other_versions(entry)}")
    result = run(source, "--only", file, "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / file).read_bytes() == (source.parent / file).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": "rm -r traces"}, "found 'rm -r traces'; allowed: g10sim trace capture SOURCE"),
        ({"command": f"{COMMAND} -o x.g10t"}, "allowed: g10sim trace capture SOURCE OPTION ..., without -o"),
        ({"command": f"{COMMAND} 'x"}, "found a command that cannot be split"),
        ({"file": "../x.g10t"}, "found '../x.g10t'; allowed: a file name that ends in .g10t"),
        ({"colour": "green"}, "found an unknown key"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_line(tmp_path, change, message):
    path = tmp_path / MANIFEST
    path.write_text(yaml.safe_dump({"traces": [{"file": "small.g10t", "command": COMMAND, **change}]}))
    with pytest.raises(ConfigError) as refused:
        read_manifest(path)
    assert message in str(refused.value)
    assert f"{path}:" in str(refused.value)


def test_a_file_listed_twice_is_refused(tmp_path):
    path = tmp_path / MANIFEST
    path.write_text(yaml.safe_dump({"traces": 2 * [{"file": "small.g10t", "command": COMMAND}]}))
    with pytest.raises(ConfigError, match=r"found 'small.g10t' twice"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "smal.g10t"), "--only: found 'smal.g10t' (did you mean 'small.g10t'?)"),
        (("-o", "nowhere"), "-o: found 'nowhere'; allowed: a directory that exists"),
        (("--gpu", "h100"), "--gpu: found without -o; allowed: with -o and another directory"),
        (("--gpu", "h100", "-o", "."), "--gpu: found without -o; allowed: with -o and another directory"),
    ],
)
def test_a_wrong_option_is_refused(manifest, arguments, message):
    result = run(manifest, *arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)

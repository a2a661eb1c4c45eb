"""All published traces import, keep every rule, and agree with the published simulator's own logs."""

import gzip
import re
from collections import Counter

import pytest

from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.plan_format import check_plan, read_prefetch_guide
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import TensorKind

BATCH_SIZES = {
    "BERT_Base": (128, 256, 384, 512, 640, 768, 1024),
    "Inceptionv3": (512, 768, 1024, 1152, 1280, 1536, 1792),
    "ResNet152": (256, 512, 768, 1024, 1280, 1536),
    "SENet154": (256, 512, 768, 1024),
    "VIT": (256, 512, 768, 1024, 1280, 1536),
}
CELLS = [(model, batch_size) for model, sizes in BATCH_SIZES.items() for batch_size in sizes]
LOGGED = {"BERT_Base": 256, "Inceptionv3": 1536, "SENet154": 1024}


@pytest.mark.parametrize(("model", "batch_size"), CELLS)
def test_every_trace_imports_and_survives_our_format(published, tmp_path, model, batch_size):
    trace = import_gpg(published / "traces" / model / str(batch_size))
    assert (trace.model, trace.batch_size) == (model, batch_size)
    assert all(kernel.fault_profile for kernel in trace.kernels)
    assert all(trace.uses)
    save_trace(trace, tmp_path / "trace.g10t")
    assert load_trace(tmp_path / "trace.g10t") == trace


@pytest.mark.parametrize(
    ("model", "inputs", "workspaces"),
    [
        ("BERT_Base", 53, 0),
        ("Inceptionv3", 2, 281),
        ("ResNet152", 1, 427),
        ("SENet154", 2, 661),
        ("VIT", 51, 2),
    ],
)
def test_kinds(published, model, inputs, workspaces):
    trace = import_gpg(published / "traces" / model / "512")
    kinds = Counter(tensor.kind for tensor in trace.tensors)
    assert (kinds[TensorKind.INPUT], kinds[TensorKind.WORKSPACE]) == (inputs, workspaces)
    written_by = {kernel.name for kernel in trace.kernels if trace.workspace_bytes(kernel)}
    assert all(name.startswith(("Conv2d_", "Dropout_")) for name in written_by)


@pytest.mark.parametrize("model", LOGGED)
def test_durations_are_those_of_the_published_log(published, model):
    trace = import_gpg(published / "traces" / model / str(LOGGED[model]))
    with gzip.open(published / "kernel_log" / f"{model}-g10.txt.gz", "rt") as log:
        logged = [re.match(r"0\+(\d+):\[\d+,\d+\]\((\d+),(\d+)\)", line) for line in log]
    found = [tuple(map(int, match.groups())) for match in logged if match]
    assert found == [
        (kernel.id, kernel.duration, kernel.fault_profile.all_faulting) for kernel in trace.kernels
    ]


@pytest.mark.parametrize(("model", "batch_size"), CELLS)
def test_published_plans_fit_their_traces(published, model, batch_size):
    directory = published / "traces" / model / str(batch_size)
    guides = sorted(directory.glob("prefetch_guide*"))
    trace = import_gpg(directory)
    for guide in guides:
        plan = read_prefetch_guide(guide)
        check_plan(plan, trace, str(guide))
        assert plan.moves
    assert len(guides) == len(list(directory.glob("*guide*")))

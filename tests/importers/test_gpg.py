"""Traces of the published simulator: the files' layout, on a small example of our own."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from g10sim.errors import TraceError
from g10sim.importers.gpg import import_gpg
from g10sim.trace.model import FaultProfile, Phase, TensorKind

TENSORS = [(0, 4096), (1, 8192), (0, 4096), (0, 8192), (0, 4096), (0, 4096), (0, 12288), (0, 8192)]
KERNELS = [
    ("LoadData_A0", "Layer", "Conv2d", 12, [], [0]),
    ("Conv2d_Forward", "Layer", "Conv2d", 1200, [1, 0], [6, 2]),
    ("makeLoss", "Layer", "Linear", 6, [2, 5], [4]),
    ("Conv2d_Backward_Weight", "Layer", "Conv2d", 2400, [4, 0], [7, 3]),
    ("Conv2d_Apply_Grad", "Layer", "Conv2d", 0, [1, 3], [1]),
]


def tensor_line(index):
    is_global, size_bytes = TENSORS[index]
    return (
        f"tensor{index} Is weight (global)?: {is_global}, Size in byte: {size_bytes}, Range:0--{size_bytes}"
    )


def kernel_lines(index, kernel, *, shape=True):
    name, parent, kind, cycles, inputs, outputs = kernel
    yield f"Kernel ID: {index}, Name: {name}"
    yield f"Parent {parent} ID:{index * 7}; Name:{' ' if parent == 'OP' else ''}{kind}"
    yield f"Execution Time: {cycles}"
    if shape:
        yield "(8,3,224,224)"
    yield "Input Tensors:"
    yield from map(tensor_line, inputs)
    yield "Output Tensors:"
    yield from map(tensor_line, outputs)
    yield "_" * 68


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


@pytest.fixture
def directory(tmp_path):
    found = tmp_path / "Tiny" / "8"
    found.mkdir(parents=True)
    write(found / "tensors.config", map(tensor_line, range(len(TENSORS))))
    write(found / "kernels.config", (line for i, k in enumerate(KERNELS) for line in kernel_lines(i, k)))
    return found


def write_times(directory, outputs_faulting, all_faulting):
    for name, times in (("InputPF", outputs_faulting), ("PF", all_faulting)):
        write(directory / f"cudnn8{name}.txt.gz", (f"{i:04d} {time} ms" for i, time in enumerate(times)))


def error_of(directory, **options):
    with pytest.raises(TraceError) as found:
        import_gpg(directory, **options)
    message = str(found.value)
    assert message.startswith(str(directory))
    return message.removeprefix(str(directory)).lstrip("/")


def test_everything_is_read(directory):
    trace = import_gpg(directory)
    assert (trace.model, trace.batch_size, trace.ticks_per_second) == ("Tiny", 8, 1_200_000_000)
    assert [tensor.size_bytes for tensor in trace.tensors] == [size for _, size in TENSORS]
    assert [tensor.persistent for tensor in trace.tensors] == [bool(is_global) for is_global, _ in TENSORS]
    kernel = trace.kernels[3]
    assert (kernel.name, kernel.duration, kernel.inputs, kernel.outputs) == (
        KERNELS[3][0],
        2400,
        (4, 0),
        (7, 3),
    )
    assert (kernel.layer, kernel.layer_type, kernel.fault_profile) == ("layer21", "Conv2d", None)
    assert "kernels.config" in trace.origin["source"]


def test_phases(directory):
    phases = [kernel.phase for kernel in import_gpg(directory).kernels]
    assert phases == [Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_kinds(directory):
    kinds = [tensor.kind for tensor in import_gpg(directory).tensors]
    assert kinds == [
        TensorKind.INPUT,
        TensorKind.WEIGHT,
        TensorKind.ACTIVATION,
        TensorKind.GRADIENT,
        TensorKind.TEMPORARY,
        TensorKind.INPUT,
        TensorKind.WORKSPACE,
        TensorKind.WORKSPACE,
    ]


def test_what_its_first_kernel_both_reads_and_writes_is_an_input(directory):
    loss = (*KERNELS[2][:5], [4, 5])
    kernels = [*KERNELS[:2], loss, *KERNELS[3:]]
    write(directory / "kernels.config", (line for i, k in enumerate(kernels) for line in kernel_lines(i, k)))
    assert import_gpg(directory).tensors[5].kind is TensorKind.INPUT


def test_workspaces_are_numbered_in_the_order_of_their_kernels(directory):
    # The kernel of the last tensor comes before that of the one before it.
    kernels = [*KERNELS[:1], (*KERNELS[1][:5], [7, 2]), KERNELS[2], (*KERNELS[3][:5], [6, 3]), KERNELS[4]]
    write(directory / "kernels.config", (line for i, k in enumerate(kernels) for line in kernel_lines(i, k)))
    kinds = [tensor.kind for tensor in import_gpg(directory).tensors[6:]]
    assert kinds == [TensorKind.TEMPORARY, TensorKind.WORKSPACE]


def test_transformer_layout_and_gzip(directory):
    kernels = [(name, "OP", *rest) for name, _, *rest in KERNELS]
    (directory / "kernels.config").unlink()
    lines = (line for i, k in enumerate(kernels) for line in kernel_lines(i, k, shape=False))
    write(directory / "kernels.config.gz", lines)
    kernel = import_gpg(directory).kernels[1]
    assert (kernel.layer, kernel.layer_type) == ("op7", "Conv2d")


def test_names_can_be_given(directory):
    trace = import_gpg(directory, model="Other", batch_size=16)
    assert (trace.model, trace.batch_size) == ("Other", 16)


def test_fault_profiles(directory):
    write_times(
        directory, ["0.000010", "0.5", "0.000000", "3.000001", "0.1"], ["1.0", "0.1", "0.2", "2.5", "0"]
    )
    profiles = [kernel.fault_profile for kernel in import_gpg(directory).kernels]
    # The first is at least the duration, the second at least the first.
    assert profiles == [
        FaultProfile(12, 1_200_000),
        FaultProfile(600_000, 600_000),
        FaultProfile(6, 240_000),
        FaultProfile(3_600_001, 3_600_001),
        FaultProfile(120_000, 120_000),
    ]


def test_faulting_times_are_truncated_to_whole_cycles(directory):
    # 0.0000015 ms are 1.8 cycles; the last kernel has no duration that would be longer.
    write_times(directory, ["1", "1", "1", "1", "0.0000015"], ["1", "1", "1", "1", "0.0000033"])
    assert import_gpg(directory).kernels[4].fault_profile == FaultProfile(1, 3)


def test_times_are_those_of_the_batch_size(directory):
    write_times(directory, ["1"] * 5, ["2"] * 5)
    assert import_gpg(directory, batch_size=9).kernels[0].fault_profile is None


def edit(directory, name, old, new):
    path = directory / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


EDITS = [
    (
        "tensors.config",
        "tensor1 Is",
        "tensor2 Is",
        "tensors.config: line 2: found tensor2; allowed: tensor1",
    ),
    (
        "tensors.config",
        "Size in byte: 8192",
        "Size in byte: -8192",
        "tensors.config: line 2: found 'tensor1 Is weight (global)?: 1, Size in byte: -8192, Ran...; "
        "allowed: "
        "'tensorN Is weight (global)?: 0|1, Size in byte: BYTES, Range:FROM--TO'",
    ),
    (
        "kernels.config",
        "Kernel ID: 1,",
        "Kernel ID: 2,",
        "kernels.config: line 9: found 'Kernel ID: 2, Name: Conv2d_Forward'; "
        "allowed: 'Kernel ID: 1, Name: NAME'",
    ),
    (
        "kernels.config",
        "Execution Time: 1200",
        "Execution Time: 1.5",
        "kernels.config: line 11: found 'Execution Time: 1.5'; allowed: 'Parent Layer|OP ID:N; Name:NAME', "
        "'Execution Time: CYCLES', a shape or, after the time, 'Input Tensors:'",
    ),
    (
        "kernels.config",
        "Output Tensors:",
        "Outputs:",
        "kernels.config: line 6: found 'Outputs:'; allowed: a tensor, 'Output Tensors:' or the line of "
        "underscores after the outputs",
    ),
    (
        "kernels.config",
        "tensor0 Is",
        "tensor8 Is",
        "kernels.config: line 7: found tensor8; allowed: tensor0 to tensor7 of tensors.config",
    ),
    (
        "kernels.config",
        "tensor0 Is",
        "tensor Is",
        "kernels.config: line 7: found 'tensor Is weight (global)?: 0, Size in byte: 4096, Range...; "
        "allowed: a line as in tensors.config",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), EDITS)
def test_messages(directory, name, old, new, message):
    edit(directory, name, old, new)
    assert error_of(directory) == message


def test_a_step_without_time_is_refused(directory):
    at_once = [(name, parent, kind, 0, *tensors) for name, parent, kind, _, *tensors in KERNELS]
    write(directory / "kernels.config", (line for i, k in enumerate(at_once) for line in kernel_lines(i, k)))
    assert error_of(directory).startswith(": found only kernels of duration 0; allowed: ")


def test_file_that_ends_early(directory):
    lines = (directory / "kernels.config").read_text().splitlines()
    write(directory / "kernels.config", lines[:-1])
    message = error_of(directory)
    assert (
        message
        == f"kernels.config: line {len(lines)}: found the end of the file; allowed: the rest of kernel 4"
    )


def test_missing_files(directory):
    (directory / "kernels.config").unlink()
    assert error_of(directory) == ": found no kernels.config; allowed: kernels.config or kernels.config.gz"
    missing = directory / "none"
    assert error_of(missing) == (
        ": found no such directory; allowed: one with kernels.config and tensors.config"
    )


def test_no_batch_size(directory):
    renamed = directory.rename(directory.parent / "big")
    assert error_of(renamed) == (
        ": found no batch size in the directory's name; allowed: a directory MODEL/BATCH, or "
        "the batch size as an option"
    )
    assert import_gpg(renamed, batch_size=4).batch_size == 4


def test_one_time_file_alone(directory):
    write_times(directory, ["1"] * 5, ["2"] * 5)
    (directory / "cudnn8PF.txt.gz").unlink()
    assert error_of(directory) == (
        ": found only one page-fault time file; allowed: cudnn8PF.txt as well, or neither"
    )


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["1"] * 4, "line 5: found the end of the file; allowed: a time for each of the 5 kernels"),
        (["1"] * 6, "line 6: found '0005 1 ms'; allowed: the end of the file"),
        (["1", "nan"], "line 2: found '0001 nan ms'; allowed: '0001 MILLISECONDS ms'"),
    ],
)
def test_bad_times(directory, times, message):
    write_times(directory, ["1"] * 5, times)
    assert error_of(directory) == f"cudnn8PF.txt.gz: {message}"


def test_truncated_gzip(directory):
    write(directory / "kernels.config.gz", (directory / "kernels.config").read_text().splitlines())
    (directory / "kernels.config").unlink()
    path = directory / "kernels.config.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert error_of(directory).endswith("; allowed: a whole gzip file")


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_changed_files_are_trace_errors_or_traces(directory, data):
    originals = {path: path.read_text() for path in directory.iterdir()}
    path = data.draw(st.sampled_from(sorted(originals)))
    text = originals[path]
    position = data.draw(st.integers(0, len(text) - 1))
    inserted = data.draw(st.text(max_size=3) | st.integers(0, 10**30).map(str))
    path.write_text(text[:position] + inserted + text[position + data.draw(st.integers(0, 30)) :])
    try:
        good = len(import_gpg(directory).kernels) >= 1
    except TraceError as error:
        good = "; allowed: " in str(error) and "\n" not in str(error)
    finally:
        path.write_text(text)
    assert good

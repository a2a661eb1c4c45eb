"""Chakra execution traces: encoded as the schema says, with times that do not drift."""

from typer.testing import CliRunner

from g10sim.cli.trace import app
from g10sim.trace.chakra import chakra_messages, save_chakra
from g10sim.trace.format import save_trace
from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, Trace

WEIGHT, RESULT, OUT = (
    Tensor(0, "weight", 300, TensorKind.WEIGHT, True),
    Tensor(1, "result", 8, TensorKind.ACTIVATION, False),
    Tensor(2, "out", 8, TensorKind.TEMPORARY, False),
)
TRACE = Trace(
    "net",
    1,
    1_000_000_000,
    (WEIGHT, RESULT, OUT),
    (
        Kernel(0, "mm", 1_600, (0,), (1,), Phase.FORWARD, "layer", flops=300, moved_bytes=308),
        Kernel(1, "relu", 700, (1,), (2,), Phase.FORWARD, moved_bytes=16),
        Kernel(2, "add", 700, (0, 1, 2), (2,), Phase.BACKWARD, moved_bytes=324),
    ),
)


def varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def fields(message):
    """Decode a message: its fields by number, numbers as integers and the rest as bytes."""
    found, place = {}, 0
    while place < len(message):
        tag, place = varint(message, place)
        value, place = varint(message, place)
        if tag & 7 == 2:
            value, place = message[place : place + value], place + value
        found.setdefault(tag >> 3, []).append(value)
    return found


def attributes(node):
    decoded = [fields(attribute) for attribute in node[10]]
    return {
        one[1][0].decode(): next(value[0] for number, value in one.items() if number != 1) for one in decoded
    }


def test_the_first_bytes_are_those_of_the_schema():
    message = next(chakra_messages(TRACE))
    # version (field 1), then an attribute (2) whose name is model and whose string_val (29) is net
    assert message == b"\x0a\x050.0.4" + b"\x12\x0d" + b"\x0a\x05model" + b"\xea\x01\x03net"


def test_a_node_has_what_a_kernel_has():
    _, first, second, third = (fields(message) for message in chakra_messages(TRACE))
    assert (first.get(1), first[2], first[3]) == ([0], [b"mm"], [4])
    assert 4 not in first
    assert (second[4], second[5]) == ([b"\x00"], [b"\x00"])
    assert (third[4], third[5]) == ([b"\x01"], [b"\x00\x01"])
    assert {number: text[0] for number, text in fields(first[8][0]).items()} == {
        1: b"[0]",
        2: b"[[300]]",
        3: b"['weight']",
    }
    found = attributes(first)
    assert (found["num_ops"], found["tensor_size"], found["duration_ns"]) == (300, 308, 1600)
    assert (found["is_cpu_op"], found["phase"], found["layer"]) == (0, b"forward", b"layer")


def test_roundings_do_not_add_up():
    nodes = [fields(message) for message in chakra_messages(TRACE)][1:]
    assert [(node[6][0], node[7][0]) for node in nodes] == [(0, 1), (1, 1), (2, 1)]  # 1.6, 0.7, 0.7 us


def test_the_command_writes_messages_behind_their_lengths(tmp_path):
    trace, out = tmp_path / "net.g10t", tmp_path / "net.et"
    save_trace(TRACE, trace)
    result = CliRunner().invoke(app, ["export", "chakra", str(trace), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "net.et: 3 nodes" in result.output.replace("\n", "")
    data, place, messages = out.read_bytes(), 0, []
    while place < len(data):
        length, place = varint(data, place)
        messages.append(data[place : place + length])
        place += length
    assert messages == list(chakra_messages(TRACE))


def test_a_file_appears_whole(tmp_path):
    save_chakra(TRACE, tmp_path / "net.et")
    assert [path.name for path in tmp_path.iterdir()] == ["net.et"]

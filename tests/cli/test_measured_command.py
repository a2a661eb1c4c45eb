"""Measured machines from the command line, with small rows."""

from pathlib import Path

LIST = """
sources: {book: A book}
defaults:
  source: book
  part: kernels
  machine: made up
  used: predicted
  unit: ms
  scan: {tensors: 4, size: 2 MiB, kernel: 1 ms}
  run: {system: a100-40g-pcie3-znand, policies: [base_uvm], workload: {iterations: 1}}
  measure: {of: quantity, column: exec_ms}
rows:
  - {name: exact, of: kernels, says: "as {it} is", measured: 6}
  - {name: far, of: paging, says: too long, measured: 1, lacks: a faster clock}
"""
SMALL = "system: {preset: a100-40g-pcie3-znand, gpu: {memory: 1 MiB}}"


def test_rows_beside_what_is_simulated(g10sim, here):
    Path("list.yaml").write_text(LIST)
    ended = g10sim("measured", "--list", "list.yaml", "--quick", "-o", "out")
    assert (ended.code, ended.err) == (0, "")
    for text in ("as {it} is", "far: a faster clock; base_uvm: computing", "within 1.25x", "50%"):
        assert text in ended.out
    assert Path("out/measured.csv").is_file()
    ended = g10sim("measured", "--list", "list.yaml", "--quick", "--class", "kernels", "-o", "out")
    assert "too long" not in ended.out


def test_rows_without_a_trace_are_left_out_of_a_quick_run(g10sim, here):
    text = LIST.replace("lacks: a faster clock", "scan: null, capture: timm:none, gpu: v100")
    Path("list.yaml").write_text(text)
    ended = g10sim("measured", "--list", "list.yaml", "--quick", "-o", "out")
    assert ended.code == 0
    assert "1 row left out: its trace does not ship" in ended.out


def test_a_row_that_cannot_run_fails_the_command(g10sim, here):
    Path("list.yaml").write_text(LIST.replace("system: a100-40g-pcie3-znand", SMALL))
    ended = g10sim("measured", "--list", "list.yaml", "--class", "paging", "--quick", "-o", "out")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "far failed: " in ended.err


def test_bad_input(g10sim, here):
    Path("list.yaml").write_text(LIST)
    ended = g10sim("measured", "--list", "list.yaml", "--class", "kernel", "--quick", "-o", "out")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--class: found 'kernel' (did you mean 'kernels'" in ended.err
    ended = g10sim("measured", "--list", "nothing.yaml", "--quick", "-o", "out")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert not Path("out").exists()

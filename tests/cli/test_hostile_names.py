"""Names from traces, plug-ins and configurations never control a terminal; what is lost is told."""

from dataclasses import replace

import pytest

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

HOSTILE = "x\x1b]0;title\x07\x1b[2J\u202ey"
PLUGIN = f"""
from g10sim.policies.interface import Policy


class Named(Policy):
    '''A policy with a label that would clear the screen.'''

    name, label, paper = "named", {HOSTILE!r}, {HOSTILE!r}
"""


def check_printable(ended, code=0):
    assert ended.code == code, ended.err
    text = (ended.out + ended.err).replace("\n", "")
    assert text.isprintable()
    return text


@pytest.mark.slow
def test_no_command_hands_controls_on(g10sim, config, here):
    trace = chain(8)
    kernels = tuple(replace(kernel, name=HOSTILE, layer=HOSTILE) for kernel in trace.kernels)
    tensors = tuple(replace(tensor, name=HOSTILE) for tensor in trace.tensors)
    hostile = replace(trace, model=HOSTILE, kernels=kernels, tensors=tensors, origin={HOSTILE: HOSTILE})
    save_trace(hostile, here / "chain.g10t")
    (here / "labelled.py").write_text(PLUGIN)
    name = config(policies=["base_uvm", "labelled:Named"], record=["kernels", "migrations"])
    save_trace(hostile, here / "chain.g10t")
    check_printable(g10sim("explain", "out", "--cell", 0), code=2)
    seen = [
        check_printable(g10sim("run", name)),
        check_printable(g10sim("trace", "info", "chain.g10t")),
        check_printable(g10sim("trace", "check", "chain.g10t")),
        check_printable(g10sim("explain", "out", "--cell", 0)),
        check_printable(g10sim("explain", "out", "--cell", 0, "--kernel", 3)),
        check_printable(g10sim("run", name, "--set", f"name={HOSTILE}"), code=2),
        check_printable(g10sim("run", name, "--set", f"compat={HOSTILE}"), code=2),
    ]
    assert [r"\x1b[2J" in text for text in seen] == [True] * len(seen)
    assert (here / "out" / "results.csv").read_text().replace("\n", "").isprintable()


@pytest.mark.slow
def test_durations_lost_to_whole_cycles_are_told_once_by_run_and_info(g10sim, config, here):
    workload = {"trace": "chain.g10t", "iterations": 2}
    name = config(workload=workload, sweep={"system.gpu.clock": ["1 GHz", "1.2 GHz"]})
    trace = chain(8, forward_ticks=101, backward_ticks=101, optimizer_ticks=101)
    save_trace(replace(trace, ticks_per_second=10**9), here / "chain.g10t")
    cut = "whole cycles of 1.2 GHz cut 0.17% off the durations of kernels; a faster clock keeps them"
    told = [f"warning: chain.g10t: {cut}"]  # 121.2 cycles become 121
    assert g10sim("run", name).err.splitlines() == told
    assert g10sim("trace", "info", "chain.g10t", "--system", "a100-40g-pcie3-znand").err.splitlines() == told
    save_trace(chain(8), here / "chain.g10t")
    assert g10sim("run", name).err == g10sim("trace", "info", "chain.g10t").err == ""

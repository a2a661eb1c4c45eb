"""Keys of a configuration that are judged by what they do: those that the user wrote, over all cells."""

import pytest

from g10sim.config.data import data_path
from g10sim.config.document import load_document, parse_document
from g10sim.config.load import with_settings, with_values
from g10sim.config.schema import run_schema
from g10sim.errors import ConfigError
from g10sim.experiment.expand import expand
from g10sim.experiment.run import run_experiment


def run(trace_file, text="", system="8xa100-40g-nvswitch-node", policies="base_uvm"):
    """A configuration with more lines below the third."""
    head = f"workload: {{trace: {trace_file}}}\nsystem: {system}\npolicies: [{policies}]\n"
    return parse_document(head + text, "run.yaml")


def refusal(document):
    with pytest.raises(ConfigError) as refused:
        expand(document)
    return str(refused.value)


def test_the_message_names_the_line_or_the_option_with_what_was_found_and_what_is_allowed(trace_file):
    assert refusal(run(trace_file, "compat:\n  batch_pages: 80\n")) == (
        "run.yaml:5: compat.batch_pages: found 80, which does nothing here: no pages move in batches; "
        "allowed: with transfers batched and a policy that moves pages, or leaving it out"
    )
    option = "--set compat.copy_latency=none"
    changed = with_settings(run(trace_file), [option.removeprefix("--set ")])
    assert refusal(changed).startswith(f"{option}: compat.copy_latency: found 'none', which does nothing")
    beside_a_trace = with_values(run(trace_file), {"workload.sharing": {"slowdown": 1.0}})
    assert "workload.sharing: found a mapping, which does nothing here: one job runs" in refusal(
        beside_a_trace
    )


def test_what_a_preset_fills_in_is_not_judged(trace_file):
    expand(run(trace_file))  # with NVLink, though nothing goes from GPU to GPU
    expand(run(trace_file, "compat: gpg\n", "a100-40g-pcie3-znand"))
    expand(run(trace_file, system="{preset: 8xa100-40g-nvswitch-node, gpu: {memory: 16 GiB}}"))
    own = "{preset: 8xa100-40g-nvswitch-node, nvlink: {bandwidth: 100 GB/s}}"
    assert "system.nvlink: found a mapping" in refusal(run(trace_file, system=own))


def test_a_run_of_the_ideal_alone_keeps_what_other_policies_need(trace_file):
    pinned = "{preset: 8xa100-40g-nvswitch-node, host: {pinned: {limit: 1 GiB}}}"
    compat = "compat: {recency: use}\n"
    expand(run(trace_file, compat, pinned, policies="ideal"))
    assert "compat.recency: found" in refusal(run(trace_file, compat, pinned, policies="ideal, vdnnpp"))


def test_without_a_value_a_key_is_not_written(trace_file):
    expand(run(trace_file, system="{preset: 8xa100-40g-nvswitch-node, nvlink: null}"))


def test_a_key_that_may_not_be_left_out_is_accepted(trace_file):
    preset = load_document(data_path("configs", "ssds", "intel-optane-p5800x-1.6tb.yaml")).data
    drive = {key: preset[key] for key in preset if key not in ("name", "description", "sources")}
    tier = {"name": "disk", "kind": "ssd", **drive}  # overwritten in place, and yet it needs a `collection`

    def tiered(entry):
        return with_values(
            run(trace_file, system="{preset: a100-40g-pcie3-znand}"), {"system.tiers": ["host", entry]}
        )

    expand(tiered(tier))
    told = refusal(tiered({**tier, "trim": False}))
    assert ": system.tiers.1.trim: found False, which does nothing here" in told


def test_one_policy_or_one_swept_value_for_which_a_key_counts_is_enough(trace_file):
    pinned = "{preset: 8xa100-40g-nvswitch-node, host: {pinned: {limit: 1 GiB}}}"
    assert "system.host.pinned: found a mapping" in refusal(run(trace_file, system=pinned))
    expand(run(trace_file, system=pinned, policies="base_uvm, vdnnpp"))
    swept = "sweep:\n  compat.transfers: [fluid, batched]\ncompat: {batch_pages: 80}\n"
    expand(run(trace_file, swept, "a100-40g-pcie3-znand"))


def test_a_swept_key_that_does_nothing_in_any_combination_is_refused(trace_file):
    swept = "sweep:\n  system.gpu.memory: [1 GiB, 2 GiB]\n  compat.batch_pages: [60, 80]\n"
    assert refusal(run(trace_file, swept)).startswith("run.yaml:6: compat.batch_pages: found 60, which ")
    swept, policy = "sweep:\n  policies.0.seed: [1, 2]\n", "{name: autoswap}"
    assert "policies.0.seed: found 1" in refusal(run(trace_file, swept, policies=policy))
    expand(run(trace_file, swept + "  policies.0.score: [swdoa, combined]\n", policies=policy))


def test_the_configuration_that_a_run_writes_out_can_be_run(trace_file, tmp_path):
    run_experiment(run(trace_file, "compat: {preset: gpg, transfers: fluid}\n"), output=tmp_path)
    again = load_document(tmp_path / "config.yaml")
    assert again.data["compat"]["copy_memory"] == "published"
    assert again.data["system"]["nvlink"]
    assert run_experiment(again, output=tmp_path).reused == 1


def test_the_schema_says_when_a_key_counts():
    definitions = run_schema()["$defs"]
    slowdown = definitions["SharingSpec"]["properties"]["slowdown"]["description"]
    assert slowdown.endswith("; counts with compute concurrent")
    for name in ("FlashSsdSpec", "FlashTierSpec", "FlashSsdSpecChanges"):
        assert definitions[name]["properties"]["trim"]["description"].endswith("; counts without in_place")


@pytest.mark.parametrize(
    ("ssd", "message"),
    [
        ("{write_cache: {capacity: 1 GB}}", "system.ssd.write_cache.sustained: found nothing"),
        ("{write_cache: {capacity: 1, sustained: 1 GB/s}}", "system.ssd.write_cache.capacity: found 1 "),
        (
            "{write_cache: {capacity: 1 GB, sustained: 9 GB/s}}",
            "found a mapping, which does nothing here: wr",
        ),
        ("{preset: samsung-990-pro-2tb, write_cache: {}}", "system.ssd.write_cache: found an unknown key"),
    ],
)
def test_a_cache_of_writes_needs_a_rate_behind_it_that_is_lower(trace_file, ssd, message):
    assert message in refusal(run(trace_file, system=f"{{preset: a100-80g-pcie4-nvme, ssd: {ssd}}}"))


def test_pageable_memory_is_refused_where_a_loader_pins_all(trace_file):
    system = (
        "{preset: 8xa100-40g-nvswitch-node, host: {pinned: {pin_latency: 1 us, pageable_bandwidth: 1 GB/s}}}"
    )
    assert "pageable_bandwidth: found" in refusal(run(trace_file, system=system, policies="stream"))
    expand(run(trace_file, system=system, policies="{name: stream, pinned: false}"))

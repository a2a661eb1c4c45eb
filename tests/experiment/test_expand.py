from dataclasses import replace

import pytest

from g10sim.config.document import Document
from g10sim.errors import ConfigError, PolicyError
from g10sim.experiment.cells import make_policy
from g10sim.experiment.expand import expand
from g10sim.experiment.run import run_experiment
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import save_plan
from g10sim.trace.format import save_trace
from g10sim.trace.model import Device
from g10sim.trace.synthetic import chain


def cells(config, **changes):
    return expand(Document({**config, **changes}, "")).cells


def test_order_is_traces_then_combinations_then_policies(config, tmp_path):
    other = tmp_path / "other.g10t"
    save_trace(chain(4), other)
    names = [config["workload"]["trace"], str(other)]
    found = cells(
        config,
        workload={"trace": names},
        policies=["ideal", "base_uvm"],
        sweep={"system.host.memory": ["0 GiB", "4 MiB"], "seed": [1, 2]},
    )
    assert len(found) == 16
    assert [cell.index for cell in found] == list(range(16))
    assert [cell.jobs[0].trace.name for cell in found] == [names[0]] * 8 + [names[1]] * 8
    swept = [tuple(cell.swept.values()) for cell in found[:8:2]]
    assert swept == [("0 GiB", "1"), ("0 GiB", "2"), ("4 MiB", "1"), ("4 MiB", "2")]
    assert [cell.label for cell in found[:4]] == ["ideal", "base_uvm"] * 2
    assert [cell.system.host.memory for cell in found[:8:2]] == [0, 0, 4 * 2**20, 4 * 2**20]
    assert [cell.seed for cell in found[:8:2]] == [1, 2, 1, 2]


def test_several_seeds_are_cells_next_to_each_other(config):
    found = cells(
        config,
        policies=["ideal", "base_uvm"],
        seed=[2, 0],
        workload={**config["workload"], "variation": {"magnitude": 0.1}},
        sweep={"workload.variation.magnitude": [0.0, 0.2]},
    )
    assert [(cell.variation.magnitude, cell.label, cell.seed) for cell in found] == [
        (magnitude, label, seed)
        for magnitude in (0.0, 0.2)
        for label in ("ideal", "base_uvm")
        for seed in (2, 0)
    ]
    assert len({cell.key for cell in found}) == 8


def test_a_swept_parameter_concerns_only_its_policy(config):
    found = cells(config, policies=["ideal", "deepum"], sweep={"policies.1.look_ahead": [2, 4]})
    assert [(cell.label, cell.swept["policies.1.look_ahead"]) for cell in found] == [
        ("ideal", ""),
        ("deepum", "2"),
        ("deepum", "4"),
    ]
    assert [dict(cell.policy) for cell in found[1:]] == [
        {"name": "deepum", "look_ahead": 2},
        {"name": "deepum", "look_ahead": 4},
    ]


def test_policies_of_one_name_are_told_apart(config):
    found = cells(config, policies=["deepum", {"name": "deepum", "look_ahead": 2}, "ideal"])
    assert [cell.label for cell in found] == ["deepum", "deepum(look_ahead=2)", "ideal"]


def test_patterns_of_traces(config, tmp_path):
    for layers in (3, 2):
        save_trace(chain(layers), tmp_path / f"layers{layers}.g10t")
    found = cells(config, workload={"trace": f"{tmp_path}/layers*.g10t"}, policies=["ideal"])
    assert [cell.jobs[0].trace.model for cell in found] == ["chain2", "chain3"]


def test_equal_cells_have_equal_keys_and_others_do_not(config, tmp_path):
    (base,) = cells(config, policies=["base_uvm"])
    renamed = {**config["system"], "name": "other", "description": "other words"}
    (same,) = cells(config, policies=["base_uvm"], name="other", output="elsewhere", system=renamed)
    assert same.key == base.key
    other = tmp_path / "other.g10t"
    save_trace(chain(4), other)
    changes = [
        {"seed": 1},
        {"record": ["kernels"]},
        {"compat": "gpg"},
        {"policies": ["ideal"]},
        {"workload": {**config["workload"], "iterations": 3}},
        {"workload": {"trace": str(other)}},
        {"workload": {**config["workload"], "variation": {"magnitude": 0.1}}},
        {"workload": {**config["workload"], "variation": {"magnitude": 0.1, "distribution": "normal"}}},
        {"system": {**config["system"], "host": {"memory": "5 MiB"}}},
    ]
    keys = {cells(config, **{"policies": ["base_uvm"], **change})[0].key for change in changes}
    assert len(keys | {base.key}) == len(changes) + 1
    assert expand(Document({**config, "policies": ["base_uvm"]}, ""), check=True).cells[0].key != base.key


def test_a_changed_plan_file_changes_the_key_of_its_result(config, tmp_path):
    plan = tmp_path / "empty.g10p"
    save_plan(MigrationPlan(()), plan)
    replay = {**config, "policies": [{"name": "replay", "plan_file": str(plan)}]}

    def run():
        outcome = run_experiment(Document(replay, ""), output=tmp_path / "out")
        return outcome.reused, outcome.results[0].key

    reused, before = run()
    assert reused == 0
    assert run() == (1, before)
    save_plan(MigrationPlan((), planner="somebody"), plan)
    reused, after = run()
    assert reused == 0
    assert after != before


def test_a_policy_that_takes_a_seed_gets_that_of_the_run():
    name = "experiment.plugins:Seeded"
    assert make_policy({"name": name}, 5).parameters() == {"seed": 5}
    assert make_policy({"name": name, "seed": 1}, 5).parameters() == {"seed": 1}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"policies": ["ideel"]},
            ConfigError,
            r"policies.0: unknown policy 'ideel' \(did you mean 'ideal'\?\)",
        ),
        (
            {"policies": ["ideal", {"name": "deepum", "lookahead": 3}]},
            ConfigError,
            r"policies.1.lookahead: policy 'deepum': unknown parameter .*mean 'look_ahead'",
        ),
        (
            {"policies": [{"name": "deepum", "look_ahead": 0}]},
            ConfigError,
            r"policies.0.look_ahead: policy 'deepum': look_ahead: found 0; allowed: a whole number from 1",
        ),
        ({"policies": [{"name": "replay"}]}, ConfigError, r"policies.0: policy 'replay': .*plan_file"),
        (
            {"policies": [{"name": "replay", "plan_file": "none.g10p"}]},
            ConfigError,
            r"policies.0.plan_file: found 'none.g10p', which is no file",
        ),
        (
            {"policies": [{"name": "replay", "plan_file": __file__}]},
            ConfigError,
            r"policies.0.plan_file: .*test_expand.py: line 1: found .*; allowed: one JSON object",
        ),
        (
            {"policies": ["ideal", {"name": "deepum", "order_file": __file__}]},
            ConfigError,
            r"policies.1.order_file: .*test_expand.py: line 1: found .*; allowed: one JSON object",
        ),
        (
            {"policies": ["experiment.plugins:Broken"]},
            ConfigError,
            r"policies.0: .* raised KeyError: 'no luck'",
        ),
        (
            {"policies": ["nowhere:Policy"]},
            ConfigError,
            r"policies.0: .*'nowhere:Policy': cannot load",
        ),
        (
            {"workload": {"trace": "none.g10t"}},
            ConfigError,
            r"workload.trace.0: found 'none.g10t', which",
        ),
        (
            {"workload": {"jobs": [{"trace": "none.g10t"}]}},
            ConfigError,
            r"workload.jobs.0.trace: found 'none.g10t', which is no file",
        ),
        (
            {"sweep": {"system.host.memory": ["1 GiB", "1"]}},
            ConfigError,
            r"system.host.memory: found '1' without a unit",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_runs(config, changes, error, message):
    with pytest.raises(error, match=message):
        cells(config, **changes)


def test_a_policy_error_is_one_of_configuration_and_keeps_its_cause(config):
    with pytest.raises(ConfigError) as caught:
        cells(config, policies=["ideel"])
    assert isinstance(caught.value.__cause__, PolicyError)


def test_more_cells_than_the_limit_are_refused_with_their_number(config):
    changes = {
        "policies": ["ideal", {"name": "deepum", "look_ahead": 2}],
        "seed": [3, 4, 5],
        "sweep": {"policies.1.look_ahead": [4, 8, 4], "system.host.memory": ["0 GiB", "4 MiB"]},
    }
    document = Document({**config, **changes}, "")
    assert len(expand(document, limit=18).cells) == 18
    with pytest.raises(ConfigError, match="sweep: found 18 cells; allowed: up to 17, or more with --yes"):
        expand(document, limit=17)
    swept = Document({**config, **changes, "sweep": {"seed": [[1, 2], 7, 7]}}, "")
    assert len(expand(swept, limit=6).cells) == 6
    with pytest.raises(ConfigError, match="found 6 cells"):
        expand(swept, limit=5)


def test_a_kernel_on_a_cpu_that_the_system_lacks_is_refused_before_anything_runs(config, tmp_path):
    trace = chain(4)
    kernels = (*trace.kernels[:-1], replace(trace.kernels[-1], device=Device.CPU))
    save_trace(replace(trace, kernels=kernels), tmp_path / "offloaded.g10t")
    workload = {"trace": str(tmp_path / "offloaded.g10t")}
    with pytest.raises(ConfigError) as found:
        cells(config, workload=workload, system={**config["system"], "cpu": None})
    last = len(kernels) - 1
    assert str(found.value) == (
        f"system.cpu: found nothing, and kernel {last} (Update) of 'chain4' runs on the CPU; "
        "allowed: a mapping with optimizer_rate"
    )
    assert cells(
        config, workload=workload, **{"system": {**config["system"], "cpu": {"optimizer_rate": "1 G/s"}}}
    )

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from g10sim.config.data import data_path
from g10sim.config.document import parse_document
from g10sim.config.load import load_run, run_config, with_policies, with_settings, with_values
from g10sim.config.run import RunConfig
from g10sim.config.schema import run_schema
from g10sim.errors import ConfigError, notes_of

WHOLE = """\
name: overall
workload:
  trace: [a.g10t, b.g10t]
  iterations: 3
system:
  preset: a100-40g-pcie3-znand
  host:
    memory: 64 GiB
policies: [ideal, base_uvm, {name: replay, plan_file: x.g10p}]
sweep:
  system.host.memory: [0 GiB, 16 GiB]
  policies.2.plan_file: [x, y]
seed: 7
record: [summary, kernels]
compat: {preset: gpg, recency: use}
output: results/overall
"""

JOBS = """\
workload:
  jobs:
    - {trace: a.g10t, gpu: 1, iterations: 3}
    - {trace: b.g10t, arrival: 2 ms}
system: 4xa100-40g-pcie4-shared
policies: ideal
"""


def config(text):
    return run_config(parse_document(text, "run.yaml"))


def test_a_whole_configuration():
    run = config(WHOLE)
    assert run.workload.trace == ("a.g10t", "b.g10t")
    assert run.workload.iterations == 3
    assert run.system.host.memory == 64 * 2**30
    assert [policy.as_mapping() for policy in run.policies] == [
        {"name": "ideal"},
        {"name": "base_uvm"},
        {"name": "replay", "plan_file": "x.g10p"},
    ]
    assert run.tables == ("kernels",)
    assert (run.compat.transfers, run.compat.recency) == ("batched", "use")


def test_defaults():
    run = config("workload: {trace: a.g10t}\nsystem: h100-80g-pcie5-nvme\npolicies: [ideal]\n")
    assert (run.name, run.seed, run.workload.iterations, run.record) == ("run", 0, "auto", ("summary",))
    assert run.compat.transfers == "fluid"


@pytest.mark.parametrize("iterations", [1, 10_000])
def test_both_ends_of_the_number_of_iterations_are_allowed(iterations):
    run = config(BASE.replace("a.g10t", f"a.g10t\n  iterations: {iterations}"))
    assert run.workload.iterations == iterations


def test_jobs():
    jobs = config(JOBS.replace("policies: ideal", "policies: [ideal]")).workload.jobs
    assert [(job.gpu, job.iterations, job.arrival) for job in jobs] == [(1, 3, 0), (0, 2, 2 * 10**9)]


BASE = "workload:\n  trace: a.g10t\nsystem: h100-80g-pcie5-nvme\npolicies: [ideal]\n"


def varied(variation):
    return BASE.replace("a.g10t", f"a.g10t\n  variation: {variation}")


def test_variation_and_several_seeds():
    run = config(varied("{distribution: normal, magnitude: 0.1}") + "seed: [3, 1]\n")
    assert (run.workload.variation.distribution, run.workload.variation.magnitude) == ("normal", 0.1)
    assert run.seeds == (3, 1)
    again = RunConfig.model_validate(yaml.safe_load(yaml.safe_dump(run.model_dump(mode="json"))))
    assert again == run
    assert config(varied("{magnitude: 0}")).workload.variation.distribution == "uniform"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BASE + "polices: [x]\n",
            r"^run.yaml:5: polices: found an unknown key \(did you mean 'policies'\?\); allowed: ",
        ),
        (BASE + "'': [x]\n", r"^run.yaml:5: '': found an unknown key; allowed: "),
        (
            "workload: {trace: a}\nsystem: h100-80g-pcie5-nvme\n",
            r"^run.yaml: policies: found nothing \(the key is missing\)",
        ),
        (BASE.replace("trace:", "trase:"), r"^run.yaml:2: workload.trase: .*did you mean 'trace'"),
        (BASE.replace("a.g10t", "[]"), r"^run.yaml:1: workload: found neither 'trace' nor 'jobs'"),
        (BASE.replace("a.g10t", "[1]"), r"^run.yaml:2: workload.trace.0: found 1; allowed: a valid string"),
        (
            BASE.replace("a.g10t", "a.g10t\n  iterations: 0"),
            r"^run.yaml:3: workload.iterations: found 0; allowed: auto, or a whole number from 1",
        ),
        (
            BASE.replace("a.g10t", "a.g10t\n  iterations: 2.5"),
            r"^run.yaml:3: workload.iterations: found 2.5; allowed: auto, or a whole",
        ),
        (
            BASE.replace("a.g10t", "a.g10t\n  replicas: 4"),
            r"^run.yaml:3: workload.replicas: found 4; allowed: 1 to 1, one on a GPU",
        ),
        (
            BASE.replace("a.g10t", "a.g10t\n  replica: 4"),
            r"^run.yaml:3: workload.replica: found an unknown key \(did you mean 'replicas'\?\)",
        ),
        (
            BASE.replace("a.g10t", "a.g10t\n  gradient_exchange: rings"),
            r"^run.yaml:3: workload.gradient_exchange.method: found 'rings'.*; allowed: ",
        ),
        (
            BASE.replace("a.g10t", "a.g10t\n  jobs: [{trace: b}]"),
            r"^run.yaml:1: workload: found both 'trace' and 'jobs'",
        ),
        (
            BASE.replace("[ideal]", "[]"),
            r"^run.yaml:4: policies: found an empty list; allowed: at least one entry",
        ),
        (BASE.replace("[ideal]", "ideal"), r"^run.yaml:4: policies: found 'ideal'; allowed: a list"),
        (BASE.replace("[ideal]", "[ideal, ideal]"), r"^run.yaml:4: policies: found policy 'ideal' twice"),
        (BASE.replace("[ideal]", "[{mode: x}]"), r"^run.yaml:4: policies.0.name: found nothing"),
        (
            BASE + "record: [kernel]\n",
            r"^run.yaml:5: record.0: found 'kernel' \(did you mean 'kernels'\?\); allowed: .*kernels, ",
        ),
        (BASE + "seed: -1\n", r"^run.yaml:5: seed: found -1; allowed: a whole number from 0 to"),
        (BASE + "seed: true\n", r"^run.yaml:5: seed: found True; allowed: a whole number from 0"),
        (BASE + "seed: [0, 1.5]\n", r"^run.yaml:5: seed: found 1.5; allowed: a whole number from 0"),
        (BASE + "seed: [2, 1, 2]\n", r"^run.yaml:5: seed: found 2 twice; allowed: every seed once"),
        (BASE + "seed: []\n", r"^run.yaml:5: seed: found an empty list; allowed: at least one entry"),
        (
            varied("{distribution: gauss, magnitude: 0.1}"),
            r"^run.yaml:3: workload.variation.distribution: found 'gauss'; allowed: normal, uniform",
        ),
        (
            varied("{magnitude: 1.0}"),
            r"^run.yaml:3: workload.variation.magnitude: found 1.0; allowed: less than 1",
        ),
        (
            varied("{distribution: normal, magnitude: -0.1}"),
            r"^run.yaml:3: workload.variation.magnitude: found -0.1; allowed: greater than or equal to 0",
        ),
        (varied("{magnitude: .nan}"), r"^run.yaml:3: workload.variation.magnitude: found nan; allowed: "),
        (varied("{magnitude: '0.1'}"), r"^run.yaml:3: workload.variation.magnitude: found '0.1'; allowed: "),
        (
            varied("{distribution: normal}"),
            r"^run.yaml:3: workload.variation.magnitude: found nothing .*; allowed: how far the factors",
        ),
        (
            varied("{magnitud: 0.1}"),
            r"^run.yaml:3: workload.variation.magnitud: found an unknown key \(did you mean 'magnitude'\?\)",
        ),
        (varied("0.1"), r"^run.yaml:3: workload.variation: found 0.1; allowed: a mapping with the keys dis"),
        (BASE + "compat: gpu\n", r"^run.yaml:5: compat: found unknown preset 'gpu' \(did you mean 'gpg'\?\)"),
        (
            BASE + "compat:\n  recency: used\n",
            r"^run.yaml:6: compat.recency: found 'used' \(did you mean 'use'\?\); allowed: arrival, use",
        ),
        (BASE + "sweep:\n  seed: []\n", r"^run.yaml:5: sweep: found no values for 'seed'"),
        (BASE + "sweep:\n  seed: 3\n", r"^run.yaml:6: sweep.seed: found 3; allowed: a list"),
        (
            BASE + "sweep:\n  output: [a]\n",
            r"^run.yaml:6: sweep.output: found a key that cannot be swept.*; allowed: keys of compat",
        ),
        (BASE + "sweep:\n  policies: [a]\n", r"^run.yaml:6: sweep.policies: found a whole list"),
        (
            BASE + "sweep:\n  policies.1.x: [a]\n",
            r"^run.yaml:6: sweep.policies.1.x: found 'policies.1.x'; allowed: .*position 0 to 0",
        ),
        (
            JOBS.replace("gpu: 1", "gpu: 4").replace(": ideal", ": [ideal]"),
            r"^run.yaml:3: workload.jobs.0.gpu: found 4; allowed: 0 to 3",
        ),
        (JOBS.replace("2 ms", "2"), r"^run.yaml:4: workload.jobs.1.arrival: found 2 without a unit"),
    ],
)
def test_bad_configurations_name_line_path_value_and_choices(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config(text)
    assert "allowed: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_problem_is_named_at_once():
    text = (
        BASE.replace("trace:", "traec:").replace("system: ", "sistem: ") + "compat: gpgg\nsystem: nothing\n"
    )
    with pytest.raises(ConfigError) as caught:
        config(text)
    found = [text.split(": found ")[0] for text in (str(caught.value), *caught.value.__notes__)]
    assert found == [
        "run.yaml:5: compat",
        "run.yaml:6: system",
        "run.yaml:2: workload.traec",
        "run.yaml:3: sistem",
    ]


def test_a_list_with_a_wrong_entry_is_not_told_to_be_empty():
    with pytest.raises(ConfigError, match=r"policies\.0\.name: found nothing") as caught:
        config(BASE.replace("policies: [ideal]", "policies: [{nam: g10}]"))
    assert not any("empty list" in text for text in (str(caught.value), *notes_of(caught.value)))


def test_settings_are_laid_over_the_file():
    document = with_settings(
        parse_document(WHOLE, "run.yaml"),
        [
            "system.host.memory=8 GiB",
            "policies.1.name=deepum",
            "seed=1",
            "sweep.seed=[1, 2]",
            "compat.recency=arrival",
        ],
    )
    run = run_config(document)
    assert run.system.host.memory == 8 * 2**30
    assert run.policies[1].name == "deepum"
    assert run.sweep["seed"] == (1, 2)
    assert run.compat.recency == "arrival"


def test_a_whole_section_that_is_laid_over_hides_the_lines_below_it():
    document = with_settings(parse_document(WHOLE, "run.yaml"), ["workload={trace: b.g10t, iterations: 0}"])
    with pytest.raises(ConfigError, match=r"^--set workload=.*: workload\.iterations: found 0; allowed"):
        run_config(document)


def test_policies_are_added_once_after_those_of_the_file():
    document = with_policies(parse_document(WHOLE, "run.yaml"), ["g10", "base_uvm"])
    assert [policy.name for policy in run_config(document).policies] == ["ideal", "base_uvm", "replay", "g10"]
    assert with_policies(document, []) is document


def test_settings_open_short_forms():
    document = with_settings(
        parse_document(BASE + "compat: gpg\n", "run.yaml"),
        [
            "system.host.memory=8 GiB",
            "policies.0.order_file=x",
            "compat.recency=use",
            "workload.trace=[b, c]",
        ],
    )
    run = run_config(document)
    assert (run.system.name, run.system.host.memory) == ("h100-80g-pcie5-nvme", 8 * 2**30)
    assert run.policies[0].as_mapping() == {"name": "ideal", "order_file": "x"}
    assert (run.compat.transfers, run.compat.recency) == ("batched", "use")
    assert run.workload.trace == ("b", "c")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed", r"^--set seed: found no 'key=value'"),
        ("=1", r"^--set =1: found no 'key=value'"),
        ("seed=[1", r"^--set seed=\[1: .*allowed: valid YAML"),
        ("sed=1", r"^--set sed=1: sed: found an unknown key \(did you mean 'seed'\?\)"),
        ("seed=x", r"^--set seed=x: seed: found 'x'; allowed: a whole number from 0"),
        ("seed.x=1", r"^--set seed.x=1: seed: found 0; allowed: a mapping with the key 'x'"),
        (
            "policies.5=x",
            r"^--set policies.5=x: policies: found '5' for an entry of a list; allowed: a position from 0 ",
        ),
        (
            "system.host.memory=64",
            r"^--set system.host.memory=64: system.host.memory: found 64 without a unit",
        ),
    ],
)
def test_bad_settings_name_the_option(setting, message):
    with pytest.raises(ConfigError, match=message):
        run_config(with_settings(parse_document(BASE + "seed: 0\n", "run.yaml"), [setting]))


def test_a_swept_value_is_blamed_on_its_line():
    document = parse_document(BASE + "sweep:\n  system.host.memory: [1 GiB, 2]\n", "run.yaml")
    changed = with_values(document, {"system.host.memory": 2}, ("sweep",))
    with pytest.raises(ConfigError, match=r"^run.yaml:6: system.host.memory: found 2 without a unit"):
        run_config(changed)
    assert document.data["system"] == "h100-80g-pcie5-nvme"


def test_the_name_of_the_file_names_the_run(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(BASE)
    assert run_config(load_run(path)).name == "small"


def check_schema(data):
    return [error.message for error in Draft202012Validator(run_schema()).iter_errors(data)]


@pytest.mark.slow
def test_the_json_schema_is_valid_and_accepts_what_the_loader_accepts():
    Draft202012Validator.check_schema(run_schema())
    several = varied("{magnitude: 0.1}") + "seed: [0, 1]\n"
    for text in (WHOLE, BASE, several, JOBS.replace(": ideal", ": [ideal]")):
        assert check_schema(yaml.safe_load(text)) == []
    for path in data_path("configs").glob("*.yaml"):
        assert check_schema(yaml.safe_load(path.read_text())) == []
        assert isinstance(run_config(load_run(path)), RunConfig)


def test_the_json_schema_accepts_a_resolved_configuration():
    resolved = config(WHOLE).model_dump(mode="json")
    resolved["workload"].pop("jobs")
    assert check_schema(json.loads(json.dumps(resolved))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"polices": []},
        {"seed": "0"},
        {"seed": [0, -1]},
        {"seed": []},
        {"workload": {"trace": "x", "variation": {"magnitude": 1}}},
        {"workload": {"trace": "x", "variation": {"distribution": "gauss", "magnitude": 0.1}}},
        {"record": ["kernel"]},
        {"system": {"preset": "x", "host": {"memry": "1 B"}}},
    ],
)
def test_the_json_schema_refuses_what_the_loader_refuses(change):
    assert check_schema({**yaml.safe_load(BASE), **change}) != []

"""Input of no physical sense, and input made to fill memory, is refused at once."""

import pytest

from g10sim.config.document import load_document, parse_document
from g10sim.config.load import load_run, run_config, with_settings
from g10sim.config.presets import load_system
from g10sim.errors import ConfigError
from g10sim.units import FREQUENCY, parse_bytes, parse_rate

RUN = "workload: {trace: chain.g10t}\nsystem: a100-40g-pcie3-znand\npolicies: [ideal]\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": {"memory": "1e30 GiB"}}, "system.gpu.memory: found '1e30 GiB'; allowed: 1 B to 1000000 TB"),
        ({"gpu": {"memory": "1e999999 GiB"}}, "found '1e999999 GiB'; allowed: 1 B to"),
        (
            {"gpu": {"clock": "1.2 kHz"}},
            r"found '1.2 kHz'; allowed: 100 MHz to 1000 GHz \(kernels last",
        ),
        ({"host": {"memory": f"{10**400} B"}}, "host.memory: found '1000"),
        ({"pcie": {"bandwidth": "1 B/s"}}, "pcie.bandwidth: found '1 B/s'; allowed: 1 kB/s to 1000 TB/s"),
        ({"page_fault": {"latency": "1e12 s"}}, "latency: found '1e12 s'; allowed: 1 ps to 1000000 s"),
        (
            {"ssd": {"preset": "samsung-pm1743-7.68tb", "channels": 10**7}},
            "channels: found 10000000; allowed: less than or equal to 1000000",
        ),
        (
            {"ssd": {"preset": "samsung-pm1743-7.68tb", "blocks": 10**6, "pages": 10**6}},
            r"system.ssd: found flash of .* TB \(blocks x pages x ...\); allowed: 1 B to 1000000 TB",
        ),
        ({"sources": "x"}, "system.sources: found 'x'; allowed: a mapping"),
    ],
)
def test_machines_beyond_physics_are_refused_with_the_range(changes, message):
    with pytest.raises(ConfigError, match=message):
        load_system({"preset": "a100-40g-pcie3-znand", **changes})


def test_zero_and_both_ends_of_a_range_are_allowed():
    assert parse_bytes("0 GiB") == 0
    assert parse_bytes("1000000 TB") == 10**18
    assert parse_rate("1 kB/s") == 1000
    assert FREQUENCY.parse("100 MHz") == 10**8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed: 0x" + "f" * 100_000, "run.yaml:4: seed: found a number of 100002 characters"),
        (
            f"seed: {2**63}",
            "run.yaml:4: seed: found 9223372036854775808; allowed: a whole number",
        ),
        ("seed: " + "[" * 5000 + "]" * 5000, "run.yaml:4: found more than 200000 values or 50 levels"),
        ("x: &a [*a]", "run.yaml:4: x.0: found an alias to itself"),
        ("name: ../elsewhere", "run.yaml:4: name: found '../elsewhere'; allowed: .* no path that leads out"),
        ("name: /etc", "run.yaml:4: name: found '/etc'"),
        ('name: "\\e[2J"', r"run.yaml:4: name: found '\\x1b\[2J'; allowed: printable"),
        ("name: !!int x", r"run.yaml:4: name: found 'x' with the tag 'tag:yaml.org,2002:int'"),
    ],
    ids=lambda text: text[:20],
)
def test_yaml_made_to_harm_is_refused(line, message):
    with pytest.raises(ConfigError, match=message):
        run_config(parse_document(f"{RUN}{line}\n", "run.yaml"))


@pytest.mark.slow
def test_aliases_of_aliases_are_not_spelled_out():
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [
        f"{name}: &{name} [{','.join(['*' + last] * 10)}]"
        for last, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    with pytest.raises(ConfigError, match="found more than 200000 values"):
        parse_document("\n".join(lines), "run.yaml")


def test_more_values_than_a_configuration_has_are_not_read(monkeypatch):
    monkeypatch.setattr("g10sim.config.document._MOST_VALUES", 1000)
    assert len(parse_document("seed: [" + "0," * 997 + "]", "run.yaml").data["seed"]) == 997
    with pytest.raises(ConfigError, match=r"run.yaml:1: found more than 200000 values"):
        parse_document("seed: [" + "0," * 998 + "]", "run.yaml")


def test_a_file_too_large_for_a_configuration_is_not_read(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("x: " + "a" * 9_000_000)
    with pytest.raises(ConfigError, match=r"large.yaml: found more than 8388608 characters"):
        load_document(path)


@pytest.mark.parametrize("setting", ["system.sources=x", "seed=0x" + "f" * 100_000, "policies.²=x", "x=[[[["])
def test_settings_are_refused_in_one_short_line(tmp_path, setting):
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    with pytest.raises(ConfigError, match=r"^--set ") as refused:
        run_config(with_settings(load_run(path), [setting]))
    assert len(str(refused.value)) < 1000


def test_a_long_name_of_a_file_is_a_name_of_no_file(tmp_path):
    with pytest.raises(ConfigError, match="which is no file in"):
        load_system("x" * 5000 + ".yaml")


@pytest.mark.parametrize("value", ["true", "'0.5'", ".inf", ".nan"])
@pytest.mark.parametrize(
    "key", ["system.page_fault.threshold", "system.gpu.copy_contention.share", "system.ssd.stripe_efficiency"]
)
def test_a_number_is_no_text_no_truth_value_and_finite(key, value):
    with pytest.raises(ConfigError, match=rf"{key}: found .*; allowed: a .* number"):
        run_config(with_settings(parse_document(RUN, "run.yaml"), ["system.ssd.drives=2", f"{key}={value}"]))

import csv
from pathlib import Path


def errors():
    with Path("out/validation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["policy"], row["plan"]): abs(float(row["relative_error"]))
        for row in rows
        if row["status"] == "ok"
    }


def test_the_default_batch_of_bert_as_published(g10sim, published):
    ended = g10sim(
        "validate", published, "--figures", "fig11", "--models", "BERT_Base", "-o", "out", "-j", "2"
    )
    assert ended.code == 0
    for word in ("fig11", "base_uvm", "reference", "differs", "rows in out/validation.csv"):
        assert word in ended.out
    found = errors()
    assert found["ideal", ""] == 0
    assert found["base_uvm", ""] == 0
    assert found["g10", "reference"] == 0
    assert found["deepum", "reference"] < 3e-3
    assert found["deepum", "own"] < 2e-2


def test_bad_input(g10sim, tmp_path):
    ended = g10sim("validate", tmp_path, "-o", "out")
    assert ended.code == 2
    assert "published.csv: cannot be read" in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("out").exists()

"""The command line as a user runs it: every kind of file, every kind of broken input."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

from bucketjax import BucketSpec, CostModel
from bucketjax.__main__ import main
from bucketjax.reading import ReadingError, read_lengths

LENGTHS = [10] * 90 + [1000] * 10


def write(folder, name):
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, LENGTHS)
    elif name.endswith(".npz"):
        np.savez(path, other=np.zeros(3), frames=LENGTHS)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps({"id": "a", "frames": n}) + "\n" for n in LENGTHS))
    elif name.endswith(".csv"):
        path.write_text("id,frames\n" + "".join(f'"a, b",{n}\n' for n in LENGTHS))
    elif name.endswith(".tsv"):
        path.write_text("\ufeffframes\tid\r\n" + "".join(f"{n}\ta\r\n" for n in LENGTHS))
    elif name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")

        parquet.write_table(pyarrow.table({"id": LENGTHS, "frames": LENGTHS}), path)
    else:
        path.write_text("# lengths\n" + "".join(f"{n}\n" for n in LENGTHS) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("a.txt", None),
        ("a", None),
        ("a.npy", None),
        ("a.npz", "frames"),
        ("a.jsonl", "frames"),
        ("a.csv", "frames"),
        ("a.tsv", "frames"),
        ("a.parquet", "frames"),
    ],
)
def test_every_kind_of_file_gives_the_same_lengths(tmp_path, name, field):
    assert read_lengths(write(tmp_path, name), field=field).tolist() == LENGTHS


@pytest.mark.parametrize(
    ("name", "content", "field", "message"),
    [
        ("a.txt", "3\n\nfour\n", None, "a.txt, line 3: expected a length, an integer of at least"),
        ("a.txt", "3\n-4\n", None, "line 2: expected a length, an integer of at least 0; got '-4'"),
        ("a.txt", "3.5\n", None, "line 1: expected a length.*got '3.5'"),
        ("a.txt", "9" * 30, None, "line 1: expected a length"),
        ("a.txt", "\n# nothing\n", None, "a.txt: no lengths in it; expected at least one"),
        ("a.txt", b"\xff\xfe1\n", None, "not text .byte 0 is 0xff.; expected one length per line"),
        ("a.txt", "3\n", "frames", "a .txt file has no field 'frames'; leave it out"),
        ("a.jsonl", '{"n": 3}\n{"n": 3\n', "n", "line 2: expected one JSON value per line"),
        ("a.jsonl", '{"n": 3}\n', None, "line 1: an object; say which field holds the length, o"),
        ("a.jsonl", '{"n": 3}\n', "m", "line 1: no field 'm'; it has n"),
        ("a.jsonl", "[3]\n", "n", "line 1: expected an object with the field 'n'; got '\\[3\\]'"),
        ("a.jsonl", '{"n": true}\n', "n", "line 1: expected a length.*got true"),
        ("a.jsonl", '{"n": 3.0}\n', "n", "line 1: expected a length.*got 3.0"),
        ("a.csv", "n,m\n1,2\n3\n", "m", "line 3: 1 columns; expected 2"),
        ("a.csv", "n,m\n1,x\n", "m", "line 2: expected a length.*got 'x'"),
        ("a.csv", "n,m\n1,2\n", None, "say which column holds the lengths, one of n, m"),
        ("a.csv", "n,m\n1,2\n", "k", "no column 'k'; it has n, m"),
        ("a.csv", "", "k", "no column 'k'; it has none"),
        ("a.npy", "no array", None, "expected NumPy's .npy format"),
        ("a.npz", "no archive", "n", "expected NumPy's .npz format"),
        ("missing.txt", None, None, "missing.txt: cannot be read .No such file"),
    ],
)
def test_broken_input_is_named(tmp_path, capsys, name, content, field, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ReadingError, match=message):
        read_lengths(path, field=field)
    flags = [] if field is None else ["--field", field]
    assert main(["plan", str(path), "--batch-size", "8", *flags]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("array", [np.zeros((2, 2), int), np.array([1.5]), np.array([-1])])
def test_arrays_that_are_no_lengths_are_named(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ReadingError, match=r"a\.npy: lengths must be"):
        read_lengths(tmp_path / "a.npy")


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"n": 3}], object), allow_pickle=True)
    with pytest.raises(ReadingError, match="expected NumPy's .npy format"):
        read_lengths(tmp_path / "a.npy")


def test_the_command_of_the_documentation_from_standard_input(tmp_path):
    command = [sys.executable, "-m", "bucketjax", "plan", "-", "--num-buckets", "auto"]
    command += ["--token-budget", "8192", "--json", "spec.json"]
    done = subprocess.run(
        command, input="\n".join(map(str, LENGTHS)), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "assumed, not measured" in done.stdout
    spec = BucketSpec.from_json((tmp_path / "spec.json").read_text())
    assert spec == BucketSpec.fit(LENGTHS, num_buckets="auto", token_budget=8192)


def test_plan_then_explain_then_explore(tmp_path, capsys):
    path = str(write(tmp_path, "a.csv"))
    spec, cost = tmp_path / "spec.json", tmp_path / "cost.json"
    cost.write_text(CostModel.linear(per_step=0.1, compile_seconds=2.0, source="ours").to_json())
    shared = [path, "--field", "frames", "--cost", str(cost), "--epochs", "7"]
    batches = ["--batch-size", "8", "--multiple-of", "16"]
    plot = tmp_path / "out.png"
    plan = ["plan", *shared, *batches, "--json", str(spec), "--plot", str(plot)]
    assert main([*plan, "--num-buckets", "2", "--keep", "16"]) == 0
    assert BucketSpec.from_json(spec.read_text()).boundaries == (16, 1008)
    assert "ours" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.unlink()
    table = tmp_path / "table.json"
    explained = ["explain", *shared, "--spec", str(spec), "--json", str(table), "--plot", str(plot)]
    assert main(explained) == 0
    assert json.loads(table.read_text())["rows"][0]["seconds"] == pytest.approx(12 * 0.1 * 7)
    assert "16" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    data = tmp_path / "data.json"
    explored = ["explore", *shared, *batches, "--max-buckets", "3", "--json", str(data)]
    assert main([*explored, "--plot", str(plot)]) == 0
    assert len(json.loads(data.read_text())["points"]) == 15
    assert "<- least" in capsys.readouterr().out


def test_json_on_standard_output_is_nothing_but_json(tmp_path, capsys):
    path = str(write(tmp_path, "a.txt"))
    assert main(["plan", path, "--batch-size", "8", "--json", "-"]) == 0
    assert BucketSpec.from_json(capsys.readouterr().out).num_buckets == 2


def test_shapes_of_two_dimensions_from_a_table(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("frames,labels\n9,1\n9,1\n2,8\n2,8\n")
    flags = ["--field", "frames", "--label-field", "labels", "--label-weight", "1"]
    spec = tmp_path / "spec.json"
    arguments = ["plan", str(path), *flags, "--num-buckets", "2", "--batch-size", "1"]
    assert main([*arguments, "--json", str(spec)]) == 0
    assert BucketSpec.from_json(spec.read_text()).label_lengths == (8, 1)
    explained = ["explain", str(path), *flags[:4], "--spec", str(spec)]
    assert main(explained) == 0
    assert "labels" in capsys.readouterr().out


def test_lengths_and_labels_both_from_standard_input(monkeypatch, capsys):
    lines = [{"frames": n, "labels": m} for n, m in ((9, 1), (9, 1), (2, 8), (2, 8))]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, lines))))
    flags = ["--field", "frames", "--label-field", "labels", "--label-weight", "1"]
    assert main(["plan", "-", *flags, "--num-buckets", "2", "--batch-size", "1"]) == 0
    assert "labels       8 1" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["no JSON", '{"format": "other"}', "\udcff"])
def test_a_spec_or_a_cost_that_is_none_is_named_with_its_file(tmp_path, capsys, text):
    lengths, broken = str(write(tmp_path, "a.txt")), tmp_path / "broken.json"
    broken.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["explain", lengths, "--spec", str(broken)]) == 2
    assert f"bucketjax explain: {broken}: " in capsys.readouterr().err
    assert main(["plan", lengths, "--batch-size", "8", "--cost", str(broken)]) == 2
    assert f"bucketjax plan: {broken}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give token_budget, batch_size, or both"),
        (["--batch-size", "0"], "batch_size must be at least 1; got 0"),
        (["--batch-size", "8", "--cost", "none.json"], "none.json"),
        (["--batch-size", "8", "--compile-seconds", "-1"], "compile_seconds must be a number"),
        (["--batch-size", "8", "--plot", "out.nothing"], "out.nothing|nothing"),
        (["--batch-size", "8", "--plot", "none/out.png"], "none/out.png"),
        (["--batch-size", "8", "--json", "none/spec.json"], "none/spec.json: cannot be written"),
        (["--batch-size", "8", "--json", "/dev/full"], "/dev/full: cannot be written .No space"),
        (["--batch-size", "9" * 20], "rows of 1000 time steps do not fit in 64-bit integers"),
    ],
)
def test_wrong_flags_are_named(tmp_path, capsys, flags, message):
    import re

    assert main(["plan", str(write(tmp_path, "a.txt")), *flags]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_cost_flags_say_what_was_given_and_what_assumed(tmp_path, capsys):
    path = str(write(tmp_path, "a.txt"))
    for flags, said in [
        (["--compile-seconds", "60"], "60 s per compilation given; 30 microseconds per padded"),
        (["--step-seconds", "0.1"], "seconds of steps given; 1.7 s per compilation assumed"),
        (["--time-step-seconds", "1e-5", "--compile-seconds", "3"], "3 s per compilation given"),
    ]:
        assert main(["plan", path, "--batch-size", "8", *flags]) == 0
        assert said in capsys.readouterr().out
    with_both = ["--cost", "x.json", "--compile-seconds", "1"]
    assert main(["plan", path, "--batch-size", "8", *with_both]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_number_of_buckets_that_is_none(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "a.txt", "--num-buckets", "few"])
    assert "an integer or \"auto\", not 'few'" in capsys.readouterr().err


def test_a_csv_without_header_loses_no_example(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("5\n6\n7\n")
    with pytest.raises(ReadingError, match="line 1: expected the column's name"):
        read_lengths(path)

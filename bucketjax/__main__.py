"""`python -m bucketjax plan|explain|explore LENGTHS`: shapes from a file of lengths."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bucketjax.boundaries import STRATEGIES
from bucketjax.explaining import explain
from bucketjax.exploring import explore
from bucketjax.planning import choose_shapes
from bucketjax.pricing import ASSUMED, CostModel
from bucketjax.reading import read_lengths
from bucketjax.spec import BucketSpec

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status: 0, or 2 where the input is wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "lengths.txt").write_text("10\\n" * 900 + "1000\\n" * 100)
    ...     main(["plan", f"{folder}/lengths.txt", "--num-buckets", "4", "--batch-size", "8"])
    2 shapes for 1000 examples, of least padded time steps an epoch
      lengths      10 1000
      batch sizes  8 8
    total 109,000 padded time steps an epoch; with 1 shape 891,000 more
    0
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except BrokenPipeError:  # a reader such as `head` has seen enough
        sys.stderr.close()
        return 0
    except (ValueError, TypeError, OSError) as error:
        print(f"bucketjax {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bucketjax", description="Padded shapes from a file of lengths."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    plan = _command(commands, "plan", _plan, "choose the cheapest shapes")
    plan.add_argument(
        "--num-buckets",
        default="auto",
        type=_count_or_auto,
        help='most shapes, or "auto" (the default): the number that costs the fewest seconds',
    )
    plan.add_argument("--max-buckets", type=int, default=64, help="most shapes that auto may take")
    plan.add_argument("--strategy", default="optimal", choices=sorted(STRATEGIES))
    plan.add_argument("--objective", choices=["padding", "time_steps", "seconds"])
    plan.add_argument("--keep", type=int, nargs="+", default=[], help="boundaries to keep")
    plan.add_argument("--longest", type=int, help="cap on the length")
    plan.add_argument("--too-long", default="truncate", choices=["truncate", "drop"])
    plan.add_argument("--label-field", help="field with the label lengths")
    plan.add_argument(
        "--label-weight", type=float, help="shapes of two dimensions: what a label costs"
    )
    plan.add_argument("--json", type=Path, help="write the spec here; - is standard output")
    _add_batches(plan)

    explained = _command(commands, "explain", _explain, "say what a spec does to the lengths")
    explained.add_argument("--spec", type=Path, required=True, help="spec, as plan wrote it")
    explained.add_argument("--label-field", help="field with the label lengths")
    explained.add_argument("--json", type=Path, help="write the table here as JSON")

    explored = _command(commands, "explore", _explore, "the trade-off over the number of shapes")
    explored.add_argument("--max-buckets", type=int, default=32, help="try 1 to this many shapes")
    explored.add_argument(
        "--strategies",
        nargs="+",
        default=["cheapest", "optimal", "quantile", "uniform", "geometric"],
        help=f"cheapest, {', '.join(sorted(STRATEGIES))}",
    )
    explored.add_argument("--json", type=Path, help="write the data here as JSON")
    _add_batches(explored)
    return parser


def _command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    command.add_argument(
        "lengths",
        help="text (one length per line), .npy, .npz, .jsonl, .csv or .parquet; - is standard "
        "input",
    )
    command.add_argument("--field", help="column, key or array that holds the lengths")
    command.add_argument("--epochs", type=int, default=1, help="how long the run will be")
    command.add_argument("--cost", type=Path, help="cost model, as CostModel.to_json wrote it")
    command.add_argument("--step-seconds", type=float, help="seconds of any step")
    command.add_argument("--time-step-seconds", type=float, help="seconds of a padded time step")
    command.add_argument("--compile-seconds", type=float, help="seconds of a compilation")
    command.add_argument("--plot", type=Path, help="write a figure here, such as out.png")
    return command


def _add_batches(command: argparse.ArgumentParser) -> None:
    command.add_argument("--token-budget", type=int, help="most padded time steps in a batch")
    command.add_argument("--batch-size", type=int, help="rows of a batch")
    command.add_argument("--multiple-of", type=int, default=1, help="of each boundary")
    command.add_argument("--batch-multiple-of", type=int, default=1, help="of each batch: devices")


def _plan(options: argparse.Namespace) -> None:
    cost = _cost(options)
    lengths, labels = _read(options)
    choice = choose_shapes(
        lengths,
        num_buckets=options.num_buckets,
        token_budget=options.token_budget,
        batch_size=options.batch_size,
        multiple_of=options.multiple_of,
        batch_multiple_of=options.batch_multiple_of,
        strategy=options.strategy,
        objective=options.objective,
        cost=cost,
        epochs=options.epochs,
        max_buckets=options.max_buckets,
        keep=options.keep,
        longest=options.longest,
        too_long=options.too_long,
        label_lengths=labels,
        label_weight=options.label_weight,
    )
    spec = BucketSpec.of(choice)
    if options.json is None or str(options.json) != "-":
        print(choice.report())
    _write(options.json, spec.to_json())
    if options.plot is not None:
        plotting = _plotting()
        plotting.save(
            plotting.explanation(
                explain(spec, lengths, label_lengths=labels, cost=cost, epochs=options.epochs)
            ),
            options.plot,
        )


def _explain(options: argparse.Namespace) -> None:
    spec = _load(options.spec, BucketSpec.from_json)
    lengths, labels = _read(options)
    explained = explain(
        spec,
        lengths,
        label_lengths=labels,
        cost=_cost(options),
        epochs=options.epochs,
    )
    if options.json is None or str(options.json) != "-":
        print(explained)
    _write(options.json, json.dumps(explained.to_dict()))
    if options.plot is not None:
        plotting = _plotting()
        plotting.save(plotting.explanation(explained), options.plot)


def _explore(options: argparse.Namespace) -> None:
    if options.max_buckets < 1:
        raise ValueError(f"--max-buckets must be at least 1; got {options.max_buckets}")
    found = explore(
        read_lengths(options.lengths, field=options.field),
        num_buckets=range(1, options.max_buckets + 1),
        strategies=options.strategies,
        cost=_cost(options),
        epochs=options.epochs,
        token_budget=options.token_budget,
        batch_size=options.batch_size,
        multiple_of=options.multiple_of,
        batch_multiple_of=options.batch_multiple_of,
    )
    if options.json is None or str(options.json) != "-":
        print(found)
    _write(options.json, json.dumps(found.to_dict()))
    if options.plot is not None:
        plotting = _plotting()
        plotting.save(plotting.trade_off(found), options.plot)


def _read(options: argparse.Namespace) -> tuple[Any, Any]:
    """The lengths, and the label lengths or None; standard input is read once for both."""
    if options.label_field is None:
        return read_lengths(options.lengths, field=options.field), None
    fields = (options.field, options.label_field)
    if options.lengths != "-":
        lengths, labels = (read_lengths(options.lengths, field=field) for field in fields)
    else:
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input: not text ({error})") from error
        lengths, labels = (
            read_lengths("-", field=field, stream=io.StringIO(text)) for field in fields
        )
    return lengths, labels


def _load(path: Path, from_json: Callable[[str], Any]) -> Any:
    try:
        return from_json(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _cost(options: argparse.Namespace) -> CostModel | None:
    """The cost model of the flags; None where none was given."""
    parts = (options.step_seconds, options.time_step_seconds)
    if options.cost is not None:
        if any(part is not None for part in (*parts, options.compile_seconds)):
            raise ValueError("--cost already says the seconds; give it, or --...-seconds, not both")
        return _load(options.cost, CostModel.from_json)
    if all(part is None for part in (*parts, options.compile_seconds)):
        return None
    if all(part is None for part in parts):
        assumed = dict(ASSUMED.content or {})["seconds"]["time_step"]
        return CostModel.linear(
            per_time_step=assumed,
            compile_seconds=options.compile_seconds,
            source=f"{options.compile_seconds:g} s per compilation given; {assumed * 1e6:g} "
            "microseconds per padded time step assumed, not measured",
        )
    compile_seconds = options.compile_seconds
    given = "given" if compile_seconds is not None else "assumed, not measured"
    if compile_seconds is None:
        compile_seconds = ASSUMED.compile_seconds
    return CostModel.linear(
        per_step=options.step_seconds or 0.0,
        per_time_step=options.time_step_seconds or 0.0,
        compile_seconds=compile_seconds,
        source=f"seconds of steps given; {compile_seconds:g} s per compilation {given}",
    )


def _write(path: Path | None, text: str) -> None:
    if path is None:
        return
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror or error})") from error


def _count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'an integer or "auto", not {text!r}') from None


def _plotting() -> Any:
    try:
        from bucketjax import plotting
    except ImportError as error:
        raise ValueError(
            f"--plot needs matplotlib ({error}); install the extra `plot`, or leave it out"
        ) from error
    return plotting


if __name__ == "__main__":
    sys.exit(main())

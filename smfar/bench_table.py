"""python -m smfar bench table FILE…: the benches' figures as tables of Markdown."""

import sys

from smfar.bench_ranks import read_json

# key in the file: [(heading, how a row says it)]
COLUMNS = {
    "all_reduce": [
        ("bytes", "{size}"),
        ("path", "{path}"),
        ("time", "{us:.1f} ± {half:.1f}"),
        ("algbw", "{algbw:.1f}"),
        ("device", "{device_us:.1f}"),
        ("graph", "{graph_us:.1f}"),
        ("host", "{host_us:.1f}"),
        ("blocks x threads", "{blocks} x {threads}"),
        ("SM-µs", "{sm_us:.1f}"),
        ("copies (µs)", "{copies:.1f} ({copy_us:.1f})"),
    ],
    "moves": [
        ("collective", "{collective}"),
        ("bytes", "{size}"),
        ("path", "{path}"),
        ("time", "{us:.1f} ± {half:.1f}"),
        ("busbw", "{busbw:.1f}"),
        ("device", "{device_us:.1f}"),
        ("graph", "{graph_us:.1f}"),
        ("host", "{host_us:.1f}"),
        ("blocks x threads", "{blocks} x {threads}"),
        ("SM-µs", "{sm_us:.1f}"),
        ("copies (µs)", "{copies:.1f} ({copy_us:.1f})"),
    ],
    "overlap": [
        ("path", "{path}"),
        ("step", "{step_us:.1f} ± {half:.1f}"),
        ("slowdown", "{slowdown:+.1f} %"),
        ("all-reduce alone", "{alone_us:.1f}"),
        ("beside", "{beside_us:.1f}"),
        ("both", "{both_us:.1f}"),
        ("blocks x threads", "{blocks} x {threads}"),
        ("SM-µs", "{sm_us:.1f}"),
        ("copies (µs)", "{copies:.1f} ({copy_us:.1f})"),
    ],
    "skew": [
        ("path", "{path}"),
        ("late (ms)", "{late_ms}"),
        ("blocks x threads", "{blocks} x {threads}"),
        ("SM-µs", "{sm_us:.1f}"),
        ("of it waiting", "{waiting_sm_us:.1f}"),
    ],
    "norm": [
        ("tokens x hidden", "{tokens} x {hidden}"),
        ("path", "{path}"),
        ("time", "{us:.1f} ± {spread:.1f}"),
        ("device", "{device_us:.1f}"),
        ("blocks x threads", "{blocks} x {threads}"),
        ("kernels", "{kernels:.1f}"),
        ("SM-µs", "{sm_us:.1f}"),
    ],
    "train": [
        ("strategy", "{strategy}"),
        ("path", "{path}"),
        ("step (ms)", "{step_ms:.2f} ± {half:.2f}"),
        ("tokens/s", "{tokens_per_s:.0f}"),
        ("loss", "{loss:.4f}"),
        ("off", "{off:+.4%}"),
        ("staged (bytes)", "{staged:.0f}"),
        ("blocks", "{blocks}"),
        ("SM-ms", "{sm_ms:.2f}"),
    ],
    "held": [
        ("path", "{path}"),
        ("bytes sent", "{sent}"),
        ("GB/s, SMs free", "{free_GBps:.1f}"),
        ("GB/s, SMs held", "{held_GBps:.1f}"),
        ("of the copy", "{of_copy:.3f}"),
    ],
}


def add_arguments(parser):
    parser.add_argument("files", nargs="+", metavar="FILE", help="what --json has written")


def run(args):
    tables = []
    for path in args.files:
        tables += tables_of(read_json(path))
    if not tables:
        print(f"bench table: {', '.join(args.files)}: no figures of a bench in it", file=sys.stderr)
        return 1
    print("\n\n".join(tables))
    return 0


def tables_of(result):
    found = []
    for key, columns in COLUMNS.items():
        if key == "overlap":
            for one in result.get(key, []):
                title = f"{one['workload']}: {one['step_us']:.1f} µs a step alone"
                found.append(f"{title}\n\n{table(columns, one['rows'])}")
        elif result.get(key):
            found.append(table(columns, result[key]))
    return found


def table(columns, rows):
    lines = [[heading for heading, _ in columns], ["---"] * len(columns)]
    lines += [[cell(form, row) or "–" for _, form in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(form, row):
    """None where the row has no such figure."""
    half = {"half": row["spread"] / 2} if "spread" in row else {}
    try:
        return form.format(**row, **half)
    except KeyError:
        return None

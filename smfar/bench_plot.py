"""python -m smfar bench plot FILE… --out FILE.svg: the benches' figures as a picture.

Draws what the files of `--json` hold: time and SM-µs over size (bench --device cuda, moves), the
slowdown of the products and what the all-reduce holds (overlap), SM-µs over the delay (skew), rates
(held).
Rows that have no figure are left out. Needs matplotlib: pip install 'smfar[plot]'.
"""

import sys

from smfar.bench_ranks import read_json

WIDTH, HEIGHT = 6.4, 4.4  # inches of one chart


def add_arguments(parser):
    parser.add_argument("files", nargs="+", metavar="FILE", help="what --json has written")
    parser.add_argument("--out", required=True, help="the picture: .svg, .png or .pdf")


def run(args):
    try:
        import matplotlib
    except ImportError:
        print("bench plot needs matplotlib: pip install 'smfar[plot]'", file=sys.stderr)
        return 77
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "smfar"  # the same figures give the same file
    charts = []
    for path in args.files:
        charts += charts_of(read_json(path))
    if not charts:
        print(f"bench plot: {', '.join(args.files)}: no figures of a bench in it", file=sys.stderr)
        return 1
    draw(charts, args.out)
    return 0


def machine(result):
    name = result.get("gpu") or "software switch"
    return f"{result['ranks']} ranks, {result.get('gpus', 0) or ''} {name}".replace("  ", " ")


def charts_of(result):
    """[(title, function that draws into axes)] of one file."""
    found = []
    for title, rows in by_collective(result).items():
        for field, label in (("us", "time (µs)"), ("sm_us", "SM-µs")):
            chosen = [row for row in rows if row.get(field)]
            if chosen:
                found.append((f"{title}, {machine(result)}", over_size(chosen, field, label)))
    for one in result.get("overlap", []):
        title = f"{one['workload']} beside {result['bytes'] >> 20} MiB, {machine(result)}"
        found.append((title, bars(one["rows"])))
    rows = [row for row in result.get("skew", []) if "sm_us" in row]
    if rows:
        found.append((f"One rank late, {machine(result)}", over_delay(rows)))
    rows = result.get("held", [])
    if rows:
        found.append((f"Every SM held, {machine(result)}", rates(rows)))
    return found


def by_collective(result):
    found = {"All-reduce": result.get("all_reduce", [])}
    for row in result.get("moves", []):
        title = row["collective"].capitalize().replace("_", "-")
        found.setdefault(title, []).append(row)
    return found


def by_path(rows):
    found = {}
    for row in rows:
        found.setdefault(row["path"], []).append(row)
    return found


def over_size(rows, field, label):
    def chart(axes):
        for path, own in by_path(rows).items():
            sizes, values = [row["size"] for row in own], [row[field] for row in own]
            axes.plot(sizes, values, marker=".", label=path)
        axes.set(xscale="log", yscale="log", xlabel="bytes of one rank's tensor", ylabel=label)
        axes.set_xscale("log", base=2)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize="small")

    return chart


def over_delay(rows):
    def chart(axes):
        for path, own in by_path(rows).items():
            delays, values = [row["late_ms"] for row in own], [row["sm_us"] for row in own]
            axes.plot(delays, values, marker=".", label=path)
        axes.set(xlabel="late by (ms)", ylabel="SM-µs of the others")
        axes.set_yscale("log")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="small")

    return chart


def bars(rows):
    def chart(axes):
        places = range(len(rows))
        axes.barh(places, [row["slowdown"] for row in rows])
        for place, row in enumerate(rows):
            held = f"  {row['sm_us']:.0f} SM-µs" if "sm_us" in row else ""
            axes.text(max(row["slowdown"], 0), place, held, va="center", fontsize="x-small")
        axes.set_yticks(places, [row["path"] for row in rows], fontsize="small")
        axes.set(xlabel="slowdown of the products (%)")
        axes.margins(x=0.2)
        axes.invert_yaxis()

    return chart


def rates(rows):
    def chart(axes):
        places, names = range(len(rows)), [row["path"] for row in rows]
        axes.barh(
            [p - 0.2 for p in places], [row["free_GBps"] for row in rows], 0.4, label="SMs free"
        )
        held = [row.get("held_GBps", 0) for row in rows]
        axes.barh([p + 0.2 for p in places], held, 0.4, label="SMs held")
        axes.set_yticks(places, names, fontsize="small")
        axes.set(xlabel="GB/s out of the busiest rank")
        axes.invert_yaxis()
        axes.legend(fontsize="small")

    return chart


def draw(charts, out):
    from matplotlib import pyplot

    columns = min(2, len(charts))
    lines = -(-len(charts) // columns)
    size = (WIDTH * columns, HEIGHT * lines)
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False)
    for axes, (title, chart) in zip(grid.flat, charts, strict=False):
        axes.set_title(title, fontsize="small")
        chart(axes)
    for axes in grid.flat[len(charts) :]:
        axes.remove()
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.endswith(".svg") else None)
    pyplot.close(figure)

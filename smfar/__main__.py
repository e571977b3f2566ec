"""python -m smfar <command>"""

import argparse
import sys

from smfar import (
    bench,
    bench_held,
    bench_moves,
    bench_norm,
    bench_overlap,
    bench_plot,
    bench_skew,
    bench_table,
    bench_train,
    kernels,
    tune,
)

BENCHES = {
    "moves": (bench_moves, "all-gather, reduce-scatter, broadcast and all-to-all by size"),
    "overlap": (bench_overlap, "what an all-reduce costs the matrix products beside it"),
    "skew": (bench_skew, "what waiting for a late rank costs"),
    "held": (bench_held, "copies while a kernel holds every multiprocessor"),
    "norm": (bench_norm, "an all-reduce with RMSNorm in one launch, and one by one"),
    "train": (bench_train, "steps of DDP and FSDP2 with a transformer, beside NCCL"),
    "table": (bench_table, "the figures of --json as tables of Markdown"),
    "plot": (bench_plot, "the figures of --json as a picture"),
}


def add_command(commands, name, module, text):
    parser = commands.add_parser(name, help=text, description=text)
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m smfar", description="smfar's tools")
    commands = parser.add_subparsers(dest="command", required=True)
    text = "measure the all-reduce beside what users would pick instead"
    benches = add_command(commands, "bench", bench, text).add_subparsers(dest="bench")
    for name, (module, text) in BENCHES.items():
        add_command(benches, name, module, text)
    add_command(commands, "kernels", kernels, "registers, spills and size of every kernel")
    text = "measure what all-reduces of each size take best here, and write a plan table"
    add_command(commands, "tune", tune, text)
    args = parser.parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())

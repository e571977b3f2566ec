"""python -m smfar <command>: so far `bench`."""

import argparse
import sys

from smfar import bench


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m smfar", description="smfar's tools")
    commands = parser.add_subparsers(dest="command", required=True)
    bench.add_arguments(commands.add_parser("bench", help="measure the all-reduce beside gloo's"))
    return bench.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())

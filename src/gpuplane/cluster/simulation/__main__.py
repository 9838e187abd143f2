"""A worker: a trace comes on standard input as one line, then each run as one; answers go to standard output."""

import sys

import msgspec

from gpuplane.cluster.simulation.workers import Ask, Trace, answer


def main() -> None:
    """Answer until there is nothing more to answer."""
    lines = sys.stdin.buffer
    if not (line := lines.readline()):
        return
    trace = msgspec.json.decode(line, type=Trace)
    for line in lines:
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer(trace, msgspec.json.decode(line, type=Ask))) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()

"""Makes what Python needs of `elastic.proto`: `python proto/generate.py`.

It needs grpcio-tools. What it makes is committed, and a test sees to it that it is what
this makes: a description of the messages, which works with every version of protobuf, and
their types for type checkers.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent


def generate(out: Path) -> None:
    """Writes the files to a folder."""
    code = protoc.main(
        [
            "protoc",
            f"-I{HERE}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--descriptor_set_out={out / 'elastic.desc'}",
            f"--pyi_out={out}",
            "elastic.proto",
        ]
    )
    if code:
        sys.exit(code)
    (out / "elastic_pb2.pyi").rename(out / "messages.pyi")


if __name__ == "__main__":
    generate(HERE.parent / "src" / "drivetrain_elastic" / "protocol")

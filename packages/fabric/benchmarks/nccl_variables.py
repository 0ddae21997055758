"""Writes which environment variables each release of NCCL reads, from its source.

    python nccl_variables.py /path/to/nccl.git

The clone of https://github.com/NVIDIA/nccl may be a bare one; it needs its tags. For each
tag of NCCL 2 one file is written: `src/drivetrain_fabric/adviser/nccl/2.29.7.json`. A
variable has these keys there:

`kind`
    How NCCL parses it. `number`: `strtoll` with base 0; `flag`: 1, T, TRUE, 0, F or FALSE;
    `level`: a distance by its word or by an old number; `list`: words with commas;
    `words`: one word of several; `text`: whatever else.
`line`
    The file and the line that read it.
`default`
    What it is if it is not set; `auto` where NCCL decides. Absent where the source has no
    number.
`range`, `words`
    What it may be: a list of the least and the largest number, or the words. Ranges and
    which words are all of them come from `nccl_rules.json`, as no parser can see them; a
    limit there may be the name of a macro, whose value is that of the release.
`exact`
    Whether the case of words counts.
`functions`
    Of a `list`: for which functions there may be lists: `allreduce:ring;broadcast:tree`.
    Such a release does not start with what it does not know; others skip that.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
FILES = HERE.parent / "src/drivetrain_fabric/adviser/nccl"
RULES = json.loads((HERE / "nccl_rules.json").read_text())

_TAG = re.compile(r"v(2\.\d+\.\d+)-(\d+)")
_CODE = (".cc", ".cu", ".h", ".h.in")
# A text, or a comment of either kind.
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_PARAM = re.compile(r'\bNCCL_PARAM\(\s*\w+\s*,\s*"(\w+)"\s*,')
_DEFINED = re.compile(r"\bDEFINE_NCCL_PARAM\(")
_GETENV = re.compile(r'(?:(\w+)\s*=\s*)?(?:\w|::)*[gG]et_?[eE]nv\w*\(\s*"(NCCL_\w+)"')
_LEVEL = re.compile(
    r'\bncclGetLevel\(\s*[^,]+,\s*(?:"(NCCL_\w+)"|NULL)\s*,\s*"(NCCL_\w+)"'
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n\\]+)$", re.MULTILINE)
_NUMBER = re.compile(r"\b(\d+|0x[0-9a-fA-F]+)(?:[uU]?[lL]{1,2}|[uU])\b")
_ARITHMETIC = re.compile(r"[-+*<() \t0-9a-fA-Fx]+")
_UNSET = {-2, -(2**31)}


def releases(repository: Path) -> dict[str, str]:
    """Returns the tag of each version of NCCL 2, the latest build of each."""
    found: dict[str, tuple[int, str]] = {}
    for tag in _git(repository, "tag").decode().split():
        match = _TAG.fullmatch(tag)
        if match is not None:
            found[match[1]] = max(found.get(match[1], (0, "")), (int(match[2]), tag))
    return {version: tag for version, (_, tag) in found.items()}


def read_release(repository: Path, tag: str) -> dict[str, dict[str, object]]:
    """Returns the variables that the source of a tag reads, by their names."""
    archive = tarfile.open(  # noqa: SIM115  (of bytes)
        fileobj=io.BytesIO(_git(repository, "archive", "--format=tar", tag, "src"))
    )
    sources = {
        entry.name: _without_comments(
            archive.extractfile(entry).read().decode("utf-8", "replace")
        )
        for entry in archive
        if entry.isfile() and entry.name.endswith(_CODE)
    }
    return variables(sources)


def variables(sources: dict[str, str]) -> dict[str, dict[str, object]]:
    """Returns the variables that sources without comments read, by their names."""
    macros = dict(pair for text in sources.values() for pair in _MACRO.findall(text))
    everything = "\n".join(sources.values())
    found: dict[str, dict[str, object]] = {}
    for file, text in sorted(sources.items()):
        for name, start, known in _reads(text):
            line = text.count("\n", 0, start) + 1
            # What has a default says more than a second place that only asks.
            if name not in found or ("default" in known) > ("default" in found[name]):
                found[name] = {**known, "line": f"{file}:{line}"}
    return {
        name: _finished(name, known, macros, everything)
        for name, known in sorted(found.items())
    }


def _reads(text: str):
    """Yields each read of a variable: its name, where it begins, and what is known."""
    for match in _PARAM.finditer(text):
        default = _arguments(text, match.end())[0]
        yield f"NCCL_{match[1]}", match.start(), {"kind": "number", "default": default}
    for match in _DEFINED.finditer(text):
        _, kind, name, default, _, parser, *_ = [
            *_arguments(text, match.end()),
            *[""] * 7,
        ]
        if not name.startswith("NCCL_"):
            continue  # The macro itself.
        known: dict[str, object] = {"kind": "text"}
        if kind == "bool":
            known = {"kind": "flag", "default": str(int(default == "true"))}
            known["words"] = RULES["flags"]
        elif "ncclParamOneOf" in parser:
            words = re.findall(r'makeOption\(\s*"(\w+)"', parser)
            known = {"kind": "words", "words": words}
        elif kind != "const char*" and "Bitset" not in parser:
            known = {"kind": "number", "default": default}
        yield name, match.start(), known
    for match in _LEVEL.finditer(text):
        if match[1]:
            yield match[1], match.start(), {"kind": "number", "default": "0"}
        yield match[2], match.start(), {"kind": "level", "exact": True}
    for match in _GETENV.finditer(text):
        name, variable = match[2], match[1]
        known: dict[str, object] = {"kind": "text"}
        near = text[match.end() : match.end() + 2000]
        if name in RULES["lists"] and "parseList(" not in near[:300]:
            continue  # It is but shown there.
        if variable is not None:
            compared = rf'\b(str(?:case)?cmp)\(\s*{variable}\s*,\s*"(\w+)"'
            found = re.findall(compared, near)
            if name in RULES["closed"] and found:
                words = dict.fromkeys([w for _, w in found] + RULES["closed"][name])
                known = {"kind": "words", "words": list(words)}
                known["exact"] = found[0][0] == "strcmp"
            elif re.search(rf"\b(?:strto\w+|ato\w+)\(\s*{variable}\s*[,)]", near[:300]):
                known = {"kind": "number"}
        yield name, match.start(), known


def _finished(
    name: str, known: dict[str, object], macros: dict[str, str], everything: str
) -> dict[str, object]:
    """Returns a variable with what lies elsewhere: words, limits, values of macros."""
    known = dict(known)
    if name in RULES["lists"]:
        known["kind"] = "list"
        known["words"] = _strings(everything, RULES["lists"][name])
        if "Unrecognized element token" in everything:
            known["functions"] = _strings(everything, "ncclFuncStr")
    if known["kind"] == "level":
        words = _strings(everything, "topoPathTypeStr")
        known["words"] = words[: words.index("SYS") + 1] if "SYS" in words else words
    if "default" in known:
        default = (
            RULES["defaults"].get(name, {}).get(known["default"], known["default"])
        )
        value = _value(default, macros)
        known["default"] = "auto" if value in _UNSET else str(value)
        if value is None:
            del known["default"]
    limits = RULES["ranges"].get(name)
    if known["kind"] == "number" and limits is not None:
        values = [_value(str(limit), macros) for limit in limits]
        if None not in values:
            # What stands for "not set" may be set.
            usual = known.get("default", "auto")
            least = values[0] if usual == "auto" else min(values[0], int(usual))
            known["range"] = [least, values[1]]
    order = (
        "kind",
        "default",
        "range",
        "words",
        "exact",
        "functions",
        "line",
    )
    return {key: known[key] for key in order if known.get(key) not in (None, [], False)}


def _value(text: str, macros: dict[str, str], depth: int = 8) -> int | None:
    """Returns the number that an expression of C stands for; None if it is no number."""
    text = _NUMBER.sub(r"\1", text.strip())
    text = text.replace("INT_MIN", str(-(2**31))).replace("INT64_MAX", str(2**63 - 1))
    if _ARITHMETIC.fullmatch(text):
        try:
            return int(eval(text, {"__builtins__": {}}))
        except (SyntaxError, TypeError, ValueError):
            return None
    words = {word for word in re.findall(r"[A-Za-z_]\w*", text) if word in macros}
    if not words or not depth:
        return None
    for word in words:
        text = re.sub(rf"\b{word}\b", f"({macros[word].strip()})", text)
    return _value(text, macros, depth - 1)


def _strings(everything: str, array: str) -> list[str]:
    """Returns the texts of an array of C."""
    match = re.search(rf"\b{array}\s*\[[^\]]*\]\s*=\s*\{{([^}}]*)\}}", everything)
    return re.findall(r'"(\w+)"', match[1]) if match else []


def _arguments(text: str, start: int) -> list[str]:
    """Returns the arguments of a macro, from behind a bracket or a comma to its end."""
    found, depth, begin = [], 0, start
    for match in re.compile(r'"(?:\\.|[^"\\])*"|[(){},]').finditer(text, start):
        sign = match[0]
        if sign in "({":
            depth += 1
        elif depth == 0 and sign in "),":
            found.append(text[begin : match.start()].strip())
            begin = match.end()
            if sign == ")":
                break
        elif sign in ")}":
            depth -= 1
    return found


def _without_comments(text: str) -> str:
    """Returns a source whose comments are blank; lines keep their numbers."""
    return _TOKEN.sub(
        lambda m: m[0] if m[0].startswith('"') else "\n" * m[0].count("\n") or " ", text
    )


def as_text(version: str, tag: str, found: dict[str, dict[str, object]]) -> str:
    """Returns the file of a version: one line for each variable."""
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(known)}" for name, known in found.items()
    )
    source = json.dumps(f"https://github.com/NVIDIA/nccl/tree/{tag}")
    return (
        f'{{\n "version": "{version}",\n "source": {source},\n'
        f' "variables": {{\n{rows}\n }}\n}}\n'
    )


def _git(repository: Path, *words: str) -> bytes:
    command = ["git", "--git-dir", str(repository), *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path, help="the git directory of NCCL")
    repository = parser.parse_args().repository
    FILES.mkdir(exist_ok=True)
    for version, tag in releases(repository).items():
        text = as_text(version, tag, read_release(repository, tag))
        (FILES / f"{version}.json").write_text(text)


if __name__ == "__main__":
    main()

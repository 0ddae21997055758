"""Reads and writes the one dialect of YAML that Drivetrain's files are written in.

It is the core schema of YAML 1.2, and less: `yes`, `off`, `010` and dates are text,
`1e-3` is a number, a key stands once, and there are no tags, anchors or aliases. What
`dump_yaml` writes, `load_yaml` reads back as equal values.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import NoReturn

import yaml

from drivetrain_core._errors import Code, PlanError

MOST_TEXT = 1 << 20
"""Characters that a file may have: it is read at 100 kB a second, and has some kB."""

_STANDARD = "tag:yaml.org,2002:"
_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")
_DIGITS = list("0123456789")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[0-9]+[eE][-+]?[0-9]+|\.inf|\.nan)\Z"
)
_SCALARS = (
    ("null", re.compile(r"(?:~|null)?\Z"), ["~", "n", ""]),
    ("bool", re.compile(r"(?:true|false)\Z"), ["t", "f"]),
    ("int", _INT, ["-", "+", *_DIGITS]),
    ("float", _FLOAT, ["-", "+", ".", *_DIGITS]),
)


class _Loader(yaml.SafeLoader):
    """Builds mappings, lists and scalars, and refuses everything else."""

    yaml_implicit_resolvers = {}
    yaml_constructors = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses anchors, aliases and tags before they are followed."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            _refuse("anchors and aliases are not allowed", event.start_mark)
        if getattr(event, "tag", None):
            _refuse(f"the tag {event.tag!r} is not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def strict_mapping(self, node: yaml.Node) -> dict[Hashable, object]:
        """Returns a mapping; a key that stands twice is an error."""
        if not isinstance(node, yaml.MappingNode):
            _refuse("expected a mapping", node.start_mark)
        mapping: dict[Hashable, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                _refuse("a key must be a single value", key_node.start_mark)
            key = self.construct_object(key_node)
            if key in mapping:
                _refuse(f"the key {key!r} stands twice", key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def strict_list(self, node: yaml.Node) -> list[object]:
        """Returns a list."""
        if not isinstance(node, yaml.SequenceNode):
            _refuse("expected a list", node.start_mark)
        return [self.construct_object(item, deep=True) for item in node.value]


class _Dumper(yaml.SafeDumper):
    """Writes block style, quoting what `_Loader` or YAML 1.1 reads as no text."""

    def ignore_aliases(self, data: object) -> bool:
        """Writes a value out each time that it occurs."""
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents lists inside mappings, which reads better."""
        del indentless
        super().increase_indent(flow, indentless=False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Quotes text with a line break that YAML would read back as another one."""
        style = '"' if _OTHER_BREAKS.search(text) else None
        return self.represent_scalar(_STANDARD + "str", text, style=style)


for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_STANDARD + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_STANDARD + _name, _pattern, _first)
_Dumper.add_representer(str, _Dumper.represent_text)
_Loader.yaml_constructors = {
    _STANDARD + "null": _Loader.construct_yaml_null,
    _STANDARD + "bool": _Loader.construct_yaml_bool,
    _STANDARD + "int": _Loader.construct_yaml_int,
    _STANDARD + "float": _Loader.construct_yaml_float,
    _STANDARD + "str": _Loader.construct_yaml_str,
    _STANDARD + "map": _Loader.strict_mapping,
    _STANDARD + "seq": _Loader.strict_list,
}


def load_yaml(
    text: str, source: str = "<text>", error_type: type[Exception] = ValueError
) -> object:
    r"""Returns the value that a YAML text describes.

    Args:
        text: One YAML document; an empty one is None.
        source: Where it comes from, for messages: the name of a file.
        error_type: The error to raise: a `PlanError`, or a class that takes a message.

    Returns:
        Mappings, lists, strings, numbers, booleans and None.

    Raises:
        Exception: One of `error_type`, for a text that is no YAML, a key that stands
            twice, a tag, an anchor, a second document, or more than a MiB. It says source
            and line.

    Example:
        >>> load_yaml("name: a100\nflops: 312e12\nspot: off")
        {'name': 'a100', 'flops': 312000000000000.0, 'spot': 'off'}
        >>> load_yaml("a: 1\nb: 2\na: 3", "plan.yaml")
        Traceback (most recent call last):
        ...
        ValueError: plan.yaml:3: the key 'a' stands twice
    """
    if len(text) > MOST_TEXT:
        problem = f"it is longer than the {MOST_TEXT >> 20} MiB that a file of ours has at most"
        raise _error(error_type, source, problem)
    try:
        # `_Loader` is a SafeLoader with fewer types.
        value: object = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = str(error.problem or error.context)
        raise _error(error_type, where, problem) from error
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise _error(error_type, source, f"not YAML text: {problem}") from error
    except RecursionError as error:
        raise _error(error_type, source, "nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _error(error_type, source, str(error)) from error
    return value


def dump_yaml(obj: object) -> str:
    """Returns a value as YAML in block style, with keys in the order they have.

    Args:
        obj: Mappings, lists, tuples, strings, numbers, booleans and None; subclasses
            (an enum of strings, say) are written as the plain type.

    Raises:
        TypeError: Something inside is of another type; the message says where.

    Example:
        >>> print(dump_yaml({"name": "a100", "tags": ["off", "1e3"], "flops": 312e12}))
        name: a100
        tags:
          - 'off'
          - '1e3'
        flops: 312000000000000.0
        <BLANKLINE>
    """
    return yaml.dump(
        _plain(obj, "the value"),
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=88,
    )


def _error(error_type: type[Exception], where: str, problem: str) -> Exception:
    if issubclass(error_type, PlanError):
        return error_type(Code.FORMAT, where, because=problem)
    return error_type(f"{where}: {problem}")


def _plain(obj: object, where: str) -> object:
    if obj is None or isinstance(obj, bool):
        return obj
    for kind in (str, int, float):
        if isinstance(obj, kind):
            return kind.__str__(obj) if kind is str else kind(obj)
    if isinstance(obj, Mapping):
        return {
            _plain_key(key, where): _plain(value, f"{where}[{key!r}]")
            for key, value in obj.items()
        }
    if isinstance(obj, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(obj)]
    message = f"{where} is of type {type(obj).__name__}, which the file cannot hold"
    raise TypeError(message)


def _plain_key(key: object, where: str) -> object:
    if isinstance(key, Mapping | list | tuple):
        message = f"the key {key!r} of {where} is one which the file cannot hold"
        raise TypeError(message)
    return _plain(key, f"a key of {where}")


def _refuse(problem: str, mark: yaml.Mark | None) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)

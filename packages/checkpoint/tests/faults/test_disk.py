"""The model of the disk agrees with a real file system, and loses what it may."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.disk import Chance, DataOnly, Disk, Fate, NamesAndSizes, Nothing, Op

NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/b"])
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "write", "truncate", "sync", "unlink", "rename", "link", "rmdir"]
        ),
        NAMES,
        NAMES,
        st.integers(0, 9000),
        st.integers(1, 9000),
    ),
    max_size=25,
)


def possible(disk, actions):
    """Those changes out of random ones that a file system would allow."""
    for number, (kind, name, other, offset, size) in enumerate(actions):
        tree = disk.tree()
        path, target = f"/disk/{name}", f"/disk/{other}"
        parents = {p.rpartition("/")[0] for p in (name, other)} - {""}
        for parent in sorted(parents - tree.keys()):
            yield Op("mkdir", f"/disk/{parent}")
        if kind == "rmdir":
            if not any(n.startswith("d/") for n in disk.tree()) and "d" in disk.tree():
                yield Op("rmdir", "/disk/d")
            continue
        if name not in tree:
            yield Op("create", path)
        match kind:
            case "write":
                data = bytes([number + 1]) * size
                yield Op(kind, path, offset=offset, data=data)
            case "truncate":
                yield Op(kind, path, size=offset)
            case "sync":
                yield Op(kind, path)
                yield Op(kind, path.rpartition("/")[0])
            case "unlink":
                yield Op(kind, path)
            case "rename" if name != other:
                yield Op(kind, path, target)
            case "link" if other not in disk.tree():
                yield Op(kind, path, target)


def applied(actions):
    disk, done = Disk("/disk"), []
    for op in possible(disk, actions):
        disk.apply(op)
        done.append(op)
    return disk, done


def perform(op, base):
    path, other = (base / p.removeprefix("/disk/") for p in (op.path, op.other))
    match op.kind:
        case "create":
            path.touch()
        case "mkdir" | "rmdir" | "unlink":
            getattr(path, op.kind)()
        case "write" | "truncate":
            with path.open("r+b") as file:
                if op.kind == "write":
                    file.seek(op.offset)
                    file.write(op.data)
                else:
                    file.truncate(op.size)
        case "rename":
            path.rename(other)
        case "link":
            other.hardlink_to(path)


def read_tree(base):
    return {
        str(p.relative_to(base)): None if p.is_dir() else p.read_bytes()
        for p in base.rglob("*")
    }


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_disk_shows_what_a_file_system_shows(tmp_path_factory, actions):
    base = tmp_path_factory.mktemp("real")
    disk, done = applied(actions)
    for op in done:
        perform(op, base)
    assert disk.tree() == read_tree(base)
    assert disk.survivor(Fate()) == disk.tree()


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.integers(0, 99))
def test_disk_keeps_what_was_synced(actions, seed):
    disk, _ = applied(actions)
    for path in [*disk.tree(), ""]:
        disk.apply(Op("sync", f"/disk/{path}".rstrip("/")))
    for fate in (Nothing(), DataOnly(), NamesAndSizes(), Chance(random.Random(seed))):
        assert disk.survivor(fate) == disk.tree()


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_disk_loses_all_that_was_not_synced(actions):
    disk, _ = applied([a for a in actions if a[0] != "sync"])
    assert disk.survivor(Nothing()) == {}


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.integers(0, 99))
def test_disk_invents_no_byte(actions, seed):
    disk, done = applied(actions)
    written = {op.data[:1] for op in done if op.data} | {b"\0"}
    for content in disk.survivor(Chance(random.Random(seed))).values():
        assert content is None or {bytes([b]) for b in set(content)} <= written


@pytest.fixture
def written():
    disk = Disk("/disk")
    disk.apply(Op("create", "/disk/a"))
    disk.apply(Op("write", "/disk/a", data=b"x" * 10_000))
    return disk


def test_disk_may_lose_any_block_of_a_write(written):
    written.apply(Op("sync", "/disk"))
    chances = [Chance(random.Random(seed)) for seed in range(400)]
    found = {written.survivor(chance)["a"] for chance in chances}
    blocks = [b"x" * 4096, b"x" * 4096, b"x" * 1808]
    every = {
        b"".join(b if mask >> i & 1 else bytes(len(b)) for i, b in enumerate(blocks))
        for mask in range(8)
    }
    assert found == every | {b""}


def test_disk_may_lose_either_half_of_a_rename(written):
    written.apply(Op("sync", "/disk/a"))
    written.apply(Op("sync", "/disk"))
    written.apply(Op("rename", "/disk/a", "/disk/b"))
    chances = [Chance(random.Random(seed)) for seed in range(100)]
    found = {tuple(sorted(written.survivor(chance))) for chance in chances}
    assert found == {("a",), ("b",), ("a", "b"), ()}


def test_disk_keeps_no_synced_file_whose_name_was_not(written):
    written.apply(Op("sync", "/disk/a"))
    assert written.survivor(Nothing()) == {}
    written.apply(Op("sync", "/disk"))
    assert written.survivor(Nothing()) == {"a": b"x" * 10_000}

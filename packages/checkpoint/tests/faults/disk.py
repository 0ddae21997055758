"""A model of what may be left of a file system after a power cut.

It grants no more than POSIX does: data is on the disk once its file was synced, a name
once its folder was. Before that any part of either may be there, in any order: blocks of
a write one without the other, a size without its data, one half of a rename without the
other. Nothing here touches a real file.
"""

from dataclasses import dataclass, field

BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Op:
    """One change of a file system.

    Args:
        kind: create, truncate, allocate, write, sync, mkdir, rmdir, unlink, rename, link.
        path: What is changed.
        other: The new name, of a rename and a link.
        offset: Where, of a write and an allocation.
        size: The new size of a truncation, or how much is allocated.
        data: What is written.
    """

    kind: str
    path: str
    other: str = ""
    offset: int = 0
    size: int = 0
    data: bytes = b""


@dataclass(eq=False)
class _File:
    durable: bytes = b""
    current: bytearray = field(default_factory=bytearray)
    pending: list = field(default_factory=list)

    def sync(self):
        self.durable = bytes(self.current)
        self.pending.clear()


@dataclass(eq=False)
class _Folder:
    durable: dict = field(default_factory=dict)
    current: dict = field(default_factory=dict)
    pending: dict = field(default_factory=dict)

    def bind(self, name, node):
        """Gives a name to a file or folder, or takes it away with None."""
        self.pending.setdefault(name, []).append(node)
        if node is None:
            del self.current[name]
        else:
            self.current[name] = node

    def sync(self):
        self.durable = dict(self.current)
        self.pending.clear()


class Fate:
    """Decides what of the unsynced survives: here all of it, as if nothing happened."""

    def names(self, num_changes):
        """Returns how many changes of one name of a folder survive."""
        return num_changes

    def block(self):
        """Whether a block of a write survives."""
        return True

    def size(self, sizes):
        """Returns one of the sizes that a file has had since it was synced."""
        return sizes[-1]


class Nothing(Fate):
    """Loses all that was not synced."""

    def names(self, num_changes):
        return 0

    def block(self):
        return False

    def size(self, sizes):
        return sizes[0]


class NamesOnly(Nothing):
    """Keeps names, and loses the data below them: files are empty."""

    def names(self, num_changes):
        return num_changes


class NamesAndSizes(NamesOnly):
    """Keeps names and sizes: files are full of zeros."""

    def size(self, sizes):
        return sizes[-1]


class DataOnly(Fate):
    """Keeps data, and loses the names."""

    def names(self, num_changes):
        return 0


class Chance(Fate):
    """Keeps what a random generator says.

    Args:
        random: The generator.
        keeps: The probability with which a change or block survives.
    """

    def __init__(self, random, keeps=0.5):
        self._random = random
        self._keeps = keeps

    def names(self, num_changes):
        return sum(self.block() for _ in range(num_changes))

    def block(self):
        return self._random.random() < self._keeps

    def size(self, sizes):
        return self._random.choice(sizes)


class Disk:
    """A file system to which changes are applied, and which may lose its power.

    Args:
        root: The folder that is there from the beginning, and durable.
    """

    def __init__(self, root):
        self._parts = root.strip("/").split("/")
        self._root = _Folder()

    def apply(self, op):
        """Makes a change, which must be possible."""
        if op.kind == "sync":
            self._node(op.path).sync()
        elif op.kind in {"write", "truncate", "allocate"}:
            node = self._node(op.path)
            node.pending.append(op)
            _change(node.current, op)
        else:
            self._rename(op)

    def tree(self):
        """Returns what a running process sees: bytes by path, None for folders."""
        return dict(_walk(self._root, "", lambda n: n.current, lambda n: n.current))

    def survivor(self, fate):
        """Returns what is left after a power cut, as `tree` does."""
        return dict(
            _walk(
                self._root,
                "",
                lambda folder: _surviving_names(folder, fate),
                lambda file: _surviving_data(file, fate),
            )
        )

    def _rename(self, op):
        folder, name = self._place(op.path)
        match op.kind:
            case "create":
                folder.bind(name, _File())
            case "mkdir":
                folder.bind(name, _Folder())
            case "unlink" | "rmdir":
                folder.bind(name, None)
            case "link":
                target, new = self._place(op.other)
                target.bind(new, folder.current[name])
            case "rename":
                target, new = self._place(op.other)
                node = folder.current[name]
                # Two names of one file: POSIX does nothing then.
                if target.current.get(new) is not node:
                    folder.bind(name, None)
                    target.bind(new, node)

    def _node(self, path):
        node = self._root
        parts = path.strip("/").split("/")
        assert parts[: len(self._parts)] == self._parts
        for part in parts[len(self._parts) :]:
            node = node.current[part]
        return node

    def _place(self, path):
        parent, _, name = path.rpartition("/")
        return self._node(parent), name


def _change(content, op):
    if op.kind == "truncate":
        del content[op.size :]
        content.extend(bytes(op.size - len(content)))
        return
    end = op.offset + (len(op.data) if op.kind == "write" else op.size)
    content.extend(bytes(max(0, end - len(content))))
    if op.kind == "write":
        content[op.offset : end] = op.data


def _walk(folder, path, names, data):
    for name, node in names(folder).items():
        below = f"{path}/{name}" if path else name
        if isinstance(node, _Folder):
            yield below, None
            yield from _walk(node, below, names, data)
        else:
            yield below, bytes(data(node))


def _surviving_names(folder, fate):
    found = dict(folder.durable)
    for name, nodes in folder.pending.items():
        kept = fate.names(len(nodes))
        if kept and nodes[kept - 1] is not None:
            found[name] = nodes[kept - 1]
        elif kept:
            found.pop(name, None)
    return found


def _surviving_data(file, fate):
    """Applies some of the changes; what lies between is as it was, or zeros."""
    content = bytearray(file.durable)
    sizes = [len(content)]
    grown = bytearray(content)
    for op in file.pending:
        _change(grown, op)
        sizes.append(len(grown))
        if op.kind != "write":
            if fate.block():
                _change(content, op)
            continue
        for at in range(0, len(op.data), BLOCK_BYTES):
            if fate.block():
                block = op.data[at : at + BLOCK_BYTES]
                _change(content, Op("write", "", offset=op.offset + at, data=block))
    if file.pending:
        _change(content, Op("truncate", "", size=fate.size(sizes)))
    return content

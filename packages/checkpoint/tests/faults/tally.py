"""How many points of each kind of fault were tried, and how many were violated."""


class Tally:
    """Counts over a whole run of tests."""

    def __init__(self):
        self._points = {}
        self._violations = {}

    def add(self, kind, problems):
        """Counts one point.

        Args:
            kind: The kind of fault.
            problems: What is wrong there; empty if nothing is.
        """
        self._points[kind] = self._points.get(kind, 0) + 1
        found = self._violations.setdefault(kind, [])
        if problems:
            found.append(list(problems))

    def rows(self):
        """Returns the counts as plain data."""
        return [
            {"fault": kind, "points": n, "violations": len(self._violations[kind])}
            for kind, n in sorted(self._points.items())
        ]

    def table(self):
        """Returns the counts as lines to be read."""
        rows = [("FAULT", "POINTS", "VIOLATIONS")]
        rows += [tuple(map(str, row.values())) for row in self.rows()]
        rows.append(
            (
                "all",
                *(
                    str(sum(r[k] for r in self.rows()))
                    for k in ("points", "violations")
                ),
            )
        )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    row[1].rjust(widths[1]),
                    row[2].rjust(widths[2]),
                ]
            )
            for row in rows
        )

"""What a Redis server does in one go: each script is done whole, or not at all.

Each has the keys `journal`, `records` and `lease` of a job. The first is a hash:

    version       of the way in which the journal is kept
    incarnation   how often it was claimed
    claim         a word of whoever claimed it last
    holder        of the lease under which that was, or nothing
    call          the number of the last write that was done

The second is a list of records; the third is a hash of `holder`, `address` and
`token`, a mark of the job's token that does not tell it, which the server forgets when nobody
renews it.
"""

from importlib.resources import files

CLAIM, READ, WRITE, TAKE, RENEW, RELEASE = (
    (files(__package__) / "lua" / f"{name}.lua").read_text()
    for name in ("claim", "read", "write", "take", "renew", "release")
)

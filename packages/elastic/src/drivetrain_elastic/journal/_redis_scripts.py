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

from __future__ import annotations

CLAIM = """
local journal, records, lease = unpack(KEYS)
local version, claim, holder = unpack(ARGV)
local found = redis.call('HGET', journal, 'version')
if found and found ~= version then
  return {'version', found}
end
if holder ~= '' and redis.call('HGET', lease, 'holder') ~= holder then
  return {'lease', ''}
end
local incarnation = redis.call('HGET', journal, 'incarnation')
if redis.call('HGET', journal, 'claim') ~= claim then
  redis.call('HSET', journal, 'version', version, 'claim', claim, 'holder', holder)
  redis.call('HDEL', journal, 'call')
  incarnation = redis.call('HINCRBY', journal, 'incarnation', 1)
end
return {'done', tonumber(incarnation), redis.call('LLEN', records)}
"""
"""Makes a journal this master's, unless its lease has gone; once a claim."""

READ = """
local journal, records = unpack(KEYS)
local incarnation = redis.call('HGET', journal, 'incarnation')
if incarnation ~= ARGV[1] then
  return {'claimed', incarnation or '0'}
end
return {'done', redis.call('LRANGE', records, ARGV[2], ARGV[3])}
"""
"""Returns a part of the records."""

WRITE = """
local journal, records = unpack(KEYS)
local incarnation = redis.call('HGET', journal, 'incarnation')
if incarnation ~= ARGV[1] then
  return {'claimed', incarnation or '0'}
end
if redis.call('HGET', journal, 'call') ~= ARGV[2] then
  local found = redis.call('LLEN', records)
  if found ~= tonumber(ARGV[3]) then
    return {'lost', found}
  end
  if ARGV[4] == 'replace' then
    redis.call('DEL', records)
  end
  for first = 5, #ARGV, 1000 do
    redis.call('RPUSH', records, unpack(ARGV, first, math.min(first + 999, #ARGV)))
  end
end
-- Also in a call that is repeated: a client waits for replicas to have its own writes.
redis.call('HSET', journal, 'call', ARGV[2])
return {'done', redis.call('LLEN', records)}
"""
"""Adds records to those that the master knows of, or puts them in their place, once."""

TAKE = """
local lease, holder = KEYS[3], ARGV[1]
local found = redis.call('HGET', lease, 'holder')
if found and found ~= holder then
  local address = redis.call('HGET', lease, 'address')
  local token = redis.call('HGET', lease, 'token')
  return {'held', address or '', redis.call('PTTL', lease), token or ''}
end
redis.call('HSET', lease, 'holder', holder, 'token', ARGV[3])
redis.call('PEXPIRE', lease, ARGV[2])
return {'done', '', 0, ''}
"""
"""Takes the lease if nobody has it."""

RENEW = """
local journal, lease, holder = KEYS[1], KEYS[3], ARGV[1]
local found = redis.call('HGET', lease, 'holder')
-- A lease that ended is still this one's if nobody has claimed the journal since.
if not found then
  found = redis.call('HGET', journal, 'holder')
end
if found ~= holder then
  return {'lost'}
end
redis.call('HSET', lease, 'holder', holder, 'address', ARGV[3], 'token', ARGV[4])
redis.call('PEXPIRE', lease, ARGV[2])
return {'done'}
"""
"""Has the lease last longer, if it is still this one's."""

RELEASE = """
local lease = KEYS[3]
if redis.call('HGET', lease, 'holder') == ARGV[1] then
  redis.call('DEL', lease)
end
return {'done'}
"""
"""Ends the lease, if it is still this one's."""

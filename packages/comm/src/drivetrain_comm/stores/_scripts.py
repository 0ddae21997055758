"""What Redis does in one step: a store's writes wake those who wait for the key.

A job is one hash (KEYS[1]), so that a single time to live covers it and the number of
keys is known at once. Beside it stand, with the same prefix:

    :w:KEY     the ids of those who wait for a key
    :need      for each id, how many keys are still missing
    :wake:ID   a list that gets one element when none is
    :once      the last reply to each writer, so that a repeated write counts once
    :born      a mark of the job that is gone when the server has lost its memory

Checking for keys and being counted as waiting is one step here, and so is writing a key
and waking those who wait: no wake-up can be lost, and nobody has to ask again.
"""

from __future__ import annotations

# Of a list that nobody may ever read: who waited for it may have died.
_WAKE_MS = 60_000

_WRITE = f"""
local data = KEYS[1]
local ttl = tonumber(ARGV[1])
local function written(key)
  redis.call('PEXPIRE', data, ttl)
  local waiting = data .. ':w:' .. key
  local ids = redis.call('SMEMBERS', waiting)
  if #ids == 0 then return end
  for _, id in ipairs(ids) do
    if redis.call('HINCRBY', data .. ':need', id, -1) <= 0 then
      redis.call('HDEL', data .. ':need', id)
      redis.call('RPUSH', data .. ':wake:' .. id, '1')
      redis.call('PEXPIRE', data .. ':wake:' .. id, {_WAKE_MS})
    end
  end
  redis.call('DEL', waiting)
end
"""

SET = f"""{_WRITE}
for i = 2, #ARGV, 2 do
  redis.call('HSET', data, ARGV[i], ARGV[i + 1])
  written(ARGV[i])
end
"""

# ARGV: time to live, writer, number of the write, key, arguments.
_ONCE = f"""{_WRITE}
local once = data .. ':once'
local last = redis.call('HMGET', once, ARGV[2] .. ':number', ARGV[2])
if last[1] == ARGV[3] then return last[2] end
local function reply(value)
  redis.call('HSET', once, ARGV[2] .. ':number', ARGV[3], ARGV[2], value)
  redis.call('PEXPIRE', once, ttl)
  return tostring(value)
end
local key = ARGV[4]
"""

# The sum is read back as text: a number of Lua's has 53 bits.
ADD = f"""{_ONCE}
redis.call('HINCRBY', data, key, ARGV[5])
written(key)
return reply(redis.call('HGET', data, key))
"""

APPEND = f"""{_ONCE}
redis.call('HSET', data, key, (redis.call('HGET', data, key) or '') .. ARGV[5])
written(key)
return reply('')
"""

COMPARE_SET = f"""{_ONCE}
local found = redis.call('HGET', data, key)
if (found or '') ~= ARGV[5] then
  return reply(found or ARGV[5])
end
redis.call('HSET', data, key, ARGV[6])
written(key)
return reply(ARGV[6])
"""

DELETE = f"""{_ONCE}
return reply(redis.call('HDEL', data, key))
"""

# ARGV: time to live of the waiting, id, keys. Returns how many are missing.
WAIT = """
local data, id = KEYS[1], ARGV[2]
local missing = 0
for i = 3, #ARGV do
  if redis.call('HEXISTS', data, ARGV[i]) == 0 then
    redis.call('SADD', data .. ':w:' .. ARGV[i], id)
    redis.call('PEXPIRE', data .. ':w:' .. ARGV[i], ARGV[1])
    missing = missing + 1
  end
end
if missing > 0 then
  redis.call('HSET', data .. ':need', id, missing)
  redis.call('PEXPIRE', data .. ':need', ARGV[1])
end
return missing
"""

# ARGV: keys. Returns the keys that are missing.
MISSING = """
local missing = {}
for i = 1, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
  end
end
return missing
"""

# ARGV: id, keys. Returns the keys that are missing.
LEAVE = """
local data, id = KEYS[1], ARGV[1]
local missing = {}
for i = 2, #ARGV do
  redis.call('SREM', data .. ':w:' .. ARGV[i], id)
  if redis.call('HEXISTS', data, ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
  end
end
redis.call('HDEL', data .. ':need', id)
redis.call('DEL', data .. ':wake:' .. id)
return missing
"""

# KEYS[2] is the job, of which KEYS[1] is one start. ARGV: time to live, a random mark or
# nothing. Returns the mark that stands.
GREET = """
local born = KEYS[2] .. ':born'
if ARGV[2] ~= '' then redis.call('SET', born, ARGV[2], 'NX') end
for _, name in ipairs({KEYS[1], KEYS[1] .. ':once', KEYS[2], born}) do
  redis.call('PEXPIRE', name, ARGV[1])
end
return redis.call('GET', born)
"""

# ARGV: time to live, rank, world size, who, lease. Returns the generation. A rank that
# finds its place taken belongs to a later start of the job, and begins a generation.
# Whoever comes last looks whether the others still live.
JOIN = f"""{_WRITE}
local rank, size, who = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = tonumber(redis.call('HGET', data, 'generation') or '0')
local function place(rank) return now .. '/place/' .. rank end
local owner = redis.call('HGET', data, place(rank))
local agreed = redis.call('HGET', data, now .. '/size')
if (owner and owner ~= who) or (agreed and tonumber(agreed) ~= size) then
  for other = 0, (tonumber(agreed) or 0) - 1 do
    redis.call('HDEL', data, place(other))
  end
  redis.call('HDEL', data, now .. '/size', now .. '/present', now .. '/complete')
  now, owner = now + 1, false
  redis.call('HSET', data, 'generation', now)
end
redis.call('HSET', data, now .. '/size', size)
redis.call('SET', data .. ':lease:' .. place(rank), '1', 'PX', ARGV[5])
local present = tonumber(redis.call('HGET', data, now .. '/present') or '0')
if not owner then
  redis.call('HSET', data, place(rank), who)
  present = redis.call('HINCRBY', data, now .. '/present', 1)
end
if present == size and redis.call('HEXISTS', data, now .. '/complete') == 0 then
  for other = 0, size - 1 do
    if redis.call('EXISTS', data .. ':lease:' .. place(other)) == 0 then
      redis.call('HDEL', data, place(other))
      present = redis.call('HINCRBY', data, now .. '/present', -1)
    end
  end
  if present == size then
    redis.call('HSET', data, now .. '/complete', '1')
    written(now .. '/complete')
  end
end
redis.call('PEXPIRE', data, ttl)
return now
"""

# ARGV: time to live, rank, who. Gives up a place that was taken in vain.
RESIGN = f"""{_WRITE}
local now = redis.call('HGET', data, 'generation') or '0'
local place = now .. '/place/' .. ARGV[2]
if redis.call('HEXISTS', data, now .. '/complete') == 0
    and redis.call('HGET', data, place) == ARGV[3] then
  redis.call('HDEL', data, place)
  redis.call('HINCRBY', data, now .. '/present', -1)
  redis.call('DEL', data .. ':lease:' .. place)
end
"""

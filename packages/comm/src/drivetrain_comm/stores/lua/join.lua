-- ARGV: time to live, rank, world size, who, lease. Returns the generation. A rank that
-- finds its place taken belongs to a later start of the job, and begins a generation.
-- Whoever comes last looks whether the others still live.
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

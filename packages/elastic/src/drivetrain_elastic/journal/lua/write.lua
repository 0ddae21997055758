-- Adds records to those that the master knows of, or puts them in their place, once.
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

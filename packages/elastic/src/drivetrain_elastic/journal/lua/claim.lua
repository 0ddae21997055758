-- Makes a journal this master's, unless its lease has gone; once a claim.
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

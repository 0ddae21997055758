-- Has the lease last longer, if it is still this one's.
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

-- Takes the lease if nobody has it.
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

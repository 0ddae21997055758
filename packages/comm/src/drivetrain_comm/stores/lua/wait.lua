-- ARGV: time to live of the waiting, id, keys. Returns how many are missing.
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
